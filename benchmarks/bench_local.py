"""Achieved time over bound on this machine: 4 ranks x 4 emulated NICs, 2 NICs of one server dead (l = 2).

Writes docs/bench-local.md. Exit status 1 when a result is wrong, the median of optcc's schedule is over 1.05 times
the bound, or the ring is less than 1.4 times slower.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from fractions import Fraction
from pathlib import Path
from statistics import median, pstdev

import optcc
from optcc.api import LOCAL_RATE
from optcc.reports.run import run_progress
from optcc.values.units import format_rate, format_seconds, format_size

SIZE = 64 * 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/bench-local.md"))
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    cluster = optcc.Cluster.uniform(servers=4, nics=4, rate=Fraction(50_000_000_000))
    plan = optcc.plan(cluster.degrade("server1/nic0").degrade("server1/nic1"), SIZE)
    simulated = optcc.simulate(plan.schedule()).time_s / float(plan.bound.seconds)
    with run_progress(options.repeat) as progress:
        run = optcc.run(plan, repeat=options.repeat, progress=progress)
    text = [
        "# Achieved time over bound on one machine",
        "",
        "Made by `make bench-local`: real bytes between 4 processes over loopback, 4 emulated NICs each, 2 NICs of",
        f"server1 dead, {format_size(SIZE)} of float32 per rank, {plan.recipe.segments} segments. Rates are",
        f"scaled down so that a whole server has {format_rate(LOCAL_RATE)}. Both algorithms run in the same processes,",
        "in turn.",
        "",
        f"Bound {format_seconds(run.plan.bound.seconds)}; the simulator says {simulated:.4f} of it for optcc.",
        "",
        "| algorithm | median | over bound | spread (cv) | result |",
        "|---|---|---|---|---|",
    ]
    for name, result in run.results.items():
        spread = pstdev(result.seconds) / median(result.seconds)
        exact = "exact" if all(result.exact) else "WRONG"
        time = format_seconds(result.median_s)
        text.append(f"| {name} | {time} | {run.ratio(name):.4f} | {100 * spread:.2f} % | {exact} |")
    slower = run.results["ring"].median_s / run.results["optcc"].median_s
    text += [
        "",
        f"The ring takes {slower:.3f} times as long. Python {platform.python_version()}, {os.cpu_count()} CPUs.",
        "",
    ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))
    return 0 if run.exact and run.ratio() <= 1.05 and slower >= 1.4 else 1


if __name__ == "__main__":
    sys.exit(main())
