"""Achieved time over bound on this machine: 4 ranks x 4 emulated NICs, 2 NICs of one server dead (l = 2).

Writes docs/bench-local.md. Exit status 1 when a result is wrong, the median of optcc's schedule is over 1.05 times
the bound, or at 1 Gb/s the ring is less than 1.4 times slower.
"""

from __future__ import annotations

import os
import platform
import sys
from fractions import Fraction
from statistics import median, pstdev

import optcc
from benchmarks.memory_floor import MemoryFloor
from benchmarks.pages import parser, write
from optcc.api import LOCAL_RATE
from optcc.reports.runs import run_progress
from optcc.values.units import format_rate, format_seconds, format_size

SIZE = 64 * 2**20
RATES = (LOCAL_RATE, 16 * LOCAL_RATE)
"""Bytes per second of a server: 1 and 16 Gb/s."""
PATHS = ("compiled", "python")
WITHIN = 1.05
SEGMENTS = {RATES[0]: None, RATES[1]: 32}
"""Of the plan, None: as the planner has it. At 16 Gb/s as many chunks as at 1 take more processor than there is."""


def main() -> int:
    asked = parser(__doc__, "bench-local")
    asked.add_argument("--repeat", type=int, default=15)
    options = asked.parse_args()
    cluster = optcc.Cluster.uniform(servers=4, nics=4, rate=Fraction(50_000_000_000))
    hurt = cluster.degrade("server1/nic0").degrade("server1/nic1")
    text = [
        "# Achieved time over bound on one machine",
        "",
        "Made by `make bench-local`: real bytes between 4 processes, 4 emulated NICs each, 2 NICs of server1 dead,",
        f"{format_size(SIZE)} of float32 per rank.",
        "Rates are scaled down so that a whole server has what the first column says.",
        "Both algorithms run in the same processes, in turn.",
        "`simulated` is the simulator's time of optcc's schedule, without any processor.",
        "`floor` is what memory allows: the schedule's folds and copies alone, by as many processes as cores.",
        "Both are over the bound; floor is the median of as many turns. Spread: standard deviation over mean.",
        "",
        "| a server | path | algorithm | segments | bound | median | over bound | spread | simulated | floor | |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    good = True
    for rate in RATES:
        plan = optcc.plan(hurt, SIZE, segments=SEGMENTS[rate])
        simulated = optcc.simulate(plan.schedule()).time_s / float(plan.bound.seconds)
        with MemoryFloor(SIZE) as memory:
            floor_s = median(memory.run(plan.schedule()) for _ in range(options.repeat))
        for path in PATHS:
            with run_progress(options.repeat) as progress:
                run = optcc.run(plan, repeat=options.repeat, local_rate=rate, path=path, progress=progress)
            bound_s = float(run.plan.bound.seconds)
            for name, result in run.results.items():
                spread = pstdev(result.seconds) / median(result.seconds)
                exact = "exact" if all(result.exact) else "WRONG"
                ours = name == "optcc"
                cells = [format_rate(rate), path, name, str(plan.segments) if ours else ""]
                cells += [format_seconds(bound_s), format_seconds(result.median_s), f"{run.ratio(name):.4f}"]
                cells += [f"{100 * spread:.2f} %", f"{simulated:.4f}" if ours else ""]
                cells += [f"{floor_s / bound_s:.4f}" if ours else "", exact]
                text.append(f"| {' | '.join(cells)} |")
            good &= run.exact and (run.ratio() <= WITHIN or (rate, path) == (RATES[1], "python"))
            good &= rate != LOCAL_RATE or run.results["ring"].median_s >= 1.4 * run.results["optcc"].median_s
    text += [
        "",
        "Python's path is not judged at the higher rate.",
        "",
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f} at the end.",
        "",
    ]
    write(options.output, text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
