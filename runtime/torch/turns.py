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


def lanes_of(schedule: Schedule, turns: NDArray[np.int32], lanes: int) -> NDArray[np.int32]:
    """Row -> its lane, shape (rows,): transfers of different lanes never touch the same bytes of the buffer.

    What overlaps is one part. Parts are dealt out in the order of their first turn, so that at any time all lanes have
    something to do; a schedule of fewer parts has fewer lanes.
    """
    begin = schedule.offset.astype(np.int64)
    order = np.argsort(begin, kind="stable")
    reached = np.maximum.accumulate(np.append(0, (begin + schedule.length)[order]))[:-1]
    part = np.empty(len(schedule), np.int64)
    part[order] = np.cumsum(begin[order] >= reached) - 1
    part -= part.min(initial=0)
    first = np.full(part.max(initial=-1) + 1, len(schedule), np.int64)
    np.minimum.at(first, part, turns)
    dealt = np.empty(len(first), np.int32)
    dealt[np.argsort(first)] = np.arange(len(first)) % lanes
    return dealt[part]


@dataclass(frozen=True)
class Rounds:
    """For an engine that exchanges in groups (NCCL): when each transfer is exchanged.

    A round begins when the one before it is over, and until its first bytes arrive ports stand idle. So there are
    lanes, each with a communicator and rounds of its own: others move bytes meanwhile.

    of : row -> its round in its lane, the same at both ends, so that groups never wait for each other in a circle
    lane : row -> its lane
    """

    of: tuple[int, ...]
    lane: tuple[int, ...]


def rounds_of(
    schedule: Schedule, programs: list[Program], turns: NDArray[np.int32], length_s: float, lanes: int = 1
) -> Rounds:
    """Put every transfer into the first round of its lane that is later than those of all it waits for, and has room.

    A round has room for `length_s` seconds of every port's work, or for one transfer that takes longer. A transfer does
    not wait for one of another lane: it needs no bytes of that, it would only be paced by it.
    """
    before: dict[int, list[int]] = defaultdict(list)
    for program in programs:
        for row, later in program.folds_after.items():
            for fold in later:
                before[fold].append(row)
    lane = lanes_of(schedule, turns, lanes).tolist()
    load: dict[tuple[int, int, int, bool], float] = defaultdict(float)
    rounds = [0] * len(schedule)
    for row in np.argsort(turns).tolist():
        # A fold may share the round of the fold before it: one rank does both, in their order.
        mine = lane[row]
        at = max((rounds[dep] + 1 for dep in schedule.deps(row).tolist() if lane[dep] == mine), default=0)
        at = max([at, *(rounds[fold] for fold in before.get(row, ()))])
        ends = ((int(schedule.src[row]), True), (int(schedule.dst[row]), False))
        seconds = [_seconds(schedule, row, out) for _, out in ends]
        while any(
            load[mine, at, *end] and load[mine, at, *end] + s > length_s for end, s in zip(ends, seconds, strict=True)
        ):
            at += 1
        for end, s in zip(ends, seconds, strict=True):
            load[mine, at, *end] += s
        rounds[row] = at
    return Rounds(tuple(rounds), tuple(lane))


def in_rounds(schedule: Schedule, rounds: Rounds, turns: NDArray[np.int32]) -> Schedule:
    """`schedule` as it is exchanged, to be simulated: each transfer waits for the rounds before at both of its ends.

    Its rows are those of `schedule` by round.
    """
    order = np.lexsort((turns, np.array(rounds.of)))
    last: dict[tuple[int, int], tuple[int, list[int], list[int]]] = {}
    """Rank and lane -> its latest round, the rows of that, and those of the one before."""
    deps: list[int] = []
    ptr = [0]
    for row, old in enumerate(order.tolist()):
        waits = set()
        for rank in {int(schedule.src[old]), int(schedule.dst[old])}:
            at, rows, before = last.get((rank, rounds.lane[old]), (-1, [], []))
            if at < rounds.of[old]:
                at, rows, before = rounds.of[old], [], rows
            rows.append(row)
            last[rank, rounds.lane[old]] = at, rows, before
            waits.update(before)
        deps += sorted(waits)
        ptr.append(len(deps))
    columns = {
        name: getattr(schedule, name)[order] for name in ("route", "offset", "length", "reduce", "stage", "segment")
    }
    return schedule.replace(dep_ptr=np.array(ptr, np.int64), dep_idx=np.array(deps, np.int64), **columns)


def _seconds(schedule: Schedule, row: int, out: bool) -> float:
    """How long a transfer keeps the ports of one of its ends busy."""
    route = schedule.routes[int(schedule.route[row])]
    ports = {lane.out if out else lane.into for lane in route.lanes}
    rate = sum(schedule.ports[p].out_rate if out else schedule.ports[p].in_rate for p in ports)
    return float(schedule.length[row]) / rate
