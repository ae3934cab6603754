"""The channels of `optcc.schedule.inside` put together: ranks for places in groups, routes, one order of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.columns import Lane, Route, Schedule
from optcc.schedule.inside_cells import Ints, ranges
from optcc.schedule.inside_groups import GpuGroup
from optcc.schedule.inside_rows import GpuRows
from optcc.schedule.many_objects import no_collection
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster


@dataclass(frozen=True, eq=False)
class Placed:
    """A channel's rows: from byte `start` of the buffer on, among `groups`, whose channel it is by their `places`."""

    start: int
    groups: Sequence[GpuGroup]
    places: Sequence[int]
    rows: GpuRows


def join(cluster: Cluster, nbytes: int, parts: Sequence[Placed]) -> Schedule:
    """All rows in one order: by key, where every channel's keys are stretched to the same range of time."""
    routes, base = Routes(cluster), 0
    parts = [part for part in parts if len(part.rows.key)]
    ends = [_ranks(part)[part.rows.pairs[:, ::2], part.rows.pairs[:, 1::2]] for part in parts]
    table, route_of = _table(cluster, routes, np.concatenate([np.zeros((0, 2), np.int64), *ends]))
    found: list[tuple[NDArray[Any], ...]] = [tuple(np.zeros(0, np.int64) for _ in range(9))]
    longest = max((int(part.rows.key[-1]) for part in parts), default=0)
    pairs = 0
    for part, mine in zip(parts, ends, strict=True):
        rows = part.rows
        route = route_of[pairs + rows.pair]
        pairs += len(mine)
        key = rows.key * (longest // max(1, int(rows.key[-1])))
        columns = (rows.offset + part.start, rows.length, rows.reduce, rows.stage, rows.segment)
        found.append((route, *columns, key, rows.waits, rows.dep + base))
        base += len(route)
    route, offset, length, reduce, stage, segment, key, waits, dep = map(np.concatenate, zip(*found, strict=True))
    order = np.argsort(key, kind="stable")
    place = np.empty(base, np.int64)
    place[order] = np.arange(base)
    return Schedule(
        ranks=len(cluster.ranks),
        nbytes=nbytes,
        ports=routes.ports,
        routes=table,
        route=route[order].astype(np.int32),
        offset=offset[order],
        length=length[order],
        reduce=reduce[order].astype(np.bool_),
        stage=stage[order].astype(np.uint8),
        segment=segment[order].astype(np.int32),
        dep_ptr=np.concatenate(([0], np.cumsum(waits[order]))).astype(np.int64),
        dep_idx=place[dep[ranges((np.cumsum(waits) - waits)[order], waits[order])]],
        links=routes.links,
    )


def _table(cluster: Cluster, routes: Routes, ends: Ints) -> tuple[tuple[Route, ...], Ints]:
    """The routes between these (source, destination), in the order in which they come, and which is whose.

    Where both ends have a single port that can take part there is one lane, which `routes` need not work out.
    """
    ranks = len(cluster.ranks)
    pairs, first, which = np.unique(ends[:, 0] * ranks + ends[:, 1], return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    src, dst = np.divmod(pairs[order], ranks)
    server = np.array([rank.server for rank in cluster.ranks], np.int64)
    beside = server[src] == server[dst]
    nic, nvlink = _only_ports(cluster, routes)
    out, into = (np.where(beside, nvlink[rank], nic[rank]) for rank in (src, dst))
    whole = Fraction(1)
    with no_collection():
        table = tuple(
            Route(a, b, (Lane(leaves, enters, whole),)) if leaves >= 0 and enters >= 0 else routes.table[routes(a, b)]
            for a, b, leaves, enters in zip(*(column.tolist() for column in (src, dst, out, into)), strict=True)
        )
    return table, place[which]


def _only_ports(cluster: Cluster, routes: Routes) -> tuple[Ints, Ints]:
    """Each rank's only live NIC, if it works both ways and one fabric joins all, and its NVLink port; -1: no such."""
    nic, nvlink = np.full((2, len(cluster.ranks)), -1)
    for rank in cluster.ranks if cluster.fabric.flat else ():
        live = [each for each in rank.nics if each.alive]
        if len(live) == 1 and live[0].out_rate and live[0].in_rate:
            nic[rank.index] = routes.port_index[f"{cluster.servers[rank.server].name}/{live[0].name}"]
    for index, port in enumerate(routes.ports):
        if port.nvlink:
            nvlink[port.rank] = index
    return nic, nvlink


def _ranks(part: Placed) -> Ints:
    """int64 (groups, places): the rank so far behind the place."""
    width = max(len(group.gpus) for group in part.groups)
    table = [
        [group.gpus[(place + behind) % len(group.gpus)].index for behind in range(width)]
        for group, place in zip(part.groups, part.places, strict=True)
    ]
    return np.array(table, np.int64)
