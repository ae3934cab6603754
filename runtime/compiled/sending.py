"""What goes out, compiled: see `flows.send_path`."""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

import numpy as np

from optcc.runtime.compiled.basics import (
    ASIDE,
    BREATH,
    GOES_ON,
    MARK,
    WATCH,
    inner,
)
from optcc.runtime.compiled.machine import store_i64, store_u32
from optcc.runtime.compiled.parts import free_at, send_chunk, time_now
from optcc.runtime.compiled.queues import first_ready, pop_ready
from optcc.runtime.compiled.tables import (
    BUSY,
    CHUNKS,
    EVERY,
    LANE,
    LOOK_AT,
    MOST,
    OPERATION,
    UNSENT,
    WAKE,
    Flows,
    RowTables,
)


@inner  # type: ignore[misc, unused-ignore]
def put_header(r: RowTables, f: Flows, g: Any, flow: int, slot: int, nbytes: int) -> None:
    """That of the next chunk of what is queued."""
    seq, place, start = f.flows[flow].posted, f.flows[flow].queued, f.flows[flow].start
    store_u32(slot, MARK)
    store_u32(slot + 4, f.flows[flow].epoch)
    store_u32(slot + 8, g[OPERATION])
    store_u32(slot + 12, nbytes)
    store_i64(slot + 16, seq)
    store_i64(slot + 24, r.rows[place].row)
    store_i64(slot + 32, r.rows[place].offset + start)
    store_i64(slot + 40, 0)
    store_i64(slot + 48, 0)
    store_i64(slot + 56, 0)


@inner  # type: ignore[misc, unused-ignore]
def _write(r: RowTables, f: Flows, w: Any, g: Any, x: Any, flow: int) -> int:
    """The next chunk of what is queued; nothing where Python has to do it."""
    seq, place, start = f.flows[flow].posted, f.flows[flow].queued, f.flows[flow].start
    nbytes, ready = min(f.flows[flow].most, f.flows[flow].stop - start), f.flows[flow].ready
    slot = f.flows[flow].slots + seq % f.flows[flow].window * f.flows[flow].size
    if not send_chunk(r, f, w, g, x, flow, slot, nbytes):
        return ASIDE
    kept = f.flows[flow].kept_at + seq % f.flows[flow].keeps
    f.kept[kept].place, f.kept[kept].start, f.kept[kept].bytes, f.kept[kept].ready = place, start, nbytes, ready
    f.flows[flow].numbered += nbytes
    g[CHUNKS] += 1
    f.flows[flow].posted = seq + 1
    f.flows[flow].start = start + nbytes
    if f.flows[flow].start == f.flows[flow].stop:
        f.flows[flow].queued = -1
        g[BUSY] -= 1
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def _pump(r: RowTables, f: Flows, w: Any, g: Any, x: Any, flow: int) -> int:
    while f.flows[flow].queued >= 0 and f.flows[flow].posted - f.flows[flow].folded < f.flows[flow].window:
        if free_at(w, g, x, f.flows[flow].wire) == np.inf:
            break
        if _write(r, f, w, g, x, flow) != GOES_ON:
            return ASIDE
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def pump_all(r: RowTables, f: Flows, w: Any, g: Any, x: Any) -> int:
    """First rows first."""
    last_place, last_flow = -1, -1
    for _ in range(g[BUSY]):
        place, flow = np.int64(2**62), -1
        for other in f.mine:
            at = f.flows[other].queued
            if at >= 0 and (at, other) > (last_place, last_flow) and at < place:
                place, flow = at, other
        if flow < 0:
            break
        last_place, last_flow = place, flow
        if _pump(r, f, w, g, x, flow) != GOES_ON:
            return ASIDE
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def _route_free_at(r: RowTables, f: Flows, w: Any, g: Any, x: Any, route: int) -> float:
    free = np.inf
    for i in range(r.routes[route].lane_at, r.routes[route + 1].lane_at):
        flow = r.lanes[i]
        if f.flows[flow].queued >= 0:
            return np.inf
        free = min(free, free_at(w, g, x, f.flows[flow].wire))
    return free


@inner  # type: ignore[misc, unused-ignore]
def post_ready(r: RowTables, f: Flows, w: Any, g: Any, x: Any) -> int:
    """See `Engine.post_ready`; when to look again is in WAKE."""
    now = time_now(w, x)
    while True:
        wake, start, place, route = np.inf, np.inf, -1, -1
        for other in range(len(r.routes)):
            if r.routes[other].timed + r.routes[other].rowed == 0:
                continue
            free = _route_free_at(r, f, w, g, x, other)
            if free <= now:
                at, row = first_ready(r.routes, r.queues, other, free)
                if route < 0 or (at, row) < (start, place):
                    start, place, route = at, row, other
            elif free < wake:
                wake = free
        if route < 0:
            x[WAKE] = wake
            return GOES_ON
        if g[CHUNKS] >= g[MOST]:
            return BREATH
        kind = r.rows[place].kind
        if r.routes[route].watched == 0:
            g[LANE] = route
            return WATCH
        for i in range(r.kinds[kind], r.kinds[kind + 1]):
            if f.flows[r.stripes[i].flow].out == 0:
                return ASIDE
        pop_ready(r.routes, r.queues, route)
        g[UNSENT] -= 1
        if x[LOOK_AT] == np.inf:
            x[LOOK_AT] = now + x[EVERY]
        for i in range(r.kinds[kind], r.kinds[kind + 1]):
            if r.stripes[i].start < r.stripes[i].stop:
                flow = r.stripes[i].flow
                f.flows[flow].queued, f.flows[flow].ready = place, r.rows[place].since
                f.flows[flow].start, f.flows[flow].stop = r.stripes[i].start, r.stripes[i].stop
                g[BUSY] += 1
        for i in range(r.kinds[kind], r.kinds[kind + 1]):
            if _pump(r, f, w, g, x, r.stripes[i].flow) != GOES_ON:
                return ASIDE
