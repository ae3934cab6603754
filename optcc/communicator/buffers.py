"""Callers' buffers: what they are, and that they fit each other."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Protocol

import numpy as np

from optcc.errors import InputError
from optcc.runtime.devices.gpu_array import DeviceArray, address_of
from optcc.runtime.devices.host import TYPES, Array, name_of
from optcc.runtime.devices.interop import CUDA, borrow, demand_apart
from optcc.runtime.devices.memory import check_device

Flat = Array


class Buffer(Protocol):
    """A caller's buffer.

    memory : its elements where they are, flat; address : of the first one
    staged : whether they go through other memory: that of the host, or of the GPU that folds
    """

    @property
    def memory(self) -> Array | DeviceArray: ...
    @property
    def address(self) -> int: ...
    @property
    def staged(self) -> bool: ...
    def read(self) -> InPlace:
        """Its elements where the call runs."""

    def room(self) -> InPlace:
        """Where to write as many there."""

    def take(self, written: InPlace) -> None:
        """Make them its own, what `room` or `read` has given and is written now."""


class InPlace:
    """Memory that the call runs on where it is: the host's, or of the GPU that folds."""

    __slots__ = ("address", "memory")
    staged = False

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.address = address_of(memory)

    def read(self) -> InPlace:
        """It is there."""
        return self

    def room(self) -> InPlace:
        """It is there."""
        return self

    def take(self, written: InPlace) -> None:
        """It has been written to already."""


class CrookedBuffer:
    """Host memory whose elements do not begin at multiples of their size, as folds want them: the call has a copy."""

    __slots__ = ("address", "memory")
    staged = True

    def __init__(self, memory: Array) -> None:
        self.memory, self.address = memory, address_of(memory)

    def read(self) -> InPlace:
        """A copy."""
        return InPlace(self.memory.copy())

    def room(self) -> InPlace:
        """As many elements elsewhere."""
        return InPlace(np.empty_like(self.memory))

    def take(self, written: InPlace) -> None:
        """Copy it in; nothing where only read is allowed."""
        if self.memory.flags.writeable:
            self.memory[:] = written.memory


def lend(thing: Any, where: str, *, write: bool = True) -> Buffer:
    """A caller's buffer. InputError for memory that cannot be taken as it is."""
    if type(thing) is np.ndarray and thing.ndim == 1 and thing.flags.carray and thing.dtype in TYPES:
        return InPlace(thing)  # most are so, and small calls notice what the rest takes
    if not isinstance(thing, np.ndarray) and hasattr(thing, "__dlpack_device__"):
        kind, number = map(int, thing.__dlpack_device__())
        if kind == CUDA:  # it is exported once, for the GPU's stream
            return GpuBuffer.of(thing, gpu_numbered(number), write=write, where=where)
    memory = borrow(thing, write=write, where=where)
    if isinstance(memory, DeviceArray):
        return GpuBuffer.of(thing, gpu_of(memory), write=write, where=where)
    return InPlace(memory) if memory.flags.aligned else CrookedBuffer(memory)


def demand_alike(one_buffer: Buffer, other_buffer: Buffer, count: int, where: str = "out") -> None:
    """The other one has `count` elements of the type of the first, and does not overlap it."""
    one, other = one_buffer.memory, other_buffer.memory
    if one.dtype != other.dtype or len(other) != count:
        expected, got = f"{count} elements of {name_of(one.dtype)}", f"{len(other)} of {name_of(other.dtype)}"
        raise InputError(f"does not fit the other buffer, expected {expected}, got {got}", where=where)
    at, other_at = one_buffer.address, other_buffer.address
    if at < other_at + other.nbytes and other_at < at + one.nbytes:
        demand_apart(one, other, where)


def demand_elsewhere(source: Buffer, target: Buffer) -> None:
    """The result is not to go where the input is, of which others still need parts."""
    if source.memory.nbytes and source.address == target.address:
        raise InputError("the same memory as x", where="out", expected="memory apart from x")


def room_of(nbytes: int) -> int:
    """The power of two, 8 or more, that a small buffer is rounded up to."""
    return max(8, 1 << (nbytes - 1).bit_length()) if nbytes else 8


@lru_cache(1024)
def _words_of(call: str, dtype: np.dtype[Any], size: int, what: object) -> str:
    return f"{call}({name_of(dtype)}, {size}{what and ', '}{what})"


def words_of(call: str, array: Flat | DeviceArray, what: object = "") -> str:
    """A call as ranks compare it and as people read it: ``all_reduce(float32, 1000, sum)``."""
    return _words_of(call, array.dtype, len(array), what)


class Scratch:
    """Memory that is a call's while it runs, and then the next one's: to have none made costs less, and no pages."""

    def __init__(self) -> None:
        self._memory: Flat = np.empty(0, np.uint8)

    def array(self, count: int, dtype: np.dtype[Any]) -> Flat:
        """Elements of whatever value, shape (count,)."""
        nbytes = count * dtype.itemsize
        if nbytes > self._memory.nbytes:
            self._memory = np.zeros(nbytes, np.uint8)
        return self._memory[:nbytes].view(dtype)


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
        self.memory, self.address, self.gpu, self._write = memory, memory.address, gpu, write

    @classmethod
    def of(cls, thing: Any, gpu: Any, *, write: bool, where: str) -> GpuBuffer:
        """Another library's array."""
        with gpu.current():
            return cls(gpu.adopt(thing, write=write, where=where), gpu, write)

    def read(self) -> InPlace:
        """A copy in pinned memory."""
        with self.gpu.current():
            host = self.room()
            self.gpu.deliver(host.memory, self.memory, after=(self.gpu.mark(),))
            self.gpu.departures.synchronize()
            return host

    def room(self) -> InPlace:
        """Pinned memory, which is the library's again with the last array on it."""
        with self.gpu.current():
            return InPlace(self.gpu.pinned(self.memory.count, self.memory.dtype))

    def take(self, written: InPlace) -> None:
        """Copy it in; done on return."""
        if self._write:
            with self.gpu.current():
                self.gpu.put(written.memory, self.memory)


def gpu_of(memory: DeviceArray) -> Any:
    """The GPU that it is of. InputError without cupy."""
    from optcc.runtime.devices.cuda import device_of_address

    return _opened(memory.gpu if memory.gpu >= 0 else device_of_address(memory.address))


def gpu_numbered(number: int) -> Any:
    """CUDA device `number`. InputError without cupy."""
    return _opened(number)


def gpu_called(device: str) -> Any:
    """That of "cuda:1"; of "cuda" the one that calls of this thread are for; None for "cpu".

    InputError for anything else, and where there is none."""
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind == "cpu" and device == kind:
        return None
    if kind != "cuda" or (device != kind and not number.isdecimal()):
        raise InputError("no such device", where="device", expected="cpu, cuda, or as cuda:1", got=device)
    check_device(kind)
    from optcc.runtime.devices.cuda import current_device

    return _opened(int(number) if number else current_device())


@cache
def _opened(index: int) -> Any:
    from optcc.runtime.devices.cuda import Gpu, on_device

    with on_device(index):
        return Gpu(index)
