"""Refusing what a format cannot hold: the limit by name, and the setting that helps."""

from __future__ import annotations

from optcc.errors import InputError


def refuse_above(limit: int, got: int, what: str, *, hint: str) -> None:
    """Raise InputError naming `what` when `got` is above `limit`."""
    if got > limit:
        raise InputError("over a limit of the format", where=what, expected=f"at most {limit}", got=got, hint=hint)


def shallower(segments: int, limit: int, got: int) -> str:
    """What to say where fewer segments would fit."""
    fewer = max(1, segments * limit // max(1, got))
    if segments > 1:
        return f"Try --segments {min(fewer, segments - 1)}."
    return "The plan has one segment already: a plan of fewer ranks or fewer degraded ones, or --family of optcc plan."
