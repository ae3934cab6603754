"""Every family computes AllReduce on any cluster that it takes, never below the bound, and travels as a file."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import optcc
from optcc import planner
from optcc.cluster import Cluster
from optcc.errors import InfeasibleError, InputError
from optcc.plans import BASELINES, Plan
from optcc.schedule.families import FAMILIES
from tests.conftest import clusters, degraded
from tests.fabrics import fabrics

ANY = st.one_of(degraded(max_ranks=8), clusters(max_ranks=6, symmetric=False), fabrics())


def offered(cluster: Cluster, nbytes: int, segments: int) -> list[Plan]:
    """A plan of every family and baseline that takes the cluster."""
    bound, found = optcc.lower_bound(cluster, nbytes), []
    for ladder in planner.ladders(cluster, bound):
        try:
            recipe = ladder.make(segments)
            recipe.check(cluster)
            recipe.lower(cluster, nbytes)
        except InputError:  # says what it asks of a cluster; tests of the family hold it to that
            continue
        found.append(Plan(cluster, bound, recipe))
    for name in BASELINES:
        try:
            plan = found[0].baseline(name)
            plan.schedule()
        except (InputError, IndexError):
            continue
        found.append(plan)
    return found


@settings(max_examples=300)
@given(cluster=ANY, nbytes=st.integers(1, 2**22), segments=st.integers(1, 4))
def test_every_family_on_random_clusters(cluster: Cluster, nbytes: int, segments: int) -> None:
    try:
        plans = offered(cluster, nbytes, segments)
    except InfeasibleError:
        reject()
    for plan in plans:
        schedule = plan.schedule()
        optcc.verify(schedule)
        assert Plan.from_json(plan.to_json()) == plan
        assert optcc.simulate(schedule).time_s >= float(plan.bound.seconds) * (1 - 2e-6)


def test_all_families_are_seen() -> None:
    """The random clusters are worth something only if every family takes some of them."""
    flat = Cluster.uniform(servers=5, nics=2, gpus=2, rate=1000, nvlink_rate=5000).degrade("server0/nic1")
    seen = {plan.recipe.family for plan in offered(flat, 4096, 2)}
    seen |= {plan.recipe.family for plan in offered(replace(flat, gpu_ranks=True), 4096, 2)}
    assert seen == set(FAMILIES)


@pytest.mark.parametrize("segments", [1, 3])
def test_the_family_test_can_fail(segments: int) -> None:
    cluster = Cluster.uniform(servers=5, nics=2, rate=1000).degrade("server0/nic1", Fraction(1, 3))
    for plan in offered(cluster, 4096, segments):
        schedule = plan.schedule()
        with pytest.raises(optcc.VerifyError):
            optcc.verify(schedule.replace(reduce=~schedule.reduce))
