"""When each transfer of chunks along trees goes: a list of steps, in each of which every NIC sends and receives one.

In each step, on each rail, a matching of the ranks, so that nobody meets another sender: of all that can go, as many as
possible, and of all such matchings the one in which those go that are furthest behind an even course. Sums of the i-th
of N chunks are due after i/N of the first half of the time, results in the second; what goes between hubs earlier, as
others wait for it. What can go is what has landed. Uplinks carry so many chunks in a step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from optcc.schedule.direct_rows import Ints

HUBS_EARLY,SUMS_EARLY,LANDS=Fraction(10),Fraction(0),2

MOST, NEVER = 2**32, 2**40
"""When nothing is due."""
UNIT = 2**16
"""A step: times are in whole parts of it, so that every rank finds the same."""


class Move(NamedTuple):
    """Step, sender, receiver, rail, chunk, and whether it is a result, not a sum."""

    step: int
    src: int
    dst: int
    rail: int
    chunk: int
    down: bool


def in_steps(
    trees: Sequence[Sequence[int]],
    groups: Sequence[int],
    used: Sequence[Mapping[int, object]],
    uplinks: Sequence[Fraction | None],
) -> list[Move]:
    """All transfers in order of their steps.

    trees : of each chunk, towards whom each rank sends its sum, the last one -1; groups : of each rank, its group; used
    : of each rank the rails that it serves; uplinks : of each group, how many chunks cross its border at a time, each
    way, None: any number
    """
    return _Steps(trees, groups, used, uplinks).found


class _Steps:
    """What can go is kept by pairs of ranks, the earliest due first."""

    def __init__(
        self,
        trees: Sequence[Sequence[int]],
        groups: Sequence[int],
        used: Sequence[Mapping[int, object]],
        uplinks: Sequence[Fraction | None],
    ) -> None:
        from scipy.optimize import linear_sum_assignment  # who only reads or runs plans of other families has no scipy

        self.trees, self.match = trees, linear_sum_assignment
        ranks, chunks = len(groups), len(trees)
        nics = [len(mine) for mine in used]
        self.half = UNIT * max(-(-chunks * (ranks - 1) // sum(nics)), -(-chunks // (2 * min(nics))))
        self.rails = sorted({rail for mine in used for rail in mine})
        self.on = {rail: np.array([r for r, mine in enumerate(used) if rail in mine]) for rail in self.rails}
        self.groups = np.array(groups)
        self.limited = any(link is not None for link in uplinks)
        self.room = [sum(nics) if link is None else max(1, int(link)) for link in uplinks]
        self.ready: dict[tuple[int, int], list[tuple[int, int, bool]]] = defaultdict(list)
        self.due = np.full((ranks, ranks), NEVER)
        self.found: list[Move] = []
        self.children: list[dict[int, list[int]]] = []
        for parents in trees:
            children: dict[int, list[int]] = defaultdict(list)
            for rank, parent in enumerate(parents):
                children[parent].append(rank)
            self.children.append(children)
        self.missing = [{rank: len(own) for rank, own in each.items()} for each in self.children]
        for chunk, parents in enumerate(trees):
            for rank, parent in enumerate(parents):
                if parent >= 0 and rank not in self.children[chunk]:
                    self._offer(rank, parent, chunk, False)
        landing: dict[int, list[Move]] = defaultdict(list)
        step, left = 0, 2 * chunks * (ranks - 1)
        while left:
            for move in landing.pop(step, ()):
                self._landed(move)
            moves = self._step(step)
            landing[step + LANDS] += moves
            self.found += moves
            left -= len(moves)
            step += 1

    def _offer(self, src: int, dst: int, chunk: int, down: bool) -> None:
        """It can go from now on."""
        inner = (dst if down else src) in self.children[chunk]
        early = HUBS_EARLY if inner else 0 if down else SUMS_EARLY
        due = self.half * (chunk + down * len(self.trees)) // len(self.trees) - int(early * UNIT)
        heappush(self.ready[src, dst], (due, chunk, down))
        self._next(src, dst)

    def _next(self, src: int, dst: int) -> None:
        """What two ranks have for each other next."""
        own = self.ready[src, dst]
        self.due[src, dst] = own[0][0] if own else NEVER

    def _landed(self, move: Move) -> None:
        """The receiver may have all that it waits for now."""
        parents, children = self.trees[move.chunk], self.children[move.chunk]
        if not move.down:
            self.missing[move.chunk][move.dst] -= 1
            if self.missing[move.chunk][move.dst]:
                return
            if parents[move.dst] >= 0:
                self._offer(move.dst, parents[move.dst], move.chunk, False)
                return
        for child in children.get(move.dst, ()):
            self._offer(move.dst, child, move.chunk, True)

    def _step(self, step: int) -> list[Move]:
        """What goes in this step, rail by rail."""
        found = []
        crossed: Counter[tuple[int, bool]] = Counter()  # by group and way
        for turn in range(len(self.rails)):
            rail = self.rails[(step + turn) % len(self.rails)]
            here = self.on[rail]
            due = self._with_room(here, crossed, Fraction(turn + 1, len(self.rails)))
            # As many as can go, whenever they are due.
            worth = np.where(due == NEVER, 0, MOST + step * UNIT - due)
            for a, z in zip(*self.match(worth, maximize=True), strict=True):
                if worth[a, z]:
                    src, dst = int(here[a]), int(here[z])
                    _, chunk, down = heappop(self.ready[src, dst])
                    self._next(src, dst)
                    if self.groups[src] != self.groups[dst]:
                        crossed[self.groups[src], True] += 1
                        crossed[self.groups[dst], False] += 1
                    found.append(Move(step, src, dst, rail, chunk, down))
        return found

    def _with_room(self, here: Ints, crossed: Counter[tuple[int, bool]], part: Fraction) -> Ints:
        """When what can go between the ranks of a rail is due, but for what uplinks have no room for: those due first
        have it. crossed : what has crossed in this step; part : of the step, up to this rail"""
        due = self.due[np.ix_(here, here)]
        if not self.limited:
            return due
        src, dst = np.nonzero((due != NEVER) & (self.groups[here][:, None] != self.groups[here][None, :]))
        full = crossed.copy()
        taken = set[tuple[int, bool]]()  # ends that will send or receive, whichever of theirs it is
        for at in np.argsort(due[src, dst], kind="stable").tolist():
            ends = (int(src[at]), True), (int(dst[at]), False)
            new = [(end, (int(self.groups[here[end[0]]]), end[1])) for end in ends if end not in taken]
            if all(full[link] + 1 <= self.room[link[0]] * part for _, link in new):
                taken.update(end for end, _ in new)
                full.update(link for _, link in new)
            else:
                due[src[at], dst[at]] = NEVER
        return due
