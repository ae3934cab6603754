"""Does a schedule compute AllReduce, whatever order its transfers happen to run in?

Bytes are split at every cut point of the schedule. Within each piece the transfers are replayed by contributor sets:
who is already summed into a rank's bytes. Replaying one order proves all orders. Dependencies must order every pair of
accesses to the same bytes of the same rank that do not commute; this is checked too. What lands beside conflicts with
no send: a send carries the sums that it has waited for, which must be the first ones that its rank makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from optcc.errors import VerifyError
from optcc.schedule import Schedule
from optcc.schedule.columns import BESIDE


@dataclass(frozen=True)
class Verified:
    """What was checked: transfers, independent pieces of the buffer, and how many of those differ in structure."""

    transfers: int
    pieces: int
    shapes: int


def verify(schedule: Schedule) -> Verified:
    """Raise VerifyError, naming bytes, rank and contributor, unless every rank ends with every contribution once."""
    _check_tables(schedule)
    _check_columns(schedule)
    bounds = np.unique(np.concatenate(([0, schedule.nbytes], schedule.offset, schedule.offset + schedule.length)))
    first = np.searchsorted(bounds, schedule.offset)
    spans = np.searchsorted(bounds, schedule.offset + schedule.length) - first
    rows = np.repeat(np.arange(len(schedule)), spans)
    piece = np.repeat(first, spans) + np.arange(len(rows)) - np.repeat(np.cumsum(spans) - spans, spans)
    by_piece = np.argsort(piece, kind="stable")
    starts = np.searchsorted(piece[by_piece], np.arange(len(bounds)))
    seen: set[bytes] = set()
    for i in range(len(bounds) - 1):
        mine = rows[by_piece[starts[i] : starts[i + 1]]]
        waits, dep = _inner_deps(schedule, mine)
        columns = (schedule.src[mine], schedule.dst[mine], schedule.reduce[mine], waits, dep)
        shape = b"|".join(column.tobytes() for column in columns)
        if shape not in seen:  # pieces of equal structure behave alike
            _replay(schedule.ranks, mine, *columns, where=f"bytes {bounds[i]}..{bounds[i + 1] - 1}")
            seen.add(shape)
    return Verified(len(schedule), len(bounds) - 1, len(seen))


def _inner_deps(schedule: Schedule, mine: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Dependencies among the rows `mine` (ascending), as places in `mine`: (who waits, for whom)."""
    counts = schedule.dep_ptr[mine + 1] - schedule.dep_ptr[mine]
    waits = np.repeat(np.arange(len(mine)), counts)
    flat = np.repeat(schedule.dep_ptr[mine] - (np.cumsum(counts) - counts), counts) + np.arange(len(waits))
    dep = schedule.dep_idx[flat]
    place = np.searchsorted(mine, dep)
    inside = mine[np.minimum(place, len(mine) - 1)] == dep if len(mine) else np.zeros(0, np.bool_)
    return waits[inside], place[inside]


def _replay(
    ranks: int,
    rows: NDArray[np.int64],
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    reduce: NDArray[np.bool_],
    waits: NDArray[np.int64],
    dep: NDArray[np.int64],
    *,
    where: str,
) -> None:
    """Replay one piece. Sets of ranks, and of transfers by place in `rows`, are the bits of Python integers."""
    holds = [1 << r for r in range(ranks)]
    before = [0] * len(rows)  # transfers that have certainly finished before this one starts
    for w, d in zip(waits.tolist(), dep.tolist(), strict=True):
        before[w] |= before[d] | 1 << d
    reads, folds, copies = [0] * ranks, [0] * ranks, [0] * ranks
    beside = [0] * ranks  # transfers that land in receive buffers
    brought = [0] * len(rows)  # the contributions that each of these brings

    def demand_order(others: int, i: int, rank: int, does: str, doing: str) -> None:
        loose = others & ~before[i]
        if loose:
            other = rows[loose.bit_length() - 1]
            raise VerifyError(
                f"{where} of rank {rank}: transfer {rows[i]} {does} them while transfer {other} may still be {doing} "
                f"them; it must wait for transfer {other}"
            )

    def summed(i: int, rank: int) -> int:
        """The contributions in what transfer i sends from `rank`."""
        if not beside[rank]:
            return holds[rank]
        seen = beside[rank] & before[i]
        left_out = beside[rank] & ~seen & ((1 << seen.bit_length()) - 1)
        if left_out:
            raise VerifyError(
                f"{where} of rank {rank}: transfer {rows[i]} sends a sum with transfer "
                f"{rows[seen.bit_length() - 1]} and without transfer {rows[_lowest(left_out)]}, which lands beside "
                f"before it; it must wait for transfer {rows[_lowest(left_out)]}"
            )
        every, places = 1 << rank, seen
        while places:
            every |= brought[_lowest(places)]
            places &= places - 1
        return every

    for i, (a, b, adds) in enumerate(zip(src.tolist(), dst.tolist(), reduce.tolist(), strict=True)):
        demand_order(folds[a] | copies[a], i, a, "sends", "writing")
        sent = summed(i, a)
        in_place = folds[b] | copies[b]
        if in_place if adds == BESIDE else beside[b]:
            raise VerifyError(
                f"{where} of rank {b}: transfer {rows[i]} changes them in another way than others do: beside, or in "
                "place"
            )
        if adds != BESIDE:
            demand_order(reads[b], i, b, "changes", "sending")
            demand_order(copies[b] if adds else copies[b] | folds[b], i, b, "changes", "writing")
        if adds:
            twice = sent & holds[b]
            if twice:
                raise VerifyError(
                    f"{where} of rank {b}: transfer {rows[i]} from rank {a} adds the contribution of rank "
                    f"{_lowest(twice)} a second time"
                )
            holds[b] |= sent
            if adds == BESIDE:
                beside[b] |= 1 << i
                brought[i] = sent
            else:
                folds[b] |= 1 << i
        else:
            holds[b] = sent
            copies[b] |= 1 << i
        reads[a] |= 1 << i
    for rank in range(ranks):
        missing = ~holds[rank] & ((1 << ranks) - 1)
        if missing:
            raise VerifyError(f"{where} of rank {rank}: the contribution of rank {_lowest(missing)} is missing")


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _check_tables(schedule: Schedule) -> None:
    for index, route in enumerate(schedule.routes):
        if route.src == route.dst or not {route.src, route.dst} <= set(range(schedule.ranks)):
            raise VerifyError(f"route {index} goes from rank {route.src} to rank {route.dst} of {schedule.ranks}")
        if sum((lane.share for lane in route.lanes), Fraction(0)) != 1 or any(lane.share <= 0 for lane in route.lanes):
            raise VerifyError(f"the lanes of route {index} do not carry the whole transfer")
        for lane in route.lanes:
            for port, rank, leaving in ((lane.out, route.src, True), (lane.into, route.dst, False)):
                if not 0 <= port < len(schedule.ports) or schedule.ports[port].rank != rank:
                    raise VerifyError(f"route {index} uses port {port}, which rank {rank} does not have")
                if not (schedule.ports[port].out_rate if leaving else schedule.ports[port].in_rate) > 0:
                    raise VerifyError(f"route {index} uses port {schedule.ports[port].name}, which is dead")
            for link in lane.links:
                if not 0 <= link < len(schedule.links) or not schedule.links[link].rate > 0:
                    raise VerifyError(f"route {index} crosses link {link}, which does not exist or carries nothing")


def _check_columns(schedule: Schedule) -> None:
    rows = len(schedule)
    lengths = {len(getattr(schedule, name)) for name in ("offset", "length", "reduce", "stage", "segment")}
    if lengths != {rows} or len(schedule.dep_ptr) != rows + 1 or schedule.dep_ptr[-1] != len(schedule.dep_idx):
        raise VerifyError("the columns have different lengths")
    if not rows:
        return
    for bad, what in (
        ((schedule.route < 0) | (schedule.route >= len(schedule.routes)), "names a route that does not exist"),
        ((schedule.offset < 0) | (schedule.length <= 0), "carries no bytes"),
        (schedule.offset + schedule.length > schedule.nbytes, "reaches past the end of the buffer"),
    ):
        if bad.any():
            raise VerifyError(f"transfer {int(np.argmax(bad))} {what}")
    if int(schedule.reduce.max()) > BESIDE:
        raise VerifyError(f"transfer {int(np.argmax(schedule.reduce))} is neither added nor copied")
    if schedule.beside:
        _check_receive_buffers(schedule)
    waits = np.repeat(np.arange(rows), np.diff(schedule.dep_ptr))
    late = (schedule.dep_idx >= waits) | (schedule.dep_idx < 0)
    if late.any():
        i = int(np.argmax(late))
        raise VerifyError(
            f"transfer {waits[i]} waits for transfer {schedule.dep_idx[i]}, which does not come before it: "
            "rows must be in an order in which they can run"
        )
    elsewhere = schedule.dst[schedule.dep_idx] != schedule.src[waits]
    if elsewhere.any():
        i = int(np.argmax(elsewhere))
        raise VerifyError(
            f"transfer {waits[i]} of rank {schedule.src[waits[i]]} waits for transfer {schedule.dep_idx[i]}, which "
            "lands at another rank, where nobody can see it"
        )


def _check_receive_buffers(schedule: Schedule) -> None:
    """At each rank, what touches bytes of a transfer that lands beside must carry just these bytes."""
    end = schedule.offset + schedule.length
    for rank in range(schedule.ranks):
        touching = np.flatnonzero((schedule.src == rank) | (schedule.dst == rank))
        beside = touching[(schedule.dst[touching] == rank) & (schedule.reduce[touching] == BESIDE)]
        for begin, stop in np.unique(np.stack((schedule.offset[beside], end[beside]), 1), axis=0).tolist():
            meets = touching[(schedule.offset[touching] < stop) & (end[touching] > begin)]
            other = meets[(schedule.offset[meets] != begin) | (end[meets] != stop)]
            if len(other):
                raise VerifyError(
                    f"bytes {begin}..{stop - 1} of rank {rank}: transfer {other[0]} carries only some of them, or "
                    "more, and others land beside them whole"
                )
