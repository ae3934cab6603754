"""NCCL over played NICs, by its own InfiniBand and by our plugin: slow nodes, missing NICs, links that break.

Writes docs/bench-nccl-played.md. 4 nodes of one GPU; they share GPUs, by MPS, where there are fewer. Needs torch with
its NCCL, and a C compiler. Exit status 1 when a result is wrong, or a job that should be survived did not end.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench_nccl import shared_gpus
from benchmarks.nccl_played_rank import AFTER_S, GIVEN_UP_S, STRUCK, STUCK, hurt
from benchmarks.pages import made_with, parser, write
from optcc.api import lower_bound
from optcc.export.calls import prepared
from optcc.fabric.played import PlayedFabric
from optcc.values.units import format_rate, format_size, parse_rate

ROOT = Path(__file__).resolve().parent.parent
NODES, RATE = 4, int(parse_rate("8Gb/s"))
"""Nodes of one GPU each, and bytes per second of a node with all of its NICs, if nothing else is said."""
SIZES = (64 * 2**20, 256 * 2**20)
CALLS, CALLS_BROKEN, JOB_S = 6, 12, 120.0
"""AllReduces of a step, the first of which warms up, and of one in which a NIC breaks; the most that a job may take."""
ENVIRONMENT = {
    "NCCL_SOCKET_IFNAME": "=lo", "NCCL_NVLS_ENABLE": "0", "NCCL_GIN_TYPE": "2", "NCCL_DEBUG": "WARN",
}  # fmt: skip
NET = {"NCCL_NET": "optcc", "OPTCC_WIRES": "rdma"}
CONTENDERS = {
    "stock": {"NCCL_NET": "IB", "NCCL_NET_PLUGIN": "none", "NCCL_IB_TIMEOUT": "14", "NCCL_IB_RETRY_CNT": "7"},
    "our ncclNet": {**NET, "NCCL_ALGO": "Ring"},
    "our CollNet": {**NET, "NCCL_COLLNET_ENABLE": "1", "OPTCC_COLLNET": "always", "NCCL_MIN_NCHANNELS": "8"},
}
"""What they are given beside; `NCCL_NET_PLUGIN` and plans are files. For so slow NICs NCCL makes few channels, and
calls of 512 KiB; with eight they are of 1 and 2 MiB. Without 3 of 8 NICs stock took 3.63 of the bound with eight, and
3.64 with its own number."""
FAILOVER = {"NCCL_IB_RESILIENCY_PORT_FAILOVER": "1"}
"""Its companion, port recovery, makes unreliable connections, which are not played."""
QUIET = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
"""Torch would write for long about a call that failed."""


@dataclass(frozen=True)
class Step:
    """AllReduces of one size, on a fabric of which some hosts have half of their rate."""

    name: str
    nbytes: int
    half: tuple[int, ...] = ()
    calls: int = CALLS


@dataclass(frozen=True)
class Job:
    """Processes of NCCL that start together.

    contender : of CONTENDERS
    rate : bytes per second of a node
    missing : NICs that the last node lacks from the start
    breaks : how the first `broken` NICs of node 1 do, "down" or "silent", for away_s seconds or, with 0, for good
    survives : it should end

    All steps have the same slow hosts where ours is told of their rates.
    """

    contender: str
    steps: tuple[Step, ...]
    nics: int = 2
    missing: int = 0
    breaks: str = ""
    broken: int = 1
    away_s: float = 0.0
    survives: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    rate: int = RATE


def both(name: str, *half: int) -> tuple[Step, ...]:
    return tuple(Step(name, nbytes, half) for nbytes in SIZES)


def broken(
    contender: str, name: str, breaks: str, environment: dict[str, str] | None = None, away_s: float = 0.0,
    survives: bool = True, nics: int = 2, broken: int = 1,
) -> Job:  # fmt: skip
    steps = (Step(name, SIZES[0], calls=CALLS_BROKEN),)
    return Job(contender, steps, nics, breaks=breaks, broken=broken, away_s=away_s, survives=survives,
               environment=environment or {})  # fmt: skip


SLOW = (("healthy",), ("node 3 at half rate", 3), ("nodes 2 and 3 at half rate", 2, 3))


def jobs(newer: bool) -> list[Job]:
    """What is run, what matters most first, for time may be short. newer : by an NCCL with port failover, alone."""
    breaks: list[tuple[str, str, dict[str, Any]]] = [
        ("down for good", "down", {}),
        ("silent", "silent", {}),
        ("2 of 4 NICs down for good", "down", {"nics": 4, "broken": 2}),
        ("2 of 4 NICs silent", "silent", {"nics": 4, "broken": 2}),
        ("away for 0.3 s", "down", {"away_s": 0.3}),
        ("both NICs away for 0.3 s", "down", {"away_s": 0.3, "broken": 2}),
    ]
    found = [broken("our CollNet", name, how, **more) for name, how, more in breaks]
    for missing in (3, 1, 2, 4, 0):
        name = f"node 3 without {missing} of 8 NICs" if missing else "8 NICs, healthy"
        found += [Job(contender, both(name), 8, missing) for contender in reversed(CONTENDERS)]
    found += [broken("our ncclNet", name, how, **more) for name, how, more in breaks]
    found.append(broken("stock", "away for 0.3 s", "down", away_s=0.3))
    found.append(Job("stock", tuple(step for slow in SLOW for step in both(*slow))))
    found += [Job("our CollNet", both(*slow)) for slow in SLOW]
    found += [Job(contender, both("node 3 without 1 of 2 NICs"), missing=1) for contender in CONTENDERS]
    if newer:
        found.append(broken("stock", "down for good, port failover", "down", FAILOVER))
        found.append(broken("stock", "silent, port failover", "silent", FAILOVER))
    tree = both("healthy, Tree") + both("node 3 at half rate, Tree", 3) + both("node 1 at half rate, Tree", 1)
    found.append(Job("stock", tree, environment={"NCCL_ALGO": "Tree"}))
    found.append(broken("stock", "down for good", "down", survives=False))
    found.append(broken("stock", "silent", "silent", survives=False))
    return [job for job in found if job.contender == "stock"] if newer else found


@dataclass(frozen=True)
class Ran:
    """What came of a job, times in seconds.

    bounds : of each step, after a NIC broke too; seconds : of each call of each step
    carried : bytes that NICs sent, over those that the sums need
    told : rank -> from the strike to NCCL's error in torch's log; left : rank -> to the end of a process that failed
    """

    job: Job
    nccl: str
    about: str
    bounds: list[float]
    seconds: dict[int, list[float]]
    wrong: int
    carried: float
    told: dict[int, float]
    left: dict[int, float]

    @property
    def ended(self) -> bool:
        return all(len(self.seconds.get(i, ())) == step.calls for i, step in enumerate(self.job.steps))


def bound_of(fabric: PlayedFabric, nbytes: int) -> float:
    return float(lower_bound(fabric.cluster(), nbytes).seconds)


def start(
    rank: int, gpu: int, job: Job, fabric: PlayedFabric, folder: Path, libraries: Libraries
) -> subprocess.Popen[bytes]:
    """A rank's process, on the fabric's host of that number."""
    environment = {
        **os.environ, **fabric.env(rank), **ENVIRONMENT, **QUIET, **CONTENDERS[job.contender], **job.environment,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "LD_PRELOAD": " ".join(map(str, [libraries.place, *libraries.newer])),
        "NCCL_HOSTID": f"node{rank}", "NCCL_DEBUG_FILE": str(folder / f"nccl-{rank}"),
        "CUDA_VISIBLE_DEVICES": str(gpu),
    }  # fmt: skip
    if job.contender != "stock":
        gbps = job.rate * 8e-9 / job.nics / (2 if rank in job.steps[0].half else 1)
        left = job.nics - (job.missing if rank == NODES - 1 else 0)
        environment["NCCL_NET_PLUGIN"] = str(libraries.plugin)
        environment["OPTCC_RATES"] = ",".join([f"{gbps:g}"] * left)
    if job.contender == "our CollNet":
        environment["OPTCC_PLANS"] = str(folder / "plans")
    command = [sys.executable, "-m", "benchmarks.nccl_played_rank", str(rank), str(folder)]
    with (folder / f"out-{rank}").open("wb") as out, (folder / f"err-{rank}").open("wb") as err:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=err)


@dataclass(frozen=True)
class Libraries:
    """place : tells NCCL of PCI devices; plugin : ours; newer : none, or an NCCL to be run in place of torch's"""

    place: Path
    plugin: Path
    newer: tuple[Path, ...] = ()


def write_plans(fabric: PlayedFabric, failures: int, folder: Path) -> None:
    """For the fabric as it is, and after so many failures more."""
    folder.mkdir()
    for name, text in prepared(fabric.cluster(), failures)[0].items():
        (folder / name).write_text(text, encoding="utf-8")


def run_job(job: Job, libraries: Libraries, gpus: int, logs: Path) -> Ran:
    """Run it on a fabric of its own; what its ranks and NCCL wrote stays in `logs`."""
    rate = job.rate // job.nics
    fabric = PlayedFabric.make(f"/dev/shm/optcc-nccl-{os.getpid()}", hosts=NODES, nics=job.nics, rate=rate)
    try:
        logs.mkdir(parents=True)
        (logs / "job.json").write_text(json.dumps({**asdict(job), "nodes": NODES, "rate": rate}), encoding="utf-8")
        for nic in fabric.names[: job.missing]:
            fabric.down(f"host{NODES - 1}/{nic}", gone=True)
        bounds = []
        for step in job.steps:
            hurt(fabric, rate, step.half)
            bounds.append(bound_of(fabric, step.nbytes))
        if job.contender == "our CollNet":
            write_plans(fabric, job.broken, logs / "plans")
        hurt(fabric, rate, ())
        processes = [start(rank, rank % gpus, job, fabric, logs, libraries) for rank in range(NODES)]
        told: dict[int, float] = {}
        left: dict[int, float] = {}
        limit = time.monotonic() + JOB_S
        while any(process.poll() is None for process in processes):
            now = time.monotonic()
            for rank, process in enumerate(processes):
                if job.breaks and rank not in told and b"async exception" in (logs / f"err-{rank}").read_bytes():
                    told[rank] = now
                if rank not in left and process.poll() not in (None, 0, STUCK):
                    left[rank] = now
                if now > limit:
                    process.kill()
            time.sleep(0.02)
        if job.breaks:
            bounds.append(bound_of(fabric, job.steps[0].nbytes))
        carried = sum(fabric.nic(nic).counters["bytes_out"] for nic in fabric.every())
        return read(job, bounds, logs, carried, told, left)
    finally:
        fabric.remove()


def read(
    job: Job, bounds: list[float], logs: Path, carried: float, told: dict[int, float], left: dict[int, float]
) -> Ran:
    lines = [json.loads(line) for rank in range(NODES) for line in (logs / f"out-{rank}").read_text().splitlines()]
    seconds: dict[int, list[float]] = {}
    payload = 0
    for number, step in enumerate(job.steps):
        for call in range(step.calls):
            ranks = [line for line in lines if line.get("step") == number and line["call"] == call]
            if len(ranks) == NODES:
                took = max(line["end"] for line in ranks) - min(line["start"] for line in ranks)
                seconds.setdefault(number, []).append(took)
                payload += 2 * (NODES - 1) * step.nbytes
    texts = "\n".join(path.read_text(errors="replace") for path in sorted(logs.glob("nccl-*")))
    struck = next((line["struck"] for line in lines if "struck" in line), 0.0)
    return Ran(
        job,
        nccl=next(iter(re.findall(r"NCCL version ([\d.]+)", texts)), "that did not start"),
        about=next((line["about"] for line in lines if "about" in line), ""),
        bounds=bounds,
        seconds=seconds,
        wrong=sum(line.get("exact") is False for line in lines),
        carried=carried / (payload or 1),
        told={rank: at - struck for rank, at in told.items()},
        left={rank: at - struck for rank, at in left.items()},
    )


# ---- the page ----


def rates_table(runs: Sequence[Ran]) -> list[str]:
    lines = [
        f"| nodes | by | {' | '.join(f'{format_size(nbytes)}, ms | over the bound' for nbytes in SIZES)} | result |"
    ]
    lines.append("|---|---|" + "---|---|" * len(SIZES) + "---|")
    for run in runs:
        for name in dict.fromkeys(step.name for step in run.job.steps):
            cells = []
            for number, step in enumerate(run.job.steps):
                if step.name == name:
                    took = median(run.seconds.get(number, [])[1:] or [float("nan")])
                    cells += [f"{took * 1e3:.0f}", f"{took / run.bounds[number]:.2f}"]
            result = "WRONG" if run.wrong else "exact" if run.ended else "does not end"
            lines.append(f"| {name} | {run.job.contender} | {' | '.join(cells)} | {result} |")
    return lines


def breaks_table(runs: Sequence[Ran]) -> list[str]:
    lines = ["| NIC 0 of node 1, or more | by | calls, ms | bound before, after | then |", "|---|---|---|---|---|"]
    for run in runs:
        calls, bounds = (" ".join(f"{s * 1e3:.0f}" for s in many) for many in (run.seconds.get(0, []), run.bounds))
        then = ["goes on"] if run.ended else [f"call {len(run.seconds.get(0, [])) + 1} does not end"]
        if run.told:
            ranks = " ".join(map(str, sorted(run.told)))
            then.append(f"torch tells of NCCL's error on nodes {ranks}, first after {min(run.told.values()):.1f} s")
        if run.left:
            first = min(run.left, key=run.left.__getitem__)
            then.append(f"node {first}'s process fails after {run.left[first]:.1f} s")
        elif not run.ended:
            then.append(f"no process ends within {GIVEN_UP_S:.0f} s")
        then.append("WRONG" if run.wrong else "exact" if run.ended else "exact before")
        lines.append(f"| {run.job.steps[0].name} | {run.job.contender} | {calls} | {bounds} | {'; '.join(then)} |")
    return lines


def page(runs: Sequence[Ran], gpus: int) -> list[str]:
    carried = [run.carried for run in runs if run.ended and not run.job.breaks] or [0.0]
    lines = [
        "# NCCL over played NICs",
        "",
        f"Made by `python3 -m benchmarks.bench_nccl_played --rate {format_rate(runs[0].job.rate)}`:",
        f"{NODES} nodes of one GPU, AllReduce of float32 over NCCL's own InfiniBand",
        "(stock), over [our plugin](nccl.md) under NCCL's ring (our ncclNet), and by its plans (our CollNet).",
        f"NICs are [played](fabric.md), of {format_rate(runs[0].job.rate)} a node together.",
        "NCCL is not changed, and not told of it but by its environment:",
        "",
        "```",
        *(f"{name}={value}" for name, value in ENVIRONMENT.items()),
        *(
            f"# {contender}: {' '.join(f'{n}={v}' for n, v in given.items())}"
            for contender, given in CONTENDERS.items()
        ),
        "NCCL_HOSTID=node0  # to node3: processes of one machine are nodes",
        "```",
        "",
        "With `NCCL_IB_TIMEOUT=14` a NIC gives up after about 0.5 s; with NCCL's own 20 after half a minute.",
        "`benchmarks/nccl_place.c`, preloaded, names a PCI device for each NIC: NCCL stops where it finds none.",
        "`NCCL_GIN_TYPE=2` keeps NCCL from calls that only Mellanox's own library has.",
        "The first NCCL is torch's own; another one is built from its source, and preloaded (`--newer`).",
        "Ours is told of the NICs' rates (`OPTCC_RATES`), since a played NIC says 200 Gb/s whatever it does.",
        "",
        f"{next(run.about for run in runs if run.about)}, {gpus} GPUs; {made_with()}",
        "Every result is checked on every rank.",
        f"By their counters NICs carried {min(carried):.3f} to {max(carried):.3f} times the bytes that the sums need.",
    ]
    for nccl in dict.fromkeys(run.nccl for run in runs):
        mine = [run for run in runs if run.nccl == nccl]
        breaks = [run for run in mine if run.job.breaks]
        lines += [
            "",
            f"## NCCL {nccl}: slow nodes, and NICs missing from the start",
            "",
            f"Time from the first rank's start to the last one's end, medians of {CALLS - 1}, after one that warms up.",
            "The bound is that of `optcc fabric bound`, for the rates that are left.",
            "",
            *rates_table([run for run in mine if not run.job.breaks]),
            "",
            f"## NCCL {nccl}: a NIC breaks",
            "",
            f"Sums of {format_size(SIZES[0])} in a row; the NIC breaks {AFTER_S * 1e3:.0f} ms into call {STRUCK + 1}.",
            "",
            *breaks_table(breaks),
        ]
    return [*lines, ""]


def main() -> int:
    asked = parser(__doc__, "bench-nccl-played")
    asked.add_argument("--rate", default="8Gb/s", help="Of a node, by all of its NICs.")
    asked.add_argument("--newer", type=Path, help="A libnccl.so with port failover, 2.30 or later, to run too.")
    asked.add_argument("--logs", type=Path, help="Keep what ranks and NCCL wrote, in this folder.")
    asked.add_argument(
        "--budget-s", type=float, default=math.inf, help="Jobs that do not begin in so long are left out."
    )
    options = asked.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("torch is missing; install it with: pip install torch", file=sys.stderr)
        return 2
    runs: list[Ran] = []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name, shared_gpus(NODES) as gpus:
        place, plugin = Path(name) / "place.so", Path(name) / "libnccl-net-optcc.so"
        source = Path(__file__).with_name("nccl_place.c")
        subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", source, "-o", place, "-ldl"], check=True, timeout=60)
        subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), str(plugin)], check=True, timeout=200)
        for newer in [(), (options.newer.absolute(),)] if options.newer else [()]:
            for job in (replace(job, rate=int(parse_rate(options.rate))) for job in jobs(bool(newer))):
                if time.monotonic() - begun > options.budget_s:
                    print(f"not run, for want of time: {job.contender}, {job.steps[0].name}", flush=True)
                    continue
                logs = (options.logs or Path(name)) / f"{len(runs)}"
                runs.append(run_job(job, Libraries(place, plugin, newer), min(gpus, NODES), logs))
                print(runs[-1], flush=True)
    write(
        options.output,
        "\n".join(page(runs, gpus)),
        lambda c: c["nodes"] in ("healthy", "node 3 at half rate") or "8 NICs" in c["nodes"],
    )
    return 1 if any(run.wrong or (run.job.survives and not run.ended) for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
