"""The planner's choice against every family and depth tried by hand. Writes docs/bench-planner.md.

Exit status 1 when a choice is more than 2 % slower than the best.
"""

from __future__ import annotations

import argparse
import platform
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from rich.progress import track

import optcc
from optcc import planner
from optcc.cluster import Cluster
from optcc.errors import InfeasibleError
from optcc.units import format_seconds, format_size

ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)
DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
MOST_TRANSFERS = 400_000


@dataclass(frozen=True)
class Case:
    """`servers` of 2 NICs of 200 GB/s; `dead[i]` NICs of server i are dead."""

    servers: int
    dead: tuple[int, ...]
    nbytes: int

    def __str__(self) -> str:
        return f"{self.servers} servers, dead {self.dead}, {format_size(self.nbytes)}"


GRID = [
    Case(servers, dead, nbytes)
    for servers in (4, 8, 16, 32, 64)
    for dead in ((), (1,), (1, 1))
    for nbytes in (2**20, 2**26, 2**30)
]


def cluster_of(case: Case) -> Cluster:
    """The case's cluster."""
    cluster = Cluster.uniform(servers=case.servers, nics=2, rate=Fraction(200 * 10**9))
    for server, count in enumerate(case.dead):
        for nic in range(count):
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


def offered(case: Case) -> list[planner.Ladder]:
    """The planner's families, those that take long to find left out."""
    bound = optcc.lower_bound(cluster_of(case), case.nbytes)
    found = planner.ladders(cluster_of(case), bound, alpha=ALPHA, per_chunk=PER_CHUNK)
    return [ladder for ladder in found if not ladder.costly]


def by_hand(case: Case) -> list[tuple[float, str]]:
    """(simulated seconds, family and segments) of everything on the grid of families and depths."""
    cluster, found = cluster_of(case), []
    for ladder in offered(case):
        for depth in DEPTHS:
            if ladder.deepest and depth > ladder.deepest:
                break
            try:
                schedule = ladder.make(depth).lower(cluster, case.nbytes)
            except InfeasibleError:
                break
            if len(schedule) > MOST_TRANSFERS:
                break
            time_s = optcc.simulate(schedule, alpha=ALPHA, per_chunk=PER_CHUNK).time_s
            found.append((time_s, f"{ladder.name}, {depth}"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/bench-planner.md"))
    output = parser.parse_args().output
    rows, worst = [], 0.0
    for case in track(GRID, description="trying by hand"):
        best_s, best = min(by_hand(case))
        made = optcc.plan(cluster_of(case), case.nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
        time_s = optcc.simulate(made.schedule(), alpha=ALPHA, per_chunk=PER_CHUNK).time_s
        chosen = f"{made.recipe.family}, {made.recipe.segments}"
        rows.append(
            f"| {case.servers} | {', '.join(map(str, case.dead)) or '-'} | {format_size(case.nbytes)} | {best} "
            f"| {format_seconds(best_s)} | {chosen} | {format_seconds(time_s)} | {100 * (time_s / best_s - 1):+.2f} % |"
        )
        worst = max(worst, time_s / best_s - 1)
    text = [
        "# The planner's regret",
        "",
        f"Made by `make bench-planner`. Simulated: servers of 2 NICs of 200 GB/s, {format_seconds(ALPHA)} from NIC to",
        f"NIC, {format_seconds(PER_CHUNK)} per chunk. By hand: every family at",
        f"{', '.join(map(str, DEPTHS))} segments. Regret is how much slower the planner's choice is;",
        "below zero it is better than anything on that grid.",
        "",
        "| servers | dead NICs | size | best by hand | time | planned: family, segments | time | regret |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Largest regret: {100 * worst:.2f} % (limit 2 %).",
        "",
        f"optcc {optcc.__version__}, Python {platform.python_version()}.",
        "",
    ]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))
    return 1 if worst > 0.02 else 0


if __name__ == "__main__":
    sys.exit(main())
