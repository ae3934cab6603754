"""`optcc bound`: the lower bound, what limits it, and its certificate; and the check of one that is handed over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optcc.cli.options import (
    alpha_option,
    cluster_options,
    emit,
    json_option,
    kept,
    per_chunk_option,
    read_cluster,
    read_costs,
    read_size,
    size_option,
)
from optcc.errors import CertificateError, InputError
from optcc.files.reading import read_file, shown
from optcc.values.cluster import Cluster
from optcc.values.json_records import MAX_BYTES

if TYPE_CHECKING:
    from optcc.values.bound import BoundWithCosts


@click.command()
@click.argument("topology", required=False)
@cluster_options
@size_option
@click.option("--repair-first", is_flag=True, help="Also list the degraded NICs, the one most worth repairing first.")
@click.option(
    "--collective",
    type=click.Choice(["allreduce", "allgather", "reduce-scatter", "reduce-scatter+allgather", "broadcast", "reduce"]),
    default="allreduce",
    show_default=True,
    help="For the others SIZE is the whole buffer: an allgather's result, a reduce-scatter's input; at once, of each.",
)
@click.option("--root", metavar="RANK", help="The root of a broadcast or reduce, such as server0 or server0/gpu3.")
@click.option(
    "--symbolic", type=click.Choice(["text", "latex"]), help="Print the formula, its assumptions and proof id."
)
@alpha_option
@per_chunk_option
@click.option(
    "--check", "file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), metavar="FILE",
    help="Check what --json has printed, without a solver; with TOPOLOGY and its options, also that it is for these.",
)  # fmt: skip
@json_option
def bound(
    topology: str | None,
    servers: int | None,
    fail: tuple[str, ...],
    nic_rate: str | None,
    ranks: str | None,
    size: str,
    repair_first: bool,
    collective: str,
    root: str | None,
    symbolic: str | None,
    alpha: str,
    per_chunk: str,
    file: Path | None,
    as_json: bool,
) -> None:
    """The least time any AllReduce can take, what limits it, and the certificate.

    With --alpha or --per-chunk also the least time of any schedule of whole chunks that pays these costs.
    """
    from optcc import api
    from optcc.reports.console import print_bound, print_costs, print_repairs, print_together, working
    from optcc.theory.bound_costs import bound_with_costs
    from optcc.theory.bound_file import bound_file
    from optcc.theory.bounds import scope_of
    from optcc.values.bound import repairs_json, together_json

    if file is not None:
        _check(file, _cluster_to_check(topology, servers, fail, nic_rate, ranks), as_json)
        return
    if topology is None:
        raise click.MissingParameter(param_type="argument", param_hint="'TOPOLOGY'")
    if symbolic and repair_first:
        raise InputError("one or the other", where="--symbolic, --repair-first", expected="not both")
    if collective != "allreduce" and (repair_first or symbolic):
        raise InputError("for allreduce only", where="--repair-first, --symbolic", expected="--collective allreduce")
    if symbolic and (alpha, per_chunk) != ("0us", "0us"):
        raise InputError("a formula without costs", where="--symbolic, --alpha, --per-chunk", expected="not both")
    cluster, nbytes = read_cluster(topology, servers, fail, nic_rate, ranks), read_size(size)
    if symbolic:
        formula = api.symbolic_bound(cluster)
        text = formula.latex() if symbolic == "latex" else formula.text()
        emit(as_json, {"formula": text, "proof_id": formula.proof_id}, lambda: click.echo(text))
        return
    costs = read_costs(alpha, per_chunk)

    def priced() -> BoundWithCosts:
        return bound_with_costs(cluster, least, **costs, collective=collective)

    with working("bound") as tell:
        least = api.lower_bound(cluster, nbytes, collective, root)
        found = priced() if any(costs.values()) else None
        if repair_first:
            tell("of each repair")
        repairs = api.repair_first(cluster, nbytes) if repair_first else ()
        steps = api.repair_together(cluster, nbytes) if repair_first else ()

    def value() -> dict[str, Any]:
        told = bound_file(cluster, found or priced())
        if repair_first:
            told["repair_first"] = repairs_json(repairs)
            told["repair_together"] = together_json(steps)
        return told

    def show() -> None:
        print_bound(least, cluster)
        if not scope_of(cluster, least.certificate).every_protocol:
            from optcc.theory.bound_program import gap_to_every_protocol  # with its solver
            from optcc.theory.program_network import collective_named

            gap = float(gap_to_every_protocol(cluster, collective_named(collective)))
            click.echo(f"binds every protocol, coded ones too, but for {100 * gap:.3g} % of the rate")
        if found is not None:
            print_costs(found)
        if repair_first:
            print_repairs(repairs)
            print_together(steps)

    emit(as_json, value, show)


def _cluster_to_check(
    topology: str | None, servers: int | None, fail: tuple[str, ...], nic_rate: str | None, ranks: str | None
) -> Cluster | None:
    """The cluster that a file must be for; None where none was given. Raises InputError for options out of place."""
    context = click.get_current_context()
    for name in ("size", "repair_first", "collective", "root", "symbolic", "alpha", "per_chunk"):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            option = f"--{name.replace('_', '-')}"
            raise InputError("not with --check", where=option, expected=f"no {option}: FILE says it", got=option)
    if topology is not None:
        return read_cluster(topology, servers, fail, nic_rate, ranks)
    if servers or fail or nic_rate or ranks or kept("nics") or kept("hosts"):
        raise InputError("nothing to apply them to", where="--check", expected="TOPOLOGY beside its options")
    return None


def _check(file: Path, wanted: Cluster | None, as_json: bool) -> None:
    """Print the bound in `file`, once all of it is checked. CertificateError where it does not hold."""
    from optcc.reports.console import print_bound, print_costs, working
    from optcc.theory.bound_file import HINT, check_bound_file
    from optcc.values.bound import bound_json, costs_json

    data = read_file(file, MAX_BYTES, what="bound", expected="what optcc bound --json prints", hint=HINT)
    with working("checking"):
        cluster, found = check_bound_file(data.decode("utf-8", "replace"), shown(file))
    if wanted is not None and cluster != wanted:
        raise CertificateError(f"{shown(file)}: it is for another cluster: {_difference(cluster, wanted)}")

    def show() -> None:
        print_bound(found.bound, cluster)
        if found.alpha or found.per_chunk:
            print_costs(found)
        which = "the topology in it" if wanted is None else "the topology in it, the one given"
        click.echo(f"checked: {shown(file)} proves all of this for {which}")

    emit(as_json, {"checked": True, **bound_json(found.bound, cluster), **costs_json(found, cluster)}, show)


def _difference(found: Cluster, wanted: Cluster) -> str:
    """Where two clusters that are not equal differ first."""
    if len(found.servers) != len(wanted.servers):
        return f"{len(found.servers)} servers, not {len(wanted.servers)}"
    for when, one, other in (("", found, wanted), (" before any failure", found.fault_free, wanted.fault_free)):
        for a, b in zip(one.servers, other.servers, strict=True):
            if a != b:
                return f"{a.name} is not as {b.name} in TOPOLOGY{when}"
    return "its fabric, its ranks or whether a failure was given"
