"""A rank's buffer in a GPU's memory: what a run needs, on one stream, so that the order of calls is the order of the
work. Cupy is behind `gpu`, a `cuda.Gpu`, or what stands for one in tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Array, Op


class CudaMemory:
    """The memory of one GPU, for one rank."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu

    def warm(self, dtype: np.dtype[Any], op: Op) -> None:
        """Compile what a run needs, which takes seconds, and see that it works."""
        self.gpu.ready(dtype, op)

    def empty(self, count: int, dtype: np.dtype[Any]) -> DeviceArray:
        """Memory of its own."""
        array: DeviceArray = self.gpu.empty(count, dtype)
        return array

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
