"""Nested rings: shares of the data, each over a ring of the strongest ranks with the others as leaves.

In pattern m the m strongest ranks form a ring, the others are leaves. The pattern's bytes are cut into `segments` equal
segments and each segment into sections, equally many per owner. A section is reduced along the ring into its owner, and
the finished section goes round from there. A small ring has several sections per owner: a leaf waits for whole
sections, so no pattern's sections should be much larger than those of the full ring. Leaves join in one of two
orderings (stages as in `Stage`):

* LEAF_FIRST (stages 3 1 4 2): a leaf sends its raw section to the head of the chain and gets the finished one from
  the owner;
* VIA_LEAF (stages 1 2 3 4): one leaf, taken in turn, is the last to add: the owner sends it the partial section and
  gets the finished one back; other leaves go as above.

Either way every leaf sends each byte once and receives it once. The plain ring is the one pattern m = P.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.assemble import (
    Block,
    TemplateRow,
    add_row,
    assemble,
    chain_to,
    copy_chain,
    cuts_by,
    even_cuts,
    granule,
    reduce_chain,
    require_memory,
)
from optcc.schedule.columns import Schedule, Stage
from optcc.schedule.recipe import CandidateFamily, Costs, Recipe, Segments, Window, require
from optcc.schedule.routes import Routes
from optcc.schedule.tuned import FEW_LEAVES, LEAF_SECTIONS, MANY
from optcc.values.cluster import Cluster
from optcc.values.json_records import OMITTED, As, Index, Least, Natural, Whole

if TYPE_CHECKING:
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound

# Due times of transfers of nested rings, if sections start one after another instead of all of a segment at once.
#
# A segment's sections are due one by one, evenly over the time that a segment has; each hop of a section is due
# `pace` sections after the one before. Ports serve what is due first. Then every rank does what its neighbour did one
# section earlier, and a leaf meets the owners in turn. The steady state repeats itself, and no port starves while
# another has a burst. With an order by segments only, all sections of a segment start together, and ports drift apart
# from segment to segment. Each port's idle time then adds up until queues are long enough to hide it
# (docs/schedules.md).


PERIOD = 2**20
"""Units of due times in a segment's time; more than any segment has sections."""
MAX_PACE = 64
"""Limit of the pace that a plan file can ask for; 2 to 4 leave the least idle time."""


class Keeping(NamedTuple):
    """The settings of a recipe of nested rings about time, as in `NestedRings`."""

    window: int
    pace: int
    sections: int | None


def two_segments_under_way(leaves: int, segments: int) -> Keeping:
    """Two segments under way at once, and the highest pace for which these have room.

    With longer windows leaves run further ahead, and urgent transfers queue behind theirs. A single leaf delays nobody,
    and a single segment needs no pace.
    """
    if leaves <= 1:
        return Keeping(0, 0, None)
    return Keeping(2, 3, None) if segments > 1 else Keeping(4, 0, None)


def keeping(ranks: int, leaves: int, segments: int) -> Keeping:
    """The window, sections and pace that lose least time (docs/schedules.md).

    Where nearly all ranks are leaves of a ring of two to four, two segments under way lose up to 4/k. Raw sections of
    many leaves queue where the few full ranks wait for partial sums; with one segment under way they are half as many.
    Its time has room for a pace of 4 if sections are fine: 2 (P-1) times the pace.
    """
    if leaves <= FEW_LEAVES or ranks > MANY or segments == 1:  # with more ranks there would be too many transfers
        return two_segments_under_way(leaves, segments)
    return Keeping(1, 4, 8 * (ranks - 1))


def sections_of(ring: int, ranks: int, asked: int | None, pace: int) -> int:
    """How many sections a segment has over a ring of `ring` of `ranks`; `asked` and `pace` as in `NestedRings`."""
    few = ranks - ring <= 1 and not pace
    least = asked or (1 if few else LEAF_SECTIONS * (ranks - 1))
    return ring * -(-least // ring)


def paced(rows: Sequence[TemplateRow], sections: int, pace: int) -> list[TemplateRow]:
    """The rows of a template of `sections` sections, with due times, in 1/`PERIOD` of a segment, in place of hops."""
    return [row._replace(hop=(row.section + pace * row.hop) * PERIOD // sections) for row in rows]


def last_hop(ring: int, ranks: int) -> int:
    """The highest hop of a section over a ring of `ring` of `ranks`."""
    return max(2 * ring, ring + 2) if ring < ranks else 2 * ring - 2


def in_time(ring: int, ranks: int, sections: int, pace: int, window: int) -> bool:
    """Whether a section's last hop is due no later than the first of the same section `window` segments on.

    The first waits for the last there, and rows wait only for earlier rows.
    """
    return pace * last_hop(ring, ranks) <= window * sections


MAX_SECTIONS = 4096
"""Limit of the sections that a plan file can ask for; more chunks per segment gain nothing."""


class Ordering(StrEnum):
    """The order of the four stages within a section."""

    LEAF_FIRST = "leaf-first"
    VIA_LEAF = "via-leaf"


def _section(
    rows: list[TemplateRow], s: int, ring: Sequence[int], leaves: Sequence[int], ordering: Ordering, way: Routes
) -> None:
    """Append section `s`, whose owner is ring[s % m]."""
    m, begin, chain = len(ring), len(rows), chain_to(s, ring)
    head, owner = chain[0], chain[-1]
    # Of several leaves each one is the last to add in its turn.
    via = leaves[s % len(leaves)] if leaves and ordering is Ordering.VIA_LEAF else None
    others, landed, hop = [leaf for leaf in leaves if leaf != via], tuple[int, ...](), m
    for leaf in others:
        landed += add_row(rows, s, way(leaf, head), 0, True, Stage.FROM_LEAF, ())
    landed = reduce_chain(rows, s, chain, way, 1, landed)
    if via is not None:
        landed = add_row(rows, s, way(owner, via), hop, True, Stage.TO_LEAF, landed)
        landed = add_row(rows, s, way(via, owner), hop + 1, False, Stage.FROM_LEAF, landed)
        hop += 2
    copy_chain(rows, s, [owner, *chain[:-1]], way, hop, landed)
    for leaf in others:
        add_row(rows, s, way(owner, leaf), hop, False, Stage.TO_LEAF, landed)
    # A rank that begins, raw, has something to wait for `window` segments before: what it is sent last.
    table = way.table
    last = {table[row.route].dst: place for place, row in enumerate(rows[begin:], begin) if not row.reduce}
    for place, row in enumerate(rows[begin:], begin):
        if not row.deps and table[row.route].src in last:
            rows[place] = row._replace(credits=(last[table[row.route].src],))


@dataclass(frozen=True)
class RingShare:
    """A ring of nested ones, and what it carries.

    ring : so many of the last ranks of `order`; share : of the data
    """

    ring: Natural
    share: Fraction


RingAndShare = Annotated[tuple[int, Fraction], As(RingShare, lambda pair: RingShare(*pair))]


@dataclass(frozen=True)
class NestedRings(Recipe):
    """Nested rings.

    Attributes
    ----------
    shares : of each ring, as (number of ranks m, share of the data), sum 1
    order : ranks from weakest to strongest; ring size m is the last m of them
    segments : pipeline depth; orderings : of the stages of a section, cycled over segments and patterns
    segment_sizes : the part of the data in each segment, sum 1; None: all equal
    sections : least number of sections that a segment is cut into, rounded up so that all owners have equally many.
        None: one per owner with at most one leaf and no pace; otherwise `LEAF_SECTIONS` (P-1)
    window : a rank sends raw bytes of a segment only when it has the finished bytes of the segment `window` before; 0:
        any time. Without a window fast ranks run ahead, and urgent transfers queue behind theirs
    pace : 0, not written: ports serve an earlier segment first, and of one segment an earlier hop. Above: sections are
        due one after another, each hop of a section so many sections after the one before
    """

    family: ClassVar[str] = "nested-rings"
    shares: tuple[RingAndShare, ...]
    order: tuple[Index, ...]
    segments: Segments
    segment_sizes: tuple[Fraction, ...] | None = field(default=None, kw_only=True)
    orderings: Annotated[tuple[Ordering, ...], Least(1)]
    sections: Annotated[int, Whole(1, MAX_SECTIONS)] | None = None
    window: Window = 0
    pace: Annotated[int, Whole(1, MAX_PACE), OMITTED] = 0

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        routes, ranks, turns, blocks = Routes(cluster), len(self.order), len(self.orderings), list[Block]()
        for place, m, bounds in self._patterns(nbytes):
            sections = bounds.shape[1] - 1
            for turn, ordering in enumerate(self.orderings):
                rows = list[TemplateRow]()
                for s in range(sections):
                    _section(rows, s, self.order[ranks - m :], self.order[: ranks - m], ordering, routes)
                mine = np.arange((turn - place) % turns, self.segments, turns)
                if len(mine):
                    blocks.append((paced(rows, sections, self.pace) if self.pace else rows, mine, bounds[mine]))
        # A template has every len(orderings)-th segment.
        copies = -(-self.window // turns) or self.segments
        return assemble(cluster, nbytes, routes, blocks, window=copies, period=PERIOD if self.pace else None)

    def _patterns(self, nbytes: int) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """Of each pattern its place, the size of its ring, and the bounds of its sections: int64, (segments, sections +
        1)."""
        ranks, done = len(self.order), Fraction(0)
        sizes = self.segment_sizes or (Fraction(1, self.segments),) * self.segments
        for place, (m, share) in enumerate(sorted(self.shares)):
            sections = sections_of(m, ranks, self.sections, self.pace)
            require_memory(2 * (ranks - 1) * sections * self.segments)
            start, done = granule(done * nbytes, nbytes), done + share
            cuts = cuts_by(start, nbytes if done == 1 else granule(done * nbytes, nbytes), sizes).tolist()
            yield place, m, np.stack([even_cuts(low, high, sections) for low, high in pairwise(cuts)])

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """On one non-blocking fabric from the shares, exactly; elsewhere from the bytes of the lowered schedule."""
        if not cluster.fabric.flat:
            return super().fluid_s(cluster, nbytes)
        ranks = len(self.order)
        worst = Fraction(0)
        for place, r in enumerate(self.order):
            rank = cluster.ranks[r]
            load = sum(
                (s * (Fraction(m + ranks - 2, m) if place >= ranks - m else 1) for m, s in self.shares), Fraction(0)
            )
            worst = max(worst, load / min(rank.out_rate, rank.in_rate)) if load else worst
        return worst * nbytes

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless order, shares and segments fit each other and `cluster`."""
        ranks = len(cluster.ranks)
        require(sorted(self.order) == list(range(ranks)), "order", f"each of 0..{ranks - 1} once", self.order)
        super().check(cluster)
        sizes = self.segment_sizes
        if sizes is not None:
            require(len(sizes) == self.segments, "segment_sizes", f"{self.segments} of them", len(sizes))
            require(min(sizes) > 0 and sum(sizes) == 1, "segment_sizes", "sizes above 0 of sum 1", sum(sizes))
        require(all(1 <= m <= ranks and s > 0 for m, s in self.shares), "shares", f"ring 1..{ranks}, > 0", self.shares)
        require(len({m for m, _ in self.shares}) == len(self.shares), "shares", "each ring size once", self.shares)
        require(ranks == 1 or sum(s for _, s in self.shares) == 1, "shares", "a sum of 1", self.shares)
        if self.pace and self.window:
            parts = [(m, sections_of(m, ranks, self.sections, self.pace)) for m, _ in self.shares]
            fits = all(in_time(m, ranks, count, self.pace, self.window) for m, count in parts)
            require(fits, "pace", "a section's hops due within the window's segments", self.pace)

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        ranks, lines = len(self.order), []
        for m, share in self.shares:
            leaves = ", ".join(cluster.ranks[r].name for r in self.order[: ranks - m][:4])
            more = f" and {ranks - m - 4} more" if ranks - m > 4 else ""
            outside = f", outside it {leaves}{more}" if ranks > m else ""
            lines.append(("share", f"{float(share) * 100:.4g} % over a ring of {m}{outside}"))
        return [*lines, ("segments", f"{self.segments}, {' and '.join(self.orderings)} in turn")]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """With many leaves also sections as coarse as with few: chunks cost, so either may be faster."""
        from optcc.theory import nested_shares

        if cluster.gpu_ranks:
            return []
        rates = [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]

        @cache
        def shares() -> dict[int, Fraction]:
            return nested_shares(rates)

        def fine(segments: int) -> NestedRings:
            return nested_rings(cluster, shares(), segments)

        def coarse(segments: int) -> NestedRings:
            leaves = len(rates) - min(shares(), default=len(rates))
            return replace(fine(segments), **two_segments_under_way(leaves, segments)._asdict())

        many = len(rates) <= MANY and sum(rate < max(rates) for rate in rates) > FEW_LEAVES
        # A byte makes P-1 hops to its sum, and as many back, each a chunk of its own at both ends.
        hops = 2 * (len(rates) - 1)
        least_s = float(bound.seconds + hops * (costs.alpha + costs.per_chunk))
        makes = (fine, coarse) if many and costs else (fine,)
        return [CandidateFamily(cls.family, make, least_s=least_s) for make in makes]

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> NestedRings:
        """Ranks in the order of their rates."""
        return replace(self, order=counts.order)

    def like(self, cluster: Cluster, bound: Bound, costs: Costs, counts: GroupCounts) -> NestedRings:
        """Of the same depth, with the shares and the order of this cluster."""
        return rings_in_order(counts.order, counts.shares(), self.segments)


# Nested rings with the order of ranks, the orderings and the pace that suit the cluster.


def nested_rings(cluster: Cluster, shares: dict[int, Fraction], segments: int) -> NestedRings:
    """Nested rings over the ranks of `cluster` by strength, with the orderings that suit the number of leaves."""
    ranks = cluster.ranks
    order = sorted(range(len(ranks)), key=lambda r: (min(ranks[r].out_rate, ranks[r].in_rate), r))
    return rings_in_order(tuple(order), shares, segments)


def rings_in_order(order: tuple[int, ...], shares: dict[int, Fraction], segments: int) -> NestedRings:
    """`nested_rings` where the `order` of the ranks, weakest first, is known."""
    window, pace, sections = keeping(len(order), len(order) - min(shares, default=len(order)), segments)
    rings, orderings = tuple(sorted(shares.items())), _orderings(shares, len(order), segments)
    return NestedRings(rings, order, segments, orderings, sections=sections, window=window, pace=pace)


def _orderings(shares: dict[int, Fraction], ranks: int, segments: int) -> tuple[Ordering, ...]:
    """One degraded rank: the orderings alternate, so that its link is busy both ways from the start. The last adds
    last: a leaf that gets a whole segment at the end does so alone. Several: the leaves take turns at adding last,
    which the simulator shows to be smoother (docs/schedules.md)."""
    if ranks - min(shares, default=ranks) != 1:
        return (Ordering.VIA_LEAF,)
    odd = segments > 1 and segments % 2 == 1
    return (Ordering.VIA_LEAF, Ordering.LEAF_FIRST) if odd else (Ordering.LEAF_FIRST, Ordering.VIA_LEAF)
