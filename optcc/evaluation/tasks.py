"""Work for several processes: each task is a value that knows how to compute its result."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import optcc
from optcc.errors import OptccError
from optcc.evaluation.cells import CellOutcome
from optcc.evaluation.rig import RigResult
from optcc.evaluation.studies import RailsResult, StarResult
from optcc.files.journal import Journal
from optcc.machine.findings import package_version
from optcc.machine.workers import processes

PACKAGES = ("numpy", "numba", "scipy", "cvxpy", "highspy")
"""What the figures may depend on."""
KINDS = {kind.__name__: kind for kind in (CellOutcome, RailsResult, RigResult, StarResult)}
"""Results that are kept; times and memory of this machine are not."""


class Task(Protocol):
    """A hashable value whose `run` computes its result, in any process."""

    @property
    def weight(self) -> float:
        """About how long it takes, beside that of others."""

    def run(self) -> Any:
        """The result."""


class ResultJournal(Journal[Any]):
    """Results of the evaluation that writes `output`, by the words for their tasks; of this very code."""

    def __init__(self, output: Path) -> None:
        super().__init__(output, "evaluation", lambda fields: KINDS[fields.pop("kind")](**fields), code=code())

    def fields(self, result: Any) -> dict[str, Any]:
        """With the kind of result."""
        return {"kind": type(result).__name__, **asdict(result)}


def run_all(
    tasks: Iterable[Task],
    *,
    jobs: int,
    done: Callable[[], None],
    kept: ResultJournal | None = None,
    fresh: bool = False,
) -> dict[Any, Any]:
    """Every task once, its result by the task; `done` is called after each. Those that take longest begin first.

    kept : results that are there already, and where new ones go; fresh : a process for every task, so that its peak
    memory is its own
    """
    unique = list(dict.fromkeys(tasks))
    found = {task: kept.results[repr(task)] for task in unique if repr(task) in kept.results} if kept else {}
    for _ in found:
        done()
    left = [task for task in unique if task not in found]
    for task, result in _results(sorted(left, key=lambda task: -task.weight), jobs, fresh):
        found[task] = result
        if kept:
            kept.add({repr(task): result})
        done()
    return {task: found[task] for task in unique}


def _results(tasks: list[Task], jobs: int, fresh: bool) -> Iterator[tuple[Task, Any]]:
    if jobs == 1 and not fresh:
        for task in tasks:
            yield task, task.run()
        return
    try:
        with processes(jobs, fresh=fresh) as pool:
            running = {pool.submit(_run, task): task for task in tasks}
            for future in as_completed(running):
                yield running[future], future.result()
    except BrokenProcessPool:
        raise OptccError("a process of the evaluation died (out of memory?): try fewer --jobs") from None


def _run(task: Task) -> Any:
    return task.run()


def code() -> str:
    """Sixteen hex digits of what results depend on: optcc's sources, Python, and packages."""
    found = hashlib.sha256(repr([platform.python_version(), *map(package_version, PACKAGES)]).encode())
    for folder, folders, names in os.walk(Path(optcc.__file__).parent, followlinks=True):
        folders.sort()
        for name in sorted(name for name in names if name.endswith(".py")):
            found.update(name.encode() + Path(folder, name).read_bytes())
    return found.hexdigest()[:16]
