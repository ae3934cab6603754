"""Sweeps: the same table whoever computes it, whole or not at all; bad input is told, what was interrupted goes on."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from optcc import Cluster, InputError, SimulationError
from optcc.cli import main
from optcc.study import cells as cells_module
from optcc.study import runner, table
from optcc.study.cells import COLUMNS, SweepJob, SweepResult, fingerprint
from optcc.study.cells import SweepResult as Done
from optcc.study.grid import read_grid
from optcc.study.journal import Journal, journal_path
from tests.dying_worker import die

# `optcc sweep` as tests call it, and a small grid.


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


def grid_in(folder: Path) -> Path:
    path = folder / "grid.yaml"
    path.write_text(GRID, encoding="utf-8")
    return path


def table_alone(folder: Path) -> bytes:
    """The table of GRID as one process makes it."""
    swept(grid_in(folder), "-o", folder / "t.csv", "--jobs", 1)
    return (folder / "t.csv").read_bytes()


def counting(monkeypatch: pytest.MonkeyPatch) -> list[SweepJob]:
    """The jobs that were computed, in this process."""
    done: list[SweepJob] = []
    real = runner.compute

    def compute(cluster: Cluster, jobs: tuple[SweepJob, ...]) -> list[Done]:
        results = real(cluster, jobs)
        done.extend(jobs)
        return results

    monkeypatch.setattr(runner, "compute", compute)
    return done


# The table of a sweep: the same whoever computes it, written whole or not at all.


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return grid_in(tmp_path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return table_alone(tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def dask_address() -> Iterator[str]:
    import distributed

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        yield cluster.scheduler_address


@pytest.mark.long
def test_two_processes_make_the_same_table(grid: Path, tmp_path: Path, alone: bytes) -> None:
    swept(grid, "-o", tmp_path / "t.csv", "--jobs", 2)
    assert (tmp_path / "t.csv").read_bytes() == alone


def test_a_dask_cluster_of_two_processes_makes_the_same_table(
    grid: Path, tmp_path: Path, alone: bytes, dask_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept(grid, "-o", tmp_path / "t.csv", "--dask", dask_address)
    assert (tmp_path / "t.csv").read_bytes() == alone
    monkeypatch.setattr(runner, "__version__", "another")
    refused = call(grid, "-o", tmp_path / "u.csv", "--dask", dask_address)
    assert refused.exit_code == 2
    assert "another optcc on the Dask workers" in refused.stderr


def test_another_seed_makes_another_table(grid: Path, tmp_path: Path, alone: bytes) -> None:
    grid.write_text(GRID.replace("seed: 7", "seed: 8"), encoding="utf-8")
    swept(grid, "-o", tmp_path / "t.csv", "--jobs", 1)
    assert (tmp_path / "t.csv").read_bytes() != alone


@pytest.mark.long
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


def test_parquet_holds_what_csv_does(grid: Path, tmp_path: Path, alone: bytes) -> None:
    from pyarrow import parquet

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
    assert "pip install '.[parquet]'" in refused.stderr
    table.check_output(tmp_path / "t.csv")


@pytest.mark.long
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


@pytest.mark.long
def test_an_output_that_exists_stays(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    out.write_text("mine", encoding="utf-8")
    refused = call(SMALL, "-o", out, "--size", "1MiB", "--jobs", 1)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert out.read_text(encoding="utf-8") == "mine"
    swept(SMALL, "-o", out, "--size", "1MiB", "--jobs", 1, "--force")
    assert len(rows_of(out)) == 2


# Grids of sweeps and their options: what cannot be used is told, and the documented grid can be read.


MEASURED = """\
optcc: 1
measured: {date: 2026-11-20, transport: verbs, alpha: 3.1us, per_chunk: 0.4us, spread: 1%}
servers:
  - {count: 4, nics: [{name: nic0, rate: 388Gb/s}]}
"""
HEAD = f"optcc-sweep: 1\ntopologies: ['{SMALL}']\nsizes: 1MiB\n"


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        (
            f"optcc-sweep: 1\ntopologies: ['{SMALL}',\n  '{SMALL}']\nsizes: 1MiB\n",
            [":3: $.topologies[1]", "the same twice"],
        ),
        ("topologies: [x]\nsizes: 1MiB\n", ["not a grid", "optcc-sweep: 1"]),
        ("optcc-sweep: 1\ntopologies: ['" + SMALL + "']\n", [":1: $", "a field is missing", "sizes:"]),
        (HEAD + "sise: 1\n", [":4: $", "unknown field", "'sise'", "per_chunk"]),
        (HEAD + "sise:\n  - 1\n", [":4: $", "unknown field", "'sise'"]),
        (HEAD.replace(f"['{SMALL}']", "[]"), [":2: $.topologies", "an empty list", "length >= 1"]),
        (HEAD + "failures: []\n", [":4: $.failures", "an empty list", "length >= 1"]),
        (HEAD.replace("1MiB", "[1MiB, 1XB]"), [":3: $.sizes[1]", "not a size", "'1XB'"]),
        (HEAD.replace("1MiB", "{a: 1}"), [":3: $.sizes", "a text | a list"]),
        (HEAD.replace("1MiB", "0"), [":3: $.sizes", "nothing to reduce"]),
        (HEAD.replace("1MiB", "[]"), [":3: $.sizes", "an empty list", "length >= 1"]),
        (HEAD.replace("1MiB", "[1MiB, 2MiB, 1024KiB]"), [":3: $.sizes[2]", "the same twice", "(1MiB", "'1024KiB'"]),
        (HEAD.replace("rate", "rote"), [":2: $.topologies[0]", "rote"]),
        ("optcc-sweep: 1\ntopologies: [no.xml]\nsizes: 1MiB\n", [":2: $.topologies[0]", "no.xml", "cannot be read"]),
        (HEAD + "alpha: 5\n", [":4: $.alpha", "not a time"]),
        (HEAD + "segments: 0\n", [":4: $.segments", "1 to 65536"]),
        (HEAD + "seed: -1\n", [":4: $.seed", "a whole number"]),
        (HEAD + "alpha: [0us, 0us]\n", [":4: $.alpha[1]", "the same twice"]),
        (HEAD + "ranks: gpu\n", [":4: $.ranks", "no NVLink rate", "nvlink=", "ranks: server", "server0 of uniform:"]),
        (HEAD + "quantity: both\n", [":4: $.quantity", "one of simulate, bound", "'both'"]),
        (HEAD + "algorithms: [optcc, magic]\n", [":4: $.algorithms", "unknown algorithm", "'magic'"]),
        (HEAD + "receivers: packets\nquantity: bound\n", [":4: $.receivers", "a bound has no receivers"]),
        (HEAD + "receivers: both\n", [":4: $.receivers", "one of stripes, packets", "'both'"]),
        (HEAD + "algorithms: ring\nquantity: bound\n", [":4: $.algorithms", "a bound has no algorithm"]),
        (HEAD + "failures:\n  - {left: 0}\n", [":5: $.failures[0]", "not one way to fail"]),
        (HEAD + "failures:\n  - {count: 1, nics: a/b}\n", [":5: $.failures[0]", "count and nics"]),
        (HEAD + "failures:\n  - {count: 1, mttf: 1h}\n", [":5: $.failures[0].mttf", "beside count only left"]),
        (HEAD + "failures:\n  - {count: 3..1}\n", [":5: $.failures[0].count", "a whole number, 3 to"]),
        (HEAD + "failures:\n  - {count: 1, left: 2}\n", [":5: $.failures[0].left", "0 to 1", "'2'"]),
        (
            HEAD + "failures:\n  - {count: 1, place: there}\n",
            [":5: $.failures[0].place", "one-server, spread, random", "'there'"],
        ),
        (HEAD + "failures:\n  - {count: [0..2, 2]}\n", [":5: $.failures[0].count", "the same twice", "got 2"]),
        (HEAD + "failures:\n  - {count: 2}\n  - {count: 2..2}\n", [":6: $.failures[1]", "the same twice", "entry 0"]),
        (HEAD + "failures:\n  - {count: 1, draws: 3}\n", [":5: $.failures[0].draws", "place: random"]),
        (HEAD + "failures:\n  - {count: 1, colour: 3}\n", [":5: $.failures[0]", "unknown field", "nic_share"]),
        (HEAD + "failures:\n  - {nics: server9/nic0}\n", [":5: $.failures[0].nics", "no such NIC in any topology"]),
        (HEAD + "failures:\n  - {nics: [a]}\n", [":5: $.failures[0].nics[0]", "not a NIC"]),
        (HEAD + "failures:\n  - {nics: [server0/nic0, server0/nic0=1/2]}\n", [":5:", "the same NIC twice"]),
        (HEAD + "failures:\n  - {monte_carlo: 9, mttf: 1h}\n", [":5: $.failures[0]", "repair_time:"]),
        (HEAD + "failures:\n  - {monte_carlo: 9, mttf: 0s, repair_time: 1h}\n", [":5: $.failures[0].mttf", "above 0"]),
        (
            HEAD + "failures:\n  - {monte_carlo: 9, mttf: 1h, repair_time: 1h, nic_share: 2}\n",
            [":5: $.failures[0].nic_share", "0 to 1"],
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
        (["--left", "0.5"], ["--fail, --fail-count, --monte-carlo", "only --left"]),
        (["--fail-count", "1", "--draws", "3"], ["--draws", "--place random"]),
        (["--algorithm", "ring", "--quantity", "bound"], ["--algorithm", "--quantity simulate"]),
        (["--ranks", "gpu"], ["--ranks", "no NVLink rate", "--ranks server"]),
        (["--alpha", "5us,5000ns"], ["--alpha", "the same twice"]),
        (["--servers", "2,2"], ["--servers", "the same twice"]),
        (["--monte-carlo", "9"], ["--monte-carlo: ", "expected --mttf.", "--mttf 2.7h"]),
        (["--fail-count", "1", "--left", "2"], ["--left", "0 to 1"]),
        (["--monte-carlo", "9", "--mttf", "1h"], ["expected --repair-time.", "--repair-time 24h"]),
        (["--algorithm", "magic"], ["--algorithm", "unknown algorithm"]),
        (["--fail", "nic0"], ["--fail", "not a NIC"]),
        (["--fail", "server1"], ["--fail", "takes no part", "server1=37%"]),
        (["--fail", "server1=0"], ["--fail", "takes no part", "server1=37%"]),
        (["--fail", "server9=0.5"], ["no such NIC in any topology"]),
        (["--fail", "server1/nic[1-2]"], ["no such NIC in any topology", "SERVER/NIC of one, got 'server1/nic2'"]),
        (["--fail", "server1/nic[2-1]"], ["not a range"]),
        (["--fail", "server1=150Gb/s"], ["--fail"]),
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


def test_notes_name_ways_out_that_a_sweep_has(tmp_path: Path) -> None:
    """The readers speak of --nics and --hosts, which `optcc topo` has."""
    xml = ROOT / "examples" / "h100-8x400g.nccl-topo.xml"
    only = ("-o", tmp_path / "t.csv", "--jobs", 1)
    told = call(xml, *only, "--quantity", "bound").stderr
    assert f"`optcc topo {xml} --nics LIST -o FILE.yaml`" in told
    assert "--servers N makes N copies" in told
    assert "--hosts" not in told
    (tmp_path / "grid.yaml").write_text(f"optcc-sweep: 1\ntopologies: ['{xml}']\nsizes: 1MiB\nquantity: bound\n")
    told = call(tmp_path / "grid.yaml", *only, "--force").stderr
    assert "servers: N makes N copies" in told
    assert "--servers" not in told
    (tmp_path / "one.yaml").write_text("optcc: 1\nservers:\n  - {gpus: 1, nics: [{name: n}]}\n", encoding="utf-8")
    (tmp_path / "grid.yaml").write_text("optcc-sweep: 1\ntopologies: [one.yaml]\nsizes: 1MiB\n", encoding="utf-8")
    assert "with nic_rate: 400Gb/s" in call(tmp_path / "grid.yaml", *only, "--force").stderr
    assert "with --nic-rate 400Gb/s" in call(tmp_path / "one.yaml", *only, "--force").stderr


def test_gpus_as_ranks_with_nvlink_are_taken(tmp_path: Path) -> None:
    text = f"optcc-sweep: 1\ntopologies: ['{SMALL},nvlink=450GB/s']\nsizes: [1MiB, 2MiB]\nranks: gpu\n"
    (tmp_path / "grid.yaml").write_text(text, encoding="utf-8")
    assert read_grid(tmp_path / "grid.yaml").topologies[0].cluster.gpu_ranks


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


def test_measured_costs_are_the_default_and_are_told(tmp_path: Path) -> None:
    """As for `optcc plan`, and for each topology its own: the preset has measured nothing."""
    (tmp_path / "seen.yaml").write_text(MEASURED, encoding="utf-8")
    head = f"optcc-sweep: 1\ntopologies: [seen.yaml, '{SMALL}']\nsizes: 1MiB\nalgorithms: ring\n"
    told = {
        "": (["3.1e-06", "0.0"], ["4e-07", "0.0"], ["alpha: 3.1 us as measured", "per_chunk: 400 ns as measured"]),
        "alpha: [0us, 2us]\n": (
            ["0.0", "2e-06", "0.0", "2e-06"],
            ["4e-07", "4e-07", "0.0", "0.0"],
            ["per_chunk: 400 ns as measured; per_chunk: 0us does without"],
        ),
        "alpha: 0us\nper_chunk: 0us\n": (["0.0"] * 2, ["0.0"] * 2, []),
    }
    for more, (alphas, chunks, notes) in told.items():
        (tmp_path / "grid.yaml").write_text(head + more, encoding="utf-8")
        result = swept(tmp_path / "grid.yaml", "-o", tmp_path / "t.csv", "--jobs", 1, "--force")
        rows = rows_of(tmp_path / "t.csv")
        assert ([row["alpha_s"] for row in rows], [row["per_chunk_s"] for row in rows]) == (alphas, chunks)
        assert "rates measured 2026-11-20 (verbs)" in result.stderr
        assert [note for note in notes if f"seen.yaml: {note}" not in result.stderr] == []
        assert result.stderr.count("as measured") == len(notes)


def test_measured_costs_are_told_in_options(tmp_path: Path) -> None:
    """What they are told as can be typed; a bound has no costs."""
    (tmp_path / "seen.yaml").write_text(MEASURED, encoding="utf-8")
    source, out = tmp_path / "seen.yaml", tmp_path / "t.csv"
    told = swept(source, "-o", out, "--jobs", 1, "--size", "1MiB", "--per-chunk", "1us").stderr
    assert f"note: {source}: --alpha 3.1 us as measured; --alpha 0us does without" in told
    assert [(row["alpha_s"], row["per_chunk_s"]) for row in rows_of(out)] == [("3.1e-06", "1e-06")] * 2
    told = swept(source, "-o", out, "--jobs", 1, "--size", "1MiB", "--quantity", "bound", "--force").stderr
    assert "rates measured" in told
    assert "as measured" not in told
    assert [row["alpha_s"] for row in rows_of(out)] == ["0.0"]


def test_jitter_is_an_axis_and_a_column(tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    topology = "uniform:servers=4,nics=2,rate=400Gb/s"
    asked = ["sweep", topology, "--fail-count", "1", "--size", "16MiB", "--jitter", "0,80%", "-o", str(out)]
    assert CliRunner().invoke(main, asked).exit_code == 0
    with out.open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [(row["jitter"], row["algorithm"]) for row in found] == [
        (jitter, algorithm) for jitter in ("0.0", "0.8") for algorithm in ("optcc", "ring")
    ]
    times = [float(row["simulated_s"]) for row in found]
    assert times[0] < times[2]
    assert times[1] < times[3]
    refused = CliRunner().invoke(
        main, [*asked[:-4], "--quantity", "bound", "--jitter", "1%", "-o", str(tmp_path / "b.csv")]
    )
    assert refused.exit_code == 2
    assert "a bound has no jitter" in refused.stderr


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


@pytest.mark.parametrize(
    ("fail", "meant"),
    [
        (["server1=50%"], "server1/nic0=1/2 server1/nic1=1/2"),
        (["server[1-2]/nic0", "server0/nic?=0.25"], "server1/nic0=0 server2/nic0=0 server0/nic0=1/4 server0/nic1=1/4"),
        (["server*/nic1"], "server0/nic1=0 server1/nic1=0 server2/nic1=0"),
    ],
)
def test_failures_are_named_as_everywhere(tmp_path: Path, fail: list[str], meant: str) -> None:
    table = tmp_path / "t.csv"
    given = [word for text in fail for word in ("--fail", text)]
    words = ["sweep", "uniform:servers=3,nics=2,rate=100Gb/s", *given, "--size", "1MiB", "--quantity", "bound"]
    done = CliRunner().invoke(main, [*words, "-o", str(table)])
    assert done.exit_code == 0, done.output
    with table.open(encoding="utf-8", newline="") as file:
        assert [row["failures"] for row in csv.DictReader(file)] == [meant]


# Sweeps that are interrupted go on where they were: nothing is lost and nothing done twice.


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


# A sweep that is killed (SIGKILL) at any moment: the same command goes on, or says that all is done.


LIMIT_S = 240
OPTIONS = ("--size", "1MiB,2MiB", "--fail-count", "0..2", "--quantity", "bound", "--jobs", "1")

KILLED = """\
import os, signal, sys
import optcc.cli.sweep, optcc.files.writing, optcc.study.journal, optcc.study.runner, optcc.study.table

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def before(where, name):
    setattr(where, name, die)

def after(where, name):
    call = getattr(where, name)
    setattr(where, name, lambda *args, **kwargs: (call(*args, **kwargs), die()))

def within(count):
    "In the `count`th addition to the journal, before its end."
    add, done = optcc.study.journal.Journal.add, []
    class Cut(dict):
        def items(self):
            yield from super().items()
            die()
    def cut_off(journal, results):
        done.append(1)
        add(journal, Cut(results) if len(done) == count else results)
    optcc.study.journal.Journal.add = cut_off

exec(sys.argv.pop(1))
sys.argv[0] = "optcc"
from optcc.cli import main
main()
"""

STEPS = {
    "with no journal": "before(optcc.study.journal.Journal, '_begin')",
    "with an empty journal": "before(optcc.study.journal.Journal, 'add')",
    "in a row of the journal": "within(4)",
    "before the table": "before(optcc.study.table, 'write_table')",
    "in the table": "before(optcc.study.table.csv.DictWriter, 'writerows')",
    "before the table has its name": "before(optcc.files.writing.os, 'replace')",
    "when the table has its name": "after(optcc.files.writing.os, 'replace')",
    "before the summary": "before(optcc.cli.sweep, 'emit')",
    "before the journal goes": "before(optcc.study.journal.Journal, 'remove')",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("whole") / "t.csv"
    swept(SMALL, "-o", out, *OPTIONS)
    return out.read_bytes()


def killed(step: str, *args: object) -> None:
    command = [sys.executable, "-c", KILLED, step, "sweep", *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("step", STEPS)
def test_the_same_command_goes_on(tmp_path: Path, whole: bytes, step: str) -> None:
    out = tmp_path / "t.csv"
    killed(STEPS[step], SMALL, "-o", out, *OPTIONS)
    assert not out.exists() or out.read_bytes() == whole
    again = swept(SMALL, "-o", out, *OPTIONS)
    assert out.read_bytes() == whole
    assert not journal_path(out).exists()
    computed = f"going on: 6 of 6 rows are in {journal_path(out)}" in again.stderr
    assert computed == (list(STEPS).index(step) >= list(STEPS).index("before the table"))
    assert call(SMALL, "-o", out, *OPTIONS).exit_code == 2  # done, and said so: now it is somebody's table


def test_a_table_that_is_not_the_sweep_s_stays(tmp_path: Path, whole: bytes) -> None:
    """A journal beside it is no leave to replace it: neither somebody's own, nor that of another grid."""
    out = tmp_path / "t.csv"
    killed(STEPS["before the summary"], SMALL, "-o", out, *OPTIONS)
    other = call(SMALL, "-o", out, *OPTIONS[2:], "--size", "1MiB")
    assert (other.exit_code, "--force" in other.stderr) == (2, True)
    assert out.read_bytes() == whole
    out.write_bytes(whole.replace(b"1048576", b"1048577"))
    edited = out.read_bytes()
    refused = call(SMALL, "-o", out, *OPTIONS)
    assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
    assert out.read_bytes() == edited
    out.unlink()
    swept(SMALL, "-o", out, *OPTIONS)
    assert out.read_bytes() == whole


def test_parquet_of_the_same_rows_is_the_same_file(tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    killed(STEPS["before the summary"], SMALL, "-o", out, *OPTIONS)
    before = out.read_bytes()
    swept(SMALL, "-o", out, *OPTIONS)
    assert out.read_bytes() == before


def test_a_journal_on_a_full_disk_keeps_what_it_holds(tmp_path: Path) -> None:
    """Standing in for a disk: the most pages that SQLite may take."""
    out = tmp_path / "t.csv"
    with Journal(out, "sweep", SweepResult) as journal:
        journal.add({"first": SweepResult(1.0)})
        journal._rows.execute("PRAGMA max_page_count = 6")
        with pytest.raises(InputError, match="cannot be written") as caught:
            journal.add({str(n): SweepResult(2.0) for n in range(999)})
        assert "room on the disk" in str(caught.value.expected)
        assert caught.value.where == str(journal_path(out))
        assert journal.results == {"first": SweepResult(1.0)}
    with Journal(out, "sweep", SweepResult) as journal:
        assert journal.results == {"first": SweepResult(1.0)}


def test_the_command_says_what_is_short_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standing in for a disk: the process's own limit of a file's size (``ulimit -f``)."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # of modules, which would be cut short
    out = tmp_path / "t.csv"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (int({}), -1)); "
    limit += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    command = [sys.executable, "-c", KILLED]
    places = ["-o", str(out), *OPTIONS]
    done = subprocess.run(
        [*command, limit.format(60_000), "sweep", SMALL, *places[:2], "--size", _sizes(40), *places[4:]],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, out.exists()) == (2, False), done.stderr
    assert "cannot be written" in done.stderr
    assert "ulimit -f" in done.stderr
    assert "Traceback" not in done.stderr
    with Journal(out, "sweep", SweepResult) as journal:
        assert len(journal.results) > 2
    again = swept(SMALL, "-o", out, "--size", _sizes(40), *OPTIONS[2:])
    assert "going on" in again.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def _sizes(count: int) -> str:
    return ",".join(f"{n}MiB" for n in range(1, count + 1))


def test_a_new_journal_that_cannot_be_begun_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Journal._begin

    def full(journal: Journal[Any], code: str) -> None:
        journal._rows.execute("PRAGMA max_page_count = 1")
        begin(journal, code)

    monkeypatch.setattr(Journal, "_begin", full)
    refused = call(SMALL, "-o", tmp_path / "t.csv", *OPTIONS)
    assert refused.exit_code == 2
    assert "room on the disk" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    for folder in (Path("/proc"), tmp_path / "none"):
        refused = call(SMALL, "-o", folder / "t.csv", *OPTIONS)
        assert refused.exit_code == 2
        assert "cannot be written" in refused.stderr
