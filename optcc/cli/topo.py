"""`optcc topo`: what a topology says, what was assumed, what to pass to correct it; and all of it as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from optcc.cli.options import OUTPUT, check_output, emit, json_option, load_source, say_written, source_options

if TYPE_CHECKING:
    from optcc.discover import Topology


@click.command()
@click.argument("topology", nargs=-1, required=True)
@click.option("--servers", type=int, metavar="N", help="Replicate a one-server topology N times.")
@click.option("--nic-rate", metavar="RATE", help="For NICs without one; NAME=RATE for NICs of that name.")
@source_options
@click.option("-o", "--output", type=OUTPUT, help="Write it as YAML, to be edited; - is standard output.")
@json_option
def topo(
    topology: tuple[str, ...], servers: int | None, nic_rate: str | None, output: Path | None, as_json: bool
) -> None:
    """What TOPOLOGY says, what was assumed, and what to pass to correct that.

    TOPOLOGY is an NCCL or RCCL topology XML, NCCL's log, optcc's YAML, a preset, or /sys or a copy of it (a directory
    or a tarball). It may also be the output of `nvidia-smi topo -m`, ibstat, ibdev2netdev, `rdma link -j`, rocm-smi or
    amd-smi. Several files, a folder of them, or a pattern are one cluster, a server of each; NAME=FILE names its
    server, and several files of one NAME are of one server.
    """
    from optcc.discover.topology import listed
    from optcc.discover.yaml_file import save_yaml, write_yaml

    check_output(output, as_json)
    found = load_source(topology, servers, nic_rate)
    if output is not None:
        comments = (f"Written by optcc topo {listed(topology)}", *(f"assumed: {note}" for note in found.notes))
        save_yaml(write_yaml(found.cluster, comments=comments, measured=found.measured), output)
        say_written(output)
    emit(as_json, found.as_json(), lambda: click.echo("\n".join(report_lines(found))), beside=output)


def report_lines(found: Topology) -> list[str]:
    """The report as people read it."""
    lines = ["read", *(f"  {line}" for line in found.read)]
    if found.assumed:
        lines.append("assumed")
    for assumption in found.assumed:
        lines.append(f"  {assumption.where + ': ' if assumption.where else ''}{assumption.what}")
        if assumption.fix:
            lines.append(f"    to correct it: {assumption.fix}")
    return lines
