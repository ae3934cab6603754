"""NICs as several lanes, so that a slow one takes part in a timetable with fewer of them.

A NIC at half of the others' rate cannot keep their pace, and left alone it carries nothing. With two lanes for every
other NIC and one for it all lanes have one pace again, half as fast: a timetable is about lanes then, as about NICs of
servers that lack some. In a step a NIC serves its lanes one after the other, each in so much less time, and pays for a
chunk on each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import NamedTuple

from optcc.cluster import Cluster, Nic
from optcc.schedule.timetable_nics import MOST_NAMED, bound_of, live_nics, speed
from optcc.schedule.timetable_slots import Slot

MOST_LANES = 4
LAG = Fraction(1, 2)
"""Of a step, by which NICs fall behind that receive from slow ones: while such a chunk trickles in they have nothing
else at first, and more than they can take then; later such chunks find them busy with what has piled up. Where packets
are taken as they come it is 3/8 (measured)."""
PARTS = 2**20


def in_lanes(cluster: Cluster, count: int) -> Cluster:
    """The cluster with `count` NICs in place of each, of one rate, or dead where the NIC is slower than so many. NIC i
    is at places i `count` and after; each lane of a rail is a rail."""
    if count == 1:
        return cluster
    kinds = {id(server.nics): server.nics for server in cluster.servers}  # most servers share theirs
    servers = Counter(id(server.nics) for server in cluster.servers)
    pace = _pace(tuple((tuple(map(speed, nics)), servers[kind]) for kind, nics in kinds.items()), count)
    found = {
        kind: tuple(_lane(nic, place, lane, count, pace) for place, nic in enumerate(nics) for lane in range(count))
        for kind, nics in kinds.items()
    }
    return replace(cluster, servers=tuple(replace(s, nics=found[id(s.nics)]) for s in cluster.servers), pristine=None)


@lru_cache(maxsize=1024)
def _pace(kinds: tuple[tuple[tuple[Fraction, ...], int], ...], count: int) -> Fraction:
    """The rate of lanes, `count` of some NIC, by which the bound of all lanes is least. 0: some server has none.

    kinds : (rates of NICs, of so many servers)
    """
    unit = lcm(*(rate.denominator for nics, _ in kinds for rate in nics))
    each = [([int(rate * unit) for rate in nics], servers) for nics, servers in kinds]
    found: list[tuple[Fraction, int]] = []
    for pace in sorted({rate for nics, _ in each for rate in nics} - {0}, reverse=True):
        used = [(sum(min(count, rate * count // pace) for rate in nics), servers) for nics, servers in each]
        if min(lanes for lanes, _ in used):
            found.append((bound_of(used) / pace, pace))
    return Fraction(min(found, key=lambda each: each[0])[1], unit * count) if found else Fraction(0)


def _lane(nic: Nic, place: int, lane: int, count: int, pace: Fraction) -> Nic:
    carries = speed(nic) >= (lane + 1) * pace
    rail = (place if nic.rail is None else nic.rail) * count + lane
    rate = pace if carries else Fraction(0)
    return replace(nic, name=f"{nic.name}#{lane}", out_rate=rate, in_rate=rate, rail=rail)


class Lanes(NamedTuple):
    """How NICs serve their lanes.

    each : so many of a NIC at the pace; late : those, named as by `live_nics`, of NICs that are slow somewhere; less :
    the part that these carry less than others
    """

    each: int
    late: frozenset[int]
    less: Fraction

    @classmethod
    def of(cls, cluster: Cluster, count: int, steps: int) -> Lanes:
        """cluster : in lanes; steps : of the plan, if all are equal, else 0"""
        found = live_nics(cluster)
        every = set().union(*found)
        slow = {lane // count for mine in found for lane in every - {*mine}}
        late = frozenset(lane for lane in every if lane // count in slow)
        # With that the lag is shared by all: others take over as much as they then end later.
        return cls(count, late, (1 - Fraction(len(late), len(every))) * LAG / steps if steps else Fraction(0))

    def serve(self, slots: Sequence[Slot]) -> list[Slot]:
        """Each in its lane's part of a step. A NIC's first lane begins with it, as slow NICs need all of it."""
        own = PARTS - round(self.less * PARTS)
        return [
            slot._replace(
                begin=slot.begin + slot.nic % self.each * slot.size // self.each,
                weight=slot.weight * (own if slot.nic in self.late else PARTS),
            )
            for slot in slots
        ]


def nics_of(live: Sequence[Mapping[int, tuple[int, ...]]], count: int) -> list[dict[int, tuple[int, ...]]]:
    """`live_nics` of a cluster in lanes, with the places of the NICs that these are of."""
    return [{rail: tuple(place // count for place in lane) for rail, lane in mine.items()} for mine in live]


def told_lanes(cluster: Cluster, count: int) -> list[tuple[str, str]]:
    """(label, text) lines for people: how many lanes, and the NICs that have fewer."""
    if count == 1:
        return []
    fewer = [
        f"{server.name}/{nic.name} {own}"
        for server, laned in zip(cluster.servers, in_lanes(cluster, count).servers, strict=True)
        for i, nic in enumerate(server.nics)
        if nic.alive and (own := sum(lane.alive for lane in laned.nics[i * count : (i + 1) * count])) < count
    ]
    more = f" and {len(fewer) - MOST_NAMED} more" if len(fewer) > MOST_NAMED else ""
    return [("lanes of a NIC", str(count)), ("fewer of slower ones", ", ".join(fewer[:MOST_NAMED]) + more)]
