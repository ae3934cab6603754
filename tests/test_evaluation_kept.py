"""An evaluation that is interrupted goes on where it was, with results of the same code only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from optcc import InputError
from optcc.cli import main
from optcc.evaluation import page, tasks
from optcc.evaluation.cells import CellOutcome, EvaluationCell
from optcc.evaluation.tasks import ResultJournal, Task, run_all
from optcc.files.journal import journal_path
from tests.evaluations import TINY

TASKS: list[Task] = [
    *TINY.cells()[:4],
    EvaluationCell(4, (1, 1), 2**20, "r2cc"),
    *TINY.rails,
    *TINY.stars,
    TINY.rigs()[0],
]
"""Of every kind that is kept; one has no time."""


def nothing() -> None:
    pass


@pytest.mark.long
def test_every_kind_of_result_is_kept_and_nothing_is_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_all(TASKS, jobs=1, done=nothing)
    assert {type(result).__name__ for result in first.values()} == set(tasks.KINDS)
    counted: list[Task] = []

    def run_of(kind: Any) -> Any:
        def run(task: Task) -> Any:
            if len(counted) == 5:
                raise KeyboardInterrupt
            counted.append(task)
            return first[task]

        return run

    for kind in {type(task) for task in TASKS}:
        monkeypatch.setattr(kind, "run", run_of(kind))
    done: list[None] = []
    with ResultJournal(tmp_path / "page.md") as kept, pytest.raises(KeyboardInterrupt):
        run_all(TASKS, jobs=1, done=lambda: done.append(None), kept=kept)
    order = sorted(TASKS, key=lambda task: -task.weight)
    assert counted == order[:5]
    counted.clear()
    with ResultJournal(tmp_path / "page.md") as kept:
        again = run_all(TASKS, jobs=1, done=lambda: done.append(None), kept=kept)
    assert counted == order[5:]
    assert len(done) == 5 + len(TASKS)
    assert repr(again) == repr(first)  # nan is not equal to itself
    assert list(again) == TASKS


def reproduce(output: Path) -> Result:
    return CliRunner().invoke(main, ["reproduce", "--quick", "--jobs", "1", "-o", str(output), "--json"])


def test_the_command_says_what_is_kept_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: object, kept: ResultJournal, **__: object) -> page.Evaluation:
        if kept.results:
            return page.Evaluation("all of it", {}, 0, 1)
        kept.add({"a task": CellOutcome(1.0, 1.0, 1.0, 1.0), "another one": CellOutcome(2.0, 1.0, 1.0, 1.0)})
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "evaluate", evaluate)
    output = tmp_path / "page.md"
    stopped = reproduce(output)
    assert stopped.exit_code == 130
    assert f" results are kept in {journal_path(output)}. Give the same command again" in stopped.stderr
    assert "interrupted; 2 of " in stopped.stderr
    assert not output.exists()
    again = reproduce(output)
    assert "going on: 2 results" in again.stderr
    assert json.loads(again.stdout)["cells"] == 1
    assert output.read_text(encoding="utf-8") == "all of it"
    assert not journal_path(output).exists()


def test_results_of_other_code_are_refused_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "page.md"
    with ResultJournal(output) as kept:
        kept.add({"a task": CellOutcome(1.0, 1.0, 1.0, 1.0)})
    before = journal_path(output).read_bytes()
    monkeypatch.setattr(tasks, "code", lambda: "of another version")
    refused = reproduce(output)
    assert refused.exit_code == 2
    assert "begun by another version" in refused.stderr
    assert str(journal_path(output)) in refused.stderr
    assert journal_path(output).read_bytes() == before


def test_code_is_the_sources_and_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tasks.code()
    assert first == tasks.code()
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "package_version", lambda _: "0")
        assert tasks.code() != first
    package = tmp_path / "optcc"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1\n", encoding="utf-8")
    monkeypatch.setattr(tasks.optcc, "__file__", str(package / "__init__.py"))
    second = tasks.code()
    (package / "__init__.py").write_text("a = 2\n", encoding="utf-8")
    assert len({first, second, tasks.code()}) == 3


def test_what_another_command_keeps_is_not_read(tmp_path: Path) -> None:
    output = tmp_path / "page.md"
    journal_path(output).write_text('{"optcc-sweep-journal": 1}\n', encoding="utf-8")
    with pytest.raises(InputError, match="not a journal"):
        ResultJournal(output)
