"""The page of the evaluation is whole, says what it must, and the command leaves it where it was asked to."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from optcc.cli import main
from optcc.evaluation import claims, figures, page, tables
from optcc.evaluation.grid import FULL, QUICK, Grid
from optcc.evaluation.studies import Star, StarResult
from optcc.evaluation.training import Job
from tests.evaluations import TINY, outcomes


@pytest.fixture(scope="module")
def made() -> page.Evaluation:
    counted: list[int] = []
    evaluation = page.evaluate(TINY, Job(), jobs=1, command="a test", done=lambda: counted.append(1))
    assert len(counted) == page.work(TINY)
    return evaluation


@pytest.mark.long
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


def links(text: str) -> list[str]:
    """Where the page leads to, figures beside it excepted."""
    return [to for to in re.findall(r"\]\(([^)]*)\)", text) if not to.endswith(".svg")]


def lead_somewhere(path: Path) -> bool:
    return all((path.parent / to.partition("#")[0]).is_file() for to in links(path.read_text(encoding="utf-8")))


@pytest.mark.long
def test_links_lead_to_the_docs_from_wherever_the_page_is(made: page.Evaluation, tmp_path: Path) -> None:
    for to in links(made.text):
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / to.partition("#")[0]).write_text("x", encoding="utf-8")
    inside, beside = tmp_path / "docs" / "evaluation.md", tmp_path / "out" / "new" / "evaluation.md"
    for path in (inside, beside):
        page.write(made, path)
        assert len(links(path.read_text(encoding="utf-8"))) == len(links(made.text)) > 3
        assert lead_somewhere(path)
    assert inside.read_text(encoding="utf-8") == made.text
    assert "](../../docs/baselines.md#optcc-as-published)" in beside.read_text(encoding="utf-8")
    beside.write_text(made.text, encoding="utf-8")
    assert not lead_somewhere(beside)
    (tmp_path / "docs" / "simulator.md").unlink()  # somebody else's docs
    page.write(made, beside)
    assert not links(beside.read_text(encoding="utf-8"))
    assert "its model (docs/simulator.md)" in beside.read_text(encoding="utf-8")


def test_links_of_the_page_have_their_anchors(made: page.Evaluation) -> None:
    docs = Path(__file__).resolve().parent.parent / "docs"
    for to in links(made.text):
        name, _, anchor = to.partition("#")
        heads = re.findall(r"^#+ (.*)$", (docs / name).read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
        assert not anchor or anchor in slugs, to


def unlabelled(text: str) -> list[str]:
    """Heads of tables that say "simulated" neither themselves nor in what stands between them and the last heading or
    table."""
    found, said = [], ""
    for line, below in pairwise(text.splitlines()):
        said = "" if line.startswith(("#", "|---")) else said + line
        if below.startswith("|---") and "simulated" not in said.lower():
            found.append(line)
    return found


def test_every_table_says_what_is_simulated(made: page.Evaluation) -> None:
    assert made.text.count("|---|\n") >= 11
    assert not unlabelled(made.text)
    assert len(unlabelled(re.sub("(?i)simulated", "", made.text))) == made.text.count("|---|\n")


def test_a_range_of_one_figure_is_said_once() -> None:
    assert claims._range([0.0262, 0.0258, 0.026]) == "2.6 %"
    assert claims._range([0.058, 0.026]) == "2.6 % to 5.8 %"


def test_r2cc_form_is_its_paper_s_figure() -> None:
    cell = FULL.claimed()[0]
    assert claims.closed_form(cell, 10**9) == pytest.approx(4 / 7)
    assert claims.closed_form(cell, 16) == pytest.approx(4 / 7 * 17 / 16)


def test_cited_figures_stand_on_their_own_rows() -> None:
    both = [Star(p, (Fraction(1, 2),) * k) for p in (8, 16) for k in (2, 4)] + [Star(16, (Fraction(3, 4),))]
    lines = tables.star_table(replace(TINY, stars=tuple(both)), dict.fromkeys(both, StarResult(1.0, 2.0)))
    cited = [re.findall(r"1\.\d\d", line.split(" | ")[3]) for line in lines[2:-1]]
    assert cited == [["1.75"], ["1.50"], ["1.88"], ["1.75"], ["1.09", "1.12"]]
    assert [("8 and 16" in line) for line in lines[2:-1]] == [False] * 4 + [True]


def test_figures_mark_the_target_and_the_claims() -> None:
    results = outcomes()
    names = figures.overhead_figure(TINY, results).legends[0].get_texts()
    assert sum("arXiv" in text.get_text() for text in names) == 2
    axes = figures.above_figure(TINY, results).axes[1]
    lines = {str(line.get_label()): list(np.ravel(line.get_ydata())) for line in axes.get_lines()}
    assert lines["optcc, 256MiB"] == pytest.approx([0.9])
    assert lines["the best of the others, 256MiB"] == pytest.approx([180])
    assert lines["target: 1.0 at most"] == pytest.approx([1, 1])


def test_command_refuses_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = CliRunner().invoke(main, ["reproduce", "--quick", "-o", str(tmp_path / "file" / "page.md")])
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    result = CliRunner().invoke(main, ["reproduce", "--quick", "--mttf", "0h", "-o", str(tmp_path / "page.md")])
    assert result.exit_code == 2
    assert "--mttf" in result.stderr
    result = CliRunner().invoke(main, ["reproduce", "--quick", "--nic-share", "3/2", "-o", str(tmp_path / "page.md")])
    assert result.exit_code == 2
    assert "--nic-share" in result.stderr


def test_command(made: page.Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def evaluate(grid: Grid, job: Job, **how: Any) -> page.Evaluation:
        asked.update(how, grid=grid, job=job)
        return made

    monkeypatch.setattr("optcc.evaluation.page.evaluate", evaluate)
    out = tmp_path / "new" / "page.md"
    job = ["--mttf", "5h", "--mttf-gpus", "512", "--nic-share", "1/4", "--repair-time", "1h", "--restart", "9min"]
    job += ["--exposed", "0.5", "--step", "2s", "--failover", "3ms"]
    result = CliRunner().invoke(main, ["reproduce", "--quick", "--jobs", "1", *job, "--json", "-o", str(out)])
    assert result.exit_code == 0, result.stderr
    assert asked["job"] == Job(5 * 3600, 512, 0.25, 3600, 540, 0.5, 2, 0.003)
    assert (asked["grid"], asked["jobs"]) == (QUICK, 1)
    said = json.loads(result.stdout)
    assert said["simulated"] is True
    assert said["cells"] == 5
    assert said["misses"] == made.misses
    assert all(Path(name).exists() for name in said["written"])
