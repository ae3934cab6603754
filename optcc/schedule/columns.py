"""The schedule: transfers between ranks as columns, the ports they use, and what must come before what.

Rules that every executor (verifier, simulator, runtime) follows, so that they are written once, here:

* A transfer may start when every transfer in its `deps` has finished at its destination.
* Among the ready transfers of a port the lowest row goes first: row order is priority.
* Transfers that reduce into the same bytes of a rank are folded in row order, so a result is bit-identical run to run.
* A transfer is striped over the lanes of its route; it has finished when all its lanes have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.cluster import Cluster
from optcc.errors import InfeasibleError

GRANULE = 8
"""Cut points are multiples of this many bytes: the largest element of any dtype we move."""


class Stage(IntEnum):
    """The four stages of a degraded ring; in a plain ring only the first and the last occur."""

    REDUCE_SCATTER = 1
    TO_LEAF = 2
    FROM_LEAF = 3
    ALLGATHER = 4


@dataclass(frozen=True)
class Port:
    """A full-duplex port of one rank (a NIC): bytes per second each way."""

    name: str
    rank: int
    out_rate: float
    in_rate: float


@dataclass(frozen=True)
class Lane:
    """One way through the fabric: leaves by port `out`, enters by port `into`, carries `share` of each transfer."""

    out: int
    into: int
    share: Fraction


@dataclass(frozen=True)
class Route:
    """The lanes from one rank to another; shares sum to 1."""

    src: int
    dst: int
    lanes: tuple[Lane, ...]

    def cuts(self, nbytes: int) -> list[int]:
        """Byte positions that split `nbytes` among the lanes: len(lanes) + 1 ascending multiples of GRANULE.

        The last is `nbytes`; a lane may get nothing when there is little to carry.
        """
        done, cuts = Fraction(0), [0]
        for lane in self.lanes[:-1]:
            done += lane.share
            cuts.append(min(nbytes, round(done * nbytes / GRANULE) * GRANULE))
        return [*cuts, nbytes]


@dataclass(frozen=True, eq=False)
class Schedule:
    """Transfers in columns, all of shape (rows,).

    Attributes
    ----------
    ranks : number of ranks; nbytes : buffer bytes per rank
    ports, routes : tables that lanes and rows point into
    route : int32, row -> index into `routes` (which gives source and destination rank)
    offset, length : int64, the bytes of the buffer that the transfer carries
    reduce : bool, fold into the destination's bytes (True) or overwrite them (False)
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

    def __len__(self) -> int:
        return len(self.route)

    @cached_property
    def src(self) -> NDArray[np.int32]:
        """int32, row -> sending rank."""
        return np.array([r.src for r in self.routes] or [0], np.int32)[self.route]

    @cached_property
    def dst(self) -> NDArray[np.int32]:
        """int32, row -> receiving rank."""
        return np.array([r.dst for r in self.routes] or [0], np.int32)[self.route]

    def deps(self, row: int) -> NDArray[np.int64]:
        """The rows that must have finished before `row` may start."""
        return self.dep_idx[self.dep_ptr[row] : self.dep_ptr[row + 1]]

    def dependents(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """CSR (ptr, idx) of the reverse relation: rows that wait for each row, ascending."""
        waiting = np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.dep_ptr))
        order = np.argsort(self.dep_idx, kind="stable")
        counts = np.bincount(self.dep_idx, minlength=len(self))
        return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), waiting[order]

    def replace(self, **columns: Any) -> Schedule:
        """A copy with some columns or tables exchanged (the tests break schedules this way)."""
        kept = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Schedule(**{**kept, **columns})


def ports_of(cluster: Cluster) -> tuple[Port, ...]:
    """Every live NIC of every rank, in cluster order."""
    return tuple(
        Port(f"{rank.name}/{nic.name}", rank.index, float(nic.out_rate), float(nic.in_rate))
        for rank in cluster.ranks
        for nic in rank.nics
        if nic.alive
    )


class Routes:
    """Routes made on demand: each rank's live NICs share every transfer in proportion to their rates.

    The sender's NICs cut the transfer by their out rates, the receiver's by their in rates; each overlap of the
    two cuts is a lane, so that k and l NICs meet in at most k + l - 1 lanes and all end together.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.ports = ports_of(cluster)
        self._out: list[list[tuple[int, Fraction]]] = [[] for _ in cluster.ranks]
        self._in: list[list[tuple[int, Fraction]]] = [[] for _ in cluster.ranks]
        port = 0
        for rank in cluster.ranks:
            for nic in rank.nics:
                if nic.alive:
                    self._out[rank.index].append((port, nic.out_rate))
                    self._in[rank.index].append((port, nic.in_rate))
                    port += 1
        self._names = [rank.name for rank in cluster.ranks]
        self._index: dict[tuple[int, int], int] = {}
        self.table: list[Route] = []

    def __call__(self, src: int, dst: int) -> int:
        """Index of the route from rank `src` to rank `dst`."""
        index = self._index.get((src, dst))
        if index is None:
            index = self._index[src, dst] = len(self.table)
            self.table.append(Route(src, dst, tuple(self._lanes(src, dst))))
        return index

    def _lanes(self, src: int, dst: int) -> Iterator[Lane]:
        leaving, entering = _cumulative(self._out[src]), _cumulative(self._in[dst])
        for name, cuts in ((self._names[src], leaving), (self._names[dst], entering)):
            if not cuts:
                raise InfeasibleError(
                    "no AllReduce is possible", where=name, expected="a live NIC each way", got="none"
                )
        at, i, j = Fraction(0), 0, 0
        while at < 1:
            end = min(leaving[i][1], entering[j][1])
            yield Lane(leaving[i][0], entering[j][0], end - at)
            at, i, j = end, i + (leaving[i][1] == end), j + (entering[j][1] == end)


def _cumulative(ports: list[tuple[int, Fraction]]) -> list[tuple[int, Fraction]]:
    """(port, cumulative share) of the ports with a rate; the last share is exactly 1."""
    live = [(port, rate) for port, rate in ports if rate]
    total, done, cuts = sum((rate for _, rate in live), Fraction(0)), Fraction(0), []
    for port, rate in live:
        done += rate
        cuts.append((port, done / total))
    return cuts
