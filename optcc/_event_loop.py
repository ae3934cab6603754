"""The simulator's inner loop, compiled: events in a heap, one heap of ready stripes per sending port.

All times are int64 ticks; ties are broken by event kind and number, so a run is deterministic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_FREE, _ARRIVES, _LANDED = 0, 1, 2


@njit(cache=True)  # type: ignore[misc, unused-ignore]
def _push(keys: Any, values: Any, size: int, key: int, value: int) -> None:
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] < key or (keys[parent] == key and values[parent] <= value):
            break
        keys[i], values[i] = keys[parent], values[parent]
        i = parent
    keys[i], values[i] = key, value


@njit(cache=True)  # type: ignore[misc, unused-ignore]
def _pop(keys: Any, values: Any, size: int) -> int:
    """Remove the least entry of a heap of `size`; returns its value."""
    top = values[0]
    size -= 1
    key, value = keys[size], values[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            keys[right] < keys[child] or (keys[right] == keys[child] and values[right] < values[child])
        ):
            child = right
        if keys[child] > key or (keys[child] == key and values[child] >= value):
            break
        keys[i], values[i] = keys[child], values[child]
        i = child
    keys[i], values[i] = key, value
    return int(top)


@njit(cache=True)  # type: ignore[misc, unused-ignore]
def run_events(
    ports: int,
    ptr: NDArray[np.int64],
    row: NDArray[np.int64],
    out: NDArray[np.int32],
    into: NDArray[np.int32],
    out_work: NDArray[np.int64],
    in_work: NDArray[np.int64],
    alpha: int,
    missing: NDArray[np.int64],
    dependents_ptr: NDArray[np.int64],
    dependents: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns (finish per row, -1 where it never started; send start per stripe; landing per stripe), in ticks."""
    rows, stripes = len(ptr) - 1, len(row)
    waiting, parts = missing.copy(), np.diff(ptr)
    finished = np.full(rows, -1, np.int64)
    sent, landed = np.zeros(stripes, np.int64), np.zeros(stripes, np.int64)

    base = np.zeros(ports + 1, np.int64)  # ready heap of port p lives in ready[base[p]:base[p + 1]]
    for s in range(stripes):
        base[out[s] + 1] += 1
    base = np.cumsum(base)
    ready, ready_key = np.zeros(stripes, np.int64), np.zeros(stripes, np.int64)
    ready_size = np.zeros(ports, np.int64)
    out_free, in_free = np.zeros(ports, np.int64), np.zeros(ports, np.int64)

    # Each stripe has at most three events, and a port's FREE event stands for one of them at a time.
    event_key, event = np.zeros(3 * stripes + 1, np.int64), np.zeros(3 * stripes + 1, np.int64)
    events = 0
    touched, is_touched = np.arange(ports), np.ones(ports, np.bool_)
    touched_count = ports
    for r in range(rows):
        if waiting[r] == 0:
            for s in range(ptr[r], ptr[r + 1]):
                p = out[s]
                _push(ready_key[base[p] :], ready[base[p] :], ready_size[p], s, s)
                ready_size[p] += 1

    now = 0
    while True:
        # Start sends only after everything of this instant has happened, so that priority sees all that is ready.
        for i in range(touched_count):
            p = touched[i]
            is_touched[p] = False
            if out_free[p] <= now and ready_size[p] > 0:
                s = _pop(ready_key[base[p] :], ready[base[p] :], ready_size[p])
                ready_size[p] -= 1
                sent[s] = now
                out_free[p] = now + out_work[s]
                arrives = max(now, out_free[p] - in_work[s]) + alpha
                _push(event_key, event, events, out_free[p], 3 * p + _FREE)
                _push(event_key, event, events + 1, arrives, 3 * s + _ARRIVES)
                events += 2
        touched_count = 0
        if events == 0:
            return finished, sent, landed
        now = event_key[0]
        while events > 0 and event_key[0] == now:
            what = _pop(event_key, event, events)
            events -= 1
            kind, i = what % 3, what // 3
            if kind == _FREE:
                if not is_touched[i]:
                    is_touched[i] = True
                    touched[touched_count] = i
                    touched_count += 1
            elif kind == _ARRIVES:
                p = into[i]
                in_free[p] = max(now, in_free[p]) + in_work[i]
                landed[i] = in_free[p]
                _push(event_key, event, events, in_free[p], 3 * i + _LANDED)
                events += 1
            else:
                r = row[i]
                parts[r] -= 1
                if parts[r] == 0:
                    finished[r] = now
                    for d in range(dependents_ptr[r], dependents_ptr[r + 1]):
                        waiting[dependents[d]] -= 1
                        if waiting[dependents[d]] == 0:
                            for s in range(ptr[dependents[d]], ptr[dependents[d] + 1]):
                                p = out[s]
                                _push(ready_key[base[p] :], ready[base[p] :], ready_size[p], s, s)
                                ready_size[p] += 1
                                if not is_touched[p]:
                                    is_touched[p] = True
                                    touched[touched_count] = p
                                    touched_count += 1
