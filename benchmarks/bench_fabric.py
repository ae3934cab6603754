"""Played NICs by themselves: the rate that they keep, the latency of 8 bytes, `optcc run` over them, and GPU memory.

Writes docs/bench-fabric.md. Needs perftest; cupy and a GPU for the part on GPU memory, which is left out without them.
Exit status 1 when a result is wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.bench_nccl_played import ENVIRONMENT
from optcc.api import lower_bound
from optcc.fabric.played import PlayedFabric
from optcc.values.cluster import Cluster, Nic, Server
from optcc.values.units import format_rate, format_size

RATES = (125_000_000, 500_000_000, 1_000_000_000, 2_000_000_000)
"""Of a NIC, bytes per second."""
PAIRS = (1, 16)
"""Queue pairs at the same time."""
SECONDS, PINGS = 3, 20_000
RUN_RATE, RUN_SERVERS, RUN_SIZE, RUN_REPEAT = 50_000_000, 4, "64MiB", 5
RUN_COSTS = ("--alpha", "300us", "--per-chunk", "100us")
"""About what the runtime's processes take to hear of a chunk and to send the next one, where cores are shared."""
GPU_RATE, GPU_NICS, GPU_BYTES, GPU_CALLS = 500_000_000, 2, 256 << 20, 5
"""Of the communicator's calls on arrays in a GPU's memory: the rate of a NIC, NICs of a rank, bytes of an array."""
STREAM = 256
"""Writes of 1 MiB in a row, of the NICs that reach GPU memory."""
NCCL_NODES, NCCL_BYTES, NCCL_CALLS = 2, 64 << 20, 5
WAIT_S = 300


DIRECT = {
    "PLACE_PEERMEM": "1", "NCCL_CUMEM_ENABLE": "0", "NCCL_NET_GDR_LEVEL": "SYS", "NCCL_NET_GDR_READ": "1",
    "NCCL_DEBUG": "INFO",
}  # fmt: skip
"""Beside what NCCL over played NICs needs anyway: that they reach GPU memory, and memory that can be shown them."""


@contextmanager
def fabric(**how: Any) -> Iterator[PlayedFabric]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="optcc-bench-") as parent:
        yield PlayedFabric.make(Path(parent) / "fabric", **how)


def perftest(made: PlayedFabric, *command: str) -> list[float]:
    """The client's last line of numbers, of a pair of programs on the first two hosts."""

    def start(host: int, *more: str) -> subprocess.Popen[str]:
        env = {**os.environ, **made.env(host)}
        return subprocess.Popen([*command, "-d", "mlx5_0", *more], env=env, stdout=-1, stderr=-2, text=True)

    server = start(0)
    for _ in range(100):  # until the server listens
        time.sleep(0.2)
        client = start(1, "127.0.0.1")
        told = client.communicate(timeout=WAIT_S)[0]
        if client.returncode == 0:
            break
    else:
        raise SystemExit(f"{command[0]} does not run: {told}")
    server.communicate(timeout=WAIT_S)
    lines = [line.split() for line in told.splitlines()]
    return [float(word) for word in [line for line in lines if line and line[0].isdigit()][-1]]


def rates() -> list[str]:
    lines = ["| rate of a NIC | " + " | ".join(f"{n} queue pair{'s' * (n > 1)}, kept" for n in PAIRS) + " |"]
    lines.append("|---|" + "---|" * len(PAIRS))
    for rate in RATES:
        kept = []
        for pairs in PAIRS:
            with fabric(hosts=2, rate=rate) as made:
                numbers = perftest(made, "ib_write_bw", "-D", str(SECONDS), "-q", str(pairs), "-s", "65536")
            kept.append(f"{numbers[3] * 2**20 / rate * 100:.1f} %")
        lines.append(f"| {format_rate(rate)} | {' | '.join(kept)} |")
    return lines


def latency() -> list[str]:
    with fabric(hosts=2) as made:
        numbers = perftest(made, "ib_write_lat", "-s", "8", "-n", str(PINGS))
    return [f"A write of 8 bytes, by `ib_write_lat`: {numbers[4]:.1f} us typically, {numbers[5]:.1f} us on average."]


def servers(count: int, nics: int, rate: int) -> Cluster:
    """Called as the devices of one host, of which each server has its own."""
    return Cluster(
        tuple(
            Server(f"server{s}", tuple(Nic(f"rxe{nics * s + n}", rate, rate) for n in range(nics)))
            for s in range(count)
        )
    )


def shape(made: PlayedFabric, cluster: Cluster) -> None:
    """Let the devices have the rates of the cluster's NICs."""
    for server in cluster.servers:
        for nic in server.nics:
            made.set(f"host0/{nic.name}", rate=int(nic.out_rate))


def slower(cluster: Cluster, server: int, nics: int) -> Cluster:
    """The first NICs of a server at half of their rate."""
    hurt = cluster.servers[server]
    kept = tuple(
        replace(nic, out_rate=nic.out_rate / 2, in_rate=nic.in_rate / 2) if n < nics else nic
        for n, nic in enumerate(hurt.nics)
    )
    return Cluster(tuple(replace(s, nics=kept) if s is hurt else s for s in cluster.servers))


def our_runs() -> tuple[list[str], bool]:
    """`optcc run` on four servers, all whole and with one of them at half; planned without costs and with them."""
    whole = servers(RUN_SERVERS, 2, RUN_RATE)
    lines = ["| servers | planned | time over the bound | result |", "|---|---|---|---|"]
    all_exact = True
    for name, cluster in (("whole", whole), ("one at half", slower(whole, 1, 2))):
        for costs in ((), RUN_COSTS):
            with fabric(hosts=1, nics=2 * RUN_SERVERS, roce=True, name="rxe") as made:
                shape(made, cluster)
                topology = made.folder / "topology.yaml"
                told = [
                    {
                        "name": s.name,
                        "nics": [{"name": n.name, "rate": f"{float(n.out_rate) * 8e-9}Gb/s"} for n in s.nics],
                    }
                    for s in cluster.servers
                ]
                topology.write_text(yaml.safe_dump({"optcc": 1, "servers": told}), encoding="utf-8")
                command = [sys.executable, "-m", "optcc", "run", str(topology), "--transport", "verbs", *costs]
                done = subprocess.run(
                    [*command, "--size", RUN_SIZE, "--repeat", str(RUN_REPEAT), "--json"],
                    env={**os.environ, **made.env(0)}, capture_output=True, text=True, timeout=WAIT_S, check=False,
                )  # fmt: skip
            print(done.stdout[-1500:], done.stderr[-1500:], flush=True)
            report = json.loads(done.stdout) if done.returncode == 0 else {}
            exact = bool(report.get("exact"))
            all_exact &= exact
            planned = " ".join(costs) or "without costs"
            ratio = report.get("ratio", float("nan"))
            lines.append(f"| {name} | {planned} | {ratio:.3f} | {'exact' if exact else 'WRONG'} |")
    return lines, all_exact


# ---- GPU memory ----


def stream(memory: str, rate: int) -> float:
    """Bytes per second of writes in a row from one NIC's memory into another's, in a GPU or the host."""
    with fabric(hosts=1, nics=2, rate=rate) as made:
        env = {**os.environ, **made.env(0), "CONTRACT_MEMORY": memory}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_fabric", "--stream"], env=env, capture_output=True, text=True,
            timeout=WAIT_S, check=False,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"writes from {memory} memory: {done.stderr}")
    return float(done.stdout)


def be_stream() -> None:
    """What `stream` runs. Exit status 1 when the bytes are wrong."""
    from optcc.machine.rdma import rdma_ports
    from tests.verbs.contract_rig import MEMORY, End, payload

    a, b = (End(port.address(), sends=64) for port in rdma_ports()[:2])  # type: ignore[arg-type]
    for end in (a, b):
        end.initialise()
    a.to(b)
    b.to(a)
    a.fill(0, payload(MEMORY, 5))
    posted, done, begun = 0, 0, time.monotonic()
    while done < STREAM:
        while posted < STREAM and posted - done < 64:
            assert a.write(posted, [(0, MEMORY)], b, 0) == 0
            posted += 1
        found = a.wait(1)
        assert not any(each.status for each in found)
        done += len(found)
    print(STREAM * MEMORY / (time.monotonic() - begun))
    assert b.bytes_at(0, MEMORY) == payload(MEMORY, 5)


def be_rank(rank: int, world: int, half: int, cut: int) -> None:
    """Sums of an array in a GPU's memory over verbs. Prints a line of JSON for each call."""
    import cupy

    import optcc

    cluster = servers(world, GPU_NICS, GPU_RATE)
    cluster = slower(cluster, 1, 1) if half else cluster
    with optcc.Communicator(cluster, transport="verbs", rendezvous="127.0.0.1:29731", rank=rank, world=world) as comm:
        index = cupy.arange(GPU_BYTES // 4, dtype=cupy.float32) % 97
        expected = index * world + sum(range(world))
        for call in range(1 + GPU_CALLS):
            x = index + rank
            cupy.cuda.Device().synchronize()
            comm.barrier()
            if cut and call == 2:
                comm.strike("cut", "server1/rxe2", 0.5)
            begun = time.monotonic()
            comm.all_reduce(x)
            ended = time.monotonic()
            exact = bool((x == expected).all())
            print(json.dumps({"call": call, "begun": begun, "ended": ended, "exact": exact}), flush=True)


def sums(world: int, half: bool, cut: bool) -> tuple[str, bool]:
    """A row of the table of calls on GPU arrays, and whether all results are right."""
    cluster = servers(world, GPU_NICS, GPU_RATE)
    cluster = slower(cluster, 1, 1) if half else cluster
    with fabric(hosts=1, nics=GPU_NICS * world, roce=True, name="rxe") as made:
        shape(made, cluster)
        command = [sys.executable, "-m", "benchmarks.bench_fabric", "--rank"]
        ranks = [
            subprocess.Popen(
                [*command, *map(str, (rank, world, int(half), int(cut)))], env={**os.environ, **made.env(0)},
                stdout=-1, stderr=-1, text=True,
            )
            for rank in range(world)
        ]  # fmt: skip
        told = []
        for process in ranks:
            try:
                out, err = process.communicate(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
            print(err[-1000:], end="", flush=True)
            told += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    bound = float(lower_bound(cluster, GPU_BYTES).seconds)
    took = []
    for call in range(1 + GPU_CALLS):
        mine = [line for line in told if line["call"] == call]
        if len(mine) == world:
            took.append(max(line["ended"] for line in mine) - min(line["begun"] for line in mine))
    fine = len(took) == 1 + GPU_CALLS and all(line["exact"] for line in told)
    after = float(lower_bound(without(cluster), GPU_BYTES).seconds) if cut else bound
    times = " ".join(f"{s * 1e3:.0f}" for s in took[1:])
    ratio = f"{median(took[3 if cut else 1 :] or [float('nan')]) / after:.3f}"
    name = "one NIC at half" if half else "a NIC is lost in the second call" if cut else "whole"
    result = "exact" if fine else "WRONG"
    return f"| {world} | {name} | {times} | {after * 1e3:.0f} | {ratio} | {result} |", fine


def without(cluster: Cluster) -> Cluster:
    """Without the first NIC of server 1."""
    hurt = cluster.servers[1]
    return Cluster(tuple(replace(s, nics=s.nics[1:]) if s is hurt else s for s in cluster.servers))


def gpu_part() -> tuple[list[str], bool]:
    lines = [
        f"{STREAM} writes of 1 MiB in a row, from one NIC's memory to another's:",
        "",
        "| rate of a NIC | host memory | GPU memory |",
        "|---|---|---|",
    ]
    for rate in (*RATES[:3], 0):
        cells = [f"{stream(memory, rate) / 1e9:.3f} GB/s" for memory in ("host", "gpu")]
        lines.append(f"| {format_rate(rate) if rate else 'as fast as the machine is'} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Sums of {format_size(GPU_BYTES)} of float32 in one GPU's memory, by ranks that share it,",
        f"over {GPU_NICS} NICs of {format_rate(GPU_RATE)} each. The array goes through pinned memory to and fro.",
        "",
        "| ranks | NICs | calls after the first, ms | bound, ms | over it | result |",
        "|---|---|---|---|---|---|",
    ]
    fine = True
    for world in (2, 4):
        for half, cut in ((False, False), (True, False), (False, True)):
            row, right = sums(world, half, cut)
            print(row, flush=True)
            lines.append(row)
            fine &= right
    return lines, fine


def nccl_direct() -> tuple[list[str], bool]:
    """Stock NCCL between two nodes that are processes on one GPU, whose memory its NICs read and write."""
    with fabric(hosts=NCCL_NODES, nics=GPU_NICS, rate=GPU_RATE) as made:
        place, source = made.folder / "place.so", Path(__file__).with_name("nccl_place.c")
        subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", source, "-o", place, "-ldl"], check=True, timeout=60)
        steps = [{"nbytes": NCCL_BYTES, "half": [], "calls": 1 + NCCL_CALLS}]
        job = {"nodes": NCCL_NODES, "rate": GPU_RATE, "steps": steps, "breaks": "", "away_s": 0}
        (made.folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.nccl_played_rank", str(rank), str(made.folder)],
                env={
                    **os.environ, **made.env(rank), **ENVIRONMENT, **DIRECT, "LD_PRELOAD": str(place),
                    "NCCL_HOSTID": f"node{rank}", "NCCL_DEBUG_FILE": str(made.folder / f"nccl-{rank}"),
                },
                stdout=-1, text=True,
            )
            for rank in range(NCCL_NODES)
        ]  # fmt: skip
        lines = [json.loads(line) for process in ranks for line in process.communicate(timeout=WAIT_S)[0].splitlines()]
        said = (made.folder / "nccl-0").read_text()
        bound = float(lower_bound(made.cluster(), NCCL_BYTES).seconds)
    took = []
    for call in range(1, 1 + NCCL_CALLS):
        mine = [line for line in lines if line.get("call") == call]
        took.append(max(line["end"] for line in mine) - min(line["start"] for line in mine))
    direct = "via NET/IB" in said and "GDRDMA" in said
    fine = direct and all(line.get("exact", True) for line in lines)
    version = next(iter(re.findall(r"NCCL version ([0-9.]+)", said)), "")
    return [
        f"NCCL {version}, {NCCL_NODES} nodes that are processes on one GPU, {GPU_NICS} NICs of {format_rate(GPU_RATE)}",
        f"each, AllReduce of {format_size(NCCL_BYTES)} of float32, median of {NCCL_CALLS}:",
        f"{median(took) * 1e3:.0f} ms, {median(took) / bound:.3f} of the bound; {'exact' if fine else 'WRONG'}.",
        f"NCCL says {'that its NICs reach GPU memory (`GDRDMA`)' if direct else 'NOTHING of GPUDirect'}.",
        "Its environment is that of [the page on NCCL](bench-nccl-played.md), and:",
        "",
        "```",
        *(f"{name}={value}" for name, value in DIRECT.items()),
        "```",
    ], fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/bench-fabric.md"))
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stream:
        be_stream()
        return 0
    if options.rank:
        be_rank(*options.rank)
        return 0
    runs, exact = our_runs()
    text = [
        "# Played NICs by themselves",
        "",
        "Made by `make bench-fabric`: what [played NICs](fabric.md) keep of their rate, and what goes over them.",
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}.",
        "",
        "## Rate",
        "",
        f"`ib_write_bw` for {SECONDS} s, messages of 64 KiB.",
        "",
        *rates(),
        "",
        *latency(),
        "",
        "## `optcc run` over them",
        "",
        f"{RUN_SERVERS} servers with 2 NICs of {format_rate(RUN_RATE)} each, {RUN_SIZE}, median of {RUN_REPEAT}.",
        "",
        *runs,
    ]
    if importlib.util.find_spec("cupy"):
        found, right = gpu_part()
        exact &= right
        text += ["", "## GPU memory", "", *found]
    if importlib.util.find_spec("cupy") and importlib.util.find_spec("torch"):
        found, right = nccl_direct()
        exact &= right
        text += ["", "## NCCL with GPUDirect", "", *found]
    options.output.write_text("\n".join([*text, ""]), encoding="utf-8")
    print("\n".join(text))
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
