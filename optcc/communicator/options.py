"""Options of a communicator, which those that come of it by shrinking, growing and splitting take over; and what
numbers its methods take."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from optcc.communicator.clusters import MessageCosts
from optcc.errors import InputError
from optcc.runtime.control.connecting import TIMEOUT_S
from optcc.runtime.messages import Note


@dataclass(frozen=True)
class CommunicatorOptions:
    """What holds for a communicator and for those that come of it; see `Communicator`."""

    costs: MessageCosts
    timeout_s: float = TIMEOUT_S
    return_s: float | None = None
    reproducible: bool = False
    tune: bool = True
    on_event: Callable[[Note], None] | None = None

    def __post_init__(self) -> None:
        seconds(self.timeout_s, "timeout_s")
        if self.return_s is not None:
            number(self.return_s, "return_s", "seconds, 0 or more", lambda found: found >= 0)
        if self.on_event is not None and not callable(self.on_event):
            got = type(self.on_event).__name__
            raise InputError("cannot be called", where="on_event", expected="a function of an event", got=got)


def whole(value: Any, where: str, below: int | None = None) -> int:
    """An integer of whatever type, but no bool; InputError for anything else, and for one that is no rank `below`."""
    try:
        found = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        found = None
    if found is None or (below is not None and not 0 <= found < below):
        expected = "a whole number" if below is None else f"0 to {below - 1}"
        what = "not a number" if below is None else "not a rank"
        raise InputError(what, where=where, expected=expected, got="None" if value is None else value)
    return found


def number(value: Any, where: str, expected: str, fits: Callable[[float], bool]) -> float:
    """A finite number that `fits`; else InputError, which says what was `expected`."""
    try:
        found = math.nan if isinstance(value, bool | np.bool_ | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found) or not fits(found):
        raise InputError("not such a number", where=where, expected=expected, got="None" if value is None else value)
    return found


def seconds(value: Any, where: str) -> float:
    """A time to wait; InputError for none."""
    return number(value, where, "seconds, more than 0", lambda found: found > 0)


@contextmanager
def as_arguments() -> Iterator[None]:
    """An InputError names what a Python caller has given by the argument, not by the command line's option."""
    try:
        yield
    except InputError as error:
        where, hint = (text and text.replace("--", "") for text in (error.where, error.hint))
        raise type(error)(error.what, where=where, expected=error.expected, got=error.got, hint=hint) from error
