"""How long complementary trees take, and how many segments suit them: closed forms, beside the simulator's answer.

Model (seconds): T(k) = max over ranks v of (L_v n/B_v + b_v o k) + 3/2 H(k). L_v is the rank's load per byte, b_v its
chunks per segment (its neighbours in all trees), o what a chunk costs beside its bytes. H(k) is the time from the root
to the last rank on idle ports: s(n/(M k B) + o) + d alpha for s sends one after the other over d hops, M trees. First
sums and last results leave the busiest ports idle for about H; that it is 3/2 H was fitted to simulations.
Direct exchange between equal ranks in one segment has no idle port: W + 2 alpha. Loads, and what a timetable can
promise: proof id double-trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from optcc.schedule.trees import TICKS, ComplementaryTrees, complementary, spare_degrees, tree_rates
from optcc.schedule.tuned import MANY
from optcc.values.cluster import Cluster

FILL = Fraction(3, 2)
"""Of H(k) in T(k), see the module."""
_FINER = Fraction(103, 100)
"""More trees are tried where they relieve the busiest rank of so much: as exact as the shapes are."""


def shapes(rates: Sequence[Fraction]) -> list[tuple[int, int]]:
    """(fan, trees) worth trying on ranks of these rates, of which simulations showed one to be within 3 % of the best.

    Four, six and eight children; direct exchange, where ranks are few enough for it; and where whole degrees in four
    trees load some rank by 3 % more than need be, more trees.
    """
    ranks = len(rates)
    wanted = [(fan, fan) for fan in (4, 6, 8) if fan < ranks - 1]
    if 2 <= ranks <= MANY:
        wanted += [(ranks - 1, ranks), (ranks - 1, ranks - 1)]
    least = busiest(rates, 4 * ranks)
    finer = (trees for trees in range(4, 2 * ranks) if busiest(rates, trees) <= _FINER * least)
    if ranks > 5 and (trees := next(finer, 4)) > 4:
        wanted.append((4, trees))
    return list(dict.fromkeys(wanted)) or [(1, 1)]


def busiest(rates: Sequence[Fraction], trees: int) -> Fraction:
    """Seconds per byte of the busiest rank in the fluid limit; rates in bytes per second. Proof id double-trees."""
    if len(rates) < 2:
        return Fraction(0)
    spare = spare_degrees(rates, trees)
    return max(Fraction(trees + s, trees) / rate for s, rate in zip(spare, rates, strict=True))


@dataclass(frozen=True)
class TreeTime:
    """T(k) of the module for given trees, seconds.

    loads : (bytes' seconds, chunks per segment) of every rank; sends, hops : on the longest way from a root
    section_s : bytes' seconds of a section at the fastest rank if there is one segment
    """

    loads: tuple[tuple[Fraction, int], ...]
    sends: Fraction
    hops: int
    section_s: Fraction
    alpha: Fraction
    per_chunk: Fraction

    def seconds(self, segments: int) -> Fraction:
        """T(k): convex in k."""
        work = max(bytes_s + chunks * segments * self.per_chunk for bytes_s, chunks in self.loads)
        return work + FILL * (self.sends * (self.section_s / segments + self.per_chunk) + self.hops * self.alpha)

    def least(self, most: int) -> int:
        """The k from 1 to `most` at which T is least; where one rank is always the busiest, next to
        sqrt(3/2 sends section_s / (chunks per_chunk))."""
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self.seconds(middle) <= self.seconds(middle + 1):
                high = middle
            else:
                low = middle + 1
        return low


def tree_time(
    recipe: ComplementaryTrees, cluster: Cluster, nbytes: int, *, alpha: Fraction, per_chunk: Fraction
) -> TreeTime:
    """T of a recipe's trees. At least two ranks."""
    rates, trees = tree_rates(cluster), recipe.trees
    neighbours = [trees + spare for spare in spare_degrees(rates, trees)]
    loads = {(Fraction(nbytes * d, trees) / rate, d) for d, rate in zip(neighbours, rates, strict=True)}
    section_s = Fraction(nbytes, trees) / max(rates)
    return TreeTime(tuple(sorted(loads)), *_way_down(recipe, rates), section_s, alpha, per_chunk)


def seconds(
    recipe: ComplementaryTrees, cluster: Cluster, nbytes: int, *, alpha: Fraction, per_chunk: Fraction
) -> Fraction:
    """How long a recipe takes, by the model of the module."""
    rates = tree_rates(cluster)
    if len(rates) < 2:
        return Fraction(0)
    return _seconds(recipe, rates, tree_time(recipe, cluster, nbytes, alpha=alpha, per_chunk=per_chunk))


def _seconds(recipe: ComplementaryTrees, rates: Sequence[Fraction], time: TreeTime) -> Fraction:
    # As many trees as equal ranks, each one hop high: all ports send, then all send again.
    if recipe.segments == 1 and recipe.trees == len(rates) <= recipe.fan + 1 and min(rates) == max(rates):
        return max(bytes_s + chunks * time.per_chunk for bytes_s, chunks in time.loads) + 2 * time.alpha
    return time.seconds(recipe.segments)


def best_segments(
    cluster: Cluster,
    nbytes: int,
    *,
    fan: int,
    trees: int,
    alpha: Fraction = Fraction(0),
    per_chunk: Fraction = Fraction(0),
    most: int = 1024,
) -> ComplementaryTrees:
    """The recipe with the number of segments, up to `most`, at which `seconds` is least.

    The trees depend on the number of segments, by the latency over a section's time. So the best number for given trees
    is taken until it stays.
    """
    tried: dict[int, tuple[Fraction, ComplementaryTrees]] = {}
    rates, k = tree_rates(cluster), 1
    if len(rates) < 2:
        return ComplementaryTrees(fan, trees, k)
    while k not in tried:
        recipe = ComplementaryTrees.fitted(
            cluster, nbytes, fan=fan, trees=trees, segments=k, alpha=alpha, per_chunk=per_chunk
        )
        time = tree_time(recipe, cluster, nbytes, alpha=alpha, per_chunk=per_chunk)
        tried[k] = (_seconds(recipe, rates, time), recipe)
        k = time.least(most)
    return min(tried.values(), key=lambda found: found[0])[1]


def _way_down(recipe: ComplementaryTrees, rates: Sequence[Fraction]) -> tuple[Fraction, int]:
    """(sends in units of the fastest rank's section, hops) on the longest way from a root."""
    found = complementary(rates, recipe.fan, recipe.trees, recipe.reach)
    tree = max(found, key=lambda tree: max(tree.when))
    rank, hops = max(range(len(rates)), key=lambda rank: tree.when[rank]), 0
    ticks = tree.when[rank]
    while tree.parent[rank] >= 0:
        rank, hops = tree.parent[rank], hops + 1
    return Fraction(ticks - hops * recipe.reach, TICKS), hops
