"""Unequal segments against equal ones and against (k+1)/k, in the simulator. Writes docs/bench-segments.md.

Exit status 1 when unequal segments do not stay clearly below the paper's (k+1)/k: at most 0.7 of its overhead.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction

from rich.progress import track

import optcc
from benchmarks.pages import made_with, parser, write
from optcc.theory.splits import Sizes, best_start

SIZE = 2**30
CASES = [(p, slow, k) for p in (8, 16) for slow in (Fraction(2), Fraction(4, 3), Fraction(3)) for k in (4, 8, 16, 32)]


def measure(servers: int, slow: Fraction, segments: int) -> tuple[float, float]:
    """(equal, unequal) simulated time over bound with one server at 1/slow of the others' rate."""
    cluster = optcc.Cluster.uniform(servers=servers, rate=Fraction(50 * 10**9)).degrade("server0/nic0", 1 / slow)
    plan = optcc.plan(cluster, SIZE, segments=segments)

    def seconds(sizes: Sizes) -> float:
        return optcc.simulate(replace(plan.recipe, segment_sizes=sizes).lower(plan.cluster, SIZE)).time_s

    _, unequal = best_start([rank.out_rate for rank in cluster.ranks], segments, seconds)
    bound = float(plan.bound.seconds)
    return optcc.simulate(plan.schedule()).time_s / bound, unequal / bound


def main() -> int:
    asked = parser(__doc__, "bench-segments")
    output = asked.parse_args().output
    rows, late = [], []
    for servers, slow, k in track(CASES, description="simulating"):
        equal, unequal = measure(servers, slow, k)
        rows.append(f"| {servers} | {slow} | {k} | {1 + 1 / k:.4f} | {equal:.4f} | {unequal:.4f} |")
        if unequal - 1 > 0.7 / k:
            late.append(rows[-1])
    text = [
        "# Equal and unequal segments",
        "",
        "Made by `make bench-segments`. Simulated time over bound, 1 GiB per rank, alpha = 0, one server at 1/l of",
        "the others' rate. (k+1)/k is what the published schedule takes with k equal segments. Unequal: the best of a",
        "few size vectors from a convex program (`optcc.theory.splits`), chosen by simulation (equal sizes are among",
        "them, so it is never worse).",
        "",
        "| servers | l | k | (k+1)/k | equal | unequal |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        made_with(),
    ]
    write(output, text, lambda c: c["k"] == "16")
    for row in late:
        print(f"not clearly below (k+1)/k: {row}", file=sys.stderr)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
