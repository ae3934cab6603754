"""Our simulator's model with one thing changed: a receiving port serves packets, not whole stripes, first come first
served, so that senders share it as they do at the output of a switch.

It says how much of a difference between the simulator and ns-3 comes from that alone. Plain Python, for small runs.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from optcc.schedule import Schedule
from optcc.simulator import stripes_of

_LANDS, _ARRIVES, _FREE, _READY = range(4)  # in this order at one instant: what is ready is known before ports send


def finish_times(schedule: Schedule, *, packet: int, delay_s: float) -> NDArray[np.float64]:
    """float64, shape (rows,): seconds when each transfer has landed, -1 where it never starts.

    packet : bytes; delay_s : seconds between the last byte of a packet leaving and its being at the receiving port.
    """
    ports, stripes = schedule.ports, stripes_of(schedule)
    row, out, into = stripes.row.tolist(), stripes.out.tolist(), stripes.into.tolist()
    to_send, to_land = stripes.length.tolist(), stripes.length.tolist()
    parts, waiting = np.diff(stripes.ptr).tolist(), np.diff(schedule.dep_ptr).tolist()
    dependents_ptr, dependents = schedule.dependents()
    finish = np.full(len(schedule), -1.0)
    ready: list[list[int]] = [[] for _ in ports]  # heaps of stripes: the lowest row first
    sending = [-1] * len(ports)  # the stripe that a port has begun, which it does not leave before its end
    busy, in_free = [False] * len(ports), [0.0] * len(ports)
    events: list[tuple[float, int, int, int]] = []  # time, kind, stripe or port, bytes

    def make_ready(r: int, now: float) -> None:
        for s in range(stripes.ptr[r], stripes.ptr[r + 1]):
            heappush(ready[out[s]], s)
            heappush(events, (now, _READY, out[s], 0))

    for r in np.flatnonzero(np.diff(schedule.dep_ptr) == 0):
        make_ready(int(r), 0.0)
    while events:
        now, kind, i, nbytes = heappop(events)
        if kind == _ARRIVES:
            in_free[into[i]] = max(now, in_free[into[i]]) + nbytes / ports[into[i]].in_rate
            heappush(events, (in_free[into[i]], _LANDS, i, nbytes))
            continue
        if kind == _LANDS:
            to_land[i] -= nbytes
            parts[row[i]] -= to_land[i] == 0
            if to_land[i] == 0 and parts[row[i]] == 0:
                finish[row[i]] = now
                for d in dependents[dependents_ptr[row[i]] : dependents_ptr[row[i] + 1]].tolist():
                    waiting[d] -= 1
                    if waiting[d] == 0:
                        make_ready(d, now)
            continue
        busy[i] = busy[i] and kind != _FREE
        if busy[i]:
            continue
        if sending[i] < 0 and ready[i]:
            sending[i] = heappop(ready[i])
        s = sending[i]
        if s >= 0:
            busy[i], size = True, min(packet, to_send[s])
            to_send[s] -= size
            sending[i] = s if to_send[s] else -1
            left = now + size / ports[i].out_rate
            heappush(events, (left, _FREE, i, 0))
            heappush(events, (left + delay_s, _ARRIVES, s, size))
    return finish
