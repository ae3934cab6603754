"""Execute notebooks in place, and keep of the result only what does not change from run to run.

    python tools/notebooks.py [NOTEBOOK ...]        all of notebooks/ without an argument

Each runs in a kernel of this interpreter, in its own directory, against this tree whether optcc is installed or not.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
CELL_TIMEOUT_S = 120
LIVE_ONLY = "application/vnd.jupyter.widget-view+json"
"""A slider: nothing to see without a kernel, and a new random id in every run."""


def find() -> list[Path]:
    """Every notebook of the project, in reading order."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> Any:
    """The notebook at `path`; its format is checked."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    return notebook


def execute(notebook: Any, folder: Path = FOLDER) -> Any:
    """`notebook` with the outputs of a fresh run in `folder`, tidied. Raises CellExecutionError when a cell fails."""
    done = nbformat.from_dict(notebook)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        done,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,  # how a cell's output was cut into messages is chance
        extra_arguments=["--log-level=CRITICAL"],
    )
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    client.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))})
    return tidy(done)


def tidy(notebook: Any) -> Any:
    """`notebook` without live widgets, and with the metadata that a reader needs."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if LIVE_ONLY not in output.get("data", {})]
    return notebook


def main() -> int:
    for path in [Path(name).resolve() for name in sys.argv[1:]] or find():
        begin = time.monotonic()
        done = execute(read(path), path.parent)
        partial = path.with_name(path.name + ".partial")
        nbformat.write(done, partial)  # type: ignore[no-untyped-call]
        partial.replace(path)
        print(f"{path.name}: {time.monotonic() - begin:.1f} s, {path.stat().st_size // 1024} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
