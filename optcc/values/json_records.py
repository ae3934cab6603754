"""JSON: its text, canonical or for people, and classes that describe their own.

Of such a class reader, writer and check follow from its fields' annotations.

A frozen dataclass is an object with its fields as members; fields that are not compared, or follow from others
(``init=False``), are not in it. Of the types, `int` is a whole number from 0, and `Fraction` an exact number as text
such as "3/5". ``tuple[X, ...]`` is an array, ``tuple[X, Y]`` an array of two, and ``X | None`` may be null. Dataclasses
in a union are told apart by a `Literal` field that they have in common.

What a type does not say is a mark in ``Annotated``: a `Codec`, such as ``Whole(1, 64)``, or one of `Called`, `Least`,
`OMITTED` and `LAST`. The class's docstring describes the fields, as "name : text".
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache
from json.encoder import encode_basestring_ascii as _quoted
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

Json = Any
"""None, bool, int, str, lists of them, and dictionaries of them by str."""
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


class Flag(Codec):
    """True or false."""

    def read(self, raw: Json) -> bool:
        self.check(raw)
        return bool(raw)

    def check(self, value: Any) -> None:
        if type(value) is not bool:
            raise FieldError("true or false", value)


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


Bytes = Annotated[int, Whole(0, 2**63 - 1)]
Index = Annotated[int, Whole(0, MOST_INDEX)]
"""A number of a rank, a server, a port and so on, from 0."""
Name = Annotated[str, Text(r"[^ /=]{1,255}", "1 to 255 characters without space, '/' and '='")]
"""Of a server, a NIC or a pod."""
Natural = Annotated[int, Whole(1)]


def _between(least: Number, most: Number | None) -> str:
    return f", {least} or more" if most is None else f" from {least} to {most}"


def placed(step: str | int, do: Callable[[Any], Any], value: Any) -> Any:
    """`do(value)`, errors seen from what has `value` as member or item `step`."""
    try:
        return do(value)
    except FieldError as error:
        raise error.inside(step) from None


@dataclass(frozen=True)
class Nullable(Codec):
    """Null, or as `inner` says."""

    inner: Codec

    def read(self, raw: Json) -> Any:
        return None if raw is None else self.inner.read(raw)

    def check(self, value: Any) -> None:
        if value is not None:
            self.inner.check(value)

    def write(self, value: Any) -> Json:
        return None if value is None else self.inner.write(value)


@dataclass(frozen=True)
class Array(Codec):
    """`least` items or more, all as `item` says."""

    item: Codec
    least: int = 0

    def read(self, raw: Json) -> tuple[Any, ...]:
        if type(raw) is not list or len(raw) < self.least:
            raise FieldError(f"an array of {self.least} or more" if self.least else "an array", raw)
        return tuple(placed(i, self.item.read, part) for i, part in enumerate(raw))

    def check(self, value: Any) -> None:
        if len(value) < self.least:
            raise FieldError(f"{self.least} or more", len(value))
        for i, part in enumerate(value):
            placed(i, self.item.check, part)

    def write(self, value: Any) -> Json:
        return list(map(self.item.write, value))


@dataclass(frozen=True)
class Pair(Codec):
    """An array of as many items as there are `items`, each of its own type."""

    items: list[Codec]

    def read(self, raw: Json) -> tuple[Any, ...]:
        if type(raw) is not list or len(raw) != len(self.items):
            raise FieldError(f"an array of {len(self.items)}", raw)
        return tuple(placed(i, item.read, raw[i]) for i, item in enumerate(self.items))

    def check(self, value: Any) -> None:
        for i, item in enumerate(self.items):
            placed(i, item.check, value[i])

    def write(self, value: Any) -> Json:
        return [item.write(part) for item, part in zip(self.items, value, strict=True)]


@dataclass(frozen=True)
class Members(Codec):
    """An object with members of any kind."""

    def read(self, raw: Json) -> dict[str, Any]:
        self.check(raw)
        return raw  # type: ignore[no-any-return]

    def check(self, value: Any) -> None:
        if type(value) is not dict:
            raise FieldError("an object", value)


OMITTED, LAST = "left out where it is the default", "written last"
"""Marks of a record's fields."""


@dataclass(frozen=True)
class Called:
    """A mark: the field has another name in JSON."""

    name: str


@dataclass(frozen=True)
class Least:
    """A mark: an array of at least so many."""

    count: int


@cache
def codec(kind: Any) -> Codec:
    """How values of type `kind` are JSON."""
    marks = _marks(kind)
    for mark in marks:
        if isinstance(mark, Codec):
            return mark
    plain = kind.__origin__ if marks else kind
    origin, inner = get_origin(plain), get_args(plain)
    if plain in _SCALARS:
        return _SCALARS[plain]
    if origin is Literal:
        return Choice(inner)
    if origin in (Union, UnionType):
        codecs = [codec(one) for one in inner if one is not NoneType]
        found = codecs[0] if len(codecs) == 1 else OneOf([each for each in codecs if isinstance(each, RecordCodec)])
        return Nullable(found) if NoneType in inner else found
    if origin is list or (origin is tuple and inner[-1] is ...):
        return Array(codec(inner[0]), next((mark.count for mark in marks if isinstance(mark, Least)), 0))
    if origin is tuple:
        return Pair([codec(one) for one in inner])
    return Choice(tuple(plain)) if issubclass(plain, Enum) else RecordCodec(plain)


def read_json(kind: Any, raw: Json) -> Any:
    """The value of type `kind` that `raw` is. FieldError for anything else."""
    return codec(kind).read(raw)


def write_json(kind: Any, value: Any) -> Json:
    """`value`, of type `kind`, as JSON."""
    return codec(kind).write(value)


_SCALARS: dict[Any, Codec] = {int: Whole(), Fraction: Exact(), bool: Flag(), str: Text()}


@dataclass(frozen=True)
class As(Codec):
    """As the dataclass `record`, which `of` makes of a value and `value` makes a value of; None: it is only written."""

    record: type
    of: Callable[[Any], Any]
    value: Callable[[Any], Any] | None = None
    flat: bool = False

    def read(self, raw: Json) -> Any:
        if self.value is None:
            raise FieldError("nothing", raw)
        return self.value(codec(self.record).read(raw))

    def check(self, value: Any) -> None:
        codec(self.record).check(self.of(value))

    def write(self, value: Any) -> Json:
        return codec(self.record).write(self.of(value))


@dataclass(frozen=True)
class RecordField:
    """A field of a record: its name there and in JSON, its type, and the default at which it is left out.

    name : None where its value's own members stand among the record's; omitted : ... if it is never left out
    """

    field: str
    name: str | None
    codec: Codec
    omitted: Any = ...

    def left_out(self, value: Any) -> bool:
        """Whether the member is not written for `value`."""
        return self.omitted is not ... and type(value) is type(self.omitted) and bool(value == self.omitted)


class RecordCodec(Codec):
    """An object whose members are the fields of a dataclass.

    Others are passed over in reading; where the class says ``CLOSED = True`` they are an error.
    """

    def __init__(self, kind: type) -> None:
        self.kind, self.closed = kind, getattr(kind, "CLOSED", False)
        hints = get_type_hints(kind, include_extras=True)
        own = {field.name: field for field in fields(kind)} if is_dataclass(kind) else {}
        names = [name for name, field in own.items() if field.init and field.compare] if own else list(hints)
        names.sort(key=lambda name: LAST in _marks(hints[name]))
        self.members = [_member(name, hints[name], own[name].default if own else ...) for name in names]

    def read(self, raw: Json) -> Any:
        if type(raw) is not dict:
            raise FieldError("an object", raw)
        found = {}
        for member in self.members:
            if member.name is None:
                found[member.field] = member.codec.read(raw)
            elif member.name in raw and member.left_out(raw[member.name]):
                continue  # said although it need not be, as another writer may
            elif member.name in raw:
                found[member.field] = placed(member.name, member.codec.read, raw[member.name])
            elif member.omitted is ...:
                raise FieldError(f"a field {member.name!r}", "none")
        others = sorted(raw.keys() - {member.name for member in self.members})
        if self.closed and others:
            known = ", ".join(member.name for member in self.members if member.name)
            raise FieldError(f"no field but {known}", others[0])
        return self.kind(**found)

    def check(self, value: Any) -> None:
        for member in self.members:
            part = getattr(value, member.field)
            if not member.left_out(part):
                placed(member.field, member.codec.check, part)

    def write(self, value: Any) -> Json:
        found: dict[str, Json] = {}
        for member in self.members:
            part = getattr(value, member.field)
            if member.name is None:
                found |= member.codec.write(part)
            elif not member.left_out(part):
                found[member.name] = member.codec.write(part)
        return found


def _marks(hint: Any) -> tuple[Any, ...]:
    return hint.__metadata__ if get_origin(hint) is Annotated else ()


def _member(name: str, hint: Any, default: Any) -> RecordField:
    marks, inner = _marks(hint), codec(hint)
    called = next((mark.name for mark in marks if isinstance(mark, Called)), name)
    if OMITTED in marks:
        return RecordField(name, called, inner.inner if isinstance(inner, Nullable) else inner, default)
    return RecordField(name, None if inner.flat else called, inner)


class OneOf(Codec):
    """One of several records, told apart by a member that all have, each with other words in it."""

    def __init__(self, records: Sequence[RecordCodec]) -> None:
        words = [{m.name: m.codec.known for m in r.members if m.name and isinstance(m.codec, Choice)} for r in records]
        self.tag = next(name for name in words[0] if all(name in own for own in words))
        self.by_word = {word: record for own, record in zip(words, records, strict=True) for word in own[self.tag]}

    def _of(self, kind: type) -> RecordCodec:
        return next(record for record in self.by_word.values() if record.kind is kind)

    def read(self, raw: Json) -> Any:
        if type(raw) is not dict:
            raise FieldError("an object", raw)
        return self.by_word[placed(self.tag, Choice(tuple(self.by_word)).read, raw.get(self.tag))].read(raw)

    def check(self, value: Any) -> None:
        self._of(type(value)).check(value)

    def write(self, value: Any) -> Json:
        return self._of(type(value)).write(value)


MOST_MEMBERS = 128
"""Of one JSON object."""
MAX_DEPTH = 32
"""Of arrays and objects in each other."""
MAX_BYTES = 64 * 2**20
"""Of a text. With `MAX_PARTS` it bounds the memory that reading one takes: a number takes 36 bytes for 4 or more
in the file, with its comma; an array or object takes up to 240, however short it is in the file."""
MAX_PARTS = 2_000_000
"""Arrays and objects in one text."""
WIDE = 110


def parse(text: str, *, points: bool = False) -> Any:
    """The JSON value in `text`; `points`: numbers may have a decimal point.

    ValueError for what readers might take differently, or what takes too much memory.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    if text.count("[") + text.count("{") > MAX_PARTS:
        raise ValueError(f"more than {MAX_PARTS} arrays and objects")
    try:
        raw = json.loads(
            text, object_pairs_hook=_members, parse_float=float if points else _no_float, parse_constant=_no_float
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        if "set_int_max_str_digits" in str(error):
            raise ValueError("a number of more than 4300 digits") from None
        raise
    _check_depth(raw)
    canonical(raw, ascii_only=False).encode()  # half a surrogate pair is no text
    return raw


_TOO_DEEP = f"nested deeper than {MAX_DEPTH}"


def _check_depth(raw: Any) -> None:
    """Raise ValueError for what is nested deeper than `MAX_DEPTH`; looks at one depth after the other."""
    level: list[Any] = [raw] if isinstance(raw, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        inside = (value.values() if isinstance(value, dict) else value for value in level)
        level = [part for parts in inside for part in parts if isinstance(part, (dict, list))]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs) or len(pairs) > MOST_MEMBERS:
        raise ValueError(f"an object with a name twice, or more than {MOST_MEMBERS} names")
    return made


def _no_float(text: str) -> Any:
    raise ValueError(
        f'{text[:60]}: a number that readers take differently: whole numbers, and exact ones as text such as "3/5"'
    )


def canonical(value: Any, *, ascii_only: bool = True) -> str:
    """One text for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=ascii_only)


def agree(known: Any, said: Any, *, strictly: bool) -> bool:
    """Whether a file says what we would write; unless `strictly`, it may have fields that we do not know."""
    if strictly:
        return canonical(known) == canonical(said)
    if isinstance(known, dict) and isinstance(said, dict):
        return all(name in said and agree(value, said[name], strictly=False) for name, value in known.items())
    if isinstance(known, list) and isinstance(said, list):
        if not any(isinstance(value, (dict, list)) for value in known):
            return canonical(known) == canonical(said)
        return len(known) == len(said) and all(agree(a, b, strictly=False) for a, b in zip(known, said, strict=True))
    return canonical(known) == canonical(said)


def lines(value: Any, depth: int) -> str:
    """JSON for people and for diffs: what is short, and a list of numbers of any length, on one line."""
    if isinstance(value, dict):
        parts = [f"{_quoted(name)}: {lines(part, depth + 1)}" for name, part in value.items()]
        left, right = "{}"
    elif isinstance(value, list) and any(isinstance(part, (dict, list)) for part in value):
        parts = [lines(part, depth + 1) for part in value]
        left, right = "[]"
    else:
        return _quoted(value) if isinstance(value, str) else json.dumps(value)
    short = f"{left}{', '.join(parts)}{right}"
    if len(short) + depth <= WIDE and "\n" not in short:
        return short
    inner = "\n" + " " * (depth + 1)
    return f"{left}{inner}{f',{inner}'.join(parts)}{inner[:-1]}{right}"
