"""Where a rank's buffer is, and what works on it there: host memory, by numpy. A GPU's is in `cuda_memory`."""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

import numpy as np

from optcc.errors import InputError
from optcc.runtime.devices import gpu_memory, host
from optcc.runtime.devices.host import Array, Op

DEVICES = ("cpu", "cuda")
"""Buffers in host memory; in a GPU's."""


class Memory(Protocol):
    """A kind of memory. Arrays are numpy's, or DeviceArrays.

    Work is done in the order in which it is given, and may be under way yet when a call returns, until `wait`.
    """

    def warm(self, dtype: np.dtype[Any], op: Op) -> None:
        """Get ready to work on `dtype`; may take seconds, once."""
        ...

    def empty(self, count: int, dtype: np.dtype[Any]) -> Any:
        """Uninitialised elements, shape (count,)."""
        ...

    def divide(self, array: Any, by: int) -> None:
        """As `host.divide`."""
        ...

    def staging(self, array: Any) -> Array:
        """Host memory for `load`: the array itself where it is there already."""
        ...

    def load(self, array: Any, host: Array) -> None:
        """array = host, which is what `staging` gave; done on return."""
        ...

    def unload(self, array: Any) -> Array:
        """The array in host memory, once all work is done."""
        ...

    def wait(self) -> None:
        """Until all work is done."""
        ...


class HostMemory:
    """numpy arrays. Everything is done on return."""

    divide = staticmethod(host.divide)
    empty = staticmethod(host.empty)

    def warm(self, dtype: np.dtype[Any], op: Op) -> None:
        """numpy is."""

    def staging(self, array: Array) -> Array:
        """The array itself."""
        return array

    def load(self, array: Array, host: Array) -> None:
        """It is there."""

    def unload(self, array: Array) -> Array:
        """The array itself."""
        return array

    def wait(self) -> None:
        """Nothing is under way."""


HOST: Memory = HostMemory()


def device_of(name: str) -> str:
    """`name`, one of DEVICES; InputError for another."""
    if name not in DEVICES:
        raise InputError("no such device", where="--device", expected=" or ".join(DEVICES), got=name)
    return name


def memory_of(name: str, rank: int) -> Memory:
    """The memory of a rank: of the host, or of GPU ``rank % number of GPUs``. InputError where there is none."""
    if device_of(name) == "cpu":
        return HOST
    from optcc.runtime.devices.cuda import Gpu, gpu_count
    from optcc.runtime.devices.cuda_memory import CudaMemory

    return CudaMemory(Gpu(rank % max(1, gpu_count())))


def check_device(name: str) -> None:
    """Raise InputError when this machine lacks what the device needs. Imports no cupy and opens no GPU."""
    if device_of(name) == "cpu":
        return
    where = f"--device {name}"
    if importlib.util.find_spec("cupy") is None:
        raise InputError(
            "cupy is not installed",
            where=where,
            hint="Install the extra `gpu` (cupy-cuda13x; cupy-cuda12x for CUDA 12); `optcc doctor` tells more.",
        )
    try:
        count = gpu_memory.gpu_count()
    except gpu_memory.NoDriverError as why:
        raise InputError(str(why), where=where, expected="a machine with an NVIDIA GPU and its driver") from why
    if not count:
        raise InputError("the driver has no GPU", where=where, expected="one GPU or more", got=0)
