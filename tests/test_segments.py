"""How many segments, of which sizes, in which rings: programs against exhaustive search, certificates, simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.errors import CertificateError, InputError
from optcc.schedule import nested
from optcc.simulation.simulator import Simulation, simulate
from optcc.theory.bounds import lower_bound
from optcc.theory.ring_shares import Shares, check_loads, nested_shares, ring_loads
from optcc.theory.splits import (
    BODY,
    SHALLOW_BODY,
    Pipeline,
    Sizes,
    Split,
    chunks_per_segment,
    equal_sizes,
    growth_ratio,
    hops,
    ramp_program,
    segment_count,
    split_program,
    split_with_latency,
    starts,
)
from optcc.values.cluster import Cluster, Nic, Server
from tests.effort import examples

# The linear program over ring sizes: equal to the closed form without latency, never worse than it with.


TOLERANCE = 1e-7
# Narrow ranges leave the sum of the rates binding, wide ones the weakest rank.
RATES = st.one_of(
    st.lists(st.fractions(30, 50, max_denominator=20), min_size=3, max_size=9),
    st.lists(st.fractions(1, 50, max_denominator=20), min_size=3, max_size=9),
)


def optimal_time(rates: list[Fraction]) -> Fraction:
    """Seconds per byte by lower_bound, which nested rings reach."""
    return lower_bound(Cluster(tuple(Server(f"s{i}", (Nic("nic", r, r),)) for i, r in enumerate(rates))), 1).seconds


def demand_optimal(split: Split, rates: list[Fraction]) -> None:
    """AssertionError or CertificateError unless `split` is feasible, optimal, and says so."""
    check_loads(split.shares, rates, split.seconds_per_byte)
    assert split.seconds_per_byte >= optimal_time(rates)
    assert split.seconds_per_byte <= optimal_time(rates) * (1 + Fraction(TOLERANCE))
    assert 0 <= split.gap <= TOLERANCE


def time_with_latency(shares: Shares, rates: list[Fraction], nbytes: int, alpha: Fraction) -> Fraction:
    """Seconds of given shares in the same model."""
    loads = ring_loads(shares, len(rates))
    work = max(load / rate for load, rate in zip(loads, sorted(rates), strict=True))
    return work * nbytes + alpha * hops(max(shares), len(rates))


@given(RATES, st.integers(0, 12))
@examples(80)
def test_program_equals_the_closed_form(rates: list[Fraction], decade: int) -> None:
    rates = [rate * 10**decade for rate in rates]
    demand_optimal(split_program(rates), rates)


@pytest.mark.parametrize("name", ["wrong time", "wrong shares", "no proof"])
def test_a_wrong_split_is_caught(name: str) -> None:
    rates = [Fraction(7), Fraction(9), Fraction(10), Fraction(10)]
    good = split_program(rates)
    bad = {
        "wrong time": Split(good.shares, good.seconds_per_byte * Fraction(99, 100), good.gap),
        "wrong shares": Split({4: Fraction(1)}, good.seconds_per_byte, good.gap),
        "no proof": Split(good.shares, good.seconds_per_byte, Fraction(1, 100)),
    }
    demand_optimal(good, rates)
    with pytest.raises((AssertionError, CertificateError)):
        demand_optimal(bad[name], rates)


def test_shares_of_one_straggler_are_the_closed_form_s() -> None:
    rates = [Fraction(30)] + [Fraction(50)] * 7
    program, closed = split_program(rates).shares, nested_shares(rates)
    assert set(program) == set(closed) == {7, 8}
    assert all(abs(program[m] - closed[m]) < TOLERANCE for m in closed)


def test_two_ranks_have_one_pattern_that_matters() -> None:
    demand_optimal(split_program([Fraction(3), Fraction(5)]), [Fraction(3), Fraction(5)])


@given(RATES, st.integers(1, 10**6), st.fractions(0, 10, max_denominator=100))
@examples(25)
def test_latency_program_beats_every_single_pattern_and_the_closed_form(
    rates: list[Fraction], nbytes: int, alpha: Fraction
) -> None:
    split = split_with_latency(rates, nbytes, alpha)
    seconds = split.seconds_per_byte * nbytes
    slack = 1 + Fraction(TOLERANCE)
    assert seconds == time_with_latency(split.shares, rates, nbytes, alpha) or alpha == 0
    assert 0 <= split.gap <= TOLERANCE
    assert seconds <= time_with_latency(nested_shares(rates), rates, nbytes, alpha) * slack
    for ring in range(1, len(rates) + 1):
        assert seconds <= time_with_latency({ring: Fraction(1)}, rates, nbytes, alpha) * slack


def test_latency_favours_small_rings_for_small_buffers() -> None:
    rates, alpha = [Fraction(25 * 10**9)] + [Fraction(50 * 10**9)] * 15, Fraction(5, 10**6)
    largest = [max(split_with_latency(rates, nbytes, alpha).shares) for nbytes in (10**3, 10**6, 10**8)]
    assert largest[0] == 1
    assert largest == sorted(largest)
    assert largest[-1] == 14  # at half rate a ring of P-2 still takes no longer, and has two hops less


def test_no_latency_is_the_program_without_it() -> None:
    rates = [Fraction(7), Fraction(9), Fraction(10), Fraction(10)]
    demand_optimal(split_with_latency(rates, 1, Fraction(0)), rates)


@pytest.mark.parametrize("rates", [[], [Fraction(1)], [Fraction(1), Fraction(0)]])
def test_rates_that_cannot_be_split(rates: list[Fraction]) -> None:
    with pytest.raises(InputError, match="two or more"):
        split_program(rates)


@pytest.mark.parametrize(("nbytes", "alpha"), [(0, Fraction(0)), (1, Fraction(-1))])
def test_jobs_that_are_none(nbytes: int, alpha: Fraction) -> None:
    with pytest.raises(InputError, match="no such job"):
        split_with_latency([Fraction(1), Fraction(2)], nbytes, alpha)


# How many segments and of which sizes: programs against exhaustive search, certificates, and the simulator.


NBYTES = 2**26
SEGMENTS_TOLERANCE = 1e-5


def straggler(ranks: int, slow: Fraction) -> Cluster:
    return Cluster.uniform(servers=ranks, nics=1, rate=50 * 10**9).degrade("server0/nic0", 1 / slow)


def rates_of(cluster: Cluster) -> list[Fraction]:
    return [rank.out_rate for rank in cluster.ranks]


def simulated(cluster: Cluster, **costs: float) -> Callable[[Sizes], Simulation]:
    """The simulator of nested rings on `cluster`, as a function of the segments' sizes."""
    rates = rates_of(cluster)

    def run(sizes: Sizes) -> Simulation:
        recipe = nested.NestedRings(
            tuple(nested_shares(rates).items()),
            tuple(sorted(range(len(rates)), key=lambda r: (rates[r], r))),
            len(sizes),
            (nested.Ordering.LEAF_FIRST, nested.Ordering.VIA_LEAF),
            segment_sizes=tuple(sizes),
        )
        schedule = recipe.lower(cluster, NBYTES)
        return simulate(schedule, **costs)

    return run


PIPELINES = st.builds(
    Pipeline,
    work_s=st.fractions(Fraction(1, 1000), 1, max_denominator=1000),
    fill=st.fractions(Fraction(1, 10), 2, max_denominator=10),
    hops=st.integers(0, 30),
    alpha_s=st.fractions(0, Fraction(1, 1000), max_denominator=10**6),
    chunks=st.integers(1, 60),
    chunk_s=st.fractions(0, Fraction(1, 1000), max_denominator=10**6),
)


@given(PIPELINES, st.integers(1, 300))
@examples(40)
def test_segment_count_is_the_best_of_all_and_its_bound_holds(pipeline: Pipeline, most: int) -> None:
    count = segment_count(pipeline, most=most)
    assert count.seconds == min(pipeline.seconds(k) for k in range(1, most + 1))
    bound = count.seconds / (1 + count.gap)
    assert all(pipeline.seconds(Fraction(k, 10)) >= bound for k in range(10, 10 * most + 1, 3))
    assert count.gap >= 0


def test_segment_count_is_the_closed_form_where_that_is_whole() -> None:
    pipeline = Pipeline(work_s=Fraction(1, 10), fill=Fraction(1, 2), chunks=5, chunk_s=Fraction(1, 10**4))
    assert segment_count(pipeline, most=100).segments == 10  # sqrt(0.1 * 0.5 / (5 * 1e-4))
    assert segment_count(pipeline, most=100).gap < 1e-15
    assert segment_count(pipeline, most=7).segments == 7
    assert segment_count(replace(pipeline, chunk_s=Fraction(0)), most=64).segments == 64


def test_chunks_are_counted_in_the_schedule() -> None:
    schedule = simulated(straggler(8, Fraction(4, 3)))(equal_sizes(3)).schedule
    for place, rank in enumerate(range(8)):  # server0 is the straggler
        assert np.count_nonzero(schedule.src == rank) == 3 * chunks_per_segment([7, 8], 8, place)


def test_a_pipeline_without_room_or_work() -> None:
    for most, work in ((0, Fraction(1)), (5, Fraction(0))):
        with pytest.raises(InputError, match="no pipeline"):
            segment_count(Pipeline(work, Fraction(1)), most=most)


def test_the_count_is_near_the_simulated_best() -> None:
    """Equal segments, 3 us a chunk: the program's count takes at most 1 % more than the best of 1, 2, 4 ... 128."""
    cluster, per_chunk, alpha = straggler(8, Fraction(2)), Fraction(3, 10**6), Fraction(2, 10**6)
    run = simulated(cluster, alpha=alpha, per_chunk=per_chunk)
    pipeline = Pipeline(
        work_s=lower_bound(cluster, NBYTES).seconds,
        fill=Fraction(1, 2),
        hops=14,
        alpha_s=alpha,
        chunks=chunks_per_segment([7], 8, place=0),  # at half rate the straggler is the bottleneck
        chunk_s=per_chunk,
    )
    chosen = segment_count(pipeline, most=256).segments
    best = min(run(equal_sizes(2**i)).time_s for i in range(8))
    assert run(equal_sizes(chosen)).time_s <= 1.01 * best
    assert run(equal_sizes(8 * chosen)).time_s > 1.01 * best  # the comparison can fail


@pytest.mark.parametrize(("ranks", "slow"), [(8, Fraction(2)), (16, Fraction(2)), (8, Fraction(4)), (32, Fraction(3))])
def test_growth_ratio_uses_all_slack_and_no_more(ranks: int, slow: Fraction) -> None:
    rates = rates_of(straggler(ranks, slow))
    shares = nested_shares(rates)
    half = sum((share * Fraction(m - 1, m) for m, share in shares.items()), Fraction(0))
    rest = ring_loads(shares, ranks)[-1] - 2 * half
    room = max(rates) * lower_bound(straggler(ranks, slow), 1).seconds

    def used(growth: Fraction) -> Fraction:
        return half * (growth + 1 / growth) + rest

    growth = growth_ratio(rates)
    assert growth > 1
    assert used(growth) <= room < used(growth + Fraction(1, 1000))


def test_no_growth_below_the_switch_point_and_equal_sizes_then() -> None:
    growth = growth_ratio(rates_of(straggler(8, Fraction(4, 3))))
    assert growth == 1
    assert ramp_program(12, growth).sizes == equal_sizes(12)


@given(
    st.integers(1, 40),
    st.fractions(1, 6, max_denominator=50),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([BODY, SHALLOW_BODY]),
)
@examples(40)
def test_ramp_obeys_its_limits_and_its_certificate(segments: int, growth: Fraction, unit: int, body: Fraction) -> None:
    ramp = ramp_program(segments, growth, unit=unit, body=body)
    assert len(ramp.sizes) == segments
    assert sum(ramp.sizes) == 1
    assert ramp.cost == (ramp.sizes[0] + ramp.sizes[-1]) / 2 + body * max(ramp.sizes)
    units = ramp.sizes[::unit]
    assert all(a <= growth * b and b <= growth * a for a, b in pairwise(units))
    assert 0 <= ramp.gap <= SEGMENTS_TOLERANCE
    assert ramp.cost <= (1 + body) / segments * (1 + Fraction(SEGMENTS_TOLERANCE))


def test_ramp_is_optimal_among_geometric_ramps() -> None:
    growth, segments = Fraction(3, 2), 16
    best = ramp_program(segments, growth, unit=1)
    for up in range(8):
        for down in range(8):
            raw = [min(growth ** min(i - up, 0), growth ** min(segments - 1 - i - down, 0)) for i in range(segments)]
            sizes = [value / sum(raw) for value in raw]
            assert best.cost <= ((sizes[0] + sizes[-1]) / 2 + BODY * max(sizes)) * (1 + Fraction(SEGMENTS_TOLERANCE))


@pytest.mark.parametrize(
    ("ranks", "slow", "segments", "most"),
    [
        (8, Fraction(2), 16, 0.7),
        (8, Fraction(2), 32, 0.6),
        (16, Fraction(2), 32, 0.7),
        (8, Fraction(3), 16, 0.4),
        (8, Fraction(3), 32, 0.2),
        (8, Fraction(4), 32, 0.2),
        (8, Fraction(4, 3), 32, 0.85),
        (8, Fraction(3, 2), 16, 0.75),
    ],
)
def test_ramps_beat_equal_segments_in_the_simulator(ranks: int, slow: Fraction, segments: int, most: float) -> None:
    """What a ramp takes beyond the bound is at most `most` of what equal segments take beyond it."""
    cluster = straggler(ranks, slow)
    bound, run = float(lower_bound(cluster, NBYTES).seconds), simulated(cluster)
    equal = run(equal_sizes(segments)).time_s - bound
    seconds = min(run(sizes).time_s for sizes in starts(rates_of(cluster), segments))
    assert 0 < seconds - bound <= most * equal


def test_starts_are_sizes_and_hold_equal_ones() -> None:
    for segments in (1, 2, 3, 9):
        found = starts(rates_of(straggler(8, Fraction(3))), segments)
        assert equal_sizes(segments) in found
        assert all(len(sizes) == segments and sum(sizes) == 1 and min(sizes) > 0 for sizes in found)


@pytest.mark.parametrize(
    "call",
    [
        lambda: growth_ratio([Fraction(1), Fraction(2)]),
        lambda: ramp_program(0, Fraction(2)),
        lambda: ramp_program(4, Fraction(1, 2)),
    ],
)
def test_no_ramp_for_what_is_no_pipeline(call: Callable[[], Sequence[Fraction]]) -> None:
    with pytest.raises(InputError):
        call()
