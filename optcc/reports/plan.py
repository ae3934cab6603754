"""What people see of a plan and the time it is expected to take, and the same as JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rich.table import Table

from optcc.plans.plan import Plan
from optcc.reports.bound import print_bound
from optcc.reports.console import over, percent, plain_table, ratio_of, show
from optcc.reports.simulation import OUT_OF_ORDER
from optcc.schedule.columns import Schedule
from optcc.values.bound import LARGEST_GAP, bound_json
from optcc.values.units import format_seconds


@dataclass(frozen=True)
class ExpectedTime:
    """What a plan takes in virtual time at the costs it was made for, in seconds; None where that was not simulated.

    ready_s : likewise, where ports serve what has been ready for longest and not the plan's order
    """

    time_s: float | None
    ready_s: float | None
    alpha_s: float
    per_chunk_s: float


MOST_SIMULATED = 2**21
"""Transfers of a plan whose time is simulated for the report: about two seconds. 128 servers, 64 segments deep."""


def expected(plan: Plan, alpha: Fraction, per_chunk: Fraction, schedule: Schedule | None = None) -> ExpectedTime:
    """The plan's simulated time, unless there are more than `MOST_SIMULATED` transfers or so.

    schedule : what the plan lowers to, where that is at hand
    """
    from optcc.simulation.simulator import simulate

    time_s = ready_s = None
    if 2 * len(plan.cluster.ranks) ** 2 * plan.recipe.segments <= MOST_SIMULATED:
        schedule = plan.schedule() if schedule is None else schedule
        time_s = simulate(schedule, alpha=alpha, per_chunk=per_chunk).time_s
        ready_s = simulate(schedule, alpha=alpha, per_chunk=per_chunk, service="ready").time_s
    return ExpectedTime(time_s, ready_s, float(alpha), float(per_chunk))


def expected_json(plan: Plan, found: ExpectedTime) -> dict[str, Any]:
    """Simulated seconds, over the bound, and at which costs; null where it was not simulated."""
    ratio = None if found.time_s is None else ratio_of(found.time_s, float(plan.bound.seconds))
    return {
        "simulated_s": found.time_s,
        "simulated_ratio": ratio,
        "simulated_ready_s": found.ready_s,
        "alpha_s": found.alpha_s,
        "per_chunk_s": found.per_chunk_s,
    }


def plan_json(plan: Plan) -> dict[str, Any]:
    """The JSON value of `optcc plan`."""
    return {
        **bound_json(plan.bound, plan.cluster),
        "family": plan.recipe.family,
        **plan.recipe.content(),
        "fluid_s": float(plan.fluid_s),
        "plan_id": plan.plan_id,
    }


def _plan_rows(table: Table, plan: Plan) -> None:
    for label, text in plan.recipe.describe(plan.cluster):
        table.add_row(f"  {label}", text)
    table.add_row("  plan id", plan.plan_id)
    gap = plan.fluid_s / plan.bound.seconds - 1 if plan.bound.seconds else Fraction(0)
    if gap > LARGEST_GAP:  # closer than the certificate tells the optimum is on the bound
        table.add_row("  note", f"without latency this family stays {percent(gap)} above the bound on this cluster")


def print_plan(plan: Plan, found: ExpectedTime | None = None) -> None:
    """The bound's lines and the plan's, and what it is expected to take."""
    print_bound(plan.bound, plan.cluster)
    table = plain_table(f"plan: {plan.recipe.family}")
    _plan_rows(table, plan)
    if found is not None:
        if found.time_s is None:
            table.add_row("  simulated", "not here, for its many transfers: optcc simulate PLAN does")
        else:
            ratio = ratio_of(found.time_s, float(plan.bound.seconds))
            table.add_row("  simulated", f"{format_seconds(found.time_s)}, {over(ratio)}")
        costs = f"latency {format_seconds(found.alpha_s)}, {format_seconds(found.per_chunk_s)} for each chunk"
        table.add_row("", f"{costs} (--alpha, --per-chunk)")
        if found.time_s and found.ready_s:
            table.add_row("  out of order", f"{found.ready_s / found.time_s:.2f} times that, {OUT_OF_ORDER}")
    show(table)
