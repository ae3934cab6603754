"""Plans at failure time: the very plans of the whole planner, from a table with few entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import optcc
from optcc.errors import InputError
from optcc.planner.standby import Basis, Entry, Places, Planner, Progress, solve
from optcc.schedule.direct import DirectExchange
from optcc.schedule.grouped import GroupedExchange
from optcc.values.cluster import Cluster, Fabric
from tests.conftest import GBPS
from tests.failure_cases import ALPHA, COSTS, MIB, PER_CHUNK, uniform


def time_of(plan: optcc.Plan) -> float:
    return optcc.simulate(plan.schedule(), alpha=ALPHA, per_chunk=PER_CHUNK).time_s


def keeps_the_promise(plan: optcc.Plan) -> bool:
    """At most 2 % slower, simulated, than what the whole planner finds for the very cluster; the bound is exact."""
    scratch = optcc.plan(plan.cluster, plan.bound.nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
    return plan.bound == scratch.bound and time_of(plan) <= 1.02 * time_of(scratch)


# Every single failure, from few decisions


def test_every_single_failure_has_the_plan_of_the_whole_planner() -> None:
    """Without costs it is the very plan."""
    cluster = uniform()
    with Planner(cluster, [MIB, 64 * MIB], lookahead=1, background="off") as planner:
        assert planner.prepare() == Progress(2, 2)
        for nic in Places.of(cluster).by_name:
            answer = planner.fail(nic)
            assert answer.basis is Basis.CLOSED_FORM
            for size in (MIB, 64 * MIB):
                assert answer.plans[size] == optcc.plan(cluster.degrade(nic), size)
            optcc.verify(answer.plans[MIB].schedule())
            assert planner.restore(nic).cluster == cluster


@pytest.mark.long
@pytest.mark.parametrize(
    ("servers", "nics", "size"),
    [(4, 2, 64 * MIB), (5, 2, 16 * MIB), (8, 2, 4 * MIB), (8, 8, 8 * MIB), (12, 2, 4 * MIB)],
)
def test_one_decision_serves_every_single_failure(servers: int, nics: int, size: int) -> None:
    """With costs one run of the planner prepares them all: which NIC of which server makes no difference."""
    cluster = uniform(servers, nics)
    with Planner(cluster, size, lookahead=1, background="off", **COSTS) as planner:
        assert planner.prepare() == Progress(2, 2)
        assert len(planner._table) == 2
        for server in range(0, servers, max(1, servers // 4)):
            nic = f"server{server}/nic{server % nics}"
            answer = planner.fail(nic)
            assert answer.basis is Basis.PREPARED
            scratch = optcc.plan(answer.cluster, size, alpha=ALPHA, per_chunk=PER_CHUNK)
            assert time_of(answer.plan) == time_of(scratch), nic
            planner.restore(nic)


@pytest.mark.long
def test_the_promise_can_be_broken() -> None:
    """Negative control: a plan of the wrong depth is over 2 %."""
    poor = optcc.plan(uniform(8).degrade("server1/nic0"), 64 * MIB, segments=64)
    assert not keeps_the_promise(poor)


def test_second_failures_are_prepared_too() -> None:
    """Two in a server, and one in each of two, at the same place or not, are all the shapes there are."""
    cluster = uniform(servers=4, nics=3)
    with Planner(cluster, MIB, lookahead=2, background="off", **COSTS) as planner:
        assert planner.prepare().wanted == 5
        for second in ("server2/nic0", "server3/nic1"):
            planner.fail("server2/nic1")
            answer = planner.fail(second)
            assert answer.basis is Basis.PREPARED
            assert keeps_the_promise(answer.plan)
            planner.restore(second)
            assert planner.restore("server2/nic1").plan == optcc.plan(cluster, MIB, **COSTS)


@pytest.mark.long
def test_a_slow_nic_is_left_alone_at_once() -> None:
    """Steps are about NICs of one pace, whatever servers' rates are."""
    cluster = uniform(8, 8)
    with Planner(cluster, 256 * MIB, lookahead=0, background="off", **COSTS) as planner:
        planner.fail("server3/nic2")
        planner.prepare()
        planner.restore("server3/nic2")
        guessed = planner.rate("server5/nic2", "200Gb/s")
        assert guessed.basis is Basis.NEAREST
        assert isinstance(guessed.plan.recipe, DirectExchange)
        assert time_of(guessed.plan) <= 1.05 * time_of(optcc.plan(guessed.cluster, 256 * MIB, **COSTS))
        planner.prepare()
        planner.restore("server5/nic2")
        known = planner.rate("server1/nic2", "200Gb/s")
        assert known.basis is Basis.PREPARED
        assert known.plan.recipe.family == "direct-exchange"
        assert keeps_the_promise(known.plan)


def test_a_first_failure_of_many_servers_keeps_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """And as many chunks; who is the hub of which follows from the cluster."""
    cluster, size = uniform(20, 4), 16 * MIB
    plan = optcc.plan(cluster, size, family="grouped-exchange", **COSTS)
    monkeypatch.setattr("optcc.planner.search.choose", lambda *_, **__: plan.recipe)
    with Planner(cluster, size, lookahead=0, background="off", **COSTS) as planner:
        planner.prepare()
        assert planner.plan(size).recipe == plan.recipe
        hurt = planner.fail("server3/nic2")
        assert hurt.basis is Basis.NEAREST
        assert isinstance(hurt.plan.recipe, GroupedExchange)
        assert (hurt.plan.recipe.groups, hurt.plan.recipe.segments) == (plan.recipe.groups, plan.recipe.segments)
        optcc.verify(hurt.plan.schedule())


@pytest.mark.long
def test_where_two_servers_lost_a_nic_matters() -> None:
    """Timetables are about places: a plan for the same NIC lost twice is over 2 % slower where two others are."""
    cluster, size = uniform(servers=8, nics=8), 2**30
    with Planner(cluster, size, lookahead=2, background="off", **COSTS) as planner:
        planner.prepare()
        planner.fail("server2/nic1")
        for second in ("server5/nic1", "server5/nic6"):
            answer = planner.fail(second)
            assert answer.basis is Basis.PREPARED
            assert keeps_the_promise(answer.plan), second
            planner.restore(second)


def test_uneven_ways_are_solved_or_prepared_never_guessed() -> None:
    """Where nested rings miss the bound by more than 2 %, the whole planner is asked."""
    cluster = uniform(servers=4, nics=1)
    for s in range(4):  # two servers send slowly, two receive slowly
        nic = cluster.servers[s].nics[0]
        out, into = (nic.out_rate * 3 / 4, nic.in_rate) if s < 2 else (nic.out_rate, nic.in_rate * 3 / 4)
        cluster = cluster.with_nic(s, 0, type(nic)(nic.name, out, into, nic.rail, nic.gpu))
    with Planner(cluster, MIB, background="off") as planner:
        answer = planner.rate("server1/nic0", "300Gb/s")
        scratch = optcc.plan(answer.cluster, MIB)
        assert answer.basis is Basis.SOLVED
        assert answer.plan == scratch
        assert planner.rate("server1/nic0", "300Gb/s").basis is Basis.PREPARED


# Between the shapes of the table


@pytest.mark.long
def test_an_unknown_shape_takes_after_its_neighbour_until_it_is_decided() -> None:
    cluster = uniform(servers=6)
    with Planner(cluster, 64 * MIB, lookahead=1, background="off", **COSTS) as planner:
        planner.prepare()
        answer = planner.rate("server3/nic1", "150Gb/s")
        assert answer.basis is Basis.NEAREST
        assert answer.plan.bound == optcc.lower_bound(answer.cluster, 64 * MIB)
        optcc.verify(answer.plan.schedule())
        assert planner.current.basis is Basis.NEAREST
        planner.prepare()
        assert planner.current.basis is Basis.PREPARED
        assert planner.current.plan == optcc.plan(answer.cluster, 64 * MIB, **COSTS)
        assert planner.current is planner.current


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "dead", "within"),
    [(MIB, 1, 1.1), (MIB, 3, 1.2), (16 * MIB, 2, 1.1), (2**28, 1, 1.02), (2**28, 3, 1.05)],
)
def test_the_first_failure_does_not_wait_for_the_whole_planner(
    monkeypatch: pytest.MonkeyPatch, size: int, dead: int, within: float
) -> None:
    """Nothing is prepared, and the healthy cluster's rounds are none for a server that starves: there is a plan all
    the same, nearly as fast."""
    cluster = uniform(servers=6, nics=4)
    with Planner(cluster, size, background="off", **COSTS) as planner:
        healthy = planner.current.plan.recipe
        assert isinstance(healthy, DirectExchange)
        assert healthy.steps == "none-starves"
        asked = counted(monkeypatch)
        for i in range(dead):
            answer = planner.fail(f"server3/nic{i}")
        assert asked == []
        assert answer.basis is Basis.NEAREST
        assert answer.plan.bound == optcc.lower_bound(answer.cluster, size)
        optcc.verify(answer.plan.schedule())
        while planner.current.basis is Basis.NEAREST:  # and the better one is what is decided first
            assert planner._step()
        assert len(asked) == 1
        assert planner.current.plan == optcc.plan(answer.cluster, size, **COSTS)
        # The planner goes by the slower kind of receivers, and this is one kind.
        assert time_of(planner.current.plan) / 1.02 <= time_of(answer.plan) <= within * time_of(planner.current.plan)


def test_packed_trees_are_no_reason_to_wait_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees that the program packed are for the very rates they were packed for."""
    cluster = uniform(servers=5)
    with Planner(cluster, MIB, lookahead=0, background="off", **COSTS) as planner:
        packed = optcc.plan(cluster, MIB, family="packed-trees", segments=2)
        planner._table.put(planner._now.key, Entry({MIB: packed}, planner._now.counts))
        asked = counted(monkeypatch)
        answer = planner.rate("server1/nic0", "150Gb/s")
        assert (asked, answer.basis) == ([], Basis.NEAREST)
        optcc.verify(answer.plan.schedule())


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """The clusters that the whole planner is asked about from now on."""
    asked: list[Cluster] = []

    def counting(cluster: Cluster, *task: object) -> Mapping[int, optcc.Plan]:
        asked.append(cluster)
        return solve(cluster, *task)  # type: ignore[arg-type]

    monkeypatch.setattr("optcc.planner.standby.solve", counting)
    return asked


# Outside the closed form


def test_rails_are_planned_whole_and_prepared_by_name() -> None:
    cluster = Cluster(uniform(servers=2).servers, fabric=Fabric(rails=True))
    with Planner(cluster, MIB, keep=2, background="off") as planner:
        assert planner.prepare() == Progress(2, 2)
        for nic, basis in (("server0/nic0", Basis.PREPARED), ("server1/nic1", Basis.NEAREST)):
            assert planner.fail(nic).basis is basis
            while planner.current.basis is Basis.NEAREST:
                assert planner._step()
            assert planner.current.plan == optcc.plan(cluster.degrade(nic), MIB)
            planner.restore(nic)


@pytest.mark.parametrize("costs", [{}, COSTS], ids=["free", "costs"])
@pytest.mark.parametrize("fabric", ["rails", "pods", "gpus", "gpus on rails"])
def test_an_event_outside_the_closed_form_does_not_wait_for_the_whole_planner(
    monkeypatch: pytest.MonkeyPatch, fabric: str, costs: Any
) -> None:
    """Nothing is prepared. All but one NIC of a server die, one after the other, and one of another; on rails the two
    have none in common then."""
    gpus = Cluster.uniform(servers=3, nics=4, rate=400 * GBPS, nvlink_rate=3600 * GBPS)
    cluster = {
        "rails": replace(uniform(servers=6, nics=4), fabric=Fabric(rails=True)),
        "pods": in_pods(uniform(servers=6, nics=4), 3),
        "gpus": replace(gpus, gpu_ranks=True),
        "gpus on rails": replace(gpus, gpu_ranks=True, fabric=Fabric(rails=True)),
    }[fabric]
    with Planner(cluster, [MIB, 64 * MIB], lookahead=0, background="off", **costs) as planner:
        asked = counted(monkeypatch)
        for nic in ("server1/nic0", "server1/nic1", "server2/nic3", "server1/nic2"):
            answer = planner.fail(nic)
            assert answer.basis is Basis.NEAREST
            for size, plan in answer.plans.items():
                assert plan.bound == optcc.lower_bound(answer.cluster, size)
                optcc.verify(plan.schedule())
        assert asked == []


def in_pods(cluster: Cluster, servers: int) -> Cluster:
    """Pods of so many servers each, whose uplinks carry half of their NICs' rates."""
    podded = tuple(replace(server, pod=f"pod{i // servers}") for i, server in enumerate(cluster.servers))
    return replace(cluster, servers=podded, fabric=Fabric(pod_oversubscription=Fraction(2)))


def test_any_size_is_served_from_the_next_larger_one() -> None:
    with Planner(uniform(), [MIB, 256 * MIB], background="off", **COSTS) as planner:
        for nbytes, bucket in ((1000, MIB), (MIB, MIB), (MIB + 1, 256 * MIB), (2**33, 256 * MIB)):
            plan = planner.plan(nbytes)
            assert plan.bound == optcc.lower_bound(uniform(), nbytes)
            assert plan.recipe == planner.current.plans[bucket].recipe
        with pytest.raises(InputError):
            planner.plan(0)
