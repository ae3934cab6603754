"""What the engine keeps in dicts, sets and heaps, in arrays that compiled code goes through, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optcc.runtime.compiled.queues import first_ready, pop_ready, push_ready
from optcc.runtime.compiled.tables import RowTables


class Column:
    """A dict from rows to numbers, in an array; NaN where there is none."""

    def __init__(self, place: Mapping[int, int], values: Any) -> None:
        self._place, self._values = place, values

    def __getitem__(self, row: int) -> Any:
        return self._values[self._place[row]].item()

    def __setitem__(self, row: int, value: Any) -> None:
        self._values[self._place[row]] = value

    def get(self, row: int, default: Any) -> Any:
        """As of a dict."""
        value = self[row]
        return value if value == value else default


class ExpectedRows:
    """A set of rows, in an array."""

    def __init__(self, rows: Any, place: Mapping[int, int]) -> None:
        self._rows, self._place, self._flags = rows["row"][:-1], place, rows["expected"][:-1]

    def __contains__(self, row: int) -> bool:
        return row in self._place and bool(self._flags[self._place[row]])

    def remove(self, row: int) -> None:
        """As of a set."""
        if row not in self:
            raise KeyError(row)
        self._flags[self._place[row]] = 0

    def __bool__(self) -> bool:
        return bool(self._flags.any())

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows[self._flags != 0].tolist())


class Queue:
    """A `ReadyQueue` in arrays."""

    def __init__(self, rows: RowTables, place: Mapping[int, int], route: int) -> None:
        self._routes, self._queues, self._numbers = rows.routes, rows.queues, rows.rows["row"]
        self._place, self._route = place, route

    def __bool__(self) -> bool:
        route = self._routes[self._route]
        return bool(route["timed"] + route["rowed"])

    def push(self, row: int, since: float) -> None:
        """See `ReadyQueue`."""
        push_ready(self._routes, self._queues, self._route, self._place[row], since)

    def first(self, free: float) -> tuple[float, int]:
        """See `ReadyQueue`."""
        at, place = first_ready(self._routes, self._queues, self._route, free)
        return at, int(self._numbers[place])

    def pop(self) -> None:
        """See `ReadyQueue`."""
        pop_ready(self._routes, self._queues, self._route)
