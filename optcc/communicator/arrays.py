"""Arrays that a communicator allocates for its caller: in memory that the ranks of this machine share."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from optcc.errors import InputError
from optcc.runtime.control.available import available_bytes
from optcc.runtime.devices.host import BFLOAT16, DTYPES, Array, name_of
from optcc.runtime.errors import TransportError
from optcc.runtime.wires.lent import Arena

HINT = "Drop arrays that are not needed any more; a communicator takes any other memory (numpy.empty), too."


def empty(arena: Arena | None, shape: int | Sequence[int], dtype: Any) -> Array:
    """See `Communicator.empty`. None: in memory of this process alone."""
    elements, sizes = _element_type(dtype), _sizes(shape)
    count = math.prod(sizes)
    left = available_bytes()
    if left is not None and count * elements.itemsize > left:
        expected, got = f"up to {left} bytes, which can be had", f"{count * elements.itemsize} bytes"
        raise InputError("too little memory", where="empty", expected=expected, got=got, hint=HINT)
    try:
        array: Array = arena.empty(count, elements) if arena else np.empty(count, elements)
    except (TransportError, MemoryError) as error:
        raise InputError(str(error), where="empty", hint=HINT) from error
    return array.reshape(sizes)


def _element_type(dtype: Any) -> np.dtype[Any]:
    try:
        elements: np.dtype[Any] = BFLOAT16 if isinstance(dtype, str) and dtype == "bfloat16" else np.dtype(dtype)
        name_of(elements)
    except (TypeError, InputError) as error:
        expected = f"one of {', '.join(DTYPES)}"
        raise InputError("no such element type", where="dtype", expected=expected, got=str(dtype)) from error
    return elements


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise InputError("no such shape", where="shape", expected="whole numbers from 0 on", got=str(shape))
    return sizes
