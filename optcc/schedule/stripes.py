"""Stripes: the lanes' pieces of every transfer, which is what ports and links serve."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from optcc.schedule import Lane, Schedule


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
    def out(self) -> NDArray[np.int32]:
        """int32, shape (stripes,): the port it leaves by."""
        return np.array([lane.out for lane in self.lanes] or [0], np.int32)[self.lane]

    @cached_property
    def into(self) -> NDArray[np.int32]:
        """int32, shape (stripes,): the port it enters by."""
        return np.array([lane.into for lane in self.lanes] or [0], np.int32)[self.lane]


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
    lanes: list[int] = []
    sizes: list[int] = []
    kind_ptr = [0]
    for r, nbytes in zip(route[new].tolist(), length[new].tolist(), strict=True):
        for lane, (start, stop) in enumerate(pairwise(schedule.routes[r].cuts(nbytes)), first_lane[r]):
            if stop > start:
                lanes.append(lane)
                sizes.append(stop - start)
        kind_ptr.append(len(lanes))
    begin, counts = np.array(kind_ptr)[:-1][kind], np.diff(kind_ptr)[kind]
    ptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    place = np.arange(ptr[-1])
    place += np.repeat(begin - ptr[:-1], counts)
    return Stripes(
        row=np.repeat(np.arange(rows, dtype=np.int32), counts),
        lane=np.array(lanes, np.int32)[place],
        length=np.array(sizes, np.int64)[place],
        ptr=ptr,
        lanes=tuple(lane for route in schedule.routes for lane in route.lanes),
    )
