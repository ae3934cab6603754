"""Plans at failure time: the very plans of the whole planner, from a table with few entries, whoever asks and when."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster, Fabric
from optcc.errors import InfeasibleError, InputError, OptccError
from optcc.ladders import ladders
from optcc.plans import nested_rings, rings_in_order
from optcc.standby.background import Background, Helper, SkippedError
from optcc.standby.planner import Basis, Planner, Progress
from optcc.standby.solve import solve
from optcc.standby.state import Places, State, limited
from optcc.standby.table import Entry, Table, distance, matching, relabelled
from optcc.theory import lower_bound, nested_shares
from optcc.theory.hubs import hub_split
from optcc.theory.packing import pack_trees
from optcc.theory.tally import Tally, signature
from tests.conftest import GBPS

ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)
MIB = 2**20


def uniform(servers: int = 5, nics: int = 2) -> Cluster:
    return Cluster.uniform(servers=servers, nics=nics, rate=400 * GBPS)


def time_of(plan: optcc.Plan) -> float:
    return optcc.simulate(plan.schedule(), alpha=ALPHA, per_chunk=PER_CHUNK).time_s


def keeps_the_promise(plan: optcc.Plan) -> bool:
    """At most 2 % slower, simulated, than what the whole planner finds for the very cluster; the bound is exact."""
    scratch = optcc.plan(plan.cluster, plan.bound.nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
    return plan.bound == scratch.bound and time_of(plan) <= 1.02 * time_of(scratch)


COSTS = {"alpha": ALPHA, "per_chunk": PER_CHUNK}


# The closed form kept up to date


@settings(deadline=None)
@given(
    servers=st.integers(2, 7),
    nics=st.integers(1, 3),
    events=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 4), st.booleans()), max_size=8),
)
def test_a_tally_is_what_counting_afresh_gives(
    servers: int, nics: int, events: list[tuple[int, int, int, bool]]
) -> None:
    """Bound, certificate, words, order and shares equal those made from every NIC, exactly, after any events."""
    cluster = uniform(servers, nics)
    whole, tally = cluster, Tally.of(cluster)
    for s, i, quarters, one_way in events:
        s, i = s % servers, i % nics
        nic = limited(whole.servers[s].nics[i], whole.servers[s].nics[i].out_rate * quarters / 4)
        if one_way:
            nic = type(nic)(nic.name, nic.out_rate, whole.servers[s].nics[i].in_rate, nic.rail, nic.gpu)
        changed = cluster.with_nic(s, i, nic)
        tally = tally.moved(s, cluster.servers[s], changed.servers[s])
        cluster = changed
    assert (tally.groups, tally.sum_out, tally.sum_in) == (
        Tally.of(cluster).groups, Tally.of(cluster).sum_out, Tally.of(cluster).sum_in,
    )  # fmt: skip
    try:
        bound = lower_bound(cluster, 12345)
    except InfeasibleError as error:
        with pytest.raises(InfeasibleError, match=error.where):
            tally.bound(cluster, 12345, Fraction(1))
        return
    assert tally.bound(cluster, 12345, bound.fault_free_s) == bound
    shares = nested_shares([min(rank.out_rate, rank.in_rate) for rank in cluster.ranks])
    rings = nested_rings(cluster, shares, 3)
    assert rings_in_order(tally.order, tally.shares(), 3) == rings
    if servers > 2:
        assert tally.hub_split() == hub_split(cluster)
    assert tally.rings_s * 12345 == rings.fluid_s(cluster, 12345)


def test_a_tally_that_is_not_moved_is_noticed() -> None:
    """Negative control: the comparison above sees a server that changed groups."""
    cluster = uniform()
    hurt = cluster.degrade("server1/nic0")
    assert Tally.of(cluster).bound(hurt, MIB, Fraction(0)).seconds != lower_bound(hurt, MIB).seconds
    assert Tally.of(cluster).order != Tally.of(hurt).order


@pytest.mark.parametrize(
    "cluster",
    [
        uniform(servers=1),
        Cluster(uniform().servers, gpu_ranks=True),
        Cluster(uniform().servers, fabric=Fabric(rails=True)),
    ],
    ids=["alone", "gpus", "rails"],
)
def test_no_tally_without_a_closed_form(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="no closed form"):
        Tally.of(cluster)


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


@pytest.mark.parametrize(
    ("servers", "nics", "size"), [(4, 2, 2**30), (5, 2, 64 * MIB), (8, 2, MIB), (8, 8, 8 * MIB), (12, 2, 64 * MIB)]
)
def test_one_decision_serves_every_single_failure(servers: int, nics: int, size: int) -> None:
    """With costs one run of the planner prepares them all, and each is within 2 % of a run for that very NIC."""
    cluster = uniform(servers, nics)
    with Planner(cluster, size, lookahead=1, background="off", **COSTS) as planner:
        assert planner.prepare() == Progress(2, 2)
        assert len(planner._table) == 2
        for server in range(0, servers, max(1, servers // 4)):
            nic = f"server{server}/nic{server % nics}"
            answer = planner.fail(nic)
            assert answer.basis is Basis.PREPARED
            assert keeps_the_promise(answer.plan), nic
            planner.restore(nic)


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


def test_a_packing_is_relabelled() -> None:
    """Out and in rates that differ have no nested rings at the bound; trees that the program packed change names."""
    cluster = uniform(servers=4, nics=1)

    def slower_out(s: int) -> Cluster:
        nic = cluster.servers[s].nics[0]
        return cluster.with_nic(s, 0, type(nic)(nic.name, nic.out_rate / 3, nic.in_rate, nic.rail, nic.gpu))

    packing = pack_trees(slower_out(0))
    recipe = optcc.plan(slower_out(0), MIB, family="packed-trees", segments=2).recipe
    assert packing.trees
    moved = relabelled(recipe, matching(Tally.of(slower_out(0)), Tally.of(slower_out(2))), Tally.of(slower_out(2)))
    assert moved is not None
    moved.check(slower_out(2))
    assert moved.fluid_s(slower_out(2), MIB) == recipe.fluid_s(slower_out(0), MIB)
    optcc.verify(moved.lower(slower_out(2), MIB))
    assert recipe.fluid_s(slower_out(2), MIB) != recipe.fluid_s(slower_out(0), MIB)  # the names do matter


def test_every_family_of_the_planner_is_relabelled() -> None:
    """Each family made for one failure fits the cluster of another, and takes as long in the fluid limit."""
    cluster = uniform(servers=6)
    here, there = cluster.degrade("server1/nic0"), cluster.degrade("server4/nic1")
    to = matching(Tally.of(here), Tally.of(there))
    assert to[1] == 4
    for ladder in ladders(here, lower_bound(here, MIB), **COSTS):
        recipe = ladder.make(3)
        moved = relabelled(recipe, to, Tally.of(there))
        assert moved is not None, ladder.name
        moved.check(there)
        optcc.verify(moved.lower(there, MIB))
        assert moved.fluid_s(there, MIB) == recipe.fluid_s(here, MIB)
    assert relabelled(optcc.plan(here, MIB).baseline("ring").recipe, to, Tally.of(there)) is None


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


def test_the_nearest_shape_is_the_most_similar_one() -> None:
    cluster = uniform(servers=6, nics=4)
    one, two = cluster.degrade("server1/nic0"), cluster.degrade("server1/nic0").degrade("server4/nic0")
    table = Table(8)
    for each in (cluster, one, two):
        table.put(Tally.of(each).key, Entry(solve(each, [MIB], Fraction(0), Fraction(0)), Tally.of(each)))
    for hurt, expected in (
        (cluster.degrade("server2/nic3", Fraction(1, 4)), one),
        (cluster.degrade("server2/nic3").degrade("server0/nic0", Fraction(1, 8)), two),
        (cluster.degrade("server0/nic0", Fraction(9, 10)), one),  # even servers want direct exchange; others do not
    ):
        entry = table.nearest(Tally.of(hurt))
        assert entry is not None
        assert entry.tally == Tally.of(expected)
    assert distance(Tally.of(one), Tally.of(one)) == 0
    assert distance(Tally.of(one), Tally.of(two)) == distance(Tally.of(two), Tally.of(one)) == pytest.approx(1 / 4)


# Outside the closed form


def test_rails_are_planned_whole_and_prepared_by_name() -> None:
    cluster = Cluster(uniform(servers=2).servers, fabric=Fabric(rails=True))
    with Planner(cluster, MIB, keep=2, background="off") as planner:
        assert planner.prepare() == Progress(2, 2)
        for nic, basis in (("server0/nic0", Basis.PREPARED), ("server1/nic1", Basis.SOLVED)):
            answer = planner.fail(nic)
            assert answer.basis is basis
            assert answer.plan == optcc.plan(cluster.degrade(nic), MIB)
            planner.restore(nic)


# Events


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


def test_any_size_is_served_from_the_next_larger_one() -> None:
    with Planner(uniform(), [MIB, 256 * MIB], background="off", **COSTS) as planner:
        for nbytes, bucket in ((1000, MIB), (MIB, MIB), (MIB + 1, 256 * MIB), (2**33, 256 * MIB)):
            plan = planner.plan(nbytes)
            assert plan.bound == optcc.lower_bound(uniform(), nbytes)
            assert plan.recipe == planner.current.plans[bucket].recipe
        with pytest.raises(InputError):
            planner.plan(0)


# Bounded, and used from many threads


def test_the_table_forgets_what_was_not_used_for_longest() -> None:
    table = Table(2)
    for key in "ab":
        table.put(key, Entry({}))
    table.get("a")
    table.put("c", Entry({}))
    assert ("a" in table, "b" in table, "c" in table, len(table)) == (True, False, True, 2)


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
        if Tally.of(cluster).key == Tally.of(shape).key:
            tried.append(cluster)
            raise ValueError("no plan for it")
        return solve(cluster, *task)  # type: ignore[arg-type]

    monkeypatch.setattr("optcc.standby.planner.solve", solve_others)
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


@pytest.fixture
def helper() -> Iterator[Helper]:
    made = Helper()
    yield made
    made.stop()


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


# Values


def test_states_know_what_deviates() -> None:
    cluster = uniform(3)
    places = Places.of(cluster)
    state = State(cluster).after(places["server1/nic1"], Fraction(0)).after(places["server2/nic0"], Fraction(7))
    assert state.deviations == {("server1/nic1", 0, 0), ("server2/nic0", 7, 7)}
    back = state.after(places["server1/nic1"], None).after(places["server2/nic0"], None)
    assert back.cluster is cluster
    assert back.deviations == frozenset()
    assert back.events == 4


def test_signatures_forget_names_and_dead_nics() -> None:
    cluster = uniform(3)
    a, b = cluster.degrade("server0/nic0"), cluster.degrade("server1/nic1")
    assert signature(a.servers[0]) == signature(b.servers[1])
    assert Tally.of(a).key == Tally.of(b).key
    assert Tally.of(cluster.degrade("server0/nic0", Fraction(1, 2))).key != Tally.of(a).key
