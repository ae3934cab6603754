"""What goes into the event loop and comes out of it, in columns.

A lane is a chain of resources: resource p is port p sending, ports + p is port p receiving, 2 ports + l is link l.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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


class Fabric(NamedTuple):
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
