"""Whole runs: a process per rank, started, timed and checked; what a rank needs, and what cannot be run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import optcc
from optcc.errors import InputError
from optcc.runtime import RunResult, run_schedules
from optcc.runtime.control.job import Job, check_memory
from optcc.runtime.wires.layout import layout_of
from optcc.values.cluster import Cluster
from tests.broken_schedules import nested, with_rows
from tests.left_behind import descriptors, gone

ROOT = Path(__file__).resolve().parent.parent


def test_two_algorithms_in_turns() -> None:
    cluster = Cluster.uniform(servers=4, nics=4, rate=5_000_000).degrade("server1/nic0").degrade("server1/nic1")
    plan = optcc.plan(cluster, 1 << 20)
    schedules = {name: plan.baseline(name).schedule() for name in ("optcc", "ring")}
    before = descriptors()
    turns: list[tuple[str, int, float]] = []
    pids: list[int] = []

    def progress(algorithm: str, repetition: int, seconds: float) -> None:
        turns.append((algorithm, repetition, seconds))

    results = run_schedules(schedules, repeat=2, progress=progress, on_start=pids.extend)

    assert [turn[:2] for turn in turns] == [("optcc", 0), ("ring", 0), ("optcc", 1), ("ring", 1)]
    for name, result in results.items():
        assert isinstance(result, RunResult)
        assert result.exact == (True,) * 4
        assert result.seconds == tuple(turn[2] for turn in turns if turn[0] == name)
        assert min(result.seconds) >= 0.999 * float(plan.bound.seconds), "faster than the rates allow"
        assert min(result.seconds) < 2 * optcc.simulate(schedules[name]).time_s
        assert min(result.seconds) <= result.median_s <= max(result.seconds)
        assert len(result.cpu_s) == 2
        assert min(result.cpu_s) > 0
        assert sum(result.sent.values()) == 2 * 3 * plan.bound.nbytes
    assert set(results["ring"].sent) == {port.name for port in schedules["ring"].ports}
    assert len(pids) == 4
    assert gone(tuple(pids))
    assert descriptors() == before, "sockets or files left open"


@pytest.mark.parametrize(
    ("dtype", "op"), [("float16", "prod"), ("uint8", "max"), ("bfloat16", "sum"), ("int32", "avg"), ("float32", "avg")]
)
def test_as_fast_as_the_machine_goes(dtype: str, op: str) -> None:
    schedule = nested(ranks=3, nbytes=1 << 20, rate=1000)  # hours, if the rates were kept
    (result,) = run_schedules({"optcc": schedule}, dtype=dtype, op=op, repeat=1, paced=False).values()
    assert result.exact == (True,) * 3
    assert result.median_s < 30


@pytest.mark.parametrize("ranks", [1, 2])
def test_few_ranks_and_one_element(ranks: int) -> None:
    (result,) = run_schedules({"optcc": nested(ranks=ranks, nbytes=4, weak=0)}, repeat=1).values()
    assert result.exact == (True,) * ranks
    assert sum(result.sent.values()) == 2 * (ranks - 1) * 4


def test_wrong_schedules_are_not_exact() -> None:
    good = nested(ranks=3)
    rows = list(range(len(good)))
    reduce = int(np.flatnonzero(good.reduce)[5])
    results = run_schedules(
        {
            "good": good,
            "dropped": with_rows(good, rows[:-1]),
            "doubled": with_rows(good, [*rows[: reduce + 1], *rows[reduce:]]),
        },
        repeat=1,
        paced=False,
    )
    assert {name: all(result.exact) for name, result in results.items()} == {
        "good": True,
        "dropped": False,
        "doubled": False,
    }
    assert not results["dropped"].exact[good.dst[-1]]


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from optcc.runtime import run_schedules\n"
        "from tests.broken_schedules import nested\n"
        "print(run_schedules({'it': nested(ranks=2, weak=0)}, repeat=1)['it'].exact)\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.stdout, done.stderr) == ("(True, True)\n", "")


def test_a_rank_imports_only_numpy() -> None:
    script = (
        "import sys, optcc.runtime.control.runner\n"
        "print({m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names - {'__main__', '__mp_main__'})"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    ).stdout
    assert set(re.findall(r"'(\w+)'", found)) == {"numpy", "optcc"}


def test_what_cannot_be_run_is_refused() -> None:
    schedule = nested()
    with pytest.raises(InputError, match="nothing to run"):
        run_schedules({})
    with pytest.raises(InputError, match="schedules of different shapes"):
        run_schedules({"a": schedule, "b": nested(ranks=3)})
    with pytest.raises(InputError, match="nothing to time"):
        run_schedules({"a": schedule}, repeat=0)
    with pytest.raises(InputError, match="too short to tell"):
        run_schedules({"a": schedule}, stall_s=0.1)
    with pytest.raises(InputError, match="unknown dtype"):
        run_schedules({"a": schedule}, dtype="complex64")
    with pytest.raises(InputError, match="unknown operation"):
        run_schedules({"a": schedule}, op="mean")
    with pytest.raises(InputError, match="not a whole number of elements"):
        run_schedules({"a": nested(nbytes=4098)})
    with pytest.raises(InputError, match="ranks do not fit into this machine's memory"):
        run_schedules({"a": schedule.replace(nbytes=1 << 50)})


def test_what_fits_into_memory_is_not_refused() -> None:
    job = Job({"a": nested()}, "float32", "sum", True)
    check_memory(job, layout_of(job.schedules), range(job.ranks))
