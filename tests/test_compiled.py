"""Matchings are scipy's; direct exchange and two levels are the same on every rank, and as deep as is worth while."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import optcc
from optcc.schedule.columns import Schedule
from optcc.schedule.direct import OneStarves
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.matchings import assigned
from optcc.schedule.recipe import Costs
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster
from tests.fabrics import pods_of

ROOT = Path(__file__).parents[1]
US = Fraction(1, 10**6)


def with_dead(servers: int, nics: int, dead: int) -> Cluster:
    """Servers of which the first has lost so many of its NICs."""
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=10**9)
    for nic in range(dead):
        cluster = cluster.degrade(f"server0/nic{nic}")
    return cluster


def digest(schedule: Schedule) -> str:
    """Of all that is in it, row for row."""
    columns = (schedule.route, schedule.offset, schedule.length, schedule.dep_ptr, schedule.dep_idx)
    return hashlib.sha256(b"".join(np.ascontiguousarray(column).tobytes() for column in columns)).hexdigest()


@pytest.mark.parametrize("most", [2, 5, 2**40])
def test_the_same_matching_as_scipy_also_where_several_are_as_good(most: int) -> None:
    random = np.random.default_rng(most)
    for _ in range(200):
        worth = random.integers(-most, most, random.integers(1, 9, 2))
        expected = np.full(len(worth), -1)
        rows, columns = linear_sum_assignment(worth, maximize=True)
        expected[rows] = columns
        assert assigned(worth).tolist() == expected.tolist()


def test_a_plan_comes_with_its_schedule() -> None:
    plan = optcc.plan(with_dead(4, 2, 1), 2**24, alpha=5 * US, per_chunk=US)
    assert "_schedule" in plan.__dict__
    assert digest(plan.schedule()) == digest(plan.recipe.lower(plan.cluster, 2**24))
    assert plan.schedule() is plan.schedule()


def test_128_servers_have_the_steps_that_the_formula_asks_for() -> None:
    cluster = with_dead(128, 8, 6)
    assert 311 <= OneStarves().most_steps(cluster) < 622


def test_no_number_of_chunks_in_two_levels_is_quicker_than_the_least() -> None:
    cluster = pods_of(with_dead(6, 2, 1), 3)
    costs, bound = Costs(5 * US, 20 * US), optcc.lower_bound(cluster, 2**24)
    (offer,) = GroupedExchange.candidates(cluster, bound, costs)
    times = [
        simulate(offer.make(chunks).lower(cluster, 2**24), alpha=costs.alpha, per_chunk=costs.per_chunk).time_s
        for chunks in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
    ]
    assert float(bound.seconds) < offer.least_s <= min(times) < 2 * offer.least_s
