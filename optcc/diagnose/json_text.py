"""JSON that another program wrote, with a banner before it or not: read whole, or a message."""

from __future__ import annotations

import re
from typing import Any

from optcc.discover.pasted import json_values
from optcc.errors import InputError


def parsed(text: str, source: str, expected: str, *keys: str) -> list[tuple[int, dict[str, Any]]]:
    """(line, object) of the JSON objects that begin lines of a text and have one of `keys`, whatever stands around
    them. Raises InputError, which says what was `expected`, where there is none."""
    found = [
        (line, value)
        for line, value in json_values(text)
        if isinstance(value, dict) and not value.keys().isdisjoint(keys)
    ]
    if not found:
        raise InputError("not JSON", where=source, expected=expected, got="no whole object of it")
    return found


def from_json(text: str) -> str:
    """The text with empty lines in place of those before its first JSON object: a banner, a prompt."""
    start = re.search(r"^[ \t]*[{\[]", text, re.M)
    return text if start is None else "\n" * text.count("\n", 0, start.start()) + text[start.start() :]


def dicts(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none where `value` is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
