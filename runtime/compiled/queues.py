"""The ready queues of `engine.priority`, compiled: one pair of heaps for each route, in arrays."""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from optcc.runtime.compiled.basics import called, inner
from optcc.runtime.compiled.tables import RowTables


@called  # type: ignore[misc, unused-ignore]
def push_ready(r: RowTables, route: int, place: int, since: float) -> None:
    """Place `place` of the rows is ready since a time."""
    first, i = r.routes[route].queue_at, r.routes[route].timed
    r.routes[route].timed += 1
    while i > 0:
        up = (i - 1) >> 1
        if (r.queues[first + up].since, r.queues[first + up].by_time) <= (since, place):
            break
        r.queues[first + i].since, r.queues[first + i].by_time = (
            r.queues[first + up].since,
            r.queues[first + up].by_time,
        )
        i = up
    r.queues[first + i].since, r.queues[first + i].by_time = since, place


@inner  # type: ignore[misc, unused-ignore]
def _pop_time(r: RowTables, route: int) -> int:
    first = r.routes[route].queue_at
    top = r.queues[first].by_time
    r.routes[route].timed -= 1
    size = r.routes[route].timed
    since, place, i = r.queues[first + size].since, r.queues[first + size].by_time, 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (r.queues[first + right].since, r.queues[first + right].by_time) < (
            r.queues[first + child].since,
            r.queues[first + child].by_time,
        ):
            child = right
        if (r.queues[first + child].since, r.queues[first + child].by_time) >= (since, place):
            break
        r.queues[first + i].since, r.queues[first + i].by_time = (
            r.queues[first + child].since,
            r.queues[first + child].by_time,
        )
        i = child
    r.queues[first + i].since, r.queues[first + i].by_time = since, place
    return top


@inner  # type: ignore[misc, unused-ignore]
def _push_row(r: RowTables, route: int, place: int) -> None:
    first, i = r.routes[route].queue_at, r.routes[route].rowed
    r.routes[route].rowed += 1
    while i > 0:
        up = (i - 1) >> 1
        if r.queues[first + up].by_row <= place:
            break
        r.queues[first + i].by_row = r.queues[first + up].by_row
        i = up
    r.queues[first + i].by_row = place


@called  # type: ignore[misc, unused-ignore]
def first_ready(r: RowTables, route: int, free: float) -> tuple[float, int]:
    """See `ReadyQueue.first`."""
    first = r.routes[route].queue_at
    while r.routes[route].timed > 0 and r.queues[first].since <= free:
        _push_row(r, route, _pop_time(r, route))
    if r.routes[route].rowed > 0:
        return free, r.queues[first].by_row
    return r.queues[first].since, r.queues[first].by_time


@called  # type: ignore[misc, unused-ignore]
def pop_ready(r: RowTables, route: int) -> None:
    """See `ReadyQueue.pop`."""
    if r.routes[route].rowed == 0:
        _pop_time(r, route)
        return
    first = r.routes[route].queue_at
    r.routes[route].rowed -= 1
    size = r.routes[route].rowed
    place, i = r.queues[first + size].by_row, 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and r.queues[first + child + 1].by_row < r.queues[first + child].by_row:
            child += 1
        if r.queues[first + child].by_row >= place:
            break
        r.queues[first + i].by_row = r.queues[first + child].by_row
        i = child
    r.queues[first + i].by_row = place
