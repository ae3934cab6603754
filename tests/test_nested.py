"""Nested rings: within 1 + 2/k of the bound with any number of degraded servers, by a pace, and what a plan may ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError
from optcc.plans.plan import Plan
from optcc.schedule.inside import inside_servers
from optcc.schedule.nested import (
    PERIOD,
    NestedRings,
    Ordering,
    in_time,
    keeping,
    sections_of,
    two_segments_under_way,
)
from optcc.schedule.tuned import FEW_LEAVES, MANY
from optcc.theory.inside_split import inside_split
from optcc.values.cluster import Cluster
from tests.conftest import clusters, degraded
from tests.effort import examples

HALF, THREE_EIGHTHS = Fraction(1, 2), Fraction(3, 8)


def slowed(ranks: int, left: Sequence[Fraction]) -> Cluster:
    cluster = Cluster.uniform(servers=ranks, nics=1, rate=10**9)
    for server, rate in enumerate(left):
        cluster = cluster.degrade(f"server{server}/nic0", rate)
    return cluster


def nested(cluster: Cluster, segments: int) -> Plan:
    """A plan whose sections are long enough that rounding to whole granules does not show."""
    ranks = len(cluster.ranks)
    return optcc.plan(cluster, segments * ranks * (ranks - 1) * 8192, segments=segments, family="nested-rings")


def without_pace(plan: Plan) -> Plan:
    """The same shares in the order of segments and hops alone, as before there was a pace."""
    assert isinstance(plan.recipe, NestedRings)
    return replace(plan, recipe=replace(plan.recipe, pace=0, window=4, sections=None))


def as_with_few_leaves(plan: Plan) -> Plan:
    """The same shares with two segments under way, as before there was another way for many leaves."""
    assert isinstance(plan.recipe, NestedRings)
    return replace(plan, recipe=replace(plan.recipe, **two_segments_under_way(2, plan.segments)._asdict()))


def loss(plan: Plan) -> float:
    """What the simulated time is above the bound, in segments: (time / bound - 1) k."""
    time_s = optcc.simulate(plan.schedule()).time_s
    return (time_s / float(plan.bound.seconds) - 1) * plan.segments


@st.composite
def crowded(draw: st.DrawFn) -> Cluster:
    """Up to 64 servers, most of them degraded as a rule, to up to three rates."""
    ranks = draw(st.integers(4, 64))
    full = draw(st.one_of(st.integers(1, min(4, ranks - 2)), st.integers(1, ranks - 2)))
    parts = draw(st.sampled_from([4, 5, 8, 10, 32]))
    rates = draw(st.lists(st.integers(1, parts - 1), min_size=1, max_size=3))
    left = [Fraction(rates[i % len(rates)], parts) for i in range(ranks - full)]
    return slowed(ranks, left)


def holds_its_limit(cluster: Cluster, segments: int) -> None:
    """2 segments; with one degraded server 1, or 1.5 while every port is saturated (1 < l < 2)."""
    left = [rank.out_rate / max(r.out_rate for r in cluster.ranks) for rank in cluster.ranks]
    slow = [rate for rate in left if rate < 1]
    limit = 2.0 if len(slow) > 1 else 1.5 if slow and slow[0] > HALF else 1.0
    assert -1e-6 <= loss(nested(cluster, segments)) <= limit + 1e-6  # bytes and ticks are whole


@examples(30)
@given(cluster=degraded(min_ranks=4, max_ranks=11, most=10), segments=st.sampled_from([2, 7, 16, 24]))
def test_small_clusters_lose_two_segments_at_most(cluster: Cluster, segments: int) -> None:
    holds_its_limit(cluster, segments)


@pytest.mark.long
@examples(12)
@given(cluster=crowded(), segments=st.sampled_from([2, 5, 12]))
def test_with_all_servers_but_one_degraded_too(cluster: Cluster, segments: int) -> None:
    """Few examples, as 64 servers are half a million transfers."""
    holds_its_limit(cluster, segments)


@pytest.mark.parametrize("left", [HALF, Fraction(1, 4), Fraction(3, 4)])
@pytest.mark.parametrize(("ranks", "segments"), [(16, 16), (32, 8), (64, 2), (64, 8)])
def test_one_straggler_among_many(ranks: int, segments: int, left: Fraction) -> None:
    holds_its_limit(slowed(ranks, [left]), segments)


MANY_LEAVES = [(20, 18, Fraction(1, 5), 8), (30, 28, Fraction(1, 8), 8), (12, 10, Fraction(1, 4), 32)]
MANY_LEAVES += [(64, 60, Fraction(1, 5), 4)]


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "slow", "left", "segments"), MANY_LEAVES)
def test_what_lost_more_with_two_segments_under_way(ranks: int, slow: int, left: Fraction, segments: int) -> None:
    plan = nested(slowed(ranks, [left] * slow), segments)
    assert loss(plan) <= 1.9
    assert loss(as_with_few_leaves(plan)) > 2, "else this case shows nothing"


def test_a_deep_pipeline_of_many_leaves_needs_finer_sections() -> None:
    """Why the pace is 4: with 2 the loss grows with the segments."""
    plan = nested(slowed(16, [Fraction(1, 4)] * 9 + [Fraction(3, 4)] * 5), 96)
    coarse = replace(plan, recipe=replace(plan.recipe, pace=2, sections=2 * 2 * 15))
    assert loss(plan) <= 1.6
    assert loss(coarse) > loss(plan) + 0.3


def test_gpus_as_ranks_keep_coarse_sections() -> None:
    """A section is many transfers inside servers, so that these rings are made as with few leaves."""
    cluster = Cluster.uniform(servers=12, nics=1, rate=1000, nvlink_rate=9000)
    for server in range(10):
        cluster = cluster.degrade(f"server{server}/nic0", Fraction(1, 4))
    cluster = replace(cluster, gpu_ranks=True)
    inner = inside_servers(cluster, inside_split(cluster).parts, 8).bundles[0].inner
    assert isinstance(inner, NestedRings)
    assert min(m for m, _ in inner.shares) < 12 - FEW_LEAVES, "else this case shows nothing"
    assert (inner.window, inner.pace, inner.sections) == two_segments_under_way(10, 8)


FORMER_FAILURES = [(32, 6, HALF, 64), (16, 4, HALF, 128), (10, 8, THREE_EIGHTHS, 64), (8, 7, THREE_EIGHTHS, 64)]
"""Ranks, degraded ones, what they have left, segments."""


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "slow", "left", "segments"), FORMER_FAILURES)
def test_what_lost_more_without_a_pace(ranks: int, slow: int, left: Fraction, segments: int) -> None:
    plan = nested(slowed(ranks, [left] * slow), segments)
    assert loss(plan) <= 1.5
    assert loss(without_pace(plan)) > 2, "else this case shows nothing"


def test_what_is_lost_does_not_grow_with_the_segments() -> None:
    """The steady state loses nothing: four times the segments, and the loss is the same part of one segment. In the
    order of segments alone it grows."""
    few, many = (nested(slowed(16, [HALF] * 4), segments) for segments in (32, 128))
    assert loss(many) <= loss(few) + 0.05
    assert loss(without_pace(many)) > loss(without_pace(few)) + 0.5


@examples(100)
@given(
    cluster=clusters(max_ranks=7),
    nbytes=st.integers(1, 2**20),
    segments=st.integers(1, 5),
    orderings=st.sampled_from([(Ordering.LEAF_FIRST,), (Ordering.VIA_LEAF,), tuple(Ordering)]),
    sections=st.sampled_from([None, 1, 5, 40]),
    window=st.integers(0, 9),
    pace=st.integers(0, 6),
    data=st.data(),
)
def test_every_recipe_that_is_accepted_is_an_allreduce(
    cluster: Cluster,
    nbytes: int,
    segments: int,
    orderings: tuple[Ordering, ...],
    sections: int | None,
    window: int,
    pace: int,
    data: st.DataObject,
) -> None:
    """Also that it comes back from a file, and that its rows wait for earlier rows only (which `verify` demands)."""
    ranks = len(cluster.ranks)
    rings = sorted(data.draw(st.sets(st.integers(1, ranks), min_size=1, max_size=3)))
    shares = tuple((m, Fraction(1, len(rings))) for m in rings)
    order = tuple(data.draw(st.permutations(range(ranks))))
    recipe = NestedRings(shares, order, segments, orderings, sections=sections, window=window, pace=pace)
    try:
        recipe.check(cluster)
    except InputError:
        assert any(not in_time(m, ranks, sections_of(m, ranks, sections, pace), pace, window) for m in rings)
        return
    optcc.verify(recipe.lower(cluster, nbytes))


def test_a_pace_that_outruns_the_window_is_refused() -> None:
    cluster = slowed(6, [HALF] * 2)
    good = nested(cluster, 4).recipe
    assert isinstance(good, NestedRings)
    good.check(cluster)
    for bad in (replace(good, window=1), replace(good, pace=2 * good.pace), replace(good, window=0, pace=65)):
        with pytest.raises(InputError, match="pace"):
            bad.check(cluster)
    # What the check keeps out: a row that waits for a later one.
    schedule = replace(good, window=1).lower(cluster, 10**6)
    assert (schedule.dep_idx >= np.repeat(np.arange(len(schedule)), np.diff(schedule.dep_ptr))).any()


def test_the_window_may_be_as_long_as_the_pace_on_every_size() -> None:
    """`nested_rings` asks for a pace that its window allows, for any number of ranks and any ring."""
    for ranks in (*range(3, 70), 127, 1024, 2000):
        for leaves, segments in ((2, 2), (FEW_LEAVES + 1, 2), (FEW_LEAVES + 1, 40)):
            kept = keeping(ranks, leaves, segments)
            assert (kept.window == 1) == (leaves > FEW_LEAVES and ranks <= MANY)
            for ring in {1, 2, 3, ranks // 2, ranks - 1, ranks}:
                count = sections_of(ring, ranks, kept.sections, kept.pace)
                assert count < PERIOD
                assert in_time(ring, ranks, count, kept.pace, kept.window)


@pytest.mark.parametrize("ordering", Ordering)
@pytest.mark.parametrize("ring", [2, 3, 4, 5])
def test_rows_are_in_the_order_in_which_they_are_due(ordering: Ordering, ring: int) -> None:
    """Section s is due after s sections' time, counted over all segments, each hop `pace` sections after the last."""
    nbytes, segments, sections = 2 * ring * 3 * 800, 3, 2 * ring

    def in_order(pace: int) -> bool:
        shares = ((ring, Fraction(1)),)
        recipe = NestedRings(shares, tuple(range(5)), segments, orderings=(ordering,), sections=sections, pace=pace)
        schedule = recipe.lower(slowed(5, []), nbytes)
        hops = np.zeros(len(schedule), np.int64)
        for row in range(len(schedule)):
            hops[row] = max((hops[dep] + 1 for dep in schedule.deps(row)), default=0)
        due = schedule.offset // (nbytes // (sections * segments)) + 2 * hops
        return bool((np.diff(due) >= 0).all())

    assert in_order(2)
    assert not in_order(3)
    assert not in_order(0)
