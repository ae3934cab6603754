"""Options that several commands share, and how what they say is read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from optcc.errors import InputError
from optcc.files.writing import check_place, is_plain, is_stdout, to_stdout

if TYPE_CHECKING:
    from fractions import Fraction

    from optcc.discover import Measured, Topology
    from optcc.values.cluster import Cluster

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


def emit(as_json: bool, value: dict[str, Any], show: Callable[[], None], *, beside: Path | None = None) -> None:
    """One JSON object on stdout, or what `show` prints: that goes to stderr where `beside`, a file, is on stdout.

    Raises InputError when stdout cannot take it.
    """
    if is_stdout(beside):
        with redirect_stdout(sys.stderr):
            show()
        return
    with to_stdout():
        if as_json:
            click.echo(json.dumps(value))
        else:
            show()
