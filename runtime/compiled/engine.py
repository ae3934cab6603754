"""The engine over arrays that compiled code goes through, too: the reference's rules, from another store.

`CompiledEngine` inherits every method of `Engine`. Its tables by row are columns of arrays, which compiled code
reads and writes too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from optcc.runtime.compiled.flow_table import address_of
from optcc.runtime.compiled.queues import push_each
from optcc.runtime.compiled.tables import INTS, TIMES, TOTAL, UNFINISHED, UNSENT
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import Program
from optcc.runtime.engine.transport import Attendant

if TYPE_CHECKING:
    from optcc.runtime.compiled.path import CompiledPath


class CompiledEngine(Engine):
    """As `Engine`; while the path takes it, what happens per chunk happens in compiled code.

    One at a time of a path: the next one has the same arrays.
    """

    attendant: Attendant | None

    def __init__(self, path: CompiledPath, program: Program, *rest: Any) -> None:
        self._path, self.attendant, self.tables = path, None, path.tables_of(program)
        self.numbers, self.times = np.zeros(INTS, np.int64), np.zeros(TIMES, np.float64)
        super().__init__(program, *rest)

    def _begin_tables(self) -> None:
        tables, numbers = self.tables, self.numbers
        self.address = address_of(self._bytes)
        in_parts = self._parts is not None
        tables.begin(address_of(self._parts) if in_parts else self.address, in_parts)
        self._waits = self._awaits = tables.counts  # type: ignore[assignment]
        self._since, self._expected = tables.since, tables.expected  # type: ignore[assignment]
        self._ready = tables.ready  # type: ignore[assignment]
        numbers[UNSENT], numbers[UNFINISHED] = len(self._program.sends), len(self._program.receives)
        numbers[TOTAL] = numbers[UNSENT] + numbers[UNFINISHED]

    def begin(self) -> None:
        """See `Engine`."""
        arrays = self.tables.arrays
        push_each(arrays.rows, arrays.routes, arrays.queues, self.tables.starts, self._clock())

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
        try:
            super().run(attendant)
        finally:
            self.attendant = None  # it may look at this engine, and both would stay with the caller's buffer

    def post_ready(self) -> float:
        """See `Engine`; before that, all that compiled code can do."""
        return math.inf if self._path.advance(self) else super().post_ready()
