"""The ready queues of `engine.priority`, compiled: one pair of heaps for each route, in arrays."""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from optcc.runtime.compiled.basics import called, inner
from optcc.runtime.compiled.tables import Ints, Records


@called  # type: ignore[misc, unused-ignore]
def push_ready(routes: Records, queues: Records, route: int, place: int, since: float) -> None:
    """Place `place` of the rows is ready since a time."""
    first, i = routes[route].queue_at, routes[route].timed
    routes[route].timed += 1
    while i > 0:
        up = (i - 1) >> 1
        if (queues[first + up].since, queues[first + up].by_time) <= (since, place):
            break
        queues[first + i].since, queues[first + i].by_time = (
            queues[first + up].since,
            queues[first + up].by_time,
        )
        i = up
    queues[first + i].since, queues[first + i].by_time = since, place


@called  # type: ignore[misc, unused-ignore]
def push_each(rows: Records, routes: Records, queues: Records, places: Ints, since: float) -> None:
    """All these places, of any routes."""
    for place in places:
        rows[place].since = since
        push_ready(routes, queues, rows[place].route, place, since)


@inner  # type: ignore[misc, unused-ignore]
def _pop_time(routes: Records, queues: Records, route: int) -> int:
    first = routes[route].queue_at
    top = queues[first].by_time
    routes[route].timed -= 1
    size = routes[route].timed
    since, place, i = queues[first + size].since, queues[first + size].by_time, 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (queues[first + right].since, queues[first + right].by_time) < (
            queues[first + child].since,
            queues[first + child].by_time,
        ):
            child = right
        if (queues[first + child].since, queues[first + child].by_time) >= (since, place):
            break
        queues[first + i].since, queues[first + i].by_time = (
            queues[first + child].since,
            queues[first + child].by_time,
        )
        i = child
    queues[first + i].since, queues[first + i].by_time = since, place
    return top


@inner  # type: ignore[misc, unused-ignore]
def _push_row(routes: Records, queues: Records, route: int, place: int) -> None:
    first, i = routes[route].queue_at, routes[route].rowed
    routes[route].rowed += 1
    while i > 0:
        up = (i - 1) >> 1
        if queues[first + up].by_row <= place:
            break
        queues[first + i].by_row = queues[first + up].by_row
        i = up
    queues[first + i].by_row = place


@called  # type: ignore[misc, unused-ignore]
def first_ready(routes: Records, queues: Records, route: int, free: float) -> tuple[float, int]:
    """See `ReadyQueue.first`."""
    first = routes[route].queue_at
    while routes[route].timed > 0 and queues[first].since <= free:
        _push_row(routes, queues, route, _pop_time(routes, queues, route))
    if routes[route].rowed > 0:
        return free, queues[first].by_row
    return queues[first].since, queues[first].by_time


@called  # type: ignore[misc, unused-ignore]
def pop_ready(routes: Records, queues: Records, route: int) -> None:
    """See `ReadyQueue.pop`."""
    if routes[route].rowed == 0:
        _pop_time(routes, queues, route)
        return
    first = routes[route].queue_at
    routes[route].rowed -= 1
    size = routes[route].rowed
    place, i = queues[first + size].by_row, 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and queues[first + child + 1].by_row < queues[first + child].by_row:
            child += 1
        if queues[first + child].by_row >= place:
            break
        queues[first + i].by_row = queues[first + child].by_row
        i = child
    queues[first + i].by_row = place
