"""Compile the loop, or load what was compiled before."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import typeof

from optcc.runtime.compiled import loop, queues
from optcc.runtime.compiled import tables as t
from optcc.runtime.compiled.tables import Flows, Lines, RowTables


def compile_all() -> None:
    """All that Python calls: seconds where it has not been done on this machine."""
    ints, times = np.zeros(1, np.int64), np.zeros(1)
    row, route, queue, stripe = (np.zeros(1, kind) for kind in (t.ROW, t.ROUTE, t.QUEUE, t.STRIPE))
    rows = RowTables(row, route, queue, stripe, ints, ints, ints, ints, np.zeros(1, t.STACK), ints)
    flows = Flows(np.zeros(1, t.FLOW), np.zeros(1, t.KEPT), np.zeros(1, t.PARKED), ints)
    wire, ring, nic, way = (np.zeros(1, kind) for kind in (t.WIRE, t.RING, t.NIC, t.WAY))
    lines = Lines(wire, ring, nic, way, ints, ints, ints, ints, ints, ints, np.zeros((1, 2), np.int32), ints)
    _compile(loop.advance, *rows, *flows, *lines, ints, times)
    _compile(queues.push_ready, route, queue, 0, 0, 0.0)
    _compile(queues.push_each, row, route, queue, ints, 0.0)
    _compile(queues.first_ready, route, queue, 0, 0.0)
    _compile(queues.pop_ready, route, queue, 0)


def _compile(function: Any, *like: Any) -> None:
    function.compile(tuple(typeof(value) for value in like))  # type: ignore[no-untyped-call, unused-ignore]
