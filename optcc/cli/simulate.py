"""`optcc simulate`: a plan in virtual time, with faults and other schemes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from optcc.cli.options import (
    algorithm_option,
    alpha_option,
    check_apart,
    emit,
    json_option,
    per_chunk_option,
    say_written,
)
from optcc.errors import InputError


@click.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@algorithm_option
@alpha_option
@per_chunk_option
@click.option(
    "--fault",
    multiple=True,
    metavar="SERVER/NIC@TIME[=LEFT]",
    help="From TIME on that NIC keeps the fraction LEFT of its rate (default 0: it dies). Repeatable.",
)
@click.option("--detect", default="1ms", show_default=True, metavar="TIME", help="From a death to the repair.")
@click.option(
    "--receivers", type=click.Choice(["stripes", "packets"]),
    help="What links and receiving ports serve in order: whole stripes (default), or packets, so that senders share "
    "them (default with pods or a spine).",
)  # fmt: skip
@click.option(
    "--service", type=click.Choice(["plan", "ready"]), default="plan", show_default=True,
    help="Which transfer a NIC sends first: in the plan's order, or what has been ready for longest, as executors do "
    "that drop the order.",
)  # fmt: skip
@click.option(
    "--jitter", default="0", show_default=True, metavar="PART",
    help="Every stripe takes longer or shorter by chance: the standard deviation of a lognormal factor of mean 1, "
    "such as 3%.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Of --jitter.")
@click.option(
    "--timeline", type=click.Path(path_type=Path, dir_okay=False), help="Draw what each NIC did: FILE.svg or FILE.json."
)
@json_option
def simulate(
    plan_file: Path,
    algorithm: str,
    alpha: str,
    per_chunk: str,
    fault: tuple[str, ...],
    detect: str,
    receivers: Literal["stripes", "packets"] | None,
    service: Literal["plan", "ready"],
    jitter: str,
    seed: int,
    timeline: Path | None,
    as_json: bool,
) -> None:
    """Run a plan in virtual time and hold it against its bound.

    A plan file does not keep --alpha and --per-chunk: give them again. When a NIC dies, what it
    carried goes by another live NIC of its server once that is noticed.
    """
    from optcc.cli.options import load_proved
    from optcc.discover.given import parse_fault
    from optcc.planner.search import baseline
    from optcc.reports.console import print_simulation, simulation_json, timeline_title, working
    from optcc.simulation.faults import check_alive
    from optcc.simulation.simulator import simulate as run_virtually
    from optcc.simulation.timeline import check_timeline, write_timeline
    from optcc.values.units import parse_fraction, parse_seconds

    latency, cost = parse_seconds(alpha, where="--alpha"), parse_seconds(per_chunk, where="--per-chunk")
    given = click.get_current_context().get_parameter_source("detect") is not click.core.ParameterSource.DEFAULT
    if given and not fault:
        raise InputError("nothing to detect", where="--detect", expected="a --fault beside it", got="none")
    context = click.get_current_context()
    spread = float(parse_fraction(jitter, where="--jitter"))
    if not spread and context.get_parameter_source("seed") is not click.core.ParameterSource.DEFAULT:
        raise InputError("nothing to draw", where="--seed", expected="a --jitter beside it", got="none")
    noticed = parse_seconds(detect, where="--detect")
    faults = [parse_fault(text, noticed) for text in fault]
    check_timeline(timeline)
    check_apart(timeline, plan_file, "--timeline")
    with working("simulating"):
        made = load_proved(plan_file)
        check_alive(faults, made.cluster)
        chosen = baseline(made, algorithm, alpha=latency, per_chunk=cost)
        schedule = chosen.schedule()
        how: dict[str, Any] = {"alpha": latency, "per_chunk": cost, "faults": faults, "receivers": receivers}
        how |= {"jitter": spread, "seed": seed}
        simulation = run_virtually(schedule, **how, service=service)
        in_order_s = None if service == "plan" else run_virtually(schedule, **how).time_s
    drawn = {"jitter": spread, "seed": seed} if spread else {}
    value = simulation_json(made, algorithm, simulation, latency, cost, faults, noticed, in_order_s) | drawn
    if timeline is not None:
        bound_s = float(made.bound.seconds)
        write_timeline(simulation, timeline, title=timeline_title(chosen), bound_s=bound_s, faults=faults)
        say_written(timeline)
    emit(as_json, value, lambda: print_simulation(value))
