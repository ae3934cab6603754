"""The schedule: transfers between ranks as columns, the ports they use, and what must come before what.

Rules that every executor (verifier, simulator, runtime) follows, so that they are written once, here:

* A transfer may start when every transfer in its `deps` has finished at its destination.
* Among the ready transfers of a port the lowest row goes first: row order is priority.
* Transfers that reduce into the same bytes of a rank are folded in row order, so a result is bit-identical run to run.
* What lands beside (`BESIDE`) is folded, too, but a send sees only those that it has waited for, and those are the
  first ones: so the own bytes can go out while others come in. Between two such sends, and at the end, the order is:
  what came from lower ranks, in row order; the rank's own sum so far; what came from higher ranks. So all ranks can
  have the same bits. Transfers at a rank that touch some of these bytes carry all of them, and none overwrites them.
* A transfer is striped over the lanes of its route; it has finished when all its lanes have.
* A lane is a chain: the port it leaves by, the links it crosses, the port it enters by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

GRANULE = 8
"""Cut points are multiples of this many bytes: the largest element of any dtype we move."""


class LandsAs(IntEnum):
    """How a transfer lands, in `Schedule.reduce`."""

    OVERWRITES = 0
    FOLDED = 1
    BESIDE = 2
    """Folded from a receive buffer of its own: nobody sends its bytes who has not waited for it."""


BESIDE = LandsAs.BESIDE


class Stage(IntEnum):
    """The four stages of a degraded ring; in a plain ring only the first and the last occur."""

    REDUCE_SCATTER = 1
    TO_LEAF = 2
    FROM_LEAF = 3
    ALLGATHER = 4


@dataclass(frozen=True)
class Port:
    """A full-duplex port of one rank, a NIC or a GPU's NVLink port: bytes per second each way.

    rail : the only rail whose ports it reaches without a spine; None: it reaches every port of its kind
    """

    name: str
    rank: int
    out_rate: float
    in_rate: float
    rail: int | None = None
    nvlink: bool = False


@dataclass(frozen=True)
class Link:
    """What lanes of several ranks share beyond their ports, one way: a rail's link to the spine, a pod's uplink."""

    name: str
    rate: float  # bytes per second


class Lane(NamedTuple):
    """One way through the fabric, which carries `share` of each transfer.

    out, into : indices of the port it leaves by and the port it enters by
    links : indices of the links it crosses in between, in that order
    """

    out: int
    into: int
    share: Fraction
    links: tuple[int, ...] = ()


class Route(NamedTuple):
    """The lanes from one rank to another; shares sum to 1."""

    src: int
    dst: int
    lanes: tuple[Lane, ...]

    def cuts(self, nbytes: int) -> list[int]:
        """Byte positions that split `nbytes` among the lanes: len(lanes) + 1 ascending multiples of GRANULE.

        The last is `nbytes`; a lane may get nothing when there is little to carry.
        """
        cuts = [0]
        for top, bottom in _lane_ends(self.lanes):
            units, rest = divmod(top * nbytes, bottom * GRANULE)  # as round() of the Fraction, a half to the even one
            units += 2 * rest > bottom * GRANULE or (2 * rest == bottom * GRANULE and units % 2 == 1)
            cuts.append(min(nbytes, units * GRANULE))
        return [*cuts, nbytes]


def _lane_ends(lanes: Sequence[Lane]) -> list[tuple[int, int]]:
    """Where each lane's part of a transfer ends, the last lane's apart, as numerator and denominator."""
    sums = accumulate(lane.share for lane in lanes[:-1])
    return [(end.numerator, end.denominator) for end in sums]


def cuts_of(
    routes: Sequence[Route], route: NDArray[Any], length: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`Route.cuts` of many transfers, one after the other, CSR: (ptr, cuts). route, length : of each transfer"""
    wide = np.array([len(each.lanes) for each in routes] or [0], np.int64)[route]
    ptr = np.concatenate(([0], np.cumsum(wide + 1)))
    cuts = np.zeros(ptr[-1], np.int64)
    cuts[ptr[1:] - 1] = length
    # Many routes share their fractions, which are one object then: those are cut together.
    alike: dict[tuple[int, ...], list[int]] = {}
    several = np.flatnonzero(wide > 1)
    for each in np.unique(route[several]).tolist():
        alike.setdefault(tuple([id(lane.share) for lane in routes[each].lanes]), []).append(each)
    kind = np.zeros(len(routes) + 1, np.int64)
    for number, same in enumerate(alike.values()):
        kind[same] = number
    order = several[np.argsort(kind[route[several]], kind="stable")]
    counts = np.bincount(kind[route[several]], minlength=len(alike)).tolist()
    for same, end, count in zip(alike.values(), accumulate(counts), counts, strict=True):
        mine = order[end - count : end]
        nbytes = length[mine]
        for place, (top, bottom) in enumerate(_lane_ends(routes[same[0]].lanes), 1):
            if max(top * int(nbytes.max(initial=0)), 2 * bottom * GRANULE) >= 2**62:
                cuts[ptr[mine] + place] = [routes[same[0]].cuts(n)[place] for n in nbytes.tolist()]
                continue
            units, rest = np.divmod(top * nbytes, bottom * GRANULE)
            units += (2 * rest > bottom * GRANULE) | ((2 * rest == bottom * GRANULE) & (units % 2 == 1))
            cuts[ptr[mine] + place] = np.minimum(nbytes, units * GRANULE)
    return ptr, cuts


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """Transfers in columns, all of shape (rows,).

    Attributes
    ----------
    ranks : number of ranks; nbytes : buffer bytes per rank
    ports, routes, links : tables that lanes and rows point into
    route : int32, row -> index into `routes` (which gives source and destination rank)
    offset, length : int64, the bytes of the buffer that the transfer carries
    reduce : bool, fold into the destination's bytes (True) or overwrite them (False); uint8 where some are `BESIDE`
    stage : uint8, a `Stage`, for people
    segment : int32, position in the pipeline, for people
    dep_ptr, dep_idx : int64, CSR: rows that must have finished before row i starts are dep_idx[dep_ptr[i]:dep_ptr[i+1]]
    """

    ranks: int
    nbytes: int
    ports: tuple[Port, ...]
    routes: tuple[Route, ...]
    route: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    reduce: NDArray[np.bool_]
    stage: NDArray[np.uint8]
    segment: NDArray[np.int32]
    dep_ptr: NDArray[np.int64]
    dep_idx: NDArray[np.int64]
    links: tuple[Link, ...] = ()

    def __len__(self) -> int:
        return len(self.route)

    def __repr__(self) -> str:
        return f"<Schedule: {len(self)} transfers, {self.nbytes} bytes per rank, {self.ranks} ranks>"

    @cached_property
    def shared_links(self) -> bool:
        """Some lane crosses a link, so that ports alone do not say how long a transfer takes."""
        return bool(self.links) and any(lane.links for route in self.routes for lane in route.lanes)

    @cached_property
    def widest(self) -> int:
        """The most lanes of a route; 1 where there is no route."""
        return max((len(route.lanes) for route in self.routes), default=1)

    @cached_property
    def stripes(self) -> Stripes:
        """`stripes_of` it, cut once."""
        return stripes_of(self)

    @cached_property
    def src(self) -> NDArray[np.int32]:
        """int32, row -> sending rank."""
        return np.array([r.src for r in self.routes] or [0], np.int32)[self.route]

    @cached_property
    def dst(self) -> NDArray[np.int32]:
        """int32, row -> receiving rank."""
        return np.array([r.dst for r in self.routes] or [0], np.int32)[self.route]

    @property
    def beside(self) -> bool:
        """Some transfers land in receive buffers (`BESIDE`), so that executors which fold in place cannot run it."""
        return self.reduce.dtype != np.bool_ and bool((self.reduce == BESIDE).any())

    def deps(self, row: int) -> NDArray[np.int64]:
        """The rows that must have finished before `row` may start."""
        return self.dep_idx[self.dep_ptr[row] : self.dep_ptr[row + 1]]

    def resized(self, nbytes: int) -> Schedule:
        """The same for another number of bytes: every cut of the buffer moves in proportion, to the nearest granule.

        Transfers that would carry nothing are left out, and nobody waits for them.
        """
        if nbytes == self.nbytes:
            return self
        ends = np.concatenate((self.offset, self.offset + self.length))
        cuts, places = np.unique(ends, return_inverse=True)
        whole = 2 * self.nbytes * GRANULE
        moved = [min(nbytes, GRANULE * ((2 * cut * nbytes + whole // 2) // whole)) for cut in cuts.tolist()]
        if moved and int(cuts[-1]) == self.nbytes:
            moved[-1] = nbytes
        offset, end = np.array(moved, np.int64)[places].reshape(2, -1)
        kept = end > offset
        number = np.cumsum(kept) - 1
        waiting = np.repeat(np.arange(len(self)), np.diff(self.dep_ptr))
        live = kept[waiting] & kept[self.dep_idx]
        waits = np.bincount(number[waiting[live]], minlength=int(kept.sum()))
        return self.replace(
            nbytes=nbytes,
            route=self.route[kept],
            offset=offset[kept],
            length=(end - offset)[kept],
            reduce=self.reduce[kept],
            stage=self.stage[kept],
            segment=self.segment[kept],
            dep_ptr=np.concatenate(([0], np.cumsum(waits))).astype(np.int64),
            dep_idx=number[self.dep_idx[live]],
        )

    def replace(self, **columns: Any) -> Schedule:
        """A copy with some columns or tables exchanged (the tests break schedules this way)."""
        kept = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Schedule(**{**kept, **columns})


# Stripes: the lanes' pieces of every transfer, which is what ports and links serve.


@dataclass(frozen=True, eq=False)
class Stripes:
    """The lanes' pieces of every transfer, in row order.

    row : int32, shape (stripes,), transfer; lane : int32, index into `lanes`; length : int64, bytes
    ptr : int64, shape (rows + 1,): stripes of row i are ptr[i]:ptr[i + 1]
    lanes : those of all routes, one route after the other
    """

    row: NDArray[np.int32]
    lane: NDArray[np.int32]
    length: NDArray[np.int64]
    ptr: NDArray[np.int64]
    lanes: tuple[Lane, ...]

    @cached_property
    def chains(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`chains_of` its lanes."""
        return chains_of(self.lanes)

    @cached_property
    def out(self) -> NDArray[np.int32]:
        """int32, shape (stripes,): the port it leaves by."""
        return np.array([lane.out for lane in self.lanes] or [0], np.int32)[self.lane]

    @cached_property
    def into(self) -> NDArray[np.int32]:
        """int32, shape (stripes,): the port it enters by."""
        return np.array([lane.into for lane in self.lanes] or [0], np.int32)[self.lane]


def chains_of(lanes: Sequence[Lane]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(ptr, what) of lanes, CSR: the port that each leaves by, the links that it crosses, the port where it ends."""
    ends = np.array([(lane.out, lane.into) for lane in lanes], np.int64).reshape(-1, 2)
    crossed = [lane.links for lane in lanes]
    if not any(crossed):
        return np.arange(0, 2 * len(lanes) + 1, 2), ends.ravel()
    ptr = np.array([*accumulate((2 + len(links) for links in crossed), initial=0)], np.int64)
    what, between = np.empty(ptr[-1], np.int64), np.ones(ptr[-1], np.bool_)
    what[ptr[:-1]], what[ptr[1:] - 1] = ends.T
    between[ptr[:-1]] = between[ptr[1:] - 1] = False
    what[between] = [link for links in crossed for link in links]
    return ptr, what


def stripes_of(schedule: Schedule) -> Stripes:
    """Cut every transfer at its route's lanes; empty stripes are left out. Bytes are conserved, row by row."""
    rows = len(schedule)
    first_lane = list(accumulate((len(route.lanes) for route in schedule.routes), initial=0))
    if first_lane[-1] == len(schedule.routes) and schedule.length.all():  # one lane each: nothing to cut
        lanes_of = tuple(route.lanes[0] for route in schedule.routes)
        every = np.arange(rows + 1)
        return Stripes(every[:-1].astype(np.int32), schedule.route.copy(), schedule.length.copy(), every, lanes_of)
    # Transfers of one kind, of equal route and length, are cut alike.
    order = np.lexsort((schedule.length, schedule.route))
    route, length = schedule.route[order], schedule.length[order]
    new = np.ones(rows, np.bool_)
    new[1:] = (route[1:] != route[:-1]) | (length[1:] != length[:-1])
    kind = np.empty(rows, np.int64)
    kind[order] = np.cumsum(new) - 1
    cut_ptr, cuts = cuts_of(schedule.routes, route[new], length[new])
    sizes = np.diff(cuts)
    inside = np.ones(len(sizes), np.bool_)
    inside[cut_ptr[1:-1] - 1] = False  # from the last cut of one kind to the first of the next
    parts = np.diff(cut_ptr) - 1
    lanes = np.arange(parts.sum()) + np.repeat(np.array(first_lane)[route[new]] - np.cumsum(parts) + parts, parts)
    sizes = sizes[inside]
    full = sizes > 0
    kind_ptr = np.concatenate(([0], np.cumsum(full)))[np.concatenate(([0], np.cumsum(parts)))]
    lanes, sizes = lanes[full], sizes[full]
    begin, counts = kind_ptr[:-1][kind], np.diff(kind_ptr)[kind]
    ptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    place = np.arange(ptr[-1])
    place += np.repeat(begin - ptr[:-1], counts)
    return Stripes(
        row=np.repeat(np.arange(rows, dtype=np.int32), counts),
        lane=lanes.astype(np.int32)[place],
        length=sizes[place],
        ptr=ptr,
        lanes=tuple(lane for route in schedule.routes for lane in route.lanes),
    )
