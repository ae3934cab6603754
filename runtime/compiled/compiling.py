"""Compile all that Python calls, or load what was compiled before (`machine.kernels`), before anybody waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import typeof

from optcc.machine.kernels import is_kept
from optcc.runtime.compiled import local_loop, queue_loop, queues
from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.basics import KERNELS
from optcc.runtime.compiled.folds import fold_of
from optcc.runtime.compiled.tables import Flows, Lines, Queues, RowTables
from optcc.runtime.devices.host import Op


def compile_all(over: str = "local") -> None:
    """The loop, and the fold that is used most. over : the transport."""
    with KERNELS.together():
        for function, signature in _functions(over):
            function.compile(signature)
        fold_of(Op.SUM, "float32")


def is_compiled() -> bool:
    """Whether that has been done on this machine, for local wires."""
    return all(is_kept(function, signature) for function, signature in _functions("local"))


def _functions(over: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Each with the types of its arguments."""
    ints, times = np.zeros(1, np.int64), np.zeros(1)
    row, route, queue, stripe = (np.zeros(1, kind) for kind in (t.ROW, t.ROUTE, t.QUEUE, t.STRIPE))
    rows = RowTables(row, route, queue, stripe, ints, ints, ints, ints, np.zeros(1, t.STACK), ints)
    flows = Flows(np.zeros(1, t.FLOW), np.zeros(1, t.KEPT), np.zeros(1, t.PARKED), ints)
    wire, ring, nic, way = (np.zeros(1, kind) for kind in (t.WIRE, t.RING, t.NIC, t.WAY))
    polls = np.zeros((1, 2), np.int32)
    if over == "local":
        kernel, copying, owed = (np.zeros(1, kind) for kind in (t.KERNEL, t.COPYING, t.OWED))
        some = (ints, ints, ints, ints, ints, ints)
        lines = Lines(wire, ring, nic, way, *some, polls, ints, kernel, copying, owed, ints)
        yield local_loop.advance, _types(*rows, *flows, *lines, ints, times)
    else:
        end, work, device = (np.zeros(1, kind) for kind in (t.END, t.WORK, t.DEVICE))
        pairs = np.zeros((1, 2), np.int64)
        queues_of = Queues(wire, end, work, nic, device, ints, ints, ints, pairs, polls, ints)
        yield queue_loop.advance, _types(*rows, *flows, *queues_of, ints, times)
    yield queues.push_ready, _types(route, queue, 0, 0, 0.0)
    yield queues.push_each, _types(row, route, queue, ints, 0.0)
    yield queues.first_ready, _types(route, queue, 0, 0.0)
    yield queues.pop_ready, _types(route, queue, 0)


def _types(*like: Any) -> tuple[Any, ...]:
    return tuple(typeof(value) for value in like)  # type: ignore[no-untyped-call, unused-ignore]
