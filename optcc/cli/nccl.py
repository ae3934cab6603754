"""`optcc nccl`: where the plugin is that NCCL loads, and the variables that make it do so."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

import click

from optcc.cli.options import emit, json_option
from optcc.errors import InputError

PLUGIN = "libnccl-net-optcc.so"
MOST_PATH = 254
"""Characters of a path that NCCL takes (MAX_STR_LEN of its src/plugin/net.cc)."""


@click.command()
@click.option("--path", "only_path", is_flag=True, help="The library's path alone, for NCCL_NET_PLUGIN.")
@click.option("--env", "only_env", is_flag=True, help='Variables for a shell: eval "$(optcc nccl --env)".')
@json_option
def nccl(only_path: bool, only_env: bool, as_json: bool) -> None:
    """The network plugin with which unmodified NCCL outlives NICs: where it is, and how NCCL is told.

    Set the variables on every host of a job; docs/nccl.md says what is survived.
    """
    if only_path and only_env:
        raise click.UsageError("--path and --env exclude each other.")
    path = plugin()
    env = {"NCCL_NET_PLUGIN": str(path), "NCCL_NET": "optcc"}

    def tell() -> None:
        if only_path:
            click.echo(str(path))
            return
        for name, value in env.items():
            click.echo(f"export {name}={shlex.quote(value)}")
        if not only_env:
            click.echo("# NICs: as NCCL's own sockets, by NCCL_SOCKET_IFNAME, or OPTCC_NICS=eth0,eth1.", err=True)

    emit(as_json, {"path": str(path), "env": env}, tell)


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
