"""Long tables of pages: some rows stay, all are in a CSV file, and pages and files agree."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from benchmarks.pages import MOST, cells_of, shortened, table, write
from tests.test_architecture import ROOT

ROWS = [[n, n * n, f"{n}, {n}"] for n in range(MOST + 4)]


def page(rows: list[list[object]]) -> str:
    return "\n".join(["# Squares", "", *table(["n", "square", "pair"], rows), "", "The end.", ""])


def rows_of(text: str) -> list[list[str]]:
    return [cells_of(line) for line in text.splitlines() if line.startswith("| ")][1:]


def test_a_long_table_is_a_file_and_what_matters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "squares.md"
    write(path, page(ROWS), lambda c: c["square"] in ("4", "9") and c["no such column"] == "")
    text = path.read_text(encoding="utf-8")
    assert rows_of(text) == [["2", "4", "2, 2"], ["3", "9", "3, 3"]]
    assert f"2 of {len(ROWS)} rows: [all](data/squares.csv).\n\nThe end." in text
    with (tmp_path / "data" / "squares.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["n", "square", "pair"], *([str(cell) for cell in row] for row in ROWS)]
    assert capsys.readouterr().out.strip() == text.strip()
    assert shortened(text, path) == text, "a page that is shortened stays as it is"


def test_pages_and_files_agree() -> None:
    """A page says how many rows its file has, and no file is left without a page."""
    said = [
        (path, int(count))
        for each in (ROOT / "docs").glob("*.md")
        for count, path in re.findall(r"\d+ of (\d+) rows: \[all\]\((data/[\w-]+\.csv)\)", each.read_text("utf-8"))
    ]
    found = {f"data/{f.name}": len(f.read_text("utf-8").splitlines()) - 1 for f in (ROOT / "docs/data").iterdir()}
    assert dict(said) == found
    assert len(said) == len(found) > 15
