"""Memory that the ranks of a machine share: what is sent from there is read where it lies.

The sender says where in its memory a segment lies, and the receiver folds or copies it from there. So every payload
byte is read once and written once, by the receiver; by way of a ring it is so twice.

What makes it safe:

* A rank writes into what it has sent only when the transfer has finished at its destination: a schedule's dependencies
  say so, and the verifier demands it (`simulation.verifier`, "changes them while ... may still be sending them").
* A segment is acknowledged when its bytes have been read, and an operation ends when all its segments have been
  acknowledged. So its caller gets the buffer back when nobody reads it any more: from a call that waits when it
  returns, from one that does not when its handle is done. Until then the operation holds the array, so that its place
  is not given to another one.
* What a rank that gives up had lent is read no more: `native/wires_shm.c` says how.

The memory is anonymous, as that of rings, and stays while anybody has it mapped: bytes that a dead rank has lent can
still be read.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from optcc.runtime.errors import TransportError
from optcc.runtime.forks import own


class Arena:
    """Memory of this rank that the other ranks of its machine can read; arrays are allocated in it.

    A place in it is one number, whichever array it is of.

    limit : bytes of all arrays together, each in whole pages. Addresses are reserved with the first array; an array's
        memory is allocated with it, and given back when the array and all views of it are gone
    fd : its descriptor, closed when all who share the arena have closed it, or nobody has it any more
    bytes : all of it once there has been an array, before that nothing
    """

    def __init__(self, limit: int) -> None:
        self.limit, self._pid, self._users = _pages(limit), os.getpid(), 1
        self.fd = os.memfd_create("optcc-buffer")
        self._let_go = weakref.finalize(self, os.close, self.fd)
        own(self, lambda arena: arena._let_go())
        self._map: mmap.mmap | None = None
        self.bytes = memoryview(b"")
        self._lock = threading.Lock()
        self._gaps = [(0, self.limit)]
        # Not yet among the gaps: an array may end in any thread at any time, also where the lock is held.
        self._returned: deque[tuple[int, int]] = deque()

    def empty(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """An uninitialised array, shape (count,). Raises TransportError where there is too little memory, and in a
        process that was forked from the arena's."""
        nbytes = count * dtype.itemsize
        if not nbytes:
            return np.empty(count, dtype)
        if os.getpid() != self._pid:
            raise TransportError("a forked process cannot allocate memory that the ranks share")
        size = _pages(nbytes)
        with self._lock:
            start = self._gap_of(size)
            try:
                if self._map is None:
                    os.ftruncate(self.fd, self.limit)
                    self._map = mmap.mmap(self.fd, self.limit)
                    self.bytes = memoryview(self._map)
                # Allocated now, where it is an error that there is too little; at the first write it were a SIGBUS.
                os.posix_fallocate(self.fd, start, size)
            except OSError as error:
                self._returned.append((start, start + size))
                if self._map is None:
                    os.ftruncate(self.fd, 0)  # there is nothing for others to map
                raise TransportError(f"{_too_little(nbytes)} cannot be had: {error.strerror}") from error
        array = np.frombuffer(self.bytes[start : start + nbytes], dtype)
        weakref.finalize(array, self._take_back, self._map, start, size).atexit = False
        return array

    def _gap_of(self, size: int) -> int:
        """Where the first gap of `size` bytes begins, which is one no more."""
        while self._returned:
            self._gaps.append(self._returned.popleft())
        gaps: list[tuple[int, int]] = []
        for start, end in sorted(self._gaps):
            if gaps and gaps[-1][1] == start:
                start = gaps.pop()[0]
            gaps.append((start, end))
        self._gaps = gaps
        for i, (start, end) in enumerate(gaps):
            if end - start >= size:
                gaps[i] = (start + size, end)
                return start
        left = max(end - start for start, end in gaps) / 2**20
        raise TransportError(f"{_too_little(size)}: of {self.limit / 2**20:.3g} MiB {left:.3g} MiB in a row are left")

    def _take_back(self, memory: mmap.mmap, start: int, size: int) -> None:
        """Of an array that is gone. In a forked process, whose copy of the array this was, the array is still there."""
        if os.getpid() == self._pid:
            with suppress(OSError):  # a kernel that cannot keeps the memory for the next array
                memory.madvise(mmap.MADV_REMOVE, start, size)
            self._returned.append((start, start + size))

    def share(self) -> Self:
        """The same for one more, who closes it, too."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Let go of it, the last time it is called; the memory stays while an array or another rank has it."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self.bytes.release()
            self._map = None
            self._let_go()


def _pages(nbytes: int) -> int:
    return nbytes + -nbytes % mmap.PAGESIZE


def _too_little(nbytes: int) -> str:
    return f"too little memory for a buffer: {nbytes / 2**20:.3g} MiB of memory that ranks share"
