"""One YAML document as dicts, lists and texts, with the line of each of its places, and its decoding into types.

Every scalar is taken as text and then converted to what its field holds, so that no value is surprised by YAML's own
guesses (``yes``, ``12:30``). Anchors, aliases and keys given twice are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
import yaml

from optcc.errors import InputError

DEEPEST = 8  # nested lists and mappings; the formats have 4
LONGEST = 255  # characters of one key or value

T = TypeVar("T")


class YamlDocument:
    """One YAML document: `content` of dicts, lists and texts, and where each of its places is.

    `places` holds, for a place such as ``$.servers[0].gpus``, its line and its text (or what it is); `keys` the lines
    of the keys, which may stand above their values. `kind` is what the document is, for people.
    """

    def __init__(self, data: bytes, path: str, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.places: dict[str, tuple[int, str]] = {}
        self.keys: dict[str, int] = {}
        self._events: Iterator[Any] = yaml.parse(data, Loader=yaml.CBaseLoader)
        try:
            documents = [self._value(event, "$", 0) for event in self._events if isinstance(event, yaml.NodeEvent)]
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            raise InputError(
                "not YAML",
                where=f"{path}:{mark.line + 1}" if mark else path,
                expected=f"a {kind} in YAML",
                got=getattr(error, "problem", None) or getattr(error, "reason", None),
            ) from None
        if len(documents) != 1:
            raise InputError(f"not one {kind}", where=path, expected="one YAML document", got=len(documents))
        self.content = documents[0]

    def where(self, place: str) -> str:
        """``file:line: place``, with the line of what is around a place that is not written."""
        written = place
        while written not in self.places:
            written = written.rpartition(".")[0]
        return f"{self.path}:{self.places[written][0]}: {place}"

    def decode(self, type_: type[T], *, marker: str, version: str, fields_at: Callable[[str], Any]) -> T:
        """The document as a `type_`, a msgspec struct. Raises InputError naming line and field.

        marker, version : the first field of the format and what it must hold
        fields_at : the struct at a place, to name its fields
        """
        _, found = self.places.get(f"$.{marker}", (1, "nothing"))
        if found != version:
            hint = f"A {self.kind} file starts with the line `{marker}: {version}`."
            if "$.plan_id" in self.places:
                hint = f"It is a plan; give the {self.kind} that it was made for."
            expected = f"{marker}: {version}"
            raise InputError(f"not a {self.kind}", where=self.path, expected=expected, got=found, hint=hint)
        try:
            return msgspec.convert(self.content, type_, strict=False)
        except msgspec.ValidationError as error:
            message, _, place = str(error).partition(" - at ")
        place = place.strip("`")
        place = place if place in self.places else "$"
        where, text = self.where(place), self.places[place][1]
        if field := re.search("(missing required|unknown) field `(.*)`", message, re.DOTALL):
            if field[1] == "missing required":
                raise InputError("a field is missing", where=where, expected=f"{field[2]}:")
            allowed = ", ".join(f.encode_name for f in msgspec.structs.fields(fields_at(place)))
            line = self.keys.get(f"{place}.{field[2]}", self.places[place][0])
            where = f"{self.path}:{line}: {place}"
            raise InputError("unknown field", where=where, expected=f"one of {allowed}", got=field[2])
        if "of length >= " in message and self.places[place][1] == "a list":
            raise InputError("an empty list", where=where, expected=_plain(message))
        parent, _, name = place.rpartition(".")
        values = _values(fields_at(parent), name) if parent else ()
        expected = f"one of {', '.join(values)}" if values else _plain(message)
        raise InputError("not what belongs here", where=where, expected=expected, got=text)

    def _value(self, event: Any, at: str, depth: int) -> Any:
        self._check(event, depth)
        line = event.start_mark.line + 1
        if isinstance(event, yaml.ScalarEvent):
            self.places[at] = (line, event.value)
            return event.value
        if isinstance(event, yaml.SequenceStartEvent):
            self.places[at] = (line, "a list")
            return [self._value(e, f"{at}[{i}]", depth + 1) for i, e in enumerate(self._until(yaml.SequenceEndEvent))]
        self.places[at] = (line, "a mapping")
        mapping: dict[str, Any] = {}
        for key in self._until(yaml.MappingEndEvent):
            self._check(key, depth)
            at_line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarEvent):
                raise self._refuse(key, "a key that is not a word", "a field's name")
            if key.value in mapping:
                raise self._refuse(key, f"{key.value} given twice", "each field once")
            self.keys[f"{at}.{key.value}"] = at_line
            mapping[key.value] = self._value(next(self._events), f"{at}.{key.value}", depth + 1)
        return mapping

    def _until(self, end: type[yaml.Event]) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _check(self, event: Any, depth: int) -> None:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._refuse(event, "an anchor or alias", "every value written out")
        if depth > DEEPEST:
            raise self._refuse(event, "nested too deeply", f"at most {DEEPEST} levels")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST:
            raise self._refuse(event, "too long a value", f"at most {LONGEST} characters")

    def _refuse(self, event: Any, what: str, expected: str) -> InputError:
        return InputError(what, where=f"{self.path}:{event.start_mark.line + 1}", expected=expected)


def _values(struct: Any, name: str) -> tuple[str, ...]:
    """The values that field `name` of `struct` may have, where it is one of a few words."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    return _words(fields.get(name))


def _words(type_: Any) -> tuple[str, ...]:
    inner = get_args(type_)
    return inner if get_origin(type_) is Literal else tuple(word for one in inner for word in _words(one))


def _plain(message: str) -> str:
    """What msgspec expected, in words of YAML."""
    expected = message.removeprefix("Expected ").partition(", got")[0].replace(" | null", "")
    for word, plain in _PLAIN_WORDS:
        expected = expected.replace(word, plain)
    return expected


_PLAIN_WORDS = (("`", ""), ("int", "a whole number"), ("array", "a list"), ("object", "a mapping"), ("str", "a text"))
