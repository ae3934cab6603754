"""An evaluation that is interrupted goes on where it was, with results of the same code only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from optcc import InputError
from optcc.cli import main
from optcc.evaluation import grid, tasks
from optcc.evaluation.cells import Cell
from optcc.evaluation.tasks import Kept
from optcc.journal import journal_path
from tests.evaluations import TINY


def reproduce(page: Path) -> Result:
    return CliRunner().invoke(main, ["reproduce", "--quick", "--jobs", "1", "-o", str(page), "--json"])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cells that are computed, of a tiny grid."""
    real, found = Cell.run, []

    def run(cell: Cell) -> Any:
        found.append(repr(cell))
        return real(cell)

    monkeypatch.setattr(grid, "QUICK", TINY)
    monkeypatch.setattr(Cell, "run", run)
    return found


def test_an_interrupted_evaluation_goes_on_where_it_was(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, page = tmp_path / "whole.md", tmp_path / "page.md"
    assert reproduce(whole).exit_code == 0
    total = len(counted)
    counted.clear()
    with monkeypatch.context() as patch:
        run = Cell.run

        def interrupted(cell: Cell) -> Any:
            if len(counted) == 5:
                raise KeyboardInterrupt
            return run(cell)

        patch.setattr(Cell, "run", interrupted)
        stopped = reproduce(page)
    assert stopped.exit_code == 130
    assert f"5 of {total + 3} results are kept in {journal_path(page)}. Give the same command" in stopped.stderr
    assert not page.exists()
    again = reproduce(page)
    assert "going on: 5 results" in again.stderr
    assert json.loads(again.stdout)["simulated"]
    assert len(counted) == len(set(counted)) == total
    assert not journal_path(page).exists()
    measured = "| 16 | servers |"  # planned in how many seconds, with how much memory
    one, two = ([line for line in p.read_text().splitlines() if measured not in line] for p in (whole, page))
    assert one == two


def test_results_of_other_code_are_refused_and_left(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    with Kept(page) as kept:
        kept.add({"a task": TINY.cells()[0].run()})
    before = journal_path(page).read_bytes()
    counted.clear()
    monkeypatch.setattr(tasks, "code", lambda: "of another version")
    refused = reproduce(page)
    assert refused.exit_code == 2
    assert "begun by another version" in refused.stderr
    assert str(journal_path(page)) in refused.stderr
    assert journal_path(page).read_bytes() == before
    assert not counted


def test_code_is_the_sources_and_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    first = tasks.code()
    assert first == tasks.code()
    monkeypatch.setattr(tasks, "version", lambda _: "0")
    assert tasks.code() != first


def test_what_another_command_keeps_is_not_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    journal_path(page).write_text('{"optcc-sweep-journal": 1}\n', encoding="utf-8")
    with pytest.raises(InputError, match="not a journal"):
        Kept(page)
