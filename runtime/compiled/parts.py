"""What wires do in ways of their own: functions that the loop calls, one for each kind of wires.

Which one is meant is known by the type of the lines when the caller is compiled. Lines are a tuple of arrays, `Lines`
or `Queues`, of a type of their own; `register` says what functions go with it.
"""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from numba.extending import overload

from optcc.runtime.compiled.tables import Flows, RowTables

_WAYS: dict[type, dict[str, Any]] = {}


def register(lines: type, **ways: Any) -> None:
    """Compiled functions by the names that they have here, and with their arguments."""
    _WAYS[lines] = ways


def _part(stub: Callable[..., Any]) -> Callable[..., Any]:
    options: Any = {"nogil": True, "error_model": "numpy"}

    @wraps(stub)
    def uncompiled(*_: Any) -> Any:
        raise TypeError(f"{stub.__name__} is for compiled code: Python has no wires of its own here")

    @overload(uncompiled, strict=False, jit_options=options)  # type: ignore[misc, unused-ignore]
    def choose(*types: Any) -> Any:
        lines = next(kind for kind in (getattr(each, "instance_class", None) for each in types) if kind in _WAYS)
        return _WAYS[lines][stub.__name__].py_func

    return uncompiled


@_part
def poll(r: RowTables, f: Flows, w: Any, g: Any, x: Any, until: float) -> int:
    """Take in all that has come and is done; if that is nothing, wait."""


@_part
def time_now(w: Any, x: Any) -> float:
    """As time.monotonic()."""


@_part
def free_at(w: Any, g: Any, x: Any, wire: int) -> float:
    """See `Wires.free_at`."""


@_part
def send_chunk(r: RowTables, f: Flows, w: Any, g: Any, x: Any, flow: int, slot: int, nbytes: int) -> bool:
    """The next chunk of what is queued, into its slot. False: nothing has been done, Python has to do it."""


@_part
def can_say(w: Any, wire: int) -> bool:
    """Whether all that is said of a chunk that has come can be said."""


@_part
def take_payload(f: Flows, w: Any, g: Any, flow: int, seq: int, own: int, nbytes: int, folds: bool) -> bool:
    """Fold chunk `seq` into `own`, or copy it there; 0: into its slot. False: what it was is not known, for its sender
    has given up."""


@_part
def fold_slot(f: Flows, w: Any, g: Any, flow: int, seq: int, own: int, nbytes: int) -> None:
    """Fold what is in the slot of chunk `seq` into `own`."""


@_part
def say_landed(f: Flows, w: Any, g: Any, wire: int, flow: int) -> None:
    """That all chunks of a flow below its `landed` are here."""


@_part
def say_folded(f: Flows, w: Any, g: Any, flow: int, folded: int) -> bool:
    """A credit. False: it cannot be said now."""
