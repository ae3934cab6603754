"""Where timetables apply, and which NICs of servers they use.

Timetables are about NICs of one rate. They keep the pace of the slowest NIC in use, and leave slower ones alone like
dead ones, which on many servers is hardly a loss: of P servers with n NICs each, one at half of its rate is 1/(2 n P)
of all that they have. The pace is the one by which the bound would be least.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from optcc.cluster import Cluster, Nic
from optcc.schedule.routes import Routes
from optcc.schedule.timetable_split import common_rails

HARDLY = Fraction(2, 3)
"""A rank that has at most such a part of the full ones' NICs is hardly faster than the one that has fewest."""
MOST_NAMED = 4
SPARE = Fraction(1, 40)
"""Others have time to spare if they have so much less to do than the one with fewest NICs, as part of its time."""


def applies(cluster: Cluster) -> bool:
    """NICs as in `of_one_pace`, and every two ranks have a rail in common."""
    return of_one_pace(cluster) and common_rails([tuple(mine) for mine in live_nics(cluster)])


def of_one_pace(cluster: Cluster) -> bool:
    """One fabric or one for each rail, servers as ranks, NICs of one pace (on rails one for each), all of them in at
    least two servers."""
    ranks = cluster.ranks
    if cluster.fabric.pod_oversubscription is not None or cluster.gpu_ranks or len(ranks) < 3:
        return False
    rate = nic_rate(cluster)
    kinds = {id(rank.nics): rank.nics for rank in ranks}  # most servers share theirs
    each = {kind: sum(_speed(nic) >= rate > 0 for nic in nics) for kind, nics in kinds.items()}
    live = [tuple(mine) for mine in live_nics(cluster)]
    if any(not mine or len(mine) < each[id(rank.nics)] for mine, rank in zip(live, ranks, strict=True)):
        return False
    every = set().union(*live)
    return sum(len(nics) == len(every) for nics in live) >= 2


def nic_rate(cluster: Cluster) -> Fraction:
    """Bytes per second, each way, at which timetables use NICs: of those that are as fast. 0: some rank has none.

    Ranks with n NICs of rate t or more need as long as the bound of servers that have n t, which is least.
    """
    ranks = cluster.ranks
    kinds = {id(rank.nics): rank.nics for rank in ranks}  # most servers share theirs
    count = Counter(id(rank.nics) for rank in ranks)
    return _pace(tuple((tuple(map(_speed, nics)), count[kind]) for kind, nics in kinds.items()))


@lru_cache(maxsize=1024)
def _pace(kinds: tuple[tuple[tuple[Fraction, ...], int], ...]) -> Fraction:
    """kinds : (rates of NICs, of so many ranks)"""
    rates = sorted({rate for nics, _ in kinds for rate in nics if rate})
    each, ranks = [(sorted(nics), count) for nics, count in kinds], sum(count for _, count in kinds)
    best: tuple[Fraction, Fraction] | None = None
    for rate in reversed(rates):
        used = [(len(nics) - bisect_left(nics, rate), count) for nics, count in each]
        if fewest := min(n for n, _ in used):
            work = Fraction(2 * (ranks - 1), sum(n * count for n, count in used))
            seconds = max(Fraction(1, fewest), work) / rate  # for each byte
            best = min(best, (seconds, rate), key=lambda found: found[0]) if best else (seconds, rate)
    return best[1] if best else Fraction(0)


def left_alone(cluster: Cluster) -> list[str]:
    """The live NICs that timetables do not use, SERVER/NIC."""
    rate = nic_rate(cluster)
    return [f"{s.name}/{nic.name}" for s in cluster.servers for nic in s.nics if nic.alive and _speed(nic) < rate]


def told_pace(cluster: Cluster) -> list[tuple[str, str]]:
    """(label, text) lines for people where NICs differ."""
    if evened(cluster) is cluster:
        return []
    from optcc.units import format_rate  # lowering, on every rank, needs numpy alone

    names, lines = left_alone(cluster), [("pace of every NIC", format_rate(nic_rate(cluster)))]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return lines + ([("slower NICs, not used", ", ".join(names[:MOST_NAMED]) + more)] if names else [])


def evened(cluster: Cluster) -> Cluster:
    """The cluster as timetables use it: every NIC at their pace or dead. Itself, if it is that already."""
    rate = nic_rate(cluster)
    kinds = {id(server.nics): server.nics for server in cluster.servers}
    if all(nic.out_rate == nic.in_rate in (rate, 0) for nics in kinds.values() for nic in nics):
        return cluster
    servers = []
    for server in cluster.servers:
        paces = (rate if _speed(nic) >= rate else Fraction(0) for nic in server.nics)
        nics = (replace(nic, out_rate=x, in_rate=x) for nic, x in zip(server.nics, paces, strict=True))
        servers.append(replace(server, nics=tuple(nics)))
    return replace(cluster, servers=tuple(servers))


def _speed(nic: Nic) -> Fraction:
    return min(nic.out_rate, nic.in_rate)


def reduced(cluster: Cluster) -> list[int]:
    """The ranks with fewer NICs than others, where the timetable applies."""
    counts = list(map(len, live_nics(cluster)))
    return [r for r, count in enumerate(counts) if count < max(counts)]


def hardly_faster(counts: Sequence[int]) -> list[int]:
    """The ranks that are, by how many NICs each has."""
    lone = counts.index(min(counts))
    return [r for r, count in enumerate(counts) if r != lone and count <= HARDLY * max(counts)]


def have_spare_time(counts: Sequence[int]) -> bool:
    """Whether the others do where one rank starves, by how many NICs each has, and none of them is hardly faster: it
    needs 1/its NICs for the data, they (2P-3)/theirs for what it and they exchange."""
    fewest = min(counts)
    spare = 1 - Fraction(fewest * (2 * len(counts) - 3), sum(counts) - fewest)
    return spare >= SPARE and not hardly_faster(counts)


def starving_pair(cluster: Cluster) -> tuple[int, int] | None:
    """The two ranks with fewer NICs than the others, one of them with half of theirs at most; None where there are no
    such two."""
    slow = reduced(cluster) if of_one_pace(cluster) else []
    counts = list(map(len, live_nics(cluster)))
    if len(slow) != 2 or 2 * min(counts) > max(counts):
        return None
    return slow[0], slow[1]


def live_nics(cluster: Cluster) -> list[dict[int, int]]:
    """Of each rank, what a NIC in use can meet -> its place in its server: the NICs of its rail, without rails those of
    its place, or, if two ranks have no place in common, those that are the n-th ones in use, too. Ranks whose NICs are
    one object, as those of a cluster's equal servers are, share one answer."""
    ranks, rails, rate, found = cluster.ranks, cluster.fabric.rails, nic_rate(cluster), {}
    for nics in {id(rank.nics): rank.nics for rank in ranks}.values():
        used = [(i, nic) for i, nic in enumerate(nics) if _speed(nic) >= rate > 0]
        live = {nic.rail if rails and nic.rail is not None else i: i for i, nic in used}
        found[id(nics)] = dict(sorted(live.items()))
    if not rails and not common_rails([tuple(mine) for mine in found.values()]):
        found = {kind: dict(enumerate(mine.values())) for kind, mine in found.items()}
    return [found[id(rank.nics)] for rank in ranks]


def nic_ports(cluster: Cluster, routes: Routes, live: Sequence[Mapping[int, int]] = ()) -> list[dict[int, int]]:
    """Of each rank, rail of a live NIC -> its port. live : as of `live_nics`, which it is by default"""
    names = [cluster.servers[rank.server].name for rank in cluster.ranks]
    return [
        {rail: routes.port_index[f"{name}/{rank.nics[i].name}"] for rail, i in mine.items()}
        for name, rank, mine in zip(names, cluster.ranks, live or live_nics(cluster), strict=True)
    ]
