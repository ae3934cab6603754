"""Work for several processes: each task is a value that knows how to compute its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Protocol

from optcc.errors import OptccError


class Task(Protocol):
    """A hashable value whose `run` computes its result, in any process."""

    def run(self) -> Any:
        """The result."""


def run_all(tasks: Iterable[Task], *, jobs: int, done: Callable[[], None], fresh: bool = False) -> dict[Any, Any]:
    """Every task once, its result by the task; `done` is called after each.

    fresh : a process for every task, so that its peak memory is its own
    """
    unique = list(dict.fromkeys(tasks))
    return dict(zip(unique, _results(unique, jobs, done, fresh), strict=True))


def _results(tasks: list[Task], jobs: int, done: Callable[[], None], fresh: bool) -> Iterator[Any]:
    if jobs == 1 and not fresh:
        for task in tasks:
            yield task.run()
            done()
        return
    try:
        with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1 if fresh else None) as pool:
            for result in pool.map(_run, tasks):
                yield result
                done()
    except BrokenProcessPool:
        raise OptccError("a process of the evaluation died (out of memory?): try fewer --jobs") from None


def _run(task: Task) -> Any:
    return task.run()
