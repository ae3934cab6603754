"""What the executors' file formats cost: their size against the limits, and rounding to equal chunks.

Writes docs/bench-exports.md. Every file is read back and run by its target's interpreter: exit status 1 when one of
them finds a fault.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from rich.progress import track

import optcc
from benchmarks.pages import made_with, parser, write
from optcc.errors import OptccError
from optcc.export import chakra, mscclpp, mscclpp_file, mscclpp_run, sends
from optcc.plans.plan import Plan
from optcc.schedule.ring import NicSpread, PlainRing
from optcc.values.cluster import Cluster
from optcc.values.units import format_size

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
                yield f"{ranks} | ring | 1 | 2", replace(made, recipe=PlainRing(2, NicSpread.RATE))


def over(chosen: mscclpp.Chosen) -> str:
    """Time over the bound with perfect overlap / simulated / by the executor's clock."""
    bound = float(chosen.rounded.plan.bound.seconds)
    told = f"{chosen.seconds / bound:.2f}" if chosen.seconds else "-"
    return f"{float(chosen.rounded.ratio):.4f} / {chosen.rounded.simulated_ratio:.3f} / {told}"


def mscclpp_cells(plan: Plan) -> str:
    """Segments, chunks, threadblocks, operations, loss; the file has passed its interpreter."""
    chosen = mscclpp.export(plan)
    mscclpp_run.run(mscclpp_file.load(mscclpp_file.dump(chosen.program)))
    fullest = max(len(block.ops) for gpu in chosen.program.gpus for block in gpu.threadblocks)
    depth, chunks = chosen.rounded.plan.segments, chosen.rounded.chunks
    return f"{depth} | {chunks} | {chosen.threadblocks} | {fullest} | {over(chosen)}"


def chakra_cells(plan: Plan) -> str:
    """Nodes of the longest file; the files have passed their interpreter."""
    files = [chakra.load(content) for content in chakra.export(plan)]
    sends.run(files)
    schedule = plan.schedule()
    loss = optcc.simulate(schedule, service="ready").time_s / optcc.simulate(schedule).time_s
    return f"{max(map(len, files))} | {loss:.3f}"


def main() -> int:
    asked = parser(__doc__, "bench-exports")
    args = asked.parse_args()
    rows, faults = [], []
    for what, plan in track(list(cases()), description="exports"):
        cells = []
        for measure in (mscclpp_cells, chakra_cells):
            try:
                cells.append(measure(plan))
            except OptccError as error:
                faults.append(f"{what}: {error}")
        rows.append(f"| {what} | {' | '.join(cells)} |")
    text = report(rows)
    write(args.output, text, lambda c: c["plan"] == "nested rings" and c["degraded"] == "1")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def report(rows: list[str]) -> str:
    """The page."""
    return "\n".join(
        [
            "# What exported plans cost",
            "",
            f"Made by `make bench-exports`. By models of executors, not measured. {format_size(NBYTES)} a rank, two",
            "NICs of 25 GB/s a server, 0.37 of one NIC left on the degraded servers. The ring takes its NICs by their",
            "rates. Each file was read back and passed its target's interpreter ([exports](exports.md)).",
            "Segments and chunks: as the executor's clock chose them; blocks: threadblocks of the busiest rank;",
            "operations of the fullest threadblock; nodes of the longest Chakra file; over: time over the",
            "bound with perfect overlap / simulated / by the executor's clock. MSCCL++ gives each rank one NIC,",
            "here the degraded one, so its clock says so much more. Out of order: how",
            "many times as long the plan takes, simulated with its own segments, where its order of sends is dropped",
            "and NICs serve first come first served.",
            "",
            "| ranks | plan | degraded | segments | MSCCL++ segments | chunks | blocks | operations | over "
            "| Chakra nodes | out of order |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            made_with(),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
