"""Nested rings lowered to transfers: a pure function of shares, rank order, segments and orderings.

In pattern m the m strongest ranks form a ring, the others are leaves. The pattern's bytes are cut into `segments`
equal segments and each segment into m sections, one per owner. A section is reduced along the ring into its owner,
and the finished section goes round from there. Leaves join in one of two orderings (stages as in `Stage`):

* LEAF_FIRST (stages 3 1 4 2): a leaf sends its raw section to the head of the chain and gets the finished one from
  the owner;
* VIA_LEAF (stages 1 2 3 4): one leaf, taken in turn, is the last to add: the owner sends it the partial section and
  gets the finished one back; other leaves go as above.

Either way every leaf sends each byte once and receives it once. The plain ring is the one pattern m = P.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.cluster import Cluster
from optcc.schedule.columns import GRANULE, Schedule, Stage
from optcc.schedule.routes import Routes, crosses_shared_links


class Ordering(StrEnum):
    """In which order the four stages follow each other within a section."""

    LEAF_FIRST = "leaf-first"
    VIA_LEAF = "via-leaf"


class _Row(NamedTuple):
    """One transfer of a template: a pattern's segment, before it gets its bytes."""

    section: int
    route: int
    hop: int
    reduce: bool
    stage: Stage
    deps: tuple[int, ...]  # places in the template


def _section(
    rows: list[_Row], s: int, ring: Sequence[int], leaves: Sequence[int], ordering: Ordering, way: Routes
) -> None:
    """Append section `s`: the chain ring[s+1], ring[s+2], ..., ring[s], whose end owns the section."""

    def add(src: int, dst: int, hop: int, reduce: bool, stage: Stage, deps: tuple[int, ...]) -> tuple[int, ...]:
        rows.append(_Row(s, way(src, dst), hop, reduce, stage, deps))
        return (len(rows) - 1,)

    m = len(ring)
    chain = [ring[(s + 1 + i) % m] for i in range(m)]
    head, owner = chain[0], chain[-1]
    via = leaves[s % len(leaves)] if leaves and ordering is Ordering.VIA_LEAF else None
    landed: tuple[int, ...] = ()
    for leaf in leaves:
        if leaf != via:
            landed += add(leaf, head, 0, True, Stage.FROM_LEAF, ())
    for i in range(1, m):
        landed = add(chain[i - 1], chain[i], i, True, Stage.REDUCE_SCATTER, landed)
    hop = m
    if via is not None:
        landed = add(owner, via, hop, True, Stage.TO_LEAF, landed)
        landed = add(via, owner, hop + 1, False, Stage.FROM_LEAF, landed)
        hop += 2
    finished = landed
    for i in range(m - 1):
        landed = add(chain[i - 1], chain[i], hop + i, False, Stage.ALLGATHER, landed)
    for leaf in leaves:
        if leaf != via:
            add(owner, leaf, hop, False, Stage.TO_LEAF, finished)


def even_cuts(start: int, stop: int, parts: int) -> NDArray[np.int64]:
    """parts + 1 positions from start to stop, inner ones multiples of GRANULE, parts equal to within one granule."""
    # Whole granules are cut in integers: no size is large enough to lose a byte to rounding.
    inner = [start + (stop - start) * i // parts // GRANULE * GRANULE for i in range(parts + 1)]
    inner[-1] = stop
    return np.maximum.accumulate(np.array(inner, np.int64))


def _cuts(start: int, stop: int, sizes: Sequence[Fraction]) -> NDArray[np.int64]:
    """Positions from start to stop that cut it in proportion to `sizes` (sum 1), inner ones multiples of GRANULE."""
    done, inner = Fraction(0), [start]
    for size in sizes[:-1]:
        done += size
        inner.append(start + int((stop - start) * done) // GRANULE * GRANULE)
    return np.array([*inner, stop], np.int64)


def lower(
    cluster: Cluster,
    nbytes: int,
    shares: Mapping[int, Fraction],
    *,
    order: Sequence[int],
    segments: int | Sequence[Fraction],
    orderings: Sequence[Ordering],
) -> Schedule:
    """Lower nested rings on `cluster` to a Schedule.

    `order` lists ranks weakest first (ring size m uses the last m); `segments` is how many equal ones, or the part of
    the data in each (sum 1); `orderings` is cycled over segments and patterns.
    """
    sizes = [Fraction(1, segments)] * segments if isinstance(segments, int) else list(segments)
    routes = Routes(cluster)
    blocks: list[_Block] = []
    done = Fraction(0)
    for which, (m, share) in enumerate(sorted(shares.items())):
        start, done = _granule(done * nbytes, nbytes), done + share
        cuts = _cuts(start, nbytes if done == 1 else _granule(done * nbytes, nbytes), sizes)
        for turn, ordering in enumerate(orderings):
            mine = np.arange((turn - which) % len(orderings), len(sizes), len(orderings))
            template: list[_Row] = []
            for s in range(m):
                _section(template, s, order[len(order) - m :], order[: len(order) - m], ordering, routes)
            bounds = [even_cuts(int(cuts[g]), int(cuts[g + 1]), m) for g in mine]
            if bounds:
                blocks.append((template, mine.astype(np.int64), np.stack(bounds)))
    return _assemble(cluster, nbytes, routes, blocks)


_Block = tuple[list[_Row], NDArray[np.int64], NDArray[np.int64]]
"""A template, the segments it is tiled over, and each segment's section bounds (segments, sections + 1)."""


def _granule(position: Fraction, nbytes: int) -> int:
    return min(nbytes, round(position / GRANULE) * GRANULE)


def _assemble(
    cluster: Cluster,
    nbytes: int,
    routes: Routes,
    blocks: list[_Block],
) -> Schedule:
    """Tile templates over their segments, drop empty transfers, sort by (segment, hop): that is the priority."""
    columns: dict[str, list[NDArray[np.int64]]] = {
        name: [] for name in ("route", "offset", "length", "reduce", "stage", "segment", "hop", "dep", "waits")
    }
    base = 0
    for template, mine, bounds in blocks:
        rows, copies = len(template), len(mine)
        section = np.array([row.section for row in template])
        offset = bounds[:, :-1][:, section]
        columns["offset"].append(offset.ravel())
        columns["length"].append((bounds[:, 1:][:, section] - offset).ravel())
        columns["segment"].append(np.repeat(mine, rows))
        for name in ("route", "reduce", "stage", "hop"):
            columns[name].append(np.tile(np.array([getattr(row, name) for row in template], np.int64), copies))
        shift = base + np.arange(copies)[:, None] * rows
        waits = np.array([i for i, row in enumerate(template) for _ in row.deps], np.int64)
        dep = np.array([d for row in template for d in row.deps], np.int64)
        columns["waits"].append((waits[None, :] + shift).ravel())
        columns["dep"].append((dep[None, :] + shift).ravel())
        base += rows * copies
    c = {name: np.concatenate(parts or [np.zeros(0, np.int64)]) for name, parts in columns.items()}

    order = np.lexsort((np.arange(base), c["hop"], c["segment"]))
    order = order[c["length"][order] > 0]
    place = np.full(base, -1, np.int64)
    place[order] = np.arange(len(order))
    # A section is dropped whole, so a kept transfer never waits for a dropped one.
    kept = place[c["waits"]] >= 0
    waits, dep = place[c["waits"]][kept], place[c["dep"]][kept]
    by_row = np.lexsort((dep, waits))
    return Schedule(
        ranks=len(cluster.ranks),
        nbytes=nbytes,
        ports=routes.ports,
        routes=tuple(routes.table),
        route=c["route"][order].astype(np.int32),
        offset=c["offset"][order],
        length=c["length"][order],
        reduce=c["reduce"][order].astype(np.bool_),
        stage=c["stage"][order].astype(np.uint8),
        segment=c["segment"][order].astype(np.int32),
        dep_ptr=np.concatenate(([0], np.cumsum(np.bincount(waits, minlength=len(order))))).astype(np.int64),
        dep_idx=dep[by_row],
        shared_links=crosses_shared_links(routes.table, cluster),
    )
