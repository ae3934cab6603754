"""The linear program over ring sizes: equal to the closed form without latency, never worse than it with."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.errors import CertificateError, InputError
from optcc.theory.bounds import lower_bound
from optcc.theory.ring_shares import Shares, check_loads, nested_shares, ring_loads
from optcc.theory.splits import Split, hops, split_program, split_with_latency
from optcc.values.cluster import Cluster, Nic, Server
from tests.effort import examples

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
