"""The loop of one rank, compiled, as long as nothing but chunks, credits and acknowledgements happens.

It does what `Engine.run`, `FlowTransport.poll`, the methods of `protocol.steady` and `LocalWires.poll` do together, in
the same order, over arrays (`tables`). Whatever else happens it leaves as it finds it, not even taken out of its ring,
and returns: Python goes on from there (`path`). So there is no second copy of a rule for anything but the steady state.

All that is compiled is in this file, because numba's cache looks at no other when it decides whether to compile again;
but for `machine`, and the folds, which are called by address.
"""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from optcc.runtime.compiled.machine import (
    call_fold,
    clock_gettime,
    errno_at,
    fence,
    load_f64,
    load_i64,
    load_u32,
    memcpy,
    ppoll,
    recv,
    send,
    set_word,
    store_f64,
    store_i64,
    store_u32,
    word,
)
from optcc.runtime.compiled.tables import (
    ASKED,
    BEFORE,
    BREATH_AT,
    BUFFER,
    BUFFER_BYTES,
    BUSY,
    BYTES_NS,
    CHUNKS,
    DUE,
    EARLY,
    EVERY,
    FOLD,
    HELD,
    ITEM,
    LANDED,
    LANE,
    LANES_AT,
    LOOK_AT,
    MOST,
    NEWS,
    OPERATION,
    ORDER,
    SLEEPS,
    SOCKETS_AT,
    STRIKE,
    THROUGH,
    TIMERS,
    TIMING,
    TOTAL,
    UNFINISHED,
    UNHEARD,
    UNSENT,
    UNUSED,
    WAKE,
    Flows,
    Lines,
    RowTables,
)

GOES_ON, DONE, ASIDE, SPOKEN, EXPIRED, LANES, WATCH, BREATH = range(8)
"""DONE: all is sent and received. For Python to do: one turn of its loop; the same, a socket or the watch has spoken;
timers that may have run out when all was told, and progress; a look at lanes; to watch the lanes of the route in LANE;
signals."""

HEADER, NOTICE, BACK = 64, 40, 24
"""Bytes of a chunk's header and of records, as `CHUNK_HEADER`, `slots.NOTICE` and `slots.BACK` have them."""
MARK = 0x0C0FFEE5
CALL, ACK, CREDIT = 2**32 - 1, 1, 2
SEQ_BITS = 40
LOOK_S = 1e-3
"""As in `ends`, `slots` and `local`; a test holds them equal."""

_MONOTONIC, _THREAD_CPU = np.int32(1), np.int32(3)
_DONTWAIT, _NOSIGNAL, _EAGAIN, _POLLIN = 0x40, 0x4000, 11, 1
_NEVER = 1e6  # seconds

_called = njit(cache=True, nogil=True, error_model="numpy")
_inner = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""What Python calls; what only compiled code calls."""


@_inner  # type: ignore[misc, unused-ignore]
def _ns(kind: Any, w: Lines) -> int:
    clock_gettime(kind, w.scratch.ctypes.data)
    return w.scratch[0] * 1_000_000_000 + w.scratch[1]


@_inner  # type: ignore[misc, unused-ignore]
def _now(w: Lines) -> float:
    """As time.monotonic()."""
    return _ns(_MONOTONIC, w) / 1e9


# --- ready queues, one pair of heaps for each route, see `engine.priority` -------------------------------------------


@_called  # type: ignore[misc, unused-ignore]
def push_ready(r: RowTables, route: int, place: int, since: float) -> None:
    """Place `place` of the rows is ready since a time."""
    first, i = r.routes[route].queue_at, r.routes[route].timed
    r.routes[route].timed += 1
    while i > 0:
        up = (i - 1) >> 1
        if (r.queues[first + up].since, r.queues[first + up].by_time) <= (since, place):
            break
        r.queues[first + i].since, r.queues[first + i].by_time = (
            r.queues[first + up].since,
            r.queues[first + up].by_time,
        )
        i = up
    r.queues[first + i].since, r.queues[first + i].by_time = since, place


@_inner  # type: ignore[misc, unused-ignore]
def _pop_time(r: RowTables, route: int) -> int:
    first = r.routes[route].queue_at
    top = r.queues[first].by_time
    r.routes[route].timed -= 1
    size = r.routes[route].timed
    since, place, i = r.queues[first + size].since, r.queues[first + size].by_time, 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (r.queues[first + right].since, r.queues[first + right].by_time) < (
            r.queues[first + child].since,
            r.queues[first + child].by_time,
        ):
            child = right
        if (r.queues[first + child].since, r.queues[first + child].by_time) >= (since, place):
            break
        r.queues[first + i].since, r.queues[first + i].by_time = (
            r.queues[first + child].since,
            r.queues[first + child].by_time,
        )
        i = child
    r.queues[first + i].since, r.queues[first + i].by_time = since, place
    return top


@_inner  # type: ignore[misc, unused-ignore]
def _push_row(r: RowTables, route: int, place: int) -> None:
    first, i = r.routes[route].queue_at, r.routes[route].rowed
    r.routes[route].rowed += 1
    while i > 0:
        up = (i - 1) >> 1
        if r.queues[first + up].by_row <= place:
            break
        r.queues[first + i].by_row = r.queues[first + up].by_row
        i = up
    r.queues[first + i].by_row = place


@_called  # type: ignore[misc, unused-ignore]
def first_ready(r: RowTables, route: int, free: float) -> tuple[float, int]:
    """See `ReadyQueue.first`."""
    first = r.routes[route].queue_at
    while r.routes[route].timed > 0 and r.queues[first].since <= free:
        _push_row(r, route, _pop_time(r, route))
    if r.routes[route].rowed > 0:
        return free, r.queues[first].by_row
    return r.queues[first].since, r.queues[first].by_time


@_called  # type: ignore[misc, unused-ignore]
def pop_ready(r: RowTables, route: int) -> None:
    """See `ReadyQueue.pop`."""
    if r.routes[route].rowed == 0:
        _pop_time(r, route)
        return
    first = r.routes[route].queue_at
    r.routes[route].rowed -= 1
    size = r.routes[route].rowed
    place, i = r.queues[first + size].by_row, 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and r.queues[first + child + 1].by_row < r.queues[first + child].by_row:
            child += 1
        if r.queues[first + child].by_row >= place:
            break
        r.queues[first + i].by_row = r.queues[first + child].by_row
        i = child
    r.queues[first + i].by_row = place


# --- rings and sleepers, see `wires.rings` and `wires.local` ---------------------------------------------------------


@_inner  # type: ignore[misc, unused-ignore]
def _has_room(w: Lines, ring: int, records: int) -> bool:
    if w.rings[ring].written - w.rings[ring].taken + records > w.rings[ring].count:
        w.rings[ring].taken = word(w.rings[ring].taken_at)
    return w.rings[ring].written - w.rings[ring].taken + records <= w.rings[ring].count


@_inner  # type: ignore[misc, unused-ignore]
def _written(w: Lines, g: Any, ring: int, wire: int) -> None:
    """A record is in its place: count it, and wake its reader if that sleeps."""
    w.rings[ring].written += 1
    set_word(w.rings[ring].written_at, w.rings[ring].written)
    fence()
    sleep = word(w.wires[wire].sleep)
    if sleep != 0 and sleep != w.wires[wire].woke:
        w.wires[wire].woke = sleep
        sent = send(np.int32(w.wires[wire].socket), w.scratch.ctypes.data, 1, np.int32(_DONTWAIT | _NOSIGNAL))
        if sent < 0 and load_u32(errno_at()) != _EAGAIN:
            w.wires[wire].woke = 0
            g[UNHEARD] = 1 + wire


@_inner  # type: ignore[misc, unused-ignore]
def _reply(w: Lines, g: Any, wire: int, kind: int, flow: int, number: int) -> None:
    """A credit, or an acknowledgement; its ring has room."""
    ring = w.wires[wire].ring
    at = w.rings[ring].records + (w.rings[ring].written & (w.rings[ring].count - 1)) * BACK
    store_u32(at, kind)
    store_u32(at + 4, flow)
    store_i64(at + 8, number)
    store_i64(at + 16, wire)
    _written(w, g, ring, wire)


# --- what goes out, see `flows.send_path` ----------------------------------------------------------------------------


@_inner  # type: ignore[misc, unused-ignore]
def _copy(w: Lines, g: Any, to: int, source: int, nbytes: int) -> None:
    if g[TIMING]:
        began = _ns(_THREAD_CPU, w)
        memcpy(to, source, nbytes)
        g[BYTES_NS] += _ns(_THREAD_CPU, w) - began
    else:
        memcpy(to, source, nbytes)


@_inner  # type: ignore[misc, unused-ignore]
def _write(r: RowTables, f: Flows, w: Lines, g: Any, flow: int) -> int:
    """The next chunk of what is queued; nothing where Python has to do it."""
    wire, seq, place, start = f.flows[flow].wire, f.flows[flow].posted, f.flows[flow].queued, f.flows[flow].start
    ring = w.wires[wire].ring
    if word(w.wires[wire].closed) != 0 or not _has_room(w, ring, 1):
        return ASIDE
    nbytes = min(f.flows[flow].most, f.flows[flow].stop - start)
    nic, ready = w.wires[wire].out_nic, f.flows[flow].ready
    leaves = max(ready, w.nics[nic].out_free)
    left = w.nics[nic].out_free = leaves + nbytes / w.nics[nic].out_rate
    slot = f.flows[flow].slots + seq % f.flows[flow].window * f.flows[flow].size
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
    _copy(w, g, slot + HEADER, r.rows[place].source + start, nbytes)
    at = w.rings[ring].records + (w.rings[ring].written & (w.rings[ring].count - 1)) * NOTICE
    store_u32(at, flow)
    store_u32(at + 4, nbytes)
    store_i64(at + 8, seq)
    store_f64(at + 16, leaves)
    store_f64(at + 24, left)
    store_i64(at + 32, wire)
    _written(w, g, ring, wire)
    kept = f.flows[flow].kept_at + seq % f.flows[flow].window
    f.kept[kept].place, f.kept[kept].start, f.kept[kept].bytes, f.kept[kept].ready = place, start, nbytes, ready
    f.flows[flow].numbered += nbytes
    g[CHUNKS] += 1
    f.flows[flow].posted = seq + 1
    f.flows[flow].start = start + nbytes
    if f.flows[flow].start == f.flows[flow].stop:
        f.flows[flow].queued = -1
        g[BUSY] -= 1
    return GOES_ON


@_inner  # type: ignore[misc, unused-ignore]
def _pump(r: RowTables, f: Flows, w: Lines, g: Any, flow: int) -> int:
    while f.flows[flow].queued >= 0 and f.flows[flow].posted - f.flows[flow].folded < f.flows[flow].window:
        if _write(r, f, w, g, flow) != GOES_ON:
            return ASIDE
    return GOES_ON


@_inner  # type: ignore[misc, unused-ignore]
def _pump_all(r: RowTables, f: Flows, w: Lines, g: Any) -> int:
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
        if _pump(r, f, w, g, flow) != GOES_ON:
            return ASIDE
    return GOES_ON


@_inner  # type: ignore[misc, unused-ignore]
def _free_at(r: RowTables, f: Flows, w: Lines, route: int) -> float:
    free = np.inf
    for i in range(r.routes[route].lane_at, r.routes[route + 1].lane_at):
        flow = r.lanes[i]
        if f.flows[flow].queued >= 0:
            return np.inf
        free = min(free, w.nics[w.wires[f.flows[flow].wire].out_nic].out_free)
    return free


@_inner  # type: ignore[misc, unused-ignore]
def _post_ready(r: RowTables, f: Flows, w: Lines, g: Any, x: Any) -> int:
    """See `Engine.post_ready`; when to look again is in WAKE."""
    now = _now(w)
    while True:
        wake, start, place, route = np.inf, np.inf, -1, -1
        for other in range(len(r.routes)):
            if r.routes[other].timed + r.routes[other].rowed == 0:
                continue
            free = _free_at(r, f, w, other)
            if free <= now:
                at, row = first_ready(r, other, free)
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
        pop_ready(r, route)
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
            if _pump(r, f, w, g, r.stripes[i].flow) != GOES_ON:
                return ASIDE


# --- what comes in, see `flows.receive_path` and `Engine` ------------------------------------------------------------


@_inner  # type: ignore[misc, unused-ignore]
def _place_of(r: RowTables, row: int) -> int:
    low, high = 0, len(r.rows)
    while low < high:
        middle = (low + high) >> 1
        if r.rows[middle].row < row:
            low = middle + 1
        else:
            high = middle
    return low if low < len(r.rows) and r.rows[low].row == row else -1


@_inner  # type: ignore[misc, unused-ignore]
def _landed(r: RowTables, g: Any, place: int, at: float) -> None:
    """See `Engine.landed`."""
    r.rows[place].expected = 0
    r.stack[0].place, r.stack[0].at, size = place, at, 1
    while size > 0:
        size -= 1
        place, at = r.stack[size].place, r.stack[size].at
        if r.rows[place].since > at:
            at = r.rows[place].since
        r.rows[place].since = at
        r.rows[place].count -= 1
        if r.rows[place].count > 0:
            continue
        for i in range(r.rows[place].released_at, r.rows[place + 1].released_at):
            sent = r.released[i]
            if not r.rows[sent].since > at:
                r.rows[sent].since = at
            r.rows[sent].count -= 1
            if r.rows[sent].count == 0:
                push_ready(r, r.rows[sent].route, sent, r.rows[sent].since)
        for i in range(r.rows[place].after_at, r.rows[place + 1].after_at):
            r.stack[size].place, r.stack[size].at = r.after[i], at
            size += 1
        g[UNFINISHED] -= 1


@_inner  # type: ignore[misc, unused-ignore]
def _chunk(r: RowTables, f: Flows, w: Lines, g: Any, wire: int, flow: int, seq: int, at: float) -> int:
    """A chunk is here: to its place, or nothing where it is not the next one of a flow in its steady state."""
    slot = f.flows[flow].slots + seq % f.flows[flow].window * f.flows[flow].size
    if load_u32(slot) != MARK or load_i64(slot + 16) != seq:
        return ASIDE
    if f.flows[flow].into == 0 or wire != f.flows[flow].wire or seq != f.flows[flow].landed:
        return ASIDE
    if load_u32(slot + 4) != f.flows[flow].epoch or load_u32(slot + 8) != g[OPERATION]:
        return ASIDE
    nbytes, place, offset = load_u32(slot + 12), _place_of(r, load_i64(slot + 24)), load_i64(slot + 32)
    if (
        place < 0
        or r.rows[place].expected == 0
        or nbytes < 1
        or nbytes > r.rows[place].missing
        or nbytes > f.flows[flow].most
    ):
        return ASIDE
    if offset < 0 or offset + nbytes > g[BUFFER_BYTES] or (offset % g[ITEM]) != 0 or (nbytes % g[ITEM]) != 0:
        return ASIDE
    if r.rows[place].reduce != 0 and r.rows[place].count != 1:
        return ASIDE  # before its turn
    landed = seq + 1
    if not _has_room(w, w.wires[wire].ring, 2):
        return ASIDE
    set_word(f.flows[flow].mark, (wire << SEQ_BITS) | landed)
    f.flows[flow].landed = landed
    g[CHUNKS] += 1
    g[NEWS] += 1
    own, source = g[BUFFER] + offset, slot + HEADER
    if r.rows[place].reduce == 0:
        _copy(w, g, own, source, nbytes)
    elif g[TIMING]:
        began = _ns(_THREAD_CPU, w)
        call_fold(g[FOLD], own, source, nbytes // g[ITEM])
        g[BYTES_NS] += _ns(_THREAD_CPU, w) - began
    else:
        call_fold(g[FOLD], own, source, nbytes // g[ITEM])
    if f.flows[flow].call >= 0 and landed > f.flows[flow].call:
        _reply(w, g, wire, ACK, flow, f.flows[flow].call)
        f.flows[flow].call = -1
    if landed - f.flows[flow].returned >= f.flows[flow].every:
        f.flows[flow].returned = landed
        _reply(w, g, wire, CREDIT, flow, landed)
    r.rows[place].missing -= nbytes
    if r.rows[place].missing == 0:
        if g[EARLY] > 0:  # something may have to be folded that Python has kept
            r.stack[0].place, r.stack[0].at, g[LANDED] = place, at, 1
        else:
            _landed(r, g, place, at)
    return GOES_ON


@_inner  # type: ignore[misc, unused-ignore]
def _sooner(w: Lines, one: int, other: int) -> bool:
    return (w.ways[one].at, w.ways[one].order) < (w.ways[other].at, w.ways[other].order)


@_inner  # type: ignore[misc, unused-ignore]
def _push_way(w: Lines, heap: Any, size: int, chunk: int) -> None:
    """Onto a heap of `size` chunks on their way."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if not _sooner(w, chunk, heap[up]):
            break
        heap[i] = heap[up]
        i = up
    heap[i] = chunk


@_inner  # type: ignore[misc, unused-ignore]
def _pop_way(w: Lines, heap: Any, size: int) -> None:
    """Off a heap of `size`, the first."""
    size -= 1
    chunk, i = heap[size], 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _sooner(w, heap[child + 1], heap[child]):
            child += 1
        if not _sooner(w, heap[child], chunk):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = chunk


@_inner  # type: ignore[misc, unused-ignore]
def _next_landing(w: Lines, g: Any) -> float:
    """See `PortClocks.next_landing`."""
    first = w.ways[w.through[0]].at if g[THROUGH] else np.inf
    for i in range(g[HELD]):
        chunk = w.held[i]
        nic = w.ways[chunk].nic
        first = min(first, max(w.ways[chunk].at, w.nics[nic].in_free) + w.ways[chunk].bytes / w.nics[nic].in_rate)
    return first


@_inner  # type: ignore[misc, unused-ignore]
def _land(r: RowTables, f: Flows, w: Lines, g: Any, now: float) -> int:
    """See `PortClocks.landed`."""
    while g[HELD] and w.ways[w.held[0]].at <= now:
        chunk = w.held[0]
        nic = w.ways[chunk].nic
        done = w.nics[nic].in_free = (
            max(w.ways[chunk].at, w.nics[nic].in_free) + w.ways[chunk].bytes / w.nics[nic].in_rate
        )
        _pop_way(w, w.held, g[HELD])
        g[HELD] -= 1
        w.ways[chunk].at = done
        _push_way(w, w.through, g[THROUGH], chunk)
        g[THROUGH] += 1
    while g[THROUGH] and w.ways[w.through[0]].at <= now:
        chunk = w.through[0]
        if _chunk(r, f, w, g, w.ways[chunk].wire, w.ways[chunk].flow, w.ways[chunk].seq, w.ways[chunk].at) != GOES_ON:
            return ASIDE
        _pop_way(w, w.through, g[THROUGH])
        g[THROUGH] -= 1
        w.unused[g[UNUSED]] = chunk
        g[UNUSED] += 1
        if g[LANDED]:
            return ASIDE
        if g[CHUNKS] >= g[MOST]:
            return BREATH
    return GOES_ON


@_inner  # type: ignore[misc, unused-ignore]
def _notice(r: RowTables, f: Flows, w: Lines, g: Any, at: int, now: float) -> int:
    """One record: see `LocalWires._notice`."""
    flow, nbytes, seq = load_u32(at), load_u32(at + 4), load_i64(at + 8)
    begins, ends, wire = load_f64(at + 16), load_f64(at + 24), load_i64(at + 32)
    if wire < 0 or wire >= len(w.wires) or w.wires[wire].into == 0 or flow >= len(f.flows) or f.flows[flow].into == 0:
        return ASIDE
    if nbytes == CALL:
        if wire != f.flows[flow].wire or not _has_room(w, w.wires[wire].ring, 1):
            return ASIDE
        mark = word(f.flows[flow].mark)
        if (mark >> SEQ_BITS) == wire and (mark & ((1 << SEQ_BITS) - 1)) > seq:
            _reply(w, g, wire, ACK, flow, seq)
            f.flows[flow].call = -1
        else:
            f.flows[flow].call = seq
        return GOES_ON
    if nbytes > f.flows[flow].most:
        return ASIDE
    nic = w.wires[wire].in_nic
    if ends <= now and g[HELD] == 0 and g[THROUGH] == 0 and w.nics[nic].in_rate == np.inf:
        landed = max(ends, w.nics[nic].in_free)
        if _chunk(r, f, w, g, wire, flow, seq, landed) != GOES_ON:
            return ASIDE
        w.nics[nic].in_free = landed
        return GOES_ON
    if g[UNUSED] == 0:
        return ASIDE
    g[UNUSED] -= 1
    chunk = w.unused[g[UNUSED]]
    w.ways[chunk].at = max(begins, ends - nbytes / w.nics[nic].in_rate)
    w.ways[chunk].order, w.ways[chunk].nic, w.ways[chunk].flow = g[ORDER], nic, flow
    w.ways[chunk].seq, w.ways[chunk].bytes, w.ways[chunk].wire = seq, nbytes, wire
    g[ORDER] += 1
    _push_way(w, w.held, g[HELD], chunk)
    g[HELD] += 1
    return GOES_ON


@_inner  # type: ignore[misc, unused-ignore]
def _back(f: Flows, w: Lines, g: Any, at: int) -> int:
    """One record: see `LocalWires._back`."""
    kind, flow, number, wire = load_u32(at), load_u32(at + 4), load_i64(at + 8), load_i64(at + 16)
    if wire < 0 or wire >= len(w.wires) or w.wires[wire].out == 0 or flow >= len(f.flows) or f.flows[flow].out == 0:
        return ASIDE
    if kind != CREDIT:
        return GOES_ON
    if wire != f.flows[flow].wire or number < f.flows[flow].folded or number > f.flows[flow].posted:
        return ASIDE
    f.flows[flow].folded = number
    f.flows[flow].acked = max(f.flows[flow].acked, number)
    g[NEWS] += 1
    return GOES_ON


@_inner  # type: ignore[misc, unused-ignore]
def _read(r: RowTables, f: Flows, w: Lines, g: Any, ring: int, notices: bool, now: float) -> int:
    """All that is in a ring, or up to what Python has to do."""
    written, taken = word(w.rings[ring].written_at), w.rings[ring].taken
    if written == taken:
        return GOES_ON
    if written - taken < 0 or written - taken > w.rings[ring].count:
        return ASIDE
    code = GOES_ON
    size = NOTICE if notices else BACK
    while taken < written and code == GOES_ON:
        at = w.rings[ring].records + (taken & (w.rings[ring].count - 1)) * size
        code = _notice(r, f, w, g, at, now) if notices else _back(f, w, g, at)
        if code == GOES_ON:
            taken += 1
            if g[LANDED]:
                code = ASIDE
            elif g[CHUNKS] >= g[MOST]:
                code = BREATH
    if taken != w.rings[ring].taken:
        w.rings[ring].taken = taken
        set_word(w.rings[ring].taken_at, taken)
    return code


# --- a poll, see `LocalWires.poll` -----------------------------------------------------------------------------------


@_inner  # type: ignore[misc, unused-ignore]
def _see_landed(f: Flows, g: Any) -> None:
    """What the marks say of what was asked for."""
    for flow in f.mine:
        if f.flows[flow].asked >= 0 and f.flows[flow].out:
            mark = word(f.flows[flow].mark)
            landed = mark & ((1 << SEQ_BITS) - 1) if (mark >> SEQ_BITS) == f.flows[flow].wire else 0
            if f.flows[flow].acked < landed <= f.flows[flow].posted:
                f.flows[flow].acked = landed
                g[NEWS] += 1
            if landed > f.flows[flow].asked:
                f.flows[flow].asked = -1
                g[ASKED] -= 1


@_inner  # type: ignore[misc, unused-ignore]
def _wait(w: Lines, count: int, seconds: float) -> int:
    """How many of the first `count` descriptors can be read, in so many seconds at most; -1 after a signal."""
    seconds = min(max(seconds, 0.0), _NEVER)
    w.scratch[2] = np.int64(seconds)
    w.scratch[3] = np.int64((seconds - np.floor(seconds)) * 1e9)
    for i in range(count):
        w.polls[i, 1] = _POLLIN
    return ppoll(w.polls.ctypes.data, count, w.scratch.ctypes.data + 16, 0)


@_inner  # type: ignore[misc, unused-ignore]
def _sleep(w: Lines, g: Any, seconds: float) -> int:
    g[SLEEPS] += 1
    for address in w.words:
        set_word(address, g[SLEEPS])
    fence()
    spoke, came = 0, False
    for ring in w.notices:
        came |= word(w.rings[ring].written_at) != w.rings[ring].taken
    for ring in w.backs:
        came |= word(w.rings[ring].written_at) != w.rings[ring].taken
    if not came:
        spoke = _wait(w, 1, seconds)
    for address in w.words:
        set_word(address, 0)
    return spoke


@_inner  # type: ignore[misc, unused-ignore]
def _look(w: Lines, x: Any, now: float) -> int:
    """At all sockets: bytes that woke are thrown away; all else is Python's."""
    x[SOCKETS_AT] = now + LOOK_S
    if _wait(w, 1, 0.0) <= 0:
        return GOES_ON
    if _wait(w, len(w.polls), 0.0) < 0 or (w.polls[1, 1] >> 16) != 0:
        return SPOKEN
    for i in range(2, len(w.polls)):
        if (w.polls[i, 1] >> 16) != 0:
            got = recv(w.polls[i, 0], w.scratch.ctypes.data, 8 * len(w.scratch), np.int32(_DONTWAIT))
            if got == 0 or (got < 0 and load_u32(errno_at()) != _EAGAIN):
                return SPOKEN
    return GOES_ON


@_inner  # type: ignore[misc, unused-ignore]
def _poll(r: RowTables, f: Flows, w: Lines, g: Any, x: Any, until: float) -> int:
    g[NEWS], now = 0, _now(w)
    if now >= x[SOCKETS_AT]:
        code = _look(w, x, now)
        if code != GOES_ON:
            return code
    for ring in w.notices:
        code = _read(r, f, w, g, ring, True, now)
        if code != GOES_ON:
            return code
    for ring in w.backs:
        code = _read(r, f, w, g, ring, False, now)
        if code != GOES_ON:
            return code
    code = _land(r, f, w, g, now)
    if code != GOES_ON:
        return code
    if g[ASKED]:
        _see_landed(f, g)
    wake = min(until, _next_landing(w, g))
    if g[NEWS] or wake <= now:
        return GOES_ON
    spoke = _sleep(w, g, wake - now)
    if spoke < 0:
        return SPOKEN
    if spoke:
        code = _look(w, x, now)
        if code != GOES_ON:
            return code
    code = _land(r, f, w, g, _now(w))
    if code != GOES_ON:
        return code
    if g[ASKED]:
        _see_landed(f, g)
    return GOES_ON


@_called  # type: ignore[misc, unused-ignore]
def advance(r: RowTables, f: Flows, w: Lines, g: Any, x: Any) -> int:
    """Until all is sent and received, or something is left to Python: which of these codes."""
    while True:
        code = _post_ready(r, f, w, g, x)
        if code != GOES_ON:
            return code
        if g[UNSENT] == 0 and g[UNFINISHED] == 0 and g[BUSY] == 0:
            return DONE
        if g[TOTAL] - g[UNSENT] - g[UNFINISHED] >= g[STRIKE] or g[UNHEARD]:
            return ASIDE
        now = _now(w)
        expired = now >= x[LOOK_AT] or now >= x[TIMERS]
        if expired:  # what is over by now counts once all has been told that had happened by now
            x[BEFORE], x[SOCKETS_AT] = now, -np.inf
        code = _poll(r, f, w, g, x, -np.inf if expired else min(x[WAKE], x[LOOK_AT], x[TIMERS], x[DUE], x[BREATH_AT]))
        if code != GOES_ON:
            return code
        if g[BUSY]:
            if x[LOOK_AT] == np.inf:
                x[LOOK_AT] = now + x[EVERY]
            if _pump_all(r, f, w, g) != GOES_ON:
                return ASIDE
        if expired:
            return EXPIRED
        if now >= x[DUE]:
            return ASIDE
        if now >= x[LANES_AT]:
            return LANES
        if now >= x[BREATH_AT]:
            return BREATH
