"""Direct exchange in two levels, as the planner tries it: by pods, or by groups as large as there are many of them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import isqrt

from optcc.cluster import Cluster
from optcc.ladder import LARGE, MANY, Ladder
from optcc.schedule.grouped import GroupedExchange, grouped, uplinks
from optcc.schedule.timetable_nics import live_nics, nic_rate

ROUNDS = (1, 2)
"""Of a group's timetable; on one fabric, where groups are larger, one."""
SMALL = 4
"""With fewer ranks in some group more rounds: a hub has to wait for a whole one."""


def grouped_ladders(cluster: Cluster) -> list[Ladder]:
    """Pods, or groups of one fabric if there are many servers."""
    if not grouped(cluster):
        return []
    pods = cluster.fabric.pod_oversubscription is not None
    ranks, most = len(cluster.ranks), max(map(len, live_nics(cluster)))
    divisions = [_by_pods(cluster)] if pods else _even(ranks) if ranks > LARGE else []
    found = []
    for groups in divisions:
        if not max(groups):  # a single pod
            continue
        smallest = min(map(groups.count, range(max(groups) + 1)))
        for rounds in [r * (2 if smallest <= SMALL else 1) for r in (ROUNDS if pods and ranks <= MANY else ROUNDS[:1])]:
            found.append(_ladder(cluster, groups, rounds, most))
    return found


def _ladder(cluster: Cluster, groups: Sequence[int], rounds: int, most: int) -> Ladder:
    """most : NICs, each of which hubs of different groups use about once with as many windows"""
    from optcc.theory.groups import group_split

    @cache
    def split() -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
        rates = [len(mine) * nic_rate(cluster) for mine in live_nics(cluster)]
        _, shares, finals = group_split(rates, groups, uplinks(cluster, groups))
        return shares, finals

    def make(segments: int) -> GroupedExchange:
        shares, finals = split()
        return GroupedExchange(segments, rounds, tuple(groups), shares, finals)

    only = sorted({max(1, most // 2), most, 2 * most, 4 * most if rounds > 1 else most})
    return Ladder(GroupedExchange.family, make, by_rate=False, only=only, both=len(groups) <= LARGE)


def _by_pods(cluster: Cluster) -> list[int]:
    """Of each rank its pod's number."""
    pods = [cluster.servers[rank.server].pod for rank in cluster.ranks]
    number = {pod: i for i, pod in enumerate(dict.fromkeys(pods))}
    return [number[pod] for pod in pods]


def _even(ranks: int) -> list[list[int]]:
    """Groups of equal sizes about the root of `ranks`; nearly equal ones where none divides it."""
    root = isqrt(ranks)
    sizes = [size for size in range(2, ranks // 2 + 1) if ranks % size == 0 and root <= 2 * size and size <= 2 * root]
    if not sizes:
        return [[rank * root // ranks for rank in range(ranks)]]
    near = sorted(sizes, key=lambda size: (max(size, ranks // size), -size))[: 1 if ranks > MANY else 2]
    return [[rank // size for rank in range(ranks)] for size in near]
