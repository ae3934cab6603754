"""Direct exchange in two levels, as the planner tries it: by pods, or by groups as large as there are many of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import isqrt

from optcc.cluster import Cluster
from optcc.ladder import LARGE, MANY, Ladder
from optcc.schedule.grouped import GroupedExchange, grouped, uplinks
from optcc.schedule.timetable_nics import live_nics, nic_rate

ROUNDS = (1, 2)
"""Of a group's timetable; on one fabric, where groups are larger, or of many ranks, the first."""
SMALL = 4
"""With so many ranks in some group or fewer twice as many rounds: a hub has to wait for a whole one."""
STARVING = (2, 8)
"""Rounds where a server is the hub of nothing: it has nothing to receive until some sums are there."""


def grouped_ladders(cluster: Cluster) -> list[Ladder]:
    """Pods, or groups of one fabric if there are many servers."""
    if not grouped(cluster):
        return []
    pods = cluster.fabric.pod_oversubscription is not None
    ranks, most = len(cluster.ranks), max(map(len, live_nics(cluster)))
    groups = _by_pods(cluster) if pods else _even(ranks) if ranks > LARGE else [0] * ranks
    if not max(groups):
        return []
    smallest = min(map(groups.count, range(max(groups) + 1)))
    shares, finals = split(cluster, groups)
    if min(shares):
        few = ROUNDS if pods and ranks <= MANY else ROUNDS[:1]
        tried = [rounds * (2 if smallest <= SMALL else 1) for rounds in few]
    else:  # on one fabric timetables and trees are far nearer the bound
        tried = list(STARVING) if pods else []
    return [_ladder(GroupedExchange(1, rounds, tuple(groups), shares, finals), most) for rounds in tried]


def split(cluster: Cluster, groups: Sequence[int]) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
    """(shares, finals) of `GroupedExchange` with which that takes least time."""
    from optcc.theory.groups import group_split

    rates = [len(mine) * nic_rate(cluster) for mine in live_nics(cluster)]
    return group_split(rates, groups, uplinks(cluster, groups))[1:]


def _ladder(recipe: GroupedExchange, most: int) -> Ladder:
    """most : NICs; with as many windows hubs of different groups use each about once"""
    only = sorted({max(1, most // 2), most, 2 * most, 4 * most})
    return Ladder(
        GroupedExchange.family,
        lambda segments: replace(recipe, segments=segments),
        by_rate=False,
        only=only if recipe.rounds > 1 or len(recipe.groups) <= LARGE else only[:3],
        both=len(recipe.groups) <= LARGE,
    )


def _by_pods(cluster: Cluster) -> list[int]:
    """Of each rank its pod's number."""
    pods = [cluster.servers[rank.server].pod for rank in cluster.ranks]
    number = {pod: i for i, pod in enumerate(dict.fromkeys(pods))}
    return [number[pod] for pod in pods]


def _even(ranks: int) -> list[int]:
    """Groups of equal sizes about the root of `ranks`; nearly equal ones where none divides it."""
    root = isqrt(ranks)
    sizes = [size for size in range(2, ranks // 2 + 1) if ranks % size == 0 and root <= 2 * size and size <= 2 * root]
    if not sizes:
        return [rank * root // ranks for rank in range(ranks)]
    near = min(sizes, key=lambda size: (max(size, ranks // size), -size))
    return [rank // near for rank in range(ranks)]
