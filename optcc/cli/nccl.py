"""`optcc nccl`: where the plugin is that NCCL loads, the variables that make it do so, and plans for its CollNet."""

from __future__ import annotations

import shlex
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optcc.cli.options import cluster_options, emit, json_option, read_cluster
from optcc.errors import InputError
from optcc.files.writing import write_file

if TYPE_CHECKING:
    from optcc.values.cluster import Cluster

PLUGIN = "libnccl-net-optcc.so"
MOST_PATH = 254
"""Characters of a path that NCCL takes (MAX_STR_LEN of its src/plugin/net.cc)."""


@click.command()
@click.option("--path", "only_path", is_flag=True, help="The library's path alone, for NCCL_NET_PLUGIN.")
@click.option("--env", "only_env", is_flag=True, help='Variables for a shell: eval "$(optcc nccl --env)".')
@click.option(
    "--plans",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="With --env: AllReduce by the plans of this folder, the same on all hosts (CollNet).",
)
@click.option("--prepare", metavar="TOPOLOGY", help="Write plans for this cluster, as it is and after failures.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="With --prepare: a new or empty folder."
)
@click.option(
    "--failures", type=int, default=2, show_default=True, metavar="N", help="With --prepare: NICs that may die besides."
)
@cluster_options
@json_option
def nccl(
    only_path: bool,
    only_env: bool,
    plans: Path | None,
    prepare: str | None,
    output: Path | None,
    failures: int,
    servers: int | None,
    fail: tuple[str, ...],
    nic_rate: str | None,
    ranks: str | None,
    as_json: bool,
) -> None:
    """The network plugin with which unmodified NCCL outlives NICs: where it is, and how NCCL is told.

    Set the variables on every host of a job; docs/nccl.md says what is survived. With --prepare, plans by which NCCL
    reduces in a degraded cluster: a small file for each state that the next failures may leave.
    """
    if only_path + only_env + (prepare is not None) > 1:
        raise click.UsageError("--path, --env and --prepare exclude each other.")
    if (prepare is None) != (output is None):
        raise click.UsageError("--prepare and -o go together.")
    if plans is not None and not only_env:
        raise click.UsageError("--plans goes with --env.")
    if prepare is not None and output is not None:
        found = write_plans(read_cluster(prepare, servers, fail, nic_rate, ranks), output, failures)
        emit(as_json, found, lambda: _tell_plans(found))
        return
    if servers is not None or fail or nic_rate or ranks:
        raise click.UsageError("--servers, --fail, --nic-rate and --ranks go with --prepare.")
    path = plugin()
    env = {"NCCL_NET_PLUGIN": str(path), "NCCL_NET": "optcc"}
    if plans is not None:
        env |= {"NCCL_COLLNET_ENABLE": "1", "OPTCC_PLANS": str(plans.resolve())}

    def tell() -> None:
        if only_path:
            click.echo(str(path))
            return
        for name, value in env.items():
            click.echo(f"export {name}={shlex.quote(value)}")
        if not only_env:
            nics = (
                "# NICs: RDMA devices by NCCL_IB_HCA; else interfaces by NCCL_SOCKET_IFNAME, or OPTCC_NICS=eth0,eth1."
            )
            click.echo(nics, err=True)

    emit(as_json, {"path": str(path), "env": env}, tell)


def write_plans(cluster: Cluster, folder: Path, failures: int) -> dict[str, Any]:
    """Write the plans of a cluster into a folder, and say which. Raises InputError for a folder that is not empty."""
    from optcc.export.calls import prepared

    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            "not empty", where=str(folder), expected="a new or empty folder", got="files",
            hint="All plans in a folder count, so old ones must not stay among new ones.",
        )  # fmt: skip
    files, large = prepared(cluster, failures)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("cannot be made", where=str(folder), expected="a folder", got=str(error.strerror)) from None
    for name, text in files.items():
        write_file(folder / name, text.encode())
    rates = {name: [int(rate) for rate in text.splitlines()[2].split()[1:]] for name, text in files.items()}
    return {"folder": str(folder.resolve()), "plans": rates, "left_out": large}


def _tell_plans(found: dict[str, Any]) -> None:
    click.echo(f"{len(found['plans'])} plans in {found['folder']}, by what servers have of the fastest's rate:")
    for name, rates in found["plans"].items():
        counts = Counter(sorted(rates, reverse=True))
        click.echo(f"  {name}: {', '.join(f'{count} x {rate / 10:g} %' for rate, count in counts.items())}")
    if found["left_out"]:
        click.echo(f"{len(found['left_out'])} states would have too many transfers: they go by a ring.", err=True)


def plugin() -> Path:
    """The plugin's path. Raises InputError where there is none, or NCCL would not take it."""
    path = Path(str(files("optcc") / PLUGIN)).resolve()
    if not path.is_file():
        raise InputError(
            "no plugin for NCCL", where=str(path), expected="a library", got="no file",
            hint="make native, in a checkout, or pip install . builds it; both need a C compiler.",
        )  # fmt: skip
    if len(str(path)) > MOST_PATH:
        raise InputError(
            "a path that NCCL does not take", where=str(path), expected=f"{MOST_PATH} characters at most",
            got=str(len(str(path))), hint="Install optcc under a shorter one.",
        )  # fmt: skip
    if "," in str(path):
        raise InputError(
            "a path that NCCL does not take", where=str(path), expected="no comma", got="one",
            hint="NCCL reads a list of plugins there: install optcc elsewhere.",
        )  # fmt: skip
    return path
