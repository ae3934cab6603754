"""The script that counts kills and jobs: a check that raises counts as wrong, and what has come is not played again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import bench_rank_lost


def counted(monkeypatch: pytest.MonkeyPatch, page: Path, bad: int, *more: str) -> tuple[int, list[tuple[str, int]]]:
    """(the exit status, what was played) where the kill of that seed raises."""
    played = list[tuple[str, int]]()

    def kill(seed: int) -> tuple[list[str], dict[str, int]]:
        played.append(("kill", seed))
        if seed == bad:
            raise OSError("boom")
        return [], {}

    def stop(seed: int) -> tuple[list[str], dict[str, int]]:
        played.append(("stop", seed))
        return [], {"met": seed % 2}

    def job(seed: int) -> tuple[list[str], dict[str, int]]:
        played.append(("job", seed))
        return [], {"calls": 7}

    monkeypatch.setattr(bench_rank_lost, "PLAYS", {"kill": kill, "stop": stop, "job": job})
    asked = ["--kills", "8", "--stops", "4", "--jobs", "3", "-o", str(page)]
    monkeypatch.setattr(sys, "argv", ["bench", "random", *asked, *more])
    return bench_rank_lost.main(), played


def test_all_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    status, played = counted(monkeypatch, page, bad=-1)
    counts = {"job": 3, "kill": 8, "stop": 4}
    assert (status, sorted(played)) == (0, [(what, seed) for what, count in counts.items() for seed in range(count)])
    text = page.read_text()
    assert "rank 0 in 2" in text
    assert "| 8 | 8 |" in text
    assert "before it had ended in 2" in text
    assert "21 calls" in text


def test_a_check_that_raises_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    status, _ = counted(monkeypatch, page, bad=5)
    assert status == 1
    assert "| 8 | 7 |" in page.read_text()
    assert "kill, seed 5: OSError: boom" in page.read_text()


def test_what_was_cut_off_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page, kept = tmp_path / "page.md", tmp_path / "page.jsonl"
    counted(monkeypatch, page, bad=-1)
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:13]))
    counted(monkeypatch, page, -1, "--go-on", "--budget-s", "-1")
    assert "Of 15 asked there was time for 13." in page.read_text()
    status, played = counted(monkeypatch, page, -1, "--go-on")
    assert (status, len(played)) == (0, 2)
    assert "| 8 | 8 |" in page.read_text()
