"""What one rank does, step by step: a list that is made before the first byte moves and walked without a decision.

Posting a send costs nothing, and receives wait. So a script says before which wait each send is posted: as soon as its
dependencies are in, but not long before its turn. A message posted early stands in the socket's queue in front of what
is urgent.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError, SimulationError
from optcc.schedule import Schedule

# One rank's part of a schedule.


class Move(NamedTuple):
    """One transfer as its sender or receiver sees it; offset and length in bytes."""

    row: int
    route: int
    peer: int
    offset: int
    length: int
    reduce: bool


@dataclass(frozen=True, eq=False)
class Program:
    """What rank `rank` sends and receives.

    Attributes
    ----------
    sends, receives : row -> its Move
    folds_after : received row -> the received rows whose fold waits for its fold
    """

    rank: int
    sends: Mapping[int, Move]
    receives: Mapping[int, Move]
    folds_after: Mapping[int, list[int]]


def program_of(schedule: Schedule, rank: int, itemsize: int) -> Program:
    """The part of `rank`, for elements of `itemsize` bytes.

    Raises InputError if ranks that know only their own transfers cannot run the schedule: a transfer waits for one that
    ends elsewhere, is empty, or cuts an element.
    """
    sends = _moves(schedule, np.flatnonzero(schedule.src == rank), itemsize, schedule.dst)
    receives = _moves(schedule, np.flatnonzero(schedule.dst == rank), itemsize, schedule.src)
    for row in sends:
        for dep in schedule.deps(row).tolist():
            if dep not in receives:
                raise InputError(
                    f"transfer {row} leaves rank {rank} but waits for transfer {dep}, which does not end there",
                    where="schedule",
                    expected="dependencies that end at the sender",
                    got=f"one that ends at rank {schedule.dst[dep]}",
                )
    folds_after = _fold_order(move for move in receives.values() if move.reduce)
    return Program(rank, sends, receives, folds_after)


def _moves(schedule: Schedule, rows: np.ndarray, itemsize: int, peers: np.ndarray) -> dict[int, Move]:
    offset, length = schedule.offset[rows], schedule.length[rows]
    bad = (length < 1) | (offset % itemsize != 0) | (length % itemsize != 0)
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(
            f"transfer {rows[at]} does not carry whole elements",
            where="schedule",
            expected=f"a multiple of {itemsize} bytes, at least one",
            got=f"{length[at]} bytes at {offset[at]}",
        )
    columns = (rows, schedule.route[rows], peers[rows], offset, length, schedule.reduce[rows])
    return {move[0]: Move(*move) for move in zip(*(column.tolist() for column in columns), strict=True)}


def _fold_order(folds: Iterable[Move]) -> dict[int, list[int]]:
    """Each fold comes after the lower rows that reduce into some of its bytes: by row, which come after it."""
    in_order = sorted(folds)
    edges = sorted({edge for move in in_order for edge in (move.offset, move.offset + move.length)})
    place = {edge: i for i, edge in enumerate(edges)}
    last = [-1] * len(edges)  # the latest fold into the bytes between an edge and the next
    after: dict[int, list[int]] = defaultdict(list)
    for move in in_order:
        span = slice(place[move.offset], place[move.offset + move.length])
        earlier = set(last[span]) - {-1}
        for row in earlier:
            after[row].append(move.row)
        last[span] = [move.row] * (span.stop - span.start)
    return dict(after)


# One order of all transfers that every rank keeps to: what makes an engine without credits safe from deadlock.
#
# torch.distributed matches a send with a receive and no more. A rank that waits for its receives in an order of its
# own can wait for a peer that waits for it. So all ranks follow one total order: no transfer before those it depends
# on, nor a fold before those which the schedule puts first. The first unfinished transfer of that order can then always
# go on: all that its two ends wait for before it has finished. Among the orders that do, it is that of virtual time,
# which keeps the links busy.


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


# One rank's script

LEAD = 4
"""Sends in the queue ahead of their time: what the link carries while the process waits for a processor."""


@dataclass(frozen=True)
class Script:
    """A rank's part of an AllReduce.

    Attributes
    ----------
    receives : in the order in which they are waited for
    sends : before each wait, and after the last: shape (receives + 1), lists of moves
    tags : row -> its tag, the same at both ends
    slot_bytes : the most that a transfer to be folded carries
    """

    receives: tuple[Move, ...]
    sends: tuple[tuple[Move, ...], ...]
    tags: NDArray[np.int32]
    slot_bytes: int


def script_of(
    program: Program, turns: NDArray[np.int32], deps: Mapping[int, Sequence[int]], lead: int = LEAD
) -> Script:
    """The script of `program`'s rank.

    turns : row -> its place in the common order; deps : sent row -> the rows it waits for
    """
    receives = sorted(program.receives.values(), key=lambda move: turns[move.row])
    when = [int(turns[move.row]) for move in receives]
    sends: list[list[Move]] = [[] for _ in range(len(receives) + 1)]
    mine = sorted(program.sends.values(), key=lambda move: turns[move.row])
    latest = 0
    for i, move in enumerate(mine):
        needed = max((bisect_left(when, int(turns[dep])) + 1 for dep in deps[move.row]), default=0)
        due = bisect_left(when, int(turns[mine[i - lead].row])) if i >= lead else 0
        latest = max(latest, due)
        sends[max(needed, latest)].append(move)
    return Script(
        receives=tuple(receives),
        sends=tuple(tuple(moves) for moves in sends),
        tags=turns,
        slot_bytes=max((move.length for move in receives if move.reduce), default=0),
    )


@dataclass(frozen=True)
class Round:
    """What a rank exchanges at once: both lists in the common order."""

    sends: tuple[Move, ...]
    receives: tuple[Move, ...]


def rounds_script(program: Program, turns: NDArray[np.int32], rounds: Sequence[int]) -> tuple[Round, ...]:
    """The rounds of `program`'s rank, those left out in which it has nothing to do."""
    sends: dict[int, list[Move]] = {}
    receives: dict[int, list[Move]] = {}
    for moves, by_round in ((program.sends, sends), (program.receives, receives)):
        for move in sorted(moves.values(), key=lambda move: turns[move.row]):
            by_round.setdefault(rounds[move.row], []).append(move)
    return tuple(
        Round(tuple(sends.get(at, ())), tuple(receives.get(at, ()))) for at in sorted(sends.keys() | receives.keys())
    )
