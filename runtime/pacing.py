"""NIC rates without NICs: when a transfer would leave and land if each port served one stripe at a time at its rate.

Timestamped delivery. Every port has two clocks, one per direction, that say when it is free. The sender stamps each
stripe with the time its port is busy with it; the receiver's port takes stripes in the order in which they can be
served without waiting for bytes still to come, and a transfer is handed over when its last stripe is through, never
before. This is the model of the simulator, on a real clock.

A process that shares its core wakes up late, by 0.1 ms on an idle machine and by several on a busy one; a NIC would
not have to wait for it. So a transfer starts, by its stamps, when it was ready and its port free, not when the process
came round to posting it, and one late wake-up does not add to the next. The bytes do leave late then, and what arrives
after its landing time is handed over when it is there: measured time is never less than the model's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from optcc.runtime.program import Move
from optcc.runtime.transport import Landing
from optcc.schedule import Schedule


class Stripe(NamedTuple):
    """A lane's piece of a transfer: leaves port `out`, enters port `into`, keeps each busy for so many seconds."""

    out: int
    into: int
    nbytes: int
    out_s: float
    in_s: float


Stripes = Mapping[tuple[int, int], tuple[Stripe, ...]]
"""(route, length in bytes) -> the stripes of such a transfer; a lane with nothing to carry has none."""


def stripes_of(schedule: Schedule) -> Stripes:
    """The stripes of every kind of transfer in `schedule`."""
    kinds = np.unique(np.stack((schedule.route, schedule.length), axis=1), axis=0)
    return {(route, length): tuple(_stripes(schedule, route, length)) for route, length in kinds.tolist()}


def _stripes(schedule: Schedule, route: int, length: int) -> list[Stripe]:
    lanes = schedule.routes[route].lanes
    cuts = schedule.routes[route].cuts(length)
    return [
        Stripe(
            lane.out,
            lane.into,
            stop - start,
            (stop - start) / schedule.ports[lane.out].out_rate,
            (stop - start) / schedule.ports[lane.into].in_rate,
        )
        for lane, (start, stop) in zip(lanes, pairwise(cuts), strict=True)
        if stop > start
    ]


class Pacing(Protocol):
    """Decides when the transfers of one rank, in one run, leave and land. Times in seconds of the rank's clock."""

    def free_at(self, route: int, now: float) -> float:
        """The time from which the ports of `route` are free."""
        ...

    def depart(self, move: Move, ready: float) -> Sequence[float]:
        """A transfer is posted that could go since `ready`; returns the stamps that travel with it."""
        ...

    def arrive(self, move: Move, stamps: Sequence[float]) -> None:
        """All bytes of a transfer are here."""
        ...

    def landed(self, now: float) -> list[Landing]:
        """What has landed since the last call, in order of time."""
        ...

    def next_landing(self) -> float:
        """No transfer that is here lands before this time; inf: none is here."""
        ...


class PortClocks:
    """Pacing at the rates of the schedule's ports."""

    def __init__(self, schedule: Schedule, stripes: Stripes) -> None:
        self._stripes = stripes
        self._outs = [sorted({lane.out for lane in route.lanes}) for route in schedule.routes]
        self._out_free = [-math.inf] * len(schedule.ports)
        self._in_free = [-math.inf] * len(schedule.ports)
        self._held: list[tuple[float, int, int, float]] = []  # heap: (can be served from, row, port, seconds)
        self._open: dict[int, list[float]] = {}  # row -> [stripes not yet served, when the served ones are through]
        self._through: list[tuple[float, int]] = []  # heap: (landing time, row), every stripe served

    def free_at(self, route: int, now: float) -> float:
        """As soon as one port of the route is free: waiting for all of them would leave that one idle.

        The others then run ahead. That costs priority there, not time; ports that always work together, as the lanes
        of `Routes` make them, keep in step.
        """
        return min(map(self._out_free.__getitem__, self._outs[route]))

    def depart(self, move: Move, ready: float) -> list[float]:
        """Keep the sending ports busy; the stamps are each stripe's start and end there."""
        stamps: list[float] = []
        for out, _, _, seconds, _ in self._stripes[move.route, move.length]:
            start = max(ready, self._out_free[out])
            end = self._out_free[out] = start + seconds
            stamps += (start, end)
        return stamps

    def arrive(self, move: Move, stamps: Sequence[float]) -> None:
        """Hold each stripe until the receiving port could serve it without a pause.

        Only then does it take its place there: a stripe that arrives later may still come before it.
        """
        stripes = self._stripes[move.route, move.length]
        self._open[move.row] = [len(stripes), -math.inf]
        stamp = iter(stamps)  # two for each stripe, then padding
        for (_, port, _, _, seconds), start, end in zip(stripes, stamp, stamp, strict=False):
            heappush(self._held, (max(start, end - seconds), move.row, port, seconds))

    def landed(self, now: float) -> list[Landing]:
        """Serve the stripes whose time has come, then see which transfers are through."""
        while self._held and self._held[0][0] <= now:
            at, row, port, seconds = heappop(self._held)
            done = self._in_free[port] = max(at, self._in_free[port]) + seconds
            parts = self._open[row]
            parts[0] -= 1
            parts[1] = max(parts[1], done)
            if parts[0] == 0:
                del self._open[row]
                heappush(self._through, (parts[1], row))
        landings: list[Landing] = []
        while self._through and self._through[0][0] <= now:
            at, row = heappop(self._through)
            landings.append(Landing(row, at))
        return landings

    def next_landing(self) -> float:
        """The first transfer that is through, or the first held stripe as if it were the next at its port."""
        served = [max(at, self._in_free[port]) + seconds for at, _, port, seconds in self._held]
        return min(self._through[0][0] if self._through else math.inf, min(served, default=math.inf))


class Unpaced:
    """No rates: everything leaves and lands as fast as the machine moves it."""

    def __init__(self) -> None:
        self._here: list[int] = []

    def free_at(self, route: int, now: float) -> float:
        """Always; the present is all that matters."""
        return now

    def depart(self, move: Move, ready: float) -> tuple[float, ...]:
        """No stamps."""
        return ()

    def arrive(self, move: Move, stamps: Sequence[float]) -> None:
        """Here is landed."""
        self._here.append(move.row)

    def landed(self, now: float) -> list[Landing]:
        """What has arrived."""
        landings = [Landing(row, now) for row in self._here]
        self._here.clear()
        return landings

    def next_landing(self) -> float:
        """At once, if anything is here."""
        return -math.inf if self._here else math.inf
