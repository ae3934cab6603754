"""Sweeps that are interrupted go on where they were: nothing is lost and nothing done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from optcc import Cluster, InputError
from optcc.study import cells as cells_module
from optcc.study import runner
from optcc.study.cells import SweepJob, fingerprint
from optcc.study.cells import SweepResult as Done
from optcc.study.journal import Journal, journal_path
from tests.dying_worker import die
from tests.sweeping import GRID, ROOT, SMALL, call, counting, grid_in, rows_of, swept, table_alone


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return grid_in(tmp_path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return table_alone(tmp_path_factory.mktemp("alone"))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[SweepJob]:
    return counting(monkeypatch)


def _interrupt_after(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = runner.compute
    left = [groups]

    def compute(cluster: Cluster, jobs: tuple[SweepJob, ...]) -> list[Done]:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return list(real(cluster, jobs))

    monkeypatch.setattr(runner, "compute", compute)


def test_an_interrupted_sweep_goes_on_where_it_was(
    grid: Path, tmp_path: Path, alone: bytes, counted: list[SweepJob]
) -> None:
    out = tmp_path / "t.csv"
    with pytest.MonkeyPatch.context() as patch:
        _interrupt_after(5, patch)
        stopped = call(grid, "-o", out, "--jobs", 1)
    assert stopped.exit_code == 130
    assert "Give the same command again" in stopped.stderr
    assert not out.exists()
    first = list(counted)
    assert first
    again = swept(grid, "-o", out, "--jobs", 1)
    assert "going on: " in again.stderr
    assert out.read_bytes() == alone
    assert len(set(counted)) == len(counted)  # nothing twice
    assert not journal_path(out).exists()

    total = len(counted)
    counted.clear()
    swept(grid, "-o", out, "--jobs", 1, "--force")  # nothing to go on from: all of it
    assert len(counted) == total > len(first)


@pytest.mark.long
def test_ctrl_c_with_two_processes(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    sizes = ",".join(f"{n}KiB" for n in range(1024, 6000))  # minutes of it
    command = [sys.executable, "-m", "optcc", "sweep", SMALL, "--size", sizes, "--fail-count", "0,1"]
    with subprocess.Popen(
        [*command, "--jobs", "2", "-o", str(out)], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            deadline = time.monotonic() + 150
            log = out.with_name(f"{out.name}.journal-wal")  # where SQLite puts rows first
            while not log.exists() or log.stat().st_size < 16384:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to parent and workers alike
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "Give the same command again" in errors
    assert "Traceback" not in errors
    with Journal(out, "sweep", Done) as journal:
        assert journal.results
    deadline = time.monotonic() + 10
    while _group_lives(process.pid):
        assert time.monotonic() < deadline, "a worker outlives the sweep"
        time.sleep(0.05)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_journal_of_a_changed_grid_is_used_for_what_fits(grid: Path, tmp_path: Path, counted: list[SweepJob]) -> None:
    out = tmp_path / "t.csv"
    with pytest.MonkeyPatch.context() as patch:
        _interrupt_after(5, patch)
        call(grid, "-o", out, "--jobs", 1)
    grid.write_text(GRID.replace("96KiB", "2MiB"), encoding="utf-8")
    swept(grid, "-o", out, "--jobs", 1)
    assert len(set(counted)) == len(counted)
    assert {row["size"] for row in rows_of(out)} == {str(2**20), str(2**21)}


def test_another_version_does_everything_again(
    grid: Path, tmp_path: Path, counted: list[SweepJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "t.csv"
    with pytest.MonkeyPatch.context() as patch:
        _interrupt_after(5, patch)
        call(grid, "-o", out, "--jobs", 1)
    first = list(counted)
    monkeypatch.setattr(cells_module, "__version__", "next")
    swept(grid, "-o", out, "--jobs", 1)
    assert set(first) < set(counted[len(first) :])


def test_all_of_a_job_is_in_its_key() -> None:
    micro = Fraction(1, 10**6)
    job = SweepJob("a" * 32, ("server1/nic0=0",), 2**20, 5 * micro, micro, 4, "ring")
    others = (replace(job, receivers="packets"), replace(job, best=True), replace(job, segments=5), replace(job))
    assert [other.key == job.key for other in others] == [False, False, False, True]


@pytest.mark.parametrize("content", ["my notes\n", "my notes", "{}\n" * 999])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path, content: str) -> None:
    journal_path(tmp_path / "t.csv").write_text(content, encoding="utf-8")
    refused = call(SMALL, "-o", tmp_path / "t.csv", "--jobs", 1)
    assert refused.exit_code == 2
    assert "not a journal" in refused.stderr
    assert journal_path(tmp_path / "t.csv").read_text(encoding="utf-8") == content


def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path / "t.csv", "sweep", Done), pytest.raises(InputError, match="another sweep"):
        Journal(tmp_path / "t.csv", "sweep", Done)
    with Journal(tmp_path / "t.csv", "sweep", Done):
        pass
    assert not journal_path(tmp_path / "t.csv").exists()


def test_a_worker_that_dies_ends_the_sweep(grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "compute", die)
    stopped = call(grid, "-o", tmp_path / "t.csv", "--jobs", 2)
    assert stopped.exit_code == 1
    assert "a worker died" in stopped.stderr
    assert not (tmp_path / "t.csv").exists()


def test_a_fingerprint_tells_apart_what_a_repr_does_not() -> None:
    whole = Cluster.uniform(servers=2, nics=2, rate=1000)
    hurt = [whole.degrade("server1/nic0"), whole.degrade("server1/nic1")]
    assert repr(hurt[0]) == repr(hurt[1])
    built_for_less = replace(hurt[0], pristine=None)
    found = {fingerprint(cluster) for cluster in (whole, *hurt, built_for_less, replace(whole, gpu_ranks=True))}
    assert len(found) == 5


def test_what_takes_longer_than_the_limit_is_an_error(grid: Path, tmp_path: Path) -> None:
    """No process starts within a millisecond."""
    told = swept(grid, "-o", tmp_path / "t.csv", "--jobs", 2, "--limit", "1ms").stdout
    impossible = "2 NICs cannot fail: one-server has 1"
    assert {row["error"] for row in rows_of(tmp_path / "t.csv")} == {"took longer than 0.001 s", impossible}
    assert "x took longer than 0.001 s" in told
    refused = call(grid, "-o", tmp_path / "u.csv", "--limit", "0s")
    assert (refused.exit_code, "--limit" in refused.stderr) == (2, True)
