"""Complementary trees lowered to transfers: latency that grows with the logarithm of the ranks.

The data is cut into `segments`, each into one section per tree. A section is summed up its tree into the root and the
result comes down the same tree; sums of later sections overlap with results of earlier ones. The trees are those of
`tree_shapes`: a rank has its children in few trees. Ranks that are too slow have none, and send and receive every byte
once. Two trees of two children are double binary trees; as many trees as ranks, of as many children, exchange directly.

The order follows time. Without other traffic, section j of tree t would start its transfers at (j trees + t) pace
ticks. Every transfer is as urgent as its time in this plan; leaves send as late as they can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np

from optcc.errors import InfeasibleError
from optcc.schedule.assemble import TemplateRow, assemble
from optcc.schedule.chains import segment_bounds
from optcc.schedule.columns import Schedule, Stage
from optcc.schedule.recipe import Recipe, Segments
from optcc.schedule.routes import Routes
from optcc.schedule.tree_shapes import TICKS, Tree, complementary, critical_leaves, spare_degrees
from optcc.values.cluster import Cluster
from optcc.values.json_types import Whole

if TYPE_CHECKING:
    from optcc.schedule.candidates import CandidateFamily, Costs
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound

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
        """See the module."""
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
        """How many trees, who has children in none, and the pipeline."""
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
        from optcc.schedule.candidates import CandidateFamily
        from optcc.theory.tree_times import FILL, best_segments, seconds, shapes

        rates = [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]
        if cluster.gpu_ranks or not cluster.fabric.flat or not min(rates):
            return []
        alpha, per_chunk = costs
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
    alpha, per_chunk = costs
    return kind.fitted(cluster, nbytes, fan=fan, trees=trees, segments=segments, alpha=alpha, per_chunk=per_chunk)
