"""Completions of queue pairs, compiled: what NICs have done and what has come. See `verbs.reports` and `verbs.polling`.

A completion that is not of the steady state stays in the buffer that it was polled into, where Python finds it.
"""

# mypy: disable-error-code="untyped-decorator, misc, call-arg"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, assignment, var-annotated"
from __future__ import annotations

from typing import Any

import numpy as np

from optcc.runtime.compiled.basics import (
    ASIDE,
    BREATH,
    GOES_ON,
    LOOK_S,
    SPOKEN,
    inner,
    seconds_now,
)
from optcc.runtime.compiled.machine import call3, load_i64, load_u32, ppoll, timerfd_settime
from optcc.runtime.compiled.payloads import copy_bytes, fold_bytes, payload_at
from optcc.runtime.compiled.queue_pairs import (
    NUMBER_BITS,
    acknowledges,
    all_receives_posted,
    flush,
    swapped,
)
from optcc.runtime.compiled.receiving import take_chunk
from optcc.runtime.compiled.tables import (
    ACK_EVENTS,
    CHUNKS,
    EARLY_S,
    GET_EVENT,
    LATE_S,
    LEFT,
    LOOKED,
    MOST,
    NEWS,
    NOW,
    SOCKETS_AT,
    TIMER,
    TIMER_AT,
    Flows,
    RowTables,
)

BATCH, COMPLETION = 64, 48
"""As in `verbs.nic`; bytes of one, as `verbs.structs.COMPLETION` has them; a test holds them equal."""
FORGET = 1 / 64
"""As in `verbs.backlog`."""
_ABSOLUTE = np.int32(1)  # TFD_TIMER_ABSTIME


@inner  # type: ignore[misc, unused-ignore]
def time_of_poll(w: Any, x: Any) -> float:
    """As time.monotonic(), by one look for every poll: see `PollClock`."""
    if x[LOOKED] == 0.0:
        x[NOW], x[LOOKED] = seconds_now(w), 1.0
    return x[NOW]


@inner  # type: ignore[misc, unused-ignore]
def can_say(w: Any, wire: int) -> bool:
    """Nothing is said of a chunk that has come but a credit, which finds its place or is left to Python."""
    return True


@inner  # type: ignore[misc, unused-ignore]
def say_landed(f: Flows, w: Any, g: Any, wire: int, flow: int) -> None:
    """Its NIC has."""


@inner  # type: ignore[misc, unused-ignore]
def take_from_slot(f: Flows, w: Any, g: Any, flow: int, seq: int, own: int, nbytes: int, folds: bool) -> bool:
    """Fold chunk `seq` into `own`, or copy it there; 0: it stays in its slot."""
    if own != 0 and folds:
        fold_from_slot(f, w, g, flow, seq, own, nbytes)
    elif own != 0:
        copy_bytes(w, g, own, payload_at(f, flow, seq), nbytes)
    return True


@inner  # type: ignore[misc, unused-ignore]
def fold_from_slot(f: Flows, w: Any, g: Any, flow: int, seq: int, own: int, nbytes: int) -> None:
    """Fold what is in the slot of chunk `seq` into `own`."""
    fold_bytes(w, g, own, payload_at(f, flow, seq), nbytes)


@inner  # type: ignore[misc, unused-ignore]
def _wire_of(w: Any, nic: int, pair: int) -> int:
    """The wire of a queue pair; -1: none that works."""
    key = (nic << 32) | pair
    low, high = 0, len(w.pairs)
    while low < high:
        middle = (low + high) >> 1
        if w.pairs[middle, 0] < key:
            low = middle + 1
        else:
            high = middle
    here = low < len(w.pairs) and w.pairs[low, 0] == key
    return w.pairs[low, 1] if here else np.int64(-1)  # type: ignore[return-value, unused-ignore]


@inner  # type: ignore[misc, unused-ignore]
def _nearest(low: int, to: int) -> int:
    """The number with these low bits that is nearest to another: see `Immediates.unpack`."""
    half = 1 << (NUMBER_BITS - 1)
    return to + ((low - to + half) & ((1 << NUMBER_BITS) - 1)) - half


@inner  # type: ignore[misc, unused-ignore]
def _came(r: RowTables, f: Flows, w: Any, g: Any, x: Any, wire: int, immediate: int) -> int:
    """A chunk, or a credit."""
    place = immediate >> NUMBER_BITS
    if place >= w.ends[wire].users:
        return ASIDE
    flow = w.users[w.ends[wire].users_at + place]
    if w.wires[wire].out:
        if f.flows[flow].out == 0:
            return ASIDE
        folded = _nearest(immediate, f.flows[flow].folded)
        if folded < f.flows[flow].folded or folded > f.flows[flow].posted:
            return ASIDE
        f.flows[flow].folded = folded
        w.ends[wire].came += 1
    else:
        if f.flows[flow].into == 0:
            return ASIDE
        now = time_of_poll(w, x)
        w.ends[wire].came += 1  # before a credit for it can be given
        if take_chunk(r, f, w, g, wire, flow, _nearest(immediate, f.flows[flow].landed), now) != GOES_ON:
            w.ends[wire].came -= 1
            return ASIDE
        acknowledges(w, w.ends[wire].nic, now)
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def _done(f: Flows, w: Any, wire: int, serial: int) -> int:
    """All work of a wire up to `serial`."""
    out = w.wires[wire].out_nic
    while w.ends[wire].first <= min(serial, w.ends[wire].last):
        work = w.ends[wire].works_at + w.ends[wire].first % w.ends[wire].sends
        flow, seq = w.works[work].flow, w.works[work].seq
        if flow >= 0:
            if seq < 0 or f.flows[flow].out == 0 or f.flows[flow].wire != wire:
                return ASIDE
            w.ends[wire].under_way -= 1
            w.nics[out].under_way -= 1
            f.flows[flow].acked = max(f.flows[flow].acked, seq + 1)
        w.ends[wire].first += 1
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def _read(r: RowTables, f: Flows, w: Any, g: Any, x: Any, nic: int) -> int:
    """What was polled and has not been read."""
    code = GOES_ON
    while w.devices[nic].at < w.devices[nic].found and code == GOES_ON:
        at = w.devices[nic].polled + w.devices[nic].at * COMPLETION
        wire = _wire_of(w, nic, load_u32(at + 28))
        if wire < 0 or load_u32(at + 8) != 0 or w.wires[wire].out + w.wires[wire].into == 0:
            return ASIDE
        request = load_i64(at)
        came = request == 0
        code = _came(r, f, w, g, x, wire, swapped(load_u32(at + 24))) if came else _done(f, w, wire, request)
        if code != GOES_ON:
            return code
        g[NEWS] += 1
        w.devices[nic].at += 1
        if g[LEFT]:
            code = ASIDE
        elif g[CHUNKS] >= g[MOST]:
            code = BREATH
    return code


@inner  # type: ignore[misc, unused-ignore]
def _collect(r: RowTables, f: Flows, w: Any, g: Any, x: Any, nic: int) -> int:
    """All completions of a NIC: see `VerbsNic.completions`."""
    more = True
    while more:
        if w.devices[nic].at == w.devices[nic].found:
            found = call3(w.devices[nic].poll, w.devices[nic].queue, BATCH, w.devices[nic].polled)
            if found < 0:
                return ASIDE
            w.devices[nic].at, w.devices[nic].found, more = 0, found, found == BATCH
        code = _read(r, f, w, g, x, nic)
        if code != GOES_ON:
            return code
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def _wait(w: Any, waits: bool) -> int:
    """How many descriptors can be read; -1 after a signal."""
    w.scratch[2] = w.scratch[3] = 0
    timeout = np.int64(0) if waits else np.int64(w.scratch.ctypes.data + 16)
    return ppoll(w.polls.ctypes.data, len(w.polls), timeout, 0)


@inner  # type: ignore[misc, unused-ignore]
def _spoken(w: Any) -> bool:
    """Whether the watch has, or a NIC has an event: all that is Python's."""
    spoken = (w.polls[1, 1] >> 16) != 0
    for i in range(2 + len(w.ports), len(w.polls)):
        spoken |= (w.polls[i, 1] >> 16) != 0
    return spoken


@inner  # type: ignore[misc, unused-ignore]
def _arm(w: Any, g: Any, x: Any, until: float) -> bool:
    """Set the timer. See `Waiter`."""
    if until != x[TIMER_AT]:
        x[TIMER_AT] = until
        nanoseconds = np.int64(0) if until == np.inf else max(np.int64(1), np.int64(until * 1e9) + 1)
        w.scratch[2] = w.scratch[3] = 0
        w.scratch[4], w.scratch[5] = nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000
        return timerfd_settime(np.int32(g[TIMER]), _ABSOLUTE, w.scratch.ctypes.data + 16, 0) == 0
    return True


@inner  # type: ignore[misc, unused-ignore]
def _waited(w: Any, x: Any, until: float, now: float) -> None:
    """See `Backlog.waited`."""
    under_way = 0
    for nic in w.ports:
        under_way += w.nics[nic].under_way
    if under_way:
        late = min(now - until, x[EARLY_S])
        x[LATE_S] = max(late, x[LATE_S] + (late - x[LATE_S]) * FORGET)


@inner  # type: ignore[misc, unused-ignore]
def _events_taken(w: Any, g: Any) -> bool:
    """Those of completion channels, see `VerbsNic.take_event`; whether there were any."""
    taken = False
    for i in range(len(w.ports)):
        if (w.polls[2 + i, 1] >> 16) != 0:
            nic, at = w.ports[i], w.scratch.ctypes.data
            if call3(g[GET_EVENT], w.devices[nic].channel, at, at + 8) == 0:
                call3(g[ACK_EVENTS], w.devices[nic].queue, 1, 0)
                w.devices[nic].armed = 0
                taken = True
    return taken


@inner  # type: ignore[misc, unused-ignore]
def _poll(r: RowTables, f: Flows, w: Any, g: Any, x: Any, until: float) -> int:
    """See `Polling.poll`; receives are left to be posted again."""
    if flush(w, g) != GOES_ON:
        return ASIDE
    g[NEWS], x[LOOKED] = 0, 0.0
    for nic in w.ports:
        code = _collect(r, f, w, g, x, nic)
        if code != GOES_ON:
            return code
    if g[NEWS] == 0 and until > -np.inf:
        for nic in w.ports:
            if w.devices[nic].armed == 0:
                if call3(w.devices[nic].notify, w.devices[nic].queue, 0, 0) != 0:
                    return ASIDE
                w.devices[nic].armed = 1
                code = _collect(r, f, w, g, x, nic)
                if code != GOES_ON:
                    return code
    if g[NEWS] or until == -np.inf:
        if until == -np.inf or time_of_poll(w, x) >= x[SOCKETS_AT]:
            x[SOCKETS_AT] = time_of_poll(w, x) + LOOK_S
            if _wait(w, False) < 0 or _spoken(w):
                return SPOKEN
            _events_taken(w, g)
        return GOES_ON
    began = x[NOW]
    if not _arm(w, g, x, until) or _wait(w, True) < 0 or _spoken(w):
        return SPOKEN
    x[LOOKED] = 0.0
    now = time_of_poll(w, x)
    x[SOCKETS_AT] = now + LOOK_S
    if _events_taken(w, g):
        for nic in w.ports:
            code = _collect(r, f, w, g, x, nic)
            if code != GOES_ON:
                return code
    elif until > began and (w.polls[0, 1] >> 16) != 0:
        _waited(w, x, until, now)
    return GOES_ON


@inner  # type: ignore[misc, unused-ignore]
def poll_queues(r: RowTables, f: Flows, w: Any, g: Any, x: Any, until: float) -> int:
    """See `Polling.poll`."""
    code = _poll(r, f, w, g, x, until)
    return code if all_receives_posted(w, g) == GOES_ON else ASIDE
