"""All ranks of a schedule in one process: each transfer becomes a copy and a fold, in an order that fits the schedule.

A reduce lands in a slot of its receiver and is folded from there, as on a NIC. With `fused`, the fold writes its
result straight to where the next transfer would have carried it: into the next receiver's slot, or into its own buffer
and the next receiver's at once.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optcc.errors import SimulationError
from optcc.runtime.devices import host
from optcc.runtime.devices.host import Array, Reduction
from optcc.runtime.engine.program import program_of
from optcc.schedule import Schedule

SLOTS = 4
"""Slots of a rank before one that has been folded is taken again: later landings need not wait for earlier folds."""


class Place(NamedTuple):
    """Bytes of a rank: of its buffer at `offset` (slot -1), or the first of one of its slots."""

    rank: int
    slot: int
    offset: int
    length: int


class Step(NamedTuple):
    """A copy (own is None: out = source) or a fold (out = own op source; also = the same), and what comes before.

    rank : whose stream runs it; steps of one rank run in their order
    after : earlier steps, by position, that must have finished
    """

    rank: int
    source: Place
    out: Place
    own: Place | None
    also: Place | None
    after: tuple[int, ...]


class Steps(NamedTuple):
    """steps : in an order in which they can run one after another; slot_bytes : rank -> length of each of its slots"""

    steps: tuple[Step, ...]
    slot_bytes: tuple[tuple[int, ...], ...]

    @property
    def traffic(self) -> int:
        """Bytes read and written, counting each operand once."""
        return sum(s.out.length * (2 + (s.own is not None) + (s.also is not None)) for s in self.steps)


def steps_of(schedule: Schedule, itemsize: int, *, fused: bool = False) -> Steps:
    """The steps of a schedule for elements of `itemsize` bytes. Raises what `program_of` raises."""
    programs = [program_of(schedule, rank, itemsize) for rank in range(schedule.ranks)]
    before: list[set[int]] = [set(schedule.deps(row).tolist()) for row in range(len(schedule))]
    for program in programs:
        for row, later in program.folds_after.items():
            for after in later:
                before[after].add(row)
    order = _in_order(before)
    forwards = _forwards(schedule, before) if fused else {}
    forwarded = set(forwards.values())
    slots = _Slots(schedule.ranks)
    steps: list[Step] = []
    finished: dict[int, int] = {}  # row -> the step that finishes it
    landed: dict[int, tuple[int, Place]] = {}  # a reduce that lies in its slot -> the step that put it there, where

    def add(rank: int, source: Place, out: Place, own: Place | None, also: Place | None, after: set[int]) -> int:
        others = sorted(step for step in after if steps[step].rank != rank)
        steps.append(Step(rank, source, out, own, also, tuple(others)))
        return len(steps) - 1

    for row in order:
        src, dst = int(schedule.src[row]), int(schedule.dst[row])
        offset, length = int(schedule.offset[row]), int(schedule.length[row])
        waits = {finished[b] for b in before[row]}
        sent, own = Place(src, -1, offset, length), Place(dst, -1, offset, length)
        if not schedule.reduce[row]:
            if row not in forwarded:  # else its fold has written it, and has finished it
                finished[row] = add(dst, sent, own, None, None, waits)
            continue
        if row not in forwarded:
            slot, free = slots.take(dst, offset, length)
            landed[row] = add(dst, sent, slot, None, None, waits | free), slot
        put, slot = landed.pop(row)
        waits.add(put)
        onward = forwards.get(row)
        if onward is None:
            done = add(dst, slot, own, own, None, waits)
        elif schedule.reduce[onward]:
            there = int(schedule.dst[onward])
            next_slot, free = slots.take(there, offset, length)
            done = add(dst, slot, next_slot, own, None, waits | free)
            landed[onward] = done, next_slot
        else:
            done = add(dst, slot, own, own, Place(int(schedule.dst[onward]), -1, offset, length), waits)
            finished[onward] = done
        slots.give(slot, done)
        finished[row] = done
    return Steps(tuple(steps), tuple(tuple(lengths) for lengths in slots.lengths))


def run_steps(plan: Steps, buffers: Sequence[Array], reduction: Reduction) -> None:
    """Run them one after another in host memory, in place, on one buffer per rank."""
    memory = [[np.empty(n, np.uint8) for n in lengths] for lengths in plan.slot_bytes]
    item = buffers[0].itemsize

    def at(place: Place) -> Array:
        if place.slot < 0:
            return buffers[place.rank][place.offset // item : (place.offset + place.length) // item]
        return memory[place.rank][place.slot][: place.length].view(buffers[place.rank].dtype)

    for step in plan.steps:
        if step.own is None:
            host.copy(at(step.out), at(step.source))
        else:
            also = None if step.also is None else at(step.also)
            host.fold(reduction.fold, at(step.own), at(step.source), at(step.out), also)
    if reduction.mean:
        for buffer in buffers:
            host.divide(buffer, len(buffers))


def _in_order(before: Sequence[set[int]]) -> list[int]:
    """Rows so that each comes after those before it, the lowest of those that may come first."""
    waits = [len(b) for b in before]
    releases: dict[int, list[int]] = defaultdict(list)
    for row, rows in enumerate(before):
        for b in rows:
            releases[b].append(row)
    ready = [row for row, count in enumerate(waits) if count == 0]
    order = []
    while ready:
        row = heapq.heappop(ready)
        order.append(row)
        for after in releases[row]:
            waits[after] -= 1
            if waits[after] == 0:
                heapq.heappush(ready, after)
    if len(order) < len(before):
        raise SimulationError(f"deadlock: {len(before) - len(order)} transfers wait for each other")
    return order


def _forwards(schedule: Schedule, before: Sequence[set[int]]) -> dict[int, int]:
    """Reduce -> the transfer of just its bytes that waits for it alone, which its fold can write by itself.

    A partial result goes on without being kept where it was folded, if nothing but that transfer reads it there before
    a copy brings the total; a total is kept and sent.
    """
    onward: dict[int, int] = {}
    for row in range(len(schedule)):
        if len(before[row]) != 1:
            continue
        (fold,) = before[row]
        same = schedule.offset[row] == schedule.offset[fold] and schedule.length[row] == schedule.length[fold]
        fits = schedule.reduce[fold] and schedule.dst[fold] == schedule.src[row] and same and fold not in onward
        if fits and (not schedule.reduce[row] or _only_passes(schedule, fold, row)):
            onward[fold] = row
    return onward


def _only_passes(schedule: Schedule, fold: int, row: int) -> bool:
    """Whether rank dst[fold] has no use for the folded bytes but to send them as `row`."""
    here, start = schedule.dst[fold], schedule.offset[fold]
    stop = start + schedule.length[fold]
    meets = (schedule.offset < stop) & (schedule.offset + schedule.length > start)
    reduces_out = np.flatnonzero(meets & (schedule.src == here) & schedule.reduce)
    folds_here = np.flatnonzero(meets & (schedule.dst == here) & schedule.reduce)
    covers = (schedule.offset <= start) & (schedule.offset + schedule.length >= stop)
    total = covers & (schedule.dst == here) & ~schedule.reduce
    return reduces_out.tolist() == [row] and int(folds_here[-1]) == fold and bool(total.any())


class _Slots:
    """Each rank's slots, taken again when they have been folded, the one that was folded first before the others."""

    def __init__(self, ranks: int) -> None:
        self.lengths: list[list[int]] = [[] for _ in range(ranks)]
        self._free: list[deque[tuple[int, int]]] = [deque() for _ in range(ranks)]

    def take(self, rank: int, offset: int, length: int) -> tuple[Place, set[int]]:
        """A slot, and the steps that must have finished before it is written."""
        if len(self._free[rank]) and len(self.lengths[rank]) >= SLOTS:
            slot, step = self._free[rank].popleft()
            self.lengths[rank][slot] = max(self.lengths[rank][slot], length)
            return Place(rank, slot, offset, length), {step}
        self.lengths[rank].append(length)
        return Place(rank, len(self.lengths[rank]) - 1, offset, length), set()

    def give(self, place: Place, step: int) -> None:
        """`step` was the last to read it."""
        self._free[place.rank].append((place.slot, step))
