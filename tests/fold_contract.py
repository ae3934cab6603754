"""What folds are held to in every memory: exact results in another arithmetic, and inputs at every alignment."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from optcc.runtime.devices import host
from optcc.runtime.devices.float_bits import quiet_nan
from optcc.runtime.devices.host import BFLOAT16, Array, Op, dtype_of, widen


class Memory(Protocol):
    """Folds in one kind of memory, and the way in and out for tests."""

    def put(self, host: Array) -> Any: ...
    def get(self, array: Any) -> Array: ...
    def empty(self, count: int, dtype: np.dtype[Any]) -> Any: ...
    def copy(self, out: Any, source: Any) -> None: ...
    def fold(self, op: Op, own: Any, landed: Any) -> None: ...
    def divide(self, array: Any, by: int) -> None: ...


class HostMemory:
    """numpy's."""

    empty = staticmethod(host.empty)
    fold = staticmethod(host.fold)
    divide = staticmethod(host.divide)

    def copy(self, out: Array, source: Array) -> None:
        out[:] = source

    def put(self, host: Array) -> Array:
        return host.copy()

    def get(self, array: Array) -> Array:
        return array.copy()


def random_bits(dtype: str, count: int, seed: int) -> Array:
    """Any bits at all: subnormals, infinities, NaN among them."""
    kind = dtype_of(dtype)
    return np.random.default_rng(seed).integers(0, 256, count * kind.itemsize, np.uint8).view(kind)


def as_numbers(array: Array) -> Array:
    """For comparisons: bfloat16 as float32."""
    return widen(array) if array.dtype == BFLOAT16 else array


def same(a: Array, b: Array) -> bool:
    """Equal bit for bit."""
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def least(a: int, b: int, infinity: int, sign: int) -> int:
    """minimumNumber (IEEE 754-2019, 9.6) of two floats given by their bits, one at a time; `sign` is the sign's bit."""
    numbers = [x for x in (a, b) if x & ~sign <= infinity]
    if not numbers:
        return quiet_nan(infinity)
    return min(numbers, key=lambda x: -(x & ~sign) - 1 if x & sign else x)


def greatest(a: int, b: int, infinity: int, sign: int) -> int:
    """maximumNumber, likewise: the least with all signs turned."""
    found = least(a ^ sign, b ^ sign, infinity, sign)
    return found if found & ~sign > infinity else found ^ sign


def rounded(exact: Fraction, dtype: np.dtype[Any]) -> float:
    """The number of a float dtype nearest to `exact`, half to even: by counting in its last place."""
    mantissa, least = host.float_limits(dtype)
    if exact == 0:
        return 0.0
    exponent = max(_floor_log2(abs(exact)), least)
    place = Fraction(2) ** (exponent - mantissa)
    value = round(exact / place) * place  # Python rounds a Fraction's half to even
    largest = (2 - Fraction(2) ** -mantissa) * Fraction(2) ** (1 - least)
    return float(value) if abs(value) <= largest else float("inf") * (1 if value > 0 else -1)


def _floor_log2(positive: Fraction) -> int:
    guess = positive.numerator.bit_length() - positive.denominator.bit_length()
    return guess if Fraction(2) ** guess <= positive else guess - 1


def by_hand(op: Op, a: list[Any], b: list[Any], dtype: np.dtype[Any]) -> list[Any]:
    """The fold in rational numbers, rounded once (floats) or wrapped around (integers); all finite."""
    made: list[Any] = []
    for x, y in zip(a, b, strict=True):
        exact = {
            Op.SUM: Fraction(x) + Fraction(y),
            Op.PROD: Fraction(x) * Fraction(y),
            Op.MIN: Fraction(min(x, y)),
            Op.MAX: Fraction(max(x, y)),
        }[op]
        made.append(wrapped(int(exact), dtype) if dtype.kind in "iu" else rounded(exact, dtype))
    return made


def wrapped(value: int, dtype: np.dtype[Any]) -> int:
    """An integer as its type holds it."""
    low = int(np.iinfo(dtype).min)
    return (value - low) % 2 ** (8 * dtype.itemsize) + low
