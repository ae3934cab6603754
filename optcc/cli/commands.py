"""The command line. Results go to stdout (one JSON object with --json), everything else to stderr.

Exit status: 0 done; 1 a result is wrong or a rank failed; 2 the input cannot be used, or the output cannot be written;
3 inconclusive; 130 interrupted; 141 nobody reads the output any more.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import click

from optcc import __version__
from optcc.cli.bound import bound
from optcc.cli.calibrate import calibrate
from optcc.cli.diagnose import diagnose
from optcc.cli.example import example
from optcc.cli.export import export
from optcc.cli.options import (
    OUTPUT,
    algorithm_option,
    alpha_option,
    check_apart,
    check_output,
    cluster_options,
    emit,
    family_option,
    json_option,
    per_chunk_option,
    read_cluster,
    read_costs,
    read_size,
    say_written,
    segments_option,
    size_option,
)
from optcc.cli.reproduce import reproduce
from optcc.cli.run import run
from optcc.cli.schema import schema
from optcc.cli.serve import serve
from optcc.cli.sweep import sweep
from optcc.cli.topo import topo
from optcc.errors import InconclusiveError, InputError, OptccError
from optcc.files.writing import CLOSED_PIPE

if TYPE_CHECKING:
    pass

F = TypeVar("F", bound=Callable[..., Any])

ADDRESS_SPACE = 768 << 20
"""Bytes that a process may map at least: numpy, scipy, numba, cvxpy and sympy, loaded, take 590 MiB with one thread."""


class _Commands(click.Group):
    """Turns optcc's errors, the system's, and Ctrl-C, into a message on stderr and the promised exit status."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with _told():  # what the parser prints of a command line that is none
            return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _told():  # what --help and --version print
            _hold_descriptors()
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _told():
            if sys.stdout is None:
                hint = "`> /dev/null` does without."
                raise InputError("closed", where="standard output", expected="a place for the result", hint=hint)
            _check_address_space()
            return super().invoke(ctx)


@contextmanager
def _told() -> Iterator[None]:
    """Every error that is not a fault of ours ends the process with one line and its status."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        _end("interrupted", 130)
    except OptccError as error:
        _end(str(error), 2 if isinstance(error, InputError) else 3 if isinstance(error, InconclusiveError) else 1)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  else the interpreter complains once more on its way out
        raise SystemExit(CLOSED_PIPE) from None
    except OSError as error:  # of the system: too few descriptors or processes, a full disk under a temporary file
        file = f"{error.filename}: " if error.filename else ""
        short = "too few file descriptors (ulimit -n): " if error.errno == errno.EMFILE else ""
        _end(f"{file}{short}{error.strerror or error}", 2)
    except MemoryError:
        _end("not enough memory (ulimit -v, or the machine's)", 2)


def _end(message: str, status: int) -> NoReturn:
    with suppress(OSError):  # there may be no stderr to tell it
        click.echo(f"optcc: {message}", err=True)
    for name in ("stdout", "stderr"):  # what they could not take is tried once more at the end, with status 120
        stream = getattr(sys, name)
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  as long as the process
    raise SystemExit(status)


def _hold_descriptors() -> None:
    """Standard streams that were closed lead to /dev/null, lest a file that is opened later takes their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  as long as the process


def _check_address_space() -> None:
    """Raise InputError below `ADDRESS_SPACE`: OpenBLAS, under numpy and scipy, waits for ever for memory it cannot get.

    It takes memory for each of its threads, one per core unless told; with a limit, one is enough for what we do.
    """
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return
    if most < ADDRESS_SPACE:
        expected, got = f"at least {ADDRESS_SPACE >> 10} KiB", f"{most >> 10} KiB"
        raise InputError("too little memory", where="ulimit -v", expected=expected, got=got)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="optcc")
def main() -> None:
    """How fast can AllReduce be on a degraded GPU cluster, which schedule gets there, and does it?

    TOPOLOGY is an NCCL topology XML, optcc's YAML, or a preset such as uniform:servers=8,nics=8,rate=400Gb/s.
    """


main.add_command(bound)
main.add_command(sweep)
main.add_command(reproduce)
main.add_command(run)
main.add_command(serve)
main.add_command(export)
main.add_command(schema)
main.add_command(topo)
main.add_command(calibrate)
main.add_command(diagnose)
main.add_command(example)


@main.command()
@click.argument("topology")
@cluster_options
@size_option
@segments_option
@family_option
@alpha_option
@per_chunk_option
@click.option("-o", "--output", type=OUTPUT, help="Where to write the plan; - is standard output.")
@click.option(
    "--lowered", type=click.Choice(["layout", "transfers"]),
    help="With -o, also write what the plan lowers to: rings, trees, NIC shares, offsets; or every transfer besides.",
)  # fmt: skip
@json_option
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
    lowered: str | None,
    as_json: bool,
) -> None:
    """The schedule that comes closest to the bound, as a small file that every rank lowers by itself.

    With --alpha or --per-chunk, families and depths are tried in virtual time and the fastest is taken.
    """
    from optcc import api
    from optcc.plans.files import save_plan
    from optcc.reports import report

    if lowered is not None and output is None:
        raise InputError("nowhere to write it", where="--lowered", expected="-o FILE", got="none")
    check_apart(output, topology)
    check_output(output, as_json)
    cluster, nbytes = read_cluster(topology, servers, fail, nic_rate, ranks), read_size(size)
    costs = read_costs(alpha, per_chunk)
    with report.working("planning") as tell:
        made = api.plan(cluster, nbytes, family=family, segments=segments, **costs, progress=tell)
        tell("simulated once more")
        found = report.expected(made, **costs)
    if output is not None:
        save_plan(made, output, lowered)
        say_written(output)
    value = {**report.plan_json(made), **report.expected_json(made, found)}
    emit(as_json, value, lambda: report.print_plan(made, found), beside=output)


@main.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@algorithm_option
@json_option
def verify(plan_file: Path, algorithm: str, as_json: bool) -> None:
    """Replay a plan's schedule by contributor sets: every byte of every rank summed exactly once.

    PLAN may be a file of `optcc export`, too. It is run by the rules of its target, and the output says whether it
    carries the plan's order of sends.
    """
    from optcc.cli.export import show_reread
    from optcc.plans.files import load_plan
    from optcc.reports import report
    from optcc.simulation.verifier import verify as check

    if algorithm == "optcc" and show_reread(plan_file, as_json):
        return
    with report.working("verifying"):
        made = load_plan(plan_file)
        checked = check(made.baseline(algorithm).schedule())
    value = {
        "plan_id": made.plan_id,
        "algorithm": algorithm,
        "correct": True,
        "transfers": checked.transfers,
        "pieces": checked.pieces,
    }
    emit(
        as_json,
        value,
        lambda: click.echo(
            f"correct: {checked.transfers} transfers, every byte of {len(made.cluster.ranks)} ranks "
            f"({checked.pieces} pieces) holds every contribution exactly once"
        ),
    )


@main.command()
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
    timeline: Path | None,
    as_json: bool,
) -> None:
    """Run a plan in virtual time and hold it against its bound.

    A plan file does not keep --alpha and --per-chunk: give them again. When a NIC dies, what it
    carried goes by another live NIC of its server once that is noticed.
    """
    from optcc.discover.failures import parse_fault
    from optcc.planner.search import baseline
    from optcc.plans.files import load_plan
    from optcc.reports import report
    from optcc.simulation.faults import check_alive
    from optcc.simulation.simulator import simulate as run_virtually
    from optcc.simulation.timeline import check_timeline, write_timeline
    from optcc.values.units import parse_seconds

    latency, cost = parse_seconds(alpha, where="--alpha"), parse_seconds(per_chunk, where="--per-chunk")
    given = click.get_current_context().get_parameter_source("detect") is not click.core.ParameterSource.DEFAULT
    if given and not fault:
        raise InputError("nothing to detect", where="--detect", expected="a --fault beside it", got="none")
    noticed = parse_seconds(detect, where="--detect")
    faults = [parse_fault(text, noticed) for text in fault]
    check_timeline(timeline)
    check_apart(timeline, plan_file, "--timeline")
    with report.working("simulating"):
        made = load_plan(plan_file)
        check_alive(faults, made.cluster)
        chosen = baseline(made, algorithm, alpha=latency, per_chunk=cost)
        schedule = chosen.schedule()
        how: dict[str, Any] = {"alpha": latency, "per_chunk": cost, "faults": faults, "receivers": receivers}
        simulation = run_virtually(schedule, **how, service=service)
        in_order_s = None if service == "plan" else run_virtually(schedule, **how).time_s
    value = report.simulation_json(made, algorithm, simulation, latency, cost, faults, noticed, in_order_s)
    if timeline is not None:
        bound_s = float(made.bound.seconds)
        write_timeline(simulation, timeline, title=report.title(chosen), bound_s=bound_s, faults=faults)
        say_written(timeline)
    emit(as_json, value, lambda: report.print_simulation(value))


@main.command()
@click.option(
    "--sysfs", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
    help="Devices of a copy of another machine: a directory with its sys/.",
)  # fmt: skip
@json_option
def doctor(sysfs: Path | None, as_json: bool) -> None:
    """What of numpy, torch, cupy, pyverbs, devices and rates is here, and what each missing part would give."""
    from optcc.reports import doctor as examination
    from optcc.reports import report
    from optcc.reports.doctor_torch import examine_torch
    from optcc.runtime.verbs.gpu_paths import examine_gpus

    with report.working("looking at libraries and devices"):
        here = [] if sysfs else [*examine_torch(), *examine_gpus()]
        findings = [*examination.examine(sysfs or Path("/")), *here]
    emit(as_json, {"parts": [finding.as_json() for finding in findings]}, lambda: report.print_doctor(findings))
