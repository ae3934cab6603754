"""OptCC as published: four patterns of equal segments around one degraded rank, served slot by slot.

A segment is a ring over the healthy ranks; the degraded rank joins by one transfer each way per section, in four stages
(see `Stage`). Patterns A and C go 1 2 3 4, patterns B and D go 3 1 4 2. Segments take the patterns in turn, and every
four of them (of a channel, where there are channels) start as this table says; a slot is the time in which the degraded
rank moves one segment.

    slot      0        1        2        3        4
    A         1        2        3        4
    B         3        1        4        2
    C                  1        2        3        4
    D                  3        1        4        2

The degraded rank receives A C B D and sends B D A C, one of each per slot, while the next four follow from slot 4 on: k
segments take k + 1 slots, (k+1)/k of the bound. A degraded rank that keeps more than about half of its rate (1/l with l
< 2 - 1/(P-1)) would idle in its slots. So the bound's share of the data goes round a ring of all ranks instead, one
equal segment per slot.

Source: Chen, Jiang, Yu, Wang, Xiong, Wang and Liu, arXiv:2606.01680, as far as public text tells; what is our reading
stands in docs/baselines.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import numpy as np

from optcc.schedule.assemble import Block, TemplateRow, assemble, granule, require_memory
from optcc.schedule.chains import Way, add_row, chain_to, copy_chain, reduce_chain, ring_template, segment_bounds
from optcc.schedule.channels import in_channels, on_single_nics, require_channels
from optcc.schedule.columns import Schedule, Stage
from optcc.schedule.recipe import Recipe, Segments, require
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster
from optcc.values.json_records import OMITTED, Index

_SLOTS = (
    {Stage.REDUCE_SCATTER: 0, Stage.TO_LEAF: 1, Stage.FROM_LEAF: 2, Stage.ALLGATHER: 3},
    {Stage.FROM_LEAF: 0, Stage.REDUCE_SCATTER: 1, Stage.ALLGATHER: 2, Stage.TO_LEAF: 3},
    {Stage.REDUCE_SCATTER: 1, Stage.TO_LEAF: 2, Stage.FROM_LEAF: 3, Stage.ALLGATHER: 4},
    {Stage.FROM_LEAF: 1, Stage.REDUCE_SCATTER: 2, Stage.ALLGATHER: 3, Stage.TO_LEAF: 4},
)
"""Pattern A, B, C, D: the slot of each stage, from the start of its four segments."""


def paper_share(ranks: int, left: Fraction) -> Fraction:
    """The share of the data that goes round the healthy ring; the other goes round a ring of all.

    `left` is what the degraded rank keeps of the others' rate. These shares load all ranks alike (proof id
    ``nested-rings``) with one degraded rank. With T* the bound and L = max(1, T* left B/n) the degraded rank's load,
    the share is x = 1 - (L - 1) P/(P-2).
    """
    load = max(Fraction(1), Fraction(2 * (ranks - 1)) * left / (ranks - 1 + left))
    return 1 - (load - 1) * Fraction(ranks, ranks - 2)


def pattern_template(healthy: list[int], weak: int, slots: dict[Stage, int], way: Way) -> list[TemplateRow]:
    """One segment of a pattern; its hops are its slots, and within a slot the hops of a ring."""
    m, rows = len(healthy), list[TemplateRow]()
    slot = {stage: place * m for stage, place in slots.items()}
    for s in range(m):
        chain = chain_to(s, healthy)
        head, owner = chain[0], chain[-1]
        to_weak, from_weak = slot[Stage.TO_LEAF], slot[Stage.FROM_LEAF]
        landed: tuple[int, ...] = ()
        weak_first = from_weak < to_weak
        if weak_first:
            landed = add_row(rows, s, way(weak, head), from_weak, True, Stage.FROM_LEAF, landed)
        landed = reduce_chain(rows, s, chain, way, slot[Stage.REDUCE_SCATTER], landed)
        if not weak_first:
            landed = add_row(rows, s, way(owner, weak), to_weak, True, Stage.TO_LEAF, landed)
            landed = add_row(rows, s, way(weak, owner), from_weak, False, Stage.FROM_LEAF, landed)
        copy_chain(rows, s, [owner, *chain[:-1]], way, slot[Stage.ALLGATHER], landed)
        if weak_first:
            add_row(rows, s, way(owner, weak), to_weak, False, Stage.TO_LEAF, landed)
    return rows


@dataclass(frozen=True)
class OptccPaper(Recipe):
    """OptCC as published around one degraded rank.

    segments : k, over all four patterns, and over all channels
    weak : the degraded rank; nested : the share of the data in the four patterns
    channels : segment i is of channel i modulo so many, on one NIC of each server, and each channel's segments take the
        patterns in turn; None: every transfer is striped over all NICs
    """

    family: ClassVar[str] = "optcc-published"
    segments: Segments
    weak: Index
    nested: Fraction
    channels: Annotated[Segments | None, OMITTED] = None

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        routes, ranks, k = Routes(cluster), len(cluster.ranks), self.segments
        healthy = [r for r in range(ranks) if r != self.weak]
        cut = granule(self.nested * nbytes, nbytes)
        inner, outer = segment_bounds(0, cut, k, ranks - 1), segment_bounds(cut, nbytes, k, ranks)
        count, blocks, numbers = self.channels or 1, list[Block](), np.arange(k)
        require_memory(2 * (ranks - 1) * (2 * ranks - 1) * k)
        filler = ring_template(range(ranks), routes)
        for pattern, slots in enumerate(_SLOTS):
            mine = numbers[numbers // count % len(_SLOTS) == pattern]
            late = mine // (len(_SLOTS) * count)
            blocks.append((pattern_template(healthy, self.weak, slots, routes), late, inner[mine]))
            # All hops of the ring of all ranks fall into one slot: the ring fills the time that the patterns leave.
            hop = pattern * (ranks - 1) + ranks - 2
            blocks.append(([row._replace(hop=hop) for row in filler], late, outer[mine]))
        schedule = assemble(cluster, nbytes, routes, [block for block in blocks if len(block[1])])
        return schedule if self.channels is None else on_single_nics(schedule, cluster, count, [inner, outer])

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless there are 3 ranks, and rank and share are in range."""
        ranks = len(cluster.ranks)
        require(ranks >= 3, "ranks", "3 or more", ranks)
        super().check(cluster)
        require(self.weak < ranks, "weak", f"a rank, 0 to {ranks - 1}", self.weak)
        require(0 < self.nested <= 1, "nested", "above 0, at most 1", self.nested)
        require_channels(self.channels, cluster)

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """The two rings and the pipeline."""
        name = cluster.ranks[self.weak].name
        return [
            ("share", f"{float(self.nested) * 100:.4g} % in patterns A B C D around {name}, the rest in a ring of all"),
            ("segments", f"{self.segments}, equal, {in_channels(self.channels)}"),
        ]

    def layout(self, schedule: Schedule) -> Iterable[dict[str, Any]]:
        """Patterns A and C add the degraded rank last, B and D first; four segments share a number."""
        from optcc.schedule.layout import PLAIN, ring
        from optcc.schedule.nested import Ordering

        cut = granule(self.nested * schedule.nbytes, schedule.nbytes)
        healthy = [r for r in range(schedule.ranks) if r != self.weak]
        inner = segment_bounds(0, cut, self.segments, len(healthy)).tolist()
        outer = segment_bounds(cut, schedule.nbytes, self.segments, schedule.ranks).tolist()
        turns = (str(Ordering.VIA_LEAF), str(Ordering.LEAF_FIRST))
        yield ring(healthy, [self.weak], [(g // 4, turns[g % 2], cuts) for g, cuts in enumerate(inner)])
        yield ring(range(schedule.ranks), (), [(g // 4, PLAIN, cuts) for g, cuts in enumerate(outer)])
