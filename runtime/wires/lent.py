"""Buffers in memory that the ranks of a machine share: what is sent from one need not be copied into a slot.

The sender says where in its buffer a chunk lies, and the receiver folds or copies it from there. So every payload byte
is read once and written once, by the receiver; by way of a slot it is so twice.

What makes it safe:

* A rank writes into what it has sent only when the transfer has finished at its destination: a schedule's dependencies
  say so, and the verifier demands it (`simulation.verifier`, "changes them while ... may still be sending them").
* A chunk is acknowledged when its bytes have been read, and a lingering operation ends when all its chunks have been
  acknowledged (`Engine`). So its caller gets the buffer back when nobody reads it any more.
* A sender that gives up says so in a word of the receiver's memory before it returns (`Slots.withdraw`); the receiver
  looks at that word after it has read.

The memory is anonymous, as that of slots, and stays while anybody has it mapped: bytes that a dead rank has lent can
still be read.
"""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.runtime.errors import TransportError


class SharedBuffer:
    """A buffer of `nbytes` bytes of this rank. Raises TransportError when there is too little memory.

    fd : its descriptor, closed with it, or when nobody has it any more; bytes : its memory
    """

    def __init__(self, nbytes: int) -> None:
        self.fd = os.memfd_create("optcc-buffer")
        try:
            # Allocated now, where it is an error that there is too little; at the first write it were a SIGBUS.
            os.posix_fallocate(self.fd, 0, max(nbytes, 1))
            self._map = mmap.mmap(self.fd, max(nbytes, 1))
        except OSError as error:
            os.close(self.fd)
            raise TransportError(
                f"too little memory for a buffer: {nbytes / 2**20:.3g} MiB of memory that ranks share cannot be had: "
                f"{error.strerror}"
            ) from error
        self.bytes = memoryview(self._map)[:nbytes]
        self._let_go = weakref.finalize(self, os.close, self.fd)

    def elements(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The buffer as an array, shape (nbytes / itemsize,), without a copy."""
        return np.frombuffer(self.bytes, dtype)

    def close(self) -> None:
        """Let go of it; the memory stays while an array or another rank has it."""
        with suppress(BufferError):
            self.bytes.release()
            self._map.close()
        self._let_go()


def far_buffer(fd: int) -> memoryview:
    """Another rank's buffer, which it has lent, to be read. Closes `fd`. Raises TransportError where it cannot be."""
    try:
        return memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
    except (OSError, ValueError) as error:
        raise TransportError(f"a buffer that another rank has lent cannot be mapped: {error}") from error
    finally:
        os.close(fd)
