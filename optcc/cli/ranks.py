"""Where ranks run and who starts them: options and their reading, for the commands that move real bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from optcc.cli.options import stack
from optcc.errors import InputError
from optcc.files.reading import beginning

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


REFUSE_S = 10.0
"""For other ranks to come and hear that what rank 0 was given cannot be."""


def membership_of(
    rendezvous: str | None,
    rank: int | None,
    world: int | None,
    path: ChunkPath,
    interface: str | None = None,
    terms: Callable[[], Mapping[str, str]] = dict,
) -> Membership | None:
    """This process's place among ranks that others start; None: there are no others, so the ranks are started here.

    Does not return in a process that is not rank 0. It serves as its rank, reports a failure on stderr, and exits.

    path : that chunks of the run will take
    interface : as of `membership_options`
    terms : what was given, by name, for all ranks to compare; asked for only where there are others. Where it raises
        InputError, all ranks do
    """
    from optcc.runtime.control.rendezvous import find
    from optcc.runtime.control.secret import SECRETS

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

        raise SystemExit(serve_rank(found, path, say=lambda text: click.echo(f"optcc: {text}", err=True)))
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
    """A plan file, by its name or by what it begins with."""
    if source.endswith(".json"):
        return True
    return beginning(source, 64).lstrip().startswith(b"{")


def option_terms(**given: object) -> dict[str, str]:
    """Options of the command line as all ranks compare them; by their names in Python."""
    return {f"--{name.replace('_', '-')}": str(value) for name, value in given.items()}
