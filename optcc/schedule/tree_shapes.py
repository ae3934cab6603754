"""Trees that share the work: how many children each rank has in which tree, and where it hangs.

A reduce tree and the broadcast tree that mirrors it load a rank, each way, by its number of neighbours per byte. So the
loads of several trees are sums of degrees, and choosing degrees is choosing loads. A rank with many children in one
tree is a leaf in the others; a rank that is too slow is a leaf in all. Sanders, Speck and Traeff do this for two trees
of two children ("Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).

Places are chosen by time. A rank serves its children one after another, so the child served first has the most time
left to serve its own children. See Karp, Sahay, Santos and Schauser, "Optimal broadcast and summation in the LogP
model", 1993. Time is counted in ticks, whole numbers, so that every rank computes the same trees.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import count
from typing import NamedTuple

TICKS = 64
"""Ticks that the fastest rank takes to send a section."""


class Tree(NamedTuple):
    """One tree over all ranks.

    parent : of each rank, -1 for the root; when : ticks from the root's first send to the arrival at each rank
    """

    parent: tuple[int, ...]
    when: tuple[int, ...]


def spare_degrees(rates: Sequence[Fraction], trees: int) -> tuple[int, ...]:
    """How many neighbours each rank has beyond one per tree, in all `trees` together: trees (P-2) in sum.

    Carrying 1/trees of the data each, they load a rank by (trees + spare) / trees per byte. The largest quotient of
    load and rate is the least that whole degrees allow; among equals, the slowest ranks have the fewest neighbours.
    """
    return _spare_degrees(tuple(rates), trees)


@lru_cache(maxsize=256)  # asked for again and again with the same few arguments
def _spare_degrees(rates: tuple[Fraction, ...], trees: int) -> tuple[int, ...]:
    ranks, need = len(rates), trees * (len(rates) - 2)
    if need <= 0:
        return (0,) * ranks

    def within(level: Fraction) -> list[int]:
        return [max(0, math.floor(level * rate) - trees) for rate in rates]

    spare = within(_water_level(rates, need, trees))
    heap = [(Fraction(trees + s + 1) / rate, i) for i, (s, rate) in enumerate(zip(spare, rates, strict=True))]
    heapq.heapify(heap)
    for _ in range(need - sum(spare)):
        _, i = heap[0]
        spare[i] += 1
        heapq.heapreplace(heap, (Fraction(trees + spare[i] + 1) / rates[i], i))
    level = max(Fraction(trees + s) / rate for s, rate in zip(spare, rates, strict=True) if s)
    spare = within(level)
    excess = sum(spare) - need
    for i in sorted(range(ranks), key=lambda i: (rates[i], -i)):
        taken = min(excess, spare[i])
        spare[i] -= taken
        excess -= taken
    return tuple(spare)


def _water_level(rates: Sequence[Fraction], need: int, trees: int) -> Fraction:
    """The level at which the sum of max(0, level * rate - trees) is `need`."""
    wet, total, level = 0, Fraction(0), Fraction(0)
    for rate in sorted(rates, reverse=True):
        if wet and level * rate <= trees:
            break
        wet, total = wet + 1, total + rate
        level = (need + wet * trees) / total
    return level


def deal(spare: Sequence[int], order: Sequence[int], fan: int, trees: int) -> list[dict[int, int]]:
    """Spare degrees tree by tree: rank -> how many it has there, P-2 in each tree.

    A rank has its children in as few trees as give it about `fan` in each, and these evenly apart; `order` lists the
    ranks in which ties go.
    """
    pieces = []
    for place, rank in enumerate(order):
        parts = min(trees, max(1, round(spare[rank] / fan)))
        for i in range(parts):
            size = spare[rank] * (i + 1) // parts - spare[rank] * i // parts
            pieces.append((Fraction(2 * i + 1, 2 * parts), place, rank, size))
    dealt: list[dict[int, int]] = [{} for _ in range(trees)]
    room, tree = len(spare) - 2, 0
    for _, _, rank, size in sorted(pieces):
        while size > 0:
            taken = min(size, room)
            dealt[tree][rank] = dealt[tree].get(rank, 0) + taken
            size, room = size - taken, room - taken
            if room == 0:
                room, tree = len(spare) - 2, tree + 1
    return dealt


def critical_leaves(rates: Sequence[Fraction], trees: int) -> list[int]:
    """Ranks that are leaves in all trees and busy as long as the busiest. They hang high: they could not catch up."""
    spare = spare_degrees(rates, trees)
    busy = [Fraction(trees + s) / rate for s, rate in zip(spare, rates, strict=True)]
    return [r for r, time in enumerate(busy) if not spare[r] and time == max(busy)]


def complementary(rates: Sequence[Fraction], fan: int, trees: int, reach: int) -> list[Tree]:
    """`trees` trees over ranks of these rates, ranks that have children having about `fan`; `reach` is the latency of a
    hop in ticks. At least two ranks, rates above 0.
    """
    ranks = len(rates)
    order = sorted(range(ranks), key=lambda r: (-rates[r], r))
    spare, critical = spare_degrees(rates, trees), critical_leaves(rates, trees)
    cost = [math.ceil(TICKS * rates[order[0]] / rate) for rate in rates]
    return [
        _place(inner, cost, reach, order[turn % ranks], critical[turn % max(1, len(critical)) :] + critical)
        for turn, inner in enumerate(deal(spare, order, fan, trees))
    ]


def _place(inner: Mapping[int, int], cost: Sequence[int], reach: int, first: int, critical: Sequence[int]) -> Tree:
    """Hang every rank at the earliest place that is left: those with most children first, leaves last.

    `inner` : rank -> neighbours beyond one; `first` is the root if there is none; `critical` : leaves that come
    between the ranks with children, from the root on, in this order.
    """
    ranks = len(cost)
    by_size = sorted(inner, key=lambda r: (-inner[r], cost[r], r))
    root = by_size[0] if by_size else first
    high = [r for r in dict.fromkeys(critical) if r not in inner and r != root]
    # The leaves of every tree begin elsewhere, so that they do not all wait for the same sender at the same time.
    low = sorted(set(range(ranks)) - set(inner) - set(high) - {root}, key=lambda r: (-cost[r], (r - root) % ranks))
    parent, when = [-1] * ranks, [0] * ranks
    places: list[tuple[int, int, int]] = []
    number = count()

    def offer(rank: int, children: int) -> None:
        for i in range(1, children + 1):
            heapq.heappush(places, (when[rank] + i * cost[rank] + reach, next(number), rank))

    def coming() -> Iterator[int]:
        left = deque(high)
        for rank in by_size[1:]:
            if left and len(places) > 1:
                yield left.popleft()
            yield rank
        yield from (*left, *low)

    offer(root, inner.get(root, 0) + 1)
    for rank in coming():
        at, _, parent[rank] = heapq.heappop(places)
        when[rank] = at + max(0, cost[rank] - cost[parent[rank]])  # a slower rank takes longer to receive
        offer(rank, inner.get(rank, 0))
    return Tree(tuple(parent), tuple(when))
