"""Where ranks run and who starts them: options and their reading, for the commands that move real bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from optcc.cli.options import stack

if TYPE_CHECKING:
    from optcc.runtime.compiled.choice import ChunkPath
    from optcc.runtime.control.rendezvous import Membership

transport_option = click.option(
    "--transport", type=click.Choice(["local", "verbs"]), default="local", show_default=True,
    help="Emulated NICs between processes of one machine, or RDMA devices, which are called as the cluster's NICs.",
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


def membership_of(rendezvous: str | None, rank: int | None, world: int | None, path: ChunkPath) -> Membership | None:
    """This process's place among ranks that others start; None: there are no others, so the ranks are started here.

    Does not return in a process that is not rank 0. It serves as its rank, reports a failure on stderr, and exits.
    `path` : that chunks of the run will take.
    """
    from optcc.runtime.control.rendezvous import find
    from optcc.runtime.control.secret import SECRETS

    found = find(os.environ, rendezvous=rendezvous, rank=rank, world=world)
    for name in SECRETS:  # no process that this one starts has to know
        os.environ.pop(name, None)
    if not found or found.world == 1:
        return None
    if found.rank:
        from optcc.runtime.control.serving import serve_rank

        raise SystemExit(serve_rank(found, path, say=lambda text: click.echo(f"optcc: {text}", err=True)))
    return found
