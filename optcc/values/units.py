"""What people type (400Gb/s, 1GiB, 5us) to bytes per second, bytes and seconds, and back.

With a B sizes are what they say: 1KB is 1000 bytes, 1KiB 1024. A letter alone counts in powers of 1024, as nccl-tests
reads its -b and -e: 256M is 256MiB. Of a rate a letter alone is how NICs are called: 400G is 400Gb/s, as is 400Gbps.

Units are bits, bytes and seconds, by symbol or by name, with a prefix or without, and nothing else. Numbers stay exact:
0.37 becomes Fraction(37, 100).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from math import inf
from numbers import Real

from optcc.errors import InputError

_TENS = {"kilo": 3, "k": 3, "K": 3, "mega": 6, "M": 6, "giga": 9, "G": 9, "tera": 12, "T": 12}
_TENS |= {"milli": -3, "m": -3, "micro": -6, "u": -6, "µ": -6, "μ": -6, "nano": -9, "n": -9}
_TWOS = {"kibi": 10, "Ki": 10, "mebi": 20, "Mi": 20, "gibi": 30, "Gi": 30, "tebi": 40, "Ti": 40}
_BYTES = {"byte": Fraction(1), "B": Fraction(1), "bit": Fraction(1, 8), "b": Fraction(1, 8)}
_SECONDS = {"second": 1, "sec": 1, "s": 1, "minute": 60, "min": 60, "hour": 3600, "h": 3600}
_NAMES = "|".join(name + "s?" * (len(name) > 1) for name in (*_BYTES, *_SECONDS))
_UNIT = re.compile(f"({'|'.join([*_TENS, *_TWOS])})?({_NAMES})")

# One number, one unit, nothing else.
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?)\s*(?P<unit>[A-Za-zµμ]+(?:/[A-Za-z]+)?)"
)
_LONGEST = 40  # characters; nobody types a longer quantity
MAX_BYTES = 2**60  # beyond an exbibyte per rank a size is a typing mistake, and 64-bit offsets get close


_SIZE_LETTER = re.compile(r"([kKmMgGtT])(i?)")
_RATE_LETTER = re.compile(r"([kKMGT])(b|bit|B)?")
_RATE_PS = re.compile(r"([kKMGT]?(?:b|bit|B))ps")


def _size_unit(unit: str) -> str:
    """256M and 256Mi as 256MiB."""
    match = _SIZE_LETTER.fullmatch(unit)
    return f"{match[1].upper()}iB" if match else unit


def _rate_unit(unit: str) -> str:
    """400G, 400Gbps and 400Gbit as 400Gb/s; 50GBps as 50GB/s."""
    if match := _RATE_PS.fullmatch(unit):
        return f"{match[1]}/s"
    if (match := _RATE_LETTER.fullmatch(unit)) and match[2] in (None, "bit"):
        return f"{match[1]}b/s"
    return unit


def _factor(unit: str, base: str) -> Fraction | None:
    """How many of `base` one `unit` is; None for what is no unit, or one of something else."""
    if base == "byte/second":
        size, time = (_factor(*each) for each in zip(unit.partition("/")[::2], base.split("/"), strict=True))
        return size / time if size and time else None
    match = _UNIT.fullmatch(unit)
    known = _BYTES if base == "byte" else _SECONDS
    number = known.get(match[2]) or known.get(match[2].removesuffix("s")) if match else None
    if not match or not number:
        return None
    return Fraction(10) ** _TENS.get(match[1], 0) * Fraction(2) ** _TWOS.get(match[1], 0) * number


def _as_written(unit: str) -> str:
    return unit


def _parse(
    text: str, base: str, kind: str, example: str, where: str | None, spelled: Callable[[str], str] = _as_written
) -> Fraction:
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    factor = _factor(spelled(match["unit"]), base) if match else None
    if match and factor is not None:
        return Fraction(match["number"]) * factor
    raise InputError(f"not a {kind}", where=where, expected=f"a {kind} such as {example}", got=text[:_LONGEST])


def parse_rate(text: str, where: str | None = None) -> Fraction:
    """Bytes per second of e.g. ``400Gb/s``, ``400G``, ``400Gbps`` (bits) or ``50GB/s`` (bytes).

    Raises InputError when it is not a rate >= 0.
    """
    rate = _parse(text, "byte/second", "rate", "400Gb/s, 400G or 50GB/s", where, _rate_unit)
    if rate < 0:
        raise InputError("negative rate", where=where, expected="a rate of 0 or more", got=text)
    return rate


def parse_size(text: str, where: str | None = None) -> int:
    """Whole bytes of e.g. ``1GiB``, ``64MB``, ``256M`` (256MiB, as in nccl-tests) or ``4096`` (bytes)."""
    plain = re.fullmatch(f"[0-9]{{1,{_LONGEST}}}", text)
    size = Fraction(text) if plain else _parse(text, "byte", "size", "1GiB or 256M", where, _size_unit)
    if not plain and text.rstrip().endswith(("b", "bit")):
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


# Plain decimals only: an exponent such as 1e999999999 would be expanded to its digits.
_DECIMAL = re.compile(r"([0-9]{1,9}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})\s?(%?)")
_RATIO = re.compile(r"([0-9]{1,18})/([0-9]{1,18})")


def parse_fraction(text: str, where: str | None = None) -> Fraction:
    """A part of a whole, 0 to 1, written ``0.37``, ``37%`` or ``3/8``. Raises InputError for anything else."""
    fraction = None
    if match := _DECIMAL.fullmatch(text.strip()):
        fraction = Fraction(match[1]) / (100 if match[2] else 1)
    elif (match := _RATIO.fullmatch(text.strip())) and int(match[2]):
        fraction = Fraction(int(match[1]), int(match[2]))
    if fraction is None or fraction > 1:
        raise InputError(
            "not a fraction", where=where, expected="0 to 1, written 0.37, 37% or 3/8", got=text[:_LONGEST]
        )
    return fraction


def parse_share(text: str, where: str | None = None) -> Fraction:
    """A part of a whole that is not nothing: as `parse_fraction`, but above 0."""
    share = parse_fraction(text, where)
    if not share:
        raise InputError("not a share", where=where, expected="above 0, at most 1", got=text[:_LONGEST])
    return share


Quantity = int | float | Fraction | str
"""What the public functions take for a number with a unit: text with its unit, or a number in the base unit."""


def _number(value: Quantity, parse: Callable[[str, str | None], Fraction | int], what: str, where: str) -> Fraction:
    if isinstance(value, str):
        return Fraction(parse(value, where))
    try:
        if isinstance(value, bool):
            raise TypeError
        number = Fraction(str(value)) if isinstance(value, float) else Fraction(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"not a {what}", where=where, expected="a number, or text with a unit", got=repr(value)[:_LONGEST]
        ) from None
    if number < 0:
        raise InputError(f"negative {what}", where=where, expected="0 or more", got=str(value))
    return number


def as_rate(value: Quantity, where: str) -> Fraction:
    """Bytes per second of a number, or of text such as ``400Gb/s``."""
    return _number(value, parse_rate, "rate", where)


def as_seconds(value: Quantity, where: str) -> Fraction:
    """Seconds of a number, or of text such as ``5us``."""
    return _number(value, parse_seconds, "time", where)


def as_size(value: Quantity, where: str) -> int:
    """Whole bytes of a number, or of text such as ``1GiB``."""
    if isinstance(value, str):
        return parse_size(value, where)
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)  # numpy's integers, too
        or not 0 <= value <= MAX_BYTES
        or value % 1
    ):
        expected = "whole bytes, 0 to 2**60, or text such as 1GiB"
        raise InputError("size out of range", where=where, expected=expected, got=str(value)[:_LONGEST])
    return int(value)


def parse_seconds(text: str, where: str | None = None) -> Fraction:
    """Seconds of e.g. ``5us``, ``3.2ms`` or ``0``. Raises InputError when it is not a time >= 0."""
    seconds = Fraction(0) if text.strip() == "0" else _parse(text, "second", "time", "5us", where)
    if seconds < 0:
        raise InputError("negative time", where=where, expected="a time of 0 or more", got=text)
    return seconds


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    factor, suffix = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    shown = value / factor
    return f"{shown:.0f}{suffix}" if 10**digits <= abs(shown) < inf else f"{shown:.{digits}g}{suffix}"


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
