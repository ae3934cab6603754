"""A rank's buffer in a GPU's memory: what the engine needs, on one stream, so that the order of calls is the order of
the work. Cupy is behind `gpu`, a `cuda.Gpu`, or what stands for one in tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Array, Op

BYTE = np.dtype(np.uint8)


class CudaMemory:
    """The memory of one GPU, for one rank."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        self._rooms: list[DeviceArray] = []

    def room(self, nbytes: int) -> DeviceArray:
        """Memory that other processes may map, never freed while this one lives, for they may have it mapped still.

        Whoever asks again gets the same, or more: there is one user at a time.
        """
        if not self._rooms or self._rooms[-1].nbytes < nbytes:
            self._rooms.append(self.gpu.empty(max(1, nbytes), BYTE))
        return self._rooms[-1]

    def warm(self, dtype: np.dtype[Any], op: Op) -> None:
        """Compile what a run needs, which takes seconds, and see that it works."""
        for kind in (dtype, BYTE):
            own, other = (self.gpu.scratch(256, kind) for _ in range(2))
            self.gpu.copy(own, other)
        self.gpu.fold(op, *(self.gpu.scratch(256, dtype) for _ in range(2)))
        self.gpu.divide(self.gpu.scratch(256, dtype), 2)
        self.gpu.wait()

    def empty(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        """Memory of its own."""
        array: DeviceArray = self.gpu.empty(count, dtype)
        return array

    def bytes_of(self, array: DeviceArray) -> DeviceArray:
        """As uint8."""
        return array.view(BYTE)

    def elements(self, data: DeviceArray, dtype: np.dtype[Any]) -> DeviceArray:
        """Of another type."""
        return data.view(dtype)

    def fold(self, op: Op, own: DeviceArray, landed: DeviceArray) -> None:
        """Enqueued."""
        self.gpu.fold(op, own, landed)

    def copy(self, out: DeviceArray, source: DeviceArray) -> None:
        """Enqueued."""
        self.gpu.copy(out, source)

    def keep(self, array: DeviceArray) -> DeviceArray:
        """In memory that is used again for what is enqueued after the last use of this copy."""
        kept: DeviceArray = self.gpu.scratch(array.count, array.dtype)
        self.gpu.copy(kept, array)
        return kept

    def divide(self, array: DeviceArray, by: int) -> None:
        """Enqueued."""
        self.gpu.divide(array, by)

    def staging(self, array: DeviceArray) -> Array:
        """As many elements in host memory."""
        return np.empty(array.count, array.dtype)

    def load(self, array: DeviceArray, host: Array) -> None:
        """One copy, done on return."""
        self.gpu.wait()
        self.gpu.put(host, array)

    def unload(self, array: DeviceArray) -> Array:
        """One copy, after what is enqueued."""
        host: Array = self.gpu.get(array)
        return host

    def wait(self) -> None:
        """For all streams."""
        self.gpu.wait()
