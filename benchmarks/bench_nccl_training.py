"""Training by unchanged scripts over the plugin for NCCL, whose NICs are lost at random moments: parameters equal?

Each rank of nccl_training.py is a node of its own (NCCL_HOSTID) with two played NICs of 4 Gb/s; ranks share GPUs where
there are fewer. For each kind of training: once without faults, then as often as it takes until NICs were lost at as
many moments as --losses says, over RDMA. A loss takes the NIC of one rail from one to all nodes, told (the link goes
down) or silently, and gives it back. Wanted: all jobs end, and parameters have the bits that they have without faults.
Needs torch with CUDA and NCCL, a GPU and a C compiler; prints a table. Exit status 1: something was wrong or hung.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_nccl import shared_gpus
from benchmarks.pages import table
from optcc.fabric.played import PlayedFabric

ROOT = Path(__file__).resolve().parent.parent
NODES, NICS, RATE = 4, 2, 500_000_000
"""RATE : of a NIC, bytes per second."""
JOB_S = 150.0
"""The most that a job may take."""
AWAY_S, BETWEEN_S = (0.05, 0.7), (0.05, 0.25)
"""How long a NIC is lost, and the time to the next loss."""
COLLNET = {"NCCL_COLLNET_ENABLE": "1", "OPTCC_COLLNET": "always"}
KINDS = {"DDP": ("ddp", {}, 0.4), "DDP by CollNet": ("ddp", COLLNET, 0.2), "FSDP2": ("fsdp", {}, 0.4)}
"""The script's kind, environment, and its part of all losses."""


@dataclass(frozen=True)
class Ran:
    """What came of a job. digests : by rank, of the parameters before and after; left : NICs that the plugin left"""

    digests: dict[int, tuple[str, str]]
    trouble: str
    losses: int = 0
    left: int = 0
    seconds: float = 0.0


def verdict(whole: Ran, hurt: Ran, alike: bool) -> str:
    """What is wrong with a run beside the one without faults; empty: nothing. alike : all ranks have all parameters"""
    for ran in (whole, hurt):
        if ran.trouble:
            return ran.trouble
        if sorted(ran.digests) != list(range(NODES)):
            return "a rank has no parameters"
        if any(before == after for before, after in ran.digests.values()):
            return "nothing was trained"
        if alike and len(set(ran.digests.values())) != 1:
            return "ranks differ"
    return "" if hurt.digests == whole.digests else "other parameters than without faults"


def lose(fabric: PlayedFabric, draw: random.Random) -> None:
    """Take a rail's NICs from some nodes for a while; the other rail joins all nodes."""
    rail = draw.choice(fabric.names)
    nics = [f"host{host}/{rail}" for host in draw.sample(range(NODES), draw.randint(1, NODES))]
    for nic in nics:
        (fabric.down if draw.random() < 0.5 else fabric.lose)(nic)
    time.sleep(draw.uniform(*AWAY_S))
    for nic in nics:
        fabric.up(nic)


def start(rank: int, gpu: int, kind: str, env: dict[str, str], steps: int, logs: Path) -> subprocess.Popen[str]:
    script, more, _ = KINDS[kind]
    env = {
        **os.environ, **env, **more, "NCCL_NET": "optcc", "NCCL_SOCKET_IFNAME": "=lo", "OPTCC_WIRES": "rdma",
        "NCCL_HOSTID": f"node{rank}", "NCCL_GIN_TYPE": "2", "NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(logs / f"nccl-{rank}"), "RANK": str(rank),
        "WORLD_SIZE": str(NODES), "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(gpu), "MASTER_ADDR": "127.0.0.1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "benchmarks" / "nccl_training.py"), script, str(steps), str(logs)]
    with (logs / f"out-{rank}").open("w") as out, (logs / f"err-{rank}").open("w") as err:
        return subprocess.Popen(command, env=env, stdout=out, stderr=err, text=True)


def run(kind: str, plugin: Path, logs: Path, steps: int, losses: int, seed: int) -> Ran:
    logs.mkdir(parents=True)
    draw, made, begun = random.Random(seed), 0, time.monotonic()
    same = {"NCCL_NET_PLUGIN": str(plugin), "MASTER_PORT": str(20000 + (os.getpid() * 7 + seed) % 10000)}
    fabric = PlayedFabric.make(f"/dev/shm/optcc-training-{os.getpid()}", hosts=NODES, nics=NICS, rate=RATE)

    def runs(how: Callable[[Iterable[bool]], bool]) -> bool:
        return time.monotonic() - begun < JOB_S and how(one.poll() is None for one in ranks)

    try:
        with shared_gpus(NODES) as gpus:
            ranks = [start(rank, rank % gpus, kind, {**fabric.env(rank), **same}, steps, logs) for rank in range(NODES)]
            while runs(all):
                trains = made < losses and "step 10 " in (logs / "out-0").read_text()
                if trains:
                    lose(fabric, draw)
                    made += not (logs / "digest-0").exists()  # else it was over
                time.sleep(draw.uniform(*BETWEEN_S) if trains else 0.05)
            while runs(any):
                time.sleep(0.05)
            codes = [one.poll() for one in ranks]
            for one in ranks:
                one.kill()
                one.wait()
    finally:
        fabric.remove()
    return read(kind, codes, logs, made, time.monotonic() - begun)


def read(kind: str, codes: Sequence[int | None], logs: Path, losses: int, seconds: float) -> Ran:
    """What ranks and NCCL wrote."""
    texts = [path.read_text(errors="replace") for path in sorted(logs.glob("nccl-*"))]
    trouble = "did not end in time" if None in codes else f"ranks ended with {codes}" if any(codes) else ""
    if len(texts) < NODES or not all("NET/optcc: using" in text and "by RDMA" in text for text in texts):
        trouble = trouble or "NCCL did not take the plugin"
    if "CollNet" in kind and not all(re.search(r"closed after [1-9]", text) for text in texts):
        trouble = trouble or "no AllReduce went by CollNet"
    digests = {}
    for path in logs.glob("digest-*"):
        before, after = path.read_text().split()
        digests[int(path.name.partition("-")[2])] = (before, after)
    if trouble:
        for path in sorted(logs.glob("err-*")):
            print(f"  {path.name}:", *path.read_text(errors="replace").splitlines()[-8:], sep="\n    ")
    left = sum(len(re.findall(r"NIC \S+ is lost;", text)) for text in texts)
    return Ran(digests, trouble, losses, left, seconds)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--losses", type=int, default=200, help="moments at which NICs are lost, in all")
    asked.add_argument("--steps", type=int, default=600, help="of training")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--plugin", type=Path, help="libnccl-net-optcc.so; without it, one is built")
    asked.add_argument("--kinds", default=",".join(KINDS))
    asked.add_argument("--logs", type=Path, help="keep what ranks and NCCL wrote in this folder")
    given = asked.parse_args()
    rows, bad = [], 0
    with tempfile.TemporaryDirectory() as name:
        plugin, logs = given.plugin or Path(name) / "libnccl-net-optcc.so", given.logs or Path(name)
        if given.plugin is None:
            subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), str(plugin)], check=True)
        for kind in given.kinds.split(","):
            wanted, jobs = round(given.losses * KINDS[kind][2]), list[Ran]()
            whole = run(kind, plugin.absolute(), logs / f"{kind} whole", given.steps, 0, 0)
            print(kind, whole, flush=True)
            said = whole.trouble
            while not said and sum(job.losses for job in jobs) < wanted:
                left, place = wanted - sum(job.losses for job in jobs), logs / f"{kind} {len(jobs)}"
                jobs.append(run(kind, plugin.absolute(), place, given.steps, left, given.seed + len(jobs)))
                said = verdict(whole, jobs[-1], KINDS[kind][0] == "ddp")
                print(kind, jobs[-1].losses, jobs[-1].left, f"{jobs[-1].seconds:.0f} s", said or "equal", flush=True)
            bad += bool(said)
            rows.append((kind, given.steps, f"{whole.seconds:.0f}", len(jobs), sum(job.losses for job in jobs),
                         sum(job.left for job in jobs), said or "parameters equal"))  # fmt: skip
    head = ("script", "steps", "s without faults", "jobs", "moments", "NICs left by the plugin", "result")
    print(*table(head, rows), sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
