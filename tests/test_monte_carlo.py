"""Failures drawn at random: the draws follow their model, and renaming what is alike changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc import Cluster
from optcc.schedule.baselines import BASELINES
from optcc.simulation.simulator import Receivers
from optcc.study.failures import MonteCarlo, Renamed, _Alike
from optcc.study.grid import PLACELESS, GridTopology, SweepGrid
from optcc.study.monte_carlo import OverheadSpread
from optcc.study.runner import compute
from tests.effort import examples

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


@examples(30)
@given(dead=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=8))
def test_renaming_changes_no_bound(dead: set[tuple[int, int]]) -> None:
    cluster = Cluster.uniform(servers=5, nics=3, rate=10**9)
    renamed = _Alike(cluster, "servers").first_of_its_kind(sorted(dead))
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

    def found(cluster: Cluster, renamed: Renamed = "servers") -> list[tuple[int, int]]:
        return _Alike(cluster, renamed).first_of_its_kind(dead)

    assert found(uniform) == [(0, 0), (0, 1), (1, 0)]
    assert found(uniform, "nics") == [(1, 0), (2, 0), (2, 1)]
    assert found(uniform, "nothing") == dead
    assert found(replace(uniform, gpu_ranks=True)) == [(0, 0), (0, 1), (1, 1)]
    assert found(replace(uniform, gpu_ranks=True), "nics") == dead
    half = uniform.degrade("server0/nic0", Fraction(1, 2))
    assert found(half) == found(half, "nics") == [(1, 0), (2, 0), (2, 1)]
    assert found(uniform.degrade("server1/nic0", Fraction(1, 2))) == dead
    rails = optcc.load_topology("uniform:servers=3,nics=2,rate=1GB/s,fabric=rails").cluster
    assert found(rails) == found(rails, "nics") == dead
    one = uniform.servers[0]
    unequal = Cluster(
        tuple(optcc.Server(f"server{i}", (one.nics[0], optcc.Nic("nic1", Fraction(5), Fraction(5)))) for i in range(3))
    )
    assert found(unequal) == [(0, 0), (0, 1), (1, 1)]


def grid(*algorithms: str | None, **fields: Any) -> SweepGrid:
    """Draws of two dead NICs or so on eight servers of four, with costs."""
    eight = Cluster.uniform(servers=8, nics=4, rate=50 * 10**9)
    model = MonteCarlo(40, Fraction(1, 2), Fraction(1))
    cost = Fraction(1, 10**6)
    axes = SweepGrid((GridTopology("eight", eight),), (model,), (2**20,), algorithms, (5 * cost,), (cost,), (None,), 3)
    return replace(axes, **fields)


def failures(of: SweepGrid) -> list[tuple[str, ...]]:
    return [cell.job.failures for cell in of.cells()]


def as_drawn(of: SweepGrid) -> list[tuple[str, ...]]:
    """The same draws by hand: NIC by NIC from the seed."""
    cluster, model = of.topologies[0].cluster, of.failures[0]
    assert isinstance(model, MonteCarlo)
    down = float(model.unavailability(cluster))
    names = [f"{server.name}/{nic.name}=0" for server in cluster.servers for nic in server.nics]
    dead = [np.random.default_rng((of.seed, 1, i)).random(len(names)) < down for i in range(len(model))]
    return [tuple(name for name, one in zip(names, some, strict=True) if one) for some in dead]


@pytest.mark.parametrize("algorithms", [["optcc"], ["hot-repair"], ["ring", "optcc"]])
def test_draws_are_simulated_as_drawn(algorithms: list[str]) -> None:
    rows = failures(grid(*algorithms))[:: len(algorithms)]
    assert rows == as_drawn(grid())
    assert len(set(rows)) > 20
    assert len(set(failures(grid(None)))) < 10  # of which many are equal to whom only the bound is of interest


def test_what_is_renamed_for_a_grid() -> None:
    free = {"alpha_s": (Fraction(0),), "per_chunk_s": (Fraction(0),)}
    assert grid(None).renamed == grid(None, **free).renamed == "servers"
    assert grid("ring", "balance").renamed == "nics"
    # Without costs, or with a depth given, baselines are as deep as our own plan.
    assert grid("ring", **free).renamed == grid("ring", segments=(4,)).renamed == "nothing"
    seen = (replace(grid().topologies[0], alpha_s=Fraction(1, 10**6)),)
    assert grid("ring", **free, topologies=seen).renamed == "nics"  # a cost that its file has measured is one, too
    assert grid("ring", **free, topologies=(*seen, *grid().topologies)).renamed == "nothing"
    assert grid("ring", "optcc").renamed == grid("hot-repair").renamed == "nothing"
    assert set(BASELINES) - PLACELESS == {"hot-repair"}


def simulated(algorithm: str, dead: list[tuple[int, int]], receivers: Receivers = "stripes") -> float | None:
    """Seconds on the grid's cluster at its costs."""
    job = grid(algorithm, receivers=receivers).cells()[0].job
    job = replace(job, failures=tuple(f"server{s}/nic{n}=0" for s, n in dead))
    (found,) = compute(grid().topologies[0].cluster, (job,))
    return found.simulated_s


@pytest.mark.long
@pytest.mark.parametrize("algorithm", sorted(PLACELESS))
@pytest.mark.parametrize("receivers", get_args(Receivers))
def test_renamed_nics_make_no_difference_to_who_has_no_places(algorithm: str, receivers: Receivers) -> None:
    dead = [(0, 3), (3, 1), (3, 2)]
    renamed = _Alike(grid().topologies[0].cluster, "nics").first_of_its_kind(dead)
    assert renamed != dead
    assert simulated(algorithm, renamed, receivers) == simulated(algorithm, dead, receivers)


@pytest.mark.long
@pytest.mark.parametrize(
    ("algorithm", "dead", "renamed"),
    [
        ("hot-repair", [(1, 0), (2, 1), (2, 2)], "nics"),  # one NIC is left that lives on both, not two
        ("ring", [(1, 0), (3, 0)], "servers"),  # no longer neighbours on the ring
    ],
)
def test_renaming_would_make_a_difference_to_the_others(
    algorithm: str, dead: list[tuple[int, int]], renamed: Renamed
) -> None:
    other = _Alike(grid().topologies[0].cluster, renamed).first_of_its_kind(dead)
    assert simulated(algorithm, other) != simulated(algorithm, dead)


def test_quantiles_count_what_stops_as_infinite() -> None:
    spread = OverheadSpread((0.0, 0.1, 0.2, math.inf))
    assert spread.mean == pytest.approx(0.1)
    assert (spread.quantile(0.5), spread.quantile(0.75), spread.quantile(0.9)) == (0.1, 0.2, math.inf)
    assert spread.as_json()["p90"] is None
    assert OverheadSpread((math.inf,)).mean is None
