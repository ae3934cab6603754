"""Elements in a GPU's memory, known by their address: what the runtime passes around, whichever library owns them."""

from __future__ import annotations

from ctypes import addressof, c_char
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from optcc.runtime.devices.host import Array


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """Contiguous elements, shape (count,).

    address : of the first element; gpu : the CUDA device whose memory it is; owner : keeps the memory alive
    """

    address: int
    count: int
    dtype: np.dtype[Any]
    gpu: int
    owner: object = field(repr=False, default=None)

    def __len__(self) -> int:
        return self.count

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    def __getitem__(self, part: slice) -> DeviceArray:
        start, stop, step = part.indices(self.count)
        if step != 1:
            raise IndexError("a part of a DeviceArray is contiguous")
        address = self.address + start * self.dtype.itemsize
        return DeviceArray(address, max(0, stop - start), self.dtype, self.gpu, self.owner)


@dataclass(frozen=True)
class SharedArray:
    """A DeviceArray as another process of this machine can open it; picklable."""

    handle: bytes
    offset: int
    count: int
    dtype: str
    gpu: int

    def as_json(self) -> list[Any]:
        """As JSON values."""
        return [self.handle.hex(), self.offset, self.count, self.dtype, self.gpu]

    @classmethod
    def from_json(cls, value: list[Any]) -> Self:
        """The inverse of `as_json`."""
        return cls(bytes.fromhex(value[0]), *value[1:])


def address_of(array: Array | DeviceArray) -> int:
    """Of its first element."""
    try:
        return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]  # a sixth of what numpy takes
    except (TypeError, ValueError):  # a GPU's, read-only, or empty
        return array.address if isinstance(array, DeviceArray) else array.ctypes.data


def span(array: Array | DeviceArray) -> tuple[int, int]:
    """The addresses that an array occupies: first, and one past the last."""
    start = address_of(array)
    return start, start + array.nbytes
