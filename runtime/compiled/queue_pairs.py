"""Requests of queue pairs, compiled: chunks, credits and receives are posted by the device's own functions.

The rules are those of `verbs.end`. What is written waits in a chain. One request in so many asks for a completion. A
queue pair's work is numbered in the order in which it is posted.
"""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

import numpy as np

from optcc.runtime.compiled.basics import ASIDE, GOES_ON, HEADER, inner
from optcc.runtime.compiled.machine import call3, store_i64, store_u32
from optcc.runtime.compiled.parts import time_now
from optcc.runtime.compiled.sending import put_header
from optcc.runtime.compiled.tables import AHEAD, EARLY_S, LATE_S, REFUSED, Flows, RowTables

CHAIN, SEND, SEND_NEXT, SEND_COUNT, SEND_FLAGS, SEND_ELEMENTS, RECEIVE = 32, 160, 8, 24, 32, 128, 32
"""Requests of a chain; bytes of a send, offsets in it; bytes of a receive."""
WRITE, WRITE_WITH_IMMEDIATE, SIGNALED = 0, 1, 2
NUMBER_BITS = 22
"""As in `posting`, `structs` and `immediate` of verbs; a test holds them equal."""
CHUNK_BYTES, ACKS_BYTES = 142, 62
POST_S = 5e-6
"""As in `verbs.backlog`."""


@inner  # type: ignore[misc, unused-ignore]
def swapped(value: int) -> int:
    """32 bits in the network's order, or from it."""
    return ((value & 0xFF) << 24) | ((value & 0xFF00) << 8) | ((value >> 8) & 0xFF00) | ((value >> 24) & 0xFF)


@inner  # type: ignore[misc, unused-ignore]
def has_place(w: Any, wire: int) -> bool:
    """Whether one more request may be posted: see `End.has_room`. On a device that refuses work, none."""
    return (
        w.ends[wire].refused == 0
        and w.ends[wire].last + w.ends[wire].chained + 1 - w.ends[wire].first < w.ends[wire].sends
    )


@inner  # type: ignore[misc, unused-ignore]
def _add(w: Any, wire: int, flow: int, seq: int, operation: int, to: int, immediate: int, count: int) -> int:
    """One more request to the chain, of so many elements; the address of the first. There is a place for it."""
    i = w.ends[wire].chained
    serial = w.ends[wire].last + i + 1
    at = w.ends[wire].chain + i * SEND
    store_i64(at, serial)
    store_i64(at + SEND_NEXT, at + SEND)
    store_i64(at + 16, at + SEND_ELEMENTS)
    store_u32(at + SEND_COUNT, count)
    store_u32(at + 28, operation)
    store_u32(at + SEND_FLAGS, 0)
    store_u32(at + 36, swapped(immediate))
    store_i64(at + 40, to)
    store_u32(at + 48, w.ends[wire].key)
    work = w.ends[wire].works_at + serial % w.ends[wire].sends
    w.works[work].flow, w.works[work].seq = flow, seq
    w.ends[wire].chained = i + 1
    return at + SEND_ELEMENTS


@inner  # type: ignore[misc, unused-ignore]
def _post(w: Any, g: Any, wire: int, tell: bool) -> int:
    """The chain, by one call; the last request asks for a completion if that is asked, or due."""
    device = w.ends[wire].nic
    last = w.ends[wire].chain + (w.ends[wire].chained - 1) * SEND
    serial = w.ends[wire].last + w.ends[wire].chained
    tell = tell or serial - w.ends[wire].told >= w.ends[wire].every
    store_i64(last + SEND_NEXT, 0)
    if tell:
        store_u32(last + SEND_FLAGS, SIGNALED)
    w.ends[wire].chained = 0
    failed = call3(w.devices[device].post_send, w.ends[wire].pair, w.ends[wire].chain, w.scratch.ctypes.data)
    if failed != 0:
        w.ends[wire].refused = g[REFUSED] = failed
        return ASIDE
    w.ends[wire].last = serial
    if tell:
        w.ends[wire].told = serial
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def flush(w: Any, g: Any) -> int:
    """All chains, those of other wires, too, when one is refused."""
    for wire in w.own:
        if w.ends[wire].chained:
            _post(w, g, wire, False)
    return GOES_ON if g[REFUSED] == 0 else ASIDE


@inner  # type: ignore[misc, unused-ignore]
def send_chunk(r: RowTables, f: Flows, w: Any, g: Any, x: Any, flow: int, slot: int, nbytes: int) -> bool:
    """A chunk goes into the chain; it will leave its NIC for the other one's. False: nothing has been done."""
    wire, seq = f.flows[flow].wire, f.flows[flow].posted
    if not has_place(w, wire):
        return False
    serial = w.ends[wire].last + w.ends[wire].chained + 1
    header = w.ends[wire].headers + serial % w.ends[wire].sends * HEADER
    put_header(r, f, g, flow, header, nbytes)
    immediate = (f.flows[flow].place << NUMBER_BITS) | (seq & ((1 << NUMBER_BITS) - 1))
    at = _add(w, wire, flow, seq, WRITE_WITH_IMMEDIATE, slot, immediate, 2)
    store_i64(at, header)
    store_u32(at + 8, HEADER)
    store_u32(at + 12, w.ends[wire].header_key)
    store_i64(at + 16, r.rows[f.flows[flow].queued].source + f.flows[flow].start)
    store_u32(at + 24, nbytes)
    store_u32(at + 28, w.ends[wire].payload_key)
    out, into = w.wires[wire].out_nic, w.wires[wire].in_nic
    now = time_now(w, x)
    w.ends[wire].under_way += 1
    w.nics[out].under_way += 1
    w.nics[out].out_free = max(now, w.nics[out].out_free) + (nbytes + CHUNK_BYTES) / w.nics[out].out_rate
    w.nics[into].in_free = max(now, w.nics[into].in_free) + (nbytes + CHUNK_BYTES) / w.nics[into].in_rate
    if w.ends[wire].chained == CHAIN:
        _post(w, g, wire, False)  # what is refused ends the run, see REFUSED
    return True


@inner  # type: ignore[misc, unused-ignore]
def acknowledges(w: Any, nic: int, now: float) -> None:
    """See `Backlog.arrived`."""
    if w.nics[nic].out_free > now:
        w.nics[nic].out_free += ACKS_BYTES / w.nics[nic].out_rate


@inner  # type: ignore[misc, unused-ignore]
def ask(w: Any, g: Any, wire: int) -> int:
    """See `End.ask`."""
    if w.ends[wire].chained == 0:
        if w.ends[wire].told >= w.ends[wire].last or not has_place(w, wire):
            return GOES_ON
        _add(w, wire, -1, -1, WRITE, w.ends[wire].base, 0, 0)
    return _post(w, g, wire, True)


@inner  # type: ignore[misc, unused-ignore]
def receives_posted(w: Any, g: Any, wire: int) -> int:
    """Those that have been taken by what came over a wire, posted again."""
    device = w.ends[wire].nic
    while w.ends[wire].came > 0:
        some = min(w.ends[wire].came, CHAIN)
        first = w.ends[wire].receives + (CHAIN - some) * RECEIVE
        failed = call3(w.devices[device].post_receive, w.ends[wire].pair, first, w.scratch.ctypes.data)
        if failed != 0:
            w.ends[wire].refused = g[REFUSED] = failed
            return ASIDE
        w.ends[wire].came -= some
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def all_receives_posted(w: Any, g: Any) -> int:
    """Of all wires, also when one is refused."""
    for wire in w.own:
        if w.ends[wire].came:
            receives_posted(w, g, wire)
    return GOES_ON if g[REFUSED] == 0 else ASIDE


@inner  # type: ignore[misc, unused-ignore]
def say_folded(f: Flows, w: Any, g: Any, flow: int, folded: int) -> bool:
    """A credit, posted at once, after the receives for what it allows. False: not posted, it is Python's."""
    wire = f.flows[flow].wire
    if not has_place(w, wire) or receives_posted(w, g, wire) != GOES_ON:
        return False
    immediate = (f.flows[flow].place << NUMBER_BITS) | (folded & ((1 << NUMBER_BITS) - 1))
    _add(w, wire, -1, -1, WRITE_WITH_IMMEDIATE, w.ends[wire].base, immediate, 0)
    return _post(w, g, wire, False) == GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def free_at(w: Any, g: Any, x: Any, wire: int) -> float:
    """See `VerbsWires.free_at`."""
    out, into = w.wires[wire].out_nic, w.wires[wire].in_nic
    if w.ends[wire].under_way and w.nics[out].under_way >= g[AHEAD]:
        for other in w.own:
            leaves = w.wires[other].out and w.wires[other].out_nic == out
            if leaves and w.ends[other].under_way and w.ends[other].first > w.ends[other].told:
                ask(w, g, other)
        return np.inf
    return max(w.nics[out].out_free, w.nics[into].in_free) - min(x[EARLY_S], max(x[LATE_S], POST_S))
