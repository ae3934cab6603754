"""The simulator's inner loop, compiled: events in a heap, one heap of ready stripes per sending port.

All times are int64 ticks; ties are broken by event and number, so a run is deterministic. All that is compiled is in
this file, because what is kept looks at no other when it decides whether to compile again. What goes into it and
comes out is in columns; a lane is a chain of resources: resource p is port p sending, ports + p is port p receiving,
2 ports + l is link l.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.machine.kernels import Kernels


class Work(NamedTuple):
    """What is to be sent: the stripes of `Stripes`, and the schedule's dependencies turned round.

    row, lane : int32 (stripes,); length : int64 bytes; ptr : int64 (rows + 1,)
    missing : int64 (rows,), how many transfers each one waits for; dependents_ptr, dependents : CSR of who waits for it
    """

    row: NDArray[np.int32]
    lane: NDArray[np.int32]
    length: NDArray[np.int64]
    ptr: NDArray[np.int64]
    missing: NDArray[np.int64]
    dependents_ptr: NDArray[np.int64]
    dependents: NDArray[np.int64]


class Resources(NamedTuple):
    """What it is sent over, and what becomes of that.

    chain_ptr, chain : CSR lane -> its resources in order
    rate : float64 (resources,), bytes per second; fixed : int64, ticks spent on each stripe before its first byte
    change_ptr, change_at, change_rate : CSR resource -> when its rate falls, and to what, ascending in time
    dies, noticed : int64 (resources,), when its rate falls to 0 and when that is noticed, else NEVER
    notices : int64 (k,), ascending; after the first i of them a stripe of lane l goes by lane detour[i, l], -1: by none
    room : int64 (ports,), how many stripes can ever wait for each port
    """

    ports: int
    alpha: int
    chain_ptr: NDArray[np.int64]
    chain: NDArray[np.int32]
    rate: NDArray[np.float64]
    fixed: NDArray[np.int64]
    change_ptr: NDArray[np.int64]
    change_at: NDArray[np.int64]
    change_rate: NDArray[np.float64]
    dies: NDArray[np.int64]
    noticed: NDArray[np.int64]
    notices: NDArray[np.int64]
    detour: NDArray[np.int32]
    room: NDArray[np.int64]


class Times(NamedTuple):
    """What `run_events` fills in; seconds, except for `finish`.

    finish : int64 ticks (rows,), of what has landed so far; parts : int64 (rows,), stripes that have not landed
    out_begin, out_end, in_begin, in_end : float64 (stripes,), service by the ports; via : int32, the lane they went by
    log_stripe, log_at, log_begin, log_end : crossings of links, and services by ports that were lost
    queue : float64 (resources, 4), of links and receiving ports that serve packets; no rows if none do. Columns: what
        waits and what comes in a tick, in ticks of work at the rate it began with; stripes that come; ticks worked
    """

    finish: NDArray[np.int64]
    parts: NDArray[np.int64]
    out_begin: NDArray[np.float64]
    out_end: NDArray[np.float64]
    in_begin: NDArray[np.float64]
    in_end: NDArray[np.float64]
    via: NDArray[np.int32]
    log_stripe: NDArray[np.int32]
    log_at: NDArray[np.int32]
    log_begin: NDArray[np.float64]
    log_end: NDArray[np.float64]
    queue: NDArray[np.float64]


class Ways(NamedTuple):
    """How far stripes that go as packets have come: a column for each place of the longest lane but the first.

    pace : float64 (stripes, places), what a stripe that comes there adds to what comes in a tick
    first, last : int64 ticks, when its first byte came there and when its last one will, 0: not known; no rows without
        links
    """

    pace: NDArray[np.float64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


KERNELS = Kernels("simulator", "the simulator", 20)
TICKS_PER_S = 10**12
LAST = 10**18  # ticks: what ends later is refused, so that no sum of two times overflows
NEVER = 2**62
DONE, TOO_LONG, NO_WAY = 0, 1, 2
_FREE, _ARRIVES, _FINISHED, _AGAIN, _NOTICED, _PREPARES, _COMES, _KINDS = 0, 1, 2, 3, 4, 5, 6, 7
_CAME = -(2**62)  # plus a stripe at a place: its last byte is there. Below all other events: first of its instant
_LONGEST_CHAIN = 8  # port, pod, spine, spine, pod, port
_GRID, _STEEP = 2.0**40, 2.0**10  # paces are multiples of 1 / _GRID up to _STEEP: their sums are exact
_BACKLOG, _INFLOW, _COMING, _WORKED = 0, 1, 2, 3  # columns of a queue


@KERNELS.compiled()
def waiting_rows(dep_ptr: Any, dep_idx: Any) -> Any:
    """CSR (ptr, idx), the other way round: the rows that wait for each row, ascending."""
    ptr = np.zeros(len(dep_ptr), np.int64)
    for row in dep_idx:
        ptr[row + 1] += 1
    for row in range(len(ptr) - 1):
        ptr[row + 1] += ptr[row]
    idx, at = np.empty(len(dep_idx), np.int64), ptr[:-1].copy()
    for row in range(len(ptr) - 1):
        for place in range(dep_ptr[row], dep_ptr[row + 1]):
            idx[at[dep_idx[place]]] = row
            at[dep_idx[place]] += 1
    return ptr, idx


@KERNELS.compiled()
def _push(keys: Any, values: Any, size: int, key: int, value: int) -> None:
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] < key or (keys[parent] == key and values[parent] <= value):
            break
        keys[i], values[i] = keys[parent], values[parent]
        i = parent
    keys[i], values[i] = key, value


@KERNELS.compiled()
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


@KERNELS.compiled(error_model="numpy")
def _ticks(nbytes: float, rate: float) -> int:
    ticks = np.ceil(nbytes / rate * TICKS_PER_S)
    return int(ticks) if ticks <= LAST else LAST + 1


@KERNELS.compiled()
def _rate(now: int, r: int, f: Resources) -> float:
    """The rate of resource `r` at `now`."""
    rate = f.rate[r]
    for c in range(f.change_ptr[r], f.change_ptr[r + 1]):
        if f.change_at[c] <= now:
            rate = f.change_rate[c]
    return float(rate)


@KERNELS.compiled()
def _served(begin: int, nbytes: int, r: int, f: Resources) -> int:
    """When resource `r` is through with a stripe that it starts to serve at `begin`; NEVER: it dies first."""
    now, rate, left = begin + f.fixed[r], f.rate[r], float(nbytes)
    for c in range(f.change_ptr[r], f.change_ptr[r + 1]):
        at = f.change_at[c]
        if at > now:
            end = now + _ticks(left, rate)
            if end <= at:
                return int(end)
            left = max(0.0, left - (at - now) * rate / TICKS_PER_S)
            now = at
        rate = f.change_rate[c]
        if rate == 0:
            return NEVER
    return int(now + _ticks(left, rate))


@KERNELS.compiled()
def _may_follow(head: int, end: int, nbytes: int, r: int, f: Resources) -> int:
    """When the next resource, `r`, may start on a stripe whose first byte is there at `head` and whose last at `end`.

    Not so early that it would serve the first byte or the last before that. Those in between come no later than at an
    even pace, and rates only fall. So the two, and the present rate, suffice.
    """
    rate = _rate(head, r, f)
    return int((max(head, end - _ticks(nbytes, rate)) if rate > 0 else head) - f.fixed[r])


@KERNELS.compiled(inline="always")
def _flow(ticks: int, speed: float, r: int, queue: Any) -> None:
    """Let `ticks` pass at resource `r`, which works off `speed` ticks of work in each of them."""
    was, inflow = queue[r, _BACKLOG], queue[r, _INFLOW]
    backlog = was + (inflow - speed) * ticks
    full = float(ticks)  # how long it had as much to do as it can
    if backlog < 0:
        full, backlog = was / (speed - inflow), 0.0
    if speed > 0:
        queue[r, _WORKED] += full + (ticks - full) * inflow / speed
    queue[r, _BACKLOG] = backlog


@KERNELS.compiled()
def _flow_by_steps(now: int, r: int, f: Resources, queue: Any, since: Any) -> None:
    """Bring the queue of a resource whose rate changes to `now`."""
    then, speed = since[r], 1.0
    for c in range(f.change_ptr[r], f.change_ptr[r + 1]):
        at = f.change_at[c]
        if at >= now:
            break
        if at > then:
            _flow(at - then, speed, r, queue)
            then = at
        speed = f.change_rate[c] / f.rate[r]
    _flow(now - then, speed, r, queue)
    since[r] = now


@KERNELS.compiled(inline="always")
def _catch_up(now: int, r: int, f: Resources, queue: Any, since: Any) -> None:
    """Bring the queue of resource `r` to `now`."""
    if f.change_ptr[r] < f.change_ptr[r + 1]:
        _flow_by_steps(now, r, f, queue, since)
    else:
        _flow(now - since[r], 1.0, r, queue)
        since[r] = now


@KERNELS.compiled()
def _through_by_steps(now: int, work: float, r: int, f: Resources) -> int:
    speed = 1.0
    for c in range(f.change_ptr[r], f.change_ptr[r + 1]):
        at = f.change_at[c]
        if at > now:
            if now + work / speed <= at:
                break
            work = max(0.0, work - (at - now) * speed)
            now = at
        speed = f.change_rate[c] / f.rate[r]
        if speed == 0:
            return NEVER
    left = np.ceil(work / speed)
    return int(now + left) if left <= LAST else LAST + 1


@KERNELS.compiled(inline="always")
def _through(now: int, work: float, r: int, f: Resources) -> int:
    """When resource `r` is through with `work` that waits there at `now`; NEVER: it dies first."""
    end = LAST + 1
    if f.change_ptr[r] < f.change_ptr[r + 1]:
        end = _through_by_steps(now, work, r, f)
    elif work <= LAST:
        end = now + int(np.ceil(work))
    return end


@KERNELS.compiled(error_model="numpy")
def _pace(nbytes: int, rate: float, ticks: int) -> float:
    """What a stripe that comes evenly in `ticks` adds to an inflow; 0: so much that it may as well come at once."""
    pace = float(np.ceil(nbytes / rate * TICKS_PER_S / ticks * _GRID) / _GRID)
    return pace if pace <= _STEEP else 0.0


@KERNELS.compiled()
def _follow(
    now: int, s: int, place: int, lane: int, nbytes: int, f: Resources, queue: Any, since: Any, way: Ways
) -> None:
    """The first byte of a stripe comes from a link to the next place of its lane: at which pace the rest will."""
    i, c = place - 1, f.chain_ptr[lane]
    if way.last[s, i] == 0:  # more comes to the link: it leaves when that is through, if nothing else comes there
        link = f.chain[c + i]
        _catch_up(now, link, f, queue, since)
        end = way.last[s, i - 1]
        waits = max(0.0, queue[link, _BACKLOG] + (queue[link, _INFLOW] - 1) * (end - now))
        way.last[s, i] = max(now + 1, _through(end, waits, link, f))
    way.pace[s, i] = _pace(nbytes, f.rate[f.chain[c + place]], way.last[s, i] - now)


@KERNELS.compiled()
def _leave(now: int, s: int, place: int, lane: int, end: int, f: Resources, queue: Any, since: Any, way: Ways) -> None:
    """The last byte of a stripe is at a link, and leaves it at `end`. The rest of the stripe at later places is
    rescheduled so that it arrives at `end`, and not at the expected time."""
    c = f.chain_ptr[lane]
    for i in range(place, f.chain_ptr[lane + 1] - c - 1):
        was, at = way.pace[s, i], f.chain[c + i + 1]
        if way.last[s, i] > 0:
            end = max(end, way.last[s, i]) if i > place else end
            _catch_up(now, at, f, queue, since)
            left = was * (way.last[s, i] - now)
            if left <= (end - now) * _STEEP and end > now:
                way.pace[s, i] = np.ceil(left / (end - now) * _GRID) / _GRID
            else:
                way.pace[s, i] = 0
                queue[at, _BACKLOG] += left
            queue[at, _INFLOW] += way.pace[s, i] - was
        elif i > place:
            break
        way.last[s, i] = end


@KERNELS.compiled()
def run_events(w: Work, f: Resources, t: Times, packets: bool, by_row: bool) -> tuple[int, int, int, int]:
    """Fill `t`; links and receiving ports serve `packets`, or else whole stripes. A sending port serves the lowest row
    that is ready, `by_row`, or else what has been ready for longest.

    Returns (DONE, TOO_LONG or NO_WAY; the stripe it is about; ticks; entries of the log).
    """
    rows, stripes, ports = len(w.ptr) - 1, len(w.row), f.ports
    waiting = w.missing.copy()
    free = np.zeros(len(f.rate), np.int64)
    base = np.zeros(ports + 1, np.int64)  # the heap of port p lives in ready[base[p]:base[p + 1]]
    base[1:] = np.cumsum(f.room)
    ready, key = np.empty(base[ports], np.int32), np.empty(base[ports], np.int64)  # stripes, the least key first
    ready_size = np.zeros(ports, np.int64)

    # At any time a port has one event, a transfer one, a stripe one; as packets, up to three.
    most = ports + (3 if packets else 1) * stripes + rows + len(f.notices) + 1
    event_key, event = np.empty(most, np.int64), np.empty(most, np.int64)
    events, logged, noticed = 0, 0, 0
    touched, is_touched = np.arange(ports), np.ones(ports, np.bool_)
    touched_count = ports
    fresh = np.empty(stripes, np.int32)  # stripes that became ready in this instant
    fresh_count = 0
    # On the links: when a stripe's first byte was through the last one, and from when the next resource may serve it.
    links = len(f.rate) > 2 * ports
    head = np.zeros(stripes if links and not packets else 0, np.int64)
    follows = np.zeros(len(head), np.int64)
    places = np.diff(f.chain_ptr).max() - 1 if packets and stripes else 0
    way = Ways(
        np.zeros((stripes if packets else 0, places)),
        np.zeros((stripes if packets and links else 0, places), np.int64),
        np.zeros((stripes if packets and links else 0, places), np.int64),
    )
    pace, queue = way.pace, t.queue
    since = np.zeros(len(queue), np.int64)
    for i in range(len(f.notices)):
        _push(event_key, event, events, f.notices[i], _NOTICED)
        events += 1
    for r in range(rows):
        if waiting[r] == 0:
            for s in range(w.ptr[r], w.ptr[r + 1]):
                fresh[fresh_count] = s
                fresh_count += 1

    now = 0
    while True:
        for i in range(fresh_count):
            s = fresh[i]
            lane = f.detour[noticed, w.lane[s]]
            if lane < 0:
                return NO_WAY, s, now, logged
            p = f.chain[f.chain_ptr[lane]]
            heap, keys = ready[base[p] : base[p + 1]], key[base[p] : base[p + 1]]
            _push(keys, heap, ready_size[p], s if by_row else now, s)
            ready_size[p] += 1
            if not is_touched[p]:
                is_touched[p] = True
                touched[touched_count] = p
                touched_count += 1
        fresh_count = 0
        # Start sends only after everything of this instant has happened, so that priority sees all that is ready.
        for i in range(touched_count):
            p = touched[i]
            is_touched[p] = False
            if free[p] > now or ready_size[p] == 0 or f.dies[p] <= now:
                continue
            heap, keys = ready[base[p] : base[p + 1]], key[base[p] : base[p + 1]]
            s = _pop(keys, heap, ready_size[p])
            ready_size[p] -= 1
            lane = f.detour[noticed, w.lane[s]]
            end = _served(now, w.length[s], p, f)
            if end == NEVER:
                t.log_stripe[logged], t.log_at[logged] = s, p
                t.log_begin[logged], t.log_end[logged] = now / TICKS_PER_S, f.dies[p] / TICKS_PER_S
                logged += 1
                free[p] = NEVER
                _push(event_key, event, events, f.noticed[p], s * _LONGEST_CHAIN * _KINDS + _AGAIN)
                events += 1
                continue
            if end > LAST:
                return TOO_LONG, s, now, logged
            free[p] = end
            if noticed > 0:
                t.via[s] = lane
            t.out_begin[s], t.out_end[s] = now / TICKS_PER_S, end / TICKS_PER_S
            _push(event_key, event, events, end, p * _KINDS + _FREE)
            events += 1
            first, at = now + f.fixed[p] + f.alpha, f.chain[f.chain_ptr[lane] + 1]
            if packets:
                pace[s, 0] = _pace(w.length[s], f.rate[at], end + f.alpha - first)
                if links:
                    way.last[s, :] = 0
                    way.last[s, 0] = end + f.alpha
                _push(event_key, event, events, first, (s * _LONGEST_CHAIN + 1) * _KINDS + _COMES)
                _push(event_key, event, events + 1, end + f.alpha, s * _LONGEST_CHAIN + 1 + _CAME)
                events += 2
                if f.fixed[p] > 0:
                    _push(event_key, event, events, now + f.alpha, s * _LONGEST_CHAIN * _KINDS + _PREPARES)
                    events += 1
                continue
            follow = _may_follow(now + f.fixed[p], end, w.length[s], at, f) + f.alpha
            if f.chain_ptr[lane + 1] - f.chain_ptr[lane] > 2:
                head[s] = first
            _push(event_key, event, events, follow, (s * _LONGEST_CHAIN + 1) * _KINDS + _ARRIVES)
            events += 1
        touched_count = 0
        if events == 0:
            for r in range(ports, len(queue)):
                _catch_up(now, r, f, queue, since)
            return DONE, -1, now, logged
        now = event_key[0]
        while events > 0 and event_key[0] == now:
            what = _pop(event_key, event, events)
            events -= 1
            kind, i = what % _KINDS, what // _KINDS
            if what < 0:
                s, place = (what - _CAME) // _LONGEST_CHAIN, (what - _CAME) % _LONGEST_CHAIN
                lane = t.via[s]
                at = f.chain[f.chain_ptr[lane] + place]
                _catch_up(now, at, f, queue, since)
                queue[at, _COMING] -= 1
                # What is left of a sum once all is taken off again is rounding.
                queue[at, _INFLOW] = queue[at, _INFLOW] - pace[s, place - 1] if queue[at, _COMING] > 0 else 0.0
                pace[s, place - 1] = 0
                end = _through(now, queue[at, _BACKLOG], at, f)
                if end == NEVER:
                    t.log_stripe[logged], t.log_at[logged] = s, f.chain[f.chain_ptr[lane]]
                    t.log_begin[logged], t.log_end[logged] = t.out_begin[s], t.out_end[s]
                    logged += 1
                    if t.in_begin[s] < f.dies[at] / TICKS_PER_S:
                        t.log_stripe[logged], t.log_at[logged] = s, at
                        t.log_begin[logged], t.log_end[logged] = t.in_begin[s], f.dies[at] / TICKS_PER_S
                        logged += 1
                    again = max(now, f.noticed[at])
                    _push(event_key, event, events, again, s * _LONGEST_CHAIN * _KINDS + _AGAIN)
                    events += 1
                    continue
                if end > LAST:
                    return TOO_LONG, s, now, logged
                if f.chain_ptr[lane] + place + 1 < f.chain_ptr[lane + 1]:
                    end = max(end, way.first[s, place] + 1)
                    _leave(now, s, place, lane, end, f, queue, since, way)
                    t.log_stripe[logged], t.log_at[logged] = s, at
                    t.log_begin[logged], t.log_end[logged] = way.first[s, place] / TICKS_PER_S, end / TICKS_PER_S
                    logged += 1
                    _push(event_key, event, events, end, what + 1)
                    events += 1
                    continue
                t.in_end[s] = end / TICKS_PER_S
                r = w.row[s]
                t.finish[r] = max(t.finish[r], end)
                t.parts[r] -= 1
                if t.parts[r] == 0:
                    _push(event_key, event, events, t.finish[r], r * _KINDS + _FINISHED)
                    events += 1
            elif kind == _COMES:
                s, place = i // _LONGEST_CHAIN, i % _LONGEST_CHAIN
                lane = t.via[s]
                at = f.chain[f.chain_ptr[lane] + place]
                if place > 1:
                    _follow(now, s, place, lane, w.length[s], f, queue, since, way)
                _catch_up(now, at, f, queue, since)
                end = _through(now, queue[at, _BACKLOG], at, f)
                queue[at, _COMING] += 1
                queue[at, _INFLOW] += pace[s, place - 1]
                if pace[s, place - 1] == 0:
                    queue[at, _BACKLOG] += w.length[s] / f.rate[at] * TICKS_PER_S
                if f.chain_ptr[lane] + place + 1 < f.chain_ptr[lane + 1]:
                    way.first[s, place] = end
                    _push(event_key, event, events, end, (i + 1) * _KINDS + _COMES)
                    events += 1
                elif f.fixed[at] == 0:
                    t.in_begin[s] = end / TICKS_PER_S
            elif kind == _PREPARES:
                s = i // _LONGEST_CHAIN
                at = f.chain[f.chain_ptr[t.via[s] + 1] - 1]
                _catch_up(now, at, f, queue, since)
                t.in_begin[s] = _through(now, queue[at, _BACKLOG], at, f) / TICKS_PER_S
                queue[at, _BACKLOG] += f.fixed[at] * _rate(now, at, f) / f.rate[at]
            elif kind == _FREE:
                if not is_touched[i]:
                    is_touched[i] = True
                    touched[touched_count] = i
                    touched_count += 1
            elif kind == _ARRIVES:
                s, place = i // _LONGEST_CHAIN, i % _LONGEST_CHAIN
                lane = t.via[s]
                at = f.chain[f.chain_ptr[lane] + place]
                # A link is claimed as late as its rate allows; what follows it may start before that, if nothing else
                # has claimed it since, and still ends no earlier than now.
                begin = max(now if place == 1 else follows[s], free[at])
                end = _served(begin, w.length[s], at, f)
                if end == NEVER:  # what was sent is lost with what was received
                    p = f.chain[f.chain_ptr[lane]]
                    t.log_stripe[logged], t.log_at[logged] = s, p
                    t.log_begin[logged], t.log_end[logged] = t.out_begin[s], t.out_end[s]
                    logged += 1
                    if begin < f.dies[at]:
                        t.log_stripe[logged], t.log_at[logged] = s, at
                        t.log_begin[logged], t.log_end[logged] = begin / TICKS_PER_S, f.dies[at] / TICKS_PER_S
                        logged += 1
                        free[at] = f.dies[at]
                    again = max(now, f.noticed[at])
                    _push(event_key, event, events, again, s * _LONGEST_CHAIN * _KINDS + _AGAIN)
                    events += 1
                    continue
                if end > LAST:
                    return TOO_LONG, s, now, logged
                before, free[at] = free[at], end
                if f.chain_ptr[lane] + place + 1 < f.chain_ptr[lane + 1]:
                    t.log_stripe[logged], t.log_at[logged] = s, at
                    t.log_begin[logged], t.log_end[logged] = begin / TICKS_PER_S, end / TICKS_PER_S
                    logged += 1
                    head[s] = max(head[s], before)
                    follows[s] = _may_follow(head[s], end, w.length[s], f.chain[f.chain_ptr[lane] + place + 1], f)
                    _push(event_key, event, events, max(now, follows[s]), (i + 1) * _KINDS + _ARRIVES)
                    events += 1
                    continue
                t.in_begin[s], t.in_end[s] = begin / TICKS_PER_S, end / TICKS_PER_S
                r = w.row[s]
                t.finish[r] = max(t.finish[r], end)
                t.parts[r] -= 1
                if t.parts[r] == 0:
                    _push(event_key, event, events, t.finish[r], r * _KINDS + _FINISHED)
                    events += 1
            elif kind == _FINISHED:
                for d in range(w.dependents_ptr[i], w.dependents_ptr[i + 1]):
                    r = w.dependents[d]
                    waiting[r] -= 1
                    if waiting[r] == 0:
                        for s in range(w.ptr[r], w.ptr[r + 1]):
                            fresh[fresh_count] = s
                            fresh_count += 1
            elif kind == _AGAIN:
                fresh[fresh_count] = i // _LONGEST_CHAIN
                fresh_count += 1
            else:  # a dead port is noticed: everything that waits finds its way anew
                noticed += 1
                for p in range(ports):
                    for j in range(base[p], base[p] + ready_size[p]):
                        fresh[fresh_count] = ready[j]
                        fresh_count += 1
                    ready_size[p] = 0
