"""From the schedules of a job to what must be joined: which NICs of which ranks, the same on all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError
from optcc.runtime.errors import TransportError
from optcc.runtime.native.library import MAX_LANES, MAX_NICS
from optcc.schedule import Port, Schedule

SEGMENT_BYTES = (8 << 10, 256 << 10)
"""The least and the most that is sent as one: of less, what a segment costs beside its bytes is a tenth of it; more
keeps a NIC busy, after it is lost or when another row should go first, for longer than it takes to notice."""

PIECES = 2
"""A row has at least so many segments for each NIC that carries it: who is free takes the next. With 1 an AllReduce on
servers of which one has lost a NIC took 3 % longer, with 4 1 % (virtual time), and a segment costs what it costs."""


@dataclass(frozen=True)
class Rates:
    """Bytes per second of a played NIC, out and in; inf: as fast as the machine goes."""

    out: float
    into: float


@dataclass(frozen=True)
class Layout:
    """What all ranks of a job join; the same on all of them, made from the same schedules by `layout_of`.

    nics : the ports of all schedules; a NIC's number in a job is its place here
    between : (lower rank, higher one) -> lanes, as (NIC of the lower, NIC of the higher), places within their ranks
    segment_bytes : what is sent as one, at most
    """

    ranks: int
    nics: tuple[Port, ...]
    between: Mapping[tuple[int, int], tuple[tuple[int, int], ...]]
    segment_bytes: int

    @cached_property
    def of_rank(self) -> tuple[tuple[int, ...], ...]:
        """By rank, the numbers of its NICs: a NIC's place within its rank is its place here."""
        return tuple(
            tuple(number for number, port in enumerate(self.nics) if port.rank == rank) for rank in range(self.ranks)
        )

    @cached_property
    def _number(self) -> Mapping[Port, int]:
        return {port: number for number, port in enumerate(self.nics)}

    @cached_property
    def _place(self) -> Mapping[int, int]:
        return {number: place for mine in self.of_rank for place, number in enumerate(mine)}

    def ends(self, rank: int) -> list[tuple[int, int, int, int]]:
        """The rank's wires, as (peer, NIC here, NIC there, lane)."""
        made = []
        for (low, high), lanes in self.between.items():
            for lane, (mine, theirs) in enumerate(lanes):
                if rank == low:
                    made.append((high, mine, theirs, lane))
                elif rank == high:
                    made.append((low, theirs, mine, lane))
        return made

    def serves(self, schedule: Schedule) -> bool:
        """Whether a schedule, which may be of another job, runs over these wires by the lanes that it names."""
        if any(port not in self._number for port in schedule.ports):
            return False
        for route, ends in self._routes(schedule):
            lanes = self.between.get(route, ())
            if not all(each in lanes for each in ends) and len(lanes) < MAX_LANES:
                return False
        return True

    def words(self, schedule: Schedule) -> NDArray[np.uint64]:
        """By route, a bit for each of its lanes; 0, which is all, where one of them was left out."""
        words = np.zeros(len(schedule.routes), np.uint64)
        for i, (route, ends) in enumerate(self._routes(schedule)):
            lanes = self.between[route]
            if all(each in lanes for each in ends):
                words[i] = sum({1 << lanes.index(each) for each in ends})
        return words

    def _routes(self, schedule: Schedule) -> Iterator[tuple[tuple[int, int], list[tuple[int, int]]]]:
        """Of each route: its ranks, the lower first, and its lanes, as `between` has them."""
        place = [self._place[self._number[port]] for port in schedule.ports]
        for route in schedule.routes:
            ends = [(place[lane.out], place[lane.into]) for lane in route.lanes]
            if route.src > route.dst:
                ends = [(into, out) for out, into in ends]
            yield (min(route.src, route.dst), max(route.src, route.dst)), ends


def layout_of(schedules: Mapping[str, Schedule], spare: Iterable[Port] = ()) -> Layout:
    """The layout of a job.

    spare : ports that no schedule uses, by which transfers may go when their ranks have lost others

    Raises InputError when schedules name the same port with different rates, and TransportError where a rank has more
    NICs than the engine serves.
    """
    ranks = max(schedule.ranks for schedule in schedules.values())
    nics: dict[str, Port] = {}
    for name, schedule in schedules.items():
        for port in schedule.ports:
            if nics.setdefault(port.name, port) != port:
                raise InputError(
                    "a port with two rates", where=f"{name}, {port.name}", expected=str(nics[port.name]), got=port
                )
    for port in spare:
        nics.setdefault(port.name, port)
    number = {name: i for i, name in enumerate(nics)}
    ports = tuple(nics.values())
    lanes = dict.fromkeys(
        (route.src, route.dst, number[schedule.ports[lane.out].name], number[schedule.ports[lane.into].name])
        for schedule in schedules.values()
        for route in schedule.routes
        for lane in route.lanes
    )
    layout = Layout(ranks, ports, {}, segment_bytes(schedules.values()))
    most = max(map(len, layout.of_rank))
    if most > MAX_NICS:
        raise TransportError(f"a rank with {most} NICs: the engine serves up to {MAX_NICS}")
    between: dict[tuple[int, int], dict[tuple[int, int], None]] = {}
    # Those that plans use come first, for there may be too many; then all by which a transfer may go instead.
    instead = [(src, dst, *nics) for src, dst, out, into in lanes for nics in _instead(layout, src, dst, out, into)]
    for src, dst, out, into in [*lanes, *instead]:
        found = between.setdefault((min(src, dst), max(src, dst)), {})
        if len(found) < MAX_LANES:
            places = layout._place[out], layout._place[into]
            found.setdefault(places if src < dst else places[::-1])
    return Layout(ranks, ports, {pair: tuple(found) for pair, found in between.items()}, layout.segment_bytes)


def _instead(layout: Layout, src: int, dst: int, out: int, into: int) -> list[tuple[int, int]]:
    """Pairs of NICs of these ranks that reach each other: first those that share no NIC with the lane's own, since
    either may be the lost one; those of neighbouring lanes begin at different NICs."""
    port, count = layout.nics, len(layout.nics)
    pairs = [
        (o, i)
        for o in layout.of_rank[src]
        for i in layout.of_rank[dst]
        if _works(port[o]) and _works(port[i]) and port[o].nvlink == port[out].nvlink and _joined(port[o], port[i])
    ]
    pairs.sort(key=lambda p: ((p[0] == out) + (p[1] == into), (p[0] - out) % count, (p[1] - into) % count))
    return pairs


def _works(port: Port) -> bool:
    return port.out_rate > 0 and port.in_rate > 0


def _joined(out: Port, into: Port) -> bool:
    return len({out.rail, into.rail} - {None}) < 2


def segment_bytes(schedules: Iterable[Schedule]) -> int:
    """The length of segments that suits these schedules, the same on all ranks."""
    pieces = [
        length / (PIECES * len(schedule.routes[route].lanes))
        for schedule in schedules
        if len(schedule)
        for route, length in (_longest(schedule),)
    ]
    least, most = SEGMENT_BYTES
    return min(most, max(least, math.ceil(max(pieces, default=0.0) / 1024) * 1024))


def _longest(schedule: Schedule) -> tuple[int, int]:
    """(route, length) of the longest row."""
    row = int(schedule.length.argmax())
    return int(schedule.route[row]), int(schedule.length[row])
