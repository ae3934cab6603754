"""The examples, and what else a user finds, are there in a wheel and from any directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import optcc
from optcc.cli import main
from optcc.files.bundled import EXAMPLES

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples"
XML = FOLDER / "h100-8x400g.nccl-topo.xml"
LIMIT_S = 600
"""For a process of its own: seconds on an idle machine, and machines may be slow and busy."""


def call(*args: object) -> Result:
    return CliRunner().invoke(main, ["example", *map(str, args)])


def run_python(*args: str, folder: Path, path: Path) -> str:
    """What Python prints, run in `folder` with `path` before all installed packages."""
    env = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, *args], cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_listed_with_what_it_is() -> None:
    files = {str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert files - {"README.md"} == set(EXAMPLES)
    shown = call().stdout
    assert all(f"{name} " in shown and what in shown for name, what in EXAMPLES.items())
    listed = json.loads(call("--json").stdout)["examples"]
    assert [entry["name"] for entry in listed] == list(EXAMPLES)


@pytest.mark.parametrize("name", ["h100-8x400g", "h100-8x400g.nccl-topo.xml"])
def test_an_example_is_printed_or_written(name: str, tmp_path: Path) -> None:
    assert call(name).stdout == XML.read_text(encoding="utf-8")
    assert json.loads(call(name, "--json").stdout)["text"] == XML.read_text(encoding="utf-8")
    written = tmp_path / "topo.xml"
    result = call(name, "-o", written)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"wrote {written}\n")
    assert written.read_bytes() == XML.read_bytes()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["h100"], "NAME: no such example, expected one of h100-8x400g.nccl-topo.xml"),
        (["../README"], "no such example"),
        (["-o", "x"], "-o: nothing to write"),
        (["two-degraded", "-o", "/nonexistent/x"], "/nonexistent/x: cannot be written"),
        (["two-degraded", "-o", "-", "--json"], "two results on standard output"),
    ],
)
def test_what_cannot_be_is_told(args: list[str], says: str) -> None:
    result = call(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_a_topology_among_them_is_read_by_its_name() -> None:
    assert optcc.load_topology("example:h100-8x400g", servers=4).cluster == optcc.load_topology(XML, servers=4).cluster
    told = CliRunner().invoke(main, ["bound", "example:two-degraded", "--json"])
    assert json.loads(told.stdout)["ranks"] == 8
    refused = CliRunner().invoke(main, ["bound", "example:three-degraded"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "example:three-degraded: no such example, expected one of" in refused.stderr


@pytest.mark.long
def test_the_readmes_python_runs_in_another_directory(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    quick = code.replace("2**25", "2**15") + "\nprint(plan.bound.overhead)\n"
    assert quick.count("2**15") == 1
    # 31 of 32 NICs are left.
    assert run_python("-c", quick, folder=tmp_path, path=ROOT).splitlines()[1:] == ["1/31"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built in a copy, since setuptools leaves its products where it builds."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for folder in ("optcc", "theory", "runtime", "examples"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    build = ["-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(out)]
    run_python(*build, folder=copy, path=copy)
    (built,) = out.glob("optcc_toolkit-*.whl")
    return built


def test_the_wheel_holds_every_module_and_example(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    homes = {"optcc": "optcc", "theory": "optcc/theory", "runtime": "optcc/runtime"}
    modules = {
        f"{home}/{path.relative_to(ROOT / folder)}" for folder, home in homes.items() for path in walk(ROOT / folder)
    }
    assert modules - held == set()
    assert {f"optcc/examples/{name}" for name in EXAMPLES} - held == set()


def walk(folder: Path) -> list[Path]:
    """Python files below `folder`, links to other folders left out."""
    return [path for path in folder.rglob("*.py") if not any(p.is_symlink() for p in path.parents if p != folder)]


def test_the_wheel_works_in_any_directory(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:  # a pure wheel's content is what is installed
        archive.extractall(installed)
    where = run_python("-c", "import optcc; print(optcc.__file__)", folder=tmp_path, path=installed)
    assert Path(where.strip()) == installed / "optcc" / "__init__.py"
    printed = run_python("-m", "optcc", "example", "two-degraded", folder=tmp_path, path=installed)
    assert printed == (FOLDER / "two-degraded.yaml").read_text(encoding="utf-8")
    bound = run_python("-m", "optcc", "bound", "example:two-degraded", "--json", folder=tmp_path, path=installed)
    assert json.loads(bound)["ranks"] == 8


def test_no_page_installs_the_unrelated_package_of_that_name() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    wrong = re.compile(r"pip install\s+'?optcc\b")
    assert wrong.search("pip install optcc"), "the pattern finds it"
    assert [page.name for page in pages if wrong.search(page.read_text(encoding="utf-8"))] == []


def test_make_notebook_opens_what_its_extra_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = project["optional-dependencies"]["notebooks"]
    assert {re.split("[<>=]", need)[0] for need in extra} == {"jupyterlab", "ipykernel", "ipywidgets"}
    run = ["make", "--dry-run", "notebook", "LAB=--no-browser", f"VENV={sys.prefix}"]
    said = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    assert f"{sys.prefix}/bin/pip install" in said
    assert said.index(".[notebooks]") < said.index(f"{sys.prefix}/bin/python -m jupyterlab --no-browser notebooks")
