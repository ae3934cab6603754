"""Complementary trees lowered to transfers: latency that grows with the logarithm of the ranks.

The data is cut into `segments`, each into one section per tree. A section is summed up its tree into the root and the
result comes down the same tree; sums of later sections overlap with results of earlier ones. The trees are those of
`complementary`: a rank has its children in few trees. Ranks that are too slow have none; they send and receive every
byte once. Two trees of two children are double binary trees; as many trees as ranks, of as many children, are direct
exchange.

The order follows time. Without other traffic, section j of tree t would start its transfers at (j trees + t) pace
ticks. Every transfer is as urgent as its time in this plan; leaves send as late as they can.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, Self

import numpy as np

from optcc.errors import InfeasibleError
from optcc.schedule.assemble import TemplateRow, assemble, segment_bounds
from optcc.schedule.columns import Schedule, Stage
from optcc.schedule.recipe import CandidateFamily, Costs, Recipe, Segments
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster
from optcc.values.json_records import Whole

if TYPE_CHECKING:
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound

# Trees that share the work: how many children each rank has in which tree, and where it hangs.
#
# A reduce tree and the broadcast tree that mirrors it load a rank, each way, by its number of neighbours per byte. So
# the loads of several trees are sums of degrees, and choosing degrees is choosing loads. A rank with many children in
# one tree is a leaf in the others; a rank that is too slow is a leaf in all. Sanders, Speck and Traeff do this for
# two trees of two children ("Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).
#
# Places are chosen by time. A rank serves its children one after another, so the child served first has the most time
# left to serve its own children. See Karp, Sahay, Santos and Schauser, "Optimal broadcast and summation in the LogP
# model", 1993. Time is counted in ticks, whole numbers, so that every rank computes the same trees.


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


MAX_TREES = 4096
MAX_REACH = 64 * TICKS
"""Latency beyond so many sections changes no tree."""


def tree_rates(cluster: Cluster) -> list[Fraction]:
    """Bytes per second, both ways, with which trees may load each rank. Raises InfeasibleError where this is 0."""
    rates = [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]
    if len(rates) > 1 and not min(rates):
        name = cluster.ranks[rates.index(Fraction(0))].name
        raise InfeasibleError("no way for trees", where=name, expected="a live NIC each way", got="none")
    return rates


def pace(trees: Sequence[Tree], rates: Sequence[Fraction], segments: int) -> int:
    """Ticks by which each section's plan is later than the one before.

    Small: sums run ahead of results, and ports are never short of work. A slow leaf that has no time to lose wants its
    first results early, so sections go more in turn. One segment of trees one hop high is in step as it is. Chosen by
    simulation; any pace is correct.
    """
    if segments == 1 and all(parent in (-1, tree.parent.index(-1)) for tree in trees for parent in tree.parent):
        return 1
    return TICKS if critical_leaves(rates, len(trees)) else TICKS // 2


def _section(rows: list[TemplateRow], section: int, tree: Tree, start: int, height: int, way: Routes) -> None:
    """Append one tree's section: up into the root in falling order of `when`, down in rising order."""
    root = tree.parent.index(-1)
    down = sorted((rank for rank in range(len(tree.parent)) if rank != root), key=lambda rank: tree.when[rank])
    sums: dict[int, tuple[int, ...]] = {}  # rank -> the rows that bring it its children's sums
    for rank in reversed(down):
        parent, hop = tree.parent[rank], start + height - tree.when[rank]
        rows.append(TemplateRow(section, way(rank, parent), hop, True, Stage.REDUCE_SCATTER, sums.get(rank, ())))
        sums[parent] = (*sums.get(parent, ()), len(rows) - 1)
    result = {root: sums.get(root, ())}
    for rank in down:
        parent, hop = tree.parent[rank], start + height + tree.when[rank]
        rows.append(TemplateRow(section, way(parent, rank), hop, False, Stage.ALLGATHER, result[parent]))
        result[rank] = (len(rows) - 1,)


@dataclass(frozen=True)
class ComplementaryTrees(Recipe):
    """Complementary trees.

    Attributes
    ----------
    fan : about how many children a rank has in the trees in which it has any
    trees : how many trees share the data equally
    segments : pipeline depth
    reach : latency of a hop, in 1/64 of the time that the fastest rank takes to send a section; it shapes the trees
    """

    family: ClassVar[str] = "trees"
    fan: Annotated[int, Whole(1, MAX_TREES)]
    trees: Annotated[int, Whole(1, MAX_TREES)]
    segments: Segments
    reach: Annotated[int, Whole(0, MAX_REACH)] = 0

    @classmethod
    def fitted(
        cls,
        cluster: Cluster,
        nbytes: int,
        *,
        fan: int,
        trees: int,
        segments: int,
        alpha: Fraction = Fraction(0),
        per_chunk: Fraction = Fraction(0),
    ) -> Self:
        """The recipe whose trees suit messages of this size: `alpha` seconds a hop, `per_chunk` seconds a section."""
        section_s = Fraction(nbytes, trees * segments) / max(max(tree_rates(cluster)), Fraction(1)) + per_chunk
        reach = round(TICKS * Fraction(alpha) / section_s) if section_s else MAX_REACH
        return cls(fan, trees, segments, min(reach, MAX_REACH) if alpha else 0)

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        way, rows, step = Routes(cluster), list[TemplateRow](), 1
        if len(cluster.ranks) > 1:
            rates = tree_rates(cluster)
            found = complementary(rates, self.fan, self.trees, self.reach)
            height, step = max(max(tree.when) for tree in found), pace(found, rates, self.segments)
            for section, tree in enumerate(found):
                _section(rows, section, tree, section * step, height, way)
        bounds = segment_bounds(0, nbytes, self.segments, self.trees)
        blocks = [(rows, np.arange(self.segments), bounds)] if rows else []
        return assemble(cluster, nbytes, way, blocks, period=self.trees * step)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """On one non-blocking fabric from the degrees, exactly; elsewhere from the bytes of the lowered schedule.

        Proof id double-trees.
        """
        if not cluster.fabric.flat or cluster.gpu_ranks:
            return super().fluid_s(cluster, nbytes)
        rates = tree_rates(cluster)
        if len(rates) == 1:
            return Fraction(0)
        spare = spare_degrees(rates, self.trees)
        return max(Fraction(self.trees + s, self.trees) / rate for s, rate in zip(spare, rates, strict=True)) * nbytes

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        lines = [("trees", f"{self.trees}, equal shares, about {self.fan} children at a rank that has any")]
        spare = spare_degrees(tree_rates(cluster), self.trees)
        leaves = [rank.name for rank, s in zip(cluster.ranks, spare, strict=True) if not s]
        if leaves:
            more = f" and {len(leaves) - 4} more" if len(leaves) > 4 else ""
            lines.append(("leaves in all", ", ".join(leaves[:4]) + more))
        return [*lines, ("segments", f"{self.segments}, sums and results overlapped")]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """The shapes that the closed form puts first; it tells shapes apart better than depths."""
        from optcc.theory.tree_times import FILL, best_segments, seconds, shapes

        rates = [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]
        if cluster.gpu_ranks or not cluster.fabric.flat or not min(rates):
            return []
        alpha, per_chunk, _ = costs
        found: list[tuple[Fraction, int, CandidateFamily]] = []
        for fan, trees in shapes(rates):
            best = best_segments(cluster, bound.nbytes, fan=fan, trees=trees, alpha=alpha, per_chunk=per_chunk)
            time_s = seconds(best, cluster, bound.nbytes, alpha=alpha, per_chunk=per_chunk)
            # A third of the closed form's addition to the bytes' time is fitted: the lower limit leaves it out.
            bytes_s = best.fluid_s(cluster, bound.nbytes)
            least_s = float(bytes_s + (time_s - bytes_s) / FILL)
            make = partial(_fitted, cls, cluster, bound.nbytes, fan, trees, costs)
            found.append((time_s, len(found), CandidateFamily(cls.family, make, best.segments, least_s=least_s)))
        return [offer for _, _, offer in sorted(found)]

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> ComplementaryTrees:
        """Itself: trees are made of the rates anew whenever they are lowered."""
        return self

    def like(self, cluster: Cluster, bound: Bound, costs: Costs, counts: GroupCounts) -> ComplementaryTrees:
        """As many trees, fitted to the fastest server, on which alone they depend."""
        fastest = Cluster((cluster.servers[counts.levels[-1][1][0]],))
        return _fitted(type(self), fastest, bound.nbytes, self.fan, self.trees, costs, self.segments)


def _fitted(
    kind: type[ComplementaryTrees], cluster: Cluster, nbytes: int, fan: int, trees: int, costs: Costs, segments: int
) -> ComplementaryTrees:
    alpha, per_chunk, _ = costs
    return kind.fitted(cluster, nbytes, fan=fan, trees=trees, segments=segments, alpha=alpha, per_chunk=per_chunk)
