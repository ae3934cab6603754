"""The direction of the house: theory -> optcc <- runtime, and only the joint (cli, api) sees all three."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMUNICATOR = (
    "calls",
    "buffers",
    "clusters",
    "collectives",
    "debug",
    "events",
    "gpu_buffers",
    "groups",
    "interface",
    "prepared",
)
JOINTS = {
    "optcc.cli",
    "optcc.api",
    "optcc.communicator",
    *(f"optcc.communicator.{m}" for m in COMMUNICATOR),
    *(f"optcc.torch_backend.{m}" for m in ("group", "options", "start")),
    "optcc.planner",
    "optcc.drill",
    "optcc.drill_timeline",
    "optcc.cli_bound",
    "optcc.cli_ranks",
    "optcc.cli_run",
    "optcc.cli_calibrate",
    "optcc.diagnose.possible",
    "optcc.pytorch",
    "optcc.sweep.execute",
    *(
        f"optcc.schedule.{m}"
        for m in ("nested", "trees", "packed", "striped", "grouped_candidates", "inside_candidates")
    ),
    *(f"optcc.standby.{m}" for m in ("planner", "shapes", "solve")),
    "optcc.serve.work",
    *(f"optcc.evaluation.{m}" for m in ("cells", "claims", "rig", "studies")),
}


def imports_of(source: str) -> set[str]:
    """Modules that `source` names in import statements at any depth, except under `if TYPE_CHECKING`."""
    found = set()
    tree = ast.parse(source)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def offences(name: str, source: str) -> list[str]:
    """Imports of module `name` that go against the direction."""
    side = next((s for s in ("theory", "runtime") if name.startswith(f"optcc.{s}")), "core")
    forbidden = {"theory": ["optcc.runtime"], "runtime": ["optcc.theory"], "core": ["optcc.theory", "optcc.runtime"]}
    if name in JOINTS:
        return []
    wrong = [*forbidden[side], *("optcc.cli", "optcc.api")]
    return sorted(i for i in imports_of(source) if any(i == w or i.startswith(w + ".") for w in wrong))


def modules() -> list[tuple[str, Path]]:
    found = []
    for folder, prefix in (("optcc", "optcc"), ("theory", "optcc.theory"), ("runtime", "optcc.runtime")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inner = path.relative_to(ROOT / folder).with_suffix("").parts
            if folder == "optcc" and inner[0] in ("theory", "runtime", "__main__"):
                continue
            found.append((".".join([prefix, *(p for p in inner if p != "__init__")]), path))
    return found


@pytest.mark.parametrize(("name", "path"), modules(), ids=lambda v: v if isinstance(v, str) else "")
def test_imports_point_one_way(name: str, path: Path) -> None:
    assert offences(name, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("optcc.cluster", "import optcc.theory"),
        ("optcc.plans", "def f():\n    from optcc.runtime import run_schedules"),
        ("optcc.theory.bounds", "from optcc import runtime"),
        ("optcc.runtime.engine", "from optcc.theory.shares import nested_shares"),
        ("optcc.simulator", "from optcc.api import plan"),
    ],
)
def test_the_direction_test_can_fail(name: str, source: str) -> None:
    assert offences(name, source)


RUNTIME_ONLY_NUMPY = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ImportError(f"not installed here: {{name}}")
sys.meta_path.insert(0, Refuse())
import optcc.runtime
from optcc.cluster import Cluster
from optcc.plans import Plan
Plan.from_json(sys.stdin.read()).schedule()
"""
HEAVY = (
    *("sympy", "cvxpy", "scipy", "numba", "pint", "msgspec"),
    *("lxml", "yaml", "click", "rich", "matplotlib", "highspy"),
)


def _import_without(refused: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    import optcc

    plan = optcc.plan(optcc.Cluster.uniform(servers=4, nics=2, rate=10**9).degrade("server0/nic1"), 4096)
    return subprocess.run(
        [sys.executable, "-c", RUNTIME_ONLY_NUMPY.format(refused=refused)],
        input=plan.to_json(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )


def test_runtime_needs_only_numpy() -> None:
    done = _import_without(HEAVY)
    assert done.returncode == 0, done.stderr


def test_the_numpy_only_test_can_fail() -> None:
    assert "not installed here: numpy" in _import_without(("numpy",)).stderr


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
