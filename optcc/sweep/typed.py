"""Values of a grid as typed: texts, one or several, and where and how a person wrote them."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from optcc.errors import InputError

T = TypeVar("T")
Texts = str | Annotated[list[str], msgspec.Meta(min_length=1)]
"""Where a list of values belongs, one value will do."""


@dataclass(frozen=True)
class Where:
    """Where and how a person wrote a grid, for what is said about it: in a file's fields, or as options.

    at : from a place such as ``$.sizes[0]`` to where it is found: file, line and place, or an option
    named : from a field such as ``nic_share`` to what it was typed as; between : what stands between that and a value
    """

    at: Callable[[str], str]
    named: Callable[[str], str] = str
    between: str = ": "

    def __call__(self, place: str) -> str:
        return self.at(place)

    def field(self, name: str, value: str = "") -> str:
        """``mttf: 2.7h`` or ``--mttf 2.7h``; without a value ``mttf:`` or ``--mttf``."""
        return f"{self.named(name)}{self.between}{value}".rstrip()

    def listed(self, names: Iterable[str]) -> str:
        """Several fields: ``nics, count`` or ``--fail, --fail-count``."""
        return ", ".join(map(self.named, names))


def read_each(texts: Texts, at: str, where: Where, parse: Callable[[str, str], T]) -> tuple[T, ...]:
    """`parse` (text, where) of every text at the place `at`. Raises InputError where two say the same."""
    if isinstance(texts, str):
        return (parse(texts, where(at)),)
    places = [f"{at}[{i}]" for i in range(len(texts))]
    values = [parse(text, where(place)) for text, place in zip(texts, places, strict=True)]
    check_apart(values, texts, places, where)
    return tuple(values)


def check_apart(values: Sequence[Hashable], texts: Sequence[str], places: Sequence[str], where: Where) -> None:
    """Raise InputError if one of `values` is there twice, however typed: its rows would be, too, and count twice in
    results from the table."""
    found: dict[Hashable, int] = {}
    for i, value in enumerate(values):
        if (first := found.setdefault(value, i)) < i:
            expected = f"each once ({texts[first]} stands before it)"
            raise InputError("the same twice", where=where(places[i]), expected=expected, got=texts[i][:80])


def whole_number(text: str, where: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`. Raises InputError for anything else."""
    number = int(text) if re.fullmatch("[0-9]{1,19}", text) else -1
    if not least <= number <= most:
        raise InputError("not such a number", where=where, expected=f"a whole number, {least} to {most}", got=text[:40])
    return number
