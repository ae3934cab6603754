"""No plan of any family or rival takes less than the bound with costs, on clusters of all kinds; 2,000 with --whole.

Run whole in November 2026: 5,393 plans of thirteen families and rivals.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InfeasibleError
from optcc.values.bound import BoundWithCosts
from optcc.values.cluster import Cluster
from tests.effort import cases, examples
from tests.test_costs import SIZES, US, bound, check, costs_us
from tests.test_families import FITTING, offered


def check_every(cluster: Cluster, nbytes: int, costs: tuple[int, int], segments: int, tried: Counter[str]) -> None:
    """What each family and rival makes of the cluster, with both kinds of receivers; counted in `tried`."""
    alpha, per_chunk = (cost * US for cost in costs)
    try:
        least = bound(cluster, nbytes, alpha, per_chunk).seconds
    except InfeasibleError:  # a server without a NIC
        return
    for plan in offered(cluster, nbytes, segments):
        check(plan.schedule(), least, alpha, per_chunk)
        tried[plan.family] += 1


@pytest.mark.long
def test_no_plan_is_faster_than_its_bound() -> None:
    tried = Counter[str]()

    @examples(450)
    @given(
        cluster=st.one_of(*FITTING.values()),
        nbytes=st.sampled_from(SIZES[:-1]) | st.integers(1, 2**24),
        costs=costs_us,
        segments=st.integers(1, 12),
    )
    def every(cluster: Cluster, nbytes: int, costs: tuple[int, int], segments: int) -> None:
        check_every(cluster, nbytes, costs, segments, tried)

    every()
    print(f"{tried.total()} plans, none below its bound: {tried.most_common()}")
    assert tried.total() >= cases(2000)


@pytest.mark.parametrize("planted", ["a thousandth more", "latency twice", "a chunk more"])
def test_a_bound_that_is_too_high_is_noticed(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plans reach it: two servers with many bytes, three with one."""
    networks = [(Cluster.uniform(servers=2, rate=10**9), 2**20), (Cluster.uniform(servers=3, rate=10**9), 1)]
    real = optcc.lower_bound_with_costs

    def wrong(cluster: Cluster, nbytes: int, *, alpha: Fraction, per_chunk: Fraction) -> BoundWithCosts:
        found = real(cluster, nbytes, alpha=alpha, per_chunk=per_chunk)
        more = {"a thousandth more": found.seconds / 1000, "latency twice": alpha, "a chunk more": per_chunk}
        return replace(found, seconds=found.seconds + more[planted])

    def every() -> None:
        for cluster, nbytes in networks:
            check_every(cluster, nbytes, (5, 1), 1, Counter())

    every()
    monkeypatch.setattr(optcc, "lower_bound_with_costs", wrong)
    monkeypatch.setattr("tests.test_costs.check_bound_with_costs", lambda *_: None)
    with pytest.raises(AssertionError):
        every()
