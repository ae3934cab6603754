"""Lanes for an all-to-all among servers some of which have fewer NICs: one lane per NIC, every NIC equally busy.

Transfers striped by rate over 8 NICs here and 7 there need 14 lanes, and each NIC pays for two chunks. Here a reduced
server exchanges equal parts between each NIC that it has left and its namesake, and full servers make up for that
by sending more to each other over the NICs that others lack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from optcc.cluster import Cluster
from optcc.schedule.routes import Routes

Way = Callable[[int, int, int], int]
"""(source, destination, which NIC in turn or -1 for all) -> index of the route."""


def balanced_lanes(cluster: Cluster, routes: Routes, carried: Mapping[int, Fraction], whole: Fraction) -> Way:
    """The routes of an exchange in which each full rank sends `whole` in all and `carried[rank]` to a reduced one.

    Routes by rate where live NICs are not of one rate, where a rank has a NIC that one of those with most has not,
    where no shares balance full ranks' NICs, and between ranks of which neither has all of the other's NICs.
    """
    live = [_live(cluster, routes, r) for r in range(len(cluster.ranks))]
    if cluster.fabric.flat and {len(ports) for ports in live} == {1}:
        only, whole_lane = [next(iter(ports.values())) for ports in live], (Fraction(1),)
        return lambda src, dst, turn: routes.alike(src, dst, [(only[src], only[dst])], whole_lane)
    every = max(live, key=len)
    full = [r for r, ports in enumerate(live) if len(ports) == len(every)]
    reduced = {r: ports for r, ports in enumerate(live) if len(ports) < len(every)}
    if not _alike(cluster) or len(full) < 2 or any(not ports.keys() <= every.keys() for ports in live):
        return lambda src, dst, turn: routes(src, dst)
    outside = {
        nic: sum((carried[r] / len(ports) for r, ports in reduced.items() if nic in ports), Fraction(0))
        for nic in every
    }
    inside = whole - sum((carried[r] for r in reduced), Fraction(0))
    if inside <= 0 or max(outside.values()) * len(every) > whole:
        return lambda src, dst, turn: routes(src, dst)
    among = {nic: (whole / len(every) - part) / inside for nic, part in outside.items() if part * len(every) < whole}
    among_shares = tuple(among.values())
    equal = {count: (Fraction(1, count),) * count for count in range(1, len(every) + 1)}

    def way(src: int, dst: int, turn: int) -> int:
        here, there = live[src], live[dst]
        common = here.keys() & there.keys()
        if len(common) < min(len(here), len(there)):
            return routes(src, dst)
        if turn >= 0:
            nic = sorted(common)[turn % len(common)]
            return routes.alike(src, dst, [(here[nic], there[nic])], equal[1])
        nics, shares = (among, among_shares) if len(common) == len(every) else (sorted(common), equal[len(common)])
        return routes.alike(src, dst, [(here[nic], there[nic]) for nic in nics], shares)

    return way


def _alike(cluster: Cluster) -> bool:
    """One fabric, servers as ranks, and all live NICs of one rate."""
    nics = [nic for rank in cluster.ranks for nic in rank.nics if nic.alive]
    return (
        cluster.fabric.flat and not cluster.gpu_ranks and len({r for n in nics for r in (n.out_rate, n.in_rate)}) == 1
    )


def _live(cluster: Cluster, routes: Routes, rank: int) -> dict[int, int]:
    """Place of each live NIC in its server -> its port."""
    server = cluster.servers[cluster.ranks[rank].server].name
    return {i: routes.port_index[f"{server}/{nic.name}"] for i, nic in enumerate(cluster.ranks[rank].nics) if nic.alive}
