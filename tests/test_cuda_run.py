"""Schedules between processes that share a GPU, with their buffers in its memory and NIC rates emulated."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import optcc
from optcc.fault_run.results import FaultRun
from optcc.plans.plan import Plan
from optcc.runtime import RankFailedError, run_schedules
from optcc.runtime.messages import Strike
from optcc.values.cluster import Cluster
from tests.broken_schedules import with_rows
from tests.one_fault import check_survived, survived

pytestmark = pytest.mark.gpu

NIC = "server1/nic1"


def made(nbytes: int, weak: bool = True) -> Plan:
    cluster = Cluster.uniform(servers=4, nics=3, rate=100_000_000)
    return optcc.plan(cluster.degrade("server2/nic0", Fraction(1, 2)) if weak else cluster, nbytes, segments=8)


@pytest.mark.parametrize(
    ("dtype", "op"),
    [("float32", "sum"), ("bfloat16", "sum"), ("float16", "avg"), ("int8", "prod"), ("uint64", "min")],
)
def test_four_processes_on_a_gpu_are_exact(dtype: str, op: str) -> None:
    plan = made(4 << 20)
    schedules = {name: plan.baseline(name).schedule() for name in ("optcc", "ring")}
    results = run_schedules(schedules, dtype=dtype, op=op, repeat=2, device="cuda")
    assert {name: result.exact for name, result in results.items()} == dict.fromkeys(schedules, (True,) * 4)
    assert all(result.median_s >= float(plan.bound.seconds) * 0.999 for result in results.values())


def test_as_fast_as_the_machine_goes() -> None:
    results = run_schedules({"optcc": made(64 << 20).schedule()}, repeat=2, device="cuda", paced=False)
    assert results["optcc"].exact == (True,) * 4


def test_a_missing_transfer_shows() -> None:
    schedule = made(1 << 20).schedule()
    last = int(np.flatnonzero(~schedule.reduce)[-1])
    results = run_schedules(
        {"it": with_rows(schedule, [i for i in range(len(schedule)) if i != last])}, repeat=1, device="cuda"
    )
    assert not all(results["it"].exact)


def ran_with_faults(*strikes: Strike) -> FaultRun:
    plan = made(16 << 20, weak=False)
    return survived(plan, strikes, repeat=1, local_rate=Fraction(10**12), device="cuda")


@pytest.mark.parametrize("kind", ["cut", "hole", "receiver", "retries"])
def test_a_lost_nic_is_survived_and_planned_around(kind: str) -> None:
    told = ran_with_faults(Strike(kind, NIC, 0.4))
    check_survived(told, kind, NIC)


def test_a_killed_process_ends_all() -> None:
    with pytest.raises(RankFailedError, match="killed by signal 9"):
        ran_with_faults(Strike("kill", NIC, 0.4))


def test_without_mps_ranks_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))  # where nobody serves
    results = run_schedules({"optcc": made(4 << 20).schedule()}, repeat=1, device="cuda")
    assert results["optcc"].exact == (True,) * 4


def test_on_the_command_line() -> None:
    from click.testing import CliRunner

    from optcc.cli import main

    common = ["run", "uniform:servers=4,nics=2,rate=400Mb/s", "--size", "4MiB", "--repeat", "1", "--device", "cuda"]
    for faults in ([], ["--cut", f"{NIC}@0.4"]):
        done = CliRunner().invoke(main, [*common, *faults, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["exact"]


def test_more_than_the_gpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    from optcc.runtime.devices.cuda import Gpu

    gpu = Gpu(0)
    free, _ = cupy.cuda.runtime.memGetInfo()
    held = gpu.empty(free - (4 << 30), np.dtype(np.uint8))  # what is left lets the ranks start, and no more
    schedule = made(1 << 30).schedule()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # of the ranks: this process has opened its GPU
    with pytest.raises(RankFailedError, match="no memory on GPU 0"):
        run_schedules({"it": schedule}, repeat=1, device="cuda", paced=False)
    assert held.nbytes
