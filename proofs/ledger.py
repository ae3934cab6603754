#!/usr/bin/env python3
"""Hold the ledger (README.md) to the files and the code that it names.   python3 ledger.py

Ids are unique; each row has its page, statuses are of the defined words, and every theorem, script and test named in a
row exists; every theorem of Headlines.v and every page is in some row. Where a page links to a lemma in a file of Coq,
the file states it; where such a file names a page, the page exists. Every id that a docstring of the theory or of
optcc/values/bound.py, or a document, gives as a proof id has a row. tests/test_proofs.py runs this, also on faulty
ledgers.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STATUSES = ("proved", "checked", "conjectured")
LEAST_PAGE = 400  # characters; a heading and a promise are not a page


class Row(NamedTuple):
    """A row of the ledger: its cells, as written."""

    id: str
    statement: str
    page: str
    coq: str
    tests: str
    status: str


def rows(ledger: str) -> list[Row]:
    """The rows of the first table whose first column is `id`."""
    lines = iter(ledger.splitlines())
    if not any(line.startswith("| id |") for line in lines):
        raise ValueError("no table of ids")
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if set(line) - set("|- "):
            if len(cells) != len(Row._fields):
                raise ValueError(f"{cells[0]}: {len(cells)} cells")
            found.append(Row(*cells))
    return found


def problems(ledger: str, root: Path = ROOT) -> list[str]:
    """What is wrong with the ledger, by row: each page, theorem, script and test it names must exist."""
    found, seen = [], set[str]()
    headlines = set(re.findall(r"^Theorem\s+(\w+)", (root / "proofs/coq/Headlines.v").read_text(), re.M))
    named = set[str]()
    for row in rows(ledger):
        found += [f"{row.id}: twice"] * (row.id in seen)
        seen.add(row.id)
        found += [f"{row.id}: {text}" for text in (*_page(row, root), *_status(row), *_tests(row, root))]
        names = set(re.findall(r"`([^`]+)`", row.coq))
        scripts = {name for name in names if name.endswith(".py")}
        found += [f"{row.id}: no script {name}" for name in scripts if not (root / "proofs" / name).is_file()]
        found += [f"{row.id}: no theorem {name}" for name in sorted(names - scripts - headlines)]
        named |= names
    found += [f"theorem {name} is in no row" for name in sorted(headlines - named)]
    return found + list(_links(ledger, root))


def _page(row: Row, root: Path) -> Iterator[str]:
    link = re.fullmatch(r"\[[^]]+\]\((written/[\w-]+\.md)\)", row.page)
    page = root / "proofs" / link[1] if link else None
    if page is None or not page.is_file():
        yield f"no page {row.page}"
    elif len(page.read_text(encoding="utf-8")) < LEAST_PAGE:
        yield f"nothing on {link[1] if link else ''}"


def _links(ledger: str, root: Path) -> Iterator[str]:
    for page in sorted((root / "proofs/written").glob("*.md")):
        if f"(written/{page.name})" not in ledger:
            yield f"page {page.name} is in no row"
        for text, target in re.findall(r"\[([^]]+)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            file, lemma = page.parent / target, re.fullmatch(r"`(\w+)`", text)
            if not file.is_file():
                yield f"page {page.name} links to {target}, which does not exist"
            elif (
                lemma
                and file.suffix == ".v"
                and not re.search(rf"^(Theorem|Lemma) {lemma[1]}\b", file.read_text(), re.M)
            ):
                yield f"page {page.name}: no {lemma[1]} in {target}"
    for file in sorted((root / "proofs/coq").glob("*.v")):
        for name in re.findall(r"\.\./(written/[\w-]+\.md)", file.read_text()):
            if not (root / "proofs" / name).is_file():
                yield f"{file.name} names {name}, which does not exist"


def _status(row: Row) -> Iterator[str]:
    for part in row.status.split(", "):
        if part.split(" ")[0] not in STATUSES:
            yield f"unknown status {part}"


def _tests(row: Row, root: Path) -> Iterator[str]:
    named = re.findall(r"`([^`]+)`", row.tests)
    if not named:
        yield "no numeric test"
    for name in named:
        path, _, function = name.partition("::")
        if not (root / path).is_file():
            yield f"no file {path}"
        elif function not in functions(root / path):
            yield f"no test {name}"


def functions(path: Path) -> frozenset[str]:
    """Names of the test functions in a file."""
    return _functions(path.read_text(encoding="utf-8"))


@cache
def _functions(source: str) -> frozenset[str]:
    """Of a file's text, which several rows name."""
    tree = ast.parse(source)
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def mentions(text: str) -> set[str]:
    """Ids in prose: "id x", "ids x and y", also across line breaks and in backquotes."""
    name = r"`{0,2}[a-z][a-z0-9-]*`{0,2}"
    found = re.findall(rf"\bid\s+({name})", text)
    for several in re.findall(rf"\bids\s+({name}(?:(?:,|\s+and)\s+{name})*)", text):
        found += re.split(r",\s+|\s+and\s+", several)
    return {one.strip("`") for one in found}


def named_in_code(root: Path = ROOT) -> dict[str, set[str]]:
    """File -> the ids that its docstrings, or as a document it itself, name."""
    found = {}
    for path in (*sorted((root / "theory").glob("*.py")), root / "optcc/values/bound.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        strings = (n.value.value for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
        found[path.name] = mentions(" ; ".join(text for text in strings if isinstance(text, str)))
    for path in sorted((root / "docs").glob("*.md")):
        found[path.name] = set(re.findall(r"proof id\s+`([^`]+)`", path.read_text(encoding="utf-8")))
    return found


def unknown(ledger: str, named: dict[str, set[str]]) -> list[str]:
    """Ids that are named somewhere and have no row."""
    known = {row.id for row in rows(ledger)}
    return [f"{where}: no id {name}" for where, names in named.items() for name in sorted(names - known)]


def main() -> int:
    ledger = (ROOT / "proofs/README.md").read_text(encoding="utf-8")
    found = problems(ledger) + unknown(ledger, named_in_code())
    for problem in found:
        print(f"ledger: {problem}", file=sys.stderr)
    if not found:
        print(f"ledger: {len(rows(ledger))} rows, each with what it names")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
