"""Grids of sweeps and their options: what cannot be used is told, and the documented grid can be read."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner

from optcc import InputError
from optcc.cli import main
from optcc.study.cells import COLUMNS
from optcc.study.grid import read_grid
from tests.sweeping import ROOT, SMALL, call, grid_in, rows_of, swept

MEASURED = """\
optcc: 1
measured: {date: 2026-11-20, transport: verbs, alpha: 3.1us, per_chunk: 0.4us, spread: 1%}
servers:
  - {count: 4, nics: [{name: nic0, rate: 388Gb/s}]}
"""
HEAD = f"optcc-sweep: 1\ntopologies: ['{SMALL}']\nsizes: 1MiB\n"


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return grid_in(tmp_path)


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
