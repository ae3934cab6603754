"""`optcc sweep` as tests call it, and a small grid."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from optcc import Cluster
from optcc.cli import main
from optcc.study import runner
from optcc.study.cells import SweepJob
from optcc.study.cells import SweepResult as Done

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
