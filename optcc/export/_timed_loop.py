"""The inner loop of targets' clocks, compiled: threads that run steps in order, counters, locks, and shared rates.

All that is compiled is in this file, because what is kept looks at no other when it decides whether to compile again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from optcc.machine.kernels import Kernels

KERNELS = Kernels("clock", "the clocks of targets", 8)
NOBODY = -1
_WAIT, _LOCK, _PAUSE, _MOVE, _END = 0, 1, 2, 3, 4  # where a thread is within its step


@KERNELS.compiled()
def _push(when: Any, what: Any, size: int, time: float, value: int) -> None:
    i = size
    while i > 0:
        up = (i - 1) // 2
        if when[up] <= time:
            break
        when[i], what[i] = when[up], what[up]
        i = up
    when[i], what[i] = time, value


@KERNELS.compiled()
def _pop(when: Any, what: Any, size: int) -> int:
    """Take the earliest away, out of `size`; returns what it is."""
    first, time, value = what[0], when[size - 1], what[size - 1]
    i = 0
    while True:
        low = 2 * i + 1
        if low >= size - 1:
            break
        if low + 1 < size - 1 and when[low + 1] < when[low]:
            low += 1
        if when[low] >= time:
            break
        when[i], what[i] = when[low], what[low]
        i = low
    when[i], what[i] = time, value
    return int(first)


@KERNELS.compiled()
def _share(active: Any, count: int, at: Any, cap: Any, one: Any, two: Any, rates: Any, left: Any, users: Any,
           speed: Any) -> None:  # fmt: skip
    """Max-min fair rates: no mover can have more without one that has less, or as little, having less."""
    for r in range(len(rates)):
        left[r], users[r] = rates[r], 0
    open_ = 0
    for i in range(count):
        s = at[active[i]]
        speed[i] = -1.0
        open_ += 1
        if one[s] >= 0:
            users[one[s]] += 1
        if two[s] >= 0:
            users[two[s]] += 1
    while open_:
        least = np.inf
        for r in range(len(rates)):
            if users[r]:
                least = min(least, left[r] / users[r])
        lowest = np.inf
        for i in range(count):
            if speed[i] < 0:
                lowest = min(lowest, cap[at[active[i]]])
        capped = lowest <= least
        bound = min(lowest, least) * (1 + 1e-9)
        # Whom the tightest of all holds is decided before anything is taken away.
        for i in range(count):
            s = at[active[i]]
            if speed[i] >= 0:
                continue
            held = cap[s] <= bound
            if not capped:
                held = held or (one[s] >= 0 and left[one[s]] <= bound * users[one[s]])
                held = held or (two[s] >= 0 and left[two[s]] <= bound * users[two[s]])
            if held:
                speed[i] = -2.0
        for i in range(count):
            if speed[i] == -2.0:
                s = at[active[i]]
                speed[i] = min(bound, cap[s])
                open_ -= 1
                if one[s] >= 0:
                    users[one[s]] -= 1
                    left[one[s]] = max(0.0, left[one[s]] - speed[i])
                if two[s] >= 0:
                    users[two[s]] -= 1
                    left[two[s]] = max(0.0, left[two[s]] - speed[i])


@KERNELS.compiled()
def run(ptr: Any, wait: Any, need: Any, lock: Any, pause: Any, size: Any, cap: Any, one: Any, two: Any, post: Any,
        delay: Any, rates: Any, counters: Any, locks: int) -> float:  # fmt: skip
    """Seconds until all threads have run all their steps; -1: some wait for ever. Columns as `timed.Steps` has them."""
    threads, steps = len(ptr) - 1, len(wait)
    at, where = ptr[:-1].copy(), np.zeros(threads, np.int8)
    waiting, behind = np.full(len(counters), NOBODY), np.full(threads, NOBODY)  # lists of threads, by counter
    holder, first, last = np.full(locks, NOBODY), np.full(locks, NOBODY), np.full(locks, NOBODY)
    after = np.full(threads, NOBODY)  # lists of threads, by lock
    when, what, events = np.empty(threads + steps + 1), np.empty(threads + steps + 1, np.int64), 0
    active, count = np.empty(threads, np.int64), 0
    remaining, speed = np.empty(threads), np.empty(threads)
    left, users = np.empty(len(rates)), np.empty(len(rates), np.int64)
    ready, ready_count = np.empty(threads + 1, np.int64), 0
    for t in range(threads - 1, -1, -1):
        ready[ready_count] = t
        ready_count += 1
    now, done = 0.0, 0
    while True:
        changed = False
        while ready_count:
            ready_count -= 1
            t = ready[ready_count]
            while True:
                s = at[t]
                if s == ptr[t + 1]:
                    done += 1
                    break
                if where[t] == _WAIT:
                    if wait[s] >= 0 and counters[wait[s]] < need[s]:
                        behind[t] = waiting[wait[s]]
                        waiting[wait[s]] = t
                        break
                    where[t] = _LOCK
                if where[t] == _LOCK:
                    k = lock[s]
                    if k >= 0 and holder[k] != t:
                        if holder[k] == NOBODY:
                            holder[k] = t
                        else:
                            after[t] = NOBODY
                            if first[k] == NOBODY:
                                first[k] = t
                            else:
                                after[last[k]] = t
                            last[k] = t
                            break
                    where[t] = _PAUSE
                    if pause[s] > 0:
                        _push(when, what, events, now + pause[s], t)
                        events += 1
                        break
                if where[t] == _PAUSE:
                    where[t] = _MOVE
                    if size[s] > 0:
                        active[count], remaining[count] = t, size[s]
                        count += 1
                        changed = True
                        break
                if where[t] == _MOVE:
                    where[t] = _END
                k = lock[s]
                if k >= 0:
                    holder[k] = first[k]
                    if first[k] != NOBODY:
                        ready[ready_count] = first[k]
                        ready_count += 1
                        first[k] = after[first[k]]
                if post[s] >= 0:
                    if delay[s] > 0:
                        _push(when, what, events, now + delay[s], threads + post[s])
                        events += 1
                    else:
                        counters[post[s]] += 1
                        other, waiting[post[s]] = waiting[post[s]], NOBODY
                        while other != NOBODY:
                            following = behind[other]
                            ready[ready_count] = other
                            ready_count += 1
                            other = following
                at[t] += 1
                where[t] = _WAIT
        if done == threads:
            return now
        if changed or count:
            _share(active, count, at, cap, one, two, rates, left, users, speed)
        soonest = np.inf
        for i in range(count):
            soonest = min(soonest, remaining[i] / speed[i])
        step = soonest
        if events:
            step = min(step, when[0] - now)
        if step == np.inf:
            return -1.0
        now += step
        kept = 0
        for i in range(count):
            rest = remaining[i] - step * speed[i]
            if rest <= 1e-9 * size[at[active[i]]]:
                ready[ready_count] = active[i]
                ready_count += 1
            else:
                active[kept], remaining[kept] = active[i], rest
                kept += 1
        count = kept
        while events and when[0] <= now * (1 + 1e-12):
            value = _pop(when, what, events)
            events -= 1
            if value < threads:
                ready[ready_count] = value
                ready_count += 1
            else:
                k = value - threads
                counters[k] += 1
                other, waiting[k] = waiting[k], NOBODY
                while other != NOBODY:
                    following = behind[other]
                    ready[ready_count] = other
                    ready_count += 1
                    other = following
