"""Direct exchange in two levels, as the planner tries it: by pods, or by groups as large as there are many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import isqrt

from optcc.bound import Bound
from optcc.cluster import Cluster
from optcc.ladder import LARGE, MANY, Costs, Ladder
from optcc.schedule.grouped import GroupedExchange, grouped
from optcc.schedule.nics import live_nics, nic_rate
from optcc.schedule.pods import pod_numbers, uplinks
from optcc.schedule.recipe import Recipe

ROUNDS = (1, 2)
"""Of a group's timetable; on one fabric, where groups are larger, or of many ranks, the first."""
SMALL = 4
"""With so many ranks in some group or fewer twice as many rounds: a hub has to wait for a whole one."""
CHUNKS_COST = (Fraction(1, 2), Fraction(1, 40))
"""Of more than `MANY` ranks the more windows, the fewer of these parts of the bound chunks would cost in one level."""
STARVING = (2, 8)
"""Rounds where a server is the hub of nothing: it has nothing to receive until some sums are there."""


def grouped_ladders(cluster: Cluster, bound: Bound, costs: Costs) -> list[Ladder]:
    """Pods, or groups of one fabric if there are many servers."""
    if not grouped(cluster):
        return []
    pods = cluster.fabric.pod_oversubscription is not None
    ranks, most = len(cluster.ranks), max(map(len, live_nics(cluster)))
    groups = pod_numbers(cluster) if pods else _even(ranks) if ranks > LARGE else [0] * ranks
    if not max(groups):
        return []
    sizes = [groups.count(group) for group in range(max(groups) + 1)]
    smallest, largest = min(sizes), max(sizes)
    shares, finals = split(cluster, groups)
    if min(shares):
        few = ROUNDS if pods and ranks <= MANY else ROUNDS[:1]
        tried = [rounds * (2 if smallest <= SMALL else 1) for rounds in few]
    else:  # on one fabric timetables and trees are far nearer the bound
        tried = list(STARVING) if pods else []
    # With as many windows as NICs hubs of different groups use each about once.
    windows = [max(1, most // 2), *(most * 2**k for k in range(5))]
    chunks = Fraction(largest + max(groups) - 1, most)  # for each NIC, at least, each way
    floor = GroupedExchange(1, 1, tuple(groups), shares, finals).even_s(cluster, bound.nbytes)
    least_s = float(floor + chunks * costs.per_chunk + 4 * costs.alpha)
    found = []
    for rounds in tried:
        make = partial(_recipe, GroupedExchange(1, rounds, tuple(groups), shares, finals))
        only = windows if ranks <= LARGE else windows[: 4 if rounds > 1 else 3]
        if ranks > MANY:  # each try is a second
            only = [windows[sum(2 * (ranks - 1) * costs.per_chunk < part * bound.seconds for part in CHUNKS_COST)]]
        found.append(
            Ladder(
                GroupedExchange.family,
                make,
                by_rate=False,
                shortlist=partial(_recipes, make, only),
                both=ranks <= LARGE,
                least_s=least_s,
            )
        )
    return found


def _recipes(make: Callable[[int], GroupedExchange], numbers: Sequence[int]) -> list[Recipe]:
    return [make(number) for number in numbers]


def _recipe(of: GroupedExchange, segments: int) -> GroupedExchange:
    return replace(of, segments=segments)


def split(cluster: Cluster, groups: Sequence[int]) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
    """(shares, finals) of `GroupedExchange` with which that takes least time."""
    from optcc.theory.groups import group_split

    rate = nic_rate(cluster)
    rates = [len(mine) * rate for mine in live_nics(cluster)]
    return group_split(rates, groups, uplinks(cluster, groups))[1:]


def _even(ranks: int) -> list[int]:
    """Groups of equal sizes about the root of `ranks`; nearly equal ones where none divides it."""
    root = isqrt(ranks)
    sizes = [size for size in range(2, ranks // 2 + 1) if ranks % size == 0 and root <= 2 * size and size <= 2 * root]
    if not sizes:
        return [rank * root // ranks for rank in range(ranks)]
    near = min(sizes, key=lambda size: (max(size, ranks // size), -size))
    return [rank // near for rank in range(ranks)]
