"""What people type (400Gb/s, 1GiB, 5us) to bytes per second, bytes and seconds, and back.

Units are pint's, over a registry of our own with nothing but bits, bytes, seconds and prefixes, because pint's
stock registry reads `b` as barn. Numbers stay exact: 0.37 becomes Fraction(37, 100).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache, lru_cache
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

# One number, one unit, nothing else: a pint expression may hold powers and products that take for ever to compute,
# and pint reads "1,5GB" as 15 GB.
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?)\s*(?P<unit>[A-Za-zµμ]+(?:/[A-Za-z]+)?)"
)
_LONGEST = 40  # characters; nobody types a longer quantity
MAX_BYTES = 2**60  # beyond an exbibyte per rank a size is a typing mistake, and 64-bit offsets get close


@cache
def _registry() -> pint.UnitRegistry[Any]:
    registry: pint.UnitRegistry[Any] = pint.UnitRegistry(None, non_int_type=Fraction)
    for line in _DEFINITIONS:
        registry.define(line)
    return registry


@lru_cache(maxsize=256)
def _factor(unit: str, base: str) -> Fraction:
    return Fraction(_registry().Quantity(1, unit).to(base).magnitude)


def _parse(text: str, base: str, kind: str, example: str, where: str | None) -> Fraction:
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    try:
        if match:
            return Fraction(match["number"]) * _factor(match["unit"], base)
    except (pint.PintError, ValueError, TypeError):
        pass  # not a unit, or a unit of something else
    raise InputError(f"not a {kind}", where=where, expected=f"a {kind} such as {example}", got=text[:_LONGEST])


def parse_rate(text: str, where: str | None = None) -> Fraction:
    """Bytes per second of e.g. ``400Gb/s`` or ``50GB/s``. Raises InputError when it is not a rate >= 0."""
    rate = _parse(text, "byte/second", "rate", "400Gb/s or 50GB/s", where)
    if rate < 0:
        raise InputError("negative rate", where=where, expected="a rate of 0 or more", got=text)
    return rate


def parse_size(text: str, where: str | None = None) -> int:
    """Whole bytes of e.g. ``1GiB``, ``64MB`` or ``4096`` (plain numbers are bytes)."""
    plain = re.fullmatch(f"[0-9]{{1,{_LONGEST}}}", text)
    size = Fraction(text) if plain else _parse(text, "byte", "size", "1GiB", where)
    if not plain and not text.rstrip().endswith("B"):
        raise InputError("a size in bits", where=where, expected="bytes, such as 1GiB with a large B", got=text)
    if size.denominator != 1:
        raise InputError("not a whole number of bytes", where=where, expected="whole bytes", got=text)
    if not 0 <= size <= MAX_BYTES:
        raise InputError("size out of range", where=where, expected="0 to 1EiB (2**60 bytes)", got=text)
    return int(size)


def parse_factor(text: str, where: str | None = None) -> Fraction:
    """A plain number above 0, such as ``2``, ``1.5`` or ``3/2``."""
    match = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?|[0-9]{1,9}/[0-9]{1,9}", text.strip())
    try:
        factor = Fraction(text.strip()) if match else Fraction(0)
    except ZeroDivisionError:
        factor = Fraction(0)
    if factor <= 0:
        raise InputError("not a factor", where=where, expected="a number above 0 such as 2 or 3/2", got=text[:_LONGEST])
    return factor


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
