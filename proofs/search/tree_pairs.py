#!/usr/bin/env python3
"""Does every one-way gossip contain a tree pair?   python3 tree_pairs.py P   (P = 2 .. 6)

Follow one element through a schedule on P ranks until every rank knows every
contribution.  The arcs used form a directed multigraph.  A tree pair in it is a root x,
a spanning tree of arcs towards x and, without using an arc twice, a spanning tree of
arcs away from x.  ../written/tree-pairs.md says why that matters.

`counterexample(P)` walks through ALL schedules, breadth first, and returns the arcs of
one that is complete without a tree pair, or None.  A state is (arcs used, knowledge).
What keeps this small, without losing any case:

* an arc that teaches its head nothing is never taken: dropping it only removes arcs;
* a state whose arcs contain a tree pair is finished: more arcs keep the pair;
* a pair uses an arc at most twice, so the counts of arcs stop at 2;
* renaming the ranks changes nothing, so only the smallest renaming is kept;
* with equal arcs after equally many steps, knowing more dominates knowing less.

P = 5 takes some seconds, P = 6 hours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int64]  # one word per renaming
CHUNK = 8  # bits renamed by one table lookup


class Ranks:
    """P ranks, their arcs and their renamings.

    Arcs used are an int with two bits per arc (how often, at most 2); knowledge is an
    int whose bit P*r + c says that rank r knows the contribution of rank c.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.everybody = (1 << count) - 1
        self.arcs = [(u, v) for u in range(count) for v in range(count) if u != v]
        number = {arc: i for i, arc in enumerate(self.arcs)}
        names = list(permutations(range(count)))
        self._arc_tables = self._tables(
            2 * len(self.arcs),
            [[2 * number[p[u], p[v]] + bit for u, v in self.arcs for bit in (0, 1)] for p in names],
        )
        self._knowledge_tables = self._tables(
            count * count,
            [[count * p[r] + p[c] for r in range(count) for c in range(count)] for p in names],
        )

    @staticmethod
    def _tables(bits: int, targets: list[list[int]]) -> list[Words]:
        """Per chunk of bits: value of the chunk x renaming -> renamed bits, int64."""
        tables = []
        for low in range(0, bits, CHUNK):
            width = min(CHUNK, bits - low)
            table = np.zeros((1 << width, len(targets)), dtype=np.int64)
            for value in range(1 << width):
                for j, target in enumerate(targets):
                    for bit in range(width):
                        if value >> bit & 1:
                            table[value, j] |= 1 << target[low + bit]
            tables.append(table)
        return tables

    @staticmethod
    def _renamed(tables: list[Words], word: int) -> Words:
        result = np.zeros(tables[0].shape[1], dtype=np.int64)
        for i, table in enumerate(tables):
            result |= table[word >> (CHUNK * i) & (len(table) - 1)]
        return result

    def smallest(self, used: int, knowledge: int) -> tuple[int, int]:
        """The smallest renaming of a state."""
        all_used = self._renamed(self._arc_tables, used)
        best = all_used.min()
        all_knowledge = self._renamed(self._knowledge_tables, knowledge)
        return int(best), int(all_knowledge[all_used == best].min())

    def known(self, knowledge: int, rank: int) -> int:
        return knowledge >> (self.count * rank) & self.everybody

    def has_tree_pair(self, used: int) -> bool:
        return any(self._pair(used, root, 1 << root) for root in range(self.count))

    def _pair(self, used: int, root: int, joined: int) -> bool:
        """Grow the tree towards `root` rank by rank while the rest still spans from it."""
        if not self._spans(used, root):
            return False
        return joined == self.everybody or any(
            self._pair(used - (1 << 2 * i), root, joined | 1 << tail)
            for i, (tail, head) in enumerate(self.arcs)
            if used >> 2 * i & 3 and joined >> head & 1 and not joined >> tail & 1
        )

    def _spans(self, used: int, root: int) -> bool:
        ways = [arc for i, arc in enumerate(self.arcs) if used >> 2 * i & 3]
        reached, before = 1 << root, 0
        while reached != before:
            before = reached
            for tail, head in ways:
                if reached >> tail & 1:
                    reached |= 1 << head
        return reached == self.everybody


def counterexample(
    count: int, report: Callable[[int, int], None] = lambda depth, states: None
) -> list[tuple[int, int]] | None:
    """Arcs of a complete schedule without a tree pair, or None if there is none."""
    ranks = Ranks(count)
    start = sum(1 << (count * r + r) for r in range(count))
    complete = (1 << count * count) - 1
    layer: dict[int, list[int]] = {0: [start]}
    depth = 0
    while layer:
        depth += 1
        following: dict[int, list[int]] = {}
        finished: dict[int, bool] = {}
        for used_before, states in layer.items():
            for before in states:
                for i, (tail, head) in enumerate(ranks.arcs):
                    news = ranks.known(before, tail)
                    if news & ~ranks.known(before, head) == 0:
                        continue
                    used = used_before
                    if used >> 2 * i & 3 < 2:
                        used += 1 << 2 * i
                    used, knowledge = ranks.smallest(used, before | news << (count * head))
                    if used not in finished:
                        finished[used] = ranks.has_tree_pair(used)
                    if finished[used]:
                        continue
                    if knowledge == complete:
                        return [arc for j, arc in enumerate(ranks.arcs) for _ in range(used >> 2 * j & 3)]
                    kept = following.get(used, [])
                    if all(knowledge & ~other for other in kept):
                        following[used] = [k for k in kept if k & ~knowledge] + [knowledge]
        layer = following
        report(depth, sum(len(states) for states in layer.values()))
    return None


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in "23456":
        print("usage: tree_pairs.py P   (P = 2 .. 6)", file=sys.stderr)
        return 2
    count = int(sys.argv[1])
    found = counterexample(count, lambda depth, states: print(f"{depth:3} arcs: {states} states"))
    if found is not None:
        print(f"P = {count}: complete without a tree pair: {found}")
        return 1
    print(f"P = {count}: every complete schedule contains a tree pair")
    return 0


if __name__ == "__main__":
    sys.exit(main())
