"""NICs of several rates: direct exchange keeps one pace. Slower ones are left alone, where that loses little."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import optcc
from optcc.planner.search import baseline
from optcc.schedule.columns import Schedule
from optcc.schedule.direct import DirectExchange
from optcc.schedule.nics import applies, at_one_pace, left_alone, live_nics, nic_rate
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from tests.direct_cases import check_allreduce, direct, hurt, kinds
from tests.effort import examples

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
    assert plan.recipe.family == DirectExchange.family
    told = dict(plan.recipe.describe(hit))
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
    assert plan.recipe.family == DirectExchange.family
    assert dict(plan.recipe.describe(cluster))["pace of every NIC"].startswith("39")
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
