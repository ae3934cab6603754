"""Direct exchange in two levels beside one starving server, as the planner tries it between pods."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import sqrt

from optcc.bound import Bound
from optcc.cluster import Cluster
from optcc.ladder import MANY, Ladder
from optcc.schedule.apart import ApartExchange
from optcc.schedule.grouped import grouped
from optcc.schedule.pods import pod_numbers, uplinks
from optcc.schedule.timetable_nics import live_nics, nic_rate

LASTS = 5
"""The starving server waits as long for first sums, and others for its last totals, as it needs for about so many
chunks on each of its NICs (measured),"""
TRIED, TRIED_MANY = (Fraction(3, 4), Fraction(1), Fraction(4, 3)), (Fraction(1),)
"""which says how many chunks are best; so many times as many are tried, and of more than `MANY` ranks."""
LEAST, MOST = 64, 1024
"""Chunks, at any size."""
FULL = Fraction(101, 100)
"""Others and uplinks may have as much to do as takes so many times the bound: where an uplink sets it groups take less
of that."""


def apart_ladders(cluster: Cluster, bound: Bound, per_chunk: Fraction) -> list[Ladder]:
    """Where any NIC reaches any, one server alone sets the bound, and its pod has others. On one fabric timetables are
    nearer the bound. Small messages may want groups with that server in one."""
    from optcc.theory.apart import apart_split

    groups = pod_numbers(cluster)
    if not grouped(cluster) or cluster.fabric.rails or not max(groups):
        return []
    rates = [len(mine) * nic_rate(cluster) for mine in live_nics(cluster)]
    apart = rates.index(min(rates))
    if groups.count(groups[apart]) == 1 or not alone(rates):
        return []
    split = apart_split(rates, groups, uplinks(cluster, groups), apart)
    if split.per_byte * bound.nbytes > FULL * bound.seconds:
        return []
    recipe = ApartExchange(1, apart, split.inside, tuple(groups), split.hubs, split.finals)
    largest = max(groups.count(group) - (group == groups[apart]) for group in groups)
    # N chunks on k NICs cost the starving one N/k times what one does, and LASTS k/N of the bound.
    best = rates[apart] / nic_rate(cluster) * sqrt(LASTS * bound.seconds / per_chunk) if per_chunk else MOST
    tried = [min(max(part * best, LEAST), MOST) for part in (TRIED if len(groups) <= MANY else TRIED_MANY)]
    windows = [max(1, round(count / largest)) for count in tried]
    make = partial(_recipe, recipe)
    return [Ladder(ApartExchange.family, make, by_rate=False, only=windows, deepest=max(1, MOST // largest))]


def _recipe(of: ApartExchange, segments: int) -> ApartExchange:
    return replace(of, segments=segments)


def alone(rates: list[Fraction]) -> bool:
    """Whether just one rank has no time for more than its own data, where the others could do all else in that."""
    slowest, second = sorted(rates)[:2]
    return slowest < second and sum(rates) >= slowest * 2 * (len(rates) - 1)
