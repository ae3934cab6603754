"""Payload bytes, compiled: lent or copied by the sender, folded or copied by the receiver. See `wires.lent`."""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

from optcc.runtime.compiled.basics import HEADER, LENT, clock_ns, count_timed, inner, is_timed
from optcc.runtime.compiled.gpu import COPY, FOLD_BY, start_kernel
from optcc.runtime.compiled.machine import call_fold, load_i64, memcpy, store_i64, word
from optcc.runtime.compiled.tables import FOLD, ITEM, LENT_FROM, ON_GPU, Flows, Lines


@inner  # type: ignore[misc, unused-ignore]
def payload_at(f: Flows, flow: int, seq: int) -> int:
    """The address of what a slot holds beside its header."""
    return f.flows[flow].payloads + seq % f.flows[flow].window * f.flows[flow].stride


@inner  # type: ignore[misc, unused-ignore]
def put_payload(f: Flows, w: Lines, g: Any, flow: int, seq: int, source: int, nbytes: int) -> None:
    """For the slot of chunk `seq`: where its bytes are in this rank's buffer, or a copy of them."""
    if g[ON_GPU]:
        start_kernel(w, g, COPY, payload_at(f, flow, seq), source, nbytes)
        return
    slot = f.flows[flow].slots + seq % f.flows[flow].window * f.flows[flow].size
    lent = slot + f.flows[flow].size - LENT
    store_i64(lent, seq)
    store_i64(lent + 16, nbytes)
    if g[LENT_FROM]:
        store_i64(lent + 8, source - g[LENT_FROM] + 1)
    else:
        copy_bytes(w, g, slot + HEADER, source, nbytes)
        store_i64(lent + 8, 0)


@inner  # type: ignore[misc, unused-ignore]
def take_payload(f: Flows, w: Lines, g: Any, flow: int, seq: int, own: int, nbytes: int, folds: bool) -> bool:
    """Fold chunk `seq` into `own`, or copy it there; 0: into its slot. False: what it was is not known, for its sender
    has given up."""
    if g[ON_GPU]:
        if own != 0 and folds:
            start_kernel(w, g, FOLD_BY, own, payload_at(f, flow, seq), nbytes // g[ITEM])
        elif own != 0:
            start_kernel(w, g, COPY, own, payload_at(f, flow, seq), nbytes)
        return True
    slot = f.flows[flow].slots + seq % f.flows[flow].window * f.flows[flow].size
    source, place = slot + HEADER, slot + f.flows[flow].size - LENT
    lent = load_i64(place + 8)
    if lent != 0:
        if lent < 0 or lent - 1 + nbytes > f.flows[flow].far_bytes or load_i64(place) != seq:
            return False
        source = f.flows[flow].far + lent - 1
    if own == 0:
        if lent != 0:
            copy_bytes(w, g, slot + HEADER, source, nbytes)
            store_i64(place + 8, 0)
    elif folds:
        fold_bytes(w, g, own, source, nbytes)
    else:
        copy_bytes(w, g, own, source, nbytes)
    return lent == 0 or word(f.flows[flow].withdrawn) == 0


@inner  # type: ignore[misc, unused-ignore]
def fold_slot(f: Flows, w: Any, g: Any, flow: int, seq: int, own: int, nbytes: int) -> None:
    """Fold what is in the slot of chunk `seq` into `own`."""
    if g[ON_GPU]:
        start_kernel(w, g, FOLD_BY, own, payload_at(f, flow, seq), nbytes // g[ITEM])
    else:
        fold_bytes(w, g, own, payload_at(f, flow, seq), nbytes)


@inner  # type: ignore[misc, unused-ignore]
def copy_bytes(w: Lines, g: Any, to: int, source: int, nbytes: int) -> None:
    if is_timed(g):
        began = clock_ns(w)
        memcpy(to, source, nbytes)
        count_timed(w, g, began)
    else:
        memcpy(to, source, nbytes)


@inner  # type: ignore[misc, unused-ignore]
def fold_bytes(w: Lines, g: Any, own: int, landed: int, nbytes: int) -> None:
    """As `devices.host.fold`, by address."""
    if is_timed(g):
        began = clock_ns(w)
        call_fold(g[FOLD], own, landed, nbytes // g[ITEM])
        count_timed(w, g, began)
    else:
        call_fold(g[FOLD], own, landed, nbytes // g[ITEM])
