"""The evaluation: its page names misses, its training model counts right, and the command leaves a whole page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.evaluation import page, tables
from optcc.evaluation.cells import FAULT_FREE, OPTCC, Cell, Outcome
from optcc.evaluation.grid import FULL, MIB, QUICK, SCHEMES, Grid
from optcc.evaluation.studies import Cost, Rails, Star
from optcc.evaluation.tasks import run_all
from optcc.evaluation.training import WEEK_S, Job

TINY = Grid(
    servers=(4,),
    dead=(4,),
    sizes=(MIB, 4 * MIB),
    size=4 * MIB,
    failures=2,
    failures_servers=4,
    message_sizes=(MIB,),
    message_servers=4,
    rails=(Rails(3, 2, ((1, 0),), 2, MIB),),
    stars=(replace(QUICK.stars[0], nbytes=64 * MIB),),
    costs=(Cost(2, False, MIB),),
)


@pytest.fixture(scope="module")
def made() -> page.Evaluation:
    counted: list[int] = []
    evaluation = page.evaluate(TINY, Job(), jobs=1, command="a test", done=lambda: counted.append(1))
    assert len(counted) == page.work(TINY)
    return evaluation


def test_the_page_is_whole(made: page.Evaluation, tmp_path: Path) -> None:
    assert "$" not in made.text
    assert "nan" not in made.text
    sections = re.findall(r"^## (.*)$", made.text, re.MULTILINE)
    assert len(sections) == 9
    written = page.write(made, tmp_path / "evaluation.md")
    for name in re.findall(r"\]\(([\w-]+\.svg)\)", made.text):
        assert (tmp_path / name) in written
        assert (tmp_path / name).read_text().startswith("<?xml")
    for line in made.text.splitlines():  # every table row has as many columns as its head
        if line.startswith("|---"):
            width = line.count("|")
        elif line.startswith("|") and "---" not in line:
            head = line
        if line.startswith("|"):
            assert line.count("|") == head.count("|")
    assert width


def outcomes(above: float) -> dict[Cell, Outcome]:
    """TINY's cells where optcc is `above` slower than the unavoidable overhead and rivals are far off."""
    found = {}
    for cell in TINY.cells():
        time_s = {FAULT_FREE: 1.0, OPTCC: 1.2 + above}.get(cell.scheme, 3.0)
        found[cell] = Outcome(time_s, 1.2, 1.0)
    return found


@pytest.mark.parametrize(("above", "missed"), [(0.009, 0), (0.011, 2)])
def test_misses_are_listed(above: float, missed: int) -> None:
    assert len(tables.misses(TINY, outcomes(above))) == missed
    listed = [line for line in tables.miss_table(TINY, outcomes(above)) if line.startswith("| 4 | 2 |")]
    assert len(listed) == missed
    marked = [line for line in tables.target_table(TINY, outcomes(above)) if "(miss)" in line]
    assert len(marked) == (1 if missed else 0)


def test_overheads_are_over_the_fault_free_ring() -> None:
    cell = Cell(4, (4,), 4 * MIB, "balance")
    assert tables.overhead(cell, outcomes(0)) == pytest.approx(2)
    assert tables.unavoidable(cell, outcomes(0)) == pytest.approx(0.2)


def test_a_scheme_that_does_not_apply_has_no_time() -> None:
    outcome = Cell(4, (1, 1), MIB, "r2cc").run()
    assert np.isnan(outcome.time_s)
    assert "one degraded server" in outcome.refused
    assert tables.percent(outcome.time_s) == "-"


def test_grids_hold_what_the_tables_need() -> None:
    for grid in (FULL, QUICK, TINY):
        cells = set(grid.cells())
        assert all(cell.of(FAULT_FREE) in cells for cell in cells)
        assert {c.scheme for c in grid.overheads()} == {FAULT_FREE, *SCHEMES}
    assert {s.servers for s in FULL.stars} == {4, 8, 16, 32, 64}
    assert max(FULL.servers) * 8 == 1024


def test_star_is_within_its_limit() -> None:
    ratio, optimum = Star(4, QUICK.stars[0].left, 2**30).run()
    assert optimum == pytest.approx(2)
    assert 1 <= ratio <= 1.02


def test_processes_give_what_one_gives() -> None:
    cells = [Cell(3, (1,), MIB, scheme) for scheme in (OPTCC, "balance")]
    one, two = (run_all(cells, jobs=jobs, done=lambda: None) for jobs in (1, 2))
    assert one == two


def down_share(job: Job, seed: int, weeks: int) -> list[float]:
    """Share of time with k = 0, 1, 2, ... NICs down, by drawing failures."""
    rng = np.random.default_rng(seed)
    span = weeks * WEEK_S
    begin = rng.uniform(-20 * job.repair_s, span, rng.poisson((span + 20 * job.repair_s) / job.mttf_s))
    end = begin + rng.exponential(job.repair_s, len(begin))
    at = rng.uniform(0, span, 4000)
    down = ((begin[:, None] <= at) & (at < end[:, None])).sum(0)
    return [float((down == k).mean()) for k in range(int(down.max()) + 1)]


def test_training_model_agrees_with_drawn_failures() -> None:
    job, overheads = Job(), [0.05 * k for k in range(1, 9)]

    def lost(shares: list[float]) -> float:
        slower = [0.0, *(job.exposed * overheads[min(k, 8) - 1] for k in range(1, len(shares)))]
        return sum(share * x / (1 + x) for share, x in zip(shares, slower, strict=True))

    drawn = lost(down_share(job, 7, 40))
    assert job.lost_by_slowdown(overheads) == pytest.approx(drawn, rel=0.05)
    twice = replace(job, repair_s=2 * job.repair_s)  # the comparison can fail
    assert twice.lost_by_slowdown(overheads) != pytest.approx(drawn, rel=0.05)


def test_training_limits() -> None:
    assert Job().lost_by_slowdown([0.0] * 8) == 0
    rare = Job(mttf_s=1e9, repair_s=1e3, exposed=1.0)
    assert rare.lost_by_slowdown([1.0]) == pytest.approx((1 - exp(-1e-6)) / 2)
    assert Job().lost_by_restarts() == pytest.approx(68 / (68 + 162))


def test_command_refuses_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = CliRunner().invoke(main, ["reproduce", "--quick", "-o", str(tmp_path / "file" / "page.md")])
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    result = CliRunner().invoke(main, ["reproduce", "--quick", "--mttf", "0h", "-o", str(tmp_path / "page.md")])
    assert result.exit_code == 2
    assert "--mttf" in result.stderr


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optcc.evaluation.grid.QUICK", TINY)
    out = tmp_path / "new" / "page.md"
    result = CliRunner().invoke(main, ["reproduce", "--quick", "--jobs", "1", "--json", "-o", str(out)])
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["simulated"] is True
    assert said["cells"] == 2
    assert all(Path(name).exists() for name in said["written"])
