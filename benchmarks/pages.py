"""What the scripts share: a page's tables and their CSV files, ratios in words, the command line.

A page has a table's rows that matter; where these are not all, the whole table is in docs/data. `python -m
benchmarks.pages PAGE...` does this for pages that other programs have written.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import platform
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from statistics import quantiles

import optcc

MOST = 8
"""Rows of a table up to which all of them are on the page."""
FEW = 3
"""Rows that stay of a longer table where nothing says which of them matter."""
Matters = Callable[[dict[str, str]], bool]
"""Whether a row belongs on the page, by its cells by column."""


def row(*cells: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table."""
    return [row(*head), "|" + "---|" * len(head), *(row(*cells) for cells in rows)]


def parser(doc: str | None, name: str) -> argparse.ArgumentParser:
    """A command line with the page's place, docs/NAME.md unless told otherwise, as `output`."""
    found = argparse.ArgumentParser(description=doc)
    found.add_argument("-o", "--output", type=Path, default=Path(f"docs/{name}.md"))
    return found


def made_with(*more: str) -> str:
    """The last line of a page. more : versions of other packages"""
    versions = [f"optcc {optcc.__version__}", *more, f"Python {platform.python_version()}", f"{os.cpu_count()} CPUs"]
    return f"{', '.join(versions)}."


def quartiles(ratios: Iterable[float]) -> tuple[float, str]:
    """The median; and with quartiles, for people."""
    low, middle, high = quantiles(ratios)
    return middle, f"{middle:.2f} ({low:.2f}-{high:.2f})"


def interval(ratios: Sequence[float]) -> tuple[float, str]:
    """The median; and with its 95 % interval (McGill, Tukey and Larsen 1978) and quartiles, for people."""
    low, middle, high = quantiles(ratios)
    within = 1.57 * (high - low) / math.sqrt(len(ratios))
    return middle, f"{middle:.3f} +- {within:.3f} ({low:.2f}-{high:.2f})"


def write(output: Path, lines: str | Iterable[str], matters: Matters | None = None) -> None:
    """Write a page and the CSV files of its long tables, and print the page.

    lines : with whole tables; matters : which rows of long tables stay on the page, some where it is None or takes none
    """
    whole = lines if isinstance(lines, str) else "\n".join(lines)
    output.parent.mkdir(parents=True, exist_ok=True)
    text = shortened(whole.rstrip("\n") + "\n", output, matters)
    output.write_text(text, encoding="utf-8")
    print(text)


def shortened(text: str, page: Path, matters: Matters | None = None) -> str:
    """The page's text with what stays of its long tables; their CSV files are written."""
    data, taken = page.parent / "data", set[str]()
    found: list[str] = []
    for heading, block in blocks(text):
        if len(block) <= MOST + 2 or not block[0].startswith("|"):
            found += block
            continue
        name = page.stem if heading.startswith("# ") else f"{page.stem}-{slug(heading)}"
        while name in taken:
            name += "-more"
        taken.add(name)
        if f"](data/{name}.csv)" in text:  # shortened before
            found += block
            continue
        head, *rows = (cells_of(line) for line in (block[0], *block[2:]))
        data.mkdir(parents=True, exist_ok=True)
        with (data / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([head, *rows])
        kept = [line for line, cells in zip(block[2:], rows, strict=True) if matters and matters(named(head, cells))]
        kept = kept or block[2 :: max(1, -(-len(rows) // FEW))]
        found += [*block[:2], *kept, "", f"{len(kept)} of {len(rows)} rows: [all](data/{name}.csv)."]
    return "\n".join(found)


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Tables, and lines that are in none, each with the heading that it is below."""
    heading, block = "", list[str]()
    for line in text.split("\n"):
        if line.startswith("|"):
            block.append(line)
            continue
        if block:
            yield heading, block
            block = []
        heading = line if line.startswith("#") else heading
        yield heading, [line]
    if block:
        yield heading, block


def cells_of(line: str) -> list[str]:
    """Of a table's line."""
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def named(head: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """A row's cells by column, "" where there is none; of columns of one name the first counts."""
    return defaultdict(str, reversed(list(zip(head, cells, strict=False))))


def slug(heading: str) -> str:
    """A part of a file's name."""
    return re.sub(r"\W+", "-", heading.lstrip("#").lower()).strip("-")[:40].strip("-")


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("pages", nargs="+", type=Path)
    asked.add_argument("--where", action="append", default=[], metavar="COLUMN=PATTERN", help="of rows that stay")
    given = asked.parse_args()
    terms = [each.partition("=")[::2] for each in given.where]

    def matters(cells: dict[str, str]) -> bool:
        return bool(terms) and all(name in cells and fnmatch(cells[name], like) for name, like in terms)

    for page in given.pages:
        page.write_text(shortened(page.read_text(encoding="utf-8"), page, matters), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
