"""Prose for one reading: no sentence over 25 words, one sentence a line in Markdown; and the check can fail.

A sentence ends at a full stop, a question mark, a semicolon or a colon. A word begins with two letters: formulas, names
in backquotes and the targets of links do not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MOST_WORDS = 25
"""Words of a sentence. Longer ones of these pages and packages were read twice, and have been split."""

GENERATED = re.compile(r"bench-.*|evaluation|torch-tests|failover-verbs")
"""Pages that a program writes; their prose is in the program."""

PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if not GENERATED.fullmatch(page.stem))
PACKAGES = ("optcc", "theory", "runtime", "tools")

END = re.compile(
    r"(?<=[.!?])(?:\*\*)?[\"')\]]*\s+(?=[A-Z0-9`*(\[\"]|(?:optcc|jax|sysfs|xGMI|torch)\b)|(?<=[;:])\s+",
)
PARAGRAPH = re.compile(r"\n\s*\n|\n\s*\* |\n\s*\w[\w, ]* : |\n\s*(?=Raises |Returns |None where )")
ITEM = re.compile(r"\s*(?:[*+-]|\d+\.)\s+")


def sentences(text: str) -> list[str]:
    return END.split(re.sub(r"\s+", " ", text).strip())


def words(sentence: str) -> int:
    plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "X", sentence))
    return sum(re.match(r"[\"'(\[*_]*(?:[A-Za-z]{2}|[aXI]\b)", word) is not None for word in plain.split())


def prose(page: str) -> Iterator[tuple[int, str]]:
    """(number, line) of the lines that are prose: no code, table, heading, comment or HTML, nor a generated part."""
    page = re.sub(
        r"<!-- generated.*?begin -->.*?<!-- generated.*?end -->", lambda m: "\n" * m[0].count("\n"), page, flags=re.S
    )
    fence = ""
    for number, line in enumerate(page.splitlines(), 1):
        start = line.strip()
        if fence:
            fence = "" if start.startswith(fence) else fence
        elif opened := re.match(r"`{3,}|:{3,}|<!--", start):
            fence = "-->" if opened[0] == "<!--" else opened[0]
            fence = "" if fence == "-->" and "-->" in start else fence
        elif start and start[0] not in "|#<!>" and not (line.startswith("    ") and not ITEM.match(line)):
            yield number, ITEM.sub("", line, count=1).strip()


def long_lines(page: str) -> list[str]:
    """Sentences of a page that are too long."""
    return [
        f"{number}: {sentence}"
        for number, line in prose(page)
        for sentence in sentences(line)
        if words(sentence) > MOST_WORDS
    ]


def crowded_lines(page: str) -> list[str]:
    """Lines with the end of one sentence and the beginning of the next outside brackets."""
    return [
        f"{number}: {line}"
        for number, line in prose(page)
        if re.search(r"(?<!\.\.)[a-z][.!?] [A-Z][a-z]", re.sub(r"`[^`]*`|\([^()]*\)|\[[^]]*\]|\"[^\"]*\"", "", line))
    ]


def doubled_bullets(page: str) -> list[str]:
    """Lines with a bullet in a bullet."""
    return [f"{number}: {line}" for number, line in prose(page) if ITEM.match(line)]


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """(line, paragraph) of all docstrings, of constants, too."""
    for node in ast.walk(ast.parse(source)):
        for inner in getattr(node, "body", ()) if not isinstance(node, (ast.Lambda, ast.IfExp)) else ():
            if (
                isinstance(inner, ast.Expr)
                and isinstance(inner.value, ast.Constant)
                and isinstance(inner.value.value, str)
            ):
                for paragraph in PARAGRAPH.split(inner.value.value):
                    yield inner.lineno, paragraph


def long_docstrings(source: str) -> list[str]:
    return [
        f"{number}: {sentence}"
        for number, paragraph in docstrings(source)
        if "  " not in paragraph.strip().replace("\n", "").replace("    ", "")  # tables and examples
        for sentence in sentences(paragraph)
        if words(sentence) > MOST_WORDS
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_sentences_of_pages_are_short(page: Path) -> None:
    assert long_lines(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_line_of_a_page_is_a_sentence(page: Path) -> None:
    assert crowded_lines(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_line_of_a_page_has_one_bullet(page: Path) -> None:
    assert doubled_bullets(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_sentences_of_docstrings_are_short(package: str) -> None:
    found = {}
    for path in sorted((ROOT / package).resolve().rglob("*.py")):
        if long := long_docstrings(path.read_text(encoding="utf-8")):
            found[path.relative_to(ROOT).as_posix()] = long
    assert found == {}


LONG = " ".join(["word"] * (MOST_WORDS + 1))


@pytest.mark.parametrize(
    ("page", "faults"),
    [
        (f"{LONG}.", 1),
        (f"Short. {LONG}.\n* {LONG}; {LONG}.", 3),
        (f"| {LONG} |\n# {LONG}\n```\n{LONG}\n```\n    {LONG}\n<!-- {LONG}\n{LONG} -->\n", 0),
        (" ".join(["word"] * MOST_WORDS), 0),
        (f"`{LONG}` [here]({LONG}).", 0),
        (f"<!-- generated by x: begin -->\n{LONG}\n<!-- generated: end -->\n{LONG}", 1),
    ],
)
def test_a_long_sentence_is_found(page: str, faults: int) -> None:
    assert len(long_lines(page)) == faults


@pytest.mark.parametrize(
    ("page", "faults"),
    [("It is so. It ends.", 1), ("It is so.\nIt ends.", 0), ("It is so (see that. Then that).", 0), ("It is 1. 5", 0)],
)
def test_a_crowded_line_is_found(page: str, faults: int) -> None:
    assert len(crowded_lines(page)) == faults


@pytest.mark.parametrize(
    ("page", "faults"),
    [("* * It.", 1), ("  * 1. It.", 1), ("* **It** is.\n* *It* is.\n* 2 * 3", 0), ("```\n* * x\n```", 0)],
)
def test_a_doubled_bullet_is_found(page: str, faults: int) -> None:
    assert len(doubled_bullets(page)) == faults


def test_a_long_docstring_is_found() -> None:
    source = f'"""{LONG}."""\nX = 1\n"""{LONG}."""\n\n\ndef f():\n    """Short.\n\n    x : {LONG}\n    """\n'
    assert len(long_docstrings(source)) == 3
