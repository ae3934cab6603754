"""The evaluation's model of training: what failures, repairs and slower steps cost a job."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import exp

import numpy as np
import pytest

from optcc.study import page
from optcc.study.evaluation import OPTCC, Fleet
from optcc.study.failures import MonteCarlo
from optcc.study.training import WEEK_S, TrainingJob
from optcc.values.cluster import Cluster
from tests.studied import TINY, outcomes, result


def down_share(job: TrainingJob, seed: int, weeks: int) -> list[float]:
    """Share of time with k = 0, 1, 2, ... NICs down, by drawing failures."""
    rng = np.random.default_rng(seed)
    span = weeks * WEEK_S
    begin = rng.uniform(-20 * job.repair_s, span, rng.poisson((span + 20 * job.repair_s) / job.nic_mttf_s))
    end = begin + rng.exponential(job.repair_s, len(begin))
    at = rng.uniform(0, span, 4000)
    down = ((begin[:, None] <= at) & (at < end[:, None])).sum(0)
    return [float((down == k).mean()) for k in range(int(down.max()) + 1)]


def test_training_model_agrees_with_drawn_failures() -> None:
    # Three NICs down at a time on average, so that many numbers of them matter.
    job, overheads = TrainingJob(nic_share=1.0), [0.05 * k for k in range(1, 9)]

    def lost(shares: list[float]) -> float:
        slower = [0.0, *(job.exposed * overheads[min(k, 8) - 1] for k in range(1, len(shares)))]
        return sum(share * x / (1 + x) for share, x in zip(shares, slower, strict=True))

    drawn = lost(down_share(job, 7, 40))
    assert job.lost_by_slowdown(overheads) == pytest.approx(drawn, rel=0.05)
    twice = replace(job, repair_s=2 * job.repair_s)  # the comparison can fail
    assert twice.lost_by_slowdown(overheads) != pytest.approx(drawn, rel=0.05)


def test_training_limits() -> None:
    assert TrainingJob().lost_by_slowdown([0.0] * 8) == 0
    rare = TrainingJob(mttf_s=1e9, nic_share=1.0, repair_s=1e3, exposed=1.0)
    assert rare.lost_by_slowdown([1.0]) == pytest.approx((1 - exp(-1e-6)) / 2)
    assert TrainingJob(nic_share=1.0).lost_by_restarts() == pytest.approx(68 / (68 + 162))
    often = TrainingJob(
        nic_share=1.0, failover_s=162 * 60
    )  # a failover after every failure, as long as there is between them
    assert often.lost_by_going_on([0.0] * 8) == pytest.approx(1 / 2)
    slower = often.lost_by_slowdown([0.5] * 8)
    assert often.lost_by_going_on([0.5] * 8) == pytest.approx(1 / 2 + slower / 2) != 1 / 2
    assert replace(often, failover_s=0).lost_by_going_on([0.5] * 8) == pytest.approx(slower)
    assert TrainingJob(step_s=6.0).per_step_s(0.25) == pytest.approx(2)  # 8 s a step are 6 s and a quarter lost


def test_failures_go_with_gpus_and_the_share_of_nics() -> None:
    whole = TrainingJob()
    assert whole.nic_mttf_s == pytest.approx(2.7 * 3600 * 419 / 42)
    assert replace(whole, gpus=1024).failures == pytest.approx(whole.failures / 16)
    assert replace(whole, gpus=1024).down == pytest.approx(8 / (16 * 2.7 * 419 / 42))
    # The Monte Carlo of sweeps says the same of the same job.
    cluster = Cluster.uniform(servers=128, nics=8, rate=10**9)
    model = MonteCarlo(1, Fraction(9720), Fraction(8 * 3600), Fraction(42, 419), 16384)
    assert float(model.expected(cluster)) == pytest.approx(replace(whole, gpus=1024).down, rel=1e-3)


def test_training_rows_are_of_the_whole_week() -> None:
    job = TrainingJob(mttf_gpus=32, nic_share=1.0)
    rows = [line.split(" | ") for line in page.training_table(TINY, outcomes(), job)[2:-1]]
    assert len(rows) == 4
    restart = [row for row in rows if "restart" in row[4]]
    assert restart[0][5] == f"{100 * 68 / (68 + 162):.4f} %"
    assert restart[0][7] == f"{6000 * 68 / 162:.3f} ms"
    ours, bound = (row for row in rows if "optcc" in row[4] or "bound" in row[4])
    assert ours[8].startswith(f"{6000 * 0.2 * 0.209:.3f} ms")  # 20 % of 6 s, at 20.9 %
    assert bound[8].startswith(f"{6000 * 0.2 * 0.2:.3f} ms")

    def lost(failover_s: float) -> list[float]:
        lines = page.training_table(TINY, outcomes(), replace(job, failover_s=failover_s))[2:-1]
        return [float(line.split(" | ")[5].rstrip(" %")) for line in lines]

    more = [b - a for a, b in zip(lost(0), lost(60), strict=True)]
    assert [gain > 0.1 for gain in more] == [False, True, True, False]  # going on costs it; restarts and bounds do not
    assert more[0] == more[3] == 0


def test_the_slowest_of_several_allreduces_sets_the_pace() -> None:
    results = outcomes()
    two = TINY.chain(4, OPTCC)[1]
    results[two] = result(1.0)  # two dead NICs cost nothing, one of them 20.9 %
    job = TrainingJob(mttf_gpus=32, nic_share=1.0)
    grids = [replace(TINY, fleets=(Fleet(gpus, 4),)) for gpus in (32, 33)]
    tables_of = [page.training_table(grid, results, job) for grid in grids]
    alone, group = (next(row for row in rows if "with optcc" in row).split(" | ") for rows in tables_of)
    assert float(group[5].rstrip(" %")) > 1.5 * float(alone[5].rstrip(" %"))
