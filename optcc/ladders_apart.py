"""Direct exchange in two levels beside one starving server, as the planner tries it between pods."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from optcc.cluster import Cluster
from optcc.ladder import LARGE, MANY, Ladder
from optcc.schedule.apart import ApartExchange
from optcc.schedule.grouped import grouped
from optcc.schedule.pods import pod_numbers, uplinks
from optcc.schedule.timetable_nics import live_nics, nic_rate

CHUNKS, CHUNKS_MANY = (64, 96, 128, 192, 256, 384, 512, 640, 768), (256,)
"""Of the data, those that are tried, and of more than `MANY` ranks: the more there are, the less the starving server
waits for first sums and others for its last ones, and the more all pay for chunks."""


def apart_ladders(cluster: Cluster) -> list[Ladder]:
    """Where any NIC reaches any, one server alone sets the bound, and its pod has others. On one fabric timetables are
    nearer the bound."""
    from optcc.theory.apart import apart_split

    groups = pod_numbers(cluster)
    if not grouped(cluster) or cluster.fabric.rails or not max(groups):
        return []
    rates = [len(mine) * nic_rate(cluster) for mine in live_nics(cluster)]
    apart = rates.index(min(rates))
    if groups.count(groups[apart]) == 1 or not alone(rates):
        return []
    split = apart_split(rates, groups, uplinks(cluster, groups), apart)
    recipe = ApartExchange(1, apart, split.inside, tuple(groups), split.hubs, split.finals)
    largest = max(map(groups.count, groups))
    windows = [max(1, count // largest) for count in (CHUNKS if len(groups) <= MANY else CHUNKS_MANY)]
    return [
        Ladder(
            ApartExchange.family,
            lambda segments: replace(recipe, segments=segments),
            by_rate=False,
            only=windows,
            both=len(groups) <= LARGE,
        )
    ]


def alone(rates: list[Fraction]) -> bool:
    """Whether just one rank has no time for more than its own data, where the others could do all else in that."""
    slowest, second = sorted(rates)[:2]
    return slowest < second and sum(rates) >= slowest * 2 * (len(rates) - 1)
