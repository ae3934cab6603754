"""What others run on a degraded cluster, by name: recipes that go through the same verifier and simulator as ours.

docs/baselines.md tells what each does, its closed form and its source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError
from optcc.schedule.assemble import (
    Block,
    TemplateRow,
    Way,
    add_row,
    assemble,
    chain_to,
    copy_chain,
    even_cuts,
    granule,
    in_channels,
    on_single_nics,
    reduce_chain,
    require_channels,
    require_memory,
    ring_template,
    segment_bounds,
)
from optcc.schedule.columns import Schedule, Stage
from optcc.schedule.nccl_tree import NcclTree, best_order
from optcc.schedule.recipe import MAX_SEGMENTS, Recipe, Segments, require
from optcc.schedule.ring import NicSpread, PlainRing
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster
from optcc.values.json_records import OMITTED, Index, Natural

# R2CC-AllReduce: the published scheme for one degraded server, as transfers.
#
# Stage 1: a ring over all ranks reduces the share 1-Y of the data while a ring over the healthy ranks reduces the
# other Y (the tail). Stage 2: the tail's partial sums meet the degraded rank's contribution, and the result is
# broadcast, in K chunks. So one chunk comes down the weak link while the one before goes up. With Y = X, the lost
# share of the rate, stage 1 takes as long as the fault-free ring.
#
# Source: Wang, Yu, Xiong and Liu, arXiv:2512.25059, section "R2CC AllReduce", and the K chunks of a reduce and a
# broadcast each from the authors' implementation (github.com/r2cc-project/R-2CCL). There a healthy helper reduces and
# broadcasts. Here the degraded rank does, the mirror image with the same bytes on its link. A transfer may overwrite
# bytes only after all transfers that read them. The helper could not report to the degraded rank that it has read its
# own.


def broadcast_template(healthy: list[int], weak: int, segments: int, last: int, way: Way) -> list[TemplateRow]:
    """Stage 2 of one chunk of `segments` segments: every section to the degraded rank, which adds, then along the
    healthy ranks. The degraded rank sends nothing before the chunk's last segments, `last` of them, one in every
    channel, have come from every helper.

    A section's helper is the rank that its allgather in stage 1 reached last: by then nobody reads the partial sum. The
    broadcast ends at it, so that no healthy rank sends the tail more than once.
    """
    m, rows = len(healthy), list[TemplateRow]()
    landed = [
        add_row(rows, s, way(healthy[s % m - 1], weak), s // m, True, Stage.TO_LEAF, ()) for s in range(segments * m)
    ]
    complete = sum(landed[-m * last :], ())
    for s in range(segments * m):
        hop, chain = segments + s // m, [*healthy[s % m :], *healthy[: s % m]]
        waits = tuple(sorted({*landed[s], *complete}))
        first = add_row(rows, s, way(weak, chain[0]), hop, False, Stage.FROM_LEAF, waits)
        copy_chain(rows, s, chain, way, hop + 1, first)
    return rows


def waiting(schedule: Schedule, waits: NDArray[np.int64], dep: NDArray[np.int64]) -> Schedule:
    """The schedule with more dependencies, all of them new: row waits[i] also waits for row dep[i].

    -1 stands for a transfer left out because it has no bytes; its dependents do not wait.
    """
    waits = np.concatenate((np.repeat(np.arange(len(schedule)), np.diff(schedule.dep_ptr)), waits))
    dep = np.concatenate((schedule.dep_idx, dep))
    there = (waits >= 0) & (dep >= 0)
    waits, dep = waits[there], dep[there]
    counts = np.bincount(waits, minlength=len(schedule))
    return schedule.replace(
        dep_ptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int64), dep_idx=dep[np.lexsort((dep, waits))]
    )


def after(first: Schedule, then: Schedule) -> Schedule:
    """All rows of `first`, then those of `then`, made last over the same routes, which wait for none of them."""
    columns = ("route", "offset", "length", "reduce", "stage")
    return then.replace(
        **{name: np.concatenate((getattr(first, name), getattr(then, name))) for name in columns},
        segment=np.concatenate((first.segment, then.segment + first.segment.max(initial=-1) + 1)).astype(np.int32),
        dep_ptr=np.concatenate((first.dep_ptr, first.dep_ptr[-1] + then.dep_ptr[1:])),
        dep_idx=np.concatenate((first.dep_idx, then.dep_idx + len(first))),
    )


@dataclass(frozen=True)
class R2cc(Recipe):
    """R2CC-AllReduce around one degraded rank.

    Attributes
    ----------
    segments : number in both rings, over
    chunks : K; divides the segments of one channel, or is a multiple of them: the rings may be shallower than stage 2,
        which alone gets quicker with K
    weak : the degraded rank; tail : Y, the share of the data that only healthy ranks reduce in stage 1
    channels : segment i is of channel i modulo so many, on one NIC of each server, and a divisor of `segments`; None:
        every transfer is striped over all NICs
    """

    family: ClassVar[str] = "r2cc-allreduce"
    segments: Segments
    chunks: Natural
    weak: Index
    tail: Fraction
    channels: Annotated[Segments | None, OMITTED] = None

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        routes, ranks, k, count = Routes(cluster), len(cluster.ranks), self.segments, self.channels or 1
        m, healthy = ranks - 1, [r for r in range(ranks) if r != self.weak]
        start = granule((1 - self.tail) * nbytes, nbytes)
        whole, tail = segment_bounds(0, start, k, ranks), segment_bounds(start, nbytes, k, m)
        parts = max(1, self.chunks * count // k)
        groups = self.chunks // parts
        require_memory((2 * ranks * m + 2 * m * (m - 1) + (m + 1) * m * parts) * k)
        every = np.arange(k)
        rings = [(ring_template(range(ranks), routes), every, whole), (ring_template(healthy, routes), every, tail)]
        down, bounds = broadcast_template(healthy, self.weak, k // groups, count, routes), _parts(tail, groups, parts)
        blocks = []
        for part in range(parts):
            template = [row._replace(section=row.section * parts + part) for row in down]
            blocks.append((template, np.arange(groups) * parts + part, bounds))
        stage1 = assemble(cluster, nbytes, routes, rings)
        stage2 = assemble(cluster, nbytes, routes, blocks)
        stage2 = waiting(stage2, *_window(stage2, bounds, parts, count * m + 1))
        up, done = _stage1_done(stage1, stage2, start, self.weak)
        schedule = waiting(after(stage1, stage2), len(stage1) + up, done)
        return schedule if self.channels is None else on_single_nics(schedule, cluster, count, [whole, tail])

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless there are 3 ranks, and rank, share and chunks are in range."""
        ranks = len(cluster.ranks)
        require(ranks >= 3, "ranks", "3 or more", ranks)
        super().check(cluster)
        chunks, weak = self.chunks, self.weak
        require_channels(self.channels, cluster)
        depth, rest = divmod(self.segments, self.channels or 1)
        require(rest == 0 and depth > 0, "channels", f"a divisor of {self.segments} segments", self.channels)
        fits = chunks <= MAX_SEGMENTS and 0 in (depth % chunks, chunks % depth)
        require(fits, "chunks", f"a divisor or a multiple of {depth}", chunks)
        require(weak < ranks, "weak", f"a rank, 0 to {ranks - 1}", weak)
        require(0 < self.tail < 1, "tail", "above 0, below 1", self.tail)

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        name = cluster.ranks[self.weak].name
        return [
            ("stage 1", f"{float(1 - self.tail) * 100:.4g} % in a ring of all, the rest in a ring without {name}"),
            ("stage 2", f"{float(self.tail) * 100:.4g} % to {name}, summed and broadcast in {self.chunks} chunks"),
            ("segments", f"{self.segments}, {in_channels(self.channels)}"),
        ]


def _parts(sections: NDArray[np.int64], groups: int, parts: int) -> NDArray[np.int64]:
    """Bounds of the rings' sections (segments, m + 1) as so many groups of segments, each section in `parts`."""
    cut = [np.concatenate([even_cuts(a, b, parts)[:-1] for a, b in pairwise(row)]) for row in sections.tolist()]
    bounds = np.stack(cut).reshape(groups, -1)
    return np.concatenate((bounds, sections[len(sections) // groups - 1 :: len(sections) // groups, -1:]), 1)


def _window(
    stage2: Schedule, bounds: NDArray[np.int64], parts: int, segment: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row, row that it waits for). A section goes up once the section one chunk and one segment before it has come
    down to its helper. Otherwise fast helpers would run ahead of slow ones, and chunks would be complete late.

    segment : sections of a segment in every channel, and 1 from helper to helper
    """
    lengths = np.diff(bounds, axis=1)
    up, down = np.full((2, lengths.size), -1, np.int64)
    for rows, stage in ((up, Stage.TO_LEAF), (down, Stage.FROM_LEAF)):
        mine = np.flatnonzero(stage2.stage == stage)
        rows[lengths.ravel() > 0] = mine[np.argsort(stage2.offset[mine])]
    # By chunk: the first part of every section of a group of segments, then the second, ...
    up, down = (rows.reshape(len(bounds), -1, parts).transpose(0, 2, 1).ravel() for rows in (up, down))
    ahead = lengths.shape[1] // parts + segment
    return up[ahead:], down[: max(0, len(down) - ahead)]


def _stage1_done(
    stage1: Schedule, stage2: Schedule, start: int, weak: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row of stage 2, row of stage 1 that it waits for). A helper sends a section once its partial sum and the last
    transfers of both rings have reached it."""
    tail = stage1.offset >= start
    last = np.full((2, stage1.ranks), -1, np.int64)
    np.maximum.at(last, (tail.astype(np.int64), stage1.dst), np.arange(len(stage1)))
    finished = np.flatnonzero(tail & (stage1.stage == Stage.ALLGATHER))
    up = np.flatnonzero(stage2.dst == weak)
    helper = stage2.src[up]

    def key(rank: NDArray[np.int32], offset: NDArray[np.int64]) -> NDArray[np.int64]:
        return rank.astype(np.int64) * stage1.nbytes + offset

    keys = key(stage1.dst[finished], stage1.offset[finished])
    by_key = np.argsort(keys)
    # The transfer up may carry a part of a section: the last one that begins at or before it.
    landed = finished[by_key[np.searchsorted(keys, key(helper, stage2.offset[up]), side="right", sorter=by_key) - 1]]
    dep = np.stack((landed, last[0, helper], last[1, helper]), 1)
    dep[dep[:, 2] == landed, 2] = -1
    return np.repeat(up, 3), dep.ravel()


# OptCC as published: four patterns of equal segments around one degraded rank, served slot by slot.
#
# A segment is a ring over the healthy ranks; the degraded rank joins by one transfer each way per section, in four
# stages (see `Stage`). Patterns A and C go 1 2 3 4, patterns B and D go 3 1 4 2. Segments take the patterns in turn,
# and every four of them (of a channel, where there are channels) start as this table says; a slot is the time in
# which the degraded rank moves one segment.
#
#     slot      0        1        2        3        4
#     A         1        2        3        4
#     B         3        1        4        2
#     C                  1        2        3        4
#     D                  3        1        4        2
#
# The degraded rank receives A C B D and sends B D A C, one of each per slot, while the next four follow from slot 4
# on: k segments take k + 1 slots, (k+1)/k of the bound. A degraded rank that keeps more than about half of its rate
# (1/l with l < 2 - 1/(P-1)) would idle in its slots. So the bound's share of the data goes round a ring of all ranks
# instead, one equal segment per slot.
#
# Source: Chen, Jiang, Yu, Wang, Xiong, Wang and Liu, arXiv:2606.01680, as far as public text tells; what is our
# reading stands in docs/baselines.md.


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
        name = cluster.ranks[self.weak].name
        return [
            ("share", f"{float(self.nested) * 100:.4g} % in patterns A B C D around {name}, the rest in a ring of all"),
            ("segments", f"{self.segments}, equal, {in_channels(self.channels)}"),
        ]


def ring(cluster: Cluster, segments: int) -> PlainRing:
    """A ring in cluster order, every live NIC with the same part of every transfer."""
    return PlainRing(segments, NicSpread.EQUAL)


def balance(cluster: Cluster, segments: int) -> PlainRing:
    """The same ring, transfers spread over live NICs by their rates: T = T0/(1-X) (proof id ``rivals``)."""
    return PlainRing(segments, NicSpread.RATE)


def hot_repair(cluster: Cluster, segments: int) -> PlainRing:
    """The fault-free ring with a dead NIC's channel on one backup NIC: T = 2 T0 (proof id ``rivals``).

    Raises InputError where no NIC is dead: nothing was repaired then.
    """
    if all(nic.out_rate and nic.in_rate for server in cluster.servers for nic in server.nics):
        raise InputError("nothing to repair", where="hot-repair", expected="a dead NIC", got="none")
    return PlainRing(segments, NicSpread.REPAIRED)


def r2cc(cluster: Cluster, segments: int) -> R2cc:
    """R2CC-AllReduce with Y = X and as many chunks as segments: T/T0 = 1 + X (1 + 1/K) P/(2(P-1)(1-X)) (proof id
    ``rivals``). Raises InputError unless one server of 3 or more is degraded.
    """
    weak, left = one_degraded(cluster, "r2cc")
    return R2cc(segments, segments, weak, 1 - left)


def optcc_published(cluster: Cluster, segments: int) -> OptccPaper:
    """OptCC with `segments` equal segments: at most (k+1)/k of the bound. Raises InputError as `r2cc` does."""
    weak, left = one_degraded(cluster, "optcc-published")
    return OptccPaper(segments, weak, paper_share(len(cluster.ranks), left))


def nccl_tree(cluster: Cluster, segments: int) -> NcclTree:
    """NCCL's Tree with the slowest servers where they carry least."""
    return NcclTree(segments, tuple(best_order([min(rank.out_rate, rank.in_rate) for rank in cluster.ranks])))


BASELINES: dict[str, Callable[[Cluster, int], Recipe]] = {
    "ring": ring,
    "balance": balance,
    "hot-repair": hot_repair,
    "nccl-tree": nccl_tree,
    "r2cc": r2cc,
    "optcc-published": optcc_published,
}
"""Name -> maker of (cluster, segments). `Recipe.check` says what else a baseline asks of the cluster."""


def one_degraded(cluster: Cluster, scheme: str) -> tuple[int, Fraction]:
    """The one degraded rank among equals, and the part of their rate that it keeps, the lesser of out and in.

    Raises InputError when there are fewer than 3 ranks, or another number of ranks is below the best.
    """
    rates = [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]
    weak = [r for r, rate in enumerate(rates) if rate < max(rates)]
    if len(rates) < 3 or len(weak) != 1 or not rates[weak[0]]:
        raise InputError(
            "published for one degraded server only",
            where=scheme,
            expected="3 or more servers, one of them with less than the others' rate and more than none",
            got=f"{len(rates)} servers, {len(weak)} with less than the best",
        )
    return weak[0], rates[weak[0]] / max(rates)
