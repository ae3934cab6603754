"""The house: rooms import what their ``__init__`` says, in one direction; names, lengths and uses of modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from optcc.cli.options import COMMANDS
from tools import rooms

ROOT = Path(__file__).resolve().parent.parent
graph = cache(rooms.graph)  # not before a test asks: all processes of a run read this file


@pytest.mark.parametrize("room", rooms.rooms())
def test_a_room_says_what_it_is_for_and_whom_it_knows(room: str) -> None:
    init = rooms.rooms()[room]
    assert rooms.said(init) == rooms.lines(room, graph()), "python tools/rooms.py writes them, once the change is meant"
    purpose = (ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "").split("\n")[0]
    assert len(purpose) > 20


def test_no_room_imports_one_that_imports_it() -> None:
    assert rooms.loops(graph()) == []


def test_theory_and_runtime_never_meet() -> None:
    assert not any(other.startswith("runtime") for other in graph()["theory"])
    assert not any("theory" in others for room, others in graph().items() if room.startswith("runtime"))


def test_the_checks_can_fail() -> None:
    assert rooms.loops({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) == [["a", "b", "c"]]
    assert rooms.loops({"schedule": {"theory"}, "theory": {"schedule"}}) == []
    assert rooms.imports_of("def f():\n    from optcc.runtime import hub") == {"optcc.runtime", "optcc.runtime.hub"}
    changed = {room: others | {"cli"} if room == "values" else others for room, others in graph().items()}
    assert rooms.said(rooms.rooms()["values"]) != rooms.lines("values", changed)
    assert rooms.loops(changed)


PRODUCT = {name: path.read_text(encoding="utf-8") for name, path in rooms.modules()}
"""Module -> its text."""


@cache
def classes_of(text: str) -> tuple[str, ...]:
    return tuple(node.name for node in ast.walk(ast.parse(text)) if type(node) is ast.ClassDef)


imports_of = cache(rooms.imports_of)


def named_twice(texts: Mapping[str, str]) -> list[str]:
    """Names that more than one class has."""
    times = Counter(name for text in texts.values() for name in classes_of(text))
    return sorted(name for name, count in times.items() if count > 1)


def test_no_two_classes_have_one_name() -> None:
    assert named_twice(PRODUCT) == []


BEGINNINGS = {"optcc.__main__", "optcc.pytorch", "optcc.runtime.control.child"}
"""Modules that users import, or that processes begin with."""
BY_NAME = {f"optcc.cli.{command}" for command in COMMANDS}
"""Those that the command line imports when they are asked for."""
SHOWN = {
    "optcc.theory.protocols": "proofs/written/coding.md",
    "optcc.theory.splits": "docs/howto-researcher.md",
}
"""Other modules that no module of the product imports: the page that shows what they are for."""


def imported_by_none(texts: Mapping[str, str]) -> set[str]:
    """Modules that no other one imports; packages left out."""
    packages = {module.rpartition(".")[0] for module in texts}
    imported = {module: imports_of(text) - {module} for module, text in texts.items()}
    return texts.keys() - set().union(*imported.values()) - packages


def test_what_only_tests_use_has_a_page_that_shows_it() -> None:
    found = imported_by_none(PRODUCT) - BY_NAME
    assert found == BEGINNINGS | SHOWN.keys(), "the product uses it, or a page shows it, or it goes"
    for module, page in SHOWN.items():
        assert module.rpartition(".")[2] in (ROOT / page).read_text(encoding="utf-8"), (module, page)


def test_the_checks_of_modules_can_fail() -> None:
    changed = {**PRODUCT, "optcc.twin": "class Cluster:\n    pass\n"}
    assert "Cluster" in named_twice(changed)
    assert "optcc.twin" in imported_by_none(changed)


RUNTIME_ONLY_NUMPY = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ImportError(f"not installed here: {{name}}")
sys.meta_path.insert(0, Refuse())
import optcc.runtime
from optcc.values.cluster import Cluster
from optcc.plans.plan import Plan
Plan.from_bytes(sys.stdin.buffer.read()).schedule()
"""
HEAVY = (
    *("sympy", "cvxpy", "scipy", "msgspec"),
    *("lxml", "yaml", "click", "rich", "matplotlib", "highspy"),
)


def _import_without(refused: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    import optcc

    plan = optcc.plan(optcc.Cluster.uniform(servers=4, nics=2, rate=10**9).degrade("server0/nic1"), 4096)
    return subprocess.run(
        [sys.executable, "-c", RUNTIME_ONLY_NUMPY.format(refused=refused)],
        input=plan.to_bytes(),
        capture_output=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )


def test_runtime_needs_only_numpy() -> None:
    done = _import_without(HEAVY)
    assert done.returncode == 0, done.stderr


def test_the_numpy_only_test_can_fail() -> None:
    assert b"not installed here: numpy" in _import_without(("numpy",)).stderr


@pytest.mark.parametrize("name", ["theory", "runtime"])
def test_packages_refuse_a_second_name(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert f"import optcc.{name}, not {name}" in done.stderr


def test_every_public_name_loads() -> None:
    import optcc

    for name in optcc.__all__:
        assert getattr(optcc, name) is not None
    assert sorted(optcc._HOME) == sorted(optcc.__all__)
