"""The loop of one rank, compiled, as long as nothing but chunks, credits and acknowledgements happens.

It does what `Engine.run`, `FlowTransport.poll`, the methods of `protocol.steady` and a poll of the wires do together,
in the same order, over arrays (`tables`). Whatever else happens it leaves as it finds it, not even taken out of its
ring, and returns: Python goes on from there (`path`). So there is no second copy of a rule for anything but the steady
state.

It is the same over all wires: what these do in ways of their own is in `parts`, and what Python calls in `local_loop`
and `queue_loop`. Its other parts are in `queues`, `sending` and `receiving`. numba keeps compiled code by signature and
by the file of the function: `tables.STAMP` makes the signature that of all files.
"""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

import numpy as np

from optcc.runtime.compiled.basics import (
    ASIDE,
    BREATH,
    DONE,
    EXPIRED,
    GOES_ON,
    LANES,
    SEQ_BITS,
    inner,
)
from optcc.runtime.compiled.machine import word
from optcc.runtime.compiled.parts import poll, time_now
from optcc.runtime.compiled.sending import post_ready, pump_all
from optcc.runtime.compiled.tables import (
    AWAKE,
    BEFORE,
    BREATH_AT,
    BUSY,
    DUE,
    EVERY,
    LANES_AT,
    LOOK_AT,
    ON_GPU,
    REFUSED,
    SOCKETS_AT,
    STRIKE,
    TIMERS,
    TOTAL,
    UNFINISHED,
    UNHEARD,
    UNSENT,
    WAKE,
    Flows,
    RowTables,
)


@inner  # type: ignore[misc, unused-ignore]
def _all_landed(f: Flows) -> bool:
    """See `LocalWires.landed`: whether all that this rank has sent has; what has is known from now on."""
    all_landed = True
    for flow in f.mine:
        if f.flows[flow].out and f.flows[flow].acked < f.flows[flow].posted:
            mark = word(f.flows[flow].mark)
            if (mark >> SEQ_BITS) == f.flows[flow].wire:
                f.flows[flow].acked = max(f.flows[flow].acked, mark & ((1 << SEQ_BITS) - 1))
            all_landed &= f.flows[flow].acked == f.flows[flow].posted
    return all_landed


@inner  # type: ignore[misc, unused-ignore]
def advance_over(r: RowTables, f: Flows, w: Any, g: Any, x: Any) -> int:
    """See `advance`; over any wires, whose own functions `w` has."""
    while True:
        code = post_ready(r, f, w, g, x)
        if code != GOES_ON:
            return code
        if g[REFUSED]:
            return ASIDE
        over = g[UNSENT] == 0 and g[UNFINISHED] == 0 and g[BUSY] == 0
        if over and (not g[ON_GPU] or time_now(w, x) >= x[AWAKE] or _all_landed(f)):
            return DONE  # a rank with a GPU, which is awake anyway, sees what has landed before it asks for it
        if g[TOTAL] - g[UNSENT] - g[UNFINISHED] >= g[STRIKE] or g[UNHEARD]:
            return ASIDE
        now = time_now(w, x)
        expired = now >= x[LOOK_AT] or now >= x[TIMERS]
        if expired:  # what is over by now counts once all has been told that had happened by now
            x[BEFORE], x[SOCKETS_AT] = now, -np.inf
        until = -np.inf if expired or over else min(x[WAKE], x[LOOK_AT], x[TIMERS], x[DUE], x[BREATH_AT])
        code = poll(r, f, w, g, x, until)
        if code != GOES_ON:
            return code
        if g[BUSY]:
            if x[LOOK_AT] == np.inf:
                x[LOOK_AT] = now + x[EVERY]
            if pump_all(r, f, w, g, x) != GOES_ON:
                return ASIDE
        if expired:
            return EXPIRED
        if now >= x[DUE]:
            return ASIDE
        if now >= x[LANES_AT]:
            return LANES
        if now >= x[BREATH_AT]:
            return BREATH
