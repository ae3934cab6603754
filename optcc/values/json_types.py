"""Types of single values in JSON: each reads, writes and checks them, and says what its JSON Schema is.

They stand in annotations, as in ``Annotated[int, Whole(1, 64)]``; `optcc.values.json_records` makes records of them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any, ClassVar

Json = Any
"""None, bool, int, str, lists of them, and dictionaries of them by str."""
Defs = dict[str, dict[str, Any]]
"""What a JSON Schema refers to by name."""
Number = int | Fraction
MOST_INDEX = 2**31 - 1
"""Readers in other languages have 32 bits for what numbers ranks, ports and the like."""


class FieldError(ValueError):
    """What is not of its type. `place` is its path, such as "shares[0].share"; `got` a text, or what stands for one."""

    def __init__(self, expected: str, got: object) -> None:
        self.place, self.expected = "", expected
        self.got = got[:60] if isinstance(got, str) else _Shown(got)
        super().__init__(expected)

    def __str__(self) -> str:
        return f"{self.place}: expected {self.expected}, got {self.got}".removeprefix(": ")

    def inside(self, step: str | int) -> FieldError:
        """The same, seen from what has it as member or item `step`."""
        own = f"[{step}]" if isinstance(step, int) else step
        self.place = f"{own}.{self.place}" if self.place and self.place[0] != "[" else own + self.place
        return self


class _Shown:
    """A value that is no text: in messages without quotes, in JSON's words, and not at any length."""

    def __init__(self, value: object) -> None:
        words = {None: "null", True: "true", False: "false"}
        self.words = words[value] if value is None or isinstance(value, bool) else str(value)[:60]

    def __str__(self) -> str:
        return self.words


class Codec(ABC):
    """How values of one type are JSON.

    flat : whether a record that has such a value has its members among its own
    """

    flat: bool = False

    @abstractmethod
    def read(self, raw: Json) -> Any:
        """The value of what `write` wrote. FieldError for anything else."""

    @abstractmethod
    def check(self, value: Any) -> None:
        """Raise FieldError unless `read` could have made `value`."""

    @abstractmethod
    def schema(self, defs: Defs) -> dict[str, Any]:
        """The JSON Schema of what `write` writes; what has a name is put into `defs`."""

    def write(self, value: Any) -> Json:
        """`value` as JSON."""
        return value


@dataclass(frozen=True)
class Whole(Codec):
    """A whole number from `least` to `most`."""

    least: int = 0
    most: int | None = None

    def read(self, raw: Json) -> int:
        self.check(raw)
        return int(raw)

    def check(self, value: Any) -> None:
        if type(value) is not int or value < self.least or (self.most is not None and value > self.most):
            raise FieldError(f"a whole number{_between(self.least, self.most)}", value)

    def schema(self, defs: Defs) -> dict[str, Any]:
        most = {} if self.most is None else {"maximum": self.most}
        return {"type": "integer", "minimum": self.least, **most}


@dataclass(frozen=True)
class Exact(Codec):
    """A rational number from `least` to `most`, "3/5" as text. No exponents: one could be made to fill the memory."""

    least: Number = 0
    most: Number | None = None
    PATTERN: ClassVar[str] = r"[0-9]{1,60}(/[0-9]{1,60})?"

    def read(self, raw: Json) -> Fraction:
        try:
            value = Fraction(raw) if type(raw) is str and _EXACT.fullmatch(raw) else None
        except ZeroDivisionError:
            value = None
        if value is None:
            raise FieldError('an exact number as text, such as "3/5"', raw)
        if self.least or self.most is not None:  # the text has no sign
            self.check(value)
        return value

    def check(self, value: Any) -> None:
        if not isinstance(value, int | Fraction) or value < self.least or (self.most is not None and value > self.most):
            raise FieldError(f"an exact number{_between(self.least, self.most)}", value)

    def write(self, value: Any) -> Json:
        return str(value)

    def schema(self, defs: Defs) -> dict[str, Any]:
        words = "A whole number or a fraction"
        return named("exact", defs, lambda: {"type": "string", "pattern": f"^{self.PATTERN}$", "description": words})


_EXACT = re.compile(Exact.PATTERN)


@dataclass(frozen=True)
class Text(Codec):
    """Text that a pattern matches; `parse` makes the value of it, `put` writes it again."""

    pattern: str | None = None
    words: str = "text"
    parse: Callable[[str], Any] = str
    put: Callable[[Any], str] = str

    def read(self, raw: Json) -> Any:
        if type(raw) is not str or (self.pattern is not None and not re.fullmatch(self.pattern, raw)):
            raise FieldError(self.words, raw)
        return self.parse(raw)

    def check(self, value: Any) -> None:
        """Nothing: what makes such values checks them."""

    def write(self, value: Any) -> Json:
        return self.put(value)

    def schema(self, defs: Defs) -> dict[str, Any]:
        plain: dict[str, Any] = {"type": "string"}
        return plain if self.pattern is None else {**plain, "pattern": f"^{self.pattern}$", "description": self.words}


class Flag(Codec):
    """True or false."""

    def read(self, raw: Json) -> bool:
        self.check(raw)
        return bool(raw)

    def check(self, value: Any) -> None:
        if type(value) is not bool:
            raise FieldError("true or false", value)

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {"type": "boolean"}


class Choice(Codec):
    """One of `known`, words or the members of an Enum of words."""

    def __init__(self, known: Sequence[Any]) -> None:
        self.known = {value.value if isinstance(value, Enum) else value: value for value in known}

    def read(self, raw: Json) -> Any:
        self.check(raw)
        return self.known[raw]

    def check(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, str | int) or value not in self.known:
            raise FieldError(f"one of {', '.join(map(str, self.known))}", value)

    def write(self, value: Any) -> Json:
        return value.value if isinstance(value, Enum) else value

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {"enum": list(self.known)} if len(self.known) > 1 else {"const": next(iter(self.known))}


Bytes = Annotated[int, Whole(0, 2**63 - 1)]
Index = Annotated[int, Whole(0, MOST_INDEX)]
"""A number of a rank, a server, a port and so on, from 0."""
Name = Annotated[str, Text(r"[^ /=]{1,255}", "1 to 255 characters without space, '/' and '='")]
"""Of a server, a NIC or a pod."""
Natural = Annotated[int, Whole(1)]


def _between(least: Number, most: Number | None) -> str:
    return f", {least} or more" if most is None else f" from {least} to {most}"


def named(name: str, defs: Defs, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A reference to the schema `make()`, which is put into `defs` under `name` unless it is there."""
    if name not in defs:
        defs[name] = {}  # it may refer to itself
        defs[name] = make()
    return {"$ref": f"#/$defs/{name}"}
