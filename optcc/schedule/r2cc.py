"""R2CC-AllReduce: the published scheme for one degraded server, as transfers.

Stage 1: a ring over all ranks reduces the share 1-Y of the data while a ring over the healthy ranks reduces the other
Y (the tail). Stage 2: the tail's partial sums meet the degraded rank's contribution and the result is broadcast, in K
chunks, so that one chunk comes down the weak link while the one before goes up. With Y = X, the lost share of the
rate, stage 1 takes as long as the fault-free ring.

Source: Wang, Yu, Xiong and Liu, arXiv:2512.25059, section "R2CC AllReduce", and the K chunks of a reduce and a
broadcast each from the authors' implementation (github.com/r2cc-project/R-2CCL). There a healthy helper reduces and
broadcasts. Here the degraded rank does, the mirror image with the same bytes on its link: a transfer may overwrite
bytes only after all that read them, and the helper could not tell the degraded rank that it has read its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from optcc.cluster import Cluster
from optcc.schedule.assemble import Block, Row, assemble, granule
from optcc.schedule.columns import Schedule, Stage
from optcc.schedule.recipe import Recipe, demand, demand_segments, exact
from optcc.schedule.ring import Way, add_row, copy_chain, ring_template, segment_bounds
from optcc.schedule.routes import Routes


def broadcast_template(healthy: list[int], weak: int, segments: int, way: Way) -> list[Row]:
    """Stage 2 of one chunk of `segments` segments: every section to the degraded rank, which adds, then along the
    healthy ranks. The degraded rank sends nothing before the chunk's last segment has come from every helper.

    A section's helper is the rank that its allgather in stage 1 reached last: by then nobody reads the partial sum. The
    broadcast ends at it, so that no healthy rank sends the tail more than once.
    """
    m, rows = len(healthy), list[Row]()
    landed = [
        add_row(rows, s, way(healthy[s % m - 1], weak), s // m, True, Stage.TO_LEAF, ()) for s in range(segments * m)
    ]
    complete = sum(landed[-m:], ())
    for s in range(segments * m):
        hop, chain = segments + s // m, [*healthy[s % m :], *healthy[: s % m]]
        waits = tuple(sorted({*landed[s], *complete}))
        first = add_row(rows, s, way(weak, chain[0]), hop, False, Stage.FROM_LEAF, waits)
        copy_chain(rows, s, chain, way, hop + 1, first)
    return rows


def waiting(schedule: Schedule, waits: NDArray[np.int64], dep: NDArray[np.int64]) -> Schedule:
    """The schedule with more dependencies, none of them there already: row waits[i] also waits for row dep[i].

    -1 stands for a transfer that was left out because it has no bytes; who would wait for it does not.
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
    segments : pipeline depth of both rings; chunks : K, a divisor of it
    weak : the degraded rank; tail : Y, the share of the data that only healthy ranks reduce in stage 1
    """

    family: ClassVar[str] = "r2cc-allreduce"
    segments: int
    chunks: int
    weak: int
    tail: Fraction

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        routes, ranks, k, chunks = Routes(cluster), len(cluster.ranks), self.segments, self.chunks
        healthy = [r for r in range(ranks) if r != self.weak]
        start = granule((1 - self.tail) * nbytes, nbytes)
        sections = segment_bounds(start, nbytes, k, ranks - 1)
        rings: list[Block] = [
            (ring_template(range(ranks), routes), np.arange(k), segment_bounds(0, start, k, ranks)),
            (ring_template(healthy, routes), np.arange(k), sections),
        ]
        ends = sections[k // chunks - 1 :: k // chunks, -1:]
        bounds = np.concatenate((sections[:, :-1].reshape(chunks, -1), ends), 1)
        template = broadcast_template(healthy, self.weak, k // chunks, routes)
        stage1 = assemble(cluster, nbytes, routes, rings)
        stage2 = assemble(cluster, nbytes, routes, [(template, np.arange(chunks), bounds)])
        stage2 = waiting(stage2, *_window(stage2, bounds, ranks))
        up, done = _stage1_done(stage1, stage2, start, self.weak)
        return waiting(after(stage1, stage2), len(stage1) + up, done)

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless there are 3 ranks, and rank, share and chunks are in range."""
        ranks = len(cluster.ranks)
        demand(ranks >= 3, "ranks", "3 or more", ranks)
        demand_segments(self.segments)
        chunks, weak = self.chunks, self.weak
        demand(type(chunks) is int and chunks >= 1 and self.segments % chunks == 0, "chunks", "a divisor", chunks)
        demand(type(weak) is int and 0 <= weak < ranks, "weak", f"a rank, 0 to {ranks - 1}", weak)
        demand(0 < self.tail < 1, "tail", "above 0, below 1", self.tail)

    def content(self) -> dict[str, Any]:
        """Every field as JSON values."""
        return {"segments": self.segments, "chunks": self.chunks, "weak": self.weak, "tail": str(self.tail)}

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """The recipe of `content`."""
        return cls(raw["segments"], raw["chunks"], raw["weak"], exact(raw["tail"]))

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """Both stages and the pipeline."""
        name = cluster.ranks[self.weak].name
        return [
            ("stage 1", f"{float(1 - self.tail) * 100:.4g} % in a ring of all, the rest in a ring without {name}"),
            ("stage 2", f"{float(self.tail) * 100:.4g} % to {name}, summed and broadcast in {self.chunks} chunks"),
            ("segments", f"{self.segments}"),
        ]

    def channels(self, schedule: Schedule) -> Iterable[dict[str, Any]]:
        """The ring of all, and the one without its leaf."""
        from optcc.plan_layout import LEAF_LAST, PLAIN, ring

        start = granule((1 - self.tail) * schedule.nbytes, schedule.nbytes)
        healthy = [r for r in range(schedule.ranks) if r != self.weak]
        whole = segment_bounds(0, start, self.segments, schedule.ranks).tolist()
        tail = segment_bounds(start, schedule.nbytes, self.segments, len(healthy)).tolist()
        yield ring(range(schedule.ranks), (), [(g, PLAIN, cuts) for g, cuts in enumerate(whole)])
        yield ring(healthy, [self.weak], [(g, LEAF_LAST, cuts) for g, cuts in enumerate(tail)])


def _window(stage2: Schedule, bounds: NDArray[np.int64], ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row, row that it waits for): a section goes up once the section one chunk and one segment before it has come
    down to its helper. Without that, fast helpers would run ahead of slow ones and chunks be complete late.
    """
    lengths = np.diff(bounds, axis=1).ravel()
    up, down = np.full((2, len(lengths)), -1, np.int64)
    for rows, stage in ((up, Stage.TO_LEAF), (down, Stage.FROM_LEAF)):
        mine = np.flatnonzero(stage2.stage == stage)
        rows[lengths > 0] = mine[np.argsort(stage2.offset[mine])]
    ahead = bounds.shape[1] - 1 + ranks  # sections: a chunk, a segment of ranks - 1, and 1 from helper to helper
    return up[ahead:], down[: max(0, len(down) - ahead)]


def _stage1_done(
    stage1: Schedule, stage2: Schedule, start: int, weak: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row of stage 2, row of stage 1 that it waits for): a helper sends a section once its partial sum and the last
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
    landed = finished[by_key[np.searchsorted(keys, key(helper, stage2.offset[up]), sorter=by_key)]]
    dep = np.stack((landed, last[0, helper], last[1, helper]), 1)
    dep[dep[:, 2] == landed, 2] = -1
    return np.repeat(up, 3), dep.ravel()
