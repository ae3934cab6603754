"""Values out of JSON, the kind of each checked. ValueError for any other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeVar

MOST_BYTES = 2**63 - 1
MOST_INDEX = 2**31 - 1
_EXACT = re.compile(r"[0-9]{1,60}(/[0-9]{1,60})?")

T = TypeVar("T")


def whole(value: Any, most: int | None = None) -> int:
    """`value`, a whole number from 0 to `most`."""
    if type(value) is not int or value < 0 or (most is not None and value > most):
        raise ValueError(f"not a whole number: {str(value)[:60]}")
    return value


def index_or_none(value: Any) -> int | None:
    """`value`, null or a whole number that may count things."""
    return None if value is None else whole(value, MOST_INDEX)


def flag(value: Any) -> bool:
    """`value`, true or false."""
    if type(value) is not bool:
        raise ValueError(f"not true or false: {str(value)[:60]}")
    return value


def text(value: Any) -> str:
    """`value`, text."""
    if type(value) is not str:
        raise ValueError(f"not text: {str(value)[:60]}")
    return value


def one_of(value: T, known: Sequence[T]) -> T:
    """`value`, one of `known`."""
    if value not in known:
        raise ValueError(f"{str(value)[:60]} is none of {', '.join(map(str, known))}")
    return value


def exact(text: object) -> Fraction:
    """An exact number as plans write it, "3/5". Exponents are not taken: one could be made to fill the memory."""
    if not isinstance(text, str) or not _EXACT.fullmatch(text):
        raise ValueError(f"not an exact number: {str(text)[:60]}")
    return Fraction(text)
