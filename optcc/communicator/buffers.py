"""Callers' buffers: what they are, and that they fit each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from optcc.errors import InputError
from optcc.runtime.devices.gpu_array import DeviceArray, span
from optcc.runtime.devices.host import Array, name_of
from optcc.runtime.devices.interop import borrow, demand_apart

Flat = Array


class Buffer(Protocol):
    """A caller's buffer.

    memory : its elements where they are, flat; staged : whether they go through other memory, in host memory
    """

    @property
    def memory(self) -> Array | DeviceArray: ...
    @property
    def staged(self) -> bool: ...
    def read(self) -> Flat:
        """Its elements in host memory."""

    def room(self) -> Flat:
        """Where to write as many, in host memory."""

    def take(self, written: Flat) -> None:
        """Make them its own, what `room` or `read` has given and is written now."""


@dataclass(frozen=True)
class HostBuffer:
    """Host memory, used where it is."""

    memory: Array
    staged = False

    def read(self) -> Flat:
        """It is there."""
        return self.memory

    def room(self) -> Flat:
        """It is there."""
        return self.memory

    def take(self, written: Flat) -> None:
        """It has been written to already."""


def lend(thing: Any, where: str, *, write: bool = True) -> Buffer:
    """A caller's buffer. InputError for memory that cannot be taken as it is."""
    memory = borrow(thing, write=write, where=where)
    if isinstance(memory, DeviceArray):
        return GpuBuffer.of(thing, gpu_of(memory), write=write)
    return HostBuffer(memory)


def demand_alike(one_buffer: Buffer, other_buffer: Buffer, count: int, where: str = "out") -> None:
    """The other one has `count` elements of the type of the first, and does not overlap it."""
    one, other = one_buffer.memory, other_buffer.memory
    if one.dtype != other.dtype or len(other) != count:
        expected, got = f"{count} elements of {name_of(one.dtype)}", f"{len(other)} of {name_of(other.dtype)}"
        raise InputError(f"does not fit the other buffer, expected {expected}, got {got}", where=where)
    demand_apart(one, other, where)


def demand_elsewhere(source: Buffer, target: Buffer) -> None:
    """The result is not to go where the input is, of which others still need parts."""
    if source.memory.nbytes and span(source.memory) == span(target.memory):
        raise InputError("the same memory as x", where="out", expected="memory apart from x")


def room_of(nbytes: int) -> int:
    """The power of two, 8 or more, that a small buffer is rounded up to."""
    return max(8, 1 << (nbytes - 1).bit_length()) if nbytes else 8


def fill(target: Flat, source: Flat) -> None:
    """target = source, where they are not the same memory."""
    if target is not source and target.size and target.ctypes.data != source.ctypes.data:
        target[:] = source


def words_of(call: str, array: Flat, what: object = "") -> str:
    """A call as ranks compare it and as people read it: ``all_reduce(float32, 1000, sum)``."""
    return f"{call}({name_of(array.dtype)}, {array.size}{what and ', '}{what})"


# Callers' buffers in a GPU's memory: copied to pinned host memory, where the call runs, and back.
#
# That costs a call two copies over PCIe and, over the local transport, nothing else: its wires are the host's memory.
# Needs cupy, behind `cuda.Gpu`.


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
