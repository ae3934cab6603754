"""What people see of a bound that knows latency and the cost of a chunk."""

from __future__ import annotations

from rich.text import Text

from optcc.reports.console import plain_table, show
from optcc.values.bound import BoundWithCosts
from optcc.values.units import format_seconds


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
