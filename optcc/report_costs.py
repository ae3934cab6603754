"""What people and programs see of a bound that knows latency and the cost of a chunk."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from optcc.bound_with_costs import BoundWithCosts, CutCosts, PairCosts
from optcc.cluster import Cluster
from optcc.report import plain_table, show
from optcc.units import format_seconds


def costs_json(found: BoundWithCosts, cluster: Cluster) -> dict[str, Any]:
    """What `optcc bound --alpha --per-chunk` adds to its JSON value. Times in seconds; exact ones are fractions."""
    cert = found.certificate
    certificate: dict[str, Any] = {"kind": cert.kind}
    if isinstance(cert, CutCosts):
        certificate["server"] = cluster.servers[cert.server].name
        certificate["direction"] = cert.direction
        certificate["losses_s_exact"] = [str(loss) for loss in cert.losses]
    elif isinstance(cert, PairCosts):
        certificate["servers"] = [cluster.servers[s].name for s in cert.servers]
        certificate["direct"] = str(cert.direct)
    return {
        "bound_with_costs_s": float(found.seconds),
        "costs": {
            "alpha_s": float(found.alpha),
            "per_chunk_s": float(found.per_chunk),
            "extra_s": float(found.extra_s),
            "parts": [{"what": part.what, "seconds": float(part.seconds)} for part in found.parts],
            "certificate": {**certificate, "bound_with_costs_s_exact": str(found.seconds)},
        },
    }


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
