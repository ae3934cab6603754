"""Sweeps: the same table whoever computes it, nothing done twice after an interrupt, draws that follow their model."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import optcc
from optcc import Cluster, InputError, SimulationError
from optcc.cli import main
from optcc.sweep import cells as cells_module
from optcc.sweep import execute, table
from optcc.sweep.cells import COLUMNS, Job
from optcc.sweep.cells import Result as Done
from optcc.sweep.failures import Counted
from optcc.sweep.grid_file import read_grid
from optcc.sweep.journal import Journal, journal_path
from tests.dying_worker import die

ROOT = Path(__file__).resolve().parent.parent
SMALL = "uniform:servers=4,nics=2,rate=400Gb/s"
GRID = f"""\
optcc-sweep: 1
topologies:
  - {SMALL}
  - uniform:servers=3,nics=1,rate=100Gb/s
failures:
  - {{count: 0..2, left: [0, 1/2]}}
  - {{count: 2, place: random, draws: 2}}
  - {{nics: server1/nic0=0.37}}
sizes: [1MiB, 96KiB]
alpha: 5us
segments: 4
seed: 7
"""


def call(*args: object) -> Result:
    return CliRunner().invoke(main, ["sweep", *map(str, args)])


def swept(*args: object) -> Result:
    result = call(*args)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.yaml"
    path.write_text(GRID, encoding="utf-8")
    return path


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that were computed, in this process."""
    done: list[Job] = []
    real = execute.compute

    def compute(cluster: Cluster, jobs: tuple[Job, ...]) -> list[Done]:
        results = real(cluster, jobs)
        done.extend(jobs)
        return results

    monkeypatch.setattr(execute, "compute", compute)
    return done


# --- The same table whoever computes it ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dask_address() -> Iterator[str]:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The table of GRID as one process makes it."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "grid.yaml").write_text(GRID, encoding="utf-8")
    swept(folder / "grid.yaml", "-o", folder / "t.csv", "--jobs", 1)
    return (folder / "t.csv").read_bytes()


def test_two_processes_make_the_same_table(grid: Path, tmp_path: Path, alone: bytes) -> None:
    swept(grid, "-o", tmp_path / "t.csv", "--jobs", 2)
    assert (tmp_path / "t.csv").read_bytes() == alone


def test_a_dask_cluster_of_two_processes_makes_the_same_table(
    grid: Path, tmp_path: Path, alone: bytes, dask_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(grid, "-o", tmp_path / "t.csv", "--dask", dask_address)
    assert (tmp_path / "t.csv").read_bytes() == alone
    monkeypatch.setattr(execute, "__version__", "another")
    refused = call(grid, "-o", tmp_path / "u.csv", "--dask", dask_address)
    assert refused.exit_code == 2
    assert "another optcc on the Dask workers" in refused.stderr


def test_another_seed_makes_another_table(grid: Path, tmp_path: Path, alone: bytes) -> None:
    grid.write_text(GRID.replace("seed: 7", "seed: 8"), encoding="utf-8")
    swept(grid, "-o", tmp_path / "t.csv", "--jobs", 1)
    assert (tmp_path / "t.csv").read_bytes() != alone


def test_options_make_the_same_grid(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(
        f"optcc-sweep: 1\ntopologies: ['{SMALL}']\nfailures:\n  - {{nics: [server0/nic1=1/2, server1/nic0]}}\n"
        "  - {count: [0, 1..2], left: 1/2, place: spread}\nsizes: [1MiB, 3MiB]\nalgorithms: ring\nalpha: [0us, 5us]\n",
        encoding="utf-8",
    )
    swept(tmp_path / "grid.yaml", "-o", tmp_path / "a.csv", "--jobs", 1)
    options = ("--fail", "server0/nic1=1/2", "--fail", "server1/nic0", "--fail-count", "0,1..2", "--left", "1/2")
    options += ("--place", "spread", "--size", "1MiB, 3MiB", "--algorithm", "ring", "--alpha", "0us,5us")
    swept(SMALL, "-o", tmp_path / "b.csv", "--jobs", 1, *options)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert len(rows_of(tmp_path / "a.csv")) == 4 * 2 * 2


# --- What rows say --------------------------------------------------------------------------------------------------


def test_a_row_holds_what_the_verbs_give(tmp_path: Path) -> None:
    swept(SMALL, "-o", tmp_path / "t.csv", "--jobs", 1, "--fail", "server1/nic0", "--size", "4MiB", "--alpha", "5us")
    ours, ring = rows_of(tmp_path / "t.csv")
    healthy = optcc.load_topology(SMALL).cluster
    alpha = Fraction(5, 10**6)
    plan = optcc.plan(healthy.degrade("server1/nic0"), 4 * 2**20, alpha=alpha)
    reference = optcc.plan(healthy, 4 * 2**20, alpha=alpha).baseline("ring")
    reference_s = optcc.simulate(reference.schedule(), alpha=alpha).time_s
    for row, chosen in ((ours, plan), (ring, plan.baseline("ring"))):
        time_s = optcc.simulate(chosen.schedule(), alpha=alpha).time_s
        assert float(row["simulated_s"]) == time_s
        assert float(row["reference_s"]) == reference_s
        assert float(row["overhead"]) == pytest.approx(time_s / reference_s - 1)
        assert float(row["ratio"]) == pytest.approx(time_s / float(plan.bound.seconds))
        assert float(row["bound_s"]) == float(plan.bound.seconds)
        assert float(row["unavoidable_overhead"]) == float(plan.bound.overhead)
        assert (row["family"], row["segments"]) == (chosen.recipe.family, str(chosen.recipe.segments))
        assert (row["failures"], row["failed"], row["error"]) == ("server1/nic0=0", "1", "")
    assert (ours["algorithm"], ring["algorithm"]) == ("optcc", "ring")
    assert list(ours) == list(COLUMNS)


def test_what_cannot_be_done_is_a_row_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grid.yaml").write_text(
        f"optcc-sweep: 1\ntopologies: ['{SMALL}', 'uniform:servers=3,nics=1,rate=100Gb/s']\n"
        "failures: [{nics: server1/nic1}, {count: 1..3}]\nsizes: 1MiB\nalgorithms: optcc\n",
        encoding="utf-8",
    )
    swept(tmp_path / "grid.yaml", "-o", tmp_path / "t.csv", "--jobs", 1)
    errors = [(row["servers"], row["failed"], row["error"]) for row in rows_of(tmp_path / "t.csv")]
    parts = ["", "", "at least one live NIC", "3 NICs cannot fail: one-server has 2"]
    parts += ["no such NIC in server1", "at least one live NIC", "2 NICs cannot fail: one-server has 1", "3 NICs"]
    assert len(errors) == len(parts)
    for (*_, error), part in zip(errors, parts, strict=True):
        assert part in error
        assert bool(part) == bool(error)

    def fail(*_: object, **__: object) -> None:
        raise SimulationError("no time")

    monkeypatch.setattr(execute, "simulate", fail)
    result = swept(SMALL, "-o", tmp_path / "u.csv", "--jobs", 1, "--size", "1MiB", "--algorithm", "optcc", "--json")
    (row,) = rows_of(tmp_path / "u.csv")
    assert (row["error"], row["simulated_s"], row["overhead"], bool(row["bound_s"])) == ("no time", "", "", True)
    assert json.loads(result.stdout)["errors"] == 1


def test_bounds_alone(tmp_path: Path) -> None:
    options = ("--quantity", "bound", "--ranks", "gpu", "--fail-count", "0..1", "--jobs", 1)
    swept(f"{SMALL},nvlink=450GB/s", "-o", tmp_path / "t.csv", *options)
    rows = rows_of(tmp_path / "t.csv")
    assert [(row["quantity"], row["algorithm"], row["simulated_s"], row["ranks"]) for row in rows] == [
        ("bound", "", "", "8")
    ] * 2
    assert float(rows[0]["unavoidable_overhead"]) == 0 < float(rows[1]["unavoidable_overhead"])


def test_counted_failures_are_where_they_are_said_to_be() -> None:
    cluster = Cluster.uniform(servers=3, nics=2, rate=10**9).degrade("server1/nic0")
    (one,) = Counted((2,), place="one-server").sets(cluster, 0)
    (spread,) = Counted((4,), place="spread").sets(cluster, 0)
    assert [nic for nic, _ in one.nics] == ["server0/nic0", "server0/nic1"]
    assert [nic for nic, _ in spread.nics] == ["server0/nic0", "server2/nic0", "server0/nic1", "server1/nic1"]
    drawn = [s.nics for s in Counted((3,), place="random", draws=20).sets(cluster, 5)]
    assert drawn[:4] == [s.nics for s in Counted((3,), place="random", draws=4).sets(cluster, 5)]
    assert len(set(drawn)) > 5
    assert all(len({nic for nic, _ in nics}) == 3 and ("server1/nic0", 0) not in nics for nics in drawn)


# --- Interrupted and gone on with ----------------------------------------------------------------------------------


def _interrupt_after(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = execute.compute
    left = [groups]

    def compute(cluster: Cluster, jobs: tuple[Job, ...]) -> list[Done]:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return list(real(cluster, jobs))

    monkeypatch.setattr(execute, "compute", compute)


def test_an_interrupted_sweep_goes_on_where_it_was(
    grid: Path, tmp_path: Path, alone: bytes, counted: list[Job]
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


def test_ctrl_c_with_two_processes(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    sizes = ",".join(f"{n}KiB" for n in range(1024, 6000))  # minutes of it
    command = [sys.executable, "-m", "optcc", "sweep", SMALL, "--size", sizes, "--fail-count", "0,1"]
    with subprocess.Popen(
        [*command, "--jobs", "2", "-o", str(out)], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            deadline = time.monotonic() + 150
            while not journal_path(out).exists() or journal_path(out).read_bytes().count(b"\n") < 3:
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
    with Journal(out) as journal:
        assert journal.results
        assert not journal.damaged
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


def test_a_torn_journal(grid: Path, tmp_path: Path, alone: bytes, counted: list[Job]) -> None:
    out = tmp_path / "t.csv"
    with pytest.MonkeyPatch.context() as patch:
        _interrupt_after(5, patch)
        call(grid, "-o", out, "--jobs", 1)
    kept = journal_path(out).read_bytes()
    journal_path(out).write_bytes(kept[:-9])
    before = len(counted)
    again = swept(grid, "-o", out, "--jobs", 1)
    assert "1 damaged lines" in again.stderr
    assert out.read_bytes() == alone
    twice = [job for job in counted[before:] if job in counted[:before]]
    assert twice == [counted[before - 1]]


def test_a_journal_of_a_changed_grid_is_used_for_what_fits(grid: Path, tmp_path: Path, counted: list[Job]) -> None:
    out = tmp_path / "t.csv"
    with pytest.MonkeyPatch.context() as patch:
        _interrupt_after(5, patch)
        call(grid, "-o", out, "--jobs", 1)
    grid.write_text(GRID.replace("96KiB", "2MiB"), encoding="utf-8")
    swept(grid, "-o", out, "--jobs", 1)
    assert len(set(counted)) == len(counted)
    assert {row["size"] for row in rows_of(out)} == {str(2**20), str(2**21)}


def test_another_version_does_everything_again(
    grid: Path, tmp_path: Path, counted: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "t.csv"
    with pytest.MonkeyPatch.context() as patch:
        _interrupt_after(5, patch)
        call(grid, "-o", out, "--jobs", 1)
    first = list(counted)
    monkeypatch.setattr(cells_module, "__version__", "next")
    swept(grid, "-o", out, "--jobs", 1)
    assert set(first) < set(counted[len(first) :])


@pytest.mark.parametrize("content", ["my notes\n", "my notes", '{"optcc-sweep-journal": 99}\n'])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path, content: str) -> None:
    journal_path(tmp_path / "t.csv").write_text(content, encoding="utf-8")
    refused = call(SMALL, "-o", tmp_path / "t.csv", "--jobs", 1)
    assert refused.exit_code == 2
    assert "not a journal" in refused.stderr
    assert journal_path(tmp_path / "t.csv").read_text(encoding="utf-8") == content


def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path / "t.csv"), pytest.raises(InputError, match="another sweep"):
        Journal(tmp_path / "t.csv")
    with Journal(tmp_path / "t.csv"):
        pass
    assert not journal_path(tmp_path / "t.csv").exists()


def test_a_worker_that_dies_ends_the_sweep(grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "compute", die)
    stopped = call(grid, "-o", tmp_path / "t.csv", "--jobs", 2)
    assert stopped.exit_code == 1
    assert "a worker died" in stopped.stderr
    assert not (tmp_path / "t.csv").exists()


# --- Files ----------------------------------------------------------------------------------------------------------


def test_parquet_holds_what_csv_does(grid: Path, tmp_path: Path, alone: bytes) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    swept(grid, "-o", tmp_path / "t.parquet", "--jobs", 1)
    read = parquet.read_table(tmp_path / "t.parquet")
    assert {name: str(read.schema.field(name).type) for name in ("size", "bound_s", "topology")} == {
        "size": "int64",
        "bound_s": "double",
        "topology": "string",
    }
    (tmp_path / "alone.csv").write_bytes(alone)
    told = [
        {name: COLUMNS[name](text) if text or name == "failures" else None for name, text in row.items()}
        for row in rows_of(tmp_path / "alone.csv")
    ]
    assert read.to_pylist() == told


def test_parquet_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table.importlib.util, "find_spec", lambda name: None)
    refused = call(SMALL, "-o", tmp_path / "t.parquet")
    assert refused.exit_code == 2
    assert "optcc-toolkit[parquet]" in refused.stderr
    table.check_output(tmp_path / "t.csv")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"t.{ending}"
    out.write_text("before", encoding="utf-8")

    def rows() -> Iterator[dict[str, Any]]:
        yield dict.fromkeys(COLUMNS)
        raise SimulationError("stop")

    with pytest.raises(SimulationError):
        table.write_table(out, rows())
    assert out.read_text(encoding="utf-8") == "before"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_an_output_that_exists_stays(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    out.write_text("mine", encoding="utf-8")
    refused = call(SMALL, "-o", out, "--size", "1MiB", "--jobs", 1)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert out.read_text(encoding="utf-8") == "mine"
    swept(SMALL, "-o", out, "--size", "1MiB", "--jobs", 1, "--force")
    assert len(rows_of(out)) == 2


# --- Bad input ------------------------------------------------------------------------------------------------------

HEAD = f"optcc-sweep: 1\ntopologies: ['{SMALL}']\nsizes: 1MiB\n"


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("topologies: [x]\nsizes: 1MiB\n", ["not a grid", "optcc-sweep: 1"]),
        ("optcc-sweep: 1\ntopologies: ['" + SMALL + "']\n", [":1: $", "a field is missing", "sizes:"]),
        (HEAD + "sise: 1\n", [":1: $", "unknown field", "'sise'", "per_chunk"]),
        (HEAD.replace("1MiB", "[1MiB, 1XB]"), [":3: $.sizes[1]", "not a size", "'1XB'"]),
        (HEAD.replace("1MiB", "{a: 1}"), [":3: $.sizes", "a text | a list"]),
        (HEAD.replace("1MiB", "0"), [":3: $.sizes", "nothing to reduce"]),
        (HEAD.replace("1MiB", "[]"), [":3: $.sizes", "length >= 1"]),
        (HEAD.replace("rate", "rote"), [":2: $.topologies[0]", "rote"]),
        ("optcc-sweep: 1\ntopologies: [no.xml]\nsizes: 1MiB\n", [":2: $.topologies[0]", "no.xml", "cannot be read"]),
        (HEAD + "alpha: 5\n", [":4: $.alpha", "not a time"]),
        (HEAD + "segments: 0\n", [":4: $.segments", "1 to 65536"]),
        (HEAD + "seed: -1\n", [":4: $.seed", "a whole number"]),
        (HEAD + "quantity: both\n", [":4: $.quantity", "'both'"]),
        (HEAD + "algorithms: [optcc, magic]\n", [":4: $.algorithms", "unknown algorithm", "'magic'"]),
        (HEAD + "algorithms: ring\nquantity: bound\n", [":4: $.algorithms", "a bound has no algorithm"]),
        (HEAD + "failures:\n  - {left: 0}\n", [":5: $.failures[0]", "not one way to fail"]),
        (HEAD + "failures:\n  - {count: 1, nics: a/b}\n", [":5: $.failures[0]", "count and nics"]),
        (HEAD + "failures:\n  - {count: 1, mttf: 1h}\n", [":5: $.failures[0].mttf", "beside count only left"]),
        (HEAD + "failures:\n  - {count: 3..1}\n", [":5: $.failures[0].count", "a whole number, 3 to"]),
        (HEAD + "failures:\n  - {count: 1, left: 2}\n", [":5: $.failures[0].left", "0 to 1", "'2'"]),
        (HEAD + "failures:\n  - {count: 1, place: there}\n", [":5: $.failures[0].place", "'there'"]),
        (HEAD + "failures:\n  - {count: 1, draws: 3}\n", [":5: $.failures[0].draws", "place: random"]),
        (HEAD + "failures:\n  - {count: 1, colour: 3}\n", [":5: $.failures[0]", "unknown field", "nic_share"]),
        (HEAD + "failures:\n  - {nics: server9/nic0}\n", [":5: $.failures[0].nics", "no such NIC in any topology"]),
        (HEAD + "failures:\n  - {nics: [a]}\n", [":5: $.failures[0].nics[0]", "not a NIC"]),
        (HEAD + "failures:\n  - {nics: [server0/nic0, server0/nic0=1/2]}\n", [":5:", "the same NIC twice"]),
        (HEAD + "failures:\n  - {monte_carlo: 9, mttf: 1h}\n", [":5: $.failures[0]", "repair_time:"]),
        (HEAD + "failures:\n  - {monte_carlo: 9, mttf: 0s, repair_time: 1h}\n", [":5: $.failures[0].mttf", "above 0"]),
        (
            HEAD + "failures:\n  - {monte_carlo: 9, mttf: 1h, repair_time: 1h, nic_share: 2}\n",
            [":5: $.failures[0].nic_share", "at most 1"],
        ),
        (HEAD + "failures:\n  - {count: 1, place: random, draws: 600000}\n", ["grid: ", "1000000 rows", "1200000"]),
    ],
)
def test_bad_grids(tmp_path: Path, text: str, fragments: list[str]) -> None:
    (tmp_path / "grid.yaml").write_text(text, encoding="utf-8")
    result = call(tmp_path / "grid.yaml", "-o", tmp_path / "t.csv", "--jobs", 1)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    for fragment in fragments:
        assert fragment in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["grid.yaml"]


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (["--size", "1MiB,1XB"], ["--size", "'1XB'"]),
        (["--servers", "2,x"], ["--servers", "'x'"]),
        (["--left", "0.5"], ["--fail, --fail-count, --monte-carlo", "none of them"]),
        (["--fail-count", "1", "--left", "2"], ["--left", "0 to 1"]),
        (["--monte-carlo", "9", "--mttf", "1h"], ["repair_time"]),
        (["--algorithm", "magic"], ["--algorithm", "unknown algorithm"]),
        (["--fail", "nic0"], ["--fail", "not a NIC"]),
        (["--jobs", "2", "--dask", "tcp://127.0.0.1:1"], ["--jobs, --dask"]),
        (["--dask", "nonsense"], ["--dask", "tcp://host:8786"]),
        (["--histogram", "h.svg"], ["--histogram", "monte_carlo"]),
        (["--histogram", "h.txt"], ["unknown kind of picture"]),
        (["-o", "t.xlsx"], ["t.xlsx", ".csv or .parquet"]),
        (["-o", "nowhere/t.csv"], ["nowhere", "a folder that exists"]),
    ],
)
def test_bad_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], fragments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(SMALL, "-o", "t.csv", *options)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    for fragment in fragments:
        assert fragment in result.stderr
    assert not list(tmp_path.iterdir())


def test_options_beside_a_grid_are_refused(grid: Path, tmp_path: Path) -> None:
    result = call(grid, "-o", tmp_path / "t.csv", "--fail-count", "3")
    assert result.exit_code == 2
    assert "--fail-count: a grid has its own" in result.stderr


def test_files_of_a_grid_are_seen_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "four.yaml").write_text("optcc: 1\nservers:\n  - {count: 4, nics: [{name: n, rate: 1GB/s}]}\n")
    (tmp_path / "grid.yaml").write_text("optcc-sweep: 1\ntopologies: four.yaml\nsizes: 1MiB\n", encoding="utf-8")
    with pytest.raises(InputError, match=r":2: \$\.topologies: .* a list"):
        read_grid(tmp_path / "grid.yaml")
    (tmp_path / "grid.yaml").write_text("optcc-sweep: 1\ntopologies: [four.yaml]\nsizes: 1MiB\n", encoding="utf-8")
    assert len(read_grid(tmp_path / "grid.yaml").topologies[0].cluster.servers) == 4


# --- Monte Carlo ----------------------------------------------------------------------------------------------------


def test_equal_draws_are_computed_once(tmp_path: Path, counted: list[Job]) -> None:
    options = ("--monte-carlo", 60, "--mttf", "1h", "--repair-time", "30min", "--size", "256KiB", "--jobs", 1)
    swept(SMALL, "-o", tmp_path / "t.csv", "--algorithm", "optcc", *options)
    assert len(rows_of(tmp_path / "t.csv")) == 60
    assert len(counted) == len(set(counted)) < 20


def test_monte_carlo_from_end_to_end(tmp_path: Path) -> None:
    options = ("--monte-carlo", 200, "--mttf", "1h", "--repair-time", "1.5h", "--seed", 11, "--size", "256KiB")
    result = swept(SMALL, "-o", tmp_path / "t.csv", *options, "--jobs", 1, "--histogram", tmp_path / "h.svg", "--json")
    ours, ring = json.loads(result.stdout)["monte_carlo"]
    rows = [row for row in rows_of(tmp_path / "t.csv") if row["algorithm"] == "optcc"]
    assert [ours["algorithm"], ring["algorithm"]] == ["optcc", "ring"]
    assert ours["draws"] == len(rows) == 200
    assert ours["expected_failed"] == pytest.approx(8 * 1.5 / 9.5)
    assert ours["mean_failed"] == sum(int(row["failed"]) for row in rows) / 200
    dead = [row for row in rows if not row["unavoidable_overhead"]]
    assert ours["stopped"] == len(dead) > 0
    for name in ("unavoidable_overhead", "overhead"):
        values = sorted(float(row[name]) for row in rows if row[name])
        assert ours[name]["mean"] == pytest.approx(sum(values) / len(values))
        assert ours[name]["p50"] == values[99]
        assert ours[name]["max"] is None
    drawn = (tmp_path / "h.svg").read_text(encoding="utf-8")
    for words in ("unavoidable", "optcc", "ring", "simulated", "seed 11", "200 draws"):
        assert words in drawn
    shown = swept(SMALL, "-o", tmp_path / "u.csv", *options, "--jobs", 1).stdout
    for words in ("seed 11", "draws cut a server off", "infinite", "dead NICs"):
        assert words in shown


# --- Documentation --------------------------------------------------------------------------------------------------


def test_the_documented_grid_can_be_read(tmp_path: Path) -> None:
    document = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    example = document.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "grid.yaml").write_text(example, encoding="utf-8")
    name = "h100-8x400g.nccl-topo.xml"
    (tmp_path / name).write_bytes((ROOT / "examples" / name).read_bytes())
    found = read_grid(tmp_path / "grid.yaml")
    assert [len(topology.cluster.servers) for topology in found.topologies] == [8, 8, 16]
    assert len(found.cells()) == 3 * (1 + 9 * 2 + 2 * 20 + 1000) * 2 * 2 * 2
    assert all(f"`{column}`" in document for column in COLUMNS)
