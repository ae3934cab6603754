"""The loop of one rank over local wires: what comes by rings, sleep, and what Python calls. See `loop`."""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from optcc.runtime.compiled import local_parts
from optcc.runtime.compiled.basics import (
    AWAKE_S,
    DONTWAIT,
    EAGAIN,
    GOES_ON,
    LOOK_S,
    NEVER,
    POLLIN,
    SEQ_BITS,
    SPOKEN,
    called,
    inner,
    seconds_now,
)
from optcc.runtime.compiled.gpu import settle
from optcc.runtime.compiled.loop import advance_over
from optcc.runtime.compiled.machine import errno_at, fence, load_u32, ppoll, recv, set_word, word
from optcc.runtime.compiled.parts import register
from optcc.runtime.compiled.payloads import fold_slot, take_payload
from optcc.runtime.compiled.receiving import land_due, read_ring
from optcc.runtime.compiled.tables import (
    ASKED,
    AWAKE,
    COPIES,
    NEWS,
    ON_GPU,
    OWES,
    SLEEPS,
    SOCKETS_AT,
    Flows,
    Lines,
    RowTables,
)
from optcc.runtime.compiled.ways import next_landing

LocalLines = namedtuple("LocalLines", Lines._fields)


@inner  # type: ignore[misc, unused-ignore]
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


@inner  # type: ignore[misc, unused-ignore]
def _wait(w: Lines, count: int, seconds: float) -> int:
    """How many of the first `count` descriptors can be read, in so many seconds at most; -1 after a signal."""
    seconds = min(max(seconds, 0.0), NEVER)
    w.scratch[2] = np.int64(seconds)
    w.scratch[3] = np.int64((seconds - np.floor(seconds)) * 1e9)
    for i in range(count):
        w.polls[i, 1] = POLLIN
    return ppoll(w.polls.ctypes.data, count, w.scratch.ctypes.data + 16, 0)


@inner  # type: ignore[misc, unused-ignore]
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


@inner  # type: ignore[misc, unused-ignore]
def _look(w: Lines, x: Any, now: float) -> int:
    """At all sockets: bytes that woke are thrown away; all else is Python's."""
    x[SOCKETS_AT] = now + LOOK_S
    if _wait(w, 1, 0.0) <= 0:
        return GOES_ON
    if _wait(w, len(w.polls), 0.0) < 0 or (w.polls[1, 1] >> 16) != 0:
        return SPOKEN
    for i in range(2, len(w.polls)):
        if (w.polls[i, 1] >> 16) != 0:
            got = recv(w.polls[i, 0], w.scratch.ctypes.data, 8 * len(w.scratch), np.int32(DONTWAIT))
            if got == 0 or (got < 0 and load_u32(errno_at()) != EAGAIN):
                return SPOKEN
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def _poll(r: RowTables, f: Flows, w: LocalLines, g: Any, x: Any, until: float) -> int:
    g[NEWS], now = 0, seconds_now(w)
    if now >= x[SOCKETS_AT]:
        code = _look(w, x, now)
        if code != GOES_ON:
            return code
    code = settle(w, g)
    if code != GOES_ON:
        return code
    for ring in w.notices:
        code = read_ring(r, f, w, g, ring, True, now)
        if code != GOES_ON:
            return code
    for ring in w.backs:
        code = read_ring(r, f, w, g, ring, False, now)
        if code != GOES_ON:
            return code
    code = land_due(r, f, w, g, now)
    if code != GOES_ON:
        return code
    if g[ASKED]:
        _see_landed(f, g)
    wake = min(until, next_landing(w, g))
    if g[ON_GPU] and (g[NEWS] or g[COPIES] or g[OWES]):
        x[AWAKE] = now + AWAKE_S
    if g[NEWS] or wake <= now or now < x[AWAKE]:
        return GOES_ON
    spoke = _sleep(w, g, wake - now)
    if spoke < 0:
        return SPOKEN
    if spoke:
        code = _look(w, x, now)
        if code != GOES_ON:
            return code
    code = land_due(r, f, w, g, seconds_now(w))
    if code != GOES_ON:
        return code
    if g[ASKED]:
        _see_landed(f, g)
    return GOES_ON


register(
    LocalLines,
    poll=_poll,
    time_now=local_parts.time_now,
    free_at=local_parts.free_at,
    send_chunk=local_parts.send_chunk,
    can_say=local_parts.can_say,
    take_payload=take_payload,
    fold_slot=fold_slot,
    say_landed=local_parts.say_landed,
    say_folded=local_parts.reply_credit,
)


# Arrays one by one, and not in three tuples: numba looks at every part of a tuple for much longer, at each call.
@called  # type: ignore[misc, unused-ignore]
def advance(
    rows: Any,
    routes: Any,
    queues: Any,
    stripes: Any,
    kinds: Any,
    lanes: Any,
    released: Any,
    after: Any,
    stack: Any,
    places: Any,
    flows: Any,
    kept: Any,
    parked: Any,
    mine: Any,
    wires: Any,
    rings: Any,
    nics: Any,
    ways: Any,
    held: Any,
    through: Any,
    unused: Any,
    notices: Any,
    backs: Any,
    words: Any,
    polls: Any,
    scratch: Any,
    kernels: Any,
    copying: Any,
    owed: Any,
    arguments: Any,
    g: Any,
    x: Any,
) -> int:
    """Until all is sent and received, or something is left to Python: which of these codes."""
    r = RowTables(rows, routes, queues, stripes, kinds, lanes, released, after, stack, places)
    f = Flows(flows, kept, parked, mine)
    w = LocalLines(
        wires,
        rings,
        nics,
        ways,
        held,
        through,
        unused,
        notices,
        backs,
        words,
        polls,
        scratch,
        kernels,
        copying,
        owed,
        arguments,
    )
    return advance_over(r, f, w, g, x)
