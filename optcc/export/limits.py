"""Refusing what a format cannot hold: the limit by name, and the setting that helps."""

from __future__ import annotations

from optcc.errors import InputError


def refuse_above(limit: int, got: int, what: str, *, hint: str | None = None) -> None:
    """Raise InputError naming `what` when `got` is above `limit`."""
    if got > limit:
        raise InputError("over a limit of the format", where=what, expected=f"at most {limit}", got=got, hint=hint)


def demand(holds: bool, expected: str) -> None:
    """Raise ValueError for a file that is not as its reader needs it."""
    if not holds:
        raise ValueError(f"expected {expected}")
