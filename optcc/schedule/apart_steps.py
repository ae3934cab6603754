"""In which steps sums are made in two levels beside a rank apart: what every NIC does at any time.

Half of a plan makes all sums; the other half, seen from its end, is the same thing. At any time each rank sends and
receives no more chunks than it has NICs, and no pod more than its uplink takes, rounded down, or one if that is slower
than a NIC, so that hardly anybody meets another sender.
First come those for the rank apart, then sums, then raw data, of earlier chunks first; raw data is there from the
start, so that NICs that have nothing else to do run ahead with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from optcc.schedule.timetable_rows import Kind

LANDS = 2
"""Steps from when a port is through with a chunk to when the chunk can be passed on: ports are late (measured)."""
AHEAD = 64
"""Chunks that are looked through in each step for raw data to send; more change nothing (measured)."""


class Chunk(NamedTuple):
    """A part of the data: its hub in each group, the group whose hub adds last, the rank that the one apart exchanges
    it with, whether the one apart adds last of all, and for how many steps a NIC sends it."""

    hubs: tuple[int, ...]
    final: int
    partner: int
    last: bool
    steps: int


class Move(NamedTuple):
    """What is sent from a step on; `chunk` is its place."""

    step: int
    src: int
    dst: int
    kind: Kind
    chunk: int


def sums_in_steps(
    chunks: Sequence[Chunk],
    members: Sequence[Sequence[int]],
    apart: int,
    home: int,
    nics: Sequence[int],
    uplinks: Sequence[int],
) -> list[Move]:
    """All that is sent until each chunk's sum is where the last one adds to it, in order.

    members : the ranks of each group but the one `apart`, which is in the pod of group `home`; nics : of each rank, how
    many it has; uplinks : of each group, how many chunks cross its pod's border at a time, each way
    """
    return _Steps(chunks, members, apart, home, nics, uplinks).found


class _Steps:
    def __init__(
        self,
        chunks: Sequence[Chunk],
        members: Sequence[Sequence[int]],
        apart: int,
        home: int,
        nics: Sequence[int],
        uplinks: Sequence[int],
    ) -> None:
        self.chunks, self.apart = chunks, apart
        self.nics, self.uplinks = nics, uplinks
        self.group = {rank: group for group, own in enumerate(members) for rank in own} | {apart: home}
        self.found: list[Move] = []
        self.landing: dict[int, list[Move]] = defaultdict(list)
        raw = [list(self._gathered(place, chunk, members)) for place, chunk in enumerate(chunks)]
        # What each hub, and who adds last, waits for.
        self.missing = {(place, hub): 0 for place, chunk in enumerate(chunks) for hub in chunk.hubs}
        own = [(place, apart, chunk.partner) for place, chunk in enumerate(chunks) if not chunk.last]
        for place, _, hub in [move for each in raw for move in each] + own:
            self.missing[place, hub] += 1
        for place, chunk in enumerate(chunks):
            self.missing[place, chunk.hubs[chunk.final]] += len(members) - 1
        self.sums: list[tuple[int, int, int]] = []
        self.to_apart: list[tuple[int, int, int]] = []
        for place, hub in [at for at, count in self.missing.items() if not count]:
            self._complete(place, hub)
        self.out, self.into = list(self.nics), list(self.nics)
        self.up, self.down = list(self.uplinks), list(self.uplinks)
        self.ending: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
        first = step = 0
        while first < len(raw) or own or self.sums or self.to_apart or self.landing:
            for move in self.landing.pop(step, ()):
                self.missing[move.chunk, move.dst] -= 1
                if not self.missing[move.chunk, move.dst]:
                    self._complete(move.chunk, move.dst)
            for room, place in self.ending.pop(step, ()):
                room[place] += 1
            self.to_apart = self._take(step, sorted(self.to_apart), Kind.PARTIAL)
            own[:AHEAD] = self._take(step, own[:AHEAD], Kind.RAW)
            self.sums = self._take(step, sorted(self.sums), Kind.SUM)
            for place in range(first, min(first + AHEAD, len(raw))):
                raw[place] = self._take(step, raw[place], Kind.RAW)
            while first < len(raw) and not raw[first]:
                first += 1
            step += 1

    def _gathered(self, place: int, chunk: Chunk, members: Sequence[Sequence[int]]) -> Iterable[tuple[int, int, int]]:
        """Raw data for the hubs; each is sent to by the ranks that follow it, one after the other."""
        for own, hub in zip(members, chunk.hubs, strict=True):
            at = own.index(hub)
            yield from ((place, own[(at + away) % len(own)], hub) for away in range(1, len(own)))

    def _complete(self, place: int, hub: int) -> None:
        """`hub` has all that it waits for of a chunk."""
        chunk = self.chunks[place]
        if hub != chunk.hubs[chunk.final]:
            self.sums.append((place, hub, chunk.hubs[chunk.final]))
        elif chunk.last:
            self.to_apart.append((place, hub, self.apart))

    def _take(self, step: int, moves: list[tuple[int, int, int]], kind: Kind) -> list[tuple[int, int, int]]:
        """Those that still have no room in this step."""
        left = []
        for each in moves:
            place, src, dst = each
            if not (self.out[src] and self.into[dst]):
                left.append(each)
                continue
            used = [(self.out, src), (self.into, dst)]
            here, there = self.group[src], self.group[dst]
            if here != there:
                if not (self.up[here] and self.down[there]):
                    left.append(each)
                    continue
                used += [(self.up, here), (self.down, there)]
            steps = self.chunks[place].steps
            for room, at in used:
                room[at] -= 1
            self.ending[step + steps] += used
            move = Move(step, src, dst, kind, place)
            self.found.append(move)
            if kind != Kind.PARTIAL:
                self.landing[step + steps + LANDS].append(move)
        return left
