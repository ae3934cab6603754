"""The channels of `optcc.schedule.inside` put together: ranks for places in crews, routes, one order of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    parts = [part for part in parts if len(part.rows.key)]
    found: list[tuple[NDArray[Any], ...]] = [tuple(np.zeros(0, np.int64) for _ in range(9))]
    longest = max((int(part.rows.key[-1]) for part in parts), default=0)
    for part in parts:
        rows = part.rows
        ends = _ranks(part)[rows.pairs[:, ::2], rows.pairs[:, 1::2]]
        route = np.array([routes(src, dst) for src, dst in ends.tolist()], np.int32)[rows.pair]
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


def _ranks(part: Placed) -> NDArray[np.int64]:
    """int64 (crews, places): the rank so far behind the place."""
    width = max(len(crew.gpus) for crew in part.crews)
    table = [
        [crew.gpus[(place + behind) % len(crew.gpus)].index for behind in range(width)]
        for crew, place in zip(part.crews, part.places, strict=True)
    ]
    return np.array(table, np.int64)
