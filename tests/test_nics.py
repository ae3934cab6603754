"""NICs of several rates: direct exchange keeps one pace. Slower ones are left alone, where that loses little."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError
from optcc.planner.search import baseline, candidate_families
from optcc.schedule.columns import Schedule
from optcc.schedule.direct import FINDERS, DirectExchange
from optcc.schedule.nics import (
    MAX_LANES,
    applies,
    at_one_pace,
    differ,
    direct_uplink_s,
    in_lanes,
    lane_lines,
    left_alone,
    live_nics,
    nic_rate,
    pod_numbers,
)
from optcc.schedule.routes import ports_of
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from tests.conftest import degraded
from tests.direct_cases import check_allreduce, direct, hurt, kinds
from tests.effort import examples
from tests.fabrics import pods_of

ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)
RATE = 50 * 10**9
HALF = Fraction(1, 2)


def uniform(servers: int, *, rails: bool = False, nics: int = 8) -> Cluster:
    return replace(Cluster.uniform(servers=servers, nics=nics, rate=RATE), fabric=Fabric(rails=rails))


def busy(schedule: Schedule) -> set[str]:
    """The ports that carry something."""
    return {
        schedule.ports[end].name
        for route in {*schedule.route.tolist()}
        for lane in schedule.routes[route].lanes
        for end in (lane.out, lane.into)
    }


@examples(25)
@given(hurt(), st.data())
def test_slow_nics_carry_nothing_and_the_sum_is_everywhere(cluster: Cluster, data: st.DataObject) -> None:
    """Whichever way one is slow; its port is there nevertheless, for a failover to go by."""
    names = [f"{server.name}/{nic.name}" for server in cluster.servers for nic in server.nics if nic.alive]
    slow = data.draw(st.sampled_from(names))
    out, into = data.draw(st.sampled_from([(HALF, Fraction(1)), (Fraction(1), HALF), (HALF, HALF)]))
    s, i = next((s, i) for s, server in enumerate(cluster.servers) for i, nic in enumerate(server.nics)
                if f"{server.name}/{nic.name}" == slow)  # fmt: skip
    nic = cluster.servers[s].nics[i]
    hit = cluster.with_nic(s, i, replace(nic, out_rate=nic.out_rate * out, in_rate=nic.in_rate * into))
    assert left_alone(hit) in ([slow], [])  # its pace, where some server has nothing faster
    assume(applies(hit) and kinds(hit) and left_alone(hit))
    recipe = direct(hit)
    check_allreduce(hit, recipe, 2**16)
    schedule = recipe.lower(hit, 2**16)
    assert slow in {port.name for port in schedule.ports} - busy(schedule)
    dead = at_one_pace(hit)
    assert left_alone(dead) == []
    assert live_nics(dead) == live_nics(hit)
    assert recipe.fluid_s(dead, 2**16) == recipe.fluid_s(hit, 2**16)


@pytest.mark.parametrize("slow", ["server3/nic7", "server4/nic7"])
def test_where_two_servers_starve_a_slow_nic_is_left_alone_too(slow: str) -> None:
    """A hub's, or a slow server's that is left with as many as the other one."""
    hit = uniform(8, rails=True)
    for nic in range(4):
        hit = hit.degrade(f"server1/nic{nic}").degrade(f"server4/nic{nic}")
    hit = hit.degrade(slow, HALF)
    hit = hit.degrade("server1/nic7") if slow.startswith("server4") else hit
    recipe = direct(hit, 4, "several-starve")
    check_allreduce(hit, recipe, 2**16)
    ports = busy(recipe.lower(hit, 2**16))
    assert slow not in ports
    assert f"{slow[:-1]}6" in ports
    assert ("slower NICs, not used", slow) in recipe.describe(hit)


@pytest.mark.long
@pytest.mark.parametrize(("rails", "left"), [(False, Fraction(1, 4)), (True, Fraction(3, 4))])
def test_a_slow_nic_costs_hardly_more_than_it_must(rails: bool, left: Fraction) -> None:
    """At most one point of the fault-free ring above the unavoidable, as a dead one does."""
    whole, nbytes, costs = uniform(8, rails=rails), 2**28, {"alpha": ALPHA, "per_chunk": PER_CHUNK}
    hit = whole.degrade("server1/nic0", left)
    ring = baseline(optcc.plan(whole, nbytes, **costs), "ring", **costs)
    plan = optcc.plan(hit, nbytes, **costs)
    fault_free_s, time_s = (simulate(p.schedule(), receivers="packets", **costs).time_s for p in (ring, plan))
    assert time_s / fault_free_s - float(plan.bound.seconds / ring.bound.seconds) < 0.01
    assert plan.family == DirectExchange.family
    told = dict(plan.told)
    assert told["slower NICs, not used"] == "server1/nic0"


def test_many_are_counted() -> None:
    hit = uniform(8)
    for server in range(1, 7):
        hit = hit.degrade(f"server{server}/nic0", HALF)
    told = dict(direct(hit).describe(hit))["slower NICs, not used"]
    assert told == "server1/nic0, server2/nic0, server3/nic0, server4/nic0 and 2 more"


def test_with_a_server_of_one_slow_nic_only_all_would_be_as_slow() -> None:
    hit = uniform(8, nics=1).degrade("server1/nic0", Fraction(3, 4))
    assert nic_rate(hit) == RATE * Fraction(3, 4)
    assert left_alone(hit) == []


def test_a_server_with_half_as_many_nics_of_twice_the_rate_keeps_the_pace_of_the_others() -> None:
    """Wherever they are: the others' pairs are then the n-th ones in use."""
    fast = Server("fast", tuple(Nic(f"nic{i}", Fraction(2 * RATE), Fraction(2 * RATE)) for i in range(4)))
    cluster = Cluster((fast, replace(fast, name="fast2"), *uniform(4).servers))
    assert nic_rate(cluster) == RATE
    assert [len(mine) for mine in live_nics(cluster)] == [4, 4, 8, 8, 8, 8]
    assert applies(cluster)
    check_allreduce(cluster, direct(cluster), 2**16)


@st.composite
def mixed(draw: st.DrawFn) -> Cluster:
    """Servers of one to three NICs of rates from 1 to 5, some dead."""
    servers = []
    for s in range(draw(st.integers(2, 6))):
        rates = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=3))
        nics = (Nic(f"nic{i}", Fraction(out), Fraction(into)) for i, (out, into) in enumerate(rates))
        servers.append(Server(f"server{s}", tuple(nics)))
    return Cluster(tuple(servers))


@given(mixed(), st.booleans())
def test_the_pace_is_the_one_by_which_the_bound_is_least(cluster: Cluster, rails: bool) -> None:
    cluster = replace(cluster, fabric=Fabric(rails=rails))
    each = [[int(min(nic.out_rate, nic.in_rate)) for nic in server.nics] for server in cluster.servers]

    def at(pace: int) -> Fraction | None:
        rates = [Fraction(pace * sum(rate >= pace for rate in rates)) for rates in each]
        if not min(rates):
            return None
        servers = (Server(f"s{i}", (Nic("nic", rate, rate),)) for i, rate in enumerate(rates))
        return optcc.lower_bound(Cluster(tuple(servers)), 1).seconds

    fastest = max(max(rates) for rates in each)
    times = {pace: seconds for pace in range(1, fastest + 1) if (seconds := at(pace)) is not None}
    pace = nic_rate(cluster)
    assert (pace in times and times[int(pace)] == min(times.values())) if times else pace == 0


def measured(servers: int) -> Cluster:
    """As a calibration finds them: NICs are all within 1 % of each other, but one that is dead."""
    cluster = uniform(servers)
    for s in range(servers):
        for i in range(8):
            cluster = cluster.degrade(f"server{s}/nic{i}", 1 - Fraction((37 * s + 11 * i) % 101, 10_000))
    return cluster.degrade("server1/nic0")


@pytest.mark.long
def test_measured_rates_are_no_reason_not_to_exchange_directly() -> None:
    """All NICs keep one pace, which loses less than what every other family does."""
    cluster, costs = measured(6), {"alpha": ALPHA, "per_chunk": PER_CHUNK}
    plan = optcc.plan(cluster, 2**28, **costs)
    assert plan.family == DirectExchange.family
    assert dict(plan.told)["pace of every NIC"].startswith("39")
    optcc.verify(plan.schedule())
    even = optcc.plan(uniform(6).degrade("server1/nic0"), 2**28, **costs)
    lost, least = (
        simulate(p.schedule(), receivers="packets", **costs).time_s / float(p.bound.seconds) for p in (plan, even)
    )
    assert least < lost < least + 0.012


def test_gpus_as_ranks_have_nics_of_their_own() -> None:
    """Direct exchange among NICs is not for them, and asking is no error."""
    gpus = replace(Cluster.uniform(servers=3, nics=2, gpus=2, rate=RATE, nvlink_rate=9 * RATE), gpu_ranks=True)
    assert [len(lanes) for lanes in live_nics(gpus)] == [1] * 6
    assert not applies(gpus)
    assert not kinds(gpus)


# NICs as lanes: servers with slow NICs take part in direct exchange, and the plan is nearer to the bound for it.


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
    told = dict(plan.told)
    assert told["fewer of slower ones"].startswith("server1/nic1 ")
    assert lane_lines(cluster, 1) == []


@pytest.mark.parametrize("lanes", [0, MAX_LANES + 1, True])
def test_lanes_out_of_range(lanes: int) -> None:
    recipe = optcc.plan(slow(Fraction(1, 2)), 2**24, family="direct-exchange", **COSTS).recipe
    assert isinstance(recipe, DirectExchange)
    with pytest.raises(InputError, match="lanes"):
        replace(recipe, lanes=lanes).check(slow(Fraction(1, 2)))


# Direct exchange among pods: bytes over uplinks; steps leave room on uplinks.


def with_dead(servers: int, nics: int = 8, dead: int = 0) -> Cluster:
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
    cluster = pods_of(with_dead(servers, nics, min(dead, nics - 1)), size)
    recipe, nbytes = direct(cluster, steps), 2**26
    recipe.check(cluster)
    told = direct_uplink_s(cluster, FINDERS[recipe.steps].shares(cluster), nbytes)
    assert max(crossed(cluster, recipe, nbytes), default=0) == pytest.approx(float(told), rel=1e-4)
    assert recipe.fluid_s(cluster, nbytes) >= told


def test_two_that_starve_as_well() -> None:
    cluster, nbytes = pods_of(with_dead(8, 4, 2).degrade("server6/nic0").degrade("server6/nic1"), 4), 2**26
    recipe = direct(cluster, 16, "several-starve")
    recipe.check(cluster)
    shares = [Fraction(rank not in (1, 6), 6) for rank in range(8)]
    told = float(direct_uplink_s(cluster, shares, nbytes))
    assert max(crossed(cluster, recipe, nbytes)) == pytest.approx(told, rel=1e-4)
    assert recipe.fluid_s(cluster, nbytes) >= direct_uplink_s(cluster, shares, nbytes)


def test_without_pods_nothing_crosses() -> None:
    cluster = with_dead(4)
    assert pod_numbers(cluster) == [0] * 4
    assert direct_uplink_s(cluster, [Fraction(1, 4)] * 4, 2**20) == 0


def test_uplinks_without_room_are_known_before_anything_is_tried() -> None:
    """Of two pods of 8 direct exchange sends 8/15 over uplinks of 1/factor: 2 to 1 takes it longer than the bound."""
    for factor, room in ((1, True), (2, False)):
        cluster = pods_of(with_dead(16), 8, factor=factor)
        bound = optcc.lower_bound(cluster, 2**28)
        direct = [each for each in candidate_families(cluster, bound, **COSTS) if each.name == DirectExchange.family]
        assert direct
        assert {offer.least_s < 1.05 * float(bound.seconds) for offer in direct} == {room}


@pytest.mark.long
@pytest.mark.parametrize("dead", [0, 1])
def test_pods_that_are_not_oversubscribed_cost_nothing(dead: int) -> None:
    """By direct exchange in two levels alone 2 to 3 % more."""
    times = []
    for cluster in (with_dead(16, dead=dead), pods_of(with_dead(16, dead=dead), 8, factor=1)):
        plan = optcc.plan(cluster, 2**28, **COSTS)
        assert plan.family == DirectExchange.family
        times.append(simulate(plan.schedule(), receivers="packets", **COSTS).time_s)
    assert times[1] <= 1.001 * times[0]


@pytest.mark.long
def test_a_server_starves_in_one_of_two_pods() -> None:
    """Its uplinks have no room to spare. 1.25 times the bound by packed trees."""
    cluster = pods_of(with_dead(16, dead=4), 8)
    plan = optcc.plan(cluster, 2**28, **COSTS)
    assert simulate(plan.schedule(), **COSTS).time_s < 1.07 * float(plan.bound.seconds)
