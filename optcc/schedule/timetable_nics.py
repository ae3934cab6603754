"""Where timetables apply, and which NICs servers have left there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from optcc.cluster import Cluster
from optcc.schedule.routes import Routes
from optcc.schedule.timetable_split import common_rails

HARDLY = Fraction(2, 3)
"""A rank that has at most such a part of the full ones' NICs is hardly faster than the one that has fewest."""
SPARE = Fraction(1, 40)
"""Others have time to spare if they have so much less to do than the one with fewest NICs, as part of its time."""


def applies(cluster: Cluster) -> bool:
    """NICs as in `some_lack_nics`, and every two ranks have a rail in common."""
    return some_lack_nics(cluster) and common_rails([tuple(mine) for mine in live_nics(cluster)])


def some_lack_nics(cluster: Cluster) -> bool:
    """One fabric or one for each rail, servers as ranks, live NICs of one rate (on rails one for each), all of them in
    at least two servers and fewer in another."""
    ranks = cluster.ranks
    kinds = {id(rank.nics): rank.nics for rank in ranks}  # most servers share theirs
    each = {kind: [nic for nic in nics if nic.alive] for kind, nics in kinds.items()}
    rates = {rate for nics in each.values() for nic in nics for rate in (nic.out_rate, nic.in_rate)}
    if cluster.fabric.pod_oversubscription is not None or cluster.gpu_ranks or len(ranks) < 3 or len(rates) != 1:
        return False
    live = [tuple(mine) for mine in live_nics(cluster)]
    if any(len(mine) < len(each[id(rank.nics)]) for mine, rank in zip(live, ranks, strict=True)):
        return False
    every = set().union(*live)
    full = sum(len(nics) == len(every) for nics in live)
    return 2 <= full < len(live)


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
    slow = reduced(cluster) if some_lack_nics(cluster) else []
    counts = list(map(len, live_nics(cluster)))
    if len(slow) != 2 or 2 * min(counts) > max(counts):
        return None
    return slow[0], slow[1]


def live_nics(cluster: Cluster) -> list[dict[int, int]]:
    """Of each rank, what a live NIC can meet -> its place in its server: the NICs of its rail, without rails those of
    its place, or, if two ranks have no place in common, those that are the n-th live ones, too. Ranks whose NICs are
    one object, as those of a cluster's equal servers are, share one answer."""
    ranks, rails, found = cluster.ranks, cluster.fabric.rails, {}
    for nics in {id(rank.nics): rank.nics for rank in ranks}.values():
        live = {nic.rail if rails and nic.rail is not None else i: i for i, nic in enumerate(nics) if nic.alive}
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
