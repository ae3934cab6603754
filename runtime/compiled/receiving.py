"""What comes in, compiled: `flows.receive_path`, the engine's folds, and chunks on emulated NICs."""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

import numpy as np

from optcc.runtime.compiled.basics import (
    ACK,
    ASIDE,
    BACK,
    BREATH,
    CALL,
    CREDIT,
    GOES_ON,
    MARK,
    NOTICE,
    SEQ_BITS,
    inner,
)
from optcc.runtime.compiled.machine import load_f64, load_i64, load_u32, set_word, word
from optcc.runtime.compiled.parts import can_say, say_landed, take_payload
from optcc.runtime.compiled.rings import has_room, reply
from optcc.runtime.compiled.tables import (
    BUFFER,
    BUFFER_BYTES,
    CHUNKS,
    EARLY,
    HELD,
    ITEM,
    LEFT,
    LEFT_LANDING,
    MOST,
    NEWS,
    OPERATION,
    ORDER,
    THROUGH,
    UNUSED,
    Flows,
    RowTables,
)
from optcc.runtime.compiled.turns import finish, give_back, park
from optcc.runtime.compiled.ways import pop_way, push_way


@inner  # type: ignore[misc, unused-ignore]
def take_chunk(r: RowTables, f: Flows, w: Any, g: Any, wire: int, flow: int, seq: int, at: float) -> int:
    """A chunk is here: to its place, or nothing where it is not the next one of a flow in its steady state."""
    slot = f.flows[flow].slots + seq % f.flows[flow].window * f.flows[flow].size
    if load_u32(slot) != MARK or load_i64(slot + 16) != seq:
        return ASIDE
    if f.flows[flow].into == 0 or wire != f.flows[flow].wire or seq != f.flows[flow].landed:
        return ASIDE
    if load_u32(slot + 4) != f.flows[flow].epoch or load_u32(slot + 8) != g[OPERATION]:
        return ASIDE
    nbytes, row, offset = load_u32(slot + 12), load_i64(slot + 24), load_i64(slot + 32)
    place = r.places[row] if 0 <= row < len(r.places) else np.int64(-1)
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
    landed, in_turn = seq + 1, r.rows[place].reduce == 0 or r.rows[place].count == 1
    waits = not in_turn or f.flows[flow].parked > 0
    if waits and landed - f.flows[flow].returned > f.flows[flow].window >> 1:
        return ASIDE  # too many would stay in their slots
    if not can_say(w, wire):
        return ASIDE
    own = g[BUFFER] + offset if in_turn else 0
    if not take_payload(f, w, g, flow, seq, own, nbytes, r.rows[place].reduce != 0):
        return ASIDE
    if not in_turn:
        park(r, f, flow, seq, place, offset, nbytes)
    f.flows[flow].landed = landed
    say_landed(f, w, g, wire, flow)
    g[CHUNKS] += 1
    g[NEWS] += 1
    give_back(f, w, g, flow)
    r.rows[place].missing -= nbytes
    if r.rows[place].missing == 0:
        if g[EARLY] > 0:  # something may have to be folded that Python has kept
            r.stack[0].place, r.stack[0].at, g[LEFT] = place, at, LEFT_LANDING
        else:
            finish(r, f, w, g, place, at)
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def land_due(r: RowTables, f: Flows, w: Any, g: Any, now: float) -> int:
    """See `PortClocks.landed`."""
    while g[HELD] and w.ways[w.held[0]].at <= now:
        chunk = w.held[0]
        nic = w.ways[chunk].nic
        done = w.nics[nic].in_free = (
            max(w.ways[chunk].at, w.nics[nic].in_free) + w.ways[chunk].bytes / w.nics[nic].in_rate
        )
        pop_way(w, w.held, g[HELD])
        g[HELD] -= 1
        w.ways[chunk].at = done
        push_way(w, w.through, g[THROUGH], chunk)
        g[THROUGH] += 1
    while g[THROUGH] and w.ways[w.through[0]].at <= now:
        chunk = w.through[0]
        wire, flow, seq = w.ways[chunk].wire, w.ways[chunk].flow, w.ways[chunk].seq
        if take_chunk(r, f, w, g, wire, flow, seq, w.ways[chunk].at) != GOES_ON:
            return ASIDE
        pop_way(w, w.through, g[THROUGH])
        g[THROUGH] -= 1
        w.unused[g[UNUSED]] = chunk
        g[UNUSED] += 1
        if g[LEFT]:
            return ASIDE
        if g[CHUNKS] >= g[MOST]:
            return BREATH
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def _notice(r: RowTables, f: Flows, w: Any, g: Any, at: int, now: float) -> int:
    """One record: see `LocalWires._notice`."""
    flow, nbytes, seq = load_u32(at), load_u32(at + 4), load_i64(at + 8)
    begins, ends, wire = load_f64(at + 16), load_f64(at + 24), load_i64(at + 32)
    if wire < 0 or wire >= len(w.wires) or w.wires[wire].into == 0 or flow >= len(f.flows) or f.flows[flow].into == 0:
        return ASIDE
    if nbytes == CALL:
        if wire != f.flows[flow].wire or not has_room(w, w.wires[wire].ring, 1):
            return ASIDE
        mark = word(f.flows[flow].mark)
        if (mark >> SEQ_BITS) == wire and (mark & ((1 << SEQ_BITS) - 1)) > seq:
            reply(w, g, wire, ACK, flow, seq)
            f.flows[flow].call = -1
        else:
            f.flows[flow].call = seq
        return GOES_ON
    if nbytes > f.flows[flow].most:
        return ASIDE
    nic = w.wires[wire].in_nic
    if ends <= now and g[HELD] == 0 and g[THROUGH] == 0 and w.nics[nic].in_rate == np.inf:
        landed = max(ends, w.nics[nic].in_free)
        if take_chunk(r, f, w, g, wire, flow, seq, landed) != GOES_ON:
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
    push_way(w, w.held, g[HELD], chunk)
    g[HELD] += 1
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def _back(f: Flows, w: Any, g: Any, at: int) -> int:
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


@inner  # type: ignore[misc, unused-ignore]
def read_ring(r: RowTables, f: Flows, w: Any, g: Any, ring: int, notices: bool, now: float) -> int:
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
            if g[LEFT]:
                code = ASIDE
            elif g[CHUNKS] >= g[MOST]:
                code = BREATH
    if taken != w.rings[ring].taken:
        w.rings[ring].taken = taken
        set_word(w.rings[ring].taken_at, taken)
    return code
