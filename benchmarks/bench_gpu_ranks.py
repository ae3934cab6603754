"""AllReduce on GPU buffers over its bound: 4 ranks x 4 emulated NICs, by rate of a server and by path of the chunks.

Writes docs/bench-gpu-ranks.md. Exit status 1 when a result is wrong or the compiled path misses a target.
Needs one CUDA device or more, and cupy; the targets are for two.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import optcc
from optcc.plans.plan import Plan
from optcc.runtime.compiled.choice import PATHS
from optcc.runtime.devices.cuda import describe_gpu, gpu_count
from optcc.values.units import format_rate, format_seconds, format_size, parse_rate

SIZE, SEGMENTS = 256 * 2**20, 8
RATES = ("8Gb/s", "40Gb/s", "160Gb/s", "400Gb/s")
TARGETS = {"160Gb/s": 1.05, "400Gb/s": 1.15}
"""The most that the compiled path may take over the bound, nothing degraded."""


def plans() -> dict[str, Plan]:
    """What is run, by name."""
    whole = optcc.Cluster.uniform(servers=4, nics=4, rate=Fraction(12_500_000_000))
    hurt = whole.degrade("server1/nic0")
    return {
        "all NICs": optcc.plan(whole, SIZE, segments=SEGMENTS),
        "one NIC of server1 dead": optcc.plan(hurt, SIZE, segments=SEGMENTS),
    }


def measured(plan: Plan, rate: str, path: str, repeat: int) -> tuple[str, float, bool]:
    """(the bound, the median over it, whether every result was exact)."""
    run = optcc.run(plan, repeat=repeat, algorithms=("optcc",), local_rate=rate, device="cuda", path=path)
    return format_seconds(run.plan.bound.seconds), run.ratio(), run.exact


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/bench-gpu-ranks.md"))
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--rates", nargs="+", default=list(RATES))
    parser.add_argument("--plans", type=int, default=2, help="the first so many")
    parser.add_argument("--paths", nargs="+", default=list(PATHS))
    options = parser.parse_args(arguments)
    missed: list[str] = []
    text = [
        "# AllReduce on GPU buffers over its bound",
        "",
        f"Made by `make bench-gpu-ranks` on {gpu_count()} x {describe_gpu(0)}, Python {platform.python_version()}.",
        f"{format_size(SIZE)} of float32 per rank, 4 ranks with 4 emulated NICs each, {SEGMENTS} segments.",
        "Rank r's buffer, its landing slots and its folds are on GPU r modulo the number of GPUs.",
        f"Medians of {options.repeat}, over the bound at that rate.",
        "",
    ]
    for name, plan in [*plans().items()][: options.plans]:
        simulated = optcc.simulate(plan.schedule()).time_s / float(plan.bound.seconds)
        text += [
            f"## With {name}",
            "",
            f"The simulator says {simulated:.4f}.",
            "",
            f"| rate of a server | bound | {' | '.join(options.paths)} | result |",
            "|---|---|" + "---|" * (1 + len(options.paths)),
        ]
        for rate in options.rates:
            cells, all_exact = [], True
            for path in options.paths:
                bound, ratio, exact = measured(plan, rate, path, options.repeat)
                cells.append(f"{ratio:.4f}")
                all_exact &= exact
                if name == "all NICs" and path == "compiled" and ratio > TARGETS.get(rate, ratio):
                    missed.append(f"{rate}: {ratio:.4f}, target {TARGETS[rate]}")
            if not all_exact:
                missed.append(f"{rate}, {name}: a result is wrong")
            shown = format_rate(parse_rate(rate))
            text.append(f"| {shown} | {bound} | {' | '.join(cells)} | {'exact' if all_exact else 'WRONG'} |")
            print(text[-1], flush=True)
        text.append("")
    text += [f"Missed: {'; '.join(missed)}." if missed else "All targets met.", ""]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
