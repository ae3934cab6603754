"""Small messages: plans with receive buffers and without, over the bound with costs. Writes docs/bench-small.md.

Exit status 1 when a plan of up to 64 KiB on 8 servers of 8 NICs takes more than 1.06 times the bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from rich.progress import track

import optcc
from benchmarks.pages import made_with, parser, table, write
from optcc.api import lower_bound_with_costs
from optcc.planner.search import slower_s
from optcc.plans.plan import Plan
from optcc.schedule.recipe import Costs
from optcc.values.cluster import Cluster
from optcc.values.units import format_size

RATE = Fraction(50 * 10**9)
USUAL = Costs(Fraction(5, 10**6), Fraction(1, 10**6))
FAR = Costs(Fraction(25, 10**6), Fraction(1, 10**6))
SIZES = tuple(2**e for e in (10, 12, 14, 16, 18, 20))
MOST = 1.06
"""Of the bound with costs, on 8 servers of 8 NICs, up to `MOST_BYTES`."""
MOST_BYTES = 2**16


def cluster_of(servers: int, nics: int, dead: int) -> Cluster:
    """`servers` servers of `nics` NICs, server1 with `dead` NICs lost."""
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=RATE)
    for nic in range(dead):
        cluster = cluster.degrade(f"server1/nic{nic}")
    return cluster


@dataclass(frozen=True)
class Cell:
    """A case, with its times in seconds."""

    servers: int
    nics: int
    dead: int
    nbytes: int
    costs: Costs
    bound_s: float
    plan: Plan
    plan_s: float
    in_place: Plan
    in_place_s: float

    def what(self) -> str:
        """The plan's family and hops."""
        digits = self.plan.choices.get("digits")
        return f"{self.plan.family} {digits}" if digits else self.plan.family


def tried(servers: int, nics: int, dead: int, costs: Costs, sizes: tuple[int, ...] = SIZES) -> Iterator[Cell]:
    """The cases of a cluster."""
    cluster = cluster_of(servers, nics, dead)
    for nbytes in sizes:
        bound = lower_bound_with_costs(cluster, nbytes, alpha=costs.alpha, per_chunk=costs.per_chunk)
        plans = [optcc.plan(cluster, nbytes, **costs._asdict(), in_place=in_place) for in_place in (False, True)]
        times = [slower_s(plan.schedule(), costs) for plan in plans]
        yield Cell(servers, nics, dead, nbytes, costs, float(bound.seconds), plans[0], times[0], plans[1], times[1])


def lines(cells: list[Cell], others: list[Cell]) -> Iterator[str]:
    """The page."""
    yield from (
        "# Small messages",
        "",
        "Plans whose transfers may land in receive buffers ([whole vectors](schedules.md#whole-vectors)), and plans in "
        "place (`--in-place`), in the simulator.",
        made_with("NICs of 400 Gb/s; the slower kind of receivers"),
        "The bound is that with costs.",
        "",
        "## 8 servers of 8 NICs",
        "",
        "Dead NICs are of one server. 1 us at each port for a chunk.",
        "",
    )
    head = ("latency, us", "dead", "size", "bound, us", "plan, us", "over the bound",
            "in place, over the bound", "plan")  # fmt: skip
    yield from table(
        head,
        [
            (
                float(c.costs.alpha * 10**6), c.dead, format_size(c.nbytes), f"{c.bound_s * 1e6:.2f}",
                f"{c.plan_s * 1e6:.2f}", f"{c.plan_s / c.bound_s:.3f}", f"{c.in_place_s / c.bound_s:.3f}", c.what(),
            )
            for c in cells
        ],
    )  # fmt: skip
    yield from (
        "",
        "## Other clusters",
        "",
        "5 us from NIC to NIC, 1 us for a chunk.",
        "",
    )
    yield from table(
        ("servers, NICs, dead", "size", "bound, us", "plan, us", "over the bound", "in place, over the bound", "plan"),
        [
            (
                f"{c.servers}, {c.nics}, {c.dead}", format_size(c.nbytes), f"{c.bound_s * 1e6:.2f}",
                f"{c.plan_s * 1e6:.2f}", f"{c.plan_s / c.bound_s:.3f}", f"{c.in_place_s / c.bound_s:.3f}", c.what(),
            )
            for c in others
        ],
    )  # fmt: skip


def matters(cells: dict[str, str]) -> bool:
    """Which rows of the long tables stay on the page."""
    return cells.get("latency, us") == "5.0" and cells["size"] not in ("256KiB", "1MiB")


def main() -> int:
    options = parser(__doc__, "bench-small").parse_args()
    near = [(8, 8, dead, costs) for costs in (USUAL, FAR) for dead in (0, 1, 4)]
    far = [(2, 8, 0), (3, 1, 0), (5, 1, 0), (8, 1, 0), (16, 1, 0), (16, 8, 6), (32, 8, 1)]
    cells = [cell for each in track(near) for cell in tried(*each)]
    others = [cell for each in track(far) for cell in tried(*each, USUAL, SIZES[:5:2])]
    write(options.output, lines(cells, others), matters)
    worst = max(cell.plan_s / cell.bound_s for cell in cells if cell.nbytes <= MOST_BYTES)
    print(f"worst of 8 servers of 8 NICs, up to {format_size(MOST_BYTES)}: {worst:.3f}")
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
