"""An RDMA NIC that sends to itself, to try memory registered with it: see `gpu_memory`."""

from __future__ import annotations

import ctypes
import select
import time
from types import TracebackType
from typing import Self

import numpy as np

from optcc.machine.rdma import NicAddress
from optcc.runtime.devices.gpu_memory import PathRefusedError, Region
from optcc.runtime.verbs.binding import VerbsError
from optcc.runtime.verbs.closing import close_each
from optcc.runtime.verbs.memory_region import REMOTE, MemoryRegion
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.posting import Element, SendChain
from optcc.runtime.verbs.queue_pair import QueuePair
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.verbs.structs import SUCCESS, WR_RDMA_WRITE, Completion, status_name

LIMIT_S = 5.0
"""A write that takes longer has failed: a NIC may give no error for what it cannot reach."""


class LoopNic:
    """A port with a queue pair that is connected to itself, and a page of host memory. A context manager."""

    def __init__(self, address: NicAddress, page: int = 1 << 16) -> None:
        self.name = address.device
        self._page = np.zeros(page, np.uint8)
        self._nic = VerbsNic(0, address, 16, self._page.ctypes.data, page)
        self._pair: QueuePair | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_each(self.name, [self._disconnect, self._nic.close])

    def by_dmabuf(self, fd: int, nbytes: int) -> Region:
        """Register a dma-buf from its first byte, which work requests then call 0."""
        try:
            made = MemoryRegion.of_dmabuf(self._nic.domain, fd, nbytes, REMOTE)
        except VerbsError as error:
            raise PathRefusedError(str(error)) from error
        return Region(0, made.lkey, made.rkey, made)

    def by_address(self, address: int, nbytes: int) -> Region:
        """Register memory by its address: host memory, or a GPU's if nvidia-peermem is loaded."""
        try:
            made = MemoryRegion.of(self._nic.domain, address, nbytes, REMOTE)
        except VerbsError as error:
            raise PathRefusedError(str(error)) from error
        return Region(address, made.lkey, made.rkey, made)

    def take(self, region: Region, offset: int, nbytes: int) -> bytes:
        """Write from the region, as a sender does, into our page."""
        self._page[:nbytes] ^= 0xFF  # so that what was there before does not pass for it
        self._write((region.base + offset, region.lkey), (self._page.ctypes.data, self._nic.memory.rkey), nbytes)
        return self._page[:nbytes].tobytes()

    def bring(self, region: Region, offset: int, data: bytes) -> None:
        """Write from our page into the region, as a peer does."""
        ctypes.memmove(self._page.ctypes.data, data, len(data))
        self._write((self._page.ctypes.data, self._nic.memory.lkey), (region.base + offset, region.rkey), len(data))

    def release(self, region: Region) -> None:
        """Take back a registration."""
        region.handle.close()

    def _write(self, source: tuple[int, int], to: tuple[int, int], nbytes: int) -> None:
        chain = SendChain(self._nic, self._pair or self._connect())
        chain.add(1, WR_RDMA_WRITE, *to, first=Element(source[0], nbytes, source[1]))
        try:
            chain.post(signalled=True)
            self._wait()
        except VerbsError as error:
            raise PathRefusedError(str(error)) from error
        except PathRefusedError:
            self._disconnect()  # an error leaves a queue pair of no use: the next path gets a new one
            raise

    def _connect(self) -> QueuePair:
        self._pair = QueuePair(self._nic, sends=2, receives=1, first_packet=0)
        self._pair.connect(self._pair.endpoint, VerbsSettings())
        self._nic.completions()  # what the last one has left behind
        return self._pair

    def _disconnect(self) -> None:
        if self._pair is not None:
            self._pair.close()
            self._pair = None

    def _wait(self) -> None:
        until = time.monotonic() + LIMIT_S
        done: list[Completion] = self._nic.completions()
        while not done:
            if time.monotonic() > until:
                raise PathRefusedError(f"the NIC has not finished after {LIMIT_S:g} s")
            select.select([self._nic.completions_fd], [], [], 0.1)
            self._nic.rearm()
            done = self._nic.completions()
        if done[0].status != SUCCESS:
            raise PathRefusedError(f"the NIC reports {status_name(done[0].status)}")
