"""Ranks that are processes, with buffers in the memory of twins of GPUs.

`test_cuda_run` has the same on a GPU.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

import optcc
from optcc.fault_run.results import FaultRun
from optcc.plans.plan import Plan
from optcc.runtime import RankFailedError, run_schedules
from optcc.runtime.control.job import Job
from optcc.runtime.control.launch import Session
from optcc.runtime.messages import Strike
from optcc.values.cluster import Cluster
from tests.cuda_twin import find_twins
from tests.one_fault import check_survived, survived

NIC = "server1/nic0"


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the ranks' processes find twins for GPUs."""
    find_twins(monkeypatch)


def made(nbytes: int = 1 << 20, servers: int = 3) -> Plan:
    return optcc.plan(Cluster.uniform(servers=servers, nics=2, rate=25_000_000), nbytes, segments=2)


@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("float16", "avg"),
        *(pytest.param(*one, marks=pytest.mark.long) for one in (("uint8", "max"), ("int64", "prod"))),
    ],
)
def test_results_are_exact(dtype: str, op: str) -> None:
    plan = made()
    schedules = {name: plan.baseline(name).schedule() for name in ("optcc", "ring")}
    results = run_schedules(schedules, dtype=dtype, op=op, repeat=2, device="cuda")
    assert {name: result.exact for name, result in results.items()} == dict.fromkeys(schedules, (True,) * 3)
    assert all(result.median_s >= float(plan.bound.seconds) * 0.999 for result in results.values())


def with_faults(*strikes: Strike) -> FaultRun:
    return survived(made(), strikes, repeat=1, local_rate=Fraction(10**12), device="cuda")


@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize(
    "kind", ["cut", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("hole", "receiver", "retries"))]
)
def test_a_lost_nic_is_survived_and_planned_around(kind: str) -> None:
    told = with_faults(Strike(kind, NIC, 0.4))
    check_survived(told, kind, NIC)


@pytest.mark.usefixtures("twins")
def test_a_killed_process_ends_all() -> None:
    with pytest.raises(RankFailedError, match="killed by signal 9"):
        with_faults(Strike("kill", NIC, 0.4))


# --- bugs that are to be found --------------------------------------------------------------------------------------


def run_twice() -> bool:
    """A job, and another with a buffer of its own: whether both were exact."""
    jobs = [
        Job({"it": made(nbytes, 2).schedule()}, "float32", "sum", False, device="cuda") for nbytes in (1 << 16, 1 << 17)
    ]
    with Session(jobs[0]) as session:
        exact = session.run("it").exact
        session.adopt(jobs[1])
        return all(exact + session.run("it").exact)


@pytest.mark.parametrize("bug", ["", "littered", "slow"])
def test_without_a_bug_both_jobs_are_exact(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find_twins(monkeypatch, bug)
    assert run_twice()


def test_input_that_does_not_reach_the_gpu_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    find_twins(monkeypatch, "unloaded")
    assert not run_twice()


@pytest.mark.parametrize(
    ("bug", "verdict", "said"),
    [
        ("unlent", "memory of a GPU that was not lent", ""),
        ("freed", "killed by signal 6", "freed while a kernel runs"),
        ("collected", "killed by signal 6", "freed while a kernel runs"),
        ("unsaid", "killed by signal 6", "freed that another process has mapped"),
    ],
)
def test_a_bug_is_found(
    bug: str, verdict: str, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    find_twins(monkeypatch, bug)
    with pytest.raises(RankFailedError, match=verdict):
        run_twice()
    assert said in capfd.readouterr().err
