"""Long tables of pages: some rows stay, all are in a CSV file, and pages and files agree."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from benchmarks.pages import MOST, cells_of, interval, quartiles, shortened, table, write
from tests.test_architecture import ROOT

ROWS = [[n, n * n, f"{n}, {n}"] for n in range(MOST + 4)]


def page(rows: list[list[object]]) -> str:
    return "\n".join(["# Squares", "", *table(["n", "square", "pair"], rows), "", "The end.", ""])


def rows_of(text: str) -> list[list[str]]:
    return [cells_of(line) for line in text.splitlines() if line.startswith("| ")][1:]


def test_a_short_table_stays(tmp_path: Path) -> None:
    text = page(ROWS[:MOST])
    assert shortened(text, tmp_path / "squares.md") == text
    assert not (tmp_path / "data").exists()


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


def test_where_nothing_matters_some_rows_stay(tmp_path: Path) -> None:
    few = rows_of(shortened(page(ROWS), tmp_path / "squares.md", lambda c: False))
    assert few[0] == ["0", "0", "0, 0"]
    assert 1 < len(few) < MOST


def test_tables_of_one_page_have_files_of_their_own(tmp_path: Path) -> None:
    shortened(page(ROWS) + "\n## More of them\n\n" + page(ROWS).replace("# Squares\n\n", ""), tmp_path / "squares.md")
    assert sorted(f.name for f in (tmp_path / "data").iterdir()) == ["squares-more-of-them.csv", "squares.csv"]


def test_pages_and_files_agree() -> None:
    """A page says how many rows its file has, and no file is left without a page."""
    said = [
        (path, int(count))
        for each in (ROOT / "docs").glob("*.md")
        for count, path in re.findall(r"\d+ of (\d+) rows: \[all\]\((data/[\w-]+\.csv)\)", each.read_text("utf-8"))
    ]
    found = {f"data/{f.name}": len(f.read_text("utf-8").splitlines()) - 1 for f in (ROOT / "docs/data").iterdir()}
    assert dict(said) == found
    assert len(said) == len(found) > 20


def test_ratios_in_words() -> None:
    assert quartiles([1.0, 2.0, 3.0]) == (2.0, "2.00 (1.00-3.00)")
    assert interval([1.0] * 9)[1] == "1.000 +- 0.000 (1.00-1.00)"
