"""Failures drawn at random: the draws follow their model, and renaming what is alike changes nothing."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import optcc
from optcc import Cluster
from optcc.sweep.distribution import Spread
from optcc.sweep.failures import MonteCarlo, _Alike

WEEK = MonteCarlo(draws=2000, mttf_s=Fraction(9720), repair_s=Fraction(86400), nic_share=Fraction(42, 419))


def _mean_fits(model: MonteCarlo, drawn: MonteCarlo, cluster: Cluster) -> bool:
    """Whether the mean number of NICs dead in `drawn` is within four standard errors of `model`'s expectation."""
    counts = [len(found.nics) for found in drawn.sets(cluster, seed=1)]
    nics = sum(len(server.nics) for server in cluster.servers)
    down = float(model.expected(cluster)) / nics
    error = math.sqrt(nics * down * (1 - down) / len(counts))
    return abs(sum(counts) / len(counts) - nics * down) < 4 * error


@pytest.mark.parametrize("alike", [True, False])
def test_draws_have_the_mean_of_the_model(alike: bool) -> None:
    cluster = Cluster.uniform(servers=64, nics=8, rate=10**9)
    cluster = cluster if alike else cluster.degrade("server3/nic0", Fraction(1, 2))
    assert _mean_fits(WEEK, WEEK, cluster)
    slower = MonteCarlo(WEEK.draws, WEEK.mttf_s, WEEK.repair_s * Fraction(3, 2), WEEK.nic_share)
    assert not _mean_fits(WEEK, slower, cluster)


def test_the_model_by_hand() -> None:
    # One of 1024 NICs fails every 3 hours, so that a NIC lives for 3072 hours; half of it is other parts' failures.
    model = MonteCarlo(1, Fraction(3 * 3600), Fraction(24 * 3600), Fraction(1, 2), mttf_nics=1024)
    cluster = Cluster.uniform(servers=4, nics=2, rate=10**9)
    assert model.unavailability(cluster) == Fraction(24, 2 * 3072 + 24)
    assert model.expected(cluster) == Fraction(8 * 24, 2 * 3072 + 24)
    own = MonteCarlo(1, Fraction(3600), Fraction(3600))  # the cluster's own 8 NICs
    assert own.unavailability(cluster) == Fraction(1, 9)


def test_draws_do_not_depend_on_how_many_there_are() -> None:
    cluster = Cluster.uniform(servers=8, nics=4, rate=10**9)
    few, many = (list(MonteCarlo(n, Fraction(1), Fraction(2)).sets(cluster, 3)) for n in (5, 9))
    assert few == many[:5]
    assert few != list(MonteCarlo(5, Fraction(1), Fraction(2)).sets(cluster, 4))


@settings(max_examples=30)
@given(dead=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=8))
def test_renaming_changes_no_bound(dead: set[tuple[int, int]]) -> None:
    cluster = Cluster.uniform(servers=5, nics=3, rate=10**9)
    renamed = _Alike(cluster).first_of_its_kind(sorted(dead))
    assert len(renamed) == len(dead)

    def bound(pairs: Any) -> Fraction | None:
        hurt = cluster
        for server, nic in pairs:
            hurt = hurt.degrade(f"server{server}/nic{nic}")
        try:
            return optcc.lower_bound(hurt, 2**20).seconds
        except optcc.InfeasibleError:
            return None

    assert bound(renamed) == bound(dead)


def test_only_what_is_alike_is_renamed() -> None:
    uniform = Cluster.uniform(servers=3, nics=2, rate=10**9)
    dead = [(1, 1), (2, 0), (2, 1)]
    assert _Alike(uniform).first_of_its_kind(dead) == [(0, 0), (0, 1), (1, 0)]
    assert _Alike(uniform.degrade("server0/nic0", Fraction(1, 2))).first_of_its_kind(dead) == dead
    rails = optcc.load_topology("uniform:servers=3,nics=2,rate=1GB/s,fabric=rails").cluster
    assert _Alike(rails).first_of_its_kind(dead) == dead
    one = uniform.servers[0]
    unequal = Cluster(
        tuple(optcc.Server(f"server{i}", (one.nics[0], optcc.Nic("nic1", Fraction(5), Fraction(5)))) for i in range(3))
    )
    assert _Alike(unequal).first_of_its_kind(dead) == [(0, 0), (0, 1), (1, 1)]


def test_quantiles_count_what_stops_as_infinite() -> None:
    spread = Spread((0.0, 0.1, 0.2, math.inf))
    assert spread.mean == pytest.approx(0.1)
    assert (spread.quantile(0.5), spread.quantile(0.75), spread.quantile(0.9)) == (0.1, 0.2, math.inf)
    assert spread.as_json()["p90"] is None
    assert Spread((math.inf,)).mean is None
