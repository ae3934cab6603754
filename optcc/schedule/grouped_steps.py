"""When each transfer of chunks along trees goes: steps, in each of which every NIC sends a chunk and receives one.

A step is a matching of the ranks on each rail, so no two senders share a receiver. It has as many of the ready
transfers as possible, and of these the ones furthest behind an even schedule. Sums of the i-th of N chunks are due
after i/N of the first half of the time, results after i/N of the second; transfers that others must pass on are due
before. A transfer is ready when its data has landed. Uplinks carry a limited number of chunks in a step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from optcc.schedule.direct_rows import Ints
from optcc.schedule.tuned import LANDS

UNIT = 2**16
"""Units of time in a step: whole numbers, so that every rank finds the same steps."""
ONE_MORE, NEVER = 2**32, 2**40
"""Weight of one more transfer, above all due times; due time of nothing."""


class GroupMove(NamedTuple):
    """A transfer of a chunk on a rail in a step; `down`: of its result, not of a sum."""

    step: int
    src: int
    dst: int
    rail: int
    chunk: int
    down: bool


def in_steps(
    trees: Sequence[Sequence[int]],
    groups: Sequence[int],
    used: Sequence[Iterable[int]],
    uplinks: Sequence[Fraction | None],
    apart: int | None,
) -> list[GroupMove]:
    """All transfers, in order of steps.

    trees : of each chunk, towards whom each rank sends its sum, the last one -1; groups : of each rank its group, 0 to
    G-1; used : of each rank the rails that it serves, any two ranks one in common; uplinks : of each group, how many
    chunks cross its border at a time, each way, None: any number; apart : the rank that adds last of all to the first
    half of the chunks, None: there is none
    """
    return _Steps(trees, groups, used, uplinks, apart).found


class _Steps:
    """The ready transfers between each two ranks, the first one due first."""

    def __init__(
        self,
        trees: Sequence[Sequence[int]],
        groups: Sequence[int],
        used: Sequence[Iterable[int]],
        uplinks: Sequence[Fraction | None],
        apart: int | None,
    ) -> None:
        from optcc.schedule.compiled import assigned  # with numba, which other families' plans do without

        self.trees, self.groups, self.apart, self.assigned = trees, groups, apart, assigned
        ranks, served = len(groups), [{*rails} for rails in used]
        nics = [len(rails) for rails in served]
        self.half = UNIT * max(-(-len(trees) * (ranks - 1) // sum(nics)), -(-len(trees) // (2 * min(nics))))
        rails = sorted(set().union(*served))
        self.on = {rail: np.array([r for r in range(ranks) if rail in served[r]]) for rail in rails}
        self.uplinks = [None if link is None else max(1, int(link)) for link in uplinks]
        self.crossing = np.not_equal.outer(np.array(groups), np.array(groups))
        self.children: list[Mapping[int, list[int]]] = []
        self.missing: list[dict[int, int]] = []
        self.ready: dict[tuple[int, int], list[tuple[int, int, bool]]] = defaultdict(list)
        self.due = np.full((ranks, ranks), NEVER)
        self.found: list[GroupMove] = []
        for chunk, parents in enumerate(trees):
            children: dict[int, list[int]] = {}
            for rank, parent in enumerate(parents):
                children.setdefault(parent, []).append(rank)
            self.children.append(children)
            self.missing.append({rank: len(own) for rank, own in children.items()})
            for rank, parent in enumerate(parents):
                if rank not in children:
                    self._offer(rank, parent, chunk, False)
        landing: dict[int, list[GroupMove]] = defaultdict(list)
        step, left = 0, 2 * len(trees) * (ranks - 1)
        while left:
            for move in landing.pop(step, ()):
                self._landed(move)
            moves = self._step(step, rails[step % len(rails) :] + rails[: step % len(rails)])
            landing[step + LANDS] += moves
            self.found += moves
            step, left = step + 1, left - len(moves)

    def _offer(self, src: int, dst: int, chunk: int, down: bool) -> None:
        """The transfer is ready from now on."""
        count, passed_on = len(self.trees), (dst if down else src) in self.children[chunk]
        if self.apart is None:
            place, of = chunk, count
        elif self.apart in (src, dst):  # it serves both halves of the chunks all the time
            of = (count + 1) // 2
            place, passed_on = chunk % of, True
        else:  # first sums that it adds last to, and their results last
            place, of = (chunk + down * (count // 2)) % count, count
        # What is passed on has three hops left, each of LANDS steps.
        due = self.half * down + self.half * place // of - 3 * LANDS * UNIT * passed_on
        heappush(self.ready[src, dst], (due, chunk, down))
        self.due[src, dst] = self.ready[src, dst][0][0]

    def _landed(self, move: GroupMove) -> None:
        """The receiver may now have everything that it waits for."""
        rank, chunk, parents = move.dst, move.chunk, self.trees[move.chunk]
        if not move.down:
            self.missing[chunk][rank] -= 1
            if self.missing[chunk][rank]:
                return
            if parents[rank] >= 0:
                self._offer(rank, parents[rank], chunk, False)
                return
        for child in self.children[chunk].get(rank, ()):
            self._offer(rank, child, chunk, True)

    def _step(self, step: int, rails: Sequence[int]) -> list[GroupMove]:
        """The transfers of this step, rail by rail."""
        found: list[GroupMove] = []
        crossed: Counter[tuple[int, bool]] = Counter()  # by group, and whether it leaves
        for turn, rail in enumerate(rails):
            here = self.on[rail]
            due = self.due[np.ix_(here, here)]
            if any(self.uplinks):
                self._keep_room(due, here, crossed, Fraction(turn + 1, len(rails)))
            can = due != NEVER
            into = self.assigned(np.where(can, ONE_MORE + step * UNIT - due, 0))
            goes = can[np.arange(len(here)), into]
            for src, dst in zip(here[goes].tolist(), here[into[goes]].tolist(), strict=True):
                own = self.ready[src, dst]
                _, chunk, down = heappop(own)
                self.due[src, dst] = own[0][0] if own else NEVER
                if self.groups[src] != self.groups[dst]:
                    crossed[self.groups[src], True] += 1
                    crossed[self.groups[dst], False] += 1
                found.append(GroupMove(step, src, dst, rail, chunk, down))
        return found

    def _keep_room(self, due: Ints, here: Ints, crossed: Mapping[tuple[int, bool], int], part: Fraction) -> None:
        """Leave out of `due` the transfers that uplinks have no room for; transfers due first have precedence.

        due : of what can go between the ranks `here` of a rail; crossed : so many did in this step, by group and way;
        part : of the step, up to this rail
        """
        room = {
            (group, out): 2**62 if link is None else int(link * part) - crossed.get((group, out), 0)
            for group, link in enumerate(self.uplinks)
            for out in (True, False)
        }
        src, dst = np.nonzero((due != NEVER) & self.crossing[np.ix_(here, here)])
        first = np.argsort(due[src, dst], kind="stable")
        sends, receives = set[int](), set[int]()  # each one chunk at most
        for a, z in zip(src[first].tolist(), dst[first].tolist(), strict=True):
            out, into = (self.groups[here[a]], True), (self.groups[here[z]], False)
            if (a in sends or room[out] > 0) and (z in receives or room[into] > 0):
                room[out] -= a not in sends
                room[into] -= z not in receives
                sends.add(a)
                receives.add(z)
            else:
                due[a, z] = NEVER
