"""The channels of `optcc.schedule.inside` put together: ranks for places in crews, routes, one order of all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.cluster import Cluster
from optcc.schedule.columns import Schedule
from optcc.schedule.inside_crews import Crew
from optcc.schedule.inside_rows import Rows
from optcc.schedule.inside_spans import ranges
from optcc.schedule.routes import Routes


@dataclass(frozen=True, eq=False)
class Placed:
    """A channel's rows: from byte `start` of the buffer on, among `crews`, whose channel it is by their `places`."""

    start: int
    crews: Sequence[Crew]
    places: Sequence[int]
    rows: Rows


def join(cluster: Cluster, nbytes: int, parts: Sequence[Placed]) -> Schedule:
    """All rows in one order: by key, where every channel's keys are stretched to the same range of time."""
    routes, base = Routes(cluster), 0
    way = _ways(cluster, routes)
    parts = [part for part in parts if len(part.rows.key)]
    found: list[tuple[NDArray[Any], ...]] = [tuple(np.zeros(0, np.int64) for _ in range(9))]
    longest = max((int(part.rows.key[-1]) for part in parts), default=0)
    for part in parts:
        rows = part.rows
        ends = _ranks(part)[rows.pairs[:, ::2], rows.pairs[:, 1::2]]
        route = np.array([way(src, dst) for src, dst in ends.tolist()], np.int32)[rows.pair]
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
        routes=tuple(routes.table),
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


def _ways(cluster: Cluster, routes: Routes) -> Callable[[int, int], int]:
    """As `routes`, which adds rates up; between single NICs on one fabric, of which there are many, it need not."""
    only = [-1] * len(cluster.ranks)
    for rank in cluster.ranks if cluster.fabric.flat else ():
        live = [nic for nic in rank.nics if nic.alive]
        if len(live) == 1 and live[0].out_rate and live[0].in_rate:
            only[rank.index] = routes.port_index[f"{cluster.servers[rank.server].name}/{live[0].name}"]
    servers, whole = [rank.server for rank in cluster.ranks], (Fraction(1),)

    @cache
    def way(src: int, dst: int) -> int:
        out, into = only[src], only[dst]
        if out < 0 or into < 0 or servers[src] == servers[dst]:
            return routes(src, dst)
        return routes.alike(src, dst, ((out, into),), whole)

    return way


def _ranks(part: Placed) -> NDArray[np.int64]:
    """int64 (crews, places): the rank so far behind the place."""
    width = max(len(crew.gpus) for crew in part.crews)
    table = [
        [crew.gpus[(place + behind) % len(crew.gpus)].index for behind in range(width)]
        for crew, place in zip(part.crews, part.places, strict=True)
    ]
    return np.array(table, np.int64)
