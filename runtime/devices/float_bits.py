"""Minima, maxima and NaN of floats by their bits, so that a fold's bits depend on its operands alone.

The processor's result for two zeros or a NaN depends on the instruction. For the rest of an array that fills no vector,
numpy uses another instruction. An element's bits would then depend on where a piece is cut. The rules here:

* minimum and maximum are minimumNumber and maximumNumber of IEEE 754-2019 (9.6): -0 is less than +0; a NaN, quiet or
  signalling, is ignored if the other operand is a number;
* every NaN that comes out is the same: quiet, sign 0, payload 0 (that is numpy's `nan`).

Arrays are unsigned integers, the elements' bits, of one shape; `infinity` is the bits of the type's +infinity, which
tell the type: float16, bfloat16, float32 and float64 differ in nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
"""uint16, uint32 or uint64."""


def quiet_nan(infinity: int) -> int:
    """The bits of the NaN that folds make: the exponent's ones and the mantissa's first bit."""
    return infinity | least_normal(infinity) >> 1


def least_normal(infinity: int) -> int:
    """The bits of the least positive normal number, whose exponent is 1."""
    return infinity & -infinity


def settle(bits: Bits, infinity: int) -> None:
    """Make every NaN of `bits` the quiet one, in place."""
    nan = bits << 1 > infinity << 1
    if nan.any():
        bits[nan] = quiet_nan(infinity)


def minimum(a: Bits, b: Bits, out: Bits, infinity: int) -> None:
    """out = minimumNumber(a, b); `out` may be `a` or `b`."""
    _choose(np.minimum, a, b, out, ~infinity & (1 << 8 * a.itemsize) - 1)
    settle(out, infinity)


def maximum(a: Bits, b: Bits, out: Bits, infinity: int) -> None:
    """out = maximumNumber(a, b); `out` may be `a` or `b`."""
    _choose(np.maximum, a, b, out, infinity + 1)
    settle(out, infinity)


def _choose(choose: np.ufunc, a: Bits, b: Bits, out: Bits, first: int) -> None:
    """The first or the last by `_place`, whose places begin at `first`: -infinity's for a minimum, so that every NaN
    comes behind +infinity; the one behind +infinity's for a maximum, so that every NaN comes before -infinity."""
    start = np.array([first], a.dtype)
    chosen = choose(_place(a) - start, _place(b) - start)
    out[:] = _place(chosen + start)


def _place(bits: Bits) -> Bits:
    """Integers that count up as the floats do, modulo the width: of negative floats all bits but the sign are turned.

    Its own inverse.
    """
    turn = (bits.view(f"i{bits.itemsize}") >> (8 * bits.itemsize - 1)).view(bits.dtype)  # all ones for negative ones
    turn >>= 1
    turn ^= bits
    return turn
