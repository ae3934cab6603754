"""The notebooks run, show what is stored, and have no logic of their own; and each of these checks can fail."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.notebooks import FOLDER, ROOT, execute, find, read

MAX_BYTES = 600_000
NOTEBOOKS = find()
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def shown(notebook: Any) -> list[str]:
    """What the cells print, and how large their figures are; not the pixels, which depend on fonts."""
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs(notebook)]


def faults(notebook: Any) -> list[str]:
    """What is wrong with a stored notebook, without running it."""
    found = []
    stored = outputs(notebook)
    text = "\n".join(cell.source for cell in notebook.cells)
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("kernel")
    if not any("image/png" in output.get("data", {}) for output in stored):
        found.append("no figure")
    if any(output.output_type == "error" or output.get("name") == "stderr" for output in stored):
        found.append("error stored")
    if any(cell.cell_type == "code" and cell.execution_count is None for cell in notebook.cells):
        found.append("cell not run")
    if not notebook.cells[0].source.startswith("# ") or not 3 <= kinds(notebook).count("markdown") <= 9:
        found.append("too little or too much text")
    if str(ROOT) in text + "".join(shown(notebook)):
        found.append("path of one machine")
    found += [f"broken link {link}" for link in links(text) if not (FOLDER / link).exists()]
    return found


def kinds(notebook: Any) -> list[str]:
    return [cell.cell_type for cell in notebook.cells]


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]


def logic(notebook: Any) -> list[str]:
    """Names of functions and classes that a notebook defines, but for what it gives to `interact`."""
    defined, sliders = [], set()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            source = re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE)
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    defined.append(node.name)
                elif isinstance(node, ast.Lambda):
                    defined.append("lambda")
                elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "interact":
                    sliders |= {argument.id for argument in node.args if isinstance(argument, ast.Name)}
    return [name for name in defined if name not in sliders]


def test_there_are_notebooks() -> None:
    assert [path.name.partition("-")[0] for path in NOTEBOOKS] == ["1", "2", "3", "4"]


@each
def test_what_is_stored_can_be_shown(path: Path) -> None:
    assert faults(read(path)) == []
    assert path.stat().st_size < MAX_BYTES


@each
def test_no_logic_of_their_own(path: Path) -> None:
    assert logic(read(path)) == []


@pytest.mark.long
@each
def test_runs_and_shows_what_is_stored(path: Path) -> None:
    """Every claim holds. Where only texts differ, run tools/notebooks.py and read the diff."""
    stored = read(path)
    assert shown(execute(copy.deepcopy(stored))) == shown(stored)


def test_a_false_claim_fails_the_run() -> None:
    with pytest.raises(CellExecutionError, match="two is not three"):
        execute(new_notebook(cells=[new_code_cell("import optcc"), new_code_cell("assert 2 == 3, 'two is not three'")]))


def test_a_run_is_tidied_and_sees_this_tree() -> None:
    done = execute(
        new_notebook(
            cells=[
                new_code_cell("from pathlib import Path\nimport optcc\nprint(Path(optcc.__file__).parents[1])"),
                new_code_cell("from ipywidgets import IntSlider, interact\ninteract(lambda x: x, x=IntSlider(3));"),
            ],
            metadata={"widgets": {}, "kernelspec": {"name": "other", "display_name": "other"}},
        )
    )
    assert shown(done) == [f"{ROOT}\n"]
    assert set(done.metadata) == {"kernelspec", "language_info"}
    assert done.metadata.kernelspec.name == "python3"
    assert all(cell.metadata == {} for cell in done.cells)


@pytest.mark.parametrize(
    ("fault", "doctor"),
    [
        ("kernel", lambda notebook, cell: notebook.metadata.kernelspec.update(name="python4")),
        ("no figure", lambda notebook, cell: [c.update(outputs=[]) for c in notebook.cells if "outputs" in c]),
        ("error stored", lambda notebook, cell: cell.outputs.append(new_output("error", ename="E", evalue="?"))),
        ("error stored", lambda notebook, cell: cell.outputs.append(new_output("stream", name="stderr", text="?"))),
        ("cell not run", lambda notebook, cell: cell.update(execution_count=None)),
        ("too little or too much text", lambda notebook, cell: notebook.cells.pop(0)),
        ("path of one machine", lambda notebook, cell: cell.outputs.append(new_output("stream", text=f"{ROOT}/x"))),
        (
            "broken link ../gone.md",
            lambda notebook, cell: notebook.cells.append(new_markdown_cell("[a](../gone.md#b)")),
        ),
    ],
)
def test_faults_are_found(fault: str, doctor: Callable[[Any, Any], object]) -> None:
    notebook = read(NOTEBOOKS[0])
    doctor(notebook, next(cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs))
    assert faults(notebook) == [fault]


@pytest.mark.parametrize("code", ["def f(x):\n    return x", "class C: ...", "f = lambda x: x", "async def g(): ..."])
def test_logic_is_found(code: str) -> None:
    assert len(logic(new_notebook(cells=[new_code_cell("%matplotlib inline\nx = 1"), new_code_cell(code)]))) == 1


def test_what_a_slider_calls_is_no_logic() -> None:
    cells = [new_code_cell("def draw(p):\n    print(p)"), new_code_cell("interact(draw, p=(1, 3));")]
    assert logic(new_notebook(cells=cells)) == []
    assert logic(new_notebook(cells=cells[:1])) == ["draw"]
