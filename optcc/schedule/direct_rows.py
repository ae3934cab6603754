"""From slots to transfers: each pair's bytes of a half are cut in its slots, and overlapping transfers wait for each
other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import IntEnum
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.columns import GRANULE, Schedule, Stage
from optcc.schedule.routes import Routes
from optcc.schedule.slots import HALF, Slot
from optcc.schedule.tuned import MOST_KEPT, NEAR

Ints = NDArray[np.int64]


class Kind(IntEnum):
    """Content of a transfer: RAW goes to hubs, PARTIAL to the rank that adds last, FINAL back, RESULT to everybody."""

    RAW = 0
    PARTIAL = 1
    FINAL = 2
    RESULT = 3


STAGES = np.array(
    [
        Stage.REDUCE_SCATTER,
        Stage.TO_LEAF,
        Stage.FROM_LEAF,
        Stage.ALLGATHER,
    ]
)
ALL = (Fraction(1),)
"""The share of a transfer's only lane; one object."""
ADDED = np.isin(list(Kind), [Kind.RAW, Kind.PARTIAL])


class SectionPart(NamedTuple):
    """Bytes of hub `hub`'s section that a pair moves, from `start` to `stop`, upwards or downwards."""

    kind: Kind
    hub: int
    start: int
    stop: int


class DirectRows(NamedTuple):
    """Transfers in columns, int64 (rows,).

    `key` : planned time, among all a rank's transfers; `nic` : identifies the ports at both ends; `segment` : the
    slot's place among those of its pair, or of its pair and half
    """

    src: Ints
    dst: Ints
    key: Ints
    kind: Ints
    hub: Ints
    start: Ints
    stop: Ints
    nic: Ints
    segment: Ints


def cut(
    pieces: Sequence[SectionPart], slots: Sequence[Slot], later: int = 0, cost: Fraction = Fraction(0)
) -> list[tuple[int, ...]]:
    """The bytes of `pieces`, in order, divided by the slots' weights; a slot may end up with two pieces.

    later : bytes by which cuts of the first piece are moved back
    cost : ticks that a chunk costs. A slot is up to so much longer or shorter, a third at most, if that saves a chunk
    Returns (begin, kind, hub, start, stop, nic, place of the slot) of each part, in order.
    """
    units, total = sum(abs(piece.stop - piece.start) for piece in pieces), sum(slot.weight for slot in slots)
    found: list[tuple[int, ...]] = []
    done = at = which = before = 0  # weight so far; bytes so far; the piece that these are in; bytes before it
    borders = list(accumulate(abs(piece.stop - piece.start) for piece in pieces)) or [0]
    for place, (begin, size, nic, weight) in enumerate(slots):
        done += weight
        until = units
        if done < total:
            until = units * done // total // GRANULE * GRANULE
            # A tiny rest would be waited for until the pair's next slot.
            even = units * weight // total
            near = max(even // NEAR, min(even // 3, even * cost.numerator // (cost.denominator * size)))
            border = borders[min(bisect_left(borders, until - near), len(borders) - 1)]
            until = border if at < border <= until + near else until
            until = min(until + later, borders[0]) if until < borders[0] else until
        while at < until:
            kind, hub, start, stop = pieces[which]
            count, way = abs(stop - start), 1 if stop > start else -1
            end = min(until, before + count)
            if end > at:
                one, other = start + way * (at - before), start + way * (end - before)
                found.append((begin, kind, hub, min(one, other), max(one, other), nic, place))
            at = end
            if at == before + count:
                before, which = at, which + 1
    return found


def joined(pieces: Sequence[SectionPart]) -> list[SectionPart]:
    """Neighbouring pieces merged, empty ones left out."""
    found: list[SectionPart] = []
    for piece in pieces:
        if found and found[-1][:2] == piece[:2] and found[-1].stop == piece.start:
            found[-1] = found[-1]._replace(stop=piece.stop)
        elif piece.stop != piece.start:
            found.append(piece)
    return found


def overlapping(rows: DirectRows, waits: Ints, on: Ints, floor: Ints | int = 0) -> tuple[Ints, Ints]:
    """(row that waits, row that it waits for) for all of `waits` and `on` that share bytes at `floor` or above.

    on : in order of senders, and of bytes, which do not overlap within one sender
    """
    # One axis for all senders' bytes: each sender has its own stretch of it.
    stretch = 1 + max(rows.stop[waits].max(initial=0), rows.stop[on].max(initial=0))
    at = rows.src[on] * stretch
    senders = np.unique(at)[:, None]
    low, high = (senders + np.maximum(rows.start[waits], floor)).ravel(), (senders + rows.stop[waits]).ravel()
    first = np.searchsorted(at + rows.stop[on], low, "right")
    counts = np.where(high > low, np.searchsorted(at + rows.start[on], high, "left") - first, 0).clip(0)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(np.tile(waits, len(senders)), counts), on[np.repeat(first, counts) + place]


def dependencies(rows: DirectRows, via_end: dict[int, int]) -> list[tuple[Ints, Ints]]:
    """Pairs (row that waits, row that it waits for); later kinds come after the kinds that they may wait for.

    via_end : full hub -> end of the bytes of its section to which slow ranks add last
    """
    if not len(rows.src):
        return []
    order = np.lexsort((rows.start, rows.src, rows.kind, rows.hub))
    group = (rows.hub * len(Kind) + rows.kind)[order]
    ends = np.concatenate(([0], np.flatnonzero(np.diff(group)) + 1, [len(order)]))
    of = {int(group[a]): order[a:z] for a, z in pairwise(ends.tolist())}
    none = np.empty(0, np.int64)

    found: list[tuple[Ints, Ints]] = []
    for waiting, on in (
        (Kind.PARTIAL, Kind.RAW),
        (Kind.FINAL, Kind.PARTIAL),
        (Kind.RESULT, Kind.FINAL),
        (Kind.RESULT, Kind.RAW),
    ):
        for hub in np.unique(rows.hub).tolist():
            waits = of.get(hub * len(Kind) + waiting, none)
            # Data that the slow rank adds last to comes back finished: no second wait for the raw data is needed.
            floor = via_end.get(hub, 0) if (waiting, on) == (Kind.RESULT, Kind.RAW) else 0
            found.append(overlapping(rows, waits, of.get(hub * len(Kind) + on, none), floor))
    return found


def in_order(rows: DirectRows, waits: Ints, on: Ints) -> tuple[Ints, Ints]:
    """More pairs: a transfer also waits for the latest that those before it on its NIC wait for. Otherwise it would be
    sent before them when they are late, and they would be later still. Sums that a slow rank hands back do not: a late
    one would hold up all others."""
    from optcc.schedule.compiled import grouped_by, waited_for_before  # with numba, which other families do without

    if not len(rows.src):
        return waits, on
    ptr, places = grouped_by(waits, len(rows.src))
    nics = rows.src * (1 + rows.nic.max()) + rows.nic
    order = np.argsort(rows.key, kind="stable")
    found = waited_for_before(order, nics, rows.key, rows.kind == Kind.FINAL, ptr, on[places], MOST_KEPT)
    return found[:, 0], found[:, 1]


def on_leash(rows: DirectRows, starving: int, length: int) -> tuple[Ints, Ints]:
    """More pairs, for transfers among the other ranks in the second half. They wait for the latest data that the
    starving rank was to have sent them `length` ticks before. The others have time to spare in the middle of the plan
    and would run ahead; sums from the starving rank's always busy NICs would then collide with their transfers at
    receivers."""
    late = rows.key >= HALF
    sums = np.flatnonzero(late & (rows.src == starving))
    sums = sums[np.lexsort((rows.key[sums], rows.nic[sums]))]
    # A slot ends where the next one of its NIC begins.
    span = 2 * HALF + 1
    at = rows.nic[sums] * span + rows.key[sums]
    following = np.append(at, 2**62)[np.searchsorted(at, at, "right")]
    ends = np.minimum(following - rows.nic[sums] * span, 2 * HALF)
    waits, on = [], []
    for rank in np.unique(rows.dst[sums]).tolist():
        own = rows.dst[sums] == rank
        order = np.argsort(ends[own], kind="stable")
        sent = np.flatnonzero(late & (rows.src == rank) & (rows.dst != starving))
        latest = np.searchsorted(ends[own][order], rows.key[sent] - length, "right") - 1
        waits.append(sent[latest >= 0])
        on.append(sums[own][order][latest[latest >= 0]])
    return np.concatenate([*waits, rows.src[:0]]), np.concatenate([*on, rows.src[:0]])


def scheduled(
    rows: DirectRows,
    pairs: Sequence[tuple[Ints, Ints]],
    ports: Sequence[Mapping[int, int]],
    routes: Routes,
    nbytes: int,
    *,
    ordered: bool = False,
    held: tuple[Ints, Ints] | None = None,
) -> Schedule:
    """The schedule of `rows`, in the order of their keys.

    pairs : as of `dependencies`; ports : of each rank, `nic` of a row -> the port used; ordered : whether ready
    transfers wait for earlier ones on their NIC, as in `in_order`; held : more pairs (row that waits, row that it waits
    for), which count if the second comes first
    """
    from optcc.schedule.compiled import grouped_by  # with numba, which other families' plans do without

    key, pairs = rows.key.copy(), list(pairs)
    for waits, on in pairs:  # after what it waits for, also where their due times are too near
        np.maximum.at(key, waits, key[on] + 1)
    if held is not None:
        before = key[held[1]] < key[held[0]]
        pairs.append((held[0][before], held[1][before]))
    waits, on = (np.concatenate([pair[end] for pair in pairs] or [key[:0]]) for end in (0, 1))
    if ordered:
        more, then = in_order(rows._replace(key=key), waits, on)
        waits, on = np.concatenate((waits, more)), np.concatenate((on, then))
    order = np.argsort(key, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    waits, on = place[waits], place[on]
    _, by_on = grouped_by(on, len(order))
    ptr, by_waits = grouped_by(waits[by_on], len(order))
    ranks, nics = len(ports), 1 + max(max(mine) for mine in ports)
    ends = ((rows.src * ranks + rows.dst) * nics + rows.nic)[order]
    used = np.bincount(ends, minlength=ranks * ranks * nics) > 0
    route = []
    for end in np.flatnonzero(used).tolist():
        (src, dst), nic = divmod(end // nics, ranks), end % nics
        route.append(routes.alike(src, dst, [(ports[src][nic], ports[dst][nic])], ALL))
    return Schedule(
        ranks=ranks,
        nbytes=nbytes,
        ports=routes.ports,
        routes=tuple(routes.table),
        route=np.array(route, np.int32)[(np.cumsum(used) - 1)[ends]],
        offset=rows.start[order],
        length=(rows.stop - rows.start)[order],
        reduce=ADDED[rows.kind][order],
        stage=STAGES[rows.kind[order]].astype(np.uint8),
        segment=rows.segment[order].astype(np.int32),
        dep_ptr=ptr,
        dep_idx=on[by_on][by_waits],
        links=routes.links,
    )
