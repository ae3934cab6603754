"""One order of all transfers that every rank keeps to: what makes an engine without credits safe from deadlock.

torch.distributed matches a send with a receive and no more. A rank that waits for its receives in an order of its own
can wait for a peer that waits for it. So all ranks follow one total order: no transfer before those it depends on, nor
a fold before those which the schedule puts first. The first unfinished transfer of that order can then always go on:
all that its two ends wait for before it has finished. Among the orders that do, it is that of virtual time, which keeps
the links busy.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optcc.errors import SimulationError
from optcc.runtime.engine.program import Program
from optcc.schedule import Schedule


def turns_of(schedule: Schedule, programs: list[Program], finish: NDArray[np.float64]) -> NDArray[np.int32]:
    """Row -> its place in the order, shape (rows,).

    programs : of all ranks, which know the order of folds; finish : seconds, row -> when it ends in virtual time
    Raises SimulationError when transfers wait for each other.
    """
    after: dict[int, list[int]] = defaultdict(list)
    waits = np.diff(schedule.dep_ptr).tolist()
    for row in range(len(schedule)):
        for dep in schedule.deps(row).tolist():
            after[dep].append(row)
    for program in programs:
        for row, later in program.folds_after.items():
            after[row] += later
            for fold in later:
                waits[fold] += 1
    times = finish.tolist()
    ready = [(times[row], row) for row, count in enumerate(waits) if count == 0]
    heapq.heapify(ready)
    turns = np.full(len(schedule), -1, np.int32)
    done = 0
    while ready:
        _, row = heapq.heappop(ready)
        turns[row] = done
        done += 1
        for later_row in after[row]:
            waits[later_row] -= 1
            if waits[later_row] == 0:
                heapq.heappush(ready, (times[later_row], later_row))
    if done < len(schedule):
        raise SimulationError(f"deadlock: {len(schedule) - done} transfers wait for each other")
    return turns


@dataclass(frozen=True)
class Rounds:
    """For an engine that exchanges in groups (NCCL): when each transfer is exchanged, and how long the rounds take.

    of : row -> its round, the same at both ends, so that groups never wait for each other in a circle
    seconds : round -> what the busiest port has to do in it
    """

    of: tuple[int, ...]
    seconds: tuple[float, ...]


def rounds_of(schedule: Schedule, programs: list[Program], turns: NDArray[np.int32], length_s: float) -> Rounds:
    """Put every transfer into the first round that is later than those of all it waits for and has room for it.

    A round has room for `length_s` seconds of every port's work, or for one transfer that takes longer.
    """
    before: dict[int, list[int]] = defaultdict(list)
    for program in programs:
        for row, later in program.folds_after.items():
            for fold in later:
                before[fold].append(row)
    load: dict[tuple[int, int, bool], float] = defaultdict(float)
    rounds = [0] * len(schedule)
    for row in np.argsort(turns).tolist():
        # A fold may share the round of the fold before it: one rank does both, in their order.
        at = max((rounds[dep] + 1 for dep in schedule.deps(row).tolist()), default=0)
        at = max([at, *(rounds[fold] for fold in before.get(row, ()))])
        ends = ((int(schedule.src[row]), True), (int(schedule.dst[row]), False))
        seconds = [_seconds(schedule, row, out) for _, out in ends]
        while any(load[at, *end] and load[at, *end] + s > length_s for end, s in zip(ends, seconds, strict=True)):
            at += 1
        for end, s in zip(ends, seconds, strict=True):
            load[at, *end] += s
        rounds[row] = at
    longest = [0.0] * (max(rounds, default=-1) + 1)
    for (at, _, _), s in load.items():
        if s:
            longest[at] = max(longest[at], s)
    return Rounds(tuple(rounds), tuple(longest))


def _seconds(schedule: Schedule, row: int, out: bool) -> float:
    """How long a transfer keeps the ports of one of its ends busy."""
    route = schedule.routes[int(schedule.route[row])]
    ports = {lane.out if out else lane.into for lane in route.lanes}
    rate = sum(schedule.ports[p].out_rate if out else schedule.ports[p].in_rate for p in ports)
    return float(schedule.length[row]) / rate
