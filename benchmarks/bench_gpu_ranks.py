"""AllReduce on GPU buffers over its bound: 4 ranks x 4 emulated NICs, by rate of a server, with MPS and without.

Writes docs/bench-gpu-ranks.md. Exit status 1 when a result is wrong or a target is missed.
Needs one CUDA device or more, and cupy; the targets are for two.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fractions import Fraction

import optcc
from benchmarks.bench_gpu import describe_gpu
from benchmarks.pages import parser, write
from optcc.api import Run
from optcc.plans.plan import Plan
from optcc.runtime.devices.cuda import gpu_count
from optcc.runtime.devices.mps import DIRECTORY, sharing_of
from optcc.values.units import format_rate, format_seconds, format_size, parse_rate

SIZE, SEGMENTS, RANKS = 256 * 2**20, 8, 4
RATES = ("8Gb/s", "40Gb/s", "160Gb/s", "400Gb/s")
TARGETS = {"160Gb/s": 1.05, "400Gb/s": 1.15}
"""The most that it may take over the bound, with all NICs and with MPS."""
MPS, TURNS = "MPS", "no MPS"
"""Columns: whether ranks share GPUs by a service, where there are fewer than ranks."""


def plans() -> dict[str, Plan]:
    """What is run, by name."""
    whole = optcc.Cluster.uniform(servers=RANKS, nics=4, rate=Fraction(12_500_000_000))
    hurt = whole.degrade("server1/nic0")
    return {
        "all NICs": optcc.plan(whole, SIZE, segments=SEGMENTS),
        "one NIC of server1 dead": optcc.plan(hurt, SIZE, segments=SEGMENTS),
    }


@contextmanager
def without_mps() -> Iterator[None]:
    """In the block, ranks find a directory in which nobody serves."""
    with tempfile.TemporaryDirectory() as nowhere:
        os.environ[DIRECTORY] = nowhere
        try:
            yield
        finally:
            del os.environ[DIRECTORY]


def measured(plan: Plan, rate: str, way: str, repeat: int) -> Run:
    """The plan, run so."""
    with without_mps() if way == TURNS else nullcontext():
        return optcc.run(plan, repeat=repeat, algorithms=("optcc",), local_rate=rate, device="cuda")


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser(__doc__, "bench-gpu-ranks")
    asked.add_argument("--repeat", type=int, default=9)
    options = asked.parse_args(arguments)
    missed: list[str] = []
    text = [
        "# AllReduce on GPU buffers over its bound",
        "",
        "Made by `make bench-gpu-ranks`: real bytes between GPU buffers of 4 processes, 4 emulated NICs each,",
        f"{format_size(SIZE)} of float32 per rank, {SEGMENTS} segments. Medians of {options.repeat}, over the bound at",
        "that rate. Rank r's buffer and its folds are on GPU r modulo the number of GPUs.",
        "",
        f"{gpu_count()} x {describe_gpu(0)}, Python {platform.python_version()}, {os.cpu_count()} CPUs.",
        f"Here {sharing_of(RANKS, gpu_count(), os.environ).why}.",
        "",
    ]
    for name, plan in plans().items():
        ways = [MPS, TURNS] if name == "all NICs" else [MPS]
        simulated = optcc.simulate(plan.schedule()).time_s / float(plan.bound.seconds)
        text += [f"## With {name}", "", f"The simulator says {simulated:.4f}.", ""]
        text += [f"| rate of a server | bound | {' | '.join(ways)} | result |", "|---|---|" + "---|" * (1 + len(ways))]
        for rate in RATES:
            runs = {way: measured(plan, rate, way, options.repeat) for way in ways}
            exact, ratio = all(run.exact for run in runs.values()), runs[MPS].ratio()
            if name == "all NICs" and ratio > TARGETS.get(rate, ratio):
                missed.append(f"{rate}: {ratio:.4f}, target {TARGETS[rate]}")
            if not exact:
                missed.append(f"{rate}, {name}: a result is wrong")
            shown, bound = format_rate(parse_rate(rate)), format_seconds(runs[MPS].plan.bound.seconds)
            cells = " | ".join(f"{run.ratio():.4f}" for run in runs.values())
            text.append(f"| {shown} | {bound} | {cells} | {'exact' if exact else 'WRONG'} |")
            print(text[-1], flush=True)
        text.append("")
    targets = ", ".join(f"{most} at {rate}" for rate, most in TARGETS.items())
    said = f"missed: {'; '.join(missed)}" if missed else "met"
    text += [f"Targets with MPS, all NICs and two GPUs, {targets}: {said}.", ""]
    write(options.output, text)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
