"""What the executors' file formats cost: their size against the limits, and rounding to equal chunks.

Writes docs/bench-exports.md. Every file is read back and run by its target's interpreter: exit status 1 when one of
them finds a fault.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.progress import track

import optcc
from optcc.cluster import Cluster
from optcc.errors import OptccError
from optcc.export import chakra, chakra_run, msccl, msccl_file, msccl_run, mscclpp, mscclpp_file, mscclpp_run
from optcc.export.chunks import Chunked
from optcc.plans import Plan
from optcc.schedule.ring import Ring, Spread
from optcc.units import format_size

NBYTES = 2**28
RANKS = (4, 8, 16)
NESTED = {1: 4, 3: 2}  # degraded servers -> segments: as deep as 16 ranks stay within MSCCL++'s limits


def cases() -> Iterator[tuple[str, Plan]]:
    """(what, plan): two NICs a server; 0.37 of one NIC is left on degraded servers, so that no share is round."""
    for ranks in RANKS:
        cluster = Cluster.uniform(servers=ranks, nics=2, rate=25 * 10**9)
        for degraded in range(max(NESTED) + 1):
            if degraded:
                cluster = cluster.degrade(f"server{degraded - 1}/nic0", 0.37)
            if degraded in NESTED:
                made = optcc.plan(cluster, NBYTES, segments=NESTED[degraded])
                yield f"{ranks} | nested rings | {degraded} | {NESTED[degraded]}", made
            if degraded == 1:
                yield f"{ranks} | ring | 1 | 2", replace(made, recipe=Ring(2, Spread.RATE))


def over(rounded: Chunked) -> str:
    """Time over the bound with perfect overlap / simulated."""
    return f"{float(rounded.ratio):.4f} / {rounded.simulated_ratio:.3f}"


def mscclpp_cells(plan: Plan) -> str:
    """Chunks, threadblocks, operations, loss; the file has passed its interpreter."""
    chosen = mscclpp.export(plan)
    program, rounded = chosen.program, chosen.rounded
    mscclpp_run.run(mscclpp_file.load(mscclpp_file.dump(program)))
    blocks = [block for gpu in program.gpus for block in gpu.threadblocks]
    fullest = max(len(block.ops) for block in blocks)
    return f"{rounded.chunks} | {max(len(gpu.threadblocks) for gpu in program.gpus)} | {fullest} | {over(rounded)}"


def msccl_cells(plan: Plan) -> str:
    """Chunks, threadblocks, steps, channels, loss; the file has passed its interpreter."""
    chosen = msccl.export(plan)
    program, rounded = chosen.program, chosen.rounded
    msccl_run.run(msccl_file.load(msccl_file.dump(program)))
    fullest = max(len(block.steps) for gpu in program.gpus for block in gpu)
    return f"{rounded.chunks} | {max(map(len, program.gpus))} | {fullest} | {program.channels} | {over(rounded)}"


def chakra_cells(plan: Plan) -> str:
    """Nodes of the longest file; the files have passed their interpreter."""
    files = [chakra.load(content) for content in chakra.export(plan)]
    chakra_run.run(files)
    return str(max(map(len, files)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/bench-exports.md"))
    args = parser.parse_args()
    rows, faults = [], []
    for what, plan in track(list(cases()), description="exports"):
        cells = []
        for measure in (mscclpp_cells, msccl_cells, chakra_cells):
            try:
                cells.append(measure(plan))
            except OptccError as error:
                faults.append(f"{what}: {error}")
        rows.append(f"| {what} | {' | '.join(cells)} |")
    text = report(rows)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text, encoding="utf-8")
    print(text)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def report(rows: list[str]) -> str:
    """The page."""
    return "\n".join(
        [
            "# What exported plans cost",
            "",
            f"Made by `make bench-exports`. Simulated, not measured. {format_size(NBYTES)} a rank, two NICs of",
            "25 GB/s a server, 0.37 of one NIC left on the degraded servers. The ring takes its NICs by their",
            "rates. Each file was read back and passed its target's interpreter ([exports](exports.md)).",
            "Blocks: threadblocks of the busiest rank; operations or steps of the fullest threadblock; nodes of",
            "the longest Chakra file; over: time over the bound with perfect overlap / simulated, both without",
            "latency.",
            "",
            "| ranks | plan | degraded | segments | MSCCL++ chunks | blocks | operations | over | MSCCL chunks "
            "| blocks | steps | channels | over | Chakra nodes |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"optcc {optcc.__version__}, Python {platform.python_version()}.",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
