"""Records from one process to another through memory that both have mapped: one writes, one reads, nobody calls the
kernel.

The writer stores a record, then the count of records; the reader takes what is below the count. That a store is seen
no earlier than those before it is the rule on x86; elsewhere `order` asks for it. Whoever is about to sleep says so in
a word (`slots`), then looks once more; whoever has written looks at that word after it, and wakes. Each needs its store
to be over before its load, on x86 as well: `fence`.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from struct import Struct
from typing import Any

from optcc.runtime.errors import TransportError
from optcc.runtime.wires.contract import HEADER_BYTES

WORD = 8
_LINE = HEADER_BYTES
_IN_ORDER = platform.machine() in ("x86_64", "AMD64")
_lock = threading.Lock()


def _by_lock() -> None:
    """A lock's atomic instruction waits for all stores before it, on x86."""
    with _lock:
        pass


def _nothing() -> None:
    """Stores are seen in order as it is."""


# sched_yield(2) passes through the scheduler, which has a full barrier on every machine (membarrier(2) relies on it).
fence: Callable[[], None] = _by_lock if _IN_ORDER else os.sched_yield
order: Callable[[], None] = _nothing if _IN_ORDER else os.sched_yield


def ring_bytes(count: int, record: Struct) -> int:
    """Bytes of a ring of at least `count` records, a multiple of a cache line."""
    return 2 * _LINE + -(-_power(count) * record.size // _LINE) * _LINE


class Ring:
    """One end of a ring of at least `count` records, `at` bytes into `memory`, which is all zeros before its first use.

    An end either writes or reads, and there is one of each.
    """

    def __init__(self, memory: memoryview, at: int, count: int, record: Struct) -> None:
        self._memory, self._words = memory, memory.cast("Q")
        self._written_at, self._taken_at = at // WORD, (at + _LINE) // WORD
        self._start, self._count, self._record = at + 2 * _LINE, _power(count), record
        self._written = self._taken = 0  # the writer knows the first and has seen the second, the reader otherwise

    def put(self, *fields: Any) -> bool:
        """Write a record; False: there is no room until the reader has taken some."""
        written = self._written
        if written - self._taken == self._count:
            self._taken = self._words[self._taken_at]
            if written - self._taken == self._count:
                return False
        at = self._start + (written & self._count - 1) * self._record.size
        self._record.pack_into(self._memory, at, *fields)
        if not _IN_ORDER:
            order()
        self._words[self._written_at] = self._written = written + 1
        return True

    def take(self) -> list[tuple[Any, ...]]:
        """All that has been written since."""
        written, taken = self._words[self._written_at], self._taken
        if written == taken:
            return []
        if not _IN_ORDER:
            order()
        if not 0 < written - taken <= self._count:
            raise TransportError(f"{written - taken} records in a ring of {self._count}")
        memory, start, mask, record = self._memory, self._start, self._count - 1, self._record
        records = [record.unpack_from(memory, start + (i & mask) * record.size) for i in range(taken, written)]
        if not _IN_ORDER:
            order()
        self._words[self._taken_at] = self._taken = written
        return records

    def release(self) -> None:
        """Let go of the memory."""
        self._words.release()


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
