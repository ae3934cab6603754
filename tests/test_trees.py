"""Complementary trees: AllReduce on any cluster, loads as proved, few hops, and a depth that suits the message."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InfeasibleError, InputError, VerifyError
from optcc.schedule.columns import GRANULE
from optcc.schedule.nested import nested_rings
from optcc.schedule.routes import fluid_seconds
from optcc.schedule.trees import (
    MAX_REACH,
    TICKS,
    ComplementaryTrees,
    complementary,
    critical_leaves,
    deal,
    spare_degrees,
    tree_rates,
)
from optcc.theory.splits import Pipeline, segment_count
from optcc.theory.tree_times import best_segments, busiest, seconds, shapes, tree_time
from optcc.values.cluster import Cluster, Nic, Server
from tests.broken_schedules import hasty, without
from tests.conftest import clusters, degraded
from tests.effort import examples

ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)
RATE = 400 * 10**9


def hurt(servers: int, *left: Fraction) -> Cluster:
    """`servers` servers of one NIC, the first ones with only `left` of their rate."""
    cluster = Cluster.uniform(servers=servers, rate=RATE)
    for i, fraction in enumerate(left):
        cluster = cluster.degrade(f"server{i}/nic0", fraction)
    return cluster


recipes = st.builds(
    ComplementaryTrees,
    fan=st.integers(1, 9),
    trees=st.integers(1, 9),
    segments=st.integers(1, 5),
    reach=st.one_of(st.just(0), st.integers(0, MAX_REACH)),
)
any_cluster = st.one_of(clusters(min_ranks=1, symmetric=False), degraded(min_ranks=2))


@examples(300)
@given(cluster=any_cluster, recipe=recipes, nbytes=st.one_of(st.integers(1, 300), st.integers(1, 2**22)))
def test_every_recipe_is_an_allreduce(cluster: Cluster, recipe: ComplementaryTrees, nbytes: int) -> None:
    recipe.check(cluster)
    schedule = recipe.lower(cluster, nbytes)
    optcc.verify(schedule)
    assert schedule.length.sum() == 2 * (len(cluster.ranks) - 1) * nbytes


@examples(100)
@given(cluster=degraded(), recipe=recipes, data=st.data())
def test_a_transfer_left_out_or_too_early_is_noticed(
    cluster: Cluster, recipe: ComplementaryTrees, data: st.DataObject
) -> None:
    schedule = recipe.lower(cluster, 2**16)
    row = data.draw(st.sampled_from(np.flatnonzero(np.diff(schedule.dep_ptr)).tolist()))
    with pytest.raises(VerifyError):
        optcc.verify(without(schedule, row))
    with pytest.raises(VerifyError):
        optcc.verify(hasty(schedule, row))


@examples(60)
@given(cluster=any_cluster, recipe=recipes, size=st.integers(1, 50))
def test_fluid_time_is_that_of_the_transfers(cluster: Cluster, recipe: ComplementaryTrees, size: int) -> None:
    nbytes = GRANULE * recipe.trees * recipe.segments * size  # every section of one size
    assert recipe.fluid_s(cluster, nbytes) == fluid_seconds(recipe.lower(cluster, nbytes), cluster)
    assert recipe.fluid_s(cluster, nbytes) == busiest(tree_rates(cluster), recipe.trees) * nbytes


@pytest.mark.parametrize("ranks", [3, 4, 5])
@pytest.mark.parametrize("trees", [1, 2, 3])
def test_no_other_degrees_load_the_busiest_rank_less(ranks: int, trees: int) -> None:
    need = trees * (ranks - 2)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rates = [Fraction(int(rate)) for rate in rng.integers(1, 9, ranks)]
        choices = (c for c in product(range(need + 1), repeat=ranks) if sum(c) == need)
        least = min(max(Fraction(trees + s) / r for s, r in zip(c, rates, strict=True)) for c in choices)
        assert busiest(rates, trees) * trees == least
        assert sum(spare_degrees(rates, trees)) == need


@pytest.mark.parametrize("ranks", [4, 5, 8, 31, 64])
@pytest.mark.parametrize("slow", [Fraction(8, 7), Fraction(4, 3), Fraction(2), Fraction(3)])
def test_one_straggler(ranks: int, slow: Fraction) -> None:
    """The closed forms of proofs/written/double-trees.md, in units of n/B."""
    rates = [1 / slow] + [Fraction(1)] * (ranks - 1)
    best = max(slow, Fraction(2 * (ranks - 1)) / (ranks - 1 + 1 / slow))
    assert busiest(rates, 2) <= max(2, slow)
    assert ranks == 4 or (busiest(rates, 2) == max(2, slow) and spare_degrees(rates, 2)[0] == 0)
    assert busiest(rates, ranks - 1) <= max(2 - Fraction(1, ranks - 1), slow)
    assert busiest(rates, 2) <= best * max(1, (ranks - 1 + 1 / slow) / (ranks - 1))


@given(cluster=clusters(), trees=st.integers(1, 40))
def test_more_trees_come_near_the_bound(cluster: Cluster, trees: int) -> None:
    ranks = len(cluster.ranks)
    bound = optcc.lower_bound(cluster, 1).seconds
    least = busiest(tree_rates(cluster), trees)
    assert bound <= least <= bound * (1 + Fraction(ranks, 2 * (ranks - 1) * trees))


@given(
    left=st.lists(st.sampled_from([Fraction(1, 2), Fraction(1, 3), Fraction(3, 4)]), min_size=0, max_size=4),
    ranks=st.integers(9, 40),
    recipe=recipes,
)
def test_trees_are_trees_and_degrees_are_as_planned(
    left: list[Fraction], ranks: int, recipe: ComplementaryTrees
) -> None:
    rates = [*left, *[Fraction(1)] * (ranks - len(left))]
    found = complementary(rates, recipe.fan, recipe.trees, recipe.reach)
    degrees = [0] * ranks
    for tree in found:
        assert tree.parent.count(-1) == 1
        for rank, parent in enumerate(tree.parent):
            if parent >= 0:
                assert tree.when[rank] >= tree.when[parent] + TICKS + recipe.reach
                degrees[rank] += 1
                degrees[parent] += 1
    spare = spare_degrees(rates, recipe.trees)
    assert degrees == [recipe.trees + s for s in spare]
    dealt = deal(spare, range(ranks), recipe.fan, recipe.trees)
    assert all(sum(inner.values()) == ranks - 2 for inner in dealt)


@pytest.mark.parametrize("fan", [2, 3, 4, 6])
@pytest.mark.parametrize("slow", [Fraction(1), Fraction(2)])
@pytest.mark.parametrize("reach", [0, TICKS, 10 * TICKS])
def test_height_grows_with_the_logarithm(fan: int, slow: Fraction, reach: int) -> None:
    """The bound on the way from root to last leaf in proofs/written/double-trees.md."""
    for ranks in (16, 32, 100, 256, 777):
        rates = [1 / slow] + [Fraction(1)] * (ranks - 1)
        levels = math.ceil(math.log(ranks) / math.log(fan) - 1e-9) + 1
        allowed = levels * ((fan + 1) * TICKS + reach) + (math.ceil(slow) - 1) * TICKS
        found = complementary(rates, fan, fan, reach)
        assert max(max(tree.when) for tree in found) <= allowed
    straight = complementary([Fraction(1)] * 100, 1, 1, reach)
    assert max(straight[0].when) > 7 * (3 * TICKS + reach), "a chain is over the bound of two children"


def timetable(recipe: ComplementaryTrees, cluster: Cluster, nbytes: int) -> Fraction:
    """Seconds that the timetable of proofs/written/double-trees.md takes."""
    rates, k = tree_rates(cluster), recipe.segments
    spare = spare_degrees(rates, recipe.trees)
    section = Fraction(nbytes, recipe.trees * k)
    period = max((recipe.trees + s) * (section / rate + PER_CHUNK) for s, rate in zip(spare, rates, strict=True))

    def depth(parent: tuple[int, ...], rank: int) -> int:
        return 0 if parent[rank] < 0 else 1 + depth(parent, parent[rank])

    found = complementary(rates, recipe.fan, recipe.trees, recipe.reach)
    hops = 2 * max(depth(tree.parent, rank) for tree in found for rank in range(len(rates)))
    return (k - 1 + hops * (2 + math.ceil(ALPHA / period))) * period


@examples(60)
@given(cluster=degraded(), recipe=recipes, scale=st.integers(10, 24))
def test_simulated_time_is_within_the_timetable(cluster: Cluster, recipe: ComplementaryTrees, scale: int) -> None:
    nbytes = GRANULE * recipe.trees * recipe.segments * 2**scale
    time_s = optcc.simulate(recipe.lower(cluster, nbytes), alpha=ALPHA, per_chunk=PER_CHUNK).time_s
    assert float(recipe.fluid_s(cluster, nbytes)) <= time_s <= float(timetable(recipe, cluster, nbytes))


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_direct_exchange_leaves_no_gap(ranks: int) -> None:
    """As many trees as ranks, each one hop high: every port is busy from first to last."""
    cluster, nbytes = hurt(ranks), GRANULE * ranks * 2**20
    recipe = ComplementaryTrees(fan=max(1, ranks - 1), trees=ranks, segments=1)
    time_s = optcc.simulate(recipe.lower(cluster, nbytes)).time_s
    assert time_s == pytest.approx(float(optcc.lower_bound(cluster, nbytes).seconds), rel=1e-9)


def simulated(recipe: ComplementaryTrees, cluster: Cluster, nbytes: int) -> float:
    return optcc.simulate(recipe.lower(cluster, nbytes), alpha=ALPHA, per_chunk=PER_CHUNK).time_s


CASES = [
    (ranks, left, nbytes, fan)
    for ranks in (8, 16)
    for left in ((), (Fraction(7, 8),), (Fraction(1, 2),))
    for nbytes in (2**20, 2**24, 2**28)
    for fan in (2, 4)
]


def swept(cluster: Cluster, nbytes: int, fan: int) -> dict[int, float]:
    """Simulated seconds by number of segments."""
    made = (
        ComplementaryTrees.fitted(cluster, nbytes, fan=fan, trees=fan, segments=k, alpha=ALPHA, per_chunk=PER_CHUNK)
        for k in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    )
    return {recipe.segments: simulated(recipe, cluster, nbytes) for recipe in made}


def test_the_closed_form_finds_the_depth() -> None:
    """Near the best of a sweep always, on average very near; and the model's seconds are near the simulator's."""
    regret, ratio = [], []
    for ranks, left, nbytes, fan in CASES:
        cluster = hurt(ranks, *left)
        recipe = best_segments(cluster, nbytes, fan=fan, trees=fan, alpha=ALPHA, per_chunk=PER_CHUNK)
        time_s = simulated(recipe, cluster, nbytes)
        regret.append(time_s / min(swept(cluster, nbytes, fan).values()))
        ratio.append(float(seconds(recipe, cluster, nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)) / time_s)
    assert max(regret) <= 1.12
    assert sum(regret) / len(regret) <= 1.02
    assert min(ratio) >= 0.75
    assert max(ratio) <= 1.3


def test_the_test_of_depth_can_fail() -> None:
    cluster = hurt(24, Fraction(1, 2))
    times = swept(cluster, 2**24, 4)
    assert times[1] > 1.2 * min(times.values())
    assert times[32] > 1.2 * min(times.values())


@given(
    cluster=degraded(min_ranks=2),
    nbytes=st.integers(1, 2**32),
    fan=st.integers(1, 6),
    trees=st.integers(1, 9),
    per_chunk=st.integers(0, 10000),
    most=st.integers(1, 60),
)
def test_no_other_number_of_segments_is_better_by_the_model(
    cluster: Cluster, nbytes: int, fan: int, trees: int, per_chunk: int, most: int
) -> None:
    """Without latency the trees do not depend on k."""
    costs = {"alpha": Fraction(0), "per_chunk": Fraction(per_chunk, 10**9)}
    best = best_segments(cluster, nbytes, fan=fan, trees=trees, most=most, **costs)
    all_s = [seconds(replace(best, segments=k), cluster, nbytes, **costs) for k in range(1, most + 1)]
    assert seconds(best, cluster, nbytes, **costs) == min(all_s)


@pytest.mark.parametrize("trees", [2, 4, 6])
@pytest.mark.parametrize("nbytes", [2**20, 2**28])
def test_the_number_of_segments_is_that_of_the_geometric_program(trees: int, nbytes: int) -> None:
    """Healthy ranks: T is one posynomial, W (1 + a/k) + h alpha + b o k with h alpha + s o for the way."""
    recipe = best_segments(hurt(30), nbytes, fan=trees, trees=trees, per_chunk=PER_CHUNK)
    time = tree_time(recipe, hurt(30), nbytes, alpha=Fraction(0), per_chunk=PER_CHUNK)
    work, chunks = max(time.loads)
    way = Fraction(3, 2) * time.sends
    pipeline = Pipeline(work, way * time.section_s / work, 1, way * PER_CHUNK, chunks, PER_CHUNK)
    assert time.seconds(7) == pipeline.seconds(7)
    assert recipe.segments == segment_count(pipeline, most=1024).segments
    assert (recipe.segments - 1) ** 2 < way * time.section_s / (chunks * PER_CHUNK) < (recipe.segments + 1) ** 2


@pytest.mark.parametrize("nbytes", [2**20, 2**24, 2**26])
@pytest.mark.parametrize("left", [(), (Fraction(7, 8),), (Fraction(1, 2),)])
def test_small_messages_beat_rings_by_far(nbytes: int, left: tuple[Fraction, ...]) -> None:
    cluster = hurt(64, *left)
    tree = best_segments(cluster, nbytes, fan=4, trees=4, alpha=ALPHA, per_chunk=PER_CHUNK)
    shares = optcc.theory.nested_shares(tree_rates(cluster))
    rings = min(
        optcc.simulate(nested_rings(cluster, shares, k).lower(cluster, nbytes), alpha=ALPHA, per_chunk=PER_CHUNK).time_s
        for k in (1, 2)
    )
    assert simulated(tree, cluster, nbytes) < (0.7 if nbytes > 2**24 else 0.4) * rings


def test_shapes_fit_every_cluster() -> None:
    for ranks in (2, 3, 4, 5, 7, 16, 33, 64):
        for left in ([], [Fraction(1, 2)] * (ranks // 3)):
            rates = [*left, *[Fraction(1)] * (ranks - len(left))]
            assert len(set(shapes(rates))) == len(shapes(rates)) > 0
            assert all(1 <= fan < max(ranks, 2) and trees >= 1 for fan, trees in shapes(rates))
    assert (4, 11) in shapes([Fraction(1, 2)] * 4 + [Fraction(1)] * 60), "four trees would load some rank by 2.25"


def test_slow_leaves_hang_high() -> None:
    rates = [Fraction(1, 2)] * 2 + [Fraction(1)] * 30
    assert critical_leaves(rates, 4) == [0, 1]
    assert critical_leaves([Fraction(7, 8)] + [Fraction(1)] * 30, 4) == []
    for tree in complementary(rates, 4, 4, 0):
        root = tree.parent.index(-1)
        assert root in (tree.parent[0], tree.parent[1])
        assert all(tree.when[rank] < max(tree.when) / 2 for rank in (0, 1))


def test_lowering_is_deterministic_and_scale_free() -> None:
    cluster = hurt(9, Fraction(1, 3), Fraction(5, 8))
    recipe = ComplementaryTrees(fan=3, trees=4, segments=3, reach=17)
    a, b, c = (recipe.lower(x, 10**6) for x in (cluster, cluster, cluster.scaled(Fraction(1, 1000))))
    for name in ("route", "offset", "length", "reduce", "stage", "segment", "dep_ptr", "dep_idx"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
        assert np.array_equal(getattr(a, name), getattr(c, name)), name


@pytest.mark.parametrize(
    ("field", "value"),
    [("fan", 0), ("trees", 0), ("trees", 10**6), ("segments", 0), ("segments", True), ("reach", -1), ("fan", "2")],
)
def test_parameters_out_of_range(field: str, value: object) -> None:
    recipe = replace(ComplementaryTrees(2, 2, 4), **{field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError) as error:
        recipe.check(hurt(4))
    assert error.value.where == field


def test_a_rank_without_a_way_in_is_named() -> None:
    servers = [Server(f"s{i}", (Nic("nic", Fraction(8), Fraction(8 * (i > 0))),)) for i in range(4)]
    with pytest.raises(InfeasibleError, match="s0"):
        ComplementaryTrees(2, 2, 1).lower(Cluster(tuple(servers)), 800)


def test_the_plan_says_what_it_does() -> None:
    lines = dict(ComplementaryTrees(4, 4, 7).describe(hurt(32, Fraction(1, 2))))
    assert lines["leaves in all"].startswith("server0")
    assert lines["segments"].startswith("7")
    assert "4, equal shares" in lines["trees"]
