"""What people see of a simulation, and its JSON value."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rich.text import Text

from optcc.plans.plan import Plan
from optcc.reports.console import percent, plain_table, ratio_of, show
from optcc.values.units import format_seconds, format_size

if TYPE_CHECKING:
    from optcc.simulation.faults import Fault
    from optcc.simulation.simulator import Simulation


OUT_OF_ORDER = "where NICs serve what is ready first"


def simulation_json(
    plan: Plan,
    algorithm: str,
    simulation: Simulation,
    alpha: Fraction,
    per_chunk: Fraction,
    faults: Sequence[Fault] = (),
    detect: Fraction = Fraction(0),
    in_order_s: float | None = None,
) -> dict[str, Any]:
    """The JSON value of `optcc simulate`. `ports` says how long each was busy, and idle by force or for good;
    `faults_too_late` which faults would have come after the end.

    in_order_s : where ports served what was ready first, seconds that the same takes in the plan's order
    """
    from optcc.simulation.usage import usage_json

    bound_s = float(plan.bound.seconds)
    return {
        "algorithm": algorithm,
        "receivers": simulation.receivers,
        "service": "plan" if in_order_s is None else "ready",
        **({} if in_order_s is None else {"in_order_s": in_order_s}),
        "alpha_s": float(alpha),
        "per_chunk_s": float(per_chunk),
        **({"detect_s": float(detect)} if faults else {}),
        "time_s": simulation.time_s,
        "bound_s": bound_s,
        "ratio": ratio_of(simulation.time_s, bound_s),
        "replayed_bytes": simulation.replayed,
        "faults_too_late": [
            {"port": fault.port, "at_s": float(fault.at_s), "left": float(fault.left)}
            for fault in faults
            if fault.at_s >= simulation.time_s
        ],
        "ports": usage_json(simulation),
        "simulated": True,
        "plan_id": plan.plan_id,
    }


def print_simulation(value: dict[str, Any]) -> None:
    """One line per figure of a simulation, what it assumed, and the port that is busiest."""
    table = plain_table()
    table.add_row(f"{value['algorithm']} (simulated)", Text(format_seconds(value["time_s"]), "bold"))
    if "in_order_s" in value:
        longer = value["time_s"] / value["in_order_s"] if value["in_order_s"] else 1.0
        order = format_seconds(value["in_order_s"])
        table.add_row("in the plan's order", f"{order}; {longer:.2f} times that {OUT_OF_ORDER} (--service)")
    table.add_row("bound", format_seconds(value["bound_s"]))
    table.add_row("simulated / bound", f"{value['ratio']:.4f}")
    latency, cost = format_seconds(value["alpha_s"]), format_seconds(value["per_chunk_s"])
    table.add_row("assumed", f"latency {latency} (--alpha), {cost} for each chunk (--per-chunk)")
    if "detect_s" in value:
        table.add_row("", f"a death is noticed after {format_seconds(value['detect_s'])} (--detect)")
    if value["receivers"] == "packets":
        table.add_row("", "packets of several senders share a receiver and a link (--receivers)")
    if value["ports"] and value["time_s"]:
        port = max(value["ports"], key=lambda port: port["busy_s"])
        shares = [percent(port[part] / value["time_s"]) for part in ("busy_s", "forced_idle_s", "idle_s")]
        said = "{} busy, {} waiting for data, {} with nothing left to do".format(*shares)
        table.add_row("busiest port", f"{port['name']} {port['way']}: {said}")
    if value["replayed_bytes"]:
        table.add_row("sent again", format_size(value["replayed_bytes"]))
    for fault in value["faults_too_late"]:
        what = f"{fault['port']} {'slows down' if fault['left'] else 'fails'} at {format_seconds(fault['at_s'])}"
        table.add_row("note", f"over at {format_seconds(value['time_s'])}, before {what}: it costs nothing")
    show(table)


def timeline_title(plan: Plan) -> str:
    """One line that says what a timeline shows."""
    size, ranks = format_size(plan.bound.nbytes), len(plan.cluster.ranks)
    return f"{plan.recipe.family}, {size} per rank, {ranks} ranks, {plan.recipe.segments} segments (simulated)"
