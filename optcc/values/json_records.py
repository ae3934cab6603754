"""Classes that describe their own JSON: reader, writer, check and JSON Schema follow from the fields' annotations.

A frozen dataclass is an object with its fields as members; fields that are not compared, or follow from others
(``init=False``), are not in it. Of the types, `int` is a whole number from 0, and `Fraction` an exact number as text
such as "3/5". ``tuple[X, ...]`` is an array, ``tuple[X, Y]`` an array of two, and ``X | None`` may be null. Dataclasses
in a union are told apart by a `Literal` field that they have in common. A TypedDict is an object that is only written.

What a type does not say is a mark in ``Annotated``: a `Codec`, such as ``Whole(1, 64)``, or one of `Called`, `Least`,
`OMITTED` and `LAST`. The class's docstring describes the fields, as "name : text".
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

from optcc.values.json_parts import Array, Nullable, Pair, placed
from optcc.values.json_types import Choice, Codec, Defs, Exact, FieldError, Flag, Json, Text, Whole, named

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
    """As the dataclass `record`, which `of` makes of a value and `value` makes a value of."""

    record: type
    of: Callable[[Any], Any]
    value: Callable[[Any], Any]
    flat: bool = False

    def read(self, raw: Json) -> Any:
        return self.value(codec(self.record).read(raw))

    def check(self, value: Any) -> None:
        codec(self.record).check(self.of(value))

    def write(self, value: Any) -> Json:
        return codec(self.record).write(self.of(value))

    def schema(self, defs: Defs) -> dict[str, Any]:
        record = codec(self.record)
        return record.members_schema(defs) if self.flat and isinstance(record, RecordCodec) else record.schema(defs)


@dataclass(frozen=True)
class RecordField:
    """A field of a record: its name there and in JSON, its type, and the default at which it is left out.

    name : None where its value's own members stand among the record's; omitted : ... if it is never left out
    """

    field: str
    name: str | None
    codec: Codec
    omitted: Any = ...
    required: bool = True

    def left_out(self, value: Any) -> bool:
        """Whether the member is not written for `value`."""
        return self.omitted is not ... and type(value) is type(self.omitted) and bool(value == self.omitted)


class RecordCodec(Codec):
    """An object whose members are the fields of a dataclass, or of a TypedDict.

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

    def schema(self, defs: Defs) -> dict[str, Any]:
        return named(self.kind.__name__, defs, lambda: self.members_schema(defs))

    def members_schema(self, defs: Defs) -> dict[str, Any]:
        """The schema itself, where `schema` refers to it by the class's name."""
        told, required, properties = _told(self.kind), list[str](), dict[str, Any]()
        found = {"type": "object", "required": required, "additionalProperties": False, "properties": properties}
        for member in self.members:
            part = member.codec.schema(defs)
            if member.name is None:
                required += part.pop("required")
                properties |= part.pop("properties")
                found |= part
            else:
                properties[member.name] = part
                required += [member.name] * member.required
            if member.field in told:
                text = told[member.field].replace("None", "null" if member.required else "not there")
                properties[member.name or member.field]["description"] = text
        return found


def _marks(hint: Any) -> tuple[Any, ...]:
    return hint.__metadata__ if get_origin(hint) is Annotated else ()


def _member(name: str, hint: Any, default: Any) -> RecordField:
    required = get_origin(hint) is not NotRequired
    hint = hint if required else get_args(hint)[0]
    marks, inner = _marks(hint), codec(hint)
    called = next((mark.name for mark in marks if isinstance(mark, Called)), name)
    if OMITTED in marks:
        return RecordField(name, called, inner.inner if isinstance(inner, Nullable) else inner, default, required=False)
    return RecordField(name, None if inner.flat else called, inner, required=required)


def _told(kind: type) -> dict[str, str]:
    """What a class's docstring says of its fields, as "name : text" or "name, name : text" on a line or after "; "."""
    names, told = "|".join(get_type_hints(kind)), dict[str, str]()
    start = re.compile(rf"(?:^ *|; )((?:{names})(?:, (?:{names}))*) : ", re.MULTILINE)
    for paragraph in (inspect.getdoc(kind) or "").split("\n\n"):
        _, *parts = start.split(paragraph)
        for group, text in zip(parts[::2], parts[1::2], strict=True):
            told |= dict.fromkeys(group.split(", "), " ".join(text.split()))
    return told


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

    def schema(self, defs: Defs) -> dict[str, Any]:
        return {
            "type": "object",
            **told_apart(self.tag, {w: record.schema(defs) for w, record in self.by_word.items()}),
        }


def told_apart(tag: str, by_word: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema of an object with one of the words `by_word` as its member `tag`, which then fits another one, too."""
    cases = [
        {"if": {"properties": {tag: {"const": word}}, "required": [tag]}, "then": then}
        for word, then in by_word.items()
    ]
    return {"required": [tag], "properties": {tag: {"enum": list(by_word)}}, "allOf": cases}
