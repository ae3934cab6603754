"""What the numbers of planner and families are worth: plans with half and with double of each, and without each family.

Writes docs/bench-numbers.md. A plan's time is that of the slower kind of receivers, as for the planner; changes are in
per cent of it. `--only A,B` prints the rows of these numbers, without the page. Each variant plans in processes of its
own. What is done is kept beside the page until it is written: after an interrupt the same command goes on.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from itertools import islice, product
from math import inf
from multiprocessing import get_context
from statistics import mean
from types import ModuleType
from typing import Any

from rich.progress import track

import optcc
import optcc.planner
import optcc.schedule
from benchmarks.bench_regret import ALPHA, PER_CHUNK, Case, uneven
from benchmarks.pages import made_with, parser, write
from optcc.errors import InputError
from optcc.planner.search import slower_s
from optcc.schedule import tuned
from optcc.schedule.families import FAMILIES
from optcc.schedule.recipe import Costs
from optcc.study.journal import Journal
from optcc.study.page import code
from optcc.values.cluster import Cluster
from optcc.values.units import format_seconds

MIB = 2**20
CASES = [
    *(Case(8, dead, mib * MIB, nics=8) for dead in ((1,), (4,), (6,), (4, 1), (4, 4)) for mib in (16, 256)),
    *(Case(8, dead, 256 * MIB, nics=8, pods=4) for dead in ((1,), (4,))),
    Case(8, (1,), 16 * MIB, rails=True),
    Case(4, (1,), 16 * MIB, nics=8, gpus=True),
    Case(32, (1,), MIB),
]
RANDOM = 5
"""Random clusters beside these cases."""
PARTS = 2
"""Every variant goes through the clusters in so many parts, one after another."""
SAME = 5e-5
"""Two times that differ by less of each other are the same one."""
HALF, DOUBLE, WITHOUT = "half", "double", "without"


@dataclass(frozen=True)
class Times:
    """Of some clusters by name: simulated seconds, infinite where there is no plan."""

    seconds: dict[str, float]


@dataclass(frozen=True)
class Task:
    """A part of the clusters with another value of a number, or without a family; with neither as it is."""

    part: int
    name: str = ""
    change: str = ""

    def run(self) -> Times:
        """In a process that does nothing else."""
        if self.change == WITHOUT:
            del FAMILIES[self.name]
        elif self.name:
            put(self.name, changed(numbers()[self.name], self.change))
        return Times(dict(planned(islice(cells(), self.part, None, PARTS))))


def cells() -> Iterator[tuple[str, Cluster, int, Costs]]:
    """What is planned: name, cluster, bytes, costs."""
    for case in CASES:
        yield str(case), case.cluster, case.nbytes, Costs(ALPHA, PER_CHUNK)
    for number in range(RANDOM):
        one = uneven(number, most=10)
        yield f"random cluster {number}", one.cluster, one.nbytes, Costs(one.alpha, one.per_chunk)


def planned(of: Iterator[tuple[str, Cluster, int, Costs]]) -> Iterator[tuple[str, float]]:
    """Name and simulated seconds of the plans. With some values a formula divides by zero: there is no plan."""
    for name, cluster, nbytes, costs in of:
        try:
            plan = optcc.plan(cluster, nbytes, alpha=costs.alpha, per_chunk=costs.per_chunk)
            yield name, slower_s(plan.schedule(), costs)
        except (InputError, ZeroDivisionError):
            yield name, inf


def numbers() -> dict[str, Any]:
    """Those that shape plans, and limits of planning's effort, by name."""
    return {name: value for name, value in vars(tuned).items() if name.isupper()}


def changed(value: Any, change: str) -> Any:
    """Half or double of a number, of each in a tuple. An integer stays one, and is 1 at least; a part of a whole is 1
    at most."""
    if isinstance(value, tuple):
        return tuple(changed(each, change) for each in value)
    other = value * (Fraction(1, 2) if change == HALF else 2)
    if isinstance(value, int):
        return max(1, round(other))
    return min(other, Fraction(1)) if isinstance(value, Fraction) and value <= 1 else type(value)(other)


def put(name: str, value: Any) -> None:
    """The number's new value, in every module that has it."""
    old = numbers()[name]
    for module in modules():
        if vars(module).get(name) is old:
            setattr(module, name, value)


def modules() -> list[ModuleType]:
    """All of planner and families."""
    rooms = (optcc.planner, optcc.schedule)
    return [
        import_module(one.name) for room in rooms for one in pkgutil.iter_modules(room.__path__, f"{room.__name__}.")
    ]


def effect(base: dict[str, float], found: dict[str, float]) -> str:
    """What changes, in per cent: in how many clusters, in the mean of these, from the best to the worst."""
    every = [100 * (found[name] / base[name] - 1) for name in base]
    lost, changes = every.count(inf), [each for each in every if 100 * SAME < abs(each) < inf]
    words = [f"{len(changes)}: {mean(changes):+.1f} ({min(changes):+.1f} to {max(changes):+.1f})"] if changes else []
    return "; ".join([*words, *([f"no plan in {lost}"] if lost else [])]) or "none"


def shown(value: Any) -> str:
    """For people."""
    if isinstance(value, tuple):
        return ", ".join(map(shown, value))
    return f"{value}" if isinstance(value, int | Fraction) else f"{value:.3g}"


def results(tasks: Sequence[Task], jobs: int, kept: Journal[Times] | None) -> dict[Task, Times]:
    """Of every task, each in a process of its own; what is `kept` is not made again."""
    found = {task: kept.results[repr(task)] for task in tasks if repr(task) in kept.results} if kept else {}
    left = [task for task in tasks if task not in found]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        running = {pool.submit(task.run): task for task in left}
        for future in track(as_completed(running), total=len(left), description="planning"):
            found[running[future]] = future.result()
            if kept:
                kept.add({repr(running[future]): future.result()})
    return found


def tables(names: Sequence[str], families: Sequence[str], found: dict[Task, Times]) -> list[str]:
    """The rows of numbers, and of families."""
    by_name = {(task.name, task.change): dict[str, float]() for task in found}
    for task, times in found.items():
        by_name[task.name, task.change] |= times.seconds
    base = by_name["", ""]
    lines = ["| number | value | half | double |", "|---|---|---|---|"]
    for name in names:
        effects = [effect(base, by_name[name, change]) for change in (HALF, DOUBLE)]
        lines.append(f"| `{name}` | {shown(numbers()[name])} | {' | '.join(effects)} |")
    if families:
        lines += ["", "| family | without it |", "|---|---|"]
        lines += [f"| {family} | {effect(base, by_name[family, WITHOUT])} |" for family in families]
    return lines


def main() -> int:
    asked = parser(__doc__, "bench-numbers")
    asked.add_argument("--only", metavar="NAMES", help="only these numbers, printed, without the page")
    asked.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    given = asked.parse_args()
    names = given.only.split(",") if given.only else sorted(numbers())
    families = [] if given.only else [name for name, of in FAMILIES.items() if "candidates" in vars(of)]
    variants = [("", ""), *((name, WITHOUT) for name in families), *product(names, (HALF, DOUBLE))]
    tasks = [Task(part, *variant) for part in range(PARTS) for variant in variants]
    with ExitStack() as stack:
        kept = None
        if not given.only:
            journal: Journal[Times] = Journal(given.output, "numbers", Times, code=code())
            kept = stack.enter_context(journal)
        lines = tables(names, families, results(tasks, given.jobs, kept))
        if kept is None:
            print("\n".join(lines))
            return 0
        count = len(list(cells()))
        text = [
            "# What the planner's numbers are worth",
            "",
            f"Made by `make bench-numbers`: {count} clusters are planned as usual.",
            "Then they are planned with half and with double of each number, and without each family.",
            "Numbers of `optcc/schedule/tuned.py` shape plans, those of `optcc/schedule/tuned.py` limit planning.",
            f"{len(CASES)} clusters have healthy and dead NICs, {format_seconds(ALPHA)} from NIC to NIC and",
            f"{format_seconds(PER_CHUNK)} per chunk; {RANDOM} are random, with NICs of all kinds and five other costs.",
            "",
            "A cell says in how many clusters the plan's simulated time changes by 0.005 % or more.",
            "Then follows the change in per cent, in the mean of these clusters, and from the best to the worst.",
            "*none*: the number matters in other clusters, or for planning time alone.",
            "",
            *lines,
            "",
            made_with(),
        ]
        write(given.output, text, lambda c: c["double"][:2] in ("8:", "9:"))
        kept.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
