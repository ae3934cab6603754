"""Clusters of which some servers have lost NICs, direct exchange for them, and what must hold of its schedules."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

import optcc
from optcc.schedule import Schedule
from optcc.schedule.direct import FINDERS, DirectExchange
from optcc.schedule.nics import applies
from optcc.schedule.recipe import Recipe
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster, Fabric

RATE = 50 * 10**9
ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)
COSTS = {"alpha": ALPHA, "per_chunk": PER_CHUNK}
EXACTLY = 1e-5
"""Cut points are multiples of 8 bytes, and times are rounded up to picoseconds."""


@st.composite
def hurt(draw: st.DrawFn, most: int = 9) -> Cluster:
    """Servers of 2 to 8 NICs, up to four of which lost some but not all; on rails any two have one in common. On one
    fabric or on rails; there is direct exchange for them."""
    ranks, nics = draw(st.integers(3, most)), draw(st.integers(2, 8))
    cluster = Cluster.uniform(servers=ranks, nics=nics, rate=RATE)
    cluster = replace(cluster, fabric=Fabric(rails=draw(st.booleans()), spine=None))
    for slow in draw(st.sets(st.integers(0, ranks - 1), max_size=min(4, ranks - 2))):
        for nic in draw(st.sets(st.integers(0, nics - 1), min_size=1, max_size=nics - 1)):
            cluster = cluster.degrade(f"server{slow}/nic{nic}")
    assume(applies(cluster) and kinds(cluster))
    return cluster


def kinds(cluster: Cluster) -> list[str]:
    """Of steps that the cluster is of the kind for."""
    return [name for name, finder in FINDERS.items() if finder.applies(cluster)]


def direct(cluster: Cluster, segments: int = 12, kind: str | None = None, **other: Any) -> DirectExchange:
    """Steps of the (first) kind that suits the cluster, with parameters that do."""
    kind = kind or kinds(cluster)[0]
    given: dict[str, Any] = {}
    if kind != "none-starves":
        given = {"growth": Fraction(11, 10), "margin": Fraction(1, 100), "chunk": Fraction(1, 600)}
    given |= {"one-starves": {"last": Fraction(9, 20)}, "several-starve": {"growing": 2}}.get(kind, {})
    return DirectExchange(segments, kind, **(given | other))


def starving(servers: int, nics: int, first: str, second: str, *others: str, rails: bool = False) -> Cluster:
    """`nics` NICs each; those of `first` are dead in server 1, those of `second` in the last server, others in 2, 3,
    ..."""
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=RATE)
    cluster = replace(cluster, fabric=Fabric(rails=rails))
    for server, lost in ((1, first), (servers - 1, second), *enumerate(others, 2)):
        for nic in lost:
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


def lacking(*lost: str) -> Cluster:
    """Eight servers of eight NICs; of the i-th one the NICs of lost[i] are dead."""
    cluster = Cluster.uniform(servers=8, nics=8, rate=RATE)
    for server, nics in enumerate(lost):
        for nic in nics:
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


def check_allreduce(cluster: Cluster, recipe: Recipe, nbytes: int) -> None:
    """Every byte is summed exactly once, by ways that are there, with no byte more than must be sent."""
    recipe.check(cluster)
    schedule = recipe.lower(cluster, nbytes)
    optcc.verify(schedule)
    assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes
    assert {len(route.lanes) for route in schedule.routes} <= {1}
    assert not off_rails(schedule)


def off_rails(schedule: Schedule) -> list[tuple[str, str]]:
    """Ports that a transfer joins although they are on different rails. Without rails all are on none."""
    lanes = [lane for route in schedule.routes for lane in route.lanes]
    joined = [(schedule.ports[lane.out], schedule.ports[lane.into]) for lane in lanes]
    return [(out.name, into.name) for out, into in joined if out.rail != into.rail]


def loss(cluster: Cluster, recipe: Recipe) -> float:
    """Simulated time without costs over the bound, less 1."""
    nbytes = 2**28
    return simulate(recipe.lower(cluster, nbytes)).time_s / float(optcc.lower_bound(cluster, nbytes).seconds) - 1
