"""Values of a grid as typed: texts, one or several, and where a person wrote them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

from optcc.errors import InputError

T = TypeVar("T")
Where = Callable[[str], str]
"""From a place such as ``$.sizes[0]`` to where a person finds it: file, line and place, or an option."""
Texts = str | Annotated[list[str], msgspec.Meta(min_length=1)]
"""Where a list of values belongs, one value will do."""


def read_each(texts: Texts, at: str, where: Where, parse: Callable[[str, str], T]) -> tuple[T, ...]:
    """`parse` (text, where) of every text at the place `at`."""
    if isinstance(texts, str):
        return (parse(texts, where(at)),)
    return tuple(parse(text, where(f"{at}[{i}]")) for i, text in enumerate(texts))


def whole_number(text: str, where: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`. Raises InputError for anything else."""
    number = int(text) if re.fullmatch("[0-9]{1,19}", text) else -1
    if not least <= number <= most:
        raise InputError("not such a number", where=where, expected=f"a whole number, {least} to {most}", got=text[:40])
    return number
