"""NICs as several lanes, so that a slow NIC takes part in direct exchange with fewer of them.

A NIC at half of the others' rate cannot keep their pace, and left alone it carries nothing. With two lanes for every
other NIC and one for the slow NIC, all lanes have one pace, half as fast. A schedule in steps then treats lanes as the
NICs of servers that lack some. In a step a NIC serves its lanes one after another, and pays for a chunk on each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from optcc.schedule.nics import MAX_NAMED, bound_of, speed
from optcc.values.cluster import Cluster, Nic

MAX_LANES = 4


def differ(cluster: Cluster) -> bool:
    """Whether live NICs have different rates, so that lanes may gain something."""
    kinds = {id(server.nics): server.nics for server in cluster.servers}
    return len({speed(nic) for nics in kinds.values() for nic in nics if nic.alive}) > 1


def in_lanes(cluster: Cluster, count: int) -> Cluster:
    """The cluster with `count` NICs of one rate in place of each NIC, some dead where the NIC is too slow for `count`.
    NIC i is at places i `count` and after; each lane of a rail is a rail."""
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
    """The rate of lanes, 1/`count` of some NIC's, by which the bound of all lanes is least.

    kinds : (rates of NICs, number of such servers)
    """
    found: list[tuple[Fraction, Fraction]] = []
    for whole in sorted({rate for nics, _ in kinds for rate in nics} - {Fraction(0)}, reverse=True):
        used = [(sum(min(count, int(rate * count / whole)) for rate in nics), servers) for nics, servers in kinds]
        if min(lanes for lanes, _ in used):
            found.append((bound_of(used) / whole, whole))
    return min(found, key=lambda each: each[0])[1] / count if found else Fraction(0)


def _lane(nic: Nic, place: int, lane: int, count: int, pace: Fraction) -> Nic:
    rate = pace if pace and speed(nic) >= (lane + 1) * pace else Fraction(0)
    rail = (place if nic.rail is None else nic.rail) * count + lane
    return replace(nic, name=f"{nic.name}#{lane}", out_rate=rate, in_rate=rate, rail=rail)


def nics_of(lanes: Sequence[Mapping[int, int]], count: int) -> list[dict[int, int]]:
    """rail -> place in the cluster in lanes, of each rank, as rail -> place of the NIC that the lane is of."""
    return [{rail: place // count for rail, place in mine.items()} for mine in lanes]


def lane_lines(cluster: Cluster, count: int) -> list[tuple[str, str]]:
    """(label, text) lines for people: how many lanes, and the NICs that have fewer."""
    if count == 1:
        return []
    fewer = [
        f"{server.name}/{nic.name} {own}"
        for server, laned in zip(cluster.servers, in_lanes(cluster, count).servers, strict=True)
        for i, nic in enumerate(server.nics)
        if nic.alive and (own := sum(lane.alive for lane in laned.nics[i * count : (i + 1) * count])) < count
    ]
    more = f" and {len(fewer) - MAX_NAMED} more" if len(fewer) > MAX_NAMED else ""
    return [("lanes of a NIC", str(count)), ("fewer of slower ones", ", ".join(fewer[:MAX_NAMED]) + more)]
