"""Simulated time over bound at k = 64 segments and alpha = 0, for 4 to 32 servers. Writes docs/bench-simulate.md.

Exit status 1 when a case is over its limit: 1.05 for one degraded server, 1.08 for several.
"""

from __future__ import annotations

import argparse
import platform
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
from rich.progress import track

import optcc

SEGMENTS = 64
SIZE = 2**30
HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
CASES: tuple[tuple[Fraction, ...], ...] = (
    (Fraction(7, 8),),
    (3 * QUARTER,),
    (HALF,),
    (QUARTER,),
    (HALF, HALF),
    (HALF, 3 * QUARTER),
    (3 * QUARTER, 3 * QUARTER),
    (HALF, HALF, HALF),
    (HALF, 3 * QUARTER, Fraction(7, 8)),
)


def measure(servers: int, left: tuple[Fraction, ...]) -> tuple[float, float]:
    """(optcc over bound, ring over bound) with the first servers at `left` of their rate."""
    cluster = optcc.Cluster.uniform(servers=servers, rate=Fraction(50_000_000_000))
    for i, fraction in enumerate(left):
        cluster = cluster.degrade(f"server{i}/nic0", fraction)
    plan = optcc.plan(cluster, SIZE, segments=SEGMENTS)
    schedules = (plan.schedule(), plan.baseline("ring").schedule())
    optcc_s, ring_s = (optcc.simulate(schedule).time_s for schedule in schedules)
    return optcc_s / float(plan.bound.seconds), ring_s / float(plan.bound.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/bench-simulate.md"))
    output = parser.parse_args().output
    rows, over = [], []
    jobs = [(servers, left) for servers in (4, 8, 16, 32) for left in CASES]
    for servers, left in track(jobs, description="simulating"):
        reached, ring = measure(servers, left)
        limit = 1.05 if len(left) == 1 else 1.08
        rows.append(f"| {servers} | {', '.join(map(str, left))} | {reached:.4f} | {ring:.4f} | {limit} |")
        if reached > limit:
            over.append(rows[-1])
    text = [
        "# Simulated time over bound",
        "",
        f"Made by `make bench-simulate`. Simulated, not measured: 1 GiB per rank, {SEGMENTS} segments, alpha = 0,",
        'one NIC of 400 Gb/s per server. "Left" is what the degraded servers have of that. The ring is one ring over',
        "all servers with equal shards, on the same degraded NICs.",
        "",
        "| servers | left | optcc / bound | ring / bound | limit for optcc |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"optcc {optcc.__version__}, numpy {np.__version__}, Python {platform.python_version()}.",
        "",
    ]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))
    for row in over:
        print(f"over its limit: {row}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
