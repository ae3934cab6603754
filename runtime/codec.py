"""Frozen dataclasses as JSON and back: the only form in which values travel between the processes of a job.

What arrives is checked against the types of the fields, so that nothing but the values that were declared can come out.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from optcc.runtime.errors import TransportError

Json = Any
"""None, bool, int, float, str, and lists of them, and dictionaries of them by str."""


class MessageError(TransportError):
    """What has arrived is not one of the messages that are expected."""


def encode(message: Any) -> bytes:
    """A registered dataclass as bytes; `decode` gives it back."""
    return _dumps({"kind": type(message).__name__, "is": message}).encode()


def decode(data: bytes, allowed: Iterable[type]) -> Any:
    """The message in `data`, an instance of one of the classes `allowed`; MessageError for anything else."""
    try:
        envelope = json.loads(data)
    except (ValueError, RecursionError):
        raise MessageError(f"{len(data)} bytes that are not JSON") from None
    if not isinstance(envelope, dict) or envelope.keys() != {"kind", "is"}:
        raise MessageError("not a message: expected a kind and a value")
    for cls in allowed:
        if cls.__name__ == envelope["kind"]:
            return typed(cls, envelope["is"])
    raise MessageError(f"unexpected kind of message {str(envelope['kind'])[:40]!r}")


def plain(value: Any) -> Json:
    """A value as JSON: dataclasses become dictionaries of their fields, tuples lists, keys text."""
    return json.loads(_dumps(value))


def _dumps(value: Any) -> str:
    return json.dumps(value, default=_fields, separators=(",", ":"))


def _fields(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def typed(kind: Any, value: Json, where: str = "") -> Any:
    """The inverse of `plain`: an instance of `kind` from JSON. MessageError names the field that does not fit.

    `kind` is a dataclass, Any (as it came), None, bool, int, float, str, a tuple, list or mapping of these, or a union.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        for choice in inner:
            try:
                return typed(choice, value, where)
            except MessageError:
                continue
    elif is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        hints = _hints(kind)
        if value.keys() == hints.keys():
            return kind(**{name: typed(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})
    elif kind is None or kind is type(None):
        if value is None:
            return None
    elif kind is float:
        if type(value) in (int, float):
            return float(value)
    elif kind in (bool, int, str):
        if type(value) is kind:
            return value
    elif origin is tuple and inner[-1] is not ... and isinstance(value, list):
        if len(value) == len(inner):
            return tuple(typed(one, item, where) for one, item in zip(inner, value, strict=True))
    elif origin in (tuple, list) and isinstance(value, list):
        return origin(typed(inner[0], item, where) for item in value)
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        return {_key(inner[0], key, where): typed(inner[1], item, where) for key, item in value.items()}
    raise MessageError(
        f"{where.lstrip('.') or 'message'} is not {getattr(kind, '__name__', kind)}: {str(value)[:40]!r}"
    )


def _key(kind: Any, text: str, where: str) -> Any:
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise MessageError(f"{where.lstrip('.')} has a key that is not a number: {text[:40]!r}") from None
    return text


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
