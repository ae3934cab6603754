"""NIC rates without NICs: when a chunk would leave and land if each port served one chunk at a time at its rate.

Timestamped delivery. Every port has two clocks, one per direction, that say when it is free. The sender stamps each
chunk with the time its port is busy with it; the receiver's port takes chunks in the order in which it need not wait
for bytes still to come. A chunk is handed over when it has been served, never before. This is the model of the
simulator, on a real clock.

A process that shares its core wakes up late, by 0.1 ms on an idle machine and by several on a busy one; a NIC would not
have to wait for it. So, by its stamps, a chunk starts when it was ready and its port free, not when the process came to
write it. One late wake-up does not add to the next. The bytes then do leave late, and a chunk that arrives after its
landing time is handed over on arrival. Measured time is never less than the model's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple


@dataclass(frozen=True)
class Rates:
    """Bytes per second of a port, out and in; inf: as fast as the machine goes."""

    out: float
    into: float


class Chunk(NamedTuple):
    """A chunk on its way, as pacing sees it: which it is, its bytes, and the wire it takes."""

    flow: int
    seq: int
    nbytes: int
    wire: int


class PortClocks:
    """The clocks of one rank's ports. Times in seconds of the rank's clock."""

    def __init__(self, rates: Sequence[Rates]) -> None:
        self.rates = list(rates)
        self._out_free = [-math.inf] * len(rates)
        self._in_free = [-math.inf] * len(rates)
        self._order = count()  # of arrival, between those of the same time: a wire keeps its order
        self._held: list[tuple[float, int, int, Chunk]] = []  # heap: (can be served from, order, port, chunk)
        self._through: list[tuple[float, int, Chunk]] = []  # heap: (landing time, order, chunk)

    def free_at(self, out: int) -> float:
        """The time from which port `out` is free to send."""
        return self._out_free[out]

    def depart(self, out: int, nbytes: int, ready: float) -> tuple[float, float]:
        """Keep port `out` busy with a chunk that could go since `ready`; returns when it starts and ends there."""
        start = max(ready, self._out_free[out])
        end = self._out_free[out] = start + nbytes / self.rates[out].out
        return start, end

    def arrive(self, into: int, chunk: Chunk, start: float, end: float) -> None:
        """Hold a chunk until port `into` could serve it without a pause.

        Only then does it take its place there: one that arrives later may still come before it.
        """
        served_from = max(start, end - chunk.nbytes / self.rates[into].into)
        heappush(self._held, (served_from, next(self._order), into, chunk))

    def passes(self, into: int, end: float, now: float) -> float:
        """When a chunk lands whose time has come at a port without a limit; inf: it has to be held (`arrive`)."""
        if end > now or self._held or self._through or self.rates[into].into != math.inf:
            return math.inf
        landed = self._in_free[into] = max(end, self._in_free[into])
        return landed

    def landed(self, now: float) -> list[tuple[float, Chunk]]:
        """Serve the chunks whose time has come; returns those that are through since the last call, by time."""
        while self._held and self._held[0][0] <= now:
            at, order, port, chunk = heappop(self._held)
            done = self._in_free[port] = max(at, self._in_free[port]) + chunk.nbytes / self.rates[port].into
            heappush(self._through, (done, order, chunk))
        landed = []
        while self._through and self._through[0][0] <= now:
            at, _, chunk = heappop(self._through)
            landed.append((at, chunk))
        return landed

    def next_landing(self) -> float:
        """No chunk that is here lands before this time; inf: none is here."""
        first = self._through[0][0] if self._through else math.inf
        for at, _, port, chunk in self._held:
            first = min(first, max(at, self._in_free[port]) + chunk.nbytes / self.rates[port].into)
        return first

    def count_from(self, order: int) -> None:
        """Of what arrives next, the first comes after `order` others."""
        self._order = count(order)

    def forget(self, wire: int) -> None:
        """Drop what came on a wire and has not landed: it is lost with the wire."""
        self._held = [held for held in self._held if held[3].wire != wire]
        self._through = [through for through in self._through if through[2].wire != wire]
        heapify(self._held)
        heapify(self._through)
