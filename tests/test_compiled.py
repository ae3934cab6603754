"""Matchings are scipy's; direct exchange and two levels are the same on every rank, and as deep as is worth while."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import optcc
from optcc.planner.search import Kept
from optcc.plans.plan import Plan
from optcc.schedule.columns import Schedule
from optcc.schedule.direct import DirectExchange, OneStarves
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.matchings import assigned, grouped_by
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


def test_places_of_each_number() -> None:
    ptr, places = grouped_by(np.array([2, 0, 2, 3]), 5)
    assert [places[a:z].tolist() for a, z in pairwise(ptr)] == [[1], [], [0, 2], [3], []]


NUMPY_ALONE = """
import hashlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "scipy", "cvxpy", "sympy"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from optcc.plans.plan import Plan
s = Plan.from_json(sys.stdin.read()).schedule()
columns = (s.route, s.offset, s.length, s.dep_ptr, s.dep_idx)
print(hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest())
"""


@pytest.mark.parametrize("steps", ["none-starves", "one-starves"])
def test_a_rank_with_numpy_alone_lowers_the_same(steps: str) -> None:
    cluster = with_dead(4, 2, 1) if steps == "one-starves" else Cluster.uniform(servers=4, nics=3, rate=10**9)
    recipe = DirectExchange(4, steps, last=Fraction(2, 5) if steps == "one-starves" else Fraction(0))
    recipe.check(cluster)
    plan = Plan(cluster, optcc.lower_bound(cluster, 2**16), recipe)
    done = subprocess.run(
        [sys.executable, "-c", NUMPY_ALONE],
        input=plan.to_json(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.split() == [digest(plan.schedule())]


def test_a_plan_comes_with_its_schedule() -> None:
    kept = Kept()
    plan = optcc.plan(with_dead(4, 2, 1), 2**24, alpha=5 * US, per_chunk=US, kept=kept)
    schedule = kept.schedule(plan.recipe)
    assert schedule is not None
    assert digest(schedule) == digest(plan.schedule())
    assert kept.schedule(DirectExchange(1)) is None


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
