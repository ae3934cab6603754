"""Clusters of which some servers have lost NICs, and timetables for them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from math import lcm
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster, Fabric
from optcc.ladders_timetable import even_halves
from optcc.schedule import Schedule
from optcc.schedule.recipe import Recipe
from optcc.schedule.timetable import Timetable
from optcc.schedule.timetable_lanes import in_lanes
from optcc.schedule.timetable_nics import applies, evened, live_nics, reduced
from optcc.simulator import simulate
from optcc.theory.hubs import hub_split

RATE = 50 * 10**9
ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)
WHOLE = Fraction(1)
EXACTLY = 1e-5
"""Cut points are multiples of 8 bytes, and times are rounded up to picoseconds."""


@st.composite
def hurt(draw: st.DrawFn, most: int = 9) -> Cluster:
    """Servers of 2 to 8 NICs, one to four of which lost some but not all; on rails any two have one in common. On one
    fabric or on rails."""
    ranks, nics = draw(st.integers(3, most)), draw(st.integers(2, 8))
    cluster = Cluster.uniform(servers=ranks, nics=nics, rate=RATE)
    cluster = replace(cluster, fabric=Fabric(rails=draw(st.booleans()), spine=None))
    for slow in draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=min(4, ranks - 2))):
        for nic in draw(st.sets(st.integers(0, nics - 1), min_size=1, max_size=nics - 1)):
            cluster = cluster.degrade(f"server{slow}/nic{nic}")
    assume(applies(cluster))
    return cluster


def rank_nics(cluster: Cluster, rank: int) -> list[int]:
    return [i for i, nic in enumerate(cluster.ranks[rank].nics) if nic.alive]


def dead(servers: int, count: int, nics: int = 8) -> Cluster:
    """`count` NICs of the first server are dead."""
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=RATE)
    for nic in range(count):
        cluster = cluster.degrade(f"server0/nic{nic}")
    return cluster


def timetable(cluster: Cluster, segments: int = 1, *, late: bool = False, **rounds: Any) -> Timetable:
    """late : slow ranks add last though all ranks are hubs"""
    shares, _ = hub_split(evened(cluster))
    via = even_halves(shares, reduced(cluster)) if late or not min(shares) else ()
    return Timetable(segments, shares, via, **rounds)


@st.composite
def starved(draw: st.DrawFn, most: int = 9) -> Cluster:
    """One server has lost so many NICs that it alone sets the bound."""
    ranks, nics = draw(st.integers(3, most)), draw(st.integers(2, 8))
    left = draw(st.integers(1, max(1, nics // 2)))
    cluster = Cluster.uniform(servers=ranks, nics=nics, rate=RATE)
    slow = draw(st.integers(0, ranks - 1))
    for nic in draw(st.permutations(range(nics)))[left:]:
        cluster = cluster.degrade(f"server{slow}/nic{nic}")
    assume(min(hub_split(cluster)[0]) == 0)
    return cluster


def check_allreduce(cluster: Cluster, recipe: Recipe, nbytes: int) -> None:
    recipe.check(cluster)
    schedule = recipe.lower(cluster, nbytes)
    optcc.verify(schedule)
    assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes
    on = in_lanes(cluster, getattr(recipe, "lanes", 1))
    as_one = [{len(lane) for lane in mine.values()} for mine in live_nics(on)]
    assert {(r.src, r.dst, len(r.lanes)) for r in schedule.routes} <= {
        (a, b, lcm(m, n)) for (a, one), (b, other) in permutations(enumerate(as_one), 2) for m in one for n in other
    }
    assert not off_rails(schedule)
    assert recipe.read(recipe.content()) == recipe


def off_rails(schedule: Schedule) -> list[tuple[str, str]]:
    """Ports that a transfer joins although they are on different rails. Without rails all are on none."""
    lanes = [lane for route in schedule.routes for lane in route.lanes]
    joined = [(schedule.ports[lane.out], schedule.ports[lane.into]) for lane in lanes]
    return [(out.name, into.name) for out, into in joined if out.rail != into.rail]


def lacking(*lost: str) -> Cluster:
    """Eight servers of eight NICs; of the i-th one the NICs of lost[i] are dead."""
    cluster = Cluster.uniform(servers=8, nics=8, rate=RATE)
    for server, nics in enumerate(lost):
        for nic in nics:
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


def loss(cluster: Cluster, recipe: Recipe) -> float:
    """Simulated time without latency over the bound, less 1."""
    nbytes = 2**28
    return simulate(recipe.lower(cluster, nbytes)).time_s / float(optcc.lower_bound(cluster, nbytes).seconds) - 1


def half_slow(slow: int, servers: int = 16) -> Cluster:
    """The first NIC of each of so many servers is dead."""
    cluster = Cluster.uniform(servers=servers, nics=8, rate=RATE)
    for server in range(slow):
        cluster = cluster.degrade(f"server{server}/nic0")
    return cluster


def four_of_eight(nics: int = 4) -> Cluster:
    """Eight servers on rails; four of them have each lost a NIC, every one on another rail."""
    cluster = replace(Cluster.uniform(servers=8, nics=nics, rate=RATE), fabric=Fabric(rails=True))
    for server in range(4):
        cluster = cluster.degrade(f"server{server}/nic{server}")
    return cluster


def busiest(schedule: Schedule) -> int:
    """The most bytes that any port sends, or receives, of transfers that take one NIC each."""
    work = np.zeros((2, len(schedule.ports)), np.int64)
    lanes = [schedule.routes[route].lanes[0] for route in schedule.route]
    np.add.at(work[0], [lane.out for lane in lanes], schedule.length)
    np.add.at(work[1], [lane.into for lane in lanes], schedule.length)
    return int(work.max())
