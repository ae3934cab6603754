"""Direct exchange by timetable: AllReduce on every cluster that it fits, and nothing lost but chunks and latencies."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc import planner
from optcc.cluster import Cluster, Fabric
from optcc.errors import InputError
from optcc.ladders import ladders
from optcc.schedule.routes import fluid_seconds
from optcc.schedule.timetable import IN_TIME, deepest, growing
from optcc.schedule.timetable_nics import applies, live_nics, reduced
from optcc.schedule.timetable_ramp import sums_in_time
from optcc.simulator import simulate
from optcc.theory.hubs import hub_split
from tests.effort import examples
from tests.fabrics import pods_of
from tests.timetables import (
    ALPHA,
    EXACTLY,
    PER_CHUNK,
    RATE,
    check_allreduce,
    dead,
    hurt,
    rank_nics,
    starved,
    timetable,
)


@examples(300)
@given(
    cluster=hurt(),
    segments=st.integers(1, 3),
    matched=st.sampled_from([0, 1, 8, 1024]),
    sparse=st.booleans(),
    late=st.booleans(),
    nbytes=st.one_of(st.integers(1, 300), st.integers(1, 2**22)),
)
def test_every_recipe_is_an_allreduce(
    cluster: Cluster, segments: int, matched: int, sparse: bool, late: bool, nbytes: int
) -> None:
    rounds = {"matched": matched, "sparse": sparse and matched > 0}
    check_allreduce(cluster, timetable(cluster, segments, late=late, **rounds), nbytes)


@pytest.mark.long
@examples(300)
@given(
    cluster=starved(),
    segments=st.integers(1, 8),
    growth=st.fractions(1, 4, max_denominator=9),
    nbytes=st.one_of(st.integers(1, 300), st.integers(1, 2**22)),
)
def test_growing_ones_too(cluster: Cluster, segments: int, growth: Fraction, nbytes: int) -> None:
    check_allreduce(cluster, growing(cluster, hub_split(cluster)[0], growth, segments), nbytes)


@examples(100)
@given(cluster=hurt(12))
def test_fluid_time_is_the_bound(cluster: Cluster) -> None:
    """Where every NIC can be equally busy; two servers that meet on few rails may make that impossible."""
    fluid_s, bound_s = timetable(cluster).fluid_s(cluster, 2**20), optcc.lower_bound(cluster, 2**20).seconds
    assert fluid_s >= bound_s * (1 - Fraction(1, 10**8))
    if len({len(set(rank_nics(cluster, r))) for r in reduced(cluster)}) == len(reduced(cluster)) == 1:
        assert fluid_s <= bound_s * (1 + Fraction(1, 10**6))


@pytest.mark.parametrize(
    ("servers", "count", "rounds"),
    [(4, 1, 1), (5, 2, 1), (8, 1, 1), (8, 2, 1), (16, 2, 1), (8, 3, 2), (12, 3, 2), (16, 1, 2), (16, 3, 2)],
)
def test_nothing_is_lost_without_latency(servers: int, count: int, rounds: int) -> None:
    """Where all servers set the bound, one round or two are exactly as fast as it allows, and no NIC ever waits."""
    cluster, nbytes = dead(servers, count), 2**30
    time_s = simulate(timetable(cluster, rounds).lower(cluster, nbytes)).time_s
    assert time_s == pytest.approx(float(optcc.lower_bound(cluster, nbytes).seconds), rel=EXACTLY)


@pytest.mark.parametrize(("servers", "count"), [(8, 3), (16, 3)])
def test_chunks_and_two_latencies_are_all_that_is_lost(servers: int, count: int) -> None:
    """2r(P-1) chunks per NIC in r rounds, a few more where a slot is cut in two, and at most two latencies."""
    cluster, nbytes, rounds = dead(servers, count), 2**28, 2
    time_s = simulate(timetable(cluster, rounds).lower(cluster, nbytes), alpha=ALPHA, per_chunk=PER_CHUNK).time_s
    lost = time_s - float(optcc.lower_bound(cluster, nbytes).seconds)
    chunks = 2 * rounds * (servers - 1) * PER_CHUNK
    assert chunks + ALPHA <= lost <= Fraction(13, 10) * chunks + 2 * ALPHA


@given(cluster=hurt(), segments=st.integers(1, 3), matched=st.sampled_from([1, 1024]), sparse=st.booleans())
def test_the_fluid_time_is_that_of_the_busiest_nic(cluster: Cluster, segments: int, matched: int, sparse: bool) -> None:
    recipe, nbytes = timetable(cluster, segments, matched=matched, sparse=sparse), 2**30
    busiest_s = fluid_seconds(recipe.lower(cluster, nbytes), cluster)
    assert float(recipe.fluid_s(cluster, nbytes)) == pytest.approx(float(busiest_s), rel=0.02)


def test_two_steps_exchanged_are_noticed() -> None:
    """Negative control of the two above: from time to time one sender takes its peers in another order."""
    cluster, nbytes = dead(8, 3), 2**28
    schedule = timetable(cluster, 2).lower(cluster, nbytes)
    bound_s = float(optcc.lower_bound(cluster, nbytes).seconds)
    free = np.flatnonzero(np.diff(schedule.dep_ptr) == 0)
    mine = free[schedule.src[free] == 3]
    swapped = np.arange(len(schedule))
    swapped[mine[:16]] = mine[:16][::-1]
    columns = {name: getattr(schedule, name)[swapped] for name in ("route", "offset", "length", "reduce", "stage")}
    place = np.argsort(swapped)
    broken = schedule.replace(**columns, segment=schedule.segment[swapped], dep_idx=place[schedule.dep_idx])
    assert simulate(broken).time_s > bound_s * (1 + 10 * EXACTLY)


@pytest.mark.parametrize(
    ("servers", "growth", "rounds"), [(8, Fraction(4, 3), 16), (16, Fraction(3, 2), 9), (32, Fraction(17, 10), 9)]
)
def test_a_server_that_alone_sets_the_bound_loses_its_first_sums_only(
    servers: int, growth: Fraction, rounds: int
) -> None:
    """Without latency what is lost is what the recipe says: the time in which it has nothing to receive."""
    cluster, nbytes = dead(servers, 4), 2**30
    bound_s = float(optcc.lower_bound(cluster, nbytes).seconds)
    recipe = growing(cluster, hub_split(cluster)[0], growth, rounds)
    lost = simulate(recipe.lower(cluster, nbytes)).time_s / bound_s - 1
    said = float(recipe.idle(cluster)) / 2
    assert 0.7 * said < lost < said + 0.005
    assert recipe.via[0][1] == pytest.approx(float(IN_TIME) * (1 - 2 * said) / (2 - 2 * said), rel=2e-3)


def test_growth_that_leaves_hubs_no_time_loses_more() -> None:
    """Negative control: with 8 servers, rounds that double lose more than the recipe says."""
    cluster, nbytes = dead(8, 4), 2**30
    bound_s = float(optcc.lower_bound(cluster, nbytes).seconds)
    recipe = growing(cluster, hub_split(cluster)[0], Fraction(2), 9)
    assert simulate(recipe.lower(cluster, nbytes)).time_s > (1.03 + float(recipe.idle(cluster)) / 2) * bound_s


@examples(100)
@given(cluster=starved(8), segments=st.integers(1, 9), growth=st.fractions(1, 3, max_denominator=9))
def test_a_hub_sends_sums_that_it_has(cluster: Cluster, segments: int, growth: Fraction) -> None:
    """In the order of the timetable, as far as a slot is not the hub's last, which takes what is left over."""
    recipe = growing(cluster, hub_split(cluster)[0], growth, segments)
    (slow, via), ranks = recipe.via[0], len(cluster.ranks)
    pairs = recipe._pairs(cluster)
    sums, idle = sums_in_time(slow, ranks, via, pairs)
    assert 0 <= idle < 1
    for hub, own in sums.items():
        total, sent = sum(slot.weight for slot in own), 0
        for slot in own[:-1]:
            sent += slot.weight
            for sender in (r for r in range(ranks) if r not in (hub, slow)):
                came = pairs(sender, hub)
                has = sum(x.weight for x in came if x.begin + x.size <= slot.begin) / sum(x.weight for x in came)
                assert float(via) * sent / total <= has + 1e-6


@examples(100)
@given(cluster=hurt(6), seed=st.integers(0, 2**32 - 1))
def test_a_dependency_less_is_noticed(cluster: Cluster, seed: int) -> None:
    """Negative control of the verifier's approval: somewhere what a result needs is not waited for."""
    schedule = timetable(cluster).lower(cluster, 2**16)
    rng = np.random.default_rng(seed)
    row = rng.choice(np.flatnonzero(np.diff(schedule.dep_ptr)))
    counts = np.diff(schedule.dep_ptr)
    first = schedule.dep_ptr[row]
    kept = np.delete(schedule.dep_idx, slice(first, first + counts[row]))
    counts[row] = 0
    with pytest.raises(optcc.VerifyError):
        optcc.verify(schedule.replace(dep_idx=kept, dep_ptr=np.concatenate(([0], np.cumsum(counts)))))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"via": ((1, Fraction(1, 2)),)}, "via"),
        ({"shares": (Fraction(0), *[Fraction(1, 3)] * 3)}, "via"),
        ({"via": ((0, Fraction(3, 2)),)}, "via"),
        ({"via": ((0, Fraction(1, 4)), (1, Fraction(1, 4)))}, "via"),
        ({"shares": (Fraction(1),)}, "shares"),
        ({"shares": (Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 8))}, "shares"),
        ({"segments": 0}, "segments"),
        ({"growth": Fraction(2)}, "growth"),
        ({"matched": -1}, "matched"),
        ({"matched": 2**17}, "matched"),
        ({"sparse": True}, "sparse"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(change: dict[str, object], where: str) -> None:
    cluster = dead(4, 1)
    with pytest.raises(InputError) as caught:
        replace(timetable(cluster), **change).check(cluster)
    assert caught.value.where == where


def test_where_it_applies() -> None:
    whole = Cluster.uniform(servers=4, nics=4, rate=RATE)
    one = whole.degrade("server2/nic1")
    assert applies(whole)
    assert reduced(whole) == []
    assert applies(one)
    assert reduced(one) == [2]
    assert reduced(one.degrade("server3/nic2")) == [2, 3]
    assert applies(one.degrade("server3/nic2"))
    rails = replace(one, fabric=Fabric(rails=True, spine=Fraction(2)))
    assert applies(rails)
    assert applies(pods_of(one, 2))
    apart = Cluster.uniform(servers=4, nics=2, rate=RATE).degrade("server0/nic0").degrade("server1/nic1")
    assert applies(apart)  # any NIC reaches any
    assert live_nics(apart) == [{0: (1,)}, {0: (0,)}, {0: (0,), 1: (1,)}, {0: (0,), 1: (1,)}]
    first, *rest = rails.servers
    others = {
        "two NICs of a server on one rail": replace(
            rails, servers=(replace(first, nics=tuple(replace(nic, rail=0) for nic in first.nics)), *rest)
        ),
        "no rail in common": replace(apart, fabric=rails.fabric),
        "one full server": one.degrade("server3/nic1").degrade("server1/nic1"),
        "a server without NICs": whole.degrade("server2/nic0")
        .degrade("server2/nic1")
        .degrade("server2/nic2")
        .degrade("server2/nic3"),
        "two ranks": Cluster.uniform(servers=2, nics=4, rate=RATE).degrade("server1/nic0"),
        "GPUs as ranks": replace(Cluster.uniform(servers=4, nics=4, rate=RATE, nvlink_rate=RATE), gpu_ranks=True),
    }
    for why, cluster in others.items():
        assert not applies(cluster), why
    with pytest.raises(InputError):
        timetable(one).check(others["a server without NICs"])


@pytest.mark.long
@examples(20)
@given(cluster=hurt(5))
def test_the_planner_offers_it(cluster: Cluster) -> None:
    made = optcc.plan(cluster, 2**22, family="timetable", alpha=ALPHA, per_chunk=PER_CHUNK)
    optcc.verify(made.schedule())
    assert made.recipe.family == "timetable"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"growth": Fraction(1, 2)}, "growth"),
        ({"growth": Fraction(17)}, "growth"),
        ({"growth": Fraction(-1)}, "growth"),
        ({"segments": 25}, "segments"),
        ({"via": ((0, Fraction(1)),)}, "via"),
        ({"via": ((0, Fraction(1, 10**8)),)}, "via"),
    ],
)
def test_growing_recipes_that_do_not_fit_are_refused(change: dict[str, object], where: str) -> None:
    cluster = dead(4, 4)
    recipe = growing(cluster, hub_split(cluster)[0], Fraction(2), 24)
    with pytest.raises(InputError) as caught:
        replace(recipe, **change).check(cluster)
    assert caught.value.where == where


@pytest.mark.parametrize("count", [1, 4])
def test_of_nothing_there_is_nothing_to_send(count: int) -> None:
    schedule = optcc.plan(dead(4, count), 0, family="timetable").schedule()
    optcc.verify(schedule)
    assert not len(schedule)


@pytest.mark.long
def test_ties_are_settled_by_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that take as long but for half a per cent, the fastest by packets is the plan."""
    cluster, bound = dead(8, 4), optcc.lower_bound(dead(8, 4), 2**28)
    offered = [x for x in ladders(cluster, bound, per_chunk=PER_CHUNK) if x.name == "timetable" and not x.only]

    def found() -> list[planner.Candidate]:
        return planner.candidates(offered, cluster, bound, alpha=ALPHA, per_chunk=PER_CHUNK)

    times: list[float] = []
    monkeypatch.setattr(planner, "_by_packets", lambda candidate, *rest: times.append(candidate.time_s) or -len(times))
    last = found()[0]
    assert len(times) > 1
    assert last.time_s == times[-1] <= planner.TIE * times[0]
    monkeypatch.setattr(planner, "_by_packets", lambda candidate, *rest: candidate.time_s)
    assert found()[0].time_s == times[0] == min(candidate.time_s for candidate in found())


def test_more_rounds_than_may_grow_are_refused() -> None:
    cluster, growth = dead(4, 4), Fraction(4, 3)
    shares = hub_split(cluster)[0]
    assert growing(cluster, shares, growth, deepest(growth)).segments == deepest(growth)
    with pytest.raises(InputError, match="segments"):
        growing(cluster, shares, growth, deepest(growth) + 1)
    with pytest.raises(InputError, match="segments"):
        optcc.plan(cluster, 2**24, family="timetable", segments=257)


@pytest.mark.long
def test_a_planner_on_standby_gives_timetables_to_whom_they_fit() -> None:
    """A shape counts NICs and does not know which: what was prepared for one server is relabelled for another."""
    cluster = Cluster.uniform(servers=5, nics=4, rate=RATE)
    with optcc.Planner(cluster, sizes=[2**26], alpha=ALPHA, per_chunk=PER_CHUNK, background="off") as standby:
        standby.fail("server1/nic0")
        standby.prepare()
        made = standby.fail("server1/nic1").plan
        assert made.recipe.family == "timetable"
        for nic in ("server1/nic0", "server1/nic1"):
            standby.restore(nic)
        standby.fail("server3/nic3")
        moved = standby.fail("server3/nic2").plan
        assert moved.recipe.family == "timetable"
        assert [r for r, _ in moved.recipe.via] == [3]
        moved.recipe.check(moved.cluster)
        optcc.verify(moved.schedule())


@pytest.mark.long
@pytest.mark.parametrize(("count", "most"), [(1, 0.011), (3, 0.011), (4, 0.019)])
def test_planned_timetables_are_near_the_bound(count: int, most: float) -> None:
    cluster, nbytes = dead(8, count), 2**30
    made = optcc.plan(cluster, nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
    assert made.recipe.family == "timetable"
    time_s = simulate(made.schedule(), alpha=ALPHA, per_chunk=PER_CHUNK).time_s
    assert float(made.bound.seconds) <= time_s <= (1 + most) * float(made.bound.seconds)
