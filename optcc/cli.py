"""The command line. Results go to stdout (one JSON object with --json), everything else to stderr.

Exit status: 0 done; 1 a result is wrong or a rank failed; 2 the input cannot be used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from optcc import __version__
from optcc.cli_reproduce import reproduce
from optcc.cli_sweep import sweep
from optcc.errors import InputError, OptccError

if TYPE_CHECKING:
    from optcc.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])


class _Commands(click.Group):
    """Turns optcc's errors into a message on stderr and the promised exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OptccError as error:
            click.echo(f"optcc: {error}", err=True)
            ctx.exit(2 if isinstance(error, InputError) else 1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="optcc")
def main() -> None:
    """How fast can AllReduce be on a degraded GPU cluster, which schedule gets there, and does it?

    TOPOLOGY is an NCCL topology XML, optcc's YAML, or a preset such as uniform:servers=8,nics=8,rate=400Gb/s.
    """


main.add_command(sweep)
main.add_command(reproduce)


def _stack(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
_cluster = _stack(
    click.option("--servers", type=int, metavar="N", help="Replicate a one-server topology N times."),
    click.option(
        "--fail",
        multiple=True,
        metavar="SERVER/NIC[=LEFT]",
        help="A failed NIC and the fraction of its rate that is left (default 0). Repeatable.",
    ),
    click.option("--nic-rate", metavar="RATE", help="The rate of NICs whose speed the file does not give."),
    click.option(
        "--ranks",
        type=click.Choice(["server", "gpu"]),
        help="A rank is a server with all its NICs (default), or a GPU with its NVLink port and the NICs beside it.",
    ),
)
_size = click.option("--size", default="1GiB", show_default=True, metavar="SIZE", help="Bytes per rank.")
_alpha = click.option("--alpha", default="0us", show_default=True, metavar="TIME", help="Latency from NIC to NIC.")
_per_chunk = click.option(
    "--per-chunk",
    default="0us",
    show_default=True,
    metavar="TIME",
    help="What a port spends on each chunk beside its bytes.",
)
_algorithm = click.option(
    "--algorithm",
    default="optcc",
    show_default=True,
    metavar="NAME",
    help="optcc, or the same job by ring, balance, hot-repair, r2cc or optcc-published.",
)
_family = click.option("--family", metavar="NAME", help="The family of schedules (default: the fastest here).")
_segments = click.option("--segments", type=int, metavar="K", help="Pipeline depth (default: chosen by size).")


def _read_cluster(
    topology: str, servers: int | None, fail: tuple[str, ...], nic_rate: str | None, ranks: str | None
) -> Cluster:
    from optcc.discover import apply_failures, load_topology

    found = load_topology(topology, servers=servers, nic_rate=nic_rate)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    return apply_failures(replace(found.cluster, gpu_ranks=ranks == "gpu"), fail)


def _read_size(text: str) -> int:
    from optcc.units import parse_size

    size = parse_size(text, where="--size")
    if size < 1:
        raise InputError("nothing to reduce", where="--size", expected="1 byte or more", got=text)
    return size


@main.command()
@click.argument("topology")
@_cluster
@_size
@click.option("--repair-first", is_flag=True, help="Also list the degraded NICs, the one most worth repairing first.")
@click.option(
    "--collective",
    type=click.Choice(["allreduce", "allgather", "reduce-scatter", "broadcast", "reduce"]),
    default="allreduce",
    show_default=True,
    help="For the others SIZE is the whole buffer: an allgather's result, a reduce-scatter's input.",
)
@click.option("--root", metavar="RANK", help="The root of a broadcast or reduce, such as server0 or server0/gpu3.")
@click.option(
    "--symbolic", type=click.Choice(["text", "latex"]), help="Print the formula, its assumptions and proof id."
)
@_json
def bound(
    topology: str,
    servers: int | None,
    fail: tuple[str, ...],
    nic_rate: str | None,
    ranks: str | None,
    size: str,
    repair_first: bool,
    collective: str,
    root: str | None,
    symbolic: str | None,
    as_json: bool,
) -> None:
    """The least time any AllReduce can take, what limits it, and the certificate."""
    from optcc import api, report

    if symbolic and repair_first:
        raise InputError("one or the other", where="--symbolic, --repair-first", expected="not both")
    if collective != "allreduce" and (repair_first or symbolic):
        raise InputError("for allreduce only", where="--repair-first, --symbolic", expected="--collective allreduce")
    cluster, nbytes = _read_cluster(topology, servers, fail, nic_rate, ranks), _read_size(size)
    if symbolic:
        formula = api.symbolic_bound(cluster)
        text = formula.latex() if symbolic == "latex" else formula.text()
        _emit(as_json, {"formula": text, "proof_id": formula.proof_id}, lambda: click.echo(text))
        return
    found = api.lower_bound(cluster, nbytes, collective, root)
    value = report.bound_json(found, cluster)
    repairs = api.repair_first(cluster, nbytes) if repair_first else ()
    if repair_first:
        value["repair_first"] = report.repairs_json(repairs)

    def show() -> None:
        report.print_bound(found, cluster)
        if repair_first:
            report.print_repairs(repairs)

    _emit(as_json, value, show)


@main.command()
@click.argument("topology")
@_cluster
@_size
@_segments
@_family
@_alpha
@_per_chunk
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Where to write the plan.")
@_json
def plan(
    topology: str,
    servers: int | None,
    fail: tuple[str, ...],
    nic_rate: str | None,
    ranks: str | None,
    size: str,
    segments: int | None,
    family: str | None,
    alpha: str,
    per_chunk: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """The schedule that comes closest to the bound, as a small file that every rank lowers by itself.

    With --alpha or --per-chunk, families and depths are tried in virtual time and the fastest is taken.
    """
    from optcc import api, report
    from optcc.plan_files import save_plan
    from optcc.units import parse_seconds

    cluster, nbytes = _read_cluster(topology, servers, fail, nic_rate, ranks), _read_size(size)
    costs = {"alpha": parse_seconds(alpha, where="--alpha"), "per_chunk": parse_seconds(per_chunk, where="--per-chunk")}
    made = api.plan(cluster, nbytes, family=family, segments=segments, **costs)
    if output is not None:
        save_plan(made, output)
        click.echo(f"wrote {output}", err=True)
    _emit(as_json, report.plan_json(made), lambda: report.print_plan(made))


@main.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@_algorithm
@_json
def verify(plan_file: Path, algorithm: str, as_json: bool) -> None:
    """Replay a plan's schedule by contributor sets: every byte of every rank summed exactly once."""
    from optcc.plan_files import load_plan
    from optcc.verifier import verify as check

    made = load_plan(plan_file)
    checked = check(made.baseline(algorithm).schedule())
    value = {
        "plan_id": made.plan_id,
        "algorithm": algorithm,
        "correct": True,
        "transfers": checked.transfers,
        "pieces": checked.pieces,
    }
    _emit(
        as_json,
        value,
        lambda: click.echo(
            f"correct: {checked.transfers} transfers, every byte of {len(made.cluster.ranks)} ranks "
            f"({checked.pieces} pieces) holds every contribution exactly once"
        ),
    )


@main.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@_algorithm
@_alpha
@_per_chunk
@click.option(
    "--fault",
    multiple=True,
    metavar="SERVER/NIC@TIME[=LEFT]",
    help="From TIME on that NIC keeps the fraction LEFT of its rate (default 0: it dies). Repeatable.",
)
@click.option("--detect", default="1ms", show_default=True, metavar="TIME", help="From a death to the repair.")
@click.option(
    "--timeline", type=click.Path(path_type=Path, dir_okay=False), help="Draw what each NIC did: FILE.svg or FILE.json."
)
@_json
def simulate(
    plan_file: Path,
    algorithm: str,
    alpha: str,
    per_chunk: str,
    fault: tuple[str, ...],
    detect: str,
    timeline: Path | None,
    as_json: bool,
) -> None:
    """Run a plan in virtual time and hold it against its bound.

    When a NIC dies, what it carried goes by another live NIC of its server once that is noticed.
    """
    from optcc import report
    from optcc.discover.failures import parse_fault
    from optcc.plan_files import load_plan
    from optcc.simulator import simulate as run_virtually
    from optcc.timeline import check_timeline, write_timeline
    from optcc.units import parse_seconds

    latency, cost = parse_seconds(alpha, where="--alpha"), parse_seconds(per_chunk, where="--per-chunk")
    faults = [parse_fault(text, parse_seconds(detect, where="--detect")) for text in fault]
    check_timeline(timeline)
    made = load_plan(plan_file)
    chosen = made.baseline(algorithm)
    simulation = run_virtually(chosen.schedule(), alpha=latency, per_chunk=cost, faults=faults)
    value = report.simulation_json(made, algorithm, simulation)
    _emit(as_json, value, lambda: report.print_simulation(value))
    if timeline is not None:
        write_timeline(simulation, timeline, title=report.title(chosen), bound_s=float(made.bound.seconds))
        click.echo(f"wrote {timeline}", err=True)


@main.command()
@click.argument("source", metavar="TOPOLOGY|PLAN")
@_cluster
@click.option("--size", default=None, metavar="SIZE", help="Bytes per rank (default 64MiB; a plan has its own).")
@_segments
@click.option("--transport", type=click.Choice(["local"]), default="local", show_default=True)
@click.option(
    "--repeat", type=click.IntRange(1, 1000), default=5, show_default=True, help="Timed runs of each algorithm."
)
@click.option("--dtype", default="float32", show_default=True, help="Element type.")
@click.option("--op", default="sum", show_default=True, help="sum, prod, min or max.")
@click.option("--local-rate", default="1Gb/s", show_default=True, metavar="RATE", help="Rate of the fastest rank here.")
@click.option("--timeline", type=click.Path(path_type=Path, dir_okay=False), help="Draw the simulated run: FILE.svg.")
@_json
def run(
    source: str,
    servers: int | None,
    fail: tuple[str, ...],
    nic_rate: str | None,
    ranks: str | None,
    size: str | None,
    segments: int | None,
    transport: str,
    repeat: int,
    dtype: str,
    op: str,
    local_rate: str,
    timeline: Path | None,
    as_json: bool,
) -> None:
    """Run the schedule on this machine, one process per server, and hold it against its bound and a ring.

    NICs are emulated: real bytes over loopback at real rates, scaled down by one factor, which is printed.
    Exit status 1 when any element of any rank comes out wrong.
    """
    from optcc import api, report
    from optcc.plan_files import load_plan
    from optcc.simulator import simulate as run_virtually
    from optcc.timeline import write_timeline
    from optcc.units import parse_rate

    rate = parse_rate(local_rate, where="--local-rate")
    if _is_plan(source):
        given = {"--servers": servers, "--fail": fail, "--nic-rate": nic_rate}
        given |= {"--ranks": ranks, "--size": size, "--segments": segments}
        for option, value in given.items():
            if value:
                raise InputError("a plan has its own", where=option, expected="no such option beside a plan file")
        made = load_plan(Path(source))
    else:
        cluster = _read_cluster(source, servers, fail, nic_rate, ranks)
        made = api.plan(cluster, _read_size(size or "64MiB"), segments=segments)
    simulation = run_virtually(made.schedule())
    if timeline is not None:  # before the run, so that a place it cannot go to costs nothing
        write_timeline(simulation, timeline, title=report.title(made), bound_s=float(made.bound.seconds))
        click.echo(f"wrote {timeline}", err=True)
    with report.run_progress(repeat) as progress:
        outcome = api.run(made, repeat=repeat, dtype=dtype, op=op, local_rate=rate, progress=progress)
    summary = report.run_json(made, outcome, simulation.time_s)
    _emit(as_json, summary, lambda: report.print_run(made, outcome, summary))
    if not outcome.exact:
        raise OptccError("a result is wrong: see `exact` per rank")


@main.command()
@_json
def doctor(as_json: bool) -> None:
    """What of numpy, cupy, pyverbs, devices and rates is here, and what each missing part would give."""
    from optcc import doctor as examination
    from optcc import report

    findings = examination.examine()
    _emit(as_json, {"parts": [finding.as_json() for finding in findings]}, lambda: report.print_doctor(findings))


def _is_plan(source: str) -> bool:
    """A plan file, by its name or by what it begins with."""
    if source.endswith(".json"):
        return True
    try:
        with open(source, encoding="utf-8") as file:
            return file.read(64).lstrip().startswith("{")
    except (OSError, UnicodeDecodeError, ValueError):
        return False


def _emit(as_json: bool, value: dict[str, Any], show: Callable[[], None]) -> None:
    if as_json:
        click.echo(json.dumps(value))
    else:
        show()
