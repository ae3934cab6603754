"""From templates to columns: a family writes the transfers of a segment once, here they are tiled over all segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError
from optcc.schedule.columns import GRANULE, Schedule, Stage
from optcc.schedule.recipe import MAX_SEGMENTS, require
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster


class TemplateRow(NamedTuple):
    """One transfer of a template: a pattern's segment, before it gets its bytes."""

    section: int
    route: int
    hop: int
    reduce: int  # as in `Schedule`
    stage: Stage
    deps: tuple[int, ...]  # places in the template
    credits: tuple[int, ...] = ()  # places in the template whose copy `window` segments earlier must have finished
    sections: int = 1  # how many it carries, from `section` on


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
    cluster: Cluster, nbytes: int, routes: Routes, blocks: list[Block], window: int = 0, period: int | None = None
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
        stop = section + np.array([row.sections for row in template])
        columns["length"].append((bounds[:, stop] - offset).ravel())
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
    own = (c[name][order] for name in ("route", "offset", "length", "reduce", "stage", "segment"))
    return routes.schedule(nbytes, own, np.bincount(waits, minlength=len(order)), dep[by_row])


# Rows of a section that goes along a chain of ranks: what rings, nested rings and the published schemes share.


Way = Callable[[int, int], int]
"""(source rank, destination rank) -> index of the route."""
Landed = tuple[int, ...]
"""Places in the template of what a next row waits for."""


def add_row(
    rows: list[TemplateRow], section: int, route: int, hop: int, reduce: bool, stage: Stage, deps: Landed
) -> Landed:
    """Append a row to a template; returns its place, as what a next row waits for."""
    rows.append(TemplateRow(section, route, hop, reduce, stage, deps))
    return (len(rows) - 1,)


def reduce_chain(
    rows: list[TemplateRow], section: int, chain: Sequence[int], way: Way, hop: int, landed: Landed = ()
) -> Landed:
    """Append the sum of a section along `chain`, from hop `hop` on, its first transfer after `landed`."""
    for place, (src, dst) in enumerate(pairwise(chain)):
        landed = add_row(rows, section, way(src, dst), hop + place, True, Stage.REDUCE_SCATTER, landed)
    return landed


def copy_chain(
    rows: list[TemplateRow], section: int, chain: Sequence[int], way: Way, hop: int, landed: Landed
) -> Landed:
    """Append the way of a finished section from the first rank of `chain` to all others, one after the other."""
    for place, (src, dst) in enumerate(pairwise(chain)):
        landed = add_row(rows, section, way(src, dst), hop + place, False, Stage.ALLGATHER, landed)
    return landed


def chain_to(owner: int, ring: Sequence[int]) -> list[int]:
    """All ranks of a ring in its order, the one at place `owner` (modulo their number) last."""
    return [ring[(owner + 1 + i) % len(ring)] for i in range(len(ring))]


def ring_template(ring: Sequence[int], way: Way) -> list[TemplateRow]:
    """One segment of a plain ring AllReduce over `ring`: as many sections as ranks, hops 0 to 2(m-1) - 1.

    A section is summed along the ring into its owner, and goes round from there (Patarasuk and Yuan, 2009).
    """
    m, rows = len(ring), list[TemplateRow]()
    for s in range(m):
        chain = chain_to(s, ring)
        landed = reduce_chain(rows, s, chain, way, 0)
        copy_chain(rows, s, [chain[-1], *chain[:-1]], way, m - 1, landed)
    return rows


def segment_bounds(start: int, stop: int, segments: int, sections: int) -> NDArray[np.int64]:
    """Section bounds of equal segments of bytes start..stop: int64, shape (segments, sections + 1)."""
    cuts = even_cuts(start, stop, segments).tolist()
    return np.stack([even_cuts(a, b, sections) for a, b in pairwise(cuts)])


# Channels: whole sections on single NICs, as collective libraries run a scheme.
#
# A transfer striped over all NICs of two servers costs a chunk on each NIC, and more where the servers have unequally
# many. In channels it costs one chunk on one NIC at either end, and the NICs work on different segments at the same
# time. So k segments on c NICs fill the pipeline as k/c striped segments would.
#
# A server deals the sections of all segments to its NICs in turn, by their rates: a channel to each, where there are
# as many and all are alike. Or channel c joins the c-th fastest NICs of all servers, with a part of the data by the
# slowest of them (`channel_rates`).


def channel_count(cluster: Cluster) -> int:
    """The number of channels: of NICs that work both ways at the server with most of them.

    Raises InputError for GPUs as ranks, for rails, and for a rank without a NIC that works both ways.
    """
    return max(map(len, _both_ways(cluster)))


def channel_rates(cluster: Cluster) -> list[Fraction]:
    """Of channel c the rate of the slowest of all servers' c-th fastest NICs; as many as the server with fewest NICs
    has. Raises InputError as `channel_count`."""
    ranked = [sorted((rate for _, rate in nics), reverse=True) for nics in _both_ways(cluster)]
    return [min(rates) for rates in zip(*ranked, strict=False)]


def require_channels(channels: int | None, cluster: Cluster) -> None:
    """Raise InputError unless `channels` is None, all transfers striped, or a number of channels for the cluster."""
    if channels is not None:
        whole = type(channels) is int and 1 <= channels <= MAX_SEGMENTS
        require(whole, "channels", f"1 to {MAX_SEGMENTS}, or none", channels)
        channel_count(cluster)


def in_channels(channels: int | None) -> str:
    """In channels or striped, as text for people."""
    return "striped over all NICs" if channels is None else f"on single NICs, {channels} channels"


def on_single_nics(
    schedule: Schedule, cluster: Cluster, count: int, parts: Sequence[NDArray[np.int64]], *, fastest: bool = False
) -> Schedule:
    """The schedule with every transfer on one NIC at either end.

    count : of channels, which segments take in turn
    parts : of each part of the buffer the bounds of its sections, int64, shape (segments, sections + 1); no transfer
        has bytes of two sections
    fastest : channel c goes by the c-th fastest NICs; otherwise NICs are dealt their sections in turn
    Raises InputError as `channel_count`.
    """
    turn = np.zeros(len(schedule), np.int64)
    for bounds in parts:
        here = np.flatnonzero((schedule.offset >= bounds[0, 0]) & (schedule.offset < bounds[-1, -1]))
        place = np.searchsorted(bounds[:, :-1].ravel(), schedule.offset[here], side="right") - 1
        sections = bounds.shape[1] - 1
        segment, section = np.divmod(place, sections)
        turn[here] = (segment // count * sections + section) * count + segment % count
    turns = int(turn.max(initial=0)) + 1
    routes, ranks = Routes(cluster), cluster.ranks
    dealt = cache(lambda rates: _dealt(rates, turns))  # most servers have the same rates
    ports = np.empty((len(ranks), turns), np.int64)
    for rank, nics in enumerate(_both_ways(cluster)):
        server = cluster.servers[ranks[rank].server].name
        mine = [routes.port_index[f"{server}/{name}"] for name, _ in nics]
        rates = tuple(rate for _, rate in nics)
        by_rate = sorted(range(len(rates)), key=lambda nic: -rates[nic])
        ports[rank] = np.array(mine)[np.array(by_rate)[np.arange(turns) % count] if fastest else dealt(rates)]
    ends = np.stack((schedule.src, schedule.dst, ports[schedule.src, turn], ports[schedule.dst, turn]), 1)
    used, which = np.unique(ends, axis=0, return_inverse=True)
    found = [routes.pinned(src, dst, [(out, into, Fraction(1))]) for src, dst, out, into in used.tolist()]
    route = np.array(found, np.int32)[which.ravel()] if found else schedule.route
    return schedule.replace(routes=tuple(routes.table), route=route)


def _dealt(rates: tuple[Fraction, ...], turns: int) -> NDArray[np.int64]:
    """The NIC of each turn: the one that would finish its turns first, of equal ones the first."""
    done = np.arange(1, turns + 1)[:, None] / np.array([float(rate / max(rates)) for rate in rates])
    return np.argsort(done.ravel(), kind="stable")[:turns] % len(rates)


def _both_ways(cluster: Cluster) -> list[list[tuple[str, Fraction]]]:
    """Of each rank the name and rate of its NICs that work both ways; the rate is the slower way's."""
    if cluster.gpu_ranks or not cluster.fabric.flat:
        raise InputError(
            "no channels here",
            where="cluster",
            expected="servers as ranks, and NICs that all reach each other",
            got="GPUs as ranks" if cluster.gpu_ranks else "rails or pods",
            hint="Transfers can be striped there.",
        )
    found = []
    for rank in cluster.ranks:
        found.append([(nic.name, min(nic.out_rate, nic.in_rate)) for nic in rank.nics if nic.out_rate and nic.in_rate])
        if not found[-1]:
            raise InputError("no channels here", where=rank.name, expected="a NIC that works both ways", got="none")
    return found
