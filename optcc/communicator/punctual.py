"""Which rank comes late to calls: ranks tell each other, now and then, how long their latest calls took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from optcc.diagnose.late import late_ranks
from optcc.runtime.messages import Note

FIRST, SELDOM = 16, 256
"""Calls after which ranks tell each other: 16, 32, 64, 128, then every 256. It costs a message by way of the hub."""
LEAST_S = 0.01
"""Seconds from which a rank is late: processes of a busy machine get a processor within a few milliseconds."""


class Punctuality:
    """Of one rank. `exchange` : all ranks' values, by rank, where all call it; `tell` : called with what is found."""

    def __init__(
        self, exchange: Callable[[list[float]], list[list[float]]], tell: Callable[[Sequence[Note]], None]
    ) -> None:
        self._exchange, self._tell = exchange, tell
        self._seconds: deque[float] = deque(maxlen=FIRST)
        self._calls = 0
        self._late: set[int] = set()

    def took(self, seconds: float) -> None:
        """A call in which every rank waits for all others took so long here. Within a turn, on all ranks alike."""
        self._seconds.append(seconds)
        self._calls += 1
        often = self._calls < SELDOM and self._calls & (self._calls - 1) == 0
        if self._calls < FIRST or not (often or self._calls % SELDOM == 0):
            return
        calls = zip(*self._exchange(list(self._seconds)), strict=True)
        late = late_ranks([dict(enumerate(call)) for call in calls], LEAST_S)
        self._tell([Note(time.monotonic(), "late", "", text=str(one)) for one in late if one.rank not in self._late])
        self._late = {one.rank for one in late}
