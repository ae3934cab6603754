"""The table of a sweep: the same whoever computes it, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optcc import SimulationError
from optcc.study import runner, table
from optcc.study.cells import COLUMNS
from tests.sweeping import GRID, SMALL, call, grid_in, rows_of, swept, table_alone


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
