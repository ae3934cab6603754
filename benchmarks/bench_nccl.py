"""Stock torch and NCCL over emulated nodes: NCCL's ring and tree, our ncclNet, our CollNet, side by side.

Writes docs/bench-nccl.md. A node is a network namespace with two NICs, veth pairs of a given rate (`tc tbf`), and a
GPU; nodes share GPUs, by MPS, where there are fewer. Needs root, `ip` and `tc`, torch with NCCL and CUDA, and a C
compiler. Each job is processes of one contender that start together, with a limit; what does not end, is wrong, or did
not go the way that it should, is said, and the others go on. Exit status 1: something of ours was wrong or did not end;
2: it cannot run here, and why.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NODES, NICS = 4, 2
GBPS = 4.0
"""Of a NIC."""
MIB = 1 << 20
SIZES = (16 * MIB, 64 * MIB, 256 * MIB)
SMALL = (8, 4096, 65536)
"""Bytes of AllReduces that should take as long as with stock NCCL."""
CALLS, CALLS_BROKEN = 5, 8
"""AllReduces of a step, the first of which warms up; and of the one in which a cable is pulled."""
SAID_GBPS = 10
"""What virtual Ethernet says of itself, whatever its rate: by it NCCL chooses over its sockets, and so over ours."""
IN_A_ROW = 200
"""Small calls, one behind another."""
STRUCK, AFTER_S = 3, 0.05
"""The call in which it is, and how far into it."""
JOB_S, GIVEN_UP_S, START_S = 75.0, 15.0, 45.0
"""The most that a job may take; a call; and to meet at the beginning."""
STUCK = 3
HALF = 0.5
ALL_OURS = ("our ncclNet", "our CollNet")


@dataclass(frozen=True)
class Step:
    """What all ranks do. kind : times, small, exact, cable; parts : by node, what is left of its NICs' rate"""

    name: str
    kind: str = "times"
    parts: tuple[float, ...] = (1.0,) * NODES


@dataclass(frozen=True)
class Job:
    """Processes that start together. told : by node, what the plugin is told of its rate"""

    contender: str
    steps: tuple[Step, ...]
    environment: dict[str, str] = field(default_factory=dict)
    told: tuple[float, ...] = (1.0,) * NODES

    @property
    def ours(self) -> bool:
        return self.contender in ALL_OURS


def slow(*nodes: int) -> tuple[float, ...]:
    return tuple(HALF if node in nodes else 1.0 for node in range(NODES))


HEALTHY, LAST, MIDDLE, TWO = "healthy", "node 3 at half rate", "node 1 at half rate", "nodes 2 and 3 at half rate"
LESS, THREE_QUARTERS = "node 3 at three quarters", (1.0, 1.0, 1.0, 0.75)
CABLE = "a cable of node 1 is pulled"


def jobs(plugin: Path, plans: Path, plans_slow: Path) -> list[Job]:
    """In order of what matters most, since time may be short. plans_slow : for a node at three quarters of its rate"""
    stock = {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none", "NCCL_SOCKET_IFNAME": "=r0,r1"}
    net = {"NCCL_NET": "optcc", "NCCL_NET_PLUGIN": str(plugin), "NCCL_SOCKET_IFNAME": "=r0", "OPTCC_NICS": "r0,r1"}
    coll = {**net, "NCCL_COLLNET_ENABLE": "1", "OPTCC_PLANS": str(plans), "OPTCC_COLLNET": "always"}
    healthy, less, small = Step(HEALTHY), Step(LESS, parts=THREE_QUARTERS), Step(HEALTHY, "small")
    return [
        Job("our CollNet", (Step("exact", "exact"), healthy, small), coll),
        Job("our CollNet", (Step(LAST, parts=slow(3)),), coll, slow(3)),
        Job("our CollNet", (less,), {**coll, "OPTCC_PLANS": str(plans_slow)}, THREE_QUARTERS),
        Job("stock ring", (healthy, Step(LAST, parts=slow(3)), less, Step(TWO, parts=slow(2, 3))),
            {**stock, "NCCL_ALGO": "Ring"}),
        Job("stock", (small,), stock),
        Job("our ncclNet", (small,), net),
        Job("our CollNet", (Step(CABLE, "cable"),), coll),
        Job("our ncclNet", (healthy, Step(LAST, parts=slow(3)), Step("exact", "exact"), Step(CABLE, "cable")),
            {**net, "NCCL_ALGO": "Ring"}),
        Job("stock tree", (healthy, Step(LAST, parts=slow(3)), Step(MIDDLE, parts=slow(1))),
            {**stock, "NCCL_ALGO": "Tree"}),
        Job("our CollNet", (Step(TWO, parts=slow(2, 3)),), coll, slow(2, 3)),
        Job("stock ring", (Step(CABLE, "cable"),), {**stock, "NCCL_ALGO": "Ring"}),
    ]  # fmt: skip


# --- nodes ---------------------------------------------------------------------------------------------------------


def sh(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=60)


def set_rates(names: Sequence[str], gbps: float, parts: Sequence[float]) -> None:
    """Of each node's NICs both ways: at its own end and at the switch's."""
    switch = names[-1]
    for node, part in enumerate(parts):
        for nic in range(NICS):
            rate = int(gbps * part * 1e6)
            shape = ["root", "tbf", "rate", f"{rate}kbit", "burst", str(max(131072, rate // 8)), "limit", str(64 * MIB)]
            sh("tc", "-n", names[node], "qdisc", "replace", "dev", f"r{nic}", *shape)
            sh("tc", "-n", switch, "qdisc", "replace", "dev", f"v{node}r{nic}", *shape)


@contextmanager
def nodes() -> Iterator[list[str]]:
    """Namespaces of the nodes, and of the switches, which comes last; two rails, jumbo frames."""
    names = [f"onb{os.getpid() % 10000}n{node}" for node in range(NODES)] + [f"onb{os.getpid() % 10000}s"]
    switch = names[-1]
    try:
        for name in names:
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
        for nic in range(NICS):
            sh("ip", "-n", switch, "link", "add", f"b{nic}", "mtu", "9000", "type", "bridge")
            sh("ip", "-n", switch, "link", "set", f"b{nic}", "up")
            for node in range(NODES):
                near, far = f"r{nic}", f"v{node}r{nic}"
                sh("ip", "-n", switch, "link", "add", "name", far, "mtu", "9000", "type", "veth",
                   "peer", "name", near, "mtu", "9000", "netns", names[node])  # fmt: skip
                sh("ip", "-n", switch, "link", "set", far, "master", f"b{nic}", "up")
                sh("ip", "-n", names[node], "address", "add", f"10.78.{nic}.{node + 1}/24", "dev", near)
                sh("ip", "-n", names[node], "link", "set", near, "up")
        yield names
    finally:
        for name in names:
            sh("ip", "netns", "del", name, check=False)


def cannot() -> str:
    """Why not here; empty: it can."""
    for program in ("ip", "tc", "nsenter", "cc"):
        if shutil.which(program) is None:
            return f"{program} is missing (ip and tc are of iproute2, nsenter of util-linux, cc a C compiler)"
    if importlib.util.find_spec("torch") is None:
        return "torch is missing; install it with: pip install torch"
    try:
        with nodes() as names:
            set_rates(names, GBPS, (1.0,) * NODES)
            return "" if Path(f"/run/netns/{names[0]}").exists() else "no /run/netns"
    except subprocess.CalledProcessError as error:
        return f"no network namespaces with rates: {' '.join(error.cmd)}: {error.stderr.strip()}"


@cache
def gpus_here() -> int:
    """Asked by a process of its own, which ends with its CUDA."""
    count = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", count], check=True, capture_output=True, text=True).stdout)


@contextmanager
def shared_gpus(ranks: int) -> Iterator[int]:
    """How many GPUs there are; where they are fewer than ranks, processes that begin in the block share them by MPS.

    Taking turns, each would wait for milliseconds until it sees what NCCL's kernel or the other process has done.
    """
    from optcc.runtime.devices.mps import mps_service, sharing_of

    gpus, before = gpus_here(), dict(os.environ)
    with mps_service(before) if sharing_of(ranks, gpus, before).mps else nullcontext(before) as inside:
        os.environ.update(inside)
        try:
            yield gpus
        finally:
            os.environ.clear()
            os.environ.update(before)


# --- a rank --------------------------------------------------------------------------------------------------------


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Rank:
    """One process: a node with a GPU."""

    def __init__(self, rank: int, folder: Path) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.rank, self.meetings = torch, dist, rank, 0
        self.told = json.loads((folder / "job.json").read_text())
        self.device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        self.store = dist.FileStore(str(folder / "store"), NODES)
        dist.init_process_group("nccl", store=self.store, rank=rank, world_size=NODES, device_id=self.device)
        name = torch.cuda.get_device_name(self.device)
        say(about=f"torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, "
            f"{torch.cuda.device_count()} x {name}")  # fmt: skip

    def meet(self, limit_s: float = GIVEN_UP_S) -> None:
        """Wait for all ranks, out of NCCL's sight."""
        self.meetings += 1
        name, bound = f"meeting {self.meetings}", time.monotonic() + limit_s
        self.store.add(name, 1)
        while self.store.add(name, 0) < NODES:
            if time.monotonic() > bound:
                raise SystemExit(f"not all ranks came to {name}")
            time.sleep(1e-3)

    def reduce(self, buffer: Any, op: Any = None) -> tuple[float, float]:
        """Start and end of one AllReduce; a process whose call does not end, ends."""
        start = time.monotonic()
        self.dist.all_reduce(buffer, *([] if op is None else [op]))
        done = self.torch.cuda.Event()
        done.record()
        while not done.query():
            if time.monotonic() - start > GIVEN_UP_S:
                say(stuck=True)
                os._exit(STUCK)
            time.sleep(5e-5)
        return start, time.monotonic()

    def run(self) -> None:
        self.meet(START_S)
        for number, step in enumerate(self.told["steps"]):
            if self.rank == 0:
                set_rates(self.told["names"], self.told["gbps"], step["parts"])
            self.meet()
            getattr(self, step["kind"])(number)
        self.meet()
        self.dist.destroy_process_group()

    def times(self, number: int, sizes: Sequence[int] = SIZES, calls: int = CALLS, breaks: bool = False) -> None:
        torch = self.torch
        for nbytes in sizes:
            index = torch.arange(nbytes // 4, device=self.device) % 97
            expected = (index * NODES + sum(range(NODES))).float()
            buffer = torch.empty_like(expected)
            for call in range(calls):
                torch.add(index, self.rank, out=buffer)
                torch.cuda.synchronize()
                self.meet()
                if breaks and call == STRUCK and self.rank == 0:
                    cable = ["ip", "-n", self.told["names"][-1], "link", "set", "v1r1", "down"]
                    threading.Timer(AFTER_S, sh, cable).start()
                start, end = self.reduce(buffer)
                say(step=number, nbytes=nbytes, call=call, start=start, end=end, exact=torch.equal(buffer, expected))

    def small(self, number: int) -> None:
        """Calls that begin when all ranks have met; and one behind another, as nccl-tests times them."""
        self.times(number, SMALL, 40)
        for nbytes in SMALL:
            buffer = self.torch.full((nbytes // 4,), self.rank, dtype=self.torch.float32, device=self.device)
            for calls in (IN_A_ROW // 5, IN_A_ROW):
                self.torch.cuda.synchronize()
                self.meet()
                start = time.monotonic()
                for _ in range(calls - 1):
                    self.dist.all_reduce(buffer, self.dist.ReduceOp.MAX)
                self.reduce(buffer, self.dist.ReduceOp.MAX)
                took = (time.monotonic() - start) / calls
            say(step=number, row=nbytes, took=took, exact=bool((buffer == NODES - 1).all()))

    def cable(self, number: int) -> None:
        self.times(number, (64 * MIB,), CALLS_BROKEN, breaks=True)

    def exact(self, number: int) -> None:
        """All types and operations, with small whole numbers."""
        torch, ops = self.torch, self.dist.ReduceOp
        wrong = count = 0
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64,
                      torch.int8, torch.uint8):  # fmt: skip
            for op in (ops.SUM, ops.PRODUCT, ops.MIN, ops.MAX):
                for size in (1, 1000, 300_001, 3_000_017):
                    index = torch.arange(size, device=self.device)
                    low = 1 if op == ops.PRODUCT else 0
                    all_of = [((index * 7 + rank * 13) % (3 - low) + low).to(dtype) for rank in range(NODES)]
                    mine, right = all_of[self.rank].clone(), all_of[0].clone()
                    for one in all_of[1:]:
                        if op == ops.SUM:
                            right = right + one
                        elif op == ops.PRODUCT:
                            right = right * one
                        else:
                            right = (torch.minimum if op == ops.MIN else torch.maximum)(right, one)
                    self.reduce(mine, op)
                    count += 1
                    wrong += not torch.equal(mine, right)
        say(step=number, cases=count, wrong=wrong)


# --- all of them ---------------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """What came of a job. seconds : (step, bytes) -> of each call; rows : of one of a row, of the slowest rank;
    trouble : how it went, in words, empty: well"""

    job: Job
    seconds: dict[tuple[int, int], list[float]]
    rows: dict[tuple[int, int], float]
    wrong: int
    cases: int
    trouble: str
    about: str


def start(rank: int, job: Job, names: Sequence[str], gbps: float, folder: Path) -> subprocess.Popen[bytes]:
    part = job.told[rank]
    env = {
        **os.environ, **job.environment, "NCCL_HOSTID": f"node{rank}", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0",
        "NCCL_SOCKET_FAMILY": "AF_INET", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING",
        "NCCL_DEBUG_FILE": str(folder / f"nccl-{rank}"), "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "OPTCC_RATES": ",".join([f"{SAID_GBPS * part:g}"] * NICS),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    command = ["nsenter", f"--net=/run/netns/{names[rank]}", sys.executable, __file__, "--rank", str(rank)]
    with (folder / f"out-{rank}").open("wb") as out, (folder / f"err-{rank}").open("wb") as err:
        return subprocess.Popen([*command, "--folder", str(folder)], env=env, stdout=out, stderr=err)


def run_job(job: Job, gbps: float, folder: Path, limit_s: float) -> Ran:
    folder.mkdir(parents=True)
    begun = time.monotonic()
    with nodes() as names, shared_gpus(NODES):
        content = {"steps": [asdict(step) for step in job.steps], "names": names, "gbps": gbps}
        (folder / "job.json").write_text(json.dumps(content), encoding="utf-8")
        ranks = [start(rank, job, names, gbps, folder) for rank in range(NODES)]
        try:
            while any(one.poll() is None for one in ranks) and time.monotonic() - begun < limit_s:
                if any(one.poll() not in (None, 0) for one in ranks):
                    time.sleep(3)  # the others may say something, too
                    break
                time.sleep(0.05)
            codes = [one.poll() for one in ranks]
        finally:
            for one in ranks:
                one.kill()
                one.wait()
    return read(job, codes, folder)


def read(job: Job, codes: Sequence[int | None], folder: Path) -> Ran:
    """What ranks, torch and NCCL wrote."""
    lines = []
    for rank in range(NODES):
        for line in (folder / f"out-{rank}").read_text(errors="replace").splitlines():
            if line.startswith("{"):
                lines.append(json.loads(line))
    logs = [path.read_text(errors="replace") for path in sorted(folder.glob("nccl-*"))]
    seconds: dict[tuple[int, int], list[float]] = {}
    for key in dict.fromkeys((line["step"], line["nbytes"], line["call"]) for line in lines if "call" in line):
        ranks = [line for line in lines if (line.get("step"), line.get("nbytes"), line.get("call")) == key]
        if len(ranks) == NODES:
            took = max(line["end"] for line in ranks) - min(line["start"] for line in ranks)
            seconds.setdefault(key[:2], []).append(took)
    rows: dict[tuple[int, int], float] = {}
    for line in lines:
        if "row" in line:
            row = line["step"], line["row"]
            rows[row] = max(rows.get(row, 0.0), line["took"])
    trouble = []
    if any(codes):
        stuck = " (a call did not end)" if any("stuck" in line for line in lines) else ""
        trouble.append(f"ranks ended with {' '.join(map(str, codes))}{stuck}")
    elif None in codes:
        trouble.append("did not end in time")
    text = "\n".join(logs)
    if job.ours and "NET/optcc: using" not in text:
        trouble.append("NCCL did not take the plugin")
    if job.contender == "our CollNet":
        carried = [float(number) for number in re.findall(r"closed after \d+ calls, ([\d.]+) MB", text)]
        if "NET/optcc: group of" not in text:
            trouble.append("NCCL made no group (CollNet)")
        elif carried and max(carried) == 0:
            trouble.append("no AllReduce went by CollNet")
    if trouble:
        for rank in range(NODES):
            tail = (folder / f"err-{rank}").read_text(errors="replace").splitlines()[-6:]
            said = [line for line in (logs[rank].splitlines() if rank < len(logs) else []) if "WARN" in line][-6:]
            print(f"  rank {rank}:", *tail, *said, sep="\n    ", flush=True)
    return Ran(
        job,
        seconds,
        rows,
        wrong=sum(line.get("exact") is False for line in lines) + sum(line.get("wrong", 0) for line in lines),
        cases=sum(line.get("cases", 0) for line in lines),
        trouble="; ".join(trouble),
        about=next((line["about"] for line in lines if "about" in line), ""),
    )


def bound_s(gbps: float, parts: Sequence[float], nbytes: int) -> float:
    from fractions import Fraction

    from optcc.theory import lower_bound
    from optcc.values.cluster import Cluster, Nic, Server

    rates = [Fraction(part) * int(gbps * 125_000_000) for part in parts]
    nics = ([Nic(f"r{nic}", rate, rate) for nic in range(NICS)] for rate in rates)
    cluster = Cluster(tuple(Server(f"server{node}", tuple(of)) for node, of in enumerate(nics)))
    return float(lower_bound(cluster, nbytes).seconds)


def page(runs: Sequence[Ran], gbps: float, command: str) -> list[str]:
    from optcc.values.units import format_size

    lines = [
        "# NCCL's own algorithms, and ours inside it",
        "",
        f"Made by `{command}`: {NODES} nodes, network namespaces of one machine with {NICS} NICs of {gbps:g} Gb/s each",
        "(`tc tbf`), unmodified torch and NCCL, AllReduce of float32. Stock NCCL goes over its sockets; ours over TCP.",
        f"{next((run.about for run in runs if run.about), 'nothing ran')}.",
        "Where there are fewer GPUs than nodes, these share them by MPS.",
        "",
        "## Times over the bound",
        "",
        f"From the first rank's start to the last one's end, medians of {CALLS - 1} calls after one that warms up,",
        "over the least that AllReduce can take at these rates. Every result is checked on every rank.",
        "",
        f"| nodes | contender | {' | '.join(f'{format_size(size)}, ms | over the bound' for size in SIZES)} | result |",
        "|---|---|" + "---|---|" * len(SIZES) + "---|",
    ]
    rows = [(step, number, run) for run in runs for number, step in enumerate(run.job.steps) if step.kind == "times"]
    for step, number, run in sorted(rows, key=lambda row: (row[0].name != HEALTHY, row[0].name)):
        cells = []
        for size in SIZES:
            took = run.seconds.get((number, size), [])[1:]
            cells += [f"{median(took) * 1e3:.0f}" if took else "-"]
            cells += [f"{median(took) / bound_s(gbps, step.parts, size):.2f}" if took else "-"]
        lines.append(f"| {step.name} | {run.job.contender} | {' | '.join(cells)} | {result(run)} |")
    lines += ["", "## A cable is pulled", "", f"Calls of 64 MiB; {AFTER_S * 1e3:.0f} ms into call {STRUCK + 1}.", ""]
    lines += ["| contender | calls, ms | result |", "|---|---|---|"]
    for run in runs:
        for number, step in enumerate(run.job.steps):
            if step.kind == "cable":
                calls = " ".join(f"{took * 1e3:.0f}" for took in run.seconds.get((number, 64 * MIB), []))
                lines.append(f"| {run.job.contender} | {calls} | {result(run)} |")
    lines += [
        "", "## Small calls, healthy", "",
        "NCCL chooses its algorithm. Alone: all ranks meet, and begin within a millisecond, which counts.",
        f"In a row: one of {IN_A_ROW}, one behind another, as nccl-tests times them, on the slowest rank.", "",
    ]  # fmt: skip
    lines.append(f"| contender | {' | '.join(f'{n} bytes alone, us | in a row, us' for n in SMALL)} |")
    lines.append("|---|" + "---|---|" * len(SMALL))
    for run in runs:
        for number, step in enumerate(run.job.steps):
            if step.kind == "small":
                nan = float("nan")
                alone = [median(run.seconds.get((number, n), [])[1:] or [nan]) for n in SMALL]
                row = [run.rows.get((number, n), nan) for n in SMALL]
                took = [f"{one * 1e6:.0f} | {other * 1e6:.0f}" for one, other in zip(alone, row, strict=True)]
                lines.append(f"| {run.job.contender} | {' | '.join(took)} |")
    lines += ["", "## All types and operations", ""]
    for run in runs:
        if run.cases:
            lines.append(f"* {run.job.contender}: {run.cases} results of all ranks, {run.wrong} wrong.")
    return [*lines, ""]


def result(run: Ran) -> str:
    return "WRONG" if run.wrong else run.trouble or "exact"


def main(arguments: Sequence[str] | None = None) -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("-o", "--output", type=Path, default=Path("docs/bench-nccl.md"))
    asked.add_argument("--gbps", type=float, default=GBPS, help="rate of a NIC, Gb/s")
    asked.add_argument("--budget-s", type=float, default=540.0, help="jobs that do not begin in so long are left out")
    asked.add_argument("--logs", type=Path, help="keep what ranks and NCCL wrote in this folder")
    asked.add_argument("--only", help="contenders, such as our CollNet,stock ring")
    asked.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    asked.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = asked.parse_args(arguments)
    if given.rank is not None:
        Rank(given.rank, given.folder).run()
        return 0
    begun = time.monotonic()
    if why := cannot():
        print(f"cannot run here: {why}", file=sys.stderr)
        return 2
    from benchmarks.pages import write
    from optcc.export.calls import prepared
    from optcc.values.cluster import Cluster, degrade_all

    runs: list[Ran] = []
    with tempfile.TemporaryDirectory() as name:
        plugin, plans = Path(name) / "libnccl-net-optcc.so", Path(name) / "plans"
        subprocess.run([sys.executable, str(ROOT / "native" / "build.py"), str(plugin)], check=True, timeout=200)
        plans_slow = Path(name) / "plans-slow"
        whole = Cluster.uniform(servers=NODES, nics=NICS, rate=int(given.gbps * 125_000_000))
        last = whole.servers[-1]
        less = degrade_all(whole, ((f"{last.name}/{nic.name}", THREE_QUARTERS[-1]) for nic in last.nics))
        for folder, cluster in (plans, whole), (plans_slow, less):
            folder.mkdir()
            for file, text in prepared(cluster, 2)[0].items():
                (folder / file).write_text(text, encoding="utf-8")
        for number, job in enumerate(jobs(plugin, plans, plans_slow)):
            if given.only and job.contender not in given.only.split(","):
                continue
            left_s = given.budget_s - (time.monotonic() - begun)
            steps = ", ".join(f"{step.name} ({step.kind})" for step in job.steps)
            if left_s < GIVEN_UP_S:
                print(f"not run, for want of time: {job.contender}: {steps}", flush=True)
                continue
            print(f"{time.monotonic() - begun:.0f} s: {job.contender}: {steps}", flush=True)
            run = run_job(job, given.gbps, (given.logs or Path(name)) / f"job-{number}", min(JOB_S, left_s))
            runs.append(run)
            for (step, nbytes), took in run.seconds.items():
                print(f"  {job.steps[step].name}, {nbytes} bytes, ms:", *(f"{one * 1e3:.2f}" for one in took[-8:]))
            print(f"  {result(run)}; {run.cases} cases", flush=True)
    lines = page(runs, given.gbps, f"python3 -m benchmarks.bench_nccl --gbps {given.gbps:g}")
    write(given.output, lines, lambda row: row["nodes"] != "node 1 at half rate")  # where nobody would have the tree
    return 1 if any(run.job.ours and (run.wrong or run.trouble) for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
