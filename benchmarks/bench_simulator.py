"""How fast planning and simulating are, how much memory they take, and how both grow. Writes docs/bench-simulator.md.

Every case runs in a process of its own, so that its peak memory is its own. `--planning` prints the rows of planning,
without the page. Exit status 1 when a simulation takes over 60 s or 4 GiB.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
from rich.progress import track

import optcc
from benchmarks.pages import made_with, parser, write
from optcc.schedule import Schedule
from optcc.schedule.nested import NestedRings, Ordering
from optcc.simulation.faults import Fault
from optcc.simulation.simulator import Receivers
from optcc.theory import nested_shares
from optcc.values.cluster import Cluster, Fabric

SIZE = 2**30
NICS = 8
LIMIT_S, LIMIT_MIB = 60, 4096
KINDS = {
    "": "one NIC dead, one fabric",
    "pods": "one NIC dead, pods of 8 servers oversubscribed 2:1",
    "dying": "one NIC dead, one more dies halfway",
    "packets": "one NIC dead, receivers that serve packets",
    "packets in pods": "one NIC dead, pods as above, receivers and links that serve packets",
}

HALF = ("--fail", "server1/nic[0-3]")
DEAD = {"1": ("--fail", "server1/nic0"), "4": HALF, "4 and 4": (*HALF, "--fail", "server2/nic[0-3]")}
"""NICs that are dead -> options of the command line."""
COSTS = ("--alpha", "5us", "--per-chunk", "1us")
PLANNED = (16, 32, 64, 128)
AGAIN = 3
"""Every plan is made so often; the least processor time counts, as others' work beside it only adds."""


def planning(servers: int, dead: str, *costs: str) -> tuple[float, float]:
    """Processor seconds of `optcc plan`, import included, and MiB at its peak."""
    command = [sys.executable, "-m", "optcc", "plan", f"uniform:servers={servers},nics={NICS},rate=400Gb/s"]
    command += [*DEAD[dead], "--size", "1GiB", *costs]
    found = []
    for _ in range(AGAIN):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{command}: exit status {process.returncode}")
        found.append((used.ru_utime + used.ru_stime, used.ru_maxrss / 1024))
    return min(found)


def planning_rows() -> list[str]:
    """Rows of the table of planning."""
    rows = []
    for servers in PLANNED:
        found = [planning(servers, dead, *COSTS) for dead in track(DEAD, description=f"planning for {servers}")]
        times = " | ".join(f"{seconds:.2f}" for seconds, _ in found)
        rows.append(f"| {servers} | {times} | {max(peak for _, peak in found):,.0f} |")
    return rows


def cases() -> Iterator[tuple[int, int, str]]:
    """(servers, segments, kind)."""
    for servers in (8, 16, 32, 64, 128):
        yield servers, 64, ""
    for segments in (4, 16):
        yield 128, segments, ""
    yield 64, 64, "pods"
    yield 64, 64, "dying"
    yield 64, 64, "packets"
    yield 128, 64, "packets"
    yield 64, 64, "packets in pods"


def schedule_of(servers: int, segments: int, kind: str) -> Schedule:
    """Nested rings of 1 GiB over servers of 8 NICs of 400 Gb/s, one of them dead."""
    made = Cluster.uniform(servers=servers, nics=NICS, rate=Fraction(50_000_000_000))
    if kind.endswith("pods"):
        racks = tuple(replace(server, pod=str(i // 8)) for i, server in enumerate(made.servers))
        made = Cluster(racks, fabric=Fabric(pod_oversubscription=Fraction(2)))
    cluster = made.degrade("server0/nic0")
    shares = nested_shares([rank.out_rate for rank in cluster.ranks])
    orderings = (Ordering.LEAF_FIRST, Ordering.VIA_LEAF)
    recipe = NestedRings(tuple(sorted(shares.items())), tuple(range(servers)), segments, orderings=orderings)
    return recipe.lower(cluster, SIZE)


def measure(servers: int, segments: int, kind: str) -> dict[str, float]:
    """One case, in this process."""
    receivers: Receivers = "packets" if kind.startswith("packets") else "stripes"
    optcc.simulate(schedule_of(4, 1, kind), receivers=receivers)  # loads what it takes
    began = time.process_time()
    schedule = schedule_of(servers, segments, kind)
    lowered = time.process_time()
    faults = [Fault("server1/nic0", SIZE / 50e9 / NICS)] if kind == "dying" else []
    simulation = optcc.simulate(schedule, faults=faults, receivers=receivers)
    done = time.process_time()
    # What the event loop takes from its queues: a port is free, a stripe reaches a resource (as packets, its first byte
    # and its last one), a transfer has finished.
    stripes, reaches = len(simulation.stripes.row), 2 if receivers == "packets" else 1
    events = stripes + reaches * (stripes + len(simulation.crossings.stripe))
    events += len(simulation.lost.stripe) + len(schedule)
    return {
        "transfers": len(schedule),
        "stripes": stripes,
        "events": events,
        "lower_s": lowered - began,
        "simulate_s": done - lowered,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measure_apart(servers: int, segments: int, kind: str) -> dict[str, float]:
    """One case, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_simulator", "--case", str(servers), str(segments), kind]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    asked = parser(__doc__, "bench-simulator")
    asked.add_argument("--case", nargs=3, metavar=("SERVERS", "SEGMENTS", "KIND"), help="measure one, print JSON")
    asked.add_argument("--planning", action="store_true", help="only planning, printed, without the page")
    args = asked.parse_args()
    if args.planning:
        print("\n".join(planning_rows()))
        return 0
    if args.case:
        servers, segments, kind = args.case
        print(json.dumps(measure(int(servers), int(segments), kind)))
        return 0
    rows, slowest, largest = [], 0.0, 0.0
    for servers, segments, kind in track(list(cases()), description="simulating"):
        x = measure_apart(servers, segments, kind)
        slowest, largest = max(slowest, x["lower_s"] + x["simulate_s"]), max(largest, x["peak_mib"])
        counts = " | ".join(f"{x[name]:,.0f}" for name in ("transfers", "stripes", "events"))
        speed = f"{x['events'] / x['simulate_s'] / 1e6:.1f}"
        times = f"{x['lower_s']:.1f} | {x['simulate_s']:.1f} | {speed} | {x['peak_mib']:,.0f}"
        rows.append(f"| {servers} | {segments} | {KINDS[kind]} | {counts} | {times} |")
    text = [
        "# Planning's and the simulator's speed and memory",
        "",
        "Made by `make bench-simulator`. Planning: processor seconds of `optcc plan uniform:servers=N,nics=8,"
        f"rate=400Gb/s --size 1GiB {' '.join(COSTS)}`",
        f"(one thread, imports included), with so many dead NICs on one server or on two; the least of {AGAIN} runs.",
        f"Without costs, 8 servers and one dead NIC: {planning(8, '1')[0]:.2f} s.",
        "",
        f"| servers | {' | '.join(f'{dead} dead' for dead in DEAD)} | MiB, the most |",
        "|---|---|---|---|---|",
        *planning_rows(),
        "",
        f"Simulating: nested rings of 1 GiB per rank on servers of {NICS} NICs of 400 Gb/s, every",
        "stripe simulated. Processor seconds of one run each; there is one thread, so that wall-clock time is the same",
        "on an idle core. An event is a port that becomes free, a stripe that reaches a port or a link (where those",
        "serve packets, its first byte and its last one), or a transfer that has finished. Peak memory is that of the",
        "whole process, which lowers the schedule and then simulates it.",
        "",
        "| servers | segments | cluster | transfers | stripes | events | lower s | simulate s | M events/s | MiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Limit for every case: {LIMIT_S} s for lowering and simulating, {LIMIT_MIB} MiB.",
        "",
        made_with(f"numpy {np.__version__}"),
    ]
    write(args.output, text, lambda c: c["servers"] == "128")
    return 0 if slowest <= LIMIT_S and largest <= LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
