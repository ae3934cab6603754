"""Array operations on a rank's buffers. The only file of the runtime that knows which array library holds them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError

Array = NDArray[Any]

DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
"""NCCL's element types that numpy has (bfloat16 and the float8 types are missing)."""


class Op(StrEnum):
    """How two contributions to an element become one."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"


_UFUNC = {Op.SUM: np.add, Op.PROD: np.multiply, Op.MIN: np.minimum, Op.MAX: np.maximum}


def dtype_of(name: str) -> np.dtype[Any]:
    """The element type called `name`; InputError for one that is not in DTYPES."""
    if name not in DTYPES:
        raise InputError("unknown dtype", where="--dtype", expected=f"one of {', '.join(DTYPES)}", got=name)
    return np.dtype(name)


def op_of(name: str) -> Op:
    """The operation called `name`; InputError for an unknown one."""
    try:
        return Op(name)
    except ValueError:
        raise InputError("unknown operation", where="--op", expected=f"one of {', '.join(Op)}", got=name) from None


def empty(count: int, dtype: np.dtype[Any]) -> Array:
    """An uninitialised array of `count` elements, shape (count,)."""
    return np.empty(count, dtype)


def bytes_of(array: Array) -> memoryview:
    """The memory of a contiguous array as writable bytes, without a copy."""
    return array.view(np.uint8).data


def fold(op: Op, own: Array, landed: Array) -> None:
    """Combine `landed` into `own` in place, element by element; both of one shape and dtype."""
    _UFUNC[op](own, landed, out=own)
