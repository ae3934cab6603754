"""Direct exchange with several servers that starve: all of them send and are sent something all the time.

One has half of its NICs or fewer, the others hardly more; they use as many (`used_nics`). The rest are hubs, one that
lacks few NICs of less. What hubs gather from each other goes in the first half, what they spread in the second one,
about twice as fast as the slow servers send: so hubs have the sums of all others by the time the slow servers have sent
theirs for the same bytes, and results go back to these at once, through both halves. With two slow servers, what is
lost are a step and a half, from when a slow server sends a chunk to when its result comes back, and the cost of chunks
(docs/schedules.md). With more hubs set the pace. Who sends to whom when: `steady_steps`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, permutations
from typing import Any, ClassVar, Self

import numpy as np

from optcc.cluster import Cluster
from optcc.schedule.assemble import cuts_by
from optcc.schedule.columns import Schedule
from optcc.schedule.many_objects import no_collection
from optcc.schedule.pods import direct_uplink_s
from optcc.schedule.recipe import Recipe, demand, demand_segments, exact
from optcc.schedule.routes import Routes
from optcc.schedule.steady_steps import growing_ends, steady_steps
from optcc.schedule.timetable_nics import live_nics, nic_ports, nic_rate, of_one_pace, told_pace
from optcc.schedule.timetable_rows import Kind, Piece, Rows, cut, dependencies, scheduled
from optcc.schedule.timetable_slots import HALF, Slot, mirrored

MOST_NICS = Fraction(3, 4)
"""Servers with so many of their NICs, or more, are hubs."""
MAX_CHUNK = Fraction(1, 16)
MAX_STEPS, MAX_GROWTH, MAX_LONGER = 1024, 4, 2**20
MAX_CHUNKS = 2**19
"""Steps of both halves times NICs: so many take some GB and some ten seconds."""
"""Steps; one over the one before; the longest over the first."""


@dataclass(frozen=True)
class SteadyExchange(Recipe):
    """Direct exchange with several servers that starve.

    Attributes
    ----------
    segments : steps in each half
    slow : the ranks that are no hubs, in order
    growing, growth : so many first steps are each followed by one that is `growth` times as long
    margin, chunk : the parts of a half from the end of a step to when its bytes count, and that a chunk costs
    """

    family: ClassVar[str] = "steady-exchange"
    segments: int
    slow: tuple[int, ...]
    growing: int
    growth: Fraction
    margin: Fraction
    chunk: Fraction

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        with no_collection():
            routes, used = Routes(cluster), used_nics(cluster, self.slow)
            live, ports = [list(mine) for mine in used], nic_ports(cluster, routes, used)
            hubs = [rank for rank in range(len(live)) if rank not in self.slow]
            ends = growing_ends(self.segments, self.growing, self.growth)
            shares = hub_shares(cluster, self.slow)
            slots, held = steady_steps(live, shares, ends, self.margin, self.chunk)
            cuts = cuts_by(0, nbytes, [shares[rank] for rank in hubs]).tolist()
            section = dict(zip(hubs, pairwise(cuts), strict=True))
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
            return scheduled(rows, dependencies(rows, {}), ports, routes, nbytes, ordered=True, held=(waits, on))

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        slow = steady_ranks(cluster)
        demand(slow is not None, "cluster", "slow servers, one with half of its NICs or fewer", "another one")
        demand(tuple(self.slow) == slow, "slow", f"the ranks with fewer NICs, {slow}", self.slow)
        demand_segments(self.segments)
        most = most_steps(cluster)
        demand(self.segments <= most, "segments", f"1 to {most}", self.segments)
        demand(1 <= self.growth <= MAX_GROWTH, "growth", f"1 to {MAX_GROWTH}", self.growth)
        demand(self.growing >= 0, "growing", "0 or more", self.growing)
        longer = self.growth ** min(self.growing, self.segments) if self.growth > 1 else 1
        demand(longer <= MAX_LONGER, "growing", f"steps at most {MAX_LONGER} times as long as the first", self.growing)
        demand(0 <= self.margin < 1, "margin", "at least 0, less than 1", self.margin)
        demand(0 <= self.chunk <= MAX_CHUNK, "chunk", f"0 to {MAX_CHUNK}", self.chunk)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """What the slow servers need, or the hubs for each other, as slow servers take part in every step."""
        used, shares = used_nics(cluster, self.slow), hub_shares(cluster, self.slow)
        hubs = [rank for rank in range(len(used)) if rank not in self.slow]
        nics, slow_nics = (sum(len(used[rank]) for rank in ranks) for ranks in (hubs, self.slow))
        works = [Fraction(1, len(used[self.slow[0]]))]
        for hub in hubs:
            works.append((1 + (len(used) - 2) * shares[hub]) / len(used[hub]))
            works.append((1 + (len(hubs) - 2) * shares[hub]) / (len(used[hub]) * (1 - Fraction(slow_nics, nics))))
        return max(max(works) * nbytes / nic_rate(cluster), direct_uplink_s(cluster, shares, nbytes))

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
        return cls(
            segments=raw["segments"],
            slow=tuple(raw["slow"]),
            growing=raw["growing"],
            growth=exact(raw["growth"]),
            margin=exact(raw["margin"]),
            chunk=exact(raw["chunk"]),
        )

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """Who gathers what, and the steps."""
        names = " and ".join(cluster.ranks[rank].name for rank in self.slow)
        hubs = len(cluster.ranks) - len(self.slow)
        grown = f", the first {self.growing} each {float(self.growth):.4g} times the one before" if self.growing else ""
        return [
            ("hubs", f"{hubs} of {len(cluster.ranks)}, each exchanges directly with all"),
            ("send and are sent results all the time", names),
            ("steps", f"{self.segments} in each half{grown}; one NIC for each transfer"),
            *told_pace(cluster),
        ]


def steady_ranks(cluster: Cluster) -> tuple[int, ...] | None:
    """The ranks with fewer NICs than `MOST_NICS` of the others' that are no hubs; None where they are not two or more,
    one of them with half at most, or hubs are too few: on rails that slow ones serve, two more of them than of these
    keep each other busy, or none more if there are two; and every hub has some of these rails.
    """
    if not of_one_pace(cluster):
        return None
    counts = list(map(len, live_nics(cluster)))
    slow = tuple(rank for rank, count in enumerate(counts) if count < MOST_NICS * max(counts))
    if len(slow) < 2 or 2 * min(counts) > max(counts):
        return None
    used = used_nics(cluster, slow)
    hubs = [mine.keys() for rank, mine in enumerate(used) if rank not in slow]
    if not all(used[rank].keys() & hub for rank in slow for hub in hubs):
        return None
    on = Counter((rail, rank in slow) for rank, mine in enumerate(used) for rail in mine)
    more = {on[rail, False] - count for (rail, no_hub), count in on.items() if no_hub}
    return slow if min(more) >= 2 or (more == {0} and len(slow) == 2) else None


def hub_shares(cluster: Cluster, slow: tuple[int, ...]) -> list[Fraction]:
    """Each rank's part of the data as a hub, sum 1, so that all hubs are equally busy.

    A hub of x sends 1 - x to other hubs and x to each of the P-1 others: with n NICs it is busy for 1 + (P-2) x = n t.
    """
    counts = list(map(len, live_nics(cluster)))
    hubs = [rank for rank in range(len(counts)) if rank not in slow]
    per_nic = Fraction(len(hubs) + len(counts) - 2, sum(counts[rank] for rank in hubs))
    return [(n * per_nic - 1) / (len(counts) - 2) if r in hubs else Fraction(0) for r, n in enumerate(counts)]


def most_steps(cluster: Cluster) -> int:
    """In each half, by `MAX_STEPS` and `MAX_CHUNKS`."""
    return min(MAX_STEPS, MAX_CHUNKS // (2 * sum(map(len, live_nics(cluster)))))


def used_nics(cluster: Cluster, slow: tuple[int, ...]) -> list[dict[int, tuple[int, ...]]]:
    """Of each rank the rails that it serves -> its NICs, as of `live_nics`: of the slow ones that have more NICs as
    many as the one that has fewest. They could send more, but what they are to receive waits for that one. On one
    fabric, where any NIC reaches any, the slow ones are taken to serve the first rails, and hubs not to lack these; two
    with one NIC each the first two, as on one they could not send to the same hub at the same time (with two hubs,
    which then could not exchange on it, one nevertheless)."""
    live = live_nics(cluster)
    if not cluster.fabric.rails:
        live = [dict(enumerate(mine.values())) for mine in live]
    fewest = min((live[rank] for rank in slow), key=len)
    for rank in slow:
        rails = sorted(live[rank], key=lambda rail: (rail not in fewest, rail))[: len(fewest)]
        live[rank] = {rail: live[rank][rail] for rail in sorted(rails)}
    if len(fewest) == 1 and len(slow) == 2 and len(live) > 4 and not cluster.fabric.rails:
        live[slow[1]] = {1: next(iter(live[slow[1]].values()))}
    return live
