"""The plugin's sums on GPUs: right numbers, nothing that hangs, and how fast the kernel is.

``python3 -m benchmarks.bench_nccl_gpu`` writes docs/bench-nccl-gpu.md. It wants torch with NCCL 2.28 or later, cupy,
one GPU or more, and the libraries that `make native` builds; it prints what it finds as it goes, for four minutes.
Parts, each under a limit of its own, of which a failed one stops no other:

* the kernel alone, fed by native/folder_gpu.c: GB/s that are folded and copied, from the GPU's memory and the host's;
* four ranks under stock torch, each a node with two NICs of loopback, which share the GPUs by MPS: thousands of
  AllReduces beside matrix products and memory that is given back; all types and operations; CUDA graphs; two
  communicators at once; times, processor time and kernels that are loaded for the first time, with and without the GPU.

Exit status 1: something was wrong or hung, or the GPU added nothing; 2: it cannot run here.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pages import made_with, parser, table, write

ROOT = Path(__file__).resolve().parent.parent
PLUGIN, ENGINE = ROOT / "optcc" / "libnccl-net-optcc.so", ROOT / "optcc" / "liboptcc.so"
RANKS = 4
MIB = 1 << 20
GIVEN_UP_S = 20.0
"""The most that one AllReduce may take."""
START_S = 40.0
COMPILED_S = 6.0
"""A kernel is compiled by then, once a type has been seen."""


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


# --- the kernel alone ----------------------------------------------------------------------------------------------


class Job(ctypes.Structure):
    """struct optcc_job"""

    _fields_ = (
        ("to", c_void_p),
        ("source", c_void_p),
        ("nbytes", c_uint64),
        ("type", c_uint32),
        ("op", c_uint32),
        ("fold", ctypes.c_int),
    )


class Life(ctypes.Structure):
    """struct optcc_gpu_life"""

    _fields_ = (
        ("number", c_uint64),
        ("count", c_uint64),
        ("slots", c_void_p),
        ("lines", c_void_p),
        ("lives", c_void_p),
        ("over", c_void_p),
    )


TYPES = {"float32": 10, "bfloat16": 9, "float16": 8, "int8": 0}
"""enum optcc_type"""


def kernel_alone(gpu: int, blocks: int, part: int, dtype: str, job_bytes: int) -> dict[str, float]:
    """GB/s of jobs by where their memory is; NaN where bytes were wrong or it did not end."""
    import cupy
    import numpy as np

    lib = ctypes.CDLL(str(ENGINE))
    lib.optcc_gpu_bytes.restype = c_uint64
    cupy.cuda.Device(gpu).use()
    source = (ROOT / "runtime" / "devices" / "kernels" / "fold.cu").read_text(encoding="utf-8")
    # A module of its own for each case: cupy loads the same source with the same options once.
    options = (f"-DTYPE_{dtype}", "-DLIFE_ALONE", f"-DCASE={blocks}000{part}000{job_bytes}", "-std=c++17")
    kernel = cupy.RawModule(code=source, options=options).get_function("serve_life")
    stream = cupy.cuda.Stream(non_blocking=True)
    whole = 256 * MIB
    rooms: dict[str, tuple[Any, int]] = {}
    for name in ("to", "from"):
        device = cupy.cuda.alloc(whole)
        host = cupy.cuda.alloc_pinned_memory(whole)
        rooms[f"GPU {name}"], rooms[f"host {name}"] = (device, device.ptr), (host, host.ptr)
    host_of = {name: np.frombuffer(rooms[f"host {name}"][0], np.int8, whole) for name in ("to", "from")}
    memory = cupy.cuda.alloc_pinned_memory(int(lib.optcc_gpu_bytes(blocks)) + 128)
    handle, life = c_void_p(), Life()
    at = memory.ptr + -memory.ptr % 128
    assert lib.optcc_gpu_open(c_void_p(at), blocks, c_uint64(part), byref(handle)) == 0
    lib.optcc_gpu_look(handle, c_uint64(time.monotonic_ns()))
    for _, place in rooms.values():
        assert lib.optcc_gpu_reach(handle, c_void_p(place), c_uint64(whole)) == 0
    assert lib.optcc_gpu_ask(handle, TYPES[dtype], byref(life)) == 0
    with stream:
        kernel((blocks,), (512,), (life.slots, life.count, life.lines, life.lives, life.over, life.number))
    until = time.monotonic() + 20
    while lib.optcc_gpu_look(handle, c_uint64(time.monotonic_ns())) != 0:
        if time.monotonic() > until:
            raise RuntimeError("the kernel does not begin")
    found: dict[str, float] = {}

    def went(to: str, origin: str, fold: int, rounds: int) -> float:
        ticket, tickets = c_uint64(), []
        first, second = rooms[f"{to} to"][1], rooms[f"{origin} from"][1]
        count = whole // job_bytes
        limit = time.monotonic() + 20
        begun = time.perf_counter()
        for _ in range(rounds):
            for number in range(count):
                offset = number * job_bytes
                job = Job(first + offset, second + offset, job_bytes, TYPES[dtype], 0, fold)
                while lib.optcc_gpu_job(handle, byref(job), byref(ticket)) != 0:
                    if time.monotonic() > limit:
                        raise RuntimeError("jobs are not done")
                tickets.append(ticket.value)
        for one in tickets[-64:]:
            while lib.optcc_gpu_done(handle, c_uint64(one)) != 0:
                if time.monotonic() > limit:
                    raise RuntimeError("jobs are not done")
        return rounds * whole / (time.perf_counter() - begun) / 1e9

    try:
        for to, origin in (("GPU", "GPU"), ("GPU", "host"), ("host", "host")):
            copy = "to it from" if to != origin else "within"
            found[f"folded {to} += {origin}"] = went(to, origin, 1, 4 if "host" in (to, origin) else 12)
            found[f"copied {copy} {to} ({origin})"] = went(to, origin, 0, 4)
        found["copied GPU -> host"] = went("host", "GPU", 0, 4)
        if dtype == "int8":  # whether it is right: sums wrap around
            pattern = np.arange(whole, dtype=np.uint32).astype(np.int8)
            host_of["from"][:], host_of["to"][:] = pattern, 3
            went("host", "host", 1, 1)
            found["right"] = float(np.array_equal(host_of["to"], pattern + np.int8(3)))
    finally:
        ctypes.c_uint64.from_address(life.over).value = life.number
        stream.synchronize()
    lib.optcc_gpu_look(handle, c_uint64(time.monotonic_ns()))
    found["gone"] = float(lib.optcc_gpu_gone(handle) == 0)
    return found


def kernel_part() -> None:
    """A process of its own: `--kernel`."""
    import cupy

    for gpu, blocks, part, dtype, job in (
        (0, 16, 128, "float32", 1024),
        (0, 16, 128, "float32", 128),
        (0, 4, 128, "float32", 1024),
        (0, 8, 128, "float32", 1024),
        (0, 32, 128, "float32", 1024),
        (0, 64, 128, "float32", 1024),
        (0, 16, 64, "float32", 1024),
        (0, 16, 32, "float32", 1024),
        (0, 16, 128, "bfloat16", 1024),
        (0, 16, 128, "int8", 1024),
        (cupy.cuda.runtime.getDeviceCount() - 1, 16, 128, "float32", 1024),
    ):
        about = dict(zip(TRIED, (gpu, blocks, part, dtype, job), strict=True))
        try:
            say(kernel=about, found=kernel_alone(gpu, blocks, part << 10, dtype, job << 10))
        except Exception as error:  # the next one says more
            say(kernel=about, failed=f"{type(error).__name__}: {error}")


# --- a rank --------------------------------------------------------------------------------------------------------


class Rank:
    """One process: a node."""

    def __init__(self, rank: int, folder: Path, part: str) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.rank, self.meetings = torch, dist, rank, 0
        self.device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        self.store = dist.FileStore(str(folder / "store"), RANKS)
        # With a device torch would split groups off this one, which have no CollNet of their own.
        device = {} if part == "two" else {"device_id": self.device}
        dist.init_process_group("nccl", store=self.store, rank=rank, world_size=RANKS, **device)
        say(about=f"torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, "
            f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(self.device)}")  # fmt: skip
        self.index = torch.arange(16 * MIB, device=self.device) % 89

    def meet(self, limit_s: float = GIVEN_UP_S) -> None:
        """Wait for all ranks, out of NCCL's sight."""
        self.meetings += 1
        name, bound = f"meeting {self.meetings}", time.monotonic() + limit_s
        self.store.add(name, 1)
        while self.store.add(name, 0) < RANKS:
            if time.monotonic() > bound:
                self.hung(f"not all ranks came to {name}")
            time.sleep(1e-3)

    def hung(self, where: str) -> None:
        say(hung=where)
        faulthandler.dump_traceback()
        os._exit(3)

    def wait(self, where: str, limit_s: float = GIVEN_UP_S) -> None:
        """For what the current stream has been given."""
        done = self.torch.cuda.Event()
        done.record()
        until = time.monotonic() + limit_s
        while not done.query():
            if time.monotonic() > until:
                self.hung(where)
            time.sleep(2e-5)

    def warm(self, dtypes: Sequence[Any], group: Any = None) -> None:
        """Until the kernels of these types are compiled: those calls are the processor's."""
        for turn in range(2):
            for dtype in dtypes:
                self.dist.all_reduce(self.torch.ones(MIB, device=self.device, dtype=dtype), group=group)
                self.wait(f"warming {dtype}")
            self.meet()
            time.sleep(COMPILED_S / 2 * (1 + len(dtypes) / 3) if turn == 0 else 0)

    def run(self, part: str) -> None:
        self.meet(START_S)
        getattr(self, part)()
        self.meet()
        self.dist.destroy_process_group()
        say(ended=part)

    def exact(self) -> None:
        """All types and operations, with small whole numbers."""
        torch, ops = self.torch, self.dist.ReduceOp
        dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8,
                  torch.uint8)  # fmt: skip
        self.warm(dtypes)
        ill, count = list[str](), 0
        for dtype in dtypes:
            for op in (ops.SUM, ops.PRODUCT, ops.MIN, ops.MAX):
                for size in (1, 1000, 300_001, 3_000_017):
                    index, low = torch.arange(size, device=self.device), int(op == ops.PRODUCT)
                    all_of = [((index * 7 + rank * 13) % (3 - low) + low).to(dtype) for rank in range(RANKS)]
                    mine, right = all_of[self.rank].clone(), all_of[0].clone()
                    for one in all_of[1:]:
                        if op == ops.SUM:
                            right = right + one
                        elif op == ops.PRODUCT:
                            right = right * one
                        else:
                            right = (torch.minimum if op == ops.MIN else torch.maximum)(right, one)
                    self.dist.all_reduce(mine, op)
                    self.wait(f"{dtype}, {op}, {size}")
                    count += 1
                    ill += [] if torch.equal(mine, right) else [f"{dtype} {op} {size}"]
        say(what=", ".join(["8 types, 4 operations, 4 sizes", *ill]), count=count, wrong=len(ill))

    def reduce_beside(self, what: str, calls: int, beside: Callable[[int], None], numel: int = MIB) -> None:
        """AllReduces, each checked, beside something: what goes wrong is counted on the GPU."""
        torch = self.torch
        expected = (self.index[:numel] * RANKS + sum(range(RANKS))).float()
        wrong = torch.zeros(1, device=self.device, dtype=torch.int64)
        buffer = torch.empty_like(expected)
        self.meet()
        begun = time.monotonic()
        for call in range(calls):
            torch.add(self.index[:numel], self.rank, out=buffer)
            work = self.dist.all_reduce(buffer, async_op=True)
            beside(call)
            work.wait()
            wrong += (buffer != expected).any()
            if call % 8 == 7:
                self.wait(f"{what}, call {call}")
        self.wait(what)
        took = (time.monotonic() - begun) / calls
        say(what=what, count=calls, wrong=int(wrong.item()), ms_each=took * 1e3)

    def products(self) -> Callable[[int], None]:
        """What gives the GPU two matrix products on another stream."""
        torch = self.torch
        side = torch.cuda.Stream()
        left = torch.randn(4096, 4096, device=self.device, dtype=torch.bfloat16)

        def give(call: int) -> None:
            with torch.cuda.stream(side):
                for _ in range(2):
                    torch.mm(left, left)

        return give

    def beside(self) -> None:
        """Matrix products, and memory given back while a collective runs."""
        torch = self.torch
        self.warm((torch.float32,))
        products = self.products()

        def frees(call: int) -> None:
            products(call)
            if call % 3 == 0:
                block = torch.empty((call % 7 + 1) * 8 * MIB, device=self.device, dtype=torch.uint8)
                del block
                torch.cuda.empty_cache()
            if call % 5 == 0:
                torch.cuda.synchronize()

        self.reduce_beside("alone, 4 MiB", 200, lambda call: None)
        self.reduce_beside("products, empty_cache, synchronize, 4 MiB", 1000, frees)
        self.reduce_beside("products, 1 MiB", 4000, products, MIB // 4)
        self.reduce_beside("products, 4 MiB", 5000, products)
        self.reduce_beside("products, 32 MiB", 30, products, 8 * MIB)

    def loads(self) -> None:
        """Kernels that torch compiles and loads for the first time while a collective runs."""
        torch = self.torch
        self.warm((torch.float32,))
        fresh = iter([name for name in dir(torch.special) if not name.startswith("_")])

        def load(call: int) -> None:
            one: Any = getattr(torch.special, next(fresh, ""), None)
            with suppress(TypeError, RuntimeError, ValueError):  # it wants other arguments
                one(torch.rand(1000, device=self.device, dtype=torch.float64))

        self.reduce_beside("kernels loaded for the first time, 4 MiB", 20, load)

    def graphs(self) -> None:
        torch = self.torch
        self.warm((torch.float32,))
        products = self.products()
        expected = (self.index[:MIB] * RANKS + sum(range(RANKS))).float()
        buffer, kept = torch.empty_like(expected), torch.empty_like(expected)
        graph = torch.cuda.CUDAGraph()
        self.meet()
        with torch.cuda.graph(graph):
            torch.add(self.index[:MIB], self.rank, out=buffer)
            self.dist.all_reduce(buffer)
            kept.copy_(buffer)
        wrong, replays = 0, 300
        for call in range(replays):
            graph.replay()
            products(call)
            self.wait(f"replay {call}")
            wrong += not torch.equal(kept, expected)
            if call % 3 == 2:  # a call that is no replay
                other = (self.index[:MIB] + self.rank).float()
                self.dist.all_reduce(other)
                self.wait(f"between replays {call}")
                wrong += not torch.equal(other, expected)
        say(what="products; replays, and calls between them, 4 MiB", count=replays + replays // 3, wrong=wrong)
        del graph

    def two(self) -> None:
        """Two communicators on streams of their own, both at once."""
        torch, dist = self.torch, self.dist
        groups = [dist.new_group(list(range(RANKS))) for _ in range(2)]
        for group in groups:
            self.warm((torch.float32,), group)
        streams = [torch.cuda.Stream() for _ in groups]
        expected = (self.index[: 2 * MIB] * RANKS + sum(range(RANKS))).float()
        wrong = torch.zeros(2, device=self.device, dtype=torch.int64)
        buffers = [torch.empty_like(expected) for _ in groups]
        torch.cuda.synchronize()
        self.meet()
        turns = 100
        for call in range(turns):
            for number in (0, 1):
                with torch.cuda.stream(streams[number]):
                    torch.add(self.index[: 2 * MIB], self.rank, out=buffers[number])
                    dist.all_reduce(buffers[number], group=groups[number])
                    wrong[number] += (buffers[number] != expected).any()
            if call % 8 == 7:
                for stream in streams:
                    with torch.cuda.stream(stream):
                        self.wait(f"call {call} of two communicators")
        torch.cuda.synchronize()
        say(what="two communicators, 8 MiB", count=2 * turns, wrong=int(wrong.sum().item()))

    def times(self) -> None:
        """Milliseconds of an AllReduce, and of the process's processors in it."""
        self.warm((self.torch.float32,))
        for nbytes in (4 * MIB, 16 * MIB, 64 * MIB):
            buffer = self.torch.ones(nbytes // 4, device=self.device)
            took, calls = [], 12
            used = 0.0
            for call in range(calls + 2):
                self.meet()
                before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
                self.dist.all_reduce(buffer)
                self.wait(f"{nbytes} bytes")
                took.append(time.perf_counter() - begun)
                after = resource.getrusage(resource.RUSAGE_SELF)
                if call > 1:
                    used += after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            figures = {"ms": median(took[2:]) * 1e3, "processor_ms": used / calls * 1e3}
            say(what=f"{nbytes >> 20} MiB", count=calls, wrong=0, **figures)


# --- all of them ---------------------------------------------------------------------------------------------------


def start(rank: int, part: str, folder: Path, more: dict[str, str]) -> subprocess.Popen[bytes]:
    env = {
        **os.environ, "NCCL_HOSTID": f"node{rank}", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "=lo", "NCCL_SOCKET_FAMILY": "AF_INET", "NCCL_NET": "optcc",
        "NCCL_NET_PLUGIN": str(PLUGIN), "NCCL_COLLNET_ENABLE": "1", "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING",
        "NCCL_DEBUG_FILE": str(folder / f"nccl-{rank}"), "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "OPTCC_COLLNET": "always",
        "OPTCC_COLLNET_BYTES": "65536", "OPTCC_NICS": f"127.0.{rank + 1}.2,127.0.{rank + 1}.3", "OPTCC_RATES": "40,40",
        "PYTHONFAULTHANDLER": "1", "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path])), **more,
    }  # fmt: skip
    command = [sys.executable, __file__, "--rank", str(rank), "--part", part, "--folder", str(folder)]
    with (folder / f"out-{rank}").open("wb") as out, (folder / f"err-{rank}").open("wb") as err:
        return subprocess.Popen(command, env=env, stdout=out, stderr=err)


def stacks(process: subprocess.Popen[bytes]) -> None:
    """Where a process is: into its standard error, and by py-spy where that is."""
    if shutil.which("py-spy"):
        told = subprocess.run(["py-spy", "dump", "--native", "--pid", str(process.pid)], capture_output=True, text=True,
                              timeout=20, check=False)  # fmt: skip
        print(told.stdout[-5000:], told.stderr[-500:], flush=True)
    process.send_signal(signal.SIGABRT)  # faulthandler tells all threads


@dataclass
class Outcome:
    """What a part has shown."""

    title: str
    wrong: bool = False
    about: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)  # of rank 0, with the worst of all ranks' figures
    sums: list[dict[str, float]] = field(default_factory=list)  # of each communicator of each rank
    seconds: float = 0.0

    def say(self) -> None:
        print(f"  {self.seconds:.0f} s; {self.about}", flush=True)
        for row in self.rows:
            print("  ", ", ".join(f"{name} {shown(value)}" for name, value in row.items()), flush=True)
        for one in self.sums:
            print("    sums:", ", ".join(f"{name} {value:g}" for name, value in one.items()), flush=True)


def shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


SUMS = re.compile(
    r"sums: ([\d.]+) MB by the GPU in (\d+) kernels, ([\d.]+) MB by the processor; (\d+) jobs of kernels that had "
    r"gone; (\d+) launches for graphs and (\d+) others without a kernel, (\d+) kernels that came late, "
    r"(\d+) that left with nothing to do"
)
SUMS_ARE = (
    "MB by the GPU",
    "kernels",
    "MB by the processor",
    "jobs left",
    "launches for graphs",
    "without",
    "late",
    "idle",
)


def read_part(title: str, folder: Path, codes: Sequence[int | None], asks_gpu: bool) -> Outcome:
    """From what ranks, torch and NCCL wrote."""
    texts = [(folder / f"out-{rank}").read_text(errors="replace") for rank in range(RANKS)]
    lines = [[json.loads(line) for line in text.splitlines() if line[:1] == "{"] for text in texts]
    logs = [path.read_text(errors="replace") for path in sorted(folder.glob("nccl-*"))]
    part = Outcome(title, about=next((line["about"] for line in lines[0] if "about" in line), "did not start"))
    for line in lines[0]:
        if "what" in line:
            all_of = [one for of in lines for one in of if one.get("what") == line["what"]]
            part.rows.append({**line, **{name: max(one[name] for one in all_of) for name in line if name != "what"}})
            part.rows[-1]["wrong"] = sum(one["wrong"] for one in all_of)
            part.wrong |= part.rows[-1]["wrong"] != 0 or len(all_of) < RANKS
    for told in SUMS.findall("\n".join(logs)):
        part.sums.append(dict(zip(SUMS_ARE, map(float, told), strict=True)))
    hung = [f"rank {rank}: {line['hung']}" for rank, of in enumerate(lines) for line in of if "hung" in line]
    trouble = [f"HUNG: {text}" for text in hung]
    if list(codes) != [0] * RANKS:
        trouble.append(f"ranks ended with {codes}")
    if asks_gpu and not any(one["MB by the GPU"] for one in part.sums):
        trouble.append("NOTHING was added by the GPU")
    if trouble:
        part.wrong = True
        part.about = "; ".join([part.about, *trouble])
    if part.wrong:
        for rank in range(RANKS):
            tail = (folder / f"err-{rank}").read_text(errors="replace").splitlines()[-45:]
            said = [line for line in (logs[rank].splitlines() if rank < len(logs) else []) if "optcc" in line][-12:]
            print(f"  rank {rank}:", *tail, *said, sep="\n    ", flush=True)
    return part


def run_part(title: str, part: str, limit_s: float, folder: Path, more: dict[str, str]) -> Outcome:
    folder.mkdir(parents=True)
    begun = time.monotonic()
    ranks = [start(rank, part, folder, more) for rank in range(RANKS)]
    try:
        while any(one.poll() is None for one in ranks) and time.monotonic() - begun < limit_s:
            if any(one.poll() not in (None, 0) for one in ranks):
                time.sleep(GIVEN_UP_S / 4)  # the others may say something, too
                break
            time.sleep(0.05)
        codes = [one.poll() for one in ranks]
        for one in ranks:
            if one.poll() is None:
                stacks(one)
        time.sleep(1 if None in codes else 0)
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    found = read_part(title, folder, codes, "OPTCC_GPU" not in more)
    found.seconds = time.monotonic() - begun
    found.say()
    return found


def run_kernel(limit_s: float) -> list[dict[str, Any]]:
    """Lines of `kernel_part`; the last one says so where it did not end."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, "--kernel"]
    alone = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)
    try:
        text, ended = alone.communicate(timeout=limit_s)[0], alone.returncode == 0
    except subprocess.TimeoutExpired:
        alone.kill()
        text, ended = alone.communicate()[0], False
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines() if line[:1] == "{"]
    lines += [] if ended else [{"kernel": {}, "failed": "it did not end well"}]
    for line in lines:
        print("  ", json.dumps(line), flush=True)
    return lines


PARTS: tuple[tuple[str, str, float, dict[str, str]], ...] = (
    ("beside other work", "beside", 120, {}),
    ("all types and operations", "exact", 45, {}),
    ("CUDA graphs", "graphs", 40, {}),
    ("times", "times", 40, {}),
    ("times, processor alone", "times", 40, {"OPTCC_GPU": "off"}),
    ("two communicators", "two", 30, {}),
    ("two communicators, 8 connections", "two", 30, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    ("kernels are loaded", "loads", 40, {}),
    ("kernels are loaded, processor alone", "loads", 40, {"OPTCC_GPU": "off"}),
)
TRIED = ("GPU", "blocks", "parts, KiB", "type", "jobs, KiB")
ADDED = ("folded GPU += GPU", "folded GPU += host", "folded host += host", "copied GPU -> host")


def page(kernel: list[dict[str, Any]], parts: list[Outcome], left_out: list[str], gpus: int) -> list[str]:
    count = sum(row["count"] for part in parts for row in part.rows)
    wrong = sum(row["wrong"] for part in parts for row in part.rows)
    about = next((part.about for part in parts if not part.wrong), "")
    lines = [
        "# Sums on the GPU under NCCL",
        "",
        f"Made by `python3 -m benchmarks.bench_nccl_gpu`: {RANKS} ranks of stock torch, each a node of its own with",
        f"two NICs of loopback (TCP), on {gpus} GPUs{', shared by MPS' if gpus < RANKS else ''}; AllReduce goes by",
        f"[CollNet](nccl.md#allreduce-by-plans). {about}.",
        "No real NIC, no GPUDirect, no NVLS, one GPU to a node.",
        "",
        "## Right, beside other work",
        "",
        f"{count} AllReduces, {wrong} results of ranks wrong. Every one is checked at every rank.",
        "*Products*: two matrix products of 4096 x 4096 beside each call, on another stream.",
        "",
        *table(
            ("part", "calls", "", "wrong", "ms a call", "result"),
            [
                (part.title, row["count"], row["what"], row["wrong"], shown(row.get("ms_each", "")),
                 part.about if part.wrong else "ended")
                for part in parts for row in part.rows or [{"count": 0, "what": "", "wrong": ""}]
                if "processor_ms" not in row
            ],
        ),
        *[f"Not run, for want of time: {title}." for title in left_out],
        "",
        "## Who added",
        "",
        "Of all ranks and communicators together, warming up included. *Late*: began after NCCL's kernel had ended.",
        "*Without*: launches before the kernel was compiled, or with dozens of kernels waiting.",
        "",
        *table(
            ("part", "GB by GPUs", "by processors", "GPUs' share", "kernels", "late", "launches for graphs", "without"),
            [added(part) for part in parts if part.sums],
        ),
        "",
        "## Times",
        "",
        "Of a call by itself; medians of 12, the slowest rank; and of all the rank's processors in it.",
        "The ranks' bytes and sums share the processors of one machine.",
        "",
        *table(
            ("who adds", "size", "ms", "ms of processors"),
            [
                ("processor" if "alone" in part.title else "GPU", row["what"],
                 *map(shown, (row["ms"], row["processor_ms"])))
                for part in parts for row in part.rows if "processor_ms" in row
            ],
        ),
        "",
        "## The kernel alone",
        "",
        "GB/s of folded or copied bytes, of jobs that a script gives without NCCL, one process to the GPU. *host* is",
        "page-locked memory of the host, which the GPU reads over PCIe: under NCCL all sums are of two such buffers.",
        "",
        *table(
            (*TRIED, *ADDED, ""),
            [
                (*(line["kernel"].get(name, "") for name in TRIED),
                 *(shown(line.get("found", {}).get(name, "")) for name in ADDED), line.get("failed", ""))
                for line in kernel
            ],
        ),
    ]  # fmt: skip
    return [*lines, "", made_with()]


def added(part: Outcome) -> tuple[Any, ...]:
    total = {name: sum(one[name] for one in part.sums) for name in SUMS_ARE}
    gpu, processor = total["MB by the GPU"] / 1e3, total["MB by the processor"] / 1e3
    share = f"{gpu / (gpu + processor):.0%}" if gpu + processor else ""
    counts = (f"{total[name]:.0f}" for name in ("kernels", "late", "launches for graphs", "without"))
    return (part.title, f"{gpu:.1f}", f"{processor:.1f}", share, *counts)


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser(__doc__, "bench-nccl-gpu")
    asked.add_argument("--budget-s", type=float, default=228.0, help="parts that do not begin in so long are left out")
    asked.add_argument("--only", help="parts, such as kernel,beside,graphs; no page is written")
    asked.add_argument("--logs", type=Path, help="keep what ranks and NCCL wrote in this folder")
    asked.add_argument("--kernel", action="store_true", help=argparse.SUPPRESS)
    asked.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    asked.add_argument("--part", help=argparse.SUPPRESS)
    asked.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = asked.parse_args(arguments)
    if given.kernel:
        kernel_part()
        return 0
    if given.rank is not None:
        Rank(given.rank, given.folder, given.part).run(given.part)
        return 0
    for needed in (PLUGIN, ENGINE):
        if not needed.exists():
            print(f"cannot run here: no {needed}: make native", file=sys.stderr)
            return 2
    from benchmarks.bench_nccl import shared_gpus

    only = given.only.split(",") if given.only else None
    begun, parts, left_out = time.monotonic(), list[Outcome](), list[str]()
    kernel: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        if only is None or "kernel" in only:
            print("the kernel alone, GB/s", flush=True)
            kernel = run_kernel(45)
        with shared_gpus(RANKS) as gpus:
            print(f"{gpus} GPUs for {RANKS} ranks", flush=True)
            for number, (title, part, limit_s, more) in enumerate(PARTS):
                left_s = given.budget_s - (time.monotonic() - begun)
                if only is not None and part not in only:
                    continue
                if left_s < 20:
                    print(f"not run, for want of time: {title}", flush=True)
                    left_out.append(title)
                    continue
                print(f"{time.monotonic() - begun:.0f} s: {title}", flush=True)
                folder = (given.logs or Path(name)) / f"{number}-{part}"
                try:
                    parts.append(run_part(title, part, min(limit_s, left_s), folder, more))
                except Exception as error:  # the next part may say more
                    parts.append(Outcome(title, wrong=True, about=f"{type(error).__name__}: {error}"))
                    parts[-1].say()
    if only is None:
        write(given.output, page(kernel, parts, left_out, gpus), lambda cells: cells["type"] in ("", "float32"))
    ill = [
        line for line in kernel if "failed" in line or line["found"]["gone"] != 1 or line["found"].get("right", 1) != 1
    ]
    return 1 if ill or any(part.wrong for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main())
