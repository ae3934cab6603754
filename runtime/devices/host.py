"""Element types, and array operations on a rank's buffers in host memory. kernels/fold.cu has the same for a GPU.

What both keep: one operation per element, rounded once to the element's type, and the rules of `float_bits` for zeros
and NaN. So a result depends only on the order of the folds, which the schedule fixes. It has the same bits in every
run, however pieces are cut, in host memory and in a GPU's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError
from optcc.runtime.devices import float_bits

Array = NDArray[Any]

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""numpy has no bfloat16: a type of two bytes that numpy moves and compares, but does no arithmetic with."""

_TYPES = {
    name: np.dtype(name)
    for name in (
        *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64"),
    )
} | {"bfloat16": BFLOAT16}

DTYPES = tuple(_TYPES)
"""NCCL's element types without the float8 types, and 16-bit integers."""

TYPES = frozenset(_TYPES.values())
"""The same as numpy has them."""


class Op(StrEnum):
    """How two contributions to an element become one."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class Reduction:
    """What a caller asks for: how contributions are folded, and whether the total is divided by their number."""

    fold: Op
    mean: bool = False

    def __str__(self) -> str:
        return "avg" if self.mean else self.fold


_REDUCTIONS = {str(op): Reduction(op) for op in Op} | {"avg": Reduction(Op.SUM, mean=True)}
_UFUNC = {Op.SUM: np.add, Op.PROD: np.multiply, Op.MIN: np.minimum, Op.MAX: np.maximum}
_BY_BITS = {Op.MIN: float_bits.minimum, Op.MAX: float_bits.maximum}
_INFINITY: dict[np.dtype[Any], int] = {
    np.dtype("float16"): 0x7C00,
    BFLOAT16: 0x7F80,
    np.dtype("float32"): 0x7F80_0000,
    np.dtype("float64"): 0x7FF0_0000_0000_0000,
}
"""The bits of +infinity, by float type."""
CHUNK_BYTES = 1 << 17
"""Floats are folded so much at a time: what several passes read again is still in the cache then."""


def dtype_of(name: str) -> np.dtype[Any]:
    """The element type called `name`; InputError for one that is not in DTYPES."""
    if name not in _TYPES:
        raise InputError("unknown dtype", where="--dtype", expected=f"one of {', '.join(DTYPES)}", got=name)
    return _TYPES[name]


@cache  # numpy takes microseconds for a name
def name_of(dtype: np.dtype[Any], where: str = "buffer") -> str:
    """The name of an element type; InputError for one that is not in DTYPES. ml_dtypes' bfloat16 counts as ours."""
    name = "bfloat16" if dtype == BFLOAT16 else dtype.name
    if name not in _TYPES or not dtype.isnative:
        raise InputError("unknown dtype", where=where, expected=f"one of {', '.join(DTYPES)}", got=dtype.str)
    return name


def reduction_of(name: str, where: str = "--op") -> Reduction:
    """The reduction called `name`: an Op, or avg, a sum that is divided by the number of ranks at the end.

    Raises InputError for an unknown one. `where` : what its caller calls it
    """
    found = _REDUCTIONS.get(name) if isinstance(name, str) else None
    if found is None:
        expected = f"one of {', '.join(Op)}, avg"
        raise InputError("unknown operation", where=where, expected=expected, got=name)
    return found


def empty(count: int, dtype: np.dtype[Any]) -> Array:
    """An uninitialised array of `count` elements, shape (count,)."""
    return np.empty(count, dtype)


def fold(op: Op, own: Array, landed: Array) -> None:
    """own = own op landed, element by element, both of one shape and dtype; they may be the same."""
    if own.dtype not in _INFINITY:
        _UFUNC[op](own, landed, out=own)
        return
    step = CHUNK_BYTES // own.itemsize
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are results as good as others
        for at in range(0, len(own), step):
            _fold_floats(op, own[at : at + step], landed[at : at + step])


def _fold_floats(op: Op, own: Array, landed: Array) -> None:
    infinity = _INFINITY[own.dtype]
    if op in _BY_BITS:
        if own.itemsize > 2:  # numpy has instructions for these
            made = _UFUNC[op](own, landed)
            if np.abs(made).min() > 0:  # neither zero nor NaN, which alone have several ways to come out
                own[:] = made
                return
        _BY_BITS[op](bits_of(own), bits_of(landed), bits_of(own), infinity)
        return
    if own.dtype == BFLOAT16:
        own[:] = _fold_bfloat16(op, own, landed)
    else:
        _UFUNC[op](own, landed, out=own)
        if own.itemsize > 2 and not np.isnan(np.maximum.reduce(own)):  # one pass, and numpy has instructions for it
            return
    float_bits.settle(bits_of(own), infinity)


def bits_of(array: Array) -> NDArray[Any]:
    """An array's elements as unsigned integers of their width, without a copy."""
    return array.view(f"u{array.itemsize}")


def infinity_of(dtype: np.dtype[Any]) -> int:
    """The bits of a float dtype's +infinity."""
    return _INFINITY[dtype]


@np.errstate(invalid="ignore")
def divide(array: Array, by: int) -> None:
    """Divide every element by `by` in place: floats rounded once, integers cut towards zero.

    The last step of an average, when the totals are complete. NaN are as after a fold.
    """
    kind = array.dtype.kind
    if array.dtype == BFLOAT16:
        array[:] = narrow(widen(array) / np.float32(by))
    elif kind == "f":
        wide = np.promote_types(array.dtype, np.float32)  # a half's quotient is rounded once, see docs/hardware.md
        np.divide(array, wide.type(by), out=array, dtype=wide, casting="same_kind")
    elif kind == "u":
        np.floor_divide(array, np.uint64(by), out=array, dtype=np.uint64, casting="unsafe")
    else:
        np.subtract(array, np.fmod(array, np.int64(by), dtype=np.int64), out=array, casting="unsafe")
        np.floor_divide(array, np.int64(by), out=array, dtype=np.int64, casting="unsafe")
    if array.dtype in _INFINITY:
        float_bits.settle(bits_of(array), _INFINITY[array.dtype])


def float_limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """(bits of the mantissa after the point, exponent of the least normal number) of a float dtype."""
    if dtype == BFLOAT16:
        return 7, -126
    limits = np.finfo(dtype)
    return int(limits.nmant), int(limits.minexp)


def floats(values: Sequence[float], dtype: np.dtype[Any]) -> Array:
    """`values` in a float dtype, each rounded to it, shape (len(values),)."""
    return narrow(np.array(values, np.float32)) if dtype == BFLOAT16 else np.array(values, dtype)


def widen(array: Array) -> NDArray[np.float32]:
    """bfloat16 as float32, exactly."""
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def narrow(values: NDArray[np.float32]) -> Array:
    """float32 rounded to bfloat16, half to even; a NaN stays one."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16).view(BFLOAT16)


_TINY = 2.0**-126
_LEAST = 2.0**-133
"""bfloat16's least normal and least positive number."""


def _fold_bfloat16(op: Op, own: Array, landed: Array) -> Array:
    """A sum or product, by way of float32: a sum's two roundings give what one would."""
    if op is Op.SUM:
        return narrow(widen(own) + widen(landed))
    exact = widen(own).astype(np.float64) * widen(landed)  # 16 bits: only what is subnormal in float32 needs care
    exact = np.where(np.abs(exact) < _TINY, np.rint(exact / _LEAST) * _LEAST, exact)
    return narrow(exact.astype(np.float32))
