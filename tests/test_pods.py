"""Direct exchange among pods: what it sends over uplinks, where they have room for it, and that steps spare them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.planner.search import candidate_families
from optcc.schedule.direct import FINDERS, DirectExchange
from optcc.schedule.nics import direct_uplink_s, pod_numbers
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster
from tests.direct_cases import direct
from tests.effort import examples
from tests.fabrics import pods_of

COSTS = {"alpha": Fraction(5, 10**6), "per_chunk": Fraction(1, 10**6)}
RATE = 50 * 10**9


def uniform(servers: int, nics: int = 8, dead: int = 0) -> Cluster:
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=RATE)
    for nic in range(dead):
        cluster = cluster.degrade(f"server1/nic{nic}")
    return cluster


def crossed(cluster: Cluster, recipe: DirectExchange, nbytes: int) -> list[float]:
    """Seconds that each uplink needs for what the schedule sends over it."""
    schedule = recipe.lower(cluster, nbytes)
    moved = np.zeros(len(schedule.links))
    each = np.bincount(schedule.route, schedule.length, len(schedule.routes)).tolist()
    for route, own in zip(schedule.routes, each, strict=True):
        for lane in route.lanes:
            for link in lane.links:
                moved[link] += own * float(lane.share)
    return [float(much / link.rate) for much, link in zip(moved, schedule.links, strict=True)]


@examples(30)
@given(st.integers(3, 8), st.integers(2, 4), st.integers(0, 2), st.integers(2, 5), st.integers(8, 30))
def test_uplinks_carry_what_the_formula_says(servers: int, nics: int, dead: int, size: int, steps: int) -> None:
    """Servers that add last to what others gather change nothing of that, nor do unequal pods."""
    cluster = pods_of(uniform(servers, nics, min(dead, nics - 1)), size)
    recipe, nbytes = direct(cluster, steps), 2**26
    recipe.check(cluster)
    told = direct_uplink_s(cluster, FINDERS[recipe.steps].shares(cluster), nbytes)
    assert max(crossed(cluster, recipe, nbytes), default=0) == pytest.approx(float(told), rel=1e-4)
    assert recipe.fluid_s(cluster, nbytes) >= told


def test_two_that_starve_as_well() -> None:
    cluster, nbytes = pods_of(uniform(8, 4, 2).degrade("server6/nic0").degrade("server6/nic1"), 4), 2**26
    recipe = direct(cluster, 16, "several-starve")
    recipe.check(cluster)
    shares = [Fraction(rank not in (1, 6), 6) for rank in range(8)]
    told = float(direct_uplink_s(cluster, shares, nbytes))
    assert max(crossed(cluster, recipe, nbytes)) == pytest.approx(told, rel=1e-4)
    assert recipe.fluid_s(cluster, nbytes) >= direct_uplink_s(cluster, shares, nbytes)


def test_without_pods_nothing_crosses() -> None:
    cluster = uniform(4)
    assert pod_numbers(cluster) == [0] * 4
    assert direct_uplink_s(cluster, [Fraction(1, 4)] * 4, 2**20) == 0


def test_uplinks_without_room_are_known_before_anything_is_tried() -> None:
    """Of two pods of 8 direct exchange sends 8/15 over uplinks of 1/factor: 2 to 1 takes it longer than the bound."""
    for factor, room in ((1, True), (2, False)):
        cluster = pods_of(uniform(16), 8, factor=factor)
        bound = optcc.lower_bound(cluster, 2**28)
        direct = [each for each in candidate_families(cluster, bound, **COSTS) if each.name == DirectExchange.family]
        assert direct
        assert {offer.least_s < 1.05 * float(bound.seconds) for offer in direct} == {room}


@pytest.mark.long
@pytest.mark.parametrize("dead", [0, 1])
def test_pods_that_are_not_oversubscribed_cost_nothing(dead: int) -> None:
    """By direct exchange in two levels alone 2 to 3 % more."""
    times = []
    for cluster in (uniform(16, dead=dead), pods_of(uniform(16, dead=dead), 8, factor=1)):
        plan = optcc.plan(cluster, 2**28, **COSTS)
        assert plan.recipe.family == DirectExchange.family
        times.append(simulate(plan.schedule(), receivers="packets", **COSTS).time_s)
    assert times[1] <= 1.001 * times[0]


@pytest.mark.long
def test_a_server_starves_in_one_of_two_pods() -> None:
    """Its uplinks have no room to spare. 1.25 times the bound by packed trees."""
    cluster = pods_of(uniform(16, dead=4), 8)
    plan = optcc.plan(cluster, 2**28, **COSTS)
    assert simulate(plan.schedule(), **COSTS).time_s < 1.07 * float(plan.bound.seconds)
