"""Callers' buffers: what they are, and that they fit each other."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from optcc.errors import InputError
from optcc.runtime.device import Array, name_of
from optcc.runtime.device_array import span
from optcc.runtime.interop import borrow, demand_apart

Flat = Array


def host(thing: Any, where: str, *, write: bool = True) -> Flat:
    """Its elements as a flat array on the same memory."""
    array = borrow(thing, write=write, where=where)
    if not isinstance(array, np.ndarray):
        raise InputError(
            "memory of a GPU", where=where, expected="host memory", hint="Copy it to the host, or use optcc.pytorch."
        )
    return array


def demand_alike(one: Flat, other: Flat, count: int, where: str = "out") -> None:
    """`other` has `count` elements of the type of `one`, and does not overlap it."""
    if one.dtype != other.dtype or other.size != count:
        expected, got = f"{count} elements of {name_of(one.dtype)}", f"{other.size} of {name_of(other.dtype)}"
        raise InputError(f"does not fit the other buffer, expected {expected}, got {got}", where=where)
    demand_apart(one, other, where)


def demand_elsewhere(source: Flat, target: Flat) -> None:
    """The result is not to go where the input is, of which others still need parts."""
    if source.nbytes and span(source) == span(target):
        raise InputError("the same memory as x", where="out", expected="memory apart from x")


def room_of(nbytes: int) -> int:
    """The power of two, 8 or more, that a small buffer is rounded up to."""
    return max(8, 1 << (nbytes - 1).bit_length()) if nbytes else 8


def fill(target: Flat, source: Flat) -> None:
    """target = source, where they are not the same memory."""
    if target is not source and target.size and target.ctypes.data != source.ctypes.data:
        target[:] = source


def sign_of(call: str, array: Flat, what: object = None) -> int:
    """Twelve bits that differ, mostly, where ranks call different things."""
    return zlib.crc32(f"{call} {array.dtype.str} {array.size} {what}".encode()) & 0xFFF
