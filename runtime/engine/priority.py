"""Which transfer goes next on a route: the lowest row of those that were ready when its ports became free."""

from __future__ import annotations

from heapq import heappop, heappush


class ReadyQueue:
    """The transfers of one route that may start.

    A process that wakes up late finds several transfers ready and its ports free for some time. Then the transfer goes
    that the ports would have started first, not one of a lower row that became ready meanwhile. Otherwise they would
    have idled for it.
    """

    def __init__(self) -> None:
        self._by_time: list[tuple[float, int]] = []  # heap: (ready since, row)
        self._by_row: list[int] = []  # heap: rows that were ready when the ports became free

    def __bool__(self) -> bool:
        return bool(self._by_row or self._by_time)

    def push(self, row: int, since: float) -> None:
        """Transfer `row` is ready since a time, which need not be later than those pushed before."""
        heappush(self._by_time, (since, row))

    def first(self, free: float) -> tuple[float, int]:
        """(when it starts, row) of the transfer that ports which are free from `free` on take next."""
        while self._by_time and self._by_time[0][0] <= free:
            heappush(self._by_row, heappop(self._by_time)[1])
        return (free, self._by_row[0]) if self._by_row else self._by_time[0]

    def pop(self) -> None:
        """Take out the transfer that `first` has named."""
        if self._by_row:
            heappop(self._by_row)
        else:
            heappop(self._by_time)
