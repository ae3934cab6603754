"""Plans at failure time: the very plans of the whole planner, from a table with few entries."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from multiprocessing.context import SpawnProcess
from typing import Any

import pytest

import optcc
from optcc.errors import InfeasibleError, InputError, OptccError
from optcc.planner.background import Background, Helper, SkippedError
from optcc.planner.search import candidate_families
from optcc.planner.standby import Basis, Entry, Places, Planner, Progress, State, Table, matching, solve
from optcc.schedule.direct import DirectExchange
from optcc.schedule.grouped import GroupedExchange
from optcc.theory import lower_bound
from optcc.theory.packing import pack_trees
from optcc.theory.ring_shares import GroupCounts
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
    [(4, 2, 64 * MIB), (5, 2, 16 * MIB), (8, 8, 8 * MIB)],
)
def test_one_decision_serves_every_single_failure(servers: int, nics: int, size: int) -> None:
    """With costs one run of the planner prepares them all: which NIC of which server makes no difference."""
    cluster = uniform(servers, nics)
    with Planner(cluster, size, lookahead=1, background="off", **COSTS) as planner:
        assert planner.prepare() == Progress(2, 2)
        assert len(planner._table) == 2
        for server in (0, servers // 2):
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
        assert known.plan.family == "direct-exchange"
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
        assert (hurt.plan.recipe.groups, hurt.plan.segments) == (plan.recipe.groups, plan.segments)
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
    cluster = uniform(servers=4)
    with Planner(cluster, 16 * MIB, lookahead=1, background="off", **COSTS) as planner:
        planner.prepare()
        answer = planner.rate("server3/nic1", "150Gb/s")
        assert answer.basis is Basis.NEAREST
        assert answer.plan.bound == optcc.lower_bound(answer.cluster, 16 * MIB)
        optcc.verify(answer.plan.schedule())
        assert planner.current.basis is Basis.NEAREST
        planner.prepare()
        assert planner.current.basis is Basis.PREPARED
        assert planner.current.plan == optcc.plan(answer.cluster, 16 * MIB, **COSTS)
        assert planner.current is planner.current


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "dead", "within"),
    [(MIB, 1, 1.15), (MIB, 3, 1.2), (16 * MIB, 2, 1.1), (2**28, 1, 1.02), (2**28, 3, 1.05)],
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


# Events told to the planner: they add up and cancel, whoever tells them, and what cannot be meant changes nothing.


def test_events_add_up_and_cancel() -> None:
    cluster = uniform()
    with Planner(cluster, MIB, background="off") as planner:
        planner.fail("server0/nic0")
        answer = planner.rate("server4/nic1", "100Gb/s")
        assert answer.event == 2
        assert answer.cluster == cluster.degrade("server0/nic0").degrade("server4/nic1", Fraction(1, 4))
        assert planner.rate("server0/nic1", 50 * GBPS).plan.bound.seconds > answer.plan.bound.seconds
        planner.restore("server0/nic1")
        planner.restore("server0/nic0")
        assert planner.restore("server4/nic1").cluster == cluster
        assert planner.current.plan == optcc.plan(cluster, MIB)


def test_a_cut_off_server_is_an_error_from_which_a_restore_leads_back() -> None:
    cluster = uniform()
    for costs in ({}, COSTS):
        with Planner(cluster, MIB, background="off", **costs) as planner:
            planner.fail("server1/nic0")
            with pytest.raises(InfeasibleError, match="server1"):
                planner.fail("server1/nic1")
            with pytest.raises(InfeasibleError, match="server1"):
                _ = planner.current
            planner.prepare()
            assert planner.restore("server1/nic0").cluster == cluster.degrade("server1/nic1")


@pytest.mark.parametrize("nic", ["server9/nic0", "server1/nic7", "server1", "/nic0", "", 3, None, "a" * 1000])
def test_an_unknown_nic_changes_nothing(nic: object) -> None:
    with Planner(uniform(), MIB, background="off") as planner:
        before = planner.current
        for event in (planner.fail, planner.restore, lambda name: planner.rate(name, 1)):
            with pytest.raises(InputError):
                event(nic)  # type: ignore[arg-type]
        assert planner.current is before


@pytest.mark.parametrize("rate", ["fast", "-1Gb/s", "500Gb/s", -1, True, None, 1.5, 400 * GBPS + 1])
def test_rates_that_cannot_be_meant(rate: object) -> None:
    with Planner(uniform(), MIB, background="off") as planner:
        with pytest.raises(InputError, match="rate"):
            planner.rate("server1/nic0", rate)  # type: ignore[arg-type]
        assert planner.current.event == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"sizes": 0}, {"sizes": []}, {"sizes": [True]}, {"sizes": 2**61}, {"sizes": range(1, 99)}, {"lookahead": -1},
        {"lookahead": 99}, {"keep": 0}, {"lefts": [1]}, {"background": "cloud"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range(bad: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Planner(uniform(), **{"sizes": MIB, "background": "off", **bad})  # type: ignore[arg-type]


def test_threads_may_ask_and_tell_at_once() -> None:
    """Events from six threads are all counted, and what is left at the end is what the events say."""
    cluster, errors = uniform(servers=6), list[BaseException]()
    with Planner(cluster, MIB, background="off") as planner:

        def tell(server: int) -> None:
            try:
                for _ in range(10):
                    planner.fail(f"server{server}/nic0")
                    assert planner.current.plan.bound.nbytes == MIB
                    planner.restore(f"server{server}/nic0")
                planner.fail(f"server{server}/nic1")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=tell, args=(s,)) for s in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors
        assert planner.current.event == 6 * 21
        expected = cluster
        for s in range(6):
            expected = expected.degrade(f"server{s}/nic1")
        assert planner.current.cluster == expected


def test_states_know_what_deviates() -> None:
    cluster = uniform(3)
    places = Places.of(cluster)
    state = State(cluster).after(places["server1/nic1"], Fraction(0)).after(places["server2/nic0"], Fraction(7))
    assert state.deviations == {("server1/nic1", 0, 0), ("server2/nic0", 7, 7)}
    back = state.after(places["server1/nic1"], None).after(places["server2/nic0"], None)
    assert back.cluster is cluster
    assert back.deviations == frozenset()
    assert back.events == 4


# Plans are prepared within limits, by hand, by a thread or by a process, whatever goes wrong with one of them.


def test_preparing_ends_with_a_table_that_is_too_small() -> None:
    with Planner(uniform(nics=3), MIB, keep=2, alpha=ALPHA, background="off") as planner:
        done = planner.prepare()
        assert done.ready == done.wanted == 2
        assert len(planner._table) == 2


def test_preparing_stops_at_its_limit() -> None:
    with Planner(uniform(), MIB, alpha=ALPHA, background="off") as planner:
        assert planner.prepare(limit_s=0).ready == 1
        seen: list[int] = []
        planner.prepare(report=lambda progress: seen.append(progress.ready))
        assert seen == sorted(seen) == [2, 3, 4]


def failing_on(monkeypatch: pytest.MonkeyPatch, shape: Cluster) -> list[Cluster]:
    """Lets the planner fail on a shape; the list grows each time it does."""
    tried: list[Cluster] = []

    def solve_others(cluster: Cluster, *task: object) -> object:
        if GroupCounts.of(cluster).key == GroupCounts.of(shape).key:
            tried.append(cluster)
            raise ValueError("no plan for it")
        return solve(cluster, *task)  # type: ignore[arg-type]

    monkeypatch.setattr("optcc.planner.standby.solve", solve_others)
    return tried


def test_a_shape_that_cannot_be_decided_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of four is no good; it is tried again when asked to, and after an event."""
    with Planner(uniform(), MIB, alpha=ALPHA, background="off") as planner:
        tried = failing_on(monkeypatch, uniform().degrade("server0/nic0"))
        for times in (1, 2):
            with pytest.raises(ValueError, match="no plan for it"):
                planner.prepare()
            assert planner.progress == Progress(3, 4)
            assert len(tried) == times
        assert not planner._step()
        planner.restore("server0/nic0")
        with pytest.raises(SkippedError):
            planner._step()
        assert not planner._step()
        monkeypatch.undo()
        assert planner.prepare() == Progress(4, 4)


def test_the_background_goes_on_after_a_shape_that_cannot_be_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = failing_on(monkeypatch, uniform().degrade("server0/nic0"))
    with Planner(uniform(), MIB, alpha=ALPHA, background="thread") as planner:
        _until(lambda: planner.progress.ready == 3, planner)
        assert planner.progress == Progress(3, 4, "ValueError: no plan for it")
        assert len(tried) == 1


@pytest.mark.long
@pytest.mark.parametrize("where", ["thread", "process"])
def test_the_background_prepares_what_the_last_event_made_likely(where: str) -> None:
    with Planner(uniform(3), MIB, lookahead=1, background=where, **COSTS) as planner:  # type: ignore[arg-type]
        planner.fail("server1/nic0")
        _until(lambda: planner.progress.ready == planner.progress.wanted, planner)
        assert planner.progress.wanted >= 3
        answer = planner.rate("server1/nic0", "100Gb/s")
        _until(lambda: planner.current.basis is Basis.PREPARED, planner)
        assert planner.current.plan == optcc.plan(answer.cluster, MIB, **COSTS)
        assert planner.progress.error is None


def _until(holds: object, planner: Planner, limit_s: float = 240) -> None:
    end = time.monotonic() + limit_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, planner.progress
        time.sleep(0.05)


@pytest.fixture
def helper() -> Iterator[Helper]:
    made = Helper()
    yield made
    made.stop()


def test_a_helper_can_be_closed_while_its_process_starts(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    starting, closed, told = threading.Event(), threading.Event(), list[OptccError]()
    start = SpawnProcess.start

    def slowly(process: SpawnProcess) -> None:
        starting.set()
        assert closed.wait(10)
        start(process)

    def ask() -> None:
        with pytest.raises(OptccError, match=r"closed|died") as caught:
            helper(abs, -1)
        told.append(caught.value)

    monkeypatch.setattr(SpawnProcess, "start", slowly)
    asking = threading.Thread(target=ask)
    asking.start()
    assert starting.wait(10)
    helper.close()
    closed.set()
    asking.join(30)
    assert len(told) == 1


def test_a_helper_that_dies_is_an_error_and_then_replaced(helper: Helper) -> None:
    with pytest.raises(OptccError, match="died"):
        helper(os._exit, 3)
    assert helper(len, "four") == 4
    with pytest.raises(OptccError, match="ZeroDivisionError"):
        helper(divmod, 1, 0)
    with pytest.raises(OptccError, match="no plan after"):
        helper(time.sleep, 60, limit_s=0.05)
    assert helper(len, "four") == 4
    helper.close()
    with pytest.raises(OptccError, match="closed"):
        helper(len, "four")


def test_a_helper_s_start_is_not_the_call_s_time() -> None:
    helper = Helper(_slow_start)
    try:
        assert helper(len, "four", limit_s=0.5) == 4
    finally:
        helper.stop()


def _slow_start() -> None:
    time.sleep(1)


def test_a_failed_preparation_is_told_and_does_not_end_the_background() -> None:
    calls: list[int] = []

    def step() -> bool:
        calls.append(len(calls))
        if len(calls) == 1:
            raise OptccError("no")
        return False

    background = Background(step, "thread")
    for count in (1, 2):
        background.wake()
        end = time.monotonic() + 30
        while len(calls) < count and time.monotonic() < end:
            time.sleep(0.01)
        assert len(calls) == count
    assert background.error == "OptccError: no"
    background.close(30)
    background.wake()
    assert len(calls) == 2


# A prepared plan serves every failure of its shape under other names; what the table forgets.


def test_a_packing_is_relabelled() -> None:
    """Out and in rates that differ have no nested rings at the bound; trees that the program packed change names."""
    cluster = uniform(servers=4, nics=1)

    def slower_out(s: int) -> Cluster:
        nic = cluster.servers[s].nics[0]
        return cluster.with_nic(s, 0, type(nic)(nic.name, nic.out_rate / 3, nic.in_rate, nic.rail, nic.gpu))

    packing = pack_trees(slower_out(0))
    recipe = optcc.plan(slower_out(0), MIB, family="packed-trees", segments=2).recipe
    assert packing.trees
    moved = recipe.relabelled(
        matching(GroupCounts.of(slower_out(0)), GroupCounts.of(slower_out(2))), GroupCounts.of(slower_out(2))
    )
    assert moved is not None
    moved.check(slower_out(2))
    assert moved.fluid_s(slower_out(2), MIB) == recipe.fluid_s(slower_out(0), MIB)
    optcc.verify(moved.lower(slower_out(2), MIB))
    assert recipe.fluid_s(slower_out(2), MIB) != recipe.fluid_s(slower_out(0), MIB)  # the names do matter


@pytest.mark.parametrize("servers", [6, 20])
def test_every_family_of_the_planner_is_relabelled(servers: int) -> None:
    """Each family made for one failure fits the cluster of another, and takes as long in the fluid limit.

    To one part in 1000: where a schedule's bytes are counted, other servers have the odd ones.
    """
    cluster = uniform(servers=servers, nics=servers // 3)
    here, there = cluster.degrade("server1/nic0"), cluster.degrade("server4/nic1")
    to = matching(GroupCounts.of(here), GroupCounts.of(there))
    assert to[1] == 4
    offered = {offer.name for offer in candidate_families(here, lower_bound(here, MIB), **COSTS)}
    assert (GroupedExchange.family in offered) == (servers > 16)
    for offer in candidate_families(here, lower_bound(here, MIB), **COSTS):
        recipe = offer.make(3)
        moved = recipe.relabelled(to, GroupCounts.of(there))
        assert moved is not None, offer.name
        moved.check(there)
        optcc.verify(moved.lower(there, MIB))
        assert float(moved.fluid_s(there, MIB)) == pytest.approx(float(recipe.fluid_s(here, MIB)), rel=1e-3)
    assert optcc.plan(here, MIB).baseline("ring").recipe.relabelled(to, GroupCounts.of(there)) is None


def test_steps_with_three_slow_servers_are_relabelled() -> None:
    def hurt(*servers: int) -> Cluster:
        cluster = uniform(servers=8, nics=4)
        for server in servers:
            cluster = cluster.degrade(f"server{server}/nic0").degrade(f"server{server}/nic1")
        return cluster

    here, there = hurt(1, 2, 3), hurt(0, 4, 7)
    to = matching(GroupCounts.of(here), GroupCounts.of(there))
    offered = candidate_families(here, lower_bound(here, MIB), **COSTS)
    recipe = next(offer.make(4) for offer in offered if offer.name == "direct-exchange")
    moved = recipe.relabelled(to, GroupCounts.of(there))
    assert moved == recipe  # it names no rank
    optcc.verify(moved.lower(there, MIB))


def test_the_table_forgets_what_was_not_used_for_longest() -> None:
    table = Table(2)
    for key in "ab":
        table.put(key, Entry({}))
    table.get("a")
    table.put("c", Entry({}))
    assert ("a" in table, "b" in table, "c" in table, len(table)) == (True, False, True, 2)
