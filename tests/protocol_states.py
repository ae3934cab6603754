"""What an end of a flow remembers."""

from __future__ import annotations

from functools import cache
from typing import Any

from optcc.runtime.protocol import Receiver, Sender


def state_of(end: Sender | Receiver) -> dict[str, Any]:
    """Everything that an end remembers."""
    values = ((name, getattr(end, name)) for name in _names(type(end)))
    return {name: set(value) if isinstance(value, set) else value for name, value in values}


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(sorted({name for cls in kind.__mro__ for name in getattr(cls, "__slots__", ())} - {"_on"}))
