"""Schedules that need no planning: one tree for what is small, and the collectives beside AllReduce.

Few messages and few hops count where little is to carry. A result is folded in row order like any other, so it has the
same bits on every run, and all ranks get the root's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optcc.schedule.columns import Schedule, Stage
from optcc.schedule.routes import Routes
from optcc.schedule.tuned import FAN, PIECE_BYTES
from optcc.values.cluster import Cluster


class _Row(NamedTuple):
    src: int
    dst: int
    offset: int
    length: int
    reduce: bool
    deps: Sequence[int] = ()


def one_tree(cluster: Cluster, nbytes: int) -> Schedule:
    """AllReduce up and down one tree with rank 0 at the root, everything in one piece."""
    ranks = len(cluster.ranks)
    rows: list[_Row] = []
    into: list[list[int]] = [[] for _ in range(ranks)]
    for rank in reversed(range(1, ranks)):
        into[_parent(rank)].append(len(rows))
        rows.append(_Row(rank, _parent(rank), 0, nbytes, True, into[rank]))
    for rank in range(1, ranks):
        above = _parent(rank)
        deps = list(into[above])
        into[rank] = [len(rows)]
        rows.append(_Row(above, rank, 0, nbytes, False, deps))
    return _schedule(cluster, nbytes, rows)


def broadcast(cluster: Cluster, nbytes: int, root: int) -> Schedule:
    """From rank `root` to all: down a tree in one piece where that is one PIECE_BYTES, else along a chain in pieces."""
    ranks = len(cluster.ranks)
    small = nbytes <= PIECE_BYTES
    rows: list[_Row] = []
    for start in range(0, nbytes, PIECE_BYTES):
        length, into = min(PIECE_BYTES, nbytes - start), {0: -1}
        for place in range(1, ranks):
            above = _parent(place) if small else place - 1
            deps = [into[above]] if above else []
            into[place] = len(rows)
            rows.append(_Row((above + root) % ranks, (place + root) % ranks, start, length, False, deps))
    return _schedule(cluster, nbytes, rows)


def all_gather(cluster: Cluster, part: int) -> Schedule:
    """Rank r's part, `part` bytes at r times `part`, to all others directly."""
    ranks = range(len(cluster.ranks))
    pairs = [
        (r, (r + hop) % len(ranks)) for hop in ranks[1:] for r in ranks
    ]  # so that nobody is sent to by all at once
    return _schedule(cluster, part * len(ranks), [_Row(r, to, r * part, part, False) for r, to in pairs])


def reduce_scatter(cluster: Cluster, part: int) -> Schedule:
    """To rank r what all others have at r times `part`, directly. The other parts are left as they were."""
    ranks = range(len(cluster.ranks))
    pairs = [(r, (r + hop) % len(ranks)) for hop in ranks[1:] for r in ranks]
    return _schedule(cluster, part * len(ranks), [_Row(r, to, to * part, part, True) for r, to in pairs])


def _parent(place: int) -> int:
    return (place - 1) // FAN


def _schedule(cluster: Cluster, nbytes: int, rows: Sequence[_Row]) -> Schedule:
    """The columns, by the cluster's own routes. Rows without bytes must not be there."""
    routes = Routes(cluster)
    stage = Stage.REDUCE_SCATTER, Stage.ALLGATHER
    columns = np.array(
        [(routes(r.src, r.dst), r.offset, r.length, r.reduce, stage[not r.reduce], 0) for r in rows], np.int64
    )
    counts, deps = [len(row.deps) for row in rows], [dep for row in rows for dep in row.deps]
    return routes.schedule(nbytes, columns.reshape(-1, 6).T, counts, deps)
