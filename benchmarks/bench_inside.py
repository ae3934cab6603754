"""GPUs as ranks, inside servers: simulated time over the exact program's bound. Writes docs/bench-inside.md.

Exit status 1 when a case is over its limit.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from multiprocessing import get_context

import numpy as np
from rich.progress import track

import optcc
from benchmarks.pages import made_with, parser, write
from optcc.schedule.inside import BufferPart, InsideServers, best_chunks, gpu_groups, inside_servers
from optcc.schedule.nested import nested_rings
from optcc.schedule.recipe import Costs
from optcc.theory import nested_shares
from optcc.theory.inside_split import inside_split
from optcc.values.cluster import Cluster, Fabric

SIZE = 2**30
GB = 10**9
MOST_SEGMENTS = 64
MOST_TRANSFERS = 4_000_000
"""Between GPUs of different servers, in one schedule: lowered in some seconds, in about a gigabyte."""
FLUID_LIMIT = {2: 1.012, 4: 1.004}  # servers -> fluid time over bound; 1.000001 elsewhere
SIMULATED_LIMIT = 1.10
PLANNED_LIMIT_S, PLANNED_LIMIT_GIB = 5.0, 4.0
"""CPU seconds of planning and lowering 1 GiB on 1024 GPUs, and memory."""
LATENCY, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)


@dataclass(frozen=True)
class Case:
    """Servers of 8 GPUs with a 50 GB/s NIC and `nvlink` GB/s each; `dead` NICs of the first server are."""

    servers: int
    dead: int
    nvlink: int = 450
    rails: bool = False

    def cluster(self, gpu_ranks: bool = True) -> Cluster:
        """With GPUs or servers as ranks."""
        whole = Cluster.uniform(servers=self.servers, nics=8, rate=50 * GB, gpus=8, nvlink_rate=self.nvlink * GB)
        cluster = replace(whole, fabric=Fabric(rails=self.rails), gpu_ranks=gpu_ranks)
        for nic in range(self.dead):
            cluster = cluster.degrade(f"server0/nic{nic}")
        return cluster


@dataclass(frozen=True)
class Measured:
    """Times in CPU seconds, memory in GiB at the end of each step, ratios to the bound."""

    fluid: float
    whole: float
    segments: int
    rows: int
    split_s: float
    lower_s: float
    lower_gib: float
    simulate_s: float
    simulate_gib: float
    simulated: float
    by_servers: float


def measure(case: Case) -> Measured:
    """One case, in a process of its own so that its memory is its own."""
    cluster = case.cluster()
    bound = optcc.lower_bound(cluster, SIZE).seconds
    began = time.process_time()
    split = inside_split(cluster)
    split_s = time.process_time() - began
    segments = min(MOST_SEGMENTS, deepest(cluster, split.parts))
    began = time.process_time()
    recipe = inside_servers(cluster, split.parts, segments)
    recipe.check(cluster)
    schedule = recipe.lower(cluster, SIZE)
    lower_s, lower_gib = time.process_time() - began, _peak_gib()
    optcc.simulate(optcc.plan(Cluster.uniform(servers=2, rate=GB), 4096).schedule())  # compiles the event loop
    began = time.process_time()
    simulated = optcc.simulate(schedule).time_s
    simulate_s = time.process_time() - began
    shares = nested_shares([rank.out_rate for rank in case.cluster(gpu_ranks=False).ranks])
    whole = (
        inside_servers(cluster, [BufferPart(Fraction(1), 1, shares)], 1).fluid_s(cluster, SIZE) if not case.rails else 0
    )
    return Measured(
        fluid=float(split.seconds_per_byte * SIZE / bound),
        whole=float(whole / bound),
        segments=segments,
        rows=len(schedule),
        split_s=split_s,
        lower_s=lower_s,
        lower_gib=lower_gib,
        simulate_s=simulate_s,
        simulate_gib=_peak_gib(),
        simulated=simulated / float(bound),
        by_servers=_by_servers(case, segments) / float(bound) if case.servers > 1 else 0.0,
    )


def deepest(cluster: Cluster, parts: Sequence[BufferPart]) -> int:
    """Segments up to which a recipe of `parts` has no more than `MOST_TRANSFERS` between servers; 1 at least.

    A ring of m of q groups takes 2(q-1)m transfers a segment in each channel.
    """
    every = Fraction(0)
    for part in parts:
        own = gpu_groups(cluster, part.teams)
        channels = len(part.slots) if part.slots else max(len(group.gpus) for group in own)
        depth = Fraction(1) if part.slots else part.share
        every += 2 * (len(own) - 1) * sum(part.rings) * channels * depth
    return max(1, int(MOST_TRANSFERS / every)) if every else MOST_SEGMENTS


def _by_servers(case: Case, segments: int) -> float:
    """Simulated seconds of nested rings with servers as ranks: NVLink is not in it, and takes no time."""
    cluster = case.cluster(gpu_ranks=False)
    shares = nested_shares([min(rank.out_rate, rank.in_rate) for rank in cluster.ranks])
    depth = min(segments, 8) if case.servers > 32 else segments
    return optcc.simulate(nested_rings(cluster, shares, depth).lower(cluster, SIZE)).time_s


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@dataclass(frozen=True)
class Planned:
    """What the planner took, with latency and chunk costs. rings : simulated over bound of nested rings between servers

    load_s : CPU seconds of a first, small plan, which loads the solver and the compiled simulator
    plan_s, lower_s : CPU seconds of `optcc.plan`, and of lowering the plan once more; wall_s : wall-clock s of both
    gib : peak memory of the process
    """

    family: str
    segments: int
    rows: int
    load_s: float
    plan_s: float
    lower_s: float
    wall_s: float
    gib: float
    simulated: float
    rings: float


def planned(case: Case) -> Planned:
    """Plan `case` for 1 GiB, in a process of its own. What is loaded for other plans is loaded before."""
    cpu = time.process_time()
    small = replace(Cluster.uniform(servers=3, nics=2, rate=GB, gpus=2, nvlink_rate=9 * GB), gpu_ranks=True)
    optcc.plan(small, 4096, alpha=LATENCY, per_chunk=PER_CHUNK)
    load_s = time.process_time() - cpu
    cluster = case.cluster()
    wall, cpu = time.perf_counter(), time.process_time()
    made = optcc.plan(cluster, SIZE, alpha=LATENCY, per_chunk=PER_CHUNK)
    plan_s, cpu = time.process_time() - cpu, time.process_time()
    schedule = made.schedule()
    lower_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    simulated = optcc.simulate(schedule, alpha=LATENCY, per_chunk=PER_CHUNK).time_s
    gib = _peak_gib()
    recipe = made.recipe
    inner = recipe.bundles[0].inner if isinstance(recipe, InsideServers) else recipe
    return Planned(
        family=inner.family,
        segments=recipe.segments,
        rows=len(schedule),
        load_s=load_s,
        plan_s=plan_s,
        lower_s=lower_s,
        wall_s=wall_s,
        gib=gib,
        simulated=simulated / float(made.bound.seconds),
        rings=with_costs(case, SIZE, (1,) if case.servers > 64 else (1, 2, 4, 8, 16))[0],
    )


def with_costs(case: Case, size: int, depths: Sequence[int] = (1, 2, 4, 8, 16)) -> tuple[float, int]:
    """(simulated over bound, segments) of rings at the best number of segments, with latency and chunk costs."""
    cluster = case.cluster()
    bound = optcc.lower_bound(cluster, size)
    split, chunks = inside_split(cluster), best_chunks(cluster, bound, Costs(LATENCY, PER_CHUNK))
    found = []
    for segments in depths:
        recipe = inside_servers(cluster, split.parts, segments, chunks=chunks)
        time_s = optcc.simulate(recipe.lower(cluster, size), alpha=LATENCY, per_chunk=PER_CHUNK).time_s
        found.append((time_s / float(bound.seconds), segments))
    return min(found)


def main() -> int:
    asked = parser(__doc__, "bench-inside")
    asked.add_argument("--quick", action="store_true", help="up to 16 servers")
    args = asked.parse_args()
    largest = 16 if args.quick else 128
    cases = [Case(p, d) for p in (1, 2, 4, 8, 16, 32, 64, 128) for d in range(5) if p <= largest]
    cases = [c for c in cases if (c.servers > 1 or c.dead == 0) and (c.servers < 64 or c.dead in (0, 1, 4))]
    slow = [Case(p, d, nvlink=64) for p in (2, 4, 8) for d in (0, 1, 2)]
    rails = [Case(p, d, rails=True) for p in (4, 8, 32, 128) for d in (0, 1, 2) if p <= largest]
    text, over = ["# Inside servers: simulated time over bound", "", *_INTRODUCTION], []
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        text += ["", "## What the planner takes, with latency and chunk costs", "", *_HEAD["planned"]]
        for case in track([Case(p, 1) for p in (8, 32, 128) if p <= largest], description="planned"):
            m = pool.submit(planned, case).result()
            text.append(
                f"| {case.servers * 8} | {m.family}, {m.segments} | {m.rows:,} | {m.plan_s:.1f} | {m.lower_s:.1f} | "
                f"{m.wall_s:.1f} | {m.load_s:.1f} | {m.gib:.2f} | {m.simulated:.3f} | {m.rings:.3f} |"
            )
            if m.plan_s + m.lower_s > PLANNED_LIMIT_S or m.gib > PLANNED_LIMIT_GIB:
                over.append(text[-1])
        for title, some in (
            ("One fabric", cases),
            ("Slow NVLink", slow),
            ("Rails that do not meet", rails),
        ):
            text += ["", f"## {title}", "", *_HEAD[title]]
            for case in track(some, description=title.lower()):
                found = pool.submit(measure, case).result()
                text.append(_row(title, case, found))
                limit = FLUID_LIMIT.get(case.servers, 1.000001)
                if title == "One fabric" and (found.fluid > limit or found.simulated > SIMULATED_LIMIT):
                    over.append(text[-1])
        jobs = [(Case(p, d), 2**m) for p in (2, 8, 16) for d in (0, 1) for m in (24, 28, 30)]
        text += ["", "## Nested rings with latency and chunk costs", "", *_HEAD["costs"]]
        for case, size in track(jobs, description="with costs"):
            ratio, segments = pool.submit(with_costs, case, size).result()
            text.append(f"| {case.servers} | {case.dead} | {size >> 20} MiB | {ratio:.3f} | {segments} |")
    text += [
        "",
        made_with(f"numpy {np.__version__}"),
    ]
    write(args.output, text, lambda c: c["dead NICs"] == "1" and c["servers"] in ("2", "8", "32"))
    for row in over:
        print(f"over its limit: {row}", file=sys.stderr)
    return 1 if over else 0


_HEAD = {
    "planned": [
        f"One dead NIC, latency {float(LATENCY) * 1e6:g} us, {float(PER_CHUNK) * 1e6:g} us for each chunk at "
        "each port. The bound has neither. Rings: the best of 1, 2, 4, 8, 16 segments (1024 GPUs: 1). Planning holds "
        "bound, recipe, lowering and simulation; loading is what the first, small plan of the process took. Limits: "
        f"{PLANNED_LIMIT_S:g} s of planning and lowering, {PLANNED_LIMIT_GIB:g} GiB.",
        "",
        "| GPUs | between servers, segments | transfers | planning, CPU s | lowering, CPU s | both, wall-clock s | "
        "loading, CPU s | GiB | simulated / bound | rings / bound |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ],
    "One fabric": [
        "| servers | dead NICs | fluid / bound | segments | transfers | simulated / bound | servers as ranks / bound | "
        "parts, CPU s | lowering, CPU s | GiB | simulating, CPU s | GiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ],
    "Slow NVLink": [
        'A port of 64 GB/s (PCIe) instead of 450. "Whole servers" is the same without teams.',
        "",
        "| servers | dead NICs | whole servers, fluid / bound | fluid / bound | segments | simulated / bound |",
        "|---|---|---|---|---|---|",
    ],
    "Rails that do not meet": [
        "| servers | dead NICs | fluid / bound | segments | simulated / bound | parts, CPU s | lowering, CPU s |",
        "|---|---|---|---|---|---|---|",
    ],
    "costs": [
        f"Latency {float(LATENCY) * 1e6:g} us, {float(PER_CHUNK) * 1e6:g} us for each chunk at each port, NVLink ports "
        "included; the best of 1, 2, 4, 8, 16 segments. The bound has neither.",
        "",
        "| servers | dead NICs | size | simulated / bound | segments |",
        "|---|---|---|---|---|",
    ],
}


def _row(title: str, case: Case, m: Measured) -> str:
    first = f"| {case.servers} | {case.dead} |"
    if title == "Slow NVLink":
        return f"{first} {m.whole:.4f} | {m.fluid:.4f} | {m.segments} | {m.simulated:.4f} |"
    if title == "Rails that do not meet":
        return f"{first} {m.fluid:.4f} | {m.segments} | {m.simulated:.4f} | {m.split_s:.1f} | {m.lower_s:.1f} |"
    servers = f"{m.by_servers:.4f}" if m.by_servers else "-"
    return (
        f"{first} {m.fluid:.4f} | {m.segments} | {m.rows} | {m.simulated:.4f} | {servers} | {m.split_s:.1f} | "
        f"{m.lower_s:.1f} | {m.lower_gib:.2f} | {m.simulate_s:.1f} | {m.simulate_gib:.2f} |"
    )


_INTRODUCTION = [
    "Made by `make bench-inside`. Simulated, not measured: 1 GiB per GPU, alpha = 0, servers of 8 GPUs, each",
    "with a NIC of 50 GB/s and an NVLink port of 450 GB/s each way; dead NICs are of the first server.",
    'The bound is that of the exact program; "fluid" is the time with infinitely many segments. Segments:',
    f'{MOST_SEGMENTS}, fewer above 4 million transfers. "Servers as ranks" is nested rings between servers, which',
    "do not",
    "know NVLink. CPU seconds of one process; GiB is its peak, about 0.2 of it Python and its libraries.",
]


if __name__ == "__main__":
    sys.exit(main())
