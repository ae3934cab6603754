"""The NICs that direct exchange uses of each server, one for each transfer.

Direct exchange uses NICs of one rate, their pace: the rate by which the bound would be least. Slower NICs are left idle
like dead ones, on many servers a small loss. Of P servers with n NICs each, one NIC at half of its rate is 1/(2 n P) of
the total rate. Where that is too much, NICs count as several lanes (`in_lanes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.routes import Routes
from optcc.schedule.tuned import HARDLY
from optcc.values.cluster import Cluster, Nic, Rank, Server

MAX_NAMED = 4


def applies(cluster: Cluster) -> bool:
    """Whether NICs are as in `of_one_pace`, and every two ranks have a rail in common."""
    return of_one_pace(cluster) and common_rails([tuple(mine) for mine in live_nics(cluster)])


def of_one_pace(cluster: Cluster) -> bool:
    """Whether servers are ranks, with NICs of one pace (on rails one for each), all of them in at least two servers."""
    ranks = cluster.ranks
    if cluster.gpu_ranks or len(ranks) < 3:
        return False
    each = {kind: len(places) for kind, places in _in_use(cluster, ranks).items()}
    live = [tuple(mine) for mine in live_nics(cluster)]
    if any(not mine or len(mine) < each[id(rank.nics)] for mine, rank in zip(live, ranks, strict=True)):
        return False
    every = set().union(*live)
    return sum(len(nics) == len(every) for nics in live) >= 2


def nic_rate(cluster: Cluster) -> Fraction:
    """Bytes per second, each way, at which direct exchange uses NICs. 0: some rank has none.

    With ranks that have n NICs of rate t or more, the time is the bound of servers of rate n t; t is chosen so that it
    is least.
    """
    ranks = cluster.ranks
    kinds = {id(rank.nics): rank.nics for rank in ranks}  # most servers share theirs
    count = Counter(id(rank.nics) for rank in ranks)
    return _pace(tuple((tuple(map(speed, nics)), count[kind]) for kind, nics in kinds.items()))


def fastest_nic(cluster: Cluster) -> Fraction:
    """Bytes per second that the fastest NIC sends."""
    kinds = {id(server.nics): server.nics for server in cluster.servers}
    return max(nic.out_rate for nics in kinds.values() for nic in nics)


@lru_cache(maxsize=1024)
def _pace(kinds: tuple[tuple[tuple[Fraction, ...], int], ...], count: int = 1) -> Fraction:
    """The rate of NICs, or of `count` lanes of each, 1/`count` of some NIC's, by which the bound of all is least.

    kinds : (rates of NICs, number of such servers)
    """
    found: list[tuple[Fraction, Fraction]] = []
    for whole in sorted({rate for nics, _ in kinds for rate in nics} - {Fraction(0)}, reverse=True):
        used = [(sum(min(count, int(rate * count / whole)) for rate in nics), servers) for nics, servers in kinds]
        if min(lanes for lanes, _ in used):
            found.append((bound_of(used) / whole, whole))
    return min(found, key=lambda each: each[0])[1] / count if found else Fraction(0)


def bound_of(used: Sequence[tuple[int, int]]) -> Fraction:
    """Seconds per byte for NICs of 1 byte per second. used : (number of NICs, number of such ranks)"""
    ranks = sum(count for _, count in used)
    return max(Fraction(1, min(n for n, _ in used)), Fraction(2 * (ranks - 1), sum(n * count for n, count in used)))


def _in_use(cluster: Cluster, owners: Sequence[Server] | Sequence[Rank]) -> dict[int, list[int]]:
    """id of an owner's NICs -> the places of the NICs in use."""
    rate = nic_rate(cluster)
    kinds = {id(owner.nics): owner.nics for owner in owners}
    if not rate:
        return {kind: [] for kind in kinds}
    return {kind: [i for i, nic in enumerate(nics) if speed(nic) >= rate] for kind, nics in kinds.items()}


def left_alone(cluster: Cluster) -> list[str]:
    """The live NICs that direct exchange does not use, SERVER/NIC."""
    used = _in_use(cluster, cluster.servers)
    return [
        f"{server.name}/{nic.name}"
        for server in cluster.servers
        for i, nic in enumerate(server.nics)
        if nic.alive and i not in used[id(server.nics)]
    ]


def pace_lines(cluster: Cluster) -> list[tuple[str, str]]:
    """(label, text) lines for people where NICs differ."""
    if at_one_pace(cluster) is cluster:
        return []
    from optcc.values.units import format_rate  # lowering, on every rank, needs numpy alone

    idle = left_alone(cluster)
    lines = [("pace of every NIC", format_rate(nic_rate(cluster)))]
    more = f" and {len(idle) - MAX_NAMED} more" if len(idle) > MAX_NAMED else ""
    return lines + ([("slower NICs, not used", ", ".join(idle[:MAX_NAMED]) + more)] if idle else [])


def at_one_pace(cluster: Cluster) -> Cluster:
    """The cluster as direct exchange uses it: every NIC at the pace or dead. `cluster` itself if nothing changes."""
    rate = nic_rate(cluster)
    kinds = {id(server.nics): server.nics for server in cluster.servers}
    if all(nic.out_rate == nic.in_rate in (rate, 0) for nics in kinds.values() for nic in nics):
        return cluster
    found = {}
    for kind, places in _in_use(cluster, cluster.servers).items():
        paces = [rate if i in places else Fraction(0) for i in range(len(kinds[kind]))]
        found[kind] = tuple(replace(nic, out_rate=x, in_rate=x) for nic, x in zip(kinds[kind], paces, strict=True))
    return replace(cluster, servers=tuple(replace(server, nics=found[id(server.nics)]) for server in cluster.servers))


def speed(nic: Nic) -> Fraction:
    return nic.out_rate if nic.out_rate is nic.in_rate else min(nic.out_rate, nic.in_rate)  # asked thousands of times


def short_of_nics(cluster: Cluster) -> list[int]:
    """The ranks with fewer NICs than others, of a cluster to which direct exchange `applies`."""
    counts = list(map(len, live_nics(cluster)))
    return [r for r, count in enumerate(counts) if count < max(counts)]


def rates_nearly_equal(counts: Sequence[int]) -> list[int]:
    """The ranks whose rate is nearly that of the fastest, by number of NICs."""
    lone = counts.index(min(counts))
    return [r for r, count in enumerate(counts) if r != lone and count <= HARDLY * max(counts)]


def have_spare_time(counts: Sequence[int]) -> bool:
    """Whether the other ranks have spare time where one rank starves. counts : NICs of each rank, none hardly faster.
    The starving rank needs 1/(its NICs) for the data, the others (2P-3)/(their NICs) for all that they and it
    exchange."""
    fewest = min(counts)
    spare = 1 - Fraction(fewest * (2 * len(counts) - 3), sum(counts) - fewest)
    return spare > 0 and not rates_nearly_equal(counts)


def live_nics(cluster: Cluster) -> list[dict[int, int]]:
    """Of each rank, rail of a NIC in use -> its place in its server. Without rails, the rail is the NIC's place. If two
    ranks then have no place in common, or no rank has all places, the n-th NICs in use of all ranks form a rail. Ranks
    whose NICs are one object, as in a cluster's equal servers, share one answer."""
    ranks, rails, found = cluster.ranks, cluster.fabric.rails, {}
    used = _in_use(cluster, ranks)
    for nics in {id(rank.nics): rank.nics for rank in ranks}.values():
        own = {i: nics[i].rail for i in used[id(nics)]}
        found[id(nics)] = dict(sorted((rail if rails and rail is not None else i, i) for i, rail in own.items()))
    every = set().union(*found.values())
    if not rails and not (common_rails([tuple(mine) for mine in found.values()]) and every in map(set, found.values())):
        found = {kind: dict(enumerate(mine.values())) for kind, mine in found.items()}
    return [found[id(rank.nics)] for rank in ranks]


def fewest_nics_first(cluster: Cluster) -> tuple[NDArray[np.int64], Cluster]:
    """The ranks in an order, those with fewest NICs in use first, and the cluster of servers in this order."""
    order = np.argsort([len(mine) for mine in live_nics(cluster)], kind="stable")

    def arranged(given: Cluster) -> Cluster:
        return replace(given, servers=tuple(given.servers[rank] for rank in order))

    return order, replace(arranged(cluster), pristine=cluster.pristine and arranged(cluster.pristine))


def nic_ports(cluster: Cluster, routes: Routes, live: Sequence[Mapping[int, int]] = ()) -> list[dict[int, int]]:
    """Of each rank, rail of a NIC in use -> its port. live : `live_nics` by default"""
    names = [cluster.servers[rank.server].name for rank in cluster.ranks]
    return [
        {rail: routes.port_index[f"{name}/{rank.nics[i].name}"] for rail, i in mine.items()}
        for name, rank, mine in zip(names, cluster.ranks, live or live_nics(cluster), strict=True)
    ]


def common_rails(ranks: Sequence[Sequence[int]]) -> bool:
    """Whether every two ranks have a rail in common."""
    kinds = sorted({tuple(rails) for rails in ranks})
    return all({*a} & {*b} for a in kinds for b in kinds)


# NICs as several lanes, so that a slow NIC takes part in direct exchange with fewer of them.
#
# A NIC at half of the others' rate cannot keep their pace, and left alone it carries nothing. With two lanes for
# every other NIC and one for the slow NIC, all lanes have one pace, half as fast. A schedule in steps then treats
# lanes as the NICs of servers that lack some. In a step a NIC serves its lanes one after another, and pays for a
# chunk on each.


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


# Pods: the ranks of each pod, their uplinks, and the part of the data that direct exchange sends over them.


def pod_numbers(cluster: Cluster) -> list[int]:
    """Of each rank its pod's number, from 0; all 0 where no uplink limits anything."""
    if cluster.fabric.pod_oversubscription is None:
        return [0] * len(cluster.ranks)
    pods = [cluster.servers[rank.server].pod for rank in cluster.ranks]
    number = {pod: i for i, pod in enumerate(dict.fromkeys(pods))}
    return [number[pod] for pod in pods]


def uplinks(cluster: Cluster, groups: Sequence[int]) -> list[Fraction | None]:
    """Of each group, bytes per second each way of its pod's uplink; None: no uplink, or the group is no pod."""
    rates: dict[object, Fraction] = {}
    for (kind, which, _), rate in cluster.uplinks.items():
        if kind == "pod":
            rates[which] = min(rate, rates.get(which, rate))
    found: list[Fraction | None] = []
    for group in range(max(groups) + 1):
        mine = [rank for rank, own in zip(cluster.ranks, groups, strict=True) if own == group]
        pods = {cluster.servers[rank.server].pod for rank in mine}
        found.append(rates.get(next(iter(pods))) if len(pods) == 1 else None)
    return found


def direct_uplink_s(cluster: Cluster, shares: Sequence[Fraction], nbytes: int) -> Fraction:
    """Seconds of the busiest uplink if everybody exchanges directly with every hub; 0 without pods.

    shares : each rank's part of the data as a hub, sum 1
    """
    pods = pod_numbers(cluster)
    across = zip(direct_across(pods, shares), uplinks(cluster, pods), strict=True)
    return max((much / uplink for much, uplink in across if uplink is not None), default=Fraction(0)) * nbytes


def direct_across(pods: Sequence[int], shares: Sequence[Fraction]) -> list[Fraction]:
    """The part of the data that each pod's uplink carries each way in direct exchange.

    Let a pod have S of the P servers, hubs of the part X. It sends S (1 - X) of the data to other hubs, and the results
    of X to P - S servers; it receives as much. A rank that adds last to a part receives sums instead of results, and
    sends results instead of data: the same amounts.
    """
    found = []
    for pod in sorted({*pods}):
        inside = pods.count(pod)
        mine = sum((x for x, own in zip(shares, pods, strict=True) if own == pod), Fraction(0))
        found.append(inside * (1 - mine) + (len(pods) - inside) * mine)
    return found
