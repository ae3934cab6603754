"""Callers' buffers in a GPU's memory: copied to pinned host memory, where the call runs, and back.

That costs a call two copies over PCIe and, over the local transport, nothing else: its wires are the host's memory.
Needs cupy, behind `cuda.Gpu`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from optcc.communicator.buffers import Flat
from optcc.runtime.devices.gpu_array import DeviceArray


class GpuBuffer:
    """One of them. What its library has given its stream before the call is waited for; copies back are done on return.

    gpu : a `cuda.Gpu`, or what stands for one in tests
    """

    staged = True

    def __init__(self, memory: DeviceArray, gpu: Any, write: bool) -> None:
        self.memory, self._gpu, self._write = memory, gpu, write

    @classmethod
    def of(cls, thing: Any, gpu: Any, *, write: bool) -> GpuBuffer:
        """Another library's array."""
        with gpu.current():
            return cls(gpu.adopt(thing, write=write), gpu, write)

    def read(self) -> Flat:
        """A copy in pinned memory."""
        with self._gpu.current():
            host = self.room()
            self._gpu.deliver(host, self.memory, after=(self._gpu.mark(),))
            self._gpu.departures.synchronize()
            return host

    def room(self) -> Flat:
        """Pinned memory, which is the library's again with the last array on it."""
        with self._gpu.current():
            host: Flat = self._gpu.pinned(self.memory.count, self.memory.dtype)
            return host

    def take(self, written: Flat) -> None:
        """Copy it in; done on return."""
        if self._write:
            with self._gpu.current():
                self._gpu.put(written, self.memory)


def gpu_of(memory: DeviceArray) -> Any:
    """The GPU that it is of. InputError without cupy."""
    from optcc.runtime.devices.cuda import device_of_address

    return _opened(memory.gpu if memory.gpu >= 0 else device_of_address(memory.address))


@cache
def _opened(index: int) -> Any:
    from optcc.runtime.devices.cuda import Gpu, on_device

    with on_device(index):
        return Gpu(index)
