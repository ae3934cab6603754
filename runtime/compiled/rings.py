"""Rings and sleepers, compiled: see `wires.rings` and `wires.local`."""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

import numpy as np

from optcc.runtime.compiled.basics import BACK, DONTWAIT, EAGAIN, NOSIGNAL, NOTICE, inner
from optcc.runtime.compiled.machine import (
    errno_at,
    fence,
    load_u32,
    send,
    set_word,
    store_f64,
    store_i64,
    store_u32,
    word,
)
from optcc.runtime.compiled.tables import UNHEARD, Lines


@inner  # type: ignore[misc, unused-ignore]
def has_room(w: Lines, ring: int, records: int) -> bool:
    if w.rings[ring].written - w.rings[ring].taken + records > w.rings[ring].count:
        w.rings[ring].taken = word(w.rings[ring].taken_at)
    return w.rings[ring].written - w.rings[ring].taken + records <= w.rings[ring].count


@inner  # type: ignore[misc, unused-ignore]
def _written(w: Lines, g: Any, ring: int, wire: int) -> None:
    """A record is in its place: count it, and wake its reader if that sleeps."""
    w.rings[ring].written += 1
    set_word(w.rings[ring].written_at, w.rings[ring].written)
    fence()
    sleep = word(w.wires[wire].sleep)
    if sleep != 0 and sleep != w.wires[wire].woke:
        w.wires[wire].woke = sleep
        sent = send(np.int32(w.wires[wire].socket), w.scratch.ctypes.data, 1, np.int32(DONTWAIT | NOSIGNAL))
        if sent < 0 and load_u32(errno_at()) != EAGAIN:
            w.wires[wire].woke = 0
            g[UNHEARD] = 1 + wire


@inner  # type: ignore[misc, unused-ignore]
def notify(w: Lines, g: Any, wire: int, flow: int, nbytes: int, seq: int, begins: float, ends: float) -> None:
    """That a chunk is in its slot; its ring has room."""
    ring = w.wires[wire].ring
    at = w.rings[ring].records + (w.rings[ring].written & (w.rings[ring].count - 1)) * NOTICE
    store_u32(at, flow)
    store_u32(at + 4, nbytes)
    store_i64(at + 8, seq)
    store_f64(at + 16, begins)
    store_f64(at + 24, ends)
    store_i64(at + 32, wire)
    _written(w, g, ring, wire)


@inner  # type: ignore[misc, unused-ignore]
def reply(w: Lines, g: Any, wire: int, kind: int, flow: int, number: int) -> None:
    """A credit, or an acknowledgement; its ring has room."""
    ring = w.wires[wire].ring
    at = w.rings[ring].records + (w.rings[ring].written & (w.rings[ring].count - 1)) * BACK
    store_u32(at, kind)
    store_u32(at + 4, flow)
    store_i64(at + 8, number)
    store_i64(at + 16, wire)
    _written(w, g, ring, wire)
