"""What people see of `optcc run`: its table, its JSON value, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from optcc.plans.plan import Plan
from optcc.reports.console import plan_json, print_plan, ratio_of, show
from optcc.values.units import format_seconds

if TYPE_CHECKING:
    from optcc.api import Run

BUSY = 1.5
"""Emulated NICs that take so many times as long as in virtual time wait for the processor."""


def run_json(plan: Plan, outcome: Run, simulated_s: float) -> dict[str, Any]:
    """The JSON value of `optcc run`. Times are of the scaled-down cluster; `nominal` is the cluster asked for."""
    bound_s = float(outcome.plan.bound.seconds)
    nominal_s = float(plan.bound.seconds)
    rows = {
        name: {
            "achieved_s": result.median_s,
            "ratio": ratio_of(result.median_s, bound_s),
            "exact": all(result.exact),
            "times_s": list(result.seconds),
        }
        for name, result in outcome.results.items()
    }
    names = [rank.name for rank in plan.cluster.ranks]
    return {
        "achieved_s": rows["optcc"]["achieved_s"],
        "bound_s": bound_s,
        "ratio": rows["optcc"]["ratio"],
        "exact": outcome.exact,
        "exact_per_rank": {
            name: all(result.exact[i] for result in outcome.results.values()) for i, name in enumerate(names)
        },
        "algorithms": rows,
        "left_out": outcome.left_out,
        "slowdown": float(outcome.slowdown),
        "clock_error_s": _clock_error_s(outcome),
        "nominal": {**plan_json(plan), "simulated_s": simulated_s, "simulated_ratio": ratio_of(simulated_s, nominal_s)},
        "transport": outcome.transport,
    }


def print_run(plan: Plan, outcome: Run, value: dict[str, Any]) -> None:
    """The report of the main job."""
    print_plan(plan)
    table = Table(title=where_run(outcome), title_justify="left", title_style="bold")
    for column, justify in (("", "left"), ("time", "right"), ("over bound", "right"), ("result", "left")):
        table.add_column(column, justify="right" if justify == "right" else "left")
    table.add_row("bound", format_seconds(value["bound_s"]), "1.0000", "")
    table.add_row("optcc, simulated", "", f"{value['nominal']['simulated_ratio']:.4f}", "")
    for name, row in value["algorithms"].items():
        result = "exact" if row["exact"] else Text("WRONG", "bold red")
        times = row["times_s"]
        label = f"{name}, median of {len(times)}"
        table.add_row(label, format_seconds(row["achieved_s"]), f"{row['ratio']:.4f}", result)
    show("", table)
    show_clock_error(value["clock_error_s"])
    exact = "  ".join(f"{name} {'exact' if good else 'WRONG'}" for name, good in value["exact_per_rank"].items())
    show(exact)
    for name, why in outcome.left_out.items():
        show(f"{name} was left out: {why}")
    ring, simulated = value["algorithms"].get("ring"), value["nominal"]["simulated_ratio"]
    if outcome.transport == "local" and simulated and value["ratio"] > BUSY * simulated:
        show(
            f"optcc took {value['ratio'] / simulated:.3g} times as long as simulated: the processor was the limit, not "
            "the emulated NICs, so that this says nothing of schedules. Give a lower --local-rate."
        )
    elif ring:
        show(compared_with_ring(plan, value["algorithms"]["optcc"]["times_s"], ring["times_s"]))


def compared_with_ring(plan: Plan, own: Sequence[float], ring: Sequence[float]) -> str:
    """One sentence on two schedules' times in seconds, each of one run's repetitions.

    A difference is claimed only if the two ranges of times do not overlap: every run of one was faster than every run
    of the other. One repetition has no range, and shows no difference.
    """
    if _is_ring(plan):
        return "optcc's plan is the ring here: nothing is degraded that another schedule could spare."
    if min(len(own), len(ring)) > 1:
        factor = median(ring) / median(own)
        if max(own) < min(ring):
            return f"optcc's schedule is {factor:.2f} times as fast as the ring."
        if max(ring) < min(own):
            return f"The ring is {1 / factor:.2f} times as fast as optcc's schedule."
    ranges = (f"{format_seconds(min(times))} to {format_seconds(max(times))}" for times in (own, ring))
    return "No difference beyond this run's spread: optcc took {}, the ring {}.".format(*ranges)


def _is_ring(plan: Plan) -> bool:
    """Whether every byte goes around a ring of all ranks, in even parts by each rank's NICs, which are alike."""
    shares = plan.recipe.content().get("shares") or []
    rates = [{(nic.out_rate, nic.in_rate) for nic in rank.nics if nic.alive} for rank in plan.cluster.ranks]
    alike = all(len(of_rank) == 1 for of_rank in rates)
    ring = len(plan.cluster.ranks)
    nested = plan.recipe.family == "nested-rings" and bool(shares) and all(share["ring"] == ring for share in shares)
    return alike and (nested or plan.recipe.family == "ring")


def where_run(outcome: Run) -> str:
    """The machines and what carried the bytes between them: the title over measured times."""
    several = _clock_error_s(outcome) > 0  # one machine's processes share a clock
    carried = "emulated NICs" if outcome.transport == "local" else "RDMA NICs over verbs"
    slowdown = f", rates divided by {float(outcome.slowdown):.4g}" if outcome.slowdown > 1 else ""
    return f"on {'several machines' if several else 'this machine'} ({carried}{slowdown})"


def _clock_error_s(outcome: Run) -> float:
    return max(result.clock_error_s for result in outcome.results.values())


def show_clock_error(error_s: float) -> None:
    """Say how well the times of several machines can be compared; nothing where all ranks share a clock."""
    if error_s:
        show(f"the clocks of several machines: every time is within {format_seconds(error_s)} of rank 0's clock")


@contextmanager
def run_progress(repeat: int) -> Iterator[Callable[[str, int, float], None]]:
    """A progress bar on stderr, fed with (algorithm, repetitions done, seconds of the last one)."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not Console(stderr=True).is_terminal,
    ) as bar:
        tasks: dict[str, Any] = {}

        def advance(algorithm: str, done: int, seconds: float) -> None:
            if algorithm not in tasks:
                tasks[algorithm] = bar.add_task(algorithm, total=repeat)
            bar.update(tasks[algorithm], completed=done, description=f"{algorithm} {format_seconds(seconds)}")

        yield advance
