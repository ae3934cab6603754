"""Direct exchange with two servers that starve: both send and are sent something all the time.

One has half of its NICs or fewer and sets the bound, the other one hardly more; it uses as many (`used_nics`). All
others are hubs of equal sections. What hubs gather from each other goes in the first half, what they spread in the
second one, twice as fast as the slow servers send: so hubs have the sums of all others by the time both slow servers
have sent theirs for the same bytes, and results go back to these at once, through both halves. What is lost are a step
and a half, from when a slow server sends a chunk to when its result comes back, and the cost of chunks
(docs/schedules.md). Who sends to whom when: `steady_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, permutations
from typing import Any, ClassVar, Self

import numpy as np

from optcc.cluster import Cluster
from optcc.schedule.assemble import even_cuts
from optcc.schedule.columns import Schedule
from optcc.schedule.many_objects import no_collection
from optcc.schedule.recipe import Recipe, demand, demand_segments, exact
from optcc.schedule.routes import Routes
from optcc.schedule.steady_steps import growing_ends, steady_steps
from optcc.schedule.timetable_nics import live_nics, nic_ports, starving_pair
from optcc.schedule.timetable_rows import Kind, Piece, Rows, cut, scheduled
from optcc.schedule.timetable_slots import HALF, Slot, mirrored

MAX_CHUNK = Fraction(1, 16)
MAX_STEPS, MAX_GROWTH, MAX_LONGER = 1024, 4, 2**20
"""Steps; one over the one before; the longest over the first."""


@dataclass(frozen=True)
class SteadyExchange(Recipe):
    """Direct exchange with two servers that starve.

    Attributes
    ----------
    segments : steps in each half
    slow : the two slow ranks, in order
    growing, growth : so many first steps are each followed by one that is `growth` times as long
    margin, chunk : the parts of a half from the end of a step to when its bytes count, and that a chunk costs
    """

    family: ClassVar[str] = "steady-exchange"
    segments: int
    slow: tuple[int, int]
    growing: int
    growth: Fraction
    margin: Fraction
    chunk: Fraction

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        with no_collection():
            routes, live = Routes(cluster), used_nics(cluster, self.slow)
            ports = nic_ports(cluster, routes)
            hubs = [rank for rank in range(len(live)) if rank not in self.slow]
            if not cluster.fabric.rails:  # any NIC reaches any: both slow servers are taken to have lost the same ones
                for rank in self.slow:
                    ports[rank] = dict(zip(live[hubs[0]], (ports[rank][rail] for rail in live[rank]), strict=False))
                    live[rank] = list(ports[rank])
            ends = growing_ends(self.segments, self.growing, self.growth)
            slots, held = steady_steps(live, self.slow, ends, self.margin, self.chunk)
            section = dict(zip(hubs, pairwise(even_cuts(0, nbytes, len(hubs)).tolist()), strict=True))
            found: list[tuple[int, ...]] = []
            for i, k in permutations(range(len(live)), 2):
                pieces = [Piece(Kind.RAW, k, *section[k])] if k in section else []
                pieces += [Piece(Kind.RESULT, i, *section[i])] if i in section else []
                if not pieces:  # slow servers, which need not have a rail in common
                    continue
                back = (slot._replace(begin=slot.begin + HALF) for slot in mirrored(slots.get((k, i), [])))
                # With few steps and many ranks some pairs have had no turn.
                mine = [*slots.get((i, k), []), *back] or [Slot(HALF, 1, min({*live[i]} & {*live[k]}), 1)]
                found += ((i, k, *part) for part in cut(pieces, mine))
            rows = Rows(*np.array(found, np.int64).reshape(-1, len(Rows._fields)).T)
            ends_of = zip(rows.src.tolist(), rows.dst.tolist(), rows.segment.tolist(), strict=True)
            place = {each: row for row, each in enumerate(ends_of)}
            pairs = [(place[a], place[z]) for a, z in held if a in place and z in place]
            waits, on = np.array(pairs, np.int64).reshape(-1, 2).T
            return scheduled(rows, {}, ports, routes, nbytes, ordered=True, held=(waits, on))

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        pair = steady_pair(cluster)
        demand(pair is not None, "cluster", "two slow servers, one with half of its NICs or fewer", "another one")
        demand(tuple(self.slow) == pair, "slow", f"the two ranks with fewer NICs, {pair}", self.slow)
        demand_segments(self.segments)
        demand(self.segments <= MAX_STEPS, "segments", f"1 to {MAX_STEPS}", self.segments)
        demand(1 <= self.growth <= MAX_GROWTH, "growth", f"1 to {MAX_GROWTH}", self.growth)
        demand(self.growing >= 0, "growing", "0 or more", self.growing)
        longer = self.growth ** min(self.growing, self.segments) if self.growth > 1 else 1
        demand(longer <= MAX_LONGER, "growing", f"steps at most {MAX_LONGER} times as long as the first", self.growing)
        demand(0 <= self.margin < 1, "margin", "at least 0, less than 1", self.margin)
        demand(0 <= self.chunk <= MAX_CHUNK, "chunk", f"0 to {MAX_CHUNK}", self.chunk)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """What the slow servers need: the NICs of the hubs are no busier than theirs."""
        return nbytes / min(cluster.ranks[rank].out_rate for rank in self.slow)

    def content(self) -> dict[str, Any]:
        """Every field as JSON values."""
        return {
            "segments": self.segments,
            "slow": list(self.slow),
            "growing": self.growing,
            "growth": str(self.growth),
            "margin": str(self.margin),
            "chunk": str(self.chunk),
        }

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """The recipe of `content`."""
        first, second = raw["slow"]
        return cls(
            segments=raw["segments"],
            slow=(first, second),
            growing=raw["growing"],
            growth=exact(raw["growth"]),
            margin=exact(raw["margin"]),
            chunk=exact(raw["chunk"]),
        )

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """Who gathers what, and the steps."""
        names = " and ".join(cluster.ranks[rank].name for rank in self.slow)
        hubs = len(cluster.ranks) - 2
        grown = f", the first {self.growing} each {float(self.growth):.4g} times the one before" if self.growing else ""
        return [
            ("hubs", f"{hubs} of {hubs + 2}, each exchanges directly with all"),
            ("send and are sent results all the time", names),
            ("steps", f"{self.segments} in each half{grown}; one NIC for each transfer"),
        ]


def steady_pair(cluster: Cluster) -> tuple[int, int] | None:
    """The two ranks with fewer NICs than the others, one of them with half of theirs at most; None where there are no
    such two. Nor with three hubs: one would be alone on a rail that both serve."""
    return starving_pair(cluster) if len(cluster.ranks) != 5 else None


def used_nics(cluster: Cluster, slow: tuple[int, int]) -> list[list[int]]:
    """Of each rank the rails that it serves: of the slow one that has more NICs as many as the other one serves. It
    could send more, but what it is to receive waits for that one."""
    live = [list(mine) for mine in live_nics(cluster)]
    fewer, more = sorted(slow, key=lambda rank: len(live[rank]))
    shared = [rail for rail in live[more] if rail in live[fewer]]
    others = [rail for rail in live[more] if rail not in live[fewer]]
    live[more] = sorted([*shared, *others][: len(live[fewer])])
    return live
