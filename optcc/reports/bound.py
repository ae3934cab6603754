"""What people see of a bound and of the NICs to repair first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from optcc.reports.console import percent, plain_table, show
from optcc.values.bound import Bound, ProgramCertificate
from optcc.values.bound_json import GBPS
from optcc.values.bound_with_costs import BoundWithCosts
from optcc.values.cluster import Cluster
from optcc.values.units import format_rate, format_seconds, format_size

if TYPE_CHECKING:
    from optcc.theory.sensitivity import JointRepair, Repair


SHOWN_PRICES = 4
SHOWN_SERVERS = 4
"""Servers that are named one by one, so that a line can be read; --json names all."""


def print_bound(bound: Bound, cluster: Cluster) -> None:
    """A few lines: bound, fault-free, overhead, bottleneck, certificate."""
    cert = bound.certificate
    table = plain_table()
    who = "GPUs" if cluster.gpu_ranks else "servers"
    cert_of = cert.collective if isinstance(cert, ProgramCertificate) else "allreduce"
    each = " per rank" if cert_of == "allreduce" else " in all"
    table.add_row(f"{cert_of} of", f"{format_size(bound.nbytes)}{each} over {len(cluster.ranks)} {who}")
    table.add_row("no faster than", Text(format_seconds(bound.seconds), "bold"))
    if cluster.pristine is None:
        table.add_row("overhead", "none counted: no failure was given, and the topology as it is counts as fault-free")
    else:
        table.add_row("fault-free", format_seconds(bound.fault_free_s))
        table.add_row("unavoidable overhead", percent(bound.overhead))
    table.add_row("limited by", bound.bottleneck)
    if isinstance(cert, ProgramCertificate):
        for price in cert.prices[1:SHOWN_PRICES]:
            table.add_row("", f"{price.what}: {percent(price.share)}")
        if len(cert.prices) > SHOWN_PRICES:
            table.add_row("", f"and {len(cert.prices) - SHOWN_PRICES} more")
        proof = f"exact program: {len(cert.cuts)} weighted cuts, gap {float(cert.gap):.1g}, checked"
        table.add_row("certificate", proof)
    elif cert.nbytes:
        moved, rate = format_size(cert.nbytes), format_rate(cert.rate)
        table.add_row("certificate", f"{cert.kind}, closed form: {moved} must pass ports of {rate} ({cert.direction})")
    show(table)


def print_repairs(repairs: Sequence[Repair]) -> None:
    """A table of degraded NICs, the most worthwhile repair first."""
    if not repairs:
        show("nothing to repair")
        return
    table = Table(title="repair first", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("NIC", "bound once repaired", "saves", "saves per Gb/s"):
        table.add_column(column)
    for r in repairs:
        per_gbps = format_seconds(r.gain_s_per_rate * GBPS)
        table.add_row(r.nic, format_seconds(r.repaired_s), format_seconds(r.saved_s), per_gbps)
    show(table)


def print_together(steps: Sequence[JointRepair]) -> None:
    """A table of repairs one after the other; nothing where every repair helps alone."""
    if not steps:
        return
    title = "repair together, step by step"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("", "NICs", "bound once repaired", "saves"):
        table.add_column(column)
    for number, step in enumerate(steps, 1):
        table.add_row(
            str(number), nics_in_words(step.nics), format_seconds(step.repaired_s), format_seconds(step.saved_s)
        )
    show(table)


def nics_in_words(names: Sequence[str]) -> str:
    """SERVER/NIC names as people say them: one as it is, several as "nic0 of server0, server1"."""
    if len(names) == 1:
        return names[0]
    nics_of: dict[str, list[str]] = {}
    for name in names:
        server, _, nic = name.partition("/")
        nics_of.setdefault(server, []).append(nic)
    servers_with: dict[str, list[str]] = {}
    for server, nics in nics_of.items():
        servers_with.setdefault(", ".join(nics), []).append(server)
    return "; ".join(f"{nics} of {_some(servers)}" for nics, servers in servers_with.items())


def _some(servers: Sequence[str]) -> str:
    if len(servers) <= SHOWN_SERVERS:
        return ", ".join(servers)
    return f"{len(servers)} servers ({', '.join(servers[: SHOWN_SERVERS - 1])}, ..., {servers[-1]})"


def print_costs(found: BoundWithCosts) -> None:
    """The bound with costs, how much above the one without, and what it is made of."""
    table = plain_table()
    costs = f"{format_seconds(found.alpha)} a hop, {format_seconds(found.per_chunk)} a chunk and port"
    table.add_row("with costs of", costs)
    more = Text.assemble((format_seconds(found.seconds), "bold"), f", {format_seconds(found.extra_s)} more")
    table.add_row("no faster than", more)
    for part in found.parts:
        if part.seconds:
            table.add_row("", f"{format_seconds(part.seconds)} {part.what}")
    show(table)
