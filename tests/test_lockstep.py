"""Direct exchange in lockstep: AllReduce on every cluster that it fits, the bound itself where steps suit it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.cluster import Cluster
from optcc.errors import InputError
from optcc.ladders_lockstep import lockstep_ladders
from optcc.schedule import lockstep as schedule_of
from optcc.schedule import lockstep_steps as steps_of
from optcc.schedule.lockstep import LockstepExchange, applies_lockstep, lockstep_nics
from optcc.schedule.lockstep_steps import chunks_of, fewest_steps, hub_shares, lockstep_steps
from optcc.schedule.routes import fluid_seconds
from optcc.simulator import simulate
from optcc.theory.hubs import hub_split
from tests.effort import examples
from tests.fabrics import pods_of
from tests.test_latin import starving
from tests.timetables import ALPHA, EXACTLY, PER_CHUNK, check_allreduce, lacking, loss

GIB = 2**30
FITTING = {
    "three dead each": lacking("012", "012"),
    "three dead each, other ones": lacking("012", "567"),
    "half of three": lacking("0123", "0123", "0123"),
    "unlike": lacking("0", "12", "345"),
    "one each of all but two": lacking(*"012345"),
    "small": starving(4, 3, "0", "2"),
    "two full ones": starving(5, 8, "0", "1", "2"),
    "many": starving(16, 8, "012", "012"),
    "rails": starving(8, 8, "01", "01", rails=True),
    "rails, other ones": starving(8, 8, "01", "67", "3", rails=True),
    "more peers than steps have NICs": starving(16, 2, *["0"] * 9),
    "nearly starving": starving(14, 8, *["01234"] * 7),
}
EXACT = [("three dead each", 14), ("three dead each, other ones", 14), ("half of three", 42), ("half of three", 63)]
UNFIT = {
    "one slow server": starving(8, 8, "0", ""),
    "one starves": starving(8, 8, "0123", "0"),
    "two starve": starving(8, 8, "0123", "0123"),
    "nothing dead": lacking(),
    "two ranks": Cluster.uniform(servers=2, nics=4, rate=1000),
    "no rail in common": starving(4, 4, "01", "23", rails=True),
}


@examples(60)
@given(
    name=st.sampled_from(sorted(FITTING)),
    segments=st.integers(1, 40),
    variant=st.integers(0, 9),
    nbytes=st.integers(0, 2**20),
)
def test_all_steps_compute_allreduce(name: str, segments: int, variant: int, nbytes: int) -> None:
    check_allreduce(FITTING[name], LockstepExchange(segments, variant), nbytes)


@pytest.mark.parametrize(("name", "segments"), EXACT)
def test_where_steps_suit_the_bound_is_reached(name: str, segments: int) -> None:
    """Without costs, by packets as by stripes; nobody is late. With one step less chunks do not fill them."""
    cluster = FITTING[name]
    best = min((LockstepExchange(segments, variant) for variant in range(4)), key=lambda each: loss(cluster, each))
    assert abs(loss(cluster, best)) < EXACTLY
    bound_s, schedule = optcc.lower_bound(cluster, GIB).seconds, best.lower(cluster, GIB)
    nics = tuple(sorted(len(mine) for mine in lockstep_nics(cluster)))
    counts, _ = chunks_of(nics, segments)
    for cut in (schedule, best.lower(cluster, 123_456_789)):  # no rest is a transfer of its own
        assert len(cut) == sum(counts[a + b] for a, b in permutations(nics, 2))
    by_packets = simulate(schedule, receivers="packets").time_s
    assert by_packets == pytest.approx(float(bound_s), rel=EXACTLY)
    assert best.fluid_s(cluster, GIB) == bound_s
    assert loss(cluster, replace(best, segments=segments - 1)) > 1 / 200


@pytest.mark.parametrize("name", FITTING)
@pytest.mark.parametrize("segments", [7, 14, 40])
def test_nobody_meets(name: str, segments: int) -> None:
    """No NIC has two chunks in a step, either way; each pair's chunks are as many as `chunks_of` says."""
    live = tuple(map(tuple, lockstep_nics(FITTING[name])))
    nics = tuple(map(len, live))
    count = max(segments, fewest_steps(nics))
    steps = lockstep_steps(live, count, 0)
    counts = chunks_of(tuple(sorted(nics)), count)[0]
    ends = Counter[tuple[str, int, int, int]]()
    for (i, k), chunks in steps.chunks.items():
        assert len(chunks) <= counts[nics[i] + nics[k]]
        for step, rail in chunks:
            assert rail in live[i]
            assert rail in live[k]
            ends.update([("out", i, step, rail), ("in", k, step, rail)])
    assert {*ends.values()} == {1}
    assert steps.length <= 2 * count


@pytest.mark.parametrize("name", [name for name, _ in EXACT])
def test_results_are_sent_when_all_data_for_them_has_landed(name: str) -> None:
    """In an earlier step: counted here from the steps alone, in parts of a section."""
    cluster, segments = FITTING[name], dict(EXACT)[name]
    live = tuple(map(tuple, lockstep_nics(cluster)))
    nics, ranks = list(map(len, live)), len(live)
    shares = hub_shares(nics) or ()
    steps = lockstep_steps(live, segments, 1).chunks

    def begins(i: int, k: int, hub: int, part: Fraction) -> int:
        """The step of the chunk with the end of this part of `hub`'s section, in which i sends it to k."""
        before = Fraction(0) if hub == k else shares[k]
        chunks = steps[i, k]
        at = (before + part * shares[hub]) / (shares[i] + shares[k]) * len(chunks)
        return chunks[min(-(-at // 1), len(chunks)) - 1][0]

    for hub, to in permutations(range(ranks), 2):
        for part in (Fraction(n, 8) for n in range(1, 9)):
            result = begins(hub, to, hub, part)
            assert all(begins(i, hub, hub, part) < result for i in range(ranks) if i != hub)


@pytest.mark.parametrize("nics", [(5, 5, 8, 8, 8, 8), (4, 4, 4, 8, 8, 8, 8, 8), (7, 6, 8, 8), (2, 2, 3, 3)])
def test_chunks_fit_into_the_steps_and_no_fewer_would(nics: tuple[int, ...]) -> None:
    nics, ranks = tuple(sorted(nics)), len(nics)
    for count in range(fewest_steps(nics), 40):
        counts, longer = chunks_of(nics, count)
        rows = [sum(counts[a + b] for k, b in enumerate(nics) if k != i) for i, a in enumerate(nics)]
        assert all(row <= n * count for row, n in zip(rows, nics, strict=True))
        need = {both: (both - Fraction(sum(nics), ranks - 1)) / (ranks - 2) * count for both in counts}
        assert max(need[both] / counts[both] for both in counts) == longer >= 1
        shorter = {both: -(-need[both] // (longer * Fraction(9999, 10000))) for both in counts}
        rows = [sum(shorter[a + b] for k, b in enumerate(nics) if k != i) for i, a in enumerate(nics)]
        assert any(row > n * count for row, n in zip(rows, nics, strict=True))


@pytest.mark.parametrize("name", FITTING)
def test_hubs_are_those_of_the_bound(name: str) -> None:
    cluster = FITTING[name]
    recipe = LockstepExchange(60)
    found = hub_shares([len(mine) for mine in lockstep_nics(cluster)])
    assert found == hub_split(cluster)[0]
    nbytes = 2**40
    told_s = recipe.fluid_s(cluster, nbytes)
    assert optcc.lower_bound(cluster, nbytes).seconds <= told_s
    assert fluid_seconds(recipe.lower(cluster, nbytes), cluster) == pytest.approx(float(told_s), rel=1e-2)


@pytest.mark.long
def test_a_result_however_small_is_sent() -> None:
    """The planner's own choice was a plan without some results here: hubs of 0.05 % each, less than a chunk's 64th."""
    cluster, nbytes = starving(64, 8, *["01234"] * 27), 2**28
    plan = optcc.plan(cluster, nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
    optcc.verify(plan.schedule())
    recipe = LockstepExchange(7)
    sent = recipe.lower(FITTING["nearly starving"], 2**20).length.sum()
    assert sent == 2 * 13 * 2**20


def test_a_pairs_only_chunk_is_cut_where_the_result_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few steps many pairs have one, and otherwise the data would wait for the result."""
    cluster, nbytes = starving(64, 8, "0", "0"), 2**24

    def time_s() -> float:
        return simulate(LockstepExchange(10).lower(cluster, nbytes), alpha=ALPHA, per_chunk=PER_CHUNK).time_s

    cut_s = time_s()
    monkeypatch.setattr(schedule_of, "lockstep_steps", lambda *args: lockstep_steps(*args)._replace(results={}))
    assert cut_s < 0.95 * time_s()


def test_steps_are_the_same_whichever_servers_lack_nics() -> None:
    for recipe in (LockstepExchange(14, 1), LockstepExchange(9)):
        one, other = (
            simulate(recipe.lower(cluster, GIB), alpha=ALPHA, per_chunk=PER_CHUNK).time_s
            for cluster in (lacking("012", "012"), lacking("", "012", "", "", "", "", "012"))
        )
        assert one == pytest.approx(other, rel=EXACTLY)  # but for where cuts are rounded


def test_uplinks_take_their_time() -> None:
    """A fifth of what the pod's NICs have: every server sends half of the others its data by them."""
    cluster, recipe = lacking("012", "012"), LockstepExchange(14, 1)
    pods = pods_of(cluster, 4, 5)
    told_s = recipe.fluid_s(pods, GIB)
    assert told_s > 2 * recipe.fluid_s(cluster, GIB)
    assert fluid_seconds(recipe.lower(pods, GIB), pods) == pytest.approx(float(told_s), rel=1e-2)


def test_what_landed_only_just_before_is_better_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a latency late, and makes others late."""
    cluster = FITTING["half of three"]
    bound_s = float(optcc.lower_bound(cluster, GIB).seconds)

    def lost() -> float:
        schedule = LockstepExchange(42, 1).lower(cluster, GIB)
        return simulate(schedule, alpha=ALPHA).time_s / bound_s - 1

    own = lost()
    monkeypatch.setattr(steps_of, "FRESH", 0)
    lockstep_steps.cache_clear()
    assert lost() > 1.4 * own > 0
    lockstep_steps.cache_clear()


@pytest.mark.parametrize(("name", "most"), [("three dead each", 1.04), ("half of three", 1.045)])
def test_the_planner_takes_it(name: str, most: float) -> None:
    """256 MiB, 5 us and 1 us: 1.046 and 1.072 times the bound before there were such plans."""
    cluster, nbytes = FITTING[name], 2**28
    plan = optcc.plan(cluster, nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
    assert plan.recipe.family == LockstepExchange.family
    time_s = simulate(plan.schedule(), alpha=ALPHA, per_chunk=PER_CHUNK, receivers="packets").time_s
    assert time_s < most * float(plan.bound.seconds)


def test_numbers_of_steps_that_suit_come_first() -> None:
    """Also where chunks cost nothing, and none at all where there are many ranks."""
    for name, least in (("three dead each", 14), ("half of three", 21)):
        for per_chunk in (Fraction(0), PER_CHUNK):
            cluster = FITTING[name]
            (only, *others) = [
                each.only for each in lockstep_ladders(cluster, optcc.lower_bound(cluster, GIB), per_chunk)
            ]
            assert only[0] == least
            assert others == [only] * 3
    assert lockstep_ladders(starving(66, 2, *["0"] * 3), optcc.lower_bound(FITTING["small"], GIB), PER_CHUNK) == []


def test_of_short_plans_more_variants_are_tried() -> None:
    """8 servers with a dead NIC in two, 16 MiB: none of the first four is within 2 % of the fifth."""
    cluster, nbytes = lacking("0", "0"), 2**24
    short = lockstep_ladders(cluster, optcc.lower_bound(cluster, nbytes), PER_CHUNK)
    assert max(short[0].only) <= 16 < max(lockstep_ladders(cluster, optcc.lower_bound(cluster, GIB), PER_CHUNK)[0].only)
    best = [
        min(
            simulate(ladder.make(steps).lower(cluster, nbytes), alpha=ALPHA, per_chunk=PER_CHUNK).time_s
            for steps in ladder.only
        )
        for ladder in short
    ]
    assert len(best) == 8
    assert min(best[:4]) > 1.02 * min(best)
    plan = optcc.plan(cluster, nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
    assert simulate(plan.schedule(), alpha=ALPHA, per_chunk=PER_CHUNK).time_s <= min(best)


@pytest.mark.parametrize("costs", [{}, {"alpha": ALPHA, "per_chunk": PER_CHUNK}])
def test_nothing_to_reduce_has_a_plan(costs: dict[str, Fraction]) -> None:
    assert len(optcc.plan(FITTING["three dead each"], 0, **costs).schedule()) == 0


@pytest.mark.parametrize("name", UNFIT)
def test_other_clusters_are_refused(name: str) -> None:
    assert not applies_lockstep(UNFIT[name])
    with pytest.raises(InputError, match="cluster"):
        LockstepExchange(8).check(UNFIT[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segments": 0}, "segments"),
        ({"segments": 1025}, "segments"),
        ({"variant": -1}, "variant"),
        ({"variant": 256}, "variant"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(LockstepExchange(8), **change).check(FITTING["small"])


def test_what_takes_too_much_memory_is_refused() -> None:
    """A plan file may ask for more than the planner does."""
    many = starving(64, 8, "0", "0")
    LockstepExchange(500).check(many)
    with pytest.raises(InputError, match=r"1 to 514"):
        LockstepExchange(515).check(many)


def test_what_it_says() -> None:
    told = dict(LockstepExchange(14, 1).describe(FITTING["three dead each"]))
    assert told["hubs"] == "2 of 3.448 %, 6 of 15.52 %, each exchanges directly with all"
    assert told["steps"].startswith("14, ")
    for recipe, name, steps in ((LockstepExchange(14), "three dead each", 15), (LockstepExchange(1), "many", 3)):
        assert dict(recipe.describe(FITTING[name]))["steps"].startswith(f"{steps}, ")  # so many are taken
