"""How people see anything: tables, percentages, a spinner; a bound, a plan, a simulation, the last two also as JSON."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from optcc.plans.plan import Plan
from optcc.values.bound import GBPS, LARGEST_GAP, Bound, BoundWithCosts, ProgramCertificate, bound_json
from optcc.values.cluster import Cluster
from optcc.values.units import format_rate, format_seconds, format_size

if TYPE_CHECKING:
    from optcc.simulation.faults import Fault
    from optcc.simulation.simulator import Simulation
    from optcc.theory.sensitivity import JointRepair, Repair

FIRST_LINE_S = 30.0
"""Seconds until what takes long is told where there is no spinner."""
NOISE, LEAST_SHOWN = 1e-7, 0.001
"""Per cent: simulated times are doubles and add up to some 1e-9 % of rounding; less than the second is no matter."""


def plain_table(title: str = "") -> Table:
    return Table(
        title=title or None, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
    )


class _Console(Console):
    """Leaves a closed pipe to `optcc.cli.options.emit`, where rich would exit with 1, which is a wrong result's."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def show(*parts: Any) -> None:
    # Names come from files: they are shown as they are, not read as rich's markup. A pipe has no width to wrap at,
    # unless COLUMNS says one, and what reads from it wants no blanks that pad a table's last column.
    terminal = Console().is_terminal
    console = _Console(highlight=False, markup=False, width=None if terminal or "COLUMNS" in os.environ else 1000)
    if terminal:
        for part in parts:
            console.print(part)
        return
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def percent(value: float | Fraction) -> str:
    """0.0667 to 6.67 %, never with an exponent: what is closer to 0 than `NOISE` is 0."""
    hundredths = 100 * float(value)
    if abs(hundredths) < NOISE:
        return "0 %"
    if 0 < hundredths < LEAST_SHOWN:
        return f"under {LEAST_SHOWN} %"
    return f"{hundredths:.3g} %" if abs(hundredths) < 1000 else f"{hundredths:.0f} %"


def over(ratio: float) -> str:
    """1.0667 to 6.67 % over the bound; below a thousandth of a per cent: at the bound."""
    return "at the bound" if abs(ratio - 1) < 1e-5 else f"{percent(ratio - 1)} over the bound"


def ratio_of(time_s: float, bound_s: float) -> float:
    """Time over bound; 1 when there is nothing to send."""
    return time_s / bound_s if bound_s else 1.0


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr, with the seconds so far; where that is no terminal, a line now and then of what takes long.

    Yields what takes the name of the step that is under way.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        with _told_in_lines(what) as tell:
            yield tell
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda step: bar.update(task, description=f"{what}: {step}")


@contextmanager
def _told_in_lines(what: str) -> Iterator[Callable[[str], None]]:
    """The first line after `FIRST_LINE_S`, then each time after twice as long."""
    steps, over, started = [what], threading.Event(), time.monotonic()

    def tell() -> None:
        pause = FIRST_LINE_S
        while not over.wait(pause):
            passed = time.monotonic() - started
            with suppress(OSError, ValueError):  # nobody reads it
                print(f"note: {steps[-1]}, {passed:.0f} s so far", file=sys.stderr, flush=True)
            pause = passed

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield lambda step: steps.append(f"{what}: {step}")
    finally:
        over.set()
        thread.join(1.0)


SHOWN_PRICES = 4
SHOWN_SERVERS = 4
"""Servers that are named one by one, so that a line can be read; --json names all."""


def print_bound(bound: Bound, cluster: Cluster) -> None:
    """A few lines: bound, fault-free, overhead, bottleneck, certificate."""
    from optcc.theory.bounds import scope_of

    cert = bound.certificate
    table = plain_table()
    who = "GPUs" if cluster.gpu_ranks else "servers"
    cert_of = cert.collective if isinstance(cert, ProgramCertificate) else "allreduce"
    each = {"allreduce": " per rank", "reduce-scatter+allgather": " each"}.get(cert_of, " in all")
    table.add_row(f"{cert_of} of", f"{format_size(bound.nbytes)}{each} over {len(cluster.ranks)} {who}")
    table.add_row("no faster than", Text(format_seconds(bound.seconds), "bold"))
    if cluster.pristine is None:
        table.add_row("overhead", "none counted: no failure was given, and the topology as it is counts as fault-free")
    else:
        table.add_row("fault-free", format_seconds(bound.fault_free_s))
        table.add_row("unavoidable overhead", percent(bound.overhead))
    table.add_row("limited by", bound.bottleneck)
    if isinstance(cert, ProgramCertificate):
        for price in cert.prices[1:SHOWN_PRICES]:
            table.add_row("", f"{price.what}: {percent(price.share)}")
        if len(cert.prices) > SHOWN_PRICES:
            table.add_row("", f"and {len(cert.prices) - SHOWN_PRICES} more")
        proof = f"exact program: {len(cert.cuts)} weighted cuts, gap {float(cert.gap):.1g}, checked"
        table.add_row("certificate", proof)
        table.add_row("binds", scope_of(cluster, cert).words)
    elif cert.nbytes:
        moved, rate = format_size(cert.nbytes), format_rate(cert.rate)
        table.add_row("certificate", f"{cert.kind}, closed form: {moved} must pass ports of {rate} ({cert.direction})")
    show(table)


def print_repairs(repairs: Sequence[Repair]) -> None:
    """A table of degraded NICs, the most worthwhile repair first."""
    if not repairs:
        show("nothing to repair")
        return
    table = Table(title="repair first", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("NIC", "bound once repaired", "saves", "saves per Gb/s"):
        table.add_column(column)
    for r in repairs:
        per_gbps = format_seconds(r.gain_s_per_rate * GBPS)
        table.add_row(r.nic, format_seconds(r.repaired_s), format_seconds(r.saved_s), per_gbps)
    show(table)


def print_together(steps: Sequence[JointRepair]) -> None:
    """A table of repairs one after the other; nothing where every repair helps alone."""
    if not steps:
        return
    title = "repair together, step by step"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("", "NICs", "bound once repaired", "saves"):
        table.add_column(column)
    for number, step in enumerate(steps, 1):
        table.add_row(
            str(number), nics_in_words(step.nics), format_seconds(step.repaired_s), format_seconds(step.saved_s)
        )
    show(table)


def nics_in_words(names: Sequence[str]) -> str:
    """SERVER/NIC names as people say them: one as it is, several as "nic0 of server0, server1"."""
    if len(names) == 1:
        return names[0]
    nics_of: dict[str, list[str]] = {}
    for name in names:
        server, _, nic = name.partition("/")
        nics_of.setdefault(server, []).append(nic)
    servers_with: dict[str, list[str]] = {}
    for server, nics in nics_of.items():
        servers_with.setdefault(", ".join(nics), []).append(server)
    return "; ".join(f"{nics} of {_some(servers)}" for nics, servers in servers_with.items())


def _some(servers: Sequence[str]) -> str:
    if len(servers) <= SHOWN_SERVERS:
        return ", ".join(servers)
    return f"{len(servers)} servers ({', '.join(servers[: SHOWN_SERVERS - 1])}, ..., {servers[-1]})"


def print_costs(found: BoundWithCosts) -> None:
    """The bound with costs, how much above the one without, and what it is made of."""
    table = plain_table()
    costs = f"{format_seconds(found.alpha)} a hop, {format_seconds(found.per_chunk)} a chunk and port"
    table.add_row("with costs of", costs)
    more = Text.assemble((format_seconds(found.seconds), "bold"), f", {format_seconds(found.extra_s)} more")
    table.add_row("no faster than", more)
    for part in found.parts:
        if part.seconds:
            table.add_row("", f"{format_seconds(part.seconds)} {part.what}")
    show(table)


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
    from optcc.simulation.simulator import usage_json

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
    if "jitter" in value:
        drawn = f"{percent(value['jitter'])} of jitter from stripe to stripe, drawn by seed {value['seed']}"
        table.add_row("", f"{drawn} (--jitter, --seed)")
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
    return f"{plan.family}, {size} per rank, {ranks} ranks, {plan.segments} segments (simulated)"


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


def expected(plan: Plan, alpha: Fraction, per_chunk: Fraction) -> ExpectedTime:
    """The plan's simulated time, unless there are more than `MOST_SIMULATED` transfers."""
    from optcc.simulation.simulator import seconds, simulate

    time_s = ready_s = None
    schedule = plan.schedule()
    if len(schedule) <= MOST_SIMULATED:
        time_s = seconds(schedule, alpha, per_chunk)
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
        "family": plan.family,
        **plan.choices,
        "fluid_s": float(plan.fluid_s),
        "plan_id": plan.plan_id,
    }


def _plan_rows(table: Table, plan: Plan) -> None:
    for label, text in plan.told:
        table.add_row(f"  {label}", text)
    table.add_row("  plan id", plan.plan_id)
    gap = plan.fluid_s / plan.bound.seconds - 1 if plan.bound.seconds else Fraction(0)
    if gap > LARGEST_GAP:  # closer than the certificate tells the optimum is on the bound
        table.add_row("  note", f"without latency this family stays {percent(gap)} above the bound on this cluster")


def print_plan(plan: Plan, found: ExpectedTime | None = None) -> None:
    """The bound's lines and the plan's, and what it is expected to take."""
    print_bound(plan.bound, plan.cluster)
    table = plain_table(f"plan: {plan.family}")
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
