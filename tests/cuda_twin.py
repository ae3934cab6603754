"""What stands for a GPU where there is none: its memory is this process's, and it does what it is given late.

Work waits in one stream. Every look at an event lets a few pieces of it be done, so whoever trusts that something has
been done, without having seen its event, reads what was there before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from optcc.runtime.devices import host
from optcc.runtime.devices.gpu_array import DeviceArray, SharedArray
from optcc.runtime.devices.host import Array, Op, name_of

GARBAGE = 0x5A
"""What fresh memory holds."""


def host_view(array: DeviceArray) -> Array:
    """The memory itself."""
    raw = (ctypes.c_char * array.nbytes).from_address(array.address)
    return np.frombuffer(raw, np.uint8).view(array.dtype)


def device_view(memory: Array) -> DeviceArray:
    """Host memory as if it were a GPU's."""
    return DeviceArray(memory.ctypes.data, len(memory), memory.dtype, 0, memory)


class TwinEvent:
    """After the first `number` pieces of work."""

    def __init__(self, gpu: TwinGpu, number: int) -> None:
        self._gpu, self._number = gpu, number

    @property
    def done(self) -> bool:
        self._gpu.some()
        return self._gpu.finished >= self._number


class TwinGpu:
    """As `cuda.Gpu`, as far as `CudaMemory` and `CudaWires` use it."""

    def __init__(self, seed: int = 0) -> None:
        self.index, self.finished, self.mapped = 0, 0, 0
        self._work: deque[Callable[[], None]] = deque()
        self._given = 0
        self._random = random.Random(seed)

    def some(self) -> None:
        for _ in range(min(self._random.randrange(3), len(self._work))):
            self._work.popleft()()
            self.finished += 1

    def wait(self) -> None:
        while self._work:
            self._work.popleft()()
            self.finished += 1

    def _give(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self._given += 1

    def mark(self) -> Any:
        return TwinEvent(self, self._given)

    def empty(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        memory = np.full(max(1, count * dtype.itemsize), GARBAGE, np.uint8)
        return DeviceArray(memory.ctypes.data, count, dtype, self.index, memory)

    scratch = empty

    def copy(self, out: DeviceArray, source: DeviceArray) -> None:
        assert out.count == source.count
        self._give(lambda: host.copy(host_view(out), host_view(source)))

    def fold(self, op: Op, own: DeviceArray, landed: DeviceArray) -> None:
        assert own.count == landed.count
        assert own.dtype == landed.dtype
        self._give(lambda: host.fold(op, host_view(own), host_view(landed)))

    def divide(self, array: DeviceArray, by: int) -> None:
        self._give(lambda: host.divide(host_view(array), by))

    def put(self, host: Array, out: DeviceArray) -> None:
        host_view(out)[:] = host

    def get(self, array: DeviceArray) -> Array:
        self.wait()
        return host_view(array).copy()

    def share(self, array: DeviceArray) -> SharedArray:
        return SharedArray(array.address.to_bytes(8, "little"), 0, array.count, name_of(array.dtype), 0)

    @contextmanager
    def open_shared(self, shared: SharedArray) -> Iterator[DeviceArray]:
        self.mapped += 1
        yield DeviceArray(int.from_bytes(shared.handle, "little"), shared.count, host.dtype_of(shared.dtype), 0)
        self.mapped -= 1


class SharedTwin(TwinGpu):
    """The same for ranks that are processes: its memory can be mapped by others of this machine."""

    def empty(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        nbytes = max(1, count * dtype.itemsize)
        fd = os.memfd_create("twin")
        os.ftruncate(fd, nbytes)
        memory = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
        return DeviceArray(memory.ctypes.data, count, dtype, self.index, (fd, memory))

    def share(self, array: DeviceArray) -> SharedArray:
        name = f"/proc/{os.getpid()}/fd/{array.owner[0]}"  # type: ignore[index]
        return SharedArray(name.encode(), 0, array.count, name_of(array.dtype), self.index)

    @contextmanager
    def open_shared(self, shared: SharedArray) -> Iterator[DeviceArray]:
        fd = os.open(shared.handle, os.O_RDWR)
        memory = np.frombuffer(mmap.mmap(fd, shared.count), np.uint8)
        os.close(fd)
        yield DeviceArray(memory.ctypes.data, shared.count, host.dtype_of(shared.dtype), self.index, memory)
