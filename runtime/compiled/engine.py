"""The engine over arrays that compiled code goes through, too: the reference's rules, from another store.

`CompiledEngine` inherits every method of `Engine`. Its tables by row are columns of arrays, which compiled code
reads and writes too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from optcc.runtime.compiled.flow_table import address_of
from optcc.runtime.compiled.queues import first_ready, pop_ready, push_each, push_ready
from optcc.runtime.compiled.tables import INTS, TIMES, TOTAL, UNFINISHED, UNSENT, RowTables
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import Program
from optcc.runtime.engine.transport import Attendant

if TYPE_CHECKING:
    from optcc.runtime.compiled.path import CompiledPath


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


class CompiledEngine(Engine):
    """As `Engine`; while the path takes it, what happens per chunk happens in compiled code."""

    def __init__(self, path: CompiledPath, program: Program, *rest: Any) -> None:
        self._path, self.attendant = path, None
        self.numbers, self.times = np.zeros(INTS, np.int64), np.zeros(TIMES, np.float64)
        self.cut_for: Any = None  # the state for which the lanes in `rows` hold
        super().__init__(program, *rest)

    attendant: Attendant | None

    def _begin_tables(self) -> None:
        program, known = self._program, self._path.tables_of(self._program)
        self.place, self.routes, self.moves, self.received = known.place, known.routes, known.moves, known.received
        self._starts = known.starts
        self.address = address_of(self._bytes)
        in_parts = self._parts is not None
        rows = self.rows = known.fresh(address_of(self._parts) if in_parts else self.address, in_parts)
        self._waits = self._awaits = self.column("count")  # type: ignore[assignment]
        self._since = self.column("since")  # type: ignore[assignment]
        self._expected = ExpectedRows(rows.rows, self.place)  # type: ignore[assignment]
        self._ready = {route: Queue(rows, self.place, i) for route, i in self.routes.items()}  # type: ignore[misc]
        self._unsent, self._unfinished = len(program.sends), len(program.receives)
        self.numbers[TOTAL] = len(program.sends) + len(program.receives)

    def column(self, name: str) -> Column:
        """A column of the rows, as a dict."""
        return Column(self.place, self.rows.rows[name])

    def begin(self) -> None:
        """See `Engine`."""
        rows = self.rows
        push_each(rows.rows, rows.routes, rows.queues, self._starts, self._clock())

    @property
    def _unsent(self) -> int:
        return int(self.numbers[UNSENT])

    @_unsent.setter
    def _unsent(self, count: int) -> None:
        self.numbers[UNSENT] = count

    @property
    def _unfinished(self) -> int:
        return int(self.numbers[UNFINISHED])

    @_unfinished.setter
    def _unfinished(self, count: int) -> None:
        self.numbers[UNFINISHED] = count

    def run(self, attendant: Attendant | None = None) -> None:
        """See `Engine`."""
        self.attendant = attendant
        super().run(attendant)

    def post_ready(self) -> float:
        """See `Engine`; before that, all that compiled code can do."""
        self._path.advance(self)
        return super().post_ready()
