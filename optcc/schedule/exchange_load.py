"""What a direct exchange asks of each NIC, from its shares alone: the time of infinitely many segments."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from optcc.cluster import Cluster
from optcc.schedule.rails import Way
from optcc.schedule.routes import Routes


def busiest_nic_s(cluster: Cluster, routes: Routes, way: Way, shares: Sequence[Fraction]) -> Fraction:
    """Seconds per byte of the buffer that the busiest NIC needs, on one fabric with servers as ranks.

    From i to j go shares[i] + shares[j] of the buffer: for hub j it is raw data, from hub i results. Where a slow rank
    adds last it gets a sum instead of a result and sends that back instead of raw data, as many bytes. Which NIC has
    how much of that is what `way` says: a rank's total tells too little where servers lack different NICs, since two
    meet only on those that both have. Ranks of the same NICs and share are alike, so one of each kind will do.
    """
    kinds: dict[object, list[int]] = {}
    for rank, share in zip(cluster.ranks, shares, strict=True):
        nics = tuple((nic.alive, nic.out_rate, nic.in_rate) for nic in rank.nics)
        kinds.setdefault((share, nics), []).append(rank.index)
    first = {port.rank: i for i, port in reversed(list(enumerate(routes.ports)))}
    moved: dict[tuple[int, int, bool], Fraction] = {}  # by rank, place among its live NICs, and whether it comes in

    def add(key: tuple[int, int, bool], part: Fraction) -> None:
        moved[key] = moved.get(key, Fraction(0)) + part

    for mine in kinds.values():
        for theirs in kinds.values():
            same = mine is theirs
            if same and len(mine) == 1:
                continue
            src, dst = mine[0], theirs[same]
            part = shares[src] + shares[dst]
            for lane in routes.table[way(src, dst, -1)].lanes:
                add((mine[0], lane.out - first[src], False), lane.share * part * (len(theirs) - same))
                add((theirs[0], lane.into - first[dst], True), lane.share * part * (len(mine) - same))
    live = {rank: [nic for nic in cluster.ranks[rank].nics if nic.alive] for rank, _, _ in moved}
    return max(
        part / (live[rank][place].in_rate if comes else live[rank][place].out_rate)
        for (rank, place, comes), part in moved.items()
    )
