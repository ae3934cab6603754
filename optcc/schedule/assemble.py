"""From templates to columns: a family writes the transfers of a segment once, here they are tiled over all segments."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError
from optcc.schedule.columns import GRANULE, Schedule, Stage
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster


class TemplateRow(NamedTuple):
    """One transfer of a template: a pattern's segment, before it gets its bytes."""

    section: int
    route: int
    hop: int
    reduce: bool
    stage: Stage
    deps: tuple[int, ...]  # places in the template
    credits: tuple[int, ...] = ()  # places in the template whose copy `window` segments earlier must have finished


def even_cuts(start: int, stop: int, parts: int) -> NDArray[np.int64]:
    """parts + 1 positions from start to stop, inner ones multiples of GRANULE, parts equal to within one granule."""
    # Whole granules are cut in integers: no size is large enough to lose a byte to rounding.
    inner = [start + (stop - start) * i // parts // GRANULE * GRANULE for i in range(parts + 1)]
    inner[-1] = stop
    return np.maximum.accumulate(np.array(inner, np.int64))


def cuts_by(start: int, stop: int, sizes: Sequence[Fraction]) -> NDArray[np.int64]:
    """Positions from start to stop that cut it in proportion to `sizes` (sum 1), inner ones multiples of GRANULE."""
    done, inner = Fraction(0), [start]
    for size in sizes[:-1]:
        done += size
        inner.append(start + int((stop - start) * done) // GRANULE * GRANULE)
    return np.array([*inner, stop], np.int64)


Block = tuple[list[TemplateRow], NDArray[np.int64], NDArray[np.int64]]
"""A template, the segments it is tiled over, and each segment's section bounds (segments, sections + 1)."""


MAX_TRANSFERS = 2**25
"""Of one schedule: 512 ranks in a ring, 64 segments deep. So many take 8 GB while they are put in order."""


most_transfers = ContextVar("most_transfers", default=MAX_TRANSFERS)
"""A process that may take less memory sets it lower."""


def require_memory(transfers: int) -> None:
    """Raise InputError, before any is spent, for more transfers than memory should hold."""
    most = min(MAX_TRANSFERS, most_transfers.get())
    if transfers > most:
        raise InputError(
            "a schedule of too many transfers",
            where="segments",
            expected=f"at most {most} transfers",
            got=transfers,
            hint="Fewer segments, or fewer servers.",
        )


def granule(position: Fraction, nbytes: int) -> int:
    """The multiple of GRANULE nearest to `position`, within the buffer."""
    return min(nbytes, round(position / GRANULE) * GRANULE)


def assemble(
    cluster: Cluster,
    nbytes: int,
    routes: Routes,
    blocks: list[Block],
    window: int = 0,
    period: int | None = None,
) -> Schedule:
    """Tile templates over their segments, drop empty transfers, sort by (segment, hop): that is the priority.

    `window` is how many copies back a row's `credits` lie. With `period` the priority is segment * period + hop, so
    that segments overlap; a row's hop must then be above those it waits for. Raises InputError as `require_memory`.
    """
    columns: dict[str, list[NDArray[np.int64]]] = {
        name: [] for name in ("route", "offset", "length", "reduce", "stage", "segment", "hop", "dep", "waits")
    }
    require_memory(sum(len(template) * len(mine) for template, mine, _ in blocks))
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
        for back, lists in ((0, [row.deps for row in template]), (window, [row.credits for row in template])):
            waits = np.array([i for i, places in enumerate(lists) for _ in places], np.int64)
            dep = np.array([place for places in lists for place in places], np.int64)
            columns["waits"].append((waits[None, :] + shift[back:]).ravel())
            columns["dep"].append((dep[None, :] + shift[: max(0, copies - back)]).ravel())
        base += rows * copies
    c = {name: np.concatenate(parts or [np.zeros(0, np.int64)]) for name, parts in columns.items()}

    late = (c["hop"], c["segment"]) if period is None else (c["segment"] * period + c["hop"],)
    order = np.lexsort((np.arange(base), *late))
    order = order[c["length"][order] > 0]
    place = np.full(base, -1, np.int64)
    place[order] = np.arange(len(order))
    # A section is dropped whole, so a kept transfer waits for a dropped one only as a credit, and need not.
    kept = (place[c["waits"]] >= 0) & (place[c["dep"]] >= 0)
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
        links=routes.links,
    )
