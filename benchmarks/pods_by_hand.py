"""Exchange in two levels, beside a server apart or direct exchange or nothing, to try by hand in `bench_planner`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product

from optcc.bound import Bound
from optcc.cluster import Cluster
from optcc.ladders_apart import apart_ladders
from optcc.ladders_grouped import split
from optcc.schedule.apart import ApartExchange
from optcc.schedule.grouped import GroupedExchange, grouped
from optcc.schedule.mixed import MixedExchange, divided
from optcc.schedule.pods import pod_numbers, uplinks
from optcc.schedule.timetable import Timetable
from optcc.schedule.timetable_nics import applies, bound_of, evened, live_nics, nic_rate
from optcc.theory.apart import apart_split
from optcc.theory.hubs import hub_split

ROUNDS = (1, 2, 3, 4, 8)
"""Of the pods' timetables,"""
WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""and windows between the pods."""
BESIDE_ROUNDS, BESIDE_WINDOWS, DIRECT_ROUNDS = (1, 2, 4), (2, 4, 8, 16, 32), (1, 2, 3)
"""Both beside direct exchange, and that one's rounds."""
APART_WINDOWS = (4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 256)
"""Beside a server apart."""
MOVED = (Fraction(1), Fraction(19, 20), Fraction(21, 20))
"""So many times the data that lets both end together without latency goes in two levels."""


def two_levels(cluster: Cluster) -> Iterator[list[Callable[[], GroupedExchange]]]:
    """Of each number of rounds, what makes one with ever more windows; none without pods."""
    made = _by_pods(cluster)
    for rounds in ROUNDS if made else ():
        yield [partial(replace, made, segments=windows, rounds=rounds) for windows in WINDOWS]


def beside_one(cluster: Cluster, bound: Bound) -> Iterator[list[Callable[[], ApartExchange]]]:
    """With whomever the server apart exchanges its data, what makes one with ever more windows; none without one."""
    for ladder, inside in product(apart_ladders(cluster, bound, Fraction(0)), (False, True)):
        made, groups = ladder.make(1), pod_numbers(cluster)
        assert isinstance(made, ApartExchange)
        rates = [len(mine) * nic_rate(cluster) for mine in live_nics(cluster)]
        split = apart_split(rates, groups, uplinks(cluster, groups), made.apart, inside)
        other = replace(made, inside=inside, hubs=split.hubs, finals=split.finals)
        yield [partial(replace, other, segments=windows) for windows in APART_WINDOWS]


def beside(cluster: Cluster) -> Iterator[list[Callable[[], MixedExchange]]]:
    """Of each number of NICs in two levels, and of rounds of either, what makes one with ever more windows."""
    if _by_pods(cluster) is None:
        return
    most = max(len(server.nics) for server in cluster.servers)
    for count in range(1, most):
        nics = tuple(range(most - count, most))
        direct, other = divided(cluster, nics)
        made = _by_pods(other)
        if made is None or not applies(direct) or not min(shares := hub_split(evened(direct))[0]):
            return
        one_s = bound_of([(len(mine), 1) for mine in live_nics(direct)]) / nic_rate(direct)
        part = one_s / (one_s + made.even_s(other, 1))
        for rounds, own, moved in product(BESIDE_ROUNDS, DIRECT_ROUNDS, MOVED):
            yield [
                partial(
                    MixedExchange, windows, Timetable(own, shares), replace(made, rounds=rounds), nics,
                    min(part * moved, Fraction(99, 100)).limit_denominator(2**20),
                )
                for windows in BESIDE_WINDOWS
            ]  # fmt: skip


def _by_pods(cluster: Cluster) -> GroupedExchange | None:
    groups = pod_numbers(cluster)
    return GroupedExchange(1, 1, tuple(groups), *split(cluster, groups)) if max(groups) and grouped(cluster) else None
