"""NICs as lanes: servers with slow NICs take part in direct exchange, and the plan is nearer to the bound for it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError
from optcc.planner.search import candidate_families
from optcc.schedule.direct import DirectExchange
from optcc.schedule.nics import MAX_LANES, differ, in_lanes, lane_lines
from optcc.schedule.routes import ports_of
from optcc.values.cluster import Cluster
from tests.conftest import degraded
from tests.effort import examples

RATE = 50 * 10**9
COSTS = {"alpha": Fraction(5, 10**6), "per_chunk": Fraction(1, 10**6)}


def slow(left: Fraction, servers: int = 6, nics: int = 4) -> Cluster:
    return Cluster.uniform(servers=servers, nics=nics, rate=RATE).degrade("server1/nic2", left)


@pytest.mark.parametrize(("left", "count", "own"), [("1/2", 2, 1), ("2/3", 3, 2), ("3/5", 2, 1), ("1/5", 4, 0)])
def test_a_slow_nic_has_as_many_lanes_as_it_can_serve(left: str, count: int, own: int) -> None:
    laned = in_lanes(slow(Fraction(left)), count)
    assert {nic.out_rate for server in laned.servers for nic in server.nics if nic.alive} == {Fraction(RATE, count)}
    alive = [nic.alive for nic in laned.servers[1].nics[2 * count : 3 * count]]
    assert alive == [True] * own + [False] * (count - own)
    assert all(nic.alive for nic in laned.servers[0].nics)


def test_equal_nics_need_no_lanes() -> None:
    dead = slow(Fraction(0))
    assert not differ(dead)
    assert differ(slow(Fraction(1, 2)))
    assert in_lanes(dead, 1) is dead
    bound = optcc.lower_bound(dead, 2**26)
    made = [offer.make(8) for offer in candidate_families(dead, bound, **COSTS) if offer.name == DirectExchange.family]
    assert {recipe.lanes for recipe in made if isinstance(recipe, DirectExchange)} == {1}


@examples(40)
@given(cluster=degraded(min_ranks=3, max_ranks=7), nbytes=st.integers(1, 2**22))
def test_in_lanes_it_is_an_allreduce(cluster: Cluster, nbytes: int) -> None:
    """Of real NICs, none of which carries more than the fluid time says."""
    bound = optcc.lower_bound(cluster, nbytes)
    for offer in candidate_families(cluster, bound, alpha=Fraction(1, 10**6), per_chunk=bound.seconds / 50):
        recipe = offer.make(6)
        if isinstance(recipe, DirectExchange) and recipe.lanes > 1:
            recipe.check(cluster)
            schedule = recipe.lower(cluster, nbytes)
            optcc.verify(schedule)
            assert {port.name for port in schedule.ports} == {port.name for port in ports_of(cluster)}
            assert DirectExchange.read(recipe.content()) == recipe


@pytest.mark.parametrize("left", ["1/2", pytest.param("2/3", marks=pytest.mark.long)])
def test_a_slow_nic_is_used_and_that_is_nearer_to_the_bound(left: str) -> None:
    cluster, dead, nbytes = slow(Fraction(left)), slow(Fraction(0)), 2**28
    for nic in ("server1/nic1", "server2/nic0", "server3/nic2", "server3/nic3"):
        cluster, dead = cluster.degrade(nic, Fraction(left)), dead.degrade(nic)
    plan = optcc.plan(cluster, nbytes, family="direct-exchange", **COSTS)
    assert isinstance(plan.recipe, DirectExchange)
    assert plan.recipe.lanes > 1
    assert float(plan.fluid_s / plan.bound.seconds) == pytest.approx(1, abs=0.002)
    schedule = plan.schedule()
    used = {schedule.ports[lane.out].name for route in schedule.routes for lane in route.lanes}
    assert {"server1/nic2", "server3/nic3"} <= used
    alone = optcc.plan(dead, nbytes, family="direct-exchange", **COSTS)
    times = [optcc.simulate(each, **COSTS).time_s for each in (schedule, alone.schedule())]
    assert times[0] < 0.99 * times[1]
    told = dict(plan.recipe.describe(cluster))
    assert told["fewer of slower ones"].startswith("server1/nic1 ")
    assert lane_lines(cluster, 1) == []


@pytest.mark.parametrize("lanes", [0, MAX_LANES + 1, True])
def test_lanes_out_of_range(lanes: int) -> None:
    recipe = optcc.plan(slow(Fraction(1, 2)), 2**24, family="direct-exchange", **COSTS).recipe
    assert isinstance(recipe, DirectExchange)
    with pytest.raises(InputError, match="lanes"):
        replace(recipe, lanes=lanes).check(slow(Fraction(1, 2)))
