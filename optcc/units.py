"""What people type (400Gb/s, 1GiB, 5us) to bytes per second, bytes and seconds, and back.

Parsing is pint's, over a registry of our own with nothing but bits, bytes, seconds and prefixes, because pint's
stock registry reads `b` as barn. Numbers stay exact: 0.37 becomes Fraction(37, 100).
"""

from __future__ import annotations

import re
import tokenize
from fractions import Fraction
from functools import cache
from typing import Any

import pint

from optcc.errors import InputError

_DEFINITIONS = """
kilo- = 1000 = k-
mega- = 1000000 = M-
giga- = 1000000000 = G-
tera- = 1000000000000 = T-
kibi- = 1024 = Ki-
mebi- = 1048576 = Mi-
gibi- = 1073741824 = Gi-
tebi- = 1099511627776 = Ti-
milli- = 1/1000 = m-
micro- = 1/1000000 = u- = µ- = μ-
nano- = 1/1000000000 = n-
byte = [information] = B
bit = byte / 8 = b
second = [time] = s = sec
minute = 60 * second = min
hour = 60 * minute = h
""".strip().splitlines()

_HUGE_EXPONENT = re.compile(r"[eE][+-]?\d{3,}")
MAX_BYTES = 2**60  # beyond an exbibyte per rank a size is a typing mistake, and 64-bit offsets get close


@cache
def _registry() -> pint.UnitRegistry[Any]:
    registry: pint.UnitRegistry[Any] = pint.UnitRegistry(None, non_int_type=Fraction)
    for line in _DEFINITIONS:
        registry.define(line)
    return registry


def _parse(text: str, unit: str, kind: str, example: str, where: str | None) -> Fraction:
    def refuse(got: object) -> InputError:
        return InputError(f"not a {kind}", where=where, expected=f"a {kind} such as {example}", got=got)

    # A pint expression may hold powers and products: bound what it can be made to compute.
    if not text.strip() or len(text) > 40 or any(c in text for c in "*^(){}[]") or _HUGE_EXPONENT.search(text):
        raise refuse(text)
    try:
        quantity = _registry().parse_expression(text.strip())
        value = quantity.to(unit).magnitude
    except (
        pint.PintError,
        AttributeError,
        ArithmeticError,
        ValueError,
        TypeError,
        tokenize.TokenError,
        AssertionError,
    ):
        raise refuse(text) from None
    return Fraction(value)


def parse_rate(text: str, where: str | None = None) -> Fraction:
    """Bytes per second of e.g. ``400Gb/s`` or ``50GB/s``. Raises InputError when it is not a rate >= 0."""
    rate = _parse(text, "byte/second", "rate", "400Gb/s or 50GB/s", where)
    if rate < 0:
        raise InputError("negative rate", where=where, expected="a rate of 0 or more", got=text)
    return rate


def parse_size(text: str, where: str | None = None) -> int:
    """Whole bytes of e.g. ``1GiB``, ``64MB`` or ``4096`` (plain numbers are bytes)."""
    size = Fraction(int(text)) if text.isascii() and text.isdigit() else _parse(text, "byte", "size", "1GiB", where)
    if size.denominator != 1:
        raise InputError("not a whole number of bytes", where=where, expected="whole bytes", got=text)
    if not 0 <= size <= MAX_BYTES:
        raise InputError("size out of range", where=where, expected="0 to 1EiB (2**60 bytes)", got=text)
    return int(size)


def parse_seconds(text: str, where: str | None = None) -> Fraction:
    """Seconds of e.g. ``5us`` or ``3.2ms``. Raises InputError when it is not a time >= 0."""
    seconds = _parse(text, "second", "time", "5us", where)
    if seconds < 0:
        raise InputError("negative time", where=where, expected="a time of 0 or more", got=text)
    return seconds


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    for factor, suffix in steps:
        if abs(value) >= factor:
            return f"{value / factor:.{digits}g}{suffix}"
    factor, suffix = steps[-1]
    return f"{value / factor:.{digits}g}{suffix}"


def format_rate(bytes_per_second: float | Fraction, digits: int = 6) -> str:
    """``5e10`` bytes/s to ``400Gb/s``."""
    steps = ((1e12, "Tb/s"), (1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1.0, "b/s"))
    return _scaled(float(bytes_per_second) * 8, steps, digits)


def format_size(nbytes: int | float) -> str:
    """``1073741824`` to ``1GiB``."""
    steps = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
    return _scaled(float(nbytes), steps, 6)


def format_seconds(seconds: float | Fraction) -> str:
    """``0.0032`` to ``3.2 ms``."""
    steps = ((1.0, " s"), (1e-3, " ms"), (1e-6, " us"), (1e-9, " ns"))
    return _scaled(float(seconds), steps, 4) if seconds else "0 s"
