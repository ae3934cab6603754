"""The ready queues of `engine.priority`, compiled: one pair of heaps for each route, in arrays.

Both are heaps by (since, place). In that by row `since` is 0, for what is in it was ready in time.
"""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from optcc.runtime.compiled.basics import called, inner
from optcc.runtime.compiled.tables import Ints, Records


@inner  # type: ignore[misc, unused-ignore]
def _by_row(routes: Records, queues: Records, route: int) -> int:
    """Where that heap begins: in the second half of the array, where the one by time does in the first."""
    return (len(queues) >> 1) + routes[route].queue_at


@inner  # type: ignore[misc, unused-ignore]
def _push(heaps: Records, first: int, size: int, since: float, place: int) -> None:
    """Onto the heap of `size` entries that begins at `first`."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if (heaps[first + up].since, heaps[first + up].place) <= (since, place):
            break
        heaps[first + i].since, heaps[first + i].place = heaps[first + up].since, heaps[first + up].place
        i = up
    heaps[first + i].since, heaps[first + i].place = since, place


@inner  # type: ignore[misc, unused-ignore]
def _pop(heaps: Records, first: int, size: int) -> int:
    """The first place of a heap of `size` entries, which has one less then."""
    top, last = heaps[first].place, first + size - 1
    since, place, i = heaps[last].since, heaps[last].place, 0
    while True:
        child = 2 * i + 1
        if child >= size - 1:
            break
        one, other = first + child, first + child + 1
        if other < last and (heaps[other].since, heaps[other].place) < (heaps[one].since, heaps[one].place):
            child, one = child + 1, other
        if (heaps[one].since, heaps[one].place) >= (since, place):
            break
        heaps[first + i].since, heaps[first + i].place = heaps[one].since, heaps[one].place
        i = child
    heaps[first + i].since, heaps[first + i].place = since, place
    return top


@called  # type: ignore[misc, unused-ignore]
def push_ready(routes: Records, queues: Records, route: int, place: int, since: float) -> None:
    """Place `place` of the rows is ready since a time."""
    _push(queues, routes[route].queue_at, routes[route].timed, since, place)
    routes[route].timed += 1


@called  # type: ignore[misc, unused-ignore]
def push_each(rows: Records, routes: Records, queues: Records, places: Ints, since: float) -> None:
    """All these places, of any routes."""
    for place in places:
        rows[place].since = since
        push_ready(routes, queues, rows[place].route, place, since)


@called  # type: ignore[misc, unused-ignore]
def first_ready(routes: Records, queues: Records, route: int, free: float) -> tuple[float, int]:
    """See `ReadyQueue.first`."""
    by_time, by_row = routes[route].queue_at, _by_row(routes, queues, route)
    while routes[route].timed > 0 and queues[by_time].since <= free:
        place = _pop(queues, by_time, routes[route].timed)
        routes[route].timed -= 1
        _push(queues, by_row, routes[route].rowed, 0.0, place)
        routes[route].rowed += 1
    if routes[route].rowed > 0:
        return free, queues[by_row].place
    return queues[by_time].since, queues[by_time].place


@called  # type: ignore[misc, unused-ignore]
def pop_ready(routes: Records, queues: Records, route: int) -> None:
    """See `ReadyQueue.pop`."""
    if routes[route].rowed > 0:
        _pop(queues, _by_row(routes, queues, route), routes[route].rowed)
        routes[route].rowed -= 1
    else:
        _pop(queues, routes[route].queue_at, routes[route].timed)
        routes[route].timed -= 1
