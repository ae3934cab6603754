"""Inputs that make every mistake visible, and the exact result they must give.

Every element depends on its rank and its index through a pseudo-random byte stream. So a section in the wrong place,
doubled, or missing changes the result; and every value is chosen so that the order of folds does not change the result.
So results are compared for equality, without a tolerance:

* integers wrap around, which is exact. Sums and products use odd numbers. None is neutral for a sum. A product of odd
  numbers never collapses to zero (the neutral 1 occurs, in about one of 128 elements of one byte);
* float sums use non-zero integers so small that even the total of all ranks is represented exactly;
* float products use signed powers of two, without +1, so small that no product of some ranks overflows or underflows;
* minima and maxima use all 256 byte values or more, so every rank is the only winner in about 1 of `ranks` elements;
  floats have zeros of both signs, infinities, subnormals, quiet and signalling NaN among them (`peculiar`). They are
  idempotent: that a contribution was folded twice cannot show.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from optcc.errors import InputError
from optcc.runtime.devices.float_bits import least_normal, quiet_nan
from optcc.runtime.devices.host import Array, Op, bits_of, empty, float_limits, floats, fold, infinity_of

CHUNK = 1 << 16
"""Elements looked up at a time: they and their indices stay in the cache, which is twice as fast."""


def fill(out: Array, *, rank: int, ranks: int, op: Op) -> None:
    """Write the input of `rank` among `ranks` into `out`, shape (elements,), any dtype of `device.DTYPES`."""
    whole = out.dtype.kind in "iu"
    nbytes = out.nbytes if whole else len(out)
    words = np.random.default_rng(rank).integers(0, 2**64 - 1, -(-nbytes // 8), np.uint64, endpoint=True)
    stream = words.view(np.uint8)[:nbytes]
    if whole:
        out.view(np.uint8)[:] = stream
        if op in (Op.SUM, Op.PROD):
            np.bitwise_or(out, out.dtype.type(1), out=out)
        return
    values = _float_values(out.dtype, ranks, op)
    for start in range(0, len(out), CHUNK):
        part = out[start : start + CHUNK]
        np.take(values, stream[start : start + CHUNK], out=part, mode="wrap")


def _float_values(dtype: np.dtype[Any], ranks: int, op: Op) -> Array:
    """The value that each random byte stands for, shape (256,)."""
    mantissa, least = float_limits(dtype)
    if op is Op.SUM:
        largest = min(128, 2 ** (mantissa + 1) // ranks)
        if largest == 0:
            raise InputError("too many ranks for an exact sum", where=str(dtype), expected="fewer ranks", got=ranks)
        values = [float(sign * v) for v in range(1, largest + 1) for sign in (1, -1)]
    elif op is Op.PROD:
        # 2**least and its inverse are normal numbers; the exponents of all ranks together stay between them.
        largest = min(8, -least // ranks)
        values = [sign * 2.0**e for e in range(-largest, largest + 1) for sign in (1, -1)]
        if largest:
            values.remove(1.0)
    else:
        odd = peculiar(dtype)
        often = [*range(len(odd) - 2), *range(4)] * 4  # infinities last and seldom: they win over every other value
        chosen = odd[[*often, len(odd) - 2, len(odd) - 1]]
        rest = 256 - len(chosen)
        return np.concatenate([chosen, floats([float(v) for v in range(-(rest // 2), rest - rest // 2)], dtype)])
    return np.resize(floats(values, dtype), 256)


def peculiar(dtype: np.dtype[Any]) -> Array:
    """The special values of a float type, each with both signs, shape (14,). They are zeros, the least and the largest
    subnormal, quiet NaN without and with a payload, signalling NaN, infinities."""
    infinity, bits = infinity_of(dtype), 8 * dtype.itemsize
    nan = quiet_nan(infinity)
    found = (0, 1, least_normal(infinity) - 1, nan, nan | 5, infinity | 3, infinity)
    signs = (0, 1 << bits - 1)
    return np.array([magnitude | sign for magnitude in found for sign in signs], f"u{dtype.itemsize}").view(dtype)


def reference(count: int, dtype: np.dtype[Any], *, ranks: int, op: Op) -> Array:
    """The AllReduce of every rank's input, shape (count,), computed with no schedule: rank 0 op rank 1 op ..."""
    total, other = empty(count, dtype), empty(count, dtype)
    fill(total, rank=0, ranks=ranks, op=op)
    for rank in range(1, ranks):
        fill(other, rank=rank, ranks=ranks, op=op)
        fold(op, total, other)
    return total


def is_exact(result: Array, expected: Array) -> bool:
    """Whether every element of a rank's result has the reference's bits."""
    return result.dtype == expected.dtype and np.array_equal(bits_of(result), bits_of(expected))
