"""Callers' buffers: what they are, and that they fit each other."""

from __future__ import annotations

from dataclasses import dataclass
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
        from optcc.communicator.gpu_buffers import GpuBuffer, gpu_of

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
