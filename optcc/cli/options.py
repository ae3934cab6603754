"""The command line: options that several commands share and how they are read, and how results and errors are told.

Results go to stdout (one JSON object with --json), everything else to stderr. Exit status: 0 done; 1 a result is wrong
or a rank failed; 2 the input cannot be used, or the output cannot be written; 3 inconclusive; 130 interrupted; 141
nobody reads the output any more.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from optcc import __version__
from optcc.errors import CertificateError, InconclusiveError, InputError, OptccError
from optcc.files.reading import ZIP, beginning, shown
from optcc.files.writing import CLOSED_PIPE, check_place, is_plain, is_stdout, to_stdout

if TYPE_CHECKING:
    from fractions import Fraction

    from optcc.discover import Measured, Topology
    from optcc.plans.plan import Plan
    from optcc.runtime.control.rendezvous import Membership
    from optcc.values.cluster import Cluster

ADDRESS_SPACE = 768 << 20
"""Bytes that a process may map at least: numpy, scipy, cvxpy and sympy, loaded, take 590 MiB with one thread."""


COMMANDS = (
    *("bound", "calibrate", "diagnose", "doctor", "example", "export", "fabric", "nccl", "plan", "ranks"),
    *("reproduce", "run", "schema", "serve", "simulate", "sweep", "topo", "verify"),
)
"""Each in a file of its name, which is imported when the command is asked for: all together take longer than a plan."""


class Commands(click.Group):
    """Turns optcc's errors, the system's, and Ctrl-C, into a message on stderr and the promised exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"optcc.cli.{cmd_name}"), cmd_name)
        return command

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

    It takes memory for each of its threads, one per core unless told, and time to start them: 0.1 s of processor time
    on two cores. One is enough for what we do.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return
    if most < ADDRESS_SPACE:
        expected, got = f"at least {ADDRESS_SPACE >> 10} KiB", f"{most >> 10} KiB"
        raise InputError("too little memory", where="ulimit -v", expected=expected, got=got)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="optcc")
def main() -> None:
    """How fast can AllReduce be on a degraded GPU cluster, which schedule gets there, and does it?

    TOPOLOGY is an NCCL topology XML, optcc's YAML, or a preset such as uniform:servers=8,nics=8,rate=400Gb/s.
    """


F = TypeVar("F", bound=Callable[..., Any])
OUTPUT = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
"""A file to write, or - for standard output."""


def stack(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


def _keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """For `load_source`, so that no command has to hand it on."""
    context.meta[f"optcc.{option.name}"] = value


def kept(name: str) -> str | None:
    """What was said with --nics or --hosts; None where nothing was, or the command has no such option."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(f"optcc.{name}")


source_options = stack(
    click.option(
        "--nics", metavar="LIST", expose_value=False, callback=_keep,
        help="The NICs that count: mlx5_[0-7]; ^mlx5_8,mlx5_9 for all but these. Default: those that train, by rule.",
    ),
    click.option(
        "--hosts", metavar="LIST", expose_value=False, callback=_keep,
        help="The servers' names, as Slurm lists them: node[001-004,007].",
    ),
)  # fmt: skip
cluster_options = stack(
    click.option("--servers", type=int, metavar="N", help="Replicate a one-server topology N times."),
    click.option(
        "--fail",
        multiple=True,
        metavar="SERVER/NIC[=LEFT]",
        help="Failed NICs and what is left of their rate: 0.37, 37%, 150Gb/s (default 0). server1/nic[0-3,5], "
        "server*/nic0, or server1=50% for all of its NICs. Repeatable.",
    ),
    click.option(
        "--nic-rate", metavar="RATE", help="For NICs whose speed the file does not give; NAME=RATE: for that NIC."
    ),
    source_options,
    click.option(
        "--ranks",
        type=click.Choice(["server", "gpu"]),
        help="A rank is a server with all its NICs (default), or a GPU with its NVLink port and the NICs beside it.",
    ),
)
size_option = click.option(
    "--size",
    default="1GiB",
    show_default=True,
    metavar="SIZE",
    help="Bytes per rank: 1GiB, 64MB, 256M (256MiB, as in nccl-tests).",
)
alpha_option = click.option(
    "--alpha", default="0us", show_default=True, metavar="TIME", help="Latency from NIC to NIC."
)
per_chunk_option = click.option(
    "--per-chunk",
    default="0us",
    show_default=True,
    metavar="TIME",
    help="What a port spends on each chunk beside its bytes.",
)
algorithm_option = click.option(
    "--algorithm",
    default="optcc",
    show_default=True,
    metavar="NAME",
    help="optcc, or the same job by ring, balance, hot-repair, r2cc or optcc-published.",
)
family_option = click.option("--family", metavar="NAME", help="The family of schedules (default: the fastest here).")
segments_option = click.option("--segments", type=int, metavar="K", help="Pipeline depth (default: chosen by size).")


def read_cluster(
    topology: str, servers: int | None, fail: tuple[str, ...], nic_rate: str | None, ranks: str | None
) -> Cluster:
    """The cluster that TOPOLOGY and its options describe; what was assumed goes to stderr."""
    from optcc.discover import apply_failures

    found = load_source(topology, servers, nic_rate)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    if found.measured is not None:
        from optcc.discover.topology import measured_line

        click.echo(f"note: {topology}: {measured_line(found.cluster, found.measured)}", err=True)
        click.get_current_context().meta["optcc.measured"] = found.measured
    return apply_failures(replace(found.cluster, gpu_ranks=ranks == "gpu"), fail)


def load_source(topology: str | Sequence[str], servers: int | None, nic_rate: str | None) -> Topology:
    """TOPOLOGY with --nics and --hosts, where this command has them."""
    from optcc.discover import load_topology

    hosts = _of_host_file(kept("hosts"))
    return load_topology(topology, servers=servers, nic_rate=nic_rate, nics=kept("nics"), hosts=hosts)


def _of_host_file(hosts: str | None) -> str | None:
    """--hosts, or the text of mpirun's host file that it names."""
    from optcc.discover.given import LONGEST_LIST
    from optcc.files.reading import read_file

    if hosts is None or not Path(hosts).is_file():
        return hosts
    return read_file(hosts, LONGEST_LIST, what="host file", expected="a host in each line").decode("utf-8", "replace")


def read_costs(alpha: str, per_chunk: str) -> dict[str, Fraction]:
    """--alpha and --per-chunk in seconds; where one is not given, what the topology's file has measured."""
    from optcc.values.units import format_seconds, parse_seconds

    context = click.get_current_context()
    measured: Measured | None = context.meta.get("optcc.measured")
    seen = {"alpha": measured and measured.alpha_s, "per_chunk": measured and measured.per_chunk_s}
    costs = {}
    for name, text in (("alpha", alpha), ("per_chunk", per_chunk)):
        option = f"--{name.replace('_', '-')}"
        value = seen[name]
        if value and context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT:
            click.echo(f"note: {option} {format_seconds(value)} as measured; {option} 0us does without", err=True)
            costs[name] = value
        else:
            costs[name] = parse_seconds(text, where=option)
    return costs


def read_size(text: str) -> int:
    """Bytes of --size, at least one."""
    from optcc.values.units import parse_size

    size = parse_size(text, where="--size")
    if size < 1:
        raise InputError("nothing to reduce", where="--size", expected="1 byte or more", got=text)
    return size


def check_apart(output: Path | None, source: str | Path, option: str = "-o") -> None:
    """Raise InputError where `output` is the file that is read, which would be lost."""
    # os.path also takes what is no path at all, as a preset may be.
    if output is None or is_plain(output):
        return
    if os.path.exists(output) and os.path.exists(source) and os.path.samefile(output, source):
        raise InputError("would overwrite what is read", where=option, expected="another file", got=str(output))


def check_output(output: Path | None, as_json: bool, option: str = "-o") -> None:
    """Raise InputError, before long work, where `output` cannot be written, or would mix with the object of --json."""
    if output is None:
        return
    if as_json and is_stdout(output):
        expected = "one of them, or a file"
        raise InputError("two results on standard output", where=f"{option} {output}, --json", expected=expected)
    check_place(output)


def say_written(output: Path) -> None:
    """On stderr, that there is a file now."""
    if not is_stdout(output):
        click.echo(f"wrote {output}", err=True)


def emit(
    as_json: bool,
    value: dict[str, Any] | Callable[[], dict[str, Any]],
    show: Callable[[], None],
    *,
    beside: Path | None = None,
) -> None:
    """One JSON object on stdout, or what `show` prints: that goes to stderr where `beside`, a file, is on stdout.

    value : the object, or what makes it

    Raises InputError when stdout cannot take it.
    """
    if is_stdout(beside):
        with redirect_stdout(sys.stderr):
            show()
        return
    with to_stdout():
        if as_json:
            click.echo(json.dumps(value() if callable(value) else value))
        else:
            show()


NOT_CHECKED = "not checked: that none is higher, and the fault-free bound (optcc.check_bound solves for them)"


def load_proved(path: Path) -> Plan:
    """Read a plan file whose certificate proves its bound. Raises InputError for none, CertificateError where not."""
    from optcc.plans.files import load_plan
    from optcc.theory.bound_check import check_seconds

    plan = load_plan(path)
    try:
        check_seconds(plan.cluster, plan.bound)
    except CertificateError as error:
        raise CertificateError(f"{shown(path)}: the bound in this plan is false: {error}") from None
    return plan


def bound_in_words(plan: Plan) -> str:
    """The bound of a plan that `load_proved` has read, and what of it was checked."""
    from optcc.values.bound import LARGEST_GAP, ProgramCertificate, closed_form_s
    from optcc.values.units import format_seconds

    seconds, cluster = plan.bound.seconds, plan.cluster
    told = format_seconds(float(seconds))
    if not isinstance(plan.bound.certificate, ProgramCertificate):
        return f"{told}, the optimum, proved by its certificate"
    flat = cluster.fabric.flat and not cluster.gpu_ranks
    if flat and (best := closed_form_s(cluster.ranks, plan.bound.nbytes)) > seconds * (1 + LARGEST_GAP):
        return f"{told}, a valid lower bound, but not the best known: {format_seconds(float(best))}"
    return f"{told}, a valid lower bound by its certificate; {NOT_CHECKED}"


# Where ranks run and who starts them: options and their reading, for the commands that move real bytes.

transport_option = click.option(
    "--transport", type=click.Choice(["local", "tcp", "verbs"]), default="local", show_default=True,
    help="local: emulated NICs between processes of one machine. tcp: NICs called as network interfaces or by address. "
    "verbs: NICs called as RDMA devices.",
)  # fmt: skip
local_rate_option = click.option(
    "--local-rate", default="1Gb/s", show_default=True, metavar="RATE", help="Rate of the fastest rank here."
)
membership_options = stack(
    click.option("--rendezvous", metavar="HOST:PORT", help="Where rank 0 listens, when ranks are started by others."),
    click.option("--rank", type=int, help="This process's rank (default: of torchrun, mpirun or srun)."),
    click.option("--world", type=int, help="How many ranks there are (likewise)."),
    click.option("--interface", metavar="NAME|ADDRESS", help="Where rank 0 listens, if not at HOST."),
)
"""For ranks that others start: see `membership_of`."""


REFUSE_S = 10.0
"""For other ranks to come and hear that what rank 0 was given cannot be."""


def membership_of(
    rendezvous: str | None,
    rank: int | None,
    world: int | None,
    interface: str | None = None,
    terms: Callable[[], Mapping[str, str]] = dict,
) -> Membership | None:
    """This process's place among ranks that others start; None: there are no others, so the ranks are started here.

    Does not return in a process that is not rank 0. It serves as its rank, reports a failure on stderr, and exits.

    interface : as of `membership_options`
    terms : what was given, by name, for all ranks to compare; asked for only where there are others. Where it raises
        InputError, all ranks do
    """
    from optcc.runtime.control.rendezvous import SECRETS, find

    found = find(os.environ, rendezvous=rendezvous, rank=rank, world=world)
    for name in SECRETS:  # no process that this one starts has to know
        os.environ.pop(name, None)
    if not found or found.world == 1:
        return None
    wrong = None
    try:
        found = replace(found, terms=dict(terms()))
    except InputError as error:
        found, wrong = replace(found, wrong=str(error)), error
    if found.rank:
        from optcc.runtime.control.runner import serve_rank

        raise SystemExit(serve_rank(found, say=lambda text: click.echo(f"optcc: {text}", err=True)))
    if wrong:
        from optcc.runtime.control.launch import refuse

        click.echo("note: waiting for the other ranks, to tell them what is wrong here", err=True)
        refuse(found, interface, wrong, REFUSE_S)
        raise wrong
    return found


def source_term(source: str) -> dict[str, str]:
    """What a command was given to run, as all ranks compare it: the id of a plan, else a file's content or a name.

    Raises InputError for a plan that cannot be loaded.
    """
    from optcc.plans.files import load_plan

    if is_plan(source):
        return {"PLAN": load_plan(Path(source)).plan_id}
    if Path(source).is_file():
        return {"TOPOLOGY": hashlib.sha256(Path(source).read_bytes()).hexdigest()[:16]}
    return {"TOPOLOGY": source}


def is_plan(source: str) -> bool:
    """A plan file, by its name or by what it begins with; JSON too, which is what plans of earlier versions were."""
    if source.endswith((".plan", ".json")):
        return True
    return beginning(source, 64).lstrip().startswith((ZIP, b"{"))


def option_terms(**given: object) -> dict[str, str]:
    """Options of the command line as all ranks compare them; by their names in Python."""
    return {f"--{name.replace('_', '-')}": str(value) for name, value in given.items()}
