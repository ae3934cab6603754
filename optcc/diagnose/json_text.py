"""JSON that another program wrote: read whole, or a message."""

from __future__ import annotations

import json
from typing import Any

from optcc.errors import InputError


def parsed(text: str, source: str, expected: str) -> Any:
    """The value. Raises InputError, which says what was `expected`, for text that is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("not JSON", where=source, expected=expected, got=str(error)[:80]) from None


def dicts(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none where `value` is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
