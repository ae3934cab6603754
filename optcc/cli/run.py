"""`optcc run`: the schedule on real bytes, held against its bound; with a fault, what it costs and what comes after."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from optcc.cli.options import (
    check_apart,
    cluster_options,
    emit,
    is_plan,
    json_option,
    kept,
    local_rate_option,
    membership_of,
    membership_options,
    option_terms,
    read_cluster,
    read_size,
    segments_option,
    source_term,
    stack,
    transport_option,
)
from optcc.errors import InconclusiveError, InputError, OptccError, some

if TYPE_CHECKING:
    from optcc.discover import Measured
    from optcc.plans.plan import Plan
    from optcc.runtime.control.rendezvous import Membership
    from optcc.runtime.messages import Strike

# What the runtime that will run a plan takes for a message and for a chunk: measured, stated, or not known.

costs_options = stack(
    click.option(
        "--alpha", metavar="TIME",
        help="Plan for this latency from NIC to NIC, by this machine's clock. Default: as measured for this transport "
        "(optcc calibrate), else 0; on GPUs 5us.",
    ),
    click.option(
        "--per-chunk", metavar="TIME",
        help="Plan for this cost of a chunk beside its bytes, likewise; on GPUs 2us.",
    ),
)  # fmt: skip

GPU_ALPHA_S, GPU_PER_CHUNK_S = Fraction(5, 10**6), Fraction(2, 10**6)
"""Between ranks on GPUs. On two H200 four ranks with a lost NIC took 1.34 of the bound by a plan for none."""

JITTER = 0.1
"""Ranks are never in step: where costs are known plans count on that. For none, or half of it, the fastest plan of four
servers is a direct exchange, in which ranks that are late meet at their receivers: on two H200 1.14 of the bound, where
the rings that this chooses take 1.045."""


@dataclass(frozen=True)
class StatedCosts:
    """What a plan is made for, in seconds of the cluster, and where each number is from."""

    alpha: Fraction
    per_chunk: Fraction
    alpha_from: str
    per_chunk_from: str

    @property
    def known(self) -> bool:
        """Whether the plan goes by any."""
        return bool(self.alpha or self.per_chunk)

    @property
    def jitter(self) -> float:
        """What the plan counts on, as `api.plan` takes it."""
        return JITTER if self.known else 0.0

    def line(self, slowdown: Fraction) -> str:
        """For people. Emulated NICs that are `slowdown` times slower take so many times as long by the clock."""
        from optcc.reports.console import percent
        from optcc.values.units import format_seconds

        parts = [
            f"{name} {format_seconds(float(value * slowdown))} ({source})"
            for name, value, source in (
                ("alpha", self.alpha, self.alpha_from),
                ("per chunk", self.per_chunk, self.per_chunk_from),
            )
        ]
        return f"planned for {', '.join(parts)}" + (f", jitter {percent(self.jitter)}" if self.known else "")

    def as_json(self) -> dict[str, Any]:
        """Seconds of the cluster, and where they are from."""
        return {
            "alpha_s": float(self.alpha),
            "per_chunk_s": float(self.per_chunk),
            "jitter": self.jitter,
            "alpha_from": self.alpha_from,
            "per_chunk_from": self.per_chunk_from,
        }


def costs_of(choice: RuntimeChoice, measured: Measured | None, slowdown: Fraction) -> StatedCosts:
    """What was stated, by the clock of a runtime whose NICs are `slowdown` times slower than the cluster's; else, on
    GPUs, what they need; else what the topology's file has measured over this transport, in the cluster's time; else 0.

    Raises InputError for what is no time.
    """
    from optcc.values.units import parse_seconds

    found: list[tuple[Fraction, str]] = []
    seen = (None, None) if measured is None else (measured.alpha_s, measured.per_chunk_s)
    for option, text, on_gpus, value in (
        ("--alpha", choice.alpha, GPU_ALPHA_S, seen[0]),
        ("--per-chunk", choice.per_chunk, GPU_PER_CHUNK_S, seen[1]),
    ):
        if text is not None:
            found.append((parse_seconds(text, where=option) / slowdown, "stated"))
        elif choice.device == "cuda":  # a file's are of ranks in host memory
            found.append((on_gpus / slowdown, "of ranks on GPUs"))
        elif measured is None or value is None:
            found.append((Fraction(0), "not measured"))
        elif measured.transport != choice.transport:
            found.append((Fraction(0), f"measured over {measured.transport} only"))
        elif not measured.of_runtime(choice.transport):
            found.append((Fraction(0), f"measured with the path {measured.path}, which is no more"))
        else:
            found.append((value, f"measured {measured.date}"))
    return StatedCosts(found[0][0], found[1][0], found[0][1], found[1][1])


# Faults on the command line: the options, and what each of them names

_STRIKES = {
    "cut": ("NIC@PART", "The NIC's link goes down (PART of the transfers, such as 0.4)."),
    "hole": ("NIC@PART", "The NIC swallows everything and says nothing."),
    "slow": ("NIC@PART=LEFT", "The NIC keeps a fraction of its rate."),
    "flap": ("NIC@PART=TIME", "The NIC swallows everything for a while, then comes back."),
    "path": ("NIC,NIC@PART", "What goes between the two NICs is swallowed; both work with others (local only)."),
    "kill": ("SERVER@PART", "The server's process is killed."),
}
strike_options = stack(
    *(
        click.option(f"--{kind}", multiple=True, metavar=form, help=f"{what} PART 0.4: at 40 % of a collective.")
        for kind, (form, what) in _STRIKES.items()
    )
)


def parse_strike(kind: str, text: str, plan: Plan) -> Strike:
    """``server1/nic3@0.4``, ``server1/nic3@0.4=0.25``, ``server0/nic3,server1/nic3@0.4``, ``server2@0.5``."""
    from optcc.runtime.messages import Strike
    from optcc.values.units import parse_fraction, parse_seconds

    option = f"--{kind}"
    form = _STRIKES[kind][0]
    name, at_sign, when = text.partition("@")
    part, equals, amount = when.partition("=")
    needs = "=" in form
    name, _, far = name.partition(",") if kind == "path" else (name, "", "")
    if not at_sign or not name or bool(equals) != needs or bool(far) != (kind == "path"):
        raise InputError("not a fault", where=option, expected=form, got=text)
    at = float(parse_fraction(part, f"{option}: PART"))
    left = 0.0
    if needs:
        left = float(parse_fraction(amount, f"{option}: LEFT") if kind == "slow" else parse_seconds(amount, option))
    if kind == "slow" and not 0 < left < 1:
        raise InputError("not a fraction left", where=option, expected="above 0 and below 1", got=amount)
    if far and name.partition("/")[0] == far.partition("/")[0]:
        raise InputError("not a path", where=option, expected="NICs of two servers", got=f"{name},{far}")
    return Strike(kind, _nic(option, name, plan), at, left, _nic(option, far, plan) if far else "")


def _nic(option: str, name: str, plan: Plan) -> str:
    """A NIC that the plan uses; of a server to be killed, its first one."""
    ports = [port.name for port in plan.schedule().ports if not port.nvlink]
    firsts: dict[str, str] = {}
    for port in ports:
        firsts.setdefault(port.partition("/")[0], port)
    if option == "--kill":
        names, found = list(firsts), firsts.get(name)
    else:
        server = name.partition("/")[0]
        names = [port for port in ports if port.partition("/")[0] == server] or ports
        found = name if name in ports else None
    if found is None:
        raise InputError("the plan does not use it", where=option, expected=f"one of {some(names)}", got=name)
    return found


# The command


class RuntimeChoice(NamedTuple):
    """What is stated of the runtime: costs, transport, rate of emulated NICs in bytes per second, device."""

    alpha: str | None
    per_chunk: str | None
    transport: str
    rate: Fraction
    device: str


@click.command()
@click.argument("source", metavar="TOPOLOGY|PLAN")
@cluster_options
@click.option("--size", default=None, metavar="SIZE", help="Bytes per rank (default 64MiB; a plan has its own).")
@segments_option
@transport_option
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
    help="Where the buffers are: cuda is GPU memory, of GPU r mod the number of GPUs for rank r.",
)  # fmt: skip
@click.option(
    "--repeat", type=click.IntRange(1, 1000), default=5, show_default=True, help="Timed runs of each algorithm."
)
@click.option("--dtype", default="float32", show_default=True, help="Element type.")
@click.option("--op", default="sum", show_default=True, help="sum, prod, min, max or avg.")
@local_rate_option
@costs_options
@click.option(
    "--timeline", type=click.Path(path_type=Path, dir_okay=False), help="Draw the simulated run: FILE.svg or FILE.json."
)
@membership_options
@strike_options
@json_option
def run(
    source: str,
    servers: int | None,
    fail: tuple[str, ...],
    nic_rate: str | None,
    ranks: str | None,
    size: str | None,
    segments: int | None,
    transport: str,
    device: str,
    repeat: int,
    dtype: str,
    op: str,
    local_rate: str,
    alpha: str | None,
    per_chunk: str | None,
    timeline: Path | None,
    rendezvous: str | None,
    rank: int | None,
    world: int | None,
    interface: str | None,
    as_json: bool,
    **faults: tuple[str, ...],
) -> None:
    """Run the schedule, one process per server, and hold it against its bound and a ring.

    Over the local transport NICs are emulated: real bytes through shared memory, at the NICs' rates divided by one
    factor, which is printed. Over tcp and verbs they are this machine's: NICs are called as interfaces or addresses
    (server1/eth2, server1/10.0.0.3), or as RDMA devices (server1/mlx5_3). The ranks are processes of this machine,
    unless torchrun, mpirun, srun or --rendezvous say otherwise. Then all processes get the same command, and rank 0
    reports (docs/running.md).

    With a fault (--cut and the like, repeatable) the plan runs twice, the second time with the fault in the middle.
    Then the plan for the remaining NICs runs. PART is the part of its transfers that the struck server has done by
    then. --timeline draws the run with --cut, --hole and --slow, simulated.

    The plan counts this runtime's cost for a message and a chunk, as measured by `optcc calibrate` over the same
    transport, or as given here; which it is, is told.

    Exit status 1 when any element of any rank comes out wrong or a rank fails, which is told up to there; 3 when it is
    not proven of every fault that it struck and met something: no verdict.
    """
    from optcc import api
    from optcc.fault_run.run import check_together
    from optcc.reports import runs
    from optcc.reports.console import timeline_title, working
    from optcc.simulation.simulator import simulate as run_virtually
    from optcc.simulation.timeline import check_timeline, write_timeline
    from optcc.values.units import parse_rate

    given = option_terms(
        servers=servers, fail=fail, nic_rate=nic_rate, ranks=ranks, size=size, segments=segments, transport=transport,
        device=device, repeat=repeat, dtype=dtype, op=op, local_rate=local_rate, alpha=alpha,
        per_chunk=per_chunk, nics=kept("nics"), hosts=kept("hosts"), **faults,
    )  # fmt: skip
    membership = membership_of(rendezvous, rank, world, interface, lambda: source_term(source) | given)
    rate = parse_rate(local_rate, where="--local-rate")
    how: dict[str, Any] = {
        "repeat": repeat, "dtype": dtype, "op": op, "local_rate": rate, "transport": transport, "device": device,
        "membership": membership, "interface": interface,
    }  # fmt: skip
    check_timeline(timeline)
    check_apart(timeline, source, "--timeline")
    choose = RuntimeChoice(alpha, per_chunk, transport, rate, device)
    made, costs = _plan(source, servers, fail, nic_rate, ranks, size, segments, choose)
    strikes = [parse_strike(kind, text, made) for kind, texts in faults.items() for text in texts]
    if strikes:
        check_together(strikes)
        if timeline is not None:
            _draw_fault_run(made, strikes, rate, transport, timeline)
        _tell_how(device, membership, len(made.cluster.ranks))
        _fault_run(made, strikes, how, as_json)
        return
    alpha_s, per_chunk_s = (costs.alpha, costs.per_chunk) if costs else (Fraction(0), Fraction(0))
    with working("simulating"):
        simulation = run_virtually(made.schedule(), alpha=alpha_s, per_chunk=per_chunk_s)
    if timeline is not None:  # before the run, so that a place it cannot go to costs nothing
        write_timeline(simulation, timeline, title=timeline_title(made), bound_s=float(made.bound.seconds))
        click.echo(f"wrote {timeline}", err=True)
    with runs.run_progress(repeat) as progress:
        outcome = api.run(made, progress=progress, **how)
    summary = runs.run_json(made, outcome, simulation.time_s)
    _tell_how(device, membership, len(made.cluster.ranks))
    summary["planned_for"] = costs and costs.as_json()
    emit(as_json, summary, lambda: runs.print_run(made, outcome, summary))
    if costs and not costs.known:  # at the end: it explains a result, and an error is alone on stderr
        click.echo(f"note: {costs.line(Fraction(1))}; optcc calibrate measures, --per-chunk states it", err=True)
    if not outcome.exact:
        raise OptccError("a result is wrong: see `exact` per rank")


def _plan(
    source: str,
    servers: int | None,
    fail: tuple[str, ...],
    nic_rate: str | None,
    ranks: str | None,
    size: str | None,
    segments: int | None,
    choice: RuntimeChoice,
) -> tuple[Plan, StatedCosts | None]:
    """The plan, and what it is made for: a plan file has been made before."""
    from optcc import api
    from optcc.cli.options import load_proved
    from optcc.reports.console import working

    if not is_plan(source):
        cluster = read_cluster(source, servers, fail, nic_rate, ranks)
        slowdown = api.slowdown_of(cluster, choice.rate) if choice.transport == "local" else Fraction(1)
        measured = click.get_current_context().meta.get("optcc.measured")
        costs = costs_of(choice, measured, slowdown)
        if costs.known:
            click.echo(f"note: {costs.line(slowdown)}", err=True)
        nbytes = read_size(size or "64MiB")
        in_place = choice.device != "cpu" or choice.transport == "verbs"  # see `api.runnable`
        with working("planning") as tell:
            made = api.plan(
                cluster, nbytes, segments=segments, alpha=costs.alpha, per_chunk=costs.per_chunk, jitter=costs.jitter,
                in_place=in_place, progress=tell,
            )  # fmt: skip
        return made, costs
    given: dict[str, object] = {"--alpha": choice.alpha, "--per-chunk": choice.per_chunk}
    given |= {"--servers": servers, "--fail": fail, "--nic-rate": nic_rate}
    given |= {"--ranks": ranks, "--size": size, "--segments": segments}
    given |= {"--nics": kept("nics"), "--hosts": kept("hosts")}
    for option, value in given.items():
        if value:
            raise InputError("a plan has its own", where=option, expected="no such option beside a plan file")
    return load_proved(Path(source)), None


def _tell_how(device: str, membership: Membership | None, ranks: int) -> None:
    """How ranks of this machine share its GPUs. InputError where there are none."""
    from optcc.runtime.devices import gpu_memory
    from optcc.runtime.devices.memory import check_device
    from optcc.runtime.devices.mps import sharing_of

    check_device(device)
    if device == "cuda" and membership is None:
        click.echo(f"note: {sharing_of(ranks, gpu_memory.gpu_count(), os.environ).why}", err=True)


def _draw_fault_run(made: Plan, strikes: list[Strike], rate: Fraction, transport: str, timeline: Path) -> None:
    """Before the run, like the timeline of a run without faults; in the time of what runs, as the events are told."""
    from optcc import api
    from optcc.fault_run.run import simulated_fault_run
    from optcc.reports.console import timeline_title
    from optcc.simulation.timeline import write_timeline

    scaled, slowdown = api.scaled_to(made, rate) if transport == "local" else (made, 1)
    simulation, faults = simulated_fault_run(scaled, strikes)
    title = timeline_title(made) + (f", rates divided by {float(slowdown):.4g}" if slowdown > 1 else "")
    write_timeline(simulation, timeline, title=title, bound_s=float(scaled.bound.seconds), faults=faults)
    click.echo(f"wrote {timeline}", err=True)


def _fault_run(made: Plan, strikes: list[Strike], how: dict[str, Any], as_json: bool) -> None:
    """how : as of `attempt`"""
    from optcc.fault_run.results import BrokenFaultRun
    from optcc.fault_run.run import attempt
    from optcc.reports import runs

    with runs.run_progress(how["repeat"]) as progress:
        outcome = attempt(made, strikes, progress=lambda name, done, seconds: progress(name, done - 1, seconds), **how)
    value = runs.fault_run_json(outcome)
    if isinstance(outcome, BrokenFaultRun):
        emit(as_json, value, lambda: runs.print_broken(outcome))
        raise outcome.error
    emit(as_json, value, lambda: runs.print_fault_run(outcome))
    if not outcome.exact:
        raise OptccError("a result is wrong")
    if not outcome.hit:
        raise InconclusiveError(
            "inconclusive: it is not proven that every fault met something under way; see `failovers`"
        )
