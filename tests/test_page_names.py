"""Files, targets of make and names of Python that pages name: all of them are there."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from optcc.errors import InputError
from tests.test_architecture import ROOT

PAGES = [
    *(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),  # which tells what has gone
    *(page for folder in ("docs", "examples", "proofs") for page in (ROOT / folder).rglob("*.md")),
]


def named(text: str) -> tuple[set[str], set[str]]:
    """Files of this tree and targets of make that a page's sentences name; not those in blocks of what was printed."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    files = r"`((?:optcc|theory|runtime|tests|tools|benchmarks|lab|examples)/[\w/.-]+\.\w+)`"
    return set(re.findall(files, text)), set(re.findall(r"`(?:[A-Z]+=\S+ )*make ([\w-]+)", text))


def gone(text: str) -> list[str]:
    """What a page names and is not there."""
    files, targets = named(text)
    lines = re.findall(r"^([a-z][\w %-]*):(?!=)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    there = {target for line in lines for target in line.split()}
    there |= {f"bench-{path.stem[6:].replace('_', '-')}" for path in (ROOT / "benchmarks").glob("bench_*.py")}
    return sorted({name for name in files if not (ROOT / name).exists()} | targets - there)


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.stem)
def test_files_and_targets_that_pages_name_exist(page: Path) -> None:
    assert gone(page.read_text()) == []


def unknown(text: str) -> list[str]:
    """Names `optcc.a.b` that no module, class or function has."""

    def known(name: str) -> bool:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            return False
        except InputError:  # it is there, and needs torch or a GPU
            return True
        return True

    return sorted(name for name in set(re.findall(r"`(optcc(?:\.[A-Za-z_]\w*)+)[`(]", text)) if not known(name))


TELLING = [
    *PAGES,
    *(ROOT / "theory").glob("*.py"),
    *(ROOT / "runtime").rglob("*.py"),
    *(ROOT / "optcc").glob("**/*.py"),
]


def test_names_of_python_that_pages_and_docstrings_name_exist() -> None:
    assert {str(path.relative_to(ROOT)): names for path in TELLING if (names := unknown(path.read_text()))} == {}
    assert unknown("`optcc.plan(x)`, `optcc.theory.bounds`, `optcc.theory.bounds.nothing`, `optcc.nothing`") == [
        "optcc.nothing",
        "optcc.theory.bounds.nothing",
    ]


def test_what_a_page_names_is_found() -> None:
    assert len(named((ROOT / "CONTRIBUTING.md").read_text())[0]) > 30
    assert gone("`make demo`, `LAB=1 make test-verbs`, `make bench-gpu-communicator`, `optcc/api.py`") == []
    assert gone("`make bench-nothing`, `X=1 make nothing` and `tests/nothing.py`") == [
        "bench-nothing",
        "nothing",
        "tests/nothing.py",
    ]
    assert gone("```\n`make nothing`\n```\n") == []
