"""What local wires do in ways of their own, compiled: see `parts`, `wires.local` and `wires.cuda`."""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

from optcc.runtime.compiled.basics import ACK, CREDIT, SEQ_BITS, inner, seconds_now
from optcc.runtime.compiled.gpu import credit_later, notify_later
from optcc.runtime.compiled.machine import set_word, word
from optcc.runtime.compiled.payloads import put_payload
from optcc.runtime.compiled.rings import has_room, notify, reply
from optcc.runtime.compiled.sending import put_header
from optcc.runtime.compiled.tables import COPIES, ON_GPU, OWES, Flows, RowTables


@inner  # type: ignore[misc, unused-ignore]
def time_now(w: Any, x: Any) -> float:
    return seconds_now(w)


@inner  # type: ignore[misc, unused-ignore]
def free_at(w: Any, g: Any, x: Any, wire: int) -> float:
    return w.nics[w.wires[wire].out_nic].out_free


@inner  # type: ignore[misc, unused-ignore]
def send_chunk(r: RowTables, f: Flows, w: Any, g: Any, x: Any, flow: int, slot: int, nbytes: int) -> bool:
    """The chunk is in its slot, and its receiver told; or nothing has been done."""
    wire, seq, place, start = f.flows[flow].wire, f.flows[flow].posted, f.flows[flow].queued, f.flows[flow].start
    ring = w.wires[wire].ring
    if word(w.wires[wire].closed) != 0 or not has_room(w, ring, 1) or g[COPIES] == len(w.copying):
        return False
    nic = w.wires[wire].out_nic
    leaves = max(f.flows[flow].ready, w.nics[nic].out_free)
    left = w.nics[nic].out_free = leaves + nbytes / w.nics[nic].out_rate
    put_header(r, f, g, flow, slot, nbytes)
    put_payload(f, w, g, flow, seq, r.rows[place].source + start, nbytes)
    if g[ON_GPU]:
        notify_later(w, g, flow, nbytes, seq, leaves, left, wire)
    else:
        notify(w, g, wire, flow, nbytes, seq, leaves, left)
    return True


@inner  # type: ignore[misc, unused-ignore]
def can_say(w: Any, wire: int) -> bool:
    """For a credit, and an acknowledgement that was asked for."""
    return has_room(w, w.wires[wire].ring, 2)


@inner  # type: ignore[misc, unused-ignore]
def say_landed(f: Flows, w: Any, g: Any, wire: int, flow: int) -> None:
    """In the flow's mark, and to the sender if it has asked."""
    landed = f.flows[flow].landed
    set_word(f.flows[flow].mark, (wire << SEQ_BITS) | landed)
    if f.flows[flow].call >= 0 and landed > f.flows[flow].call:
        reply(w, g, wire, ACK, flow, f.flows[flow].call)
        f.flows[flow].call = -1


@inner  # type: ignore[misc, unused-ignore]
def reply_credit(f: Flows, w: Any, g: Any, flow: int, folded: int) -> bool:
    """A credit; False where there is no room for it."""
    wire = f.flows[flow].wire
    if g[ON_GPU]:
        if g[OWES] == len(w.owed):
            return False
        credit_later(w, g, wire, flow, folded)
        return True
    if not has_room(w, w.wires[wire].ring, 1):
        return False
    reply(w, g, wire, CREDIT, flow, folded)
    return True
