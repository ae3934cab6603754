"""Processor time per chunk of the runtime, by part. Writes docs/bench-chunk.md.

Every chunk is sent once and received once; its processor time is that of all ranks over the number of chunks. Which
part takes it is sampled (`chunk_parts`).
Exit status 1 when a result is wrong or a chunk takes more than the target.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

import optcc
from benchmarks.bare_compiled import Quiet
from benchmarks.bench_steady import KINDS, OVER, Silence
from benchmarks.pages import made_with, parser, write
from optcc.runtime.compiled.compiling import compile_all
from optcc.runtime.compiled.engine import CompiledEngine
from optcc.runtime.compiled.path import CompiledPath
from optcc.runtime.devices.host import Op, empty
from optcc.runtime.devices.memory import HostMemory
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import program_of
from optcc.runtime.evidence.payload import fill, is_exact, reference
from optcc.runtime.measuring.virtual_run import VirtualRun
from optcc.runtime.wires.layout import layout_of
from optcc.runtime.wires.pacing import Rates
from optcc.runtime.wires.rings import order
from optcc.schedule import Schedule
from optcc.values.units import format_size, parse_size
from tests.loop_runs import LoopRun

SAMPLE_S = 0.001
PARTS = ("engine", "flows, protocol", "wires", "copies, folds")
OTHER = "other"
_PART_OF = {
    **dict.fromkeys(("loop", "priority", "program"), PARTS[0]),
    **dict.fromkeys(("local", "local_ends", "rings", "pacing", "virtual"), PARTS[2]),
    **dict.fromkeys(("slots", "host", "memory", "float_bits"), PARTS[3]),
    **dict.fromkeys(("flows", "send_path", "receive_path", "shares", "ends", "straggler_monitor"), PARTS[1]),
    **dict.fromkeys(("path_failover", "suspicion", "progress_watchdog", "timeouts", "symmetry_classes"), PARTS[1]),
    **dict.fromkeys(
        ("steady", "sender", "receiver", "doubting", "table", "events", "columns", "bare_compiled"), PARTS[1]
    ),
}
"""By module. What lands in a slot is copied by `slots`, what leaves it by `memory` and `device`."""


class Sampler:
    """Counts in which part the processor is, while it is entered."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        signal.signal(signal.SIGPROF, self._look)

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _: int, frame: FrameType | None) -> None:
        while frame is not None:
            code = frame.f_code
            part = PARTS[3] if code.co_name in _AFTER_BYTES else _PART_OF.get(Path(code.co_filename).stem)
            if part:
                self.seen[part] += 1
                return
            frame = frame.f_back
        self.seen[OTHER] += 1


def _tick() -> None:
    """A call, so that Python hears of the timer before it leaves the part."""


def noticed(work: Callable[..., None]) -> Callable[..., None]:
    """The same work, and a sample that was due in it counts for it."""

    def ticked(*args: Any) -> None:
        work(*args)
        _tick()

    return ticked


_AFTER_BYTES = ("_tick", "ticked", order.__name__)
"""The functions that are called when bytes have been copied or folded."""


class Noticed(HostMemory):
    """Host memory whose copies and folds are seen by the sampler."""

    fold = staticmethod(noticed(HostMemory.fold))
    copy = staticmethod(noticed(HostMemory.copy))


class VerbsCosts(NamedTuple):
    """Processor seconds per chunk, of each run: in all; of folds, copies and the device; whether all was right."""

    all_s: list[float]
    bytes_s: list[float]
    exact: bool


def verbs_costs(schedule: Schedule, slot_bytes: int, chunks: int, repeat: int, timed_each: int) -> VerbsCosts:
    """Of so many runs, after one that warms up. chunks : sent by all ranks in a run."""
    compile_all(over="verbs")
    dtype = np.dtype(np.float32)
    starts = [np.empty(schedule.nbytes // dtype.itemsize, dtype) for _ in range(schedule.ranks)]
    for rank, start in enumerate(starts):
        fill(start, rank=rank, ranks=schedule.ranks, op=Op.SUM)
    expected = reference(len(starts[0]), dtype, ranks=schedule.ranks, op=Op.SUM)
    buffers = [start.copy() for start in starts]
    costs = VerbsCosts([], [], exact=True)
    with LoopRun(schedule, slot_bytes) as ranks:
        for run in range(repeat + 1):
            for buffer, start in zip(buffers, starts, strict=True):
                buffer[:] = start
            for path in ranks.paths:
                path.timing, path.bytes_s, path.clock_s, path.chunks = timed_each, 0.0, 0.0, 0
            device_s = ranks.device.device_s()
            cpu_s = ranks.run(buffers, Op.SUM, compiled=True)
            if run:
                costs.all_s.append((cpu_s - sum(path.clock_s for path in ranks.paths)) / chunks)
                bytes_s = sum(path.bytes_s for path in ranks.paths) + ranks.device.device_s() - device_s
                costs.bytes_s.append(bytes_s / chunks)
            exact = all(is_exact(buffer, expected) for buffer in buffers) and ranks.device.starved() == 0
            exact &= sum(path.chunks for path in ranks.paths) > 1.9 * chunks
            costs = costs._replace(exact=costs.exact and exact)
    return costs


RANKS, SIZE, DTYPE = 4, 64 * 2**20, np.dtype(np.float32)
SIZES = (64 * 2**10, 256 * 2**10, 2**20)
"""Bytes of a chunk; a transfer is one chunk, so that the engine's part is in it, too."""
TARGET_S = 5e-6
TARGET_FROM = 256 * 2**10
TIMED_EACH = 7
"""Each so-manyth copy or fold of a timed run is timed. A prime, so that all kinds are hit; few, because the clock is a
call of the kernel."""
ABLE, BARE, COMPILED, TIMED = range(4)
"""Kinds of runs: Python, able to fail over, and not; compiled, and the same with its copies and folds timed."""


class Ran(NamedTuple):
    """A rank's part of one run: seconds of processor without the clock's, and all that has been sampled by now in runs
    of its kind.

    bytes_s : of these seconds, in copies and folds; chunks : sent and taken by compiled code
    """

    kind: int
    cpu_s: float
    seen: dict[str, int]
    exact: bool
    bytes_s: float
    chunks: int


def rank_main(rank: int, schedule: Schedule, slot_bytes: int, pairs: int, pipe: Connection) -> None:
    """All kinds in turns, there and back."""

    def exchange(value: Any) -> list[Any]:
        pipe.send(value)
        return list(pipe.recv())

    layout = layout_of({"it": schedule}, slot_bytes)
    rates = [Rates(math.inf, math.inf)] * len(layout.nics)
    program = program_of(schedule, rank, DTYPE.itemsize)
    wires = Quiet(rank, layout.wires, layout.flows, rates, exchange=exchange, watch=Silence())
    for far in wires._far.values():
        far.put = noticed(far.put)  # type: ignore[method-assign]
    routes = {"it": schedule.routes}
    both = [kind(rank, layout, routes, wires, lambda *_: None, time.monotonic) for kind, _ in KINDS]
    path = CompiledPath(both[ABLE], wires)
    samplers = [Sampler() for _ in KINDS]
    start = empty(schedule.nbytes // DTYPE.itemsize, DTYPE)
    fill(start, rank=rank, ranks=RANKS, op=Op.SUM)
    expected = reference(len(start), start.dtype, ranks=RANKS, op=Op.SUM)
    buffer = start.copy()
    there = (ABLE, BARE, COMPILED, TIMED)
    for kind in [*there, *(kind for pair in range(pairs) for kind in (there if pair % 2 else there[::-1]))]:
        buffer[:] = start
        flows = both[kind == BARE]
        wires.acknowledges = KINDS[kind == BARE][1]
        flows.begin("it", program.receives)
        path.timing, path.bytes_s, path.clock_s, path.chunks = TIMED_EACH * (kind == TIMED), 0.0, 0.0, 0
        if kind in (COMPILED, TIMED):
            engine: Engine = CompiledEngine(path, program, buffer, Op.SUM, flows, time.monotonic)
            sampler: Any = nullcontext()
        else:
            engine = Engine(program, buffer, Op.SUM, flows, time.monotonic, Noticed())
            sampler = samplers[kind]
            signal.signal(signal.SIGPROF, sampler._look)
        exchange(None)
        cpu = time.process_time()
        with sampler:
            engine.run()
        cpu = time.process_time() - cpu
        seen = dict(samplers[kind].seen) if kind < COMPILED else {}
        exchange(Ran(kind, cpu - path.clock_s, seen, is_exact(buffer, expected), path.bytes_s, path.chunks))
        flows.poll(0.0, engine.take)  # the last credits, so that the other does not hear of them
    exchange(OVER)


def runs(schedule: Schedule, slot_bytes: int, pairs: int) -> Iterator[list[Ran]]:
    """All ranks' parts of every run but the first of each kind."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(RANKS)]
    ranks = [
        context.Process(target=rank_main, args=(rank, schedule, slot_bytes, pairs, pipes[rank][1]), daemon=True)
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    warm_up = 4
    while True:
        values: list[Any] = []
        for pipe, _ in pipes:
            if not pipe.poll(60):
                raise SystemExit("a rank does not answer")
            values.append(pipe.recv())
        for pipe, _ in pipes:
            pipe.send(values)
        if values[0] == OVER:
            break
        if isinstance(values[0], Ran):
            warm_up -= 1
            if warm_up < 0:
                yield values
    for process in ranks:
        process.join()


@dataclass
class Cost:
    """Processor seconds per chunk, and how often the processor was found in each part."""

    chunk_s: float
    seen: Counter[str]
    exact: bool

    @property
    def beside_bytes_s(self) -> float:
        """Of a chunk, without copying and folding its bytes."""
        return self.chunk_s * (1 - self._part(PARTS[3]))

    @property
    def error_s(self) -> float:
        """Of `beside_bytes_s`: the standard error of what is sampled."""
        part = self._part(PARTS[3])
        return self.chunk_s * math.sqrt(part * (1 - part) / (self.seen.total() or 1))

    def cells(self) -> list[str]:
        """For the table."""
        parts = [f"{self.chunk_s * self._part(part) * 1e6:.1f}" for part in PARTS]
        beside = f"**{self.beside_bytes_s * 1e6:.1f}** +- {self.error_s * 1e6:.1f}"
        return [f"{self.chunk_s * 1e6:.1f}", *parts, beside, f"{1 / self.chunk_s:,.0f}"]

    def _part(self, part: str) -> float:
        return self.seen[part] / (self.seen.total() or 1)


@dataclass
class Compiled:
    """Processor seconds per chunk of the compiled path: in all; of copies and folds; beside them, of each timed run."""

    chunk_s: float
    bytes_s: float
    beside: list[float]
    exact: bool

    @property
    def beside_bytes_s(self) -> float:
        """Of a chunk, without copying and folding its bytes."""
        return median(self.beside)

    def cells(self) -> list[str]:
        """For the table: what the parts take cannot be told apart."""
        low, _, high = quantiles(self.beside)
        error_s = 1.57 * (high - low) / math.sqrt(len(self.beside))
        beside = f"**{self.beside_bytes_s * 1e6:.1f}** +- {error_s * 1e6:.1f}"
        parts = ["", "", "", f"{self.bytes_s * 1e6:.1f}"]
        return [f"{self.chunk_s * 1e6:.1f}", *parts, beside, f"{1 / self.chunk_s:,.0f}"]


def schedule_of(slot_bytes: int) -> Schedule:
    """A ring whose transfers are one chunk each."""
    cluster = optcc.Cluster.uniform(servers=RANKS, nics=1, rate=Fraction(10**9))
    return optcc.plan(cluster, SIZE, segments=SIZE // RANKS // slot_bytes).schedule()


def local_costs(slot_bytes: int, pairs: int) -> list[Any]:
    """Of local wires: Python able to fail over, and not; compiled."""
    schedule = schedule_of(slot_bytes)
    chunks = -(-int(schedule.length.sum()) // slot_bytes)
    cpu: list[list[float]] = [[] for _ in range(4)]
    copying: list[float] = []
    last: list[list[Ran]] = [[] for _ in range(4)]
    exact = True
    for ran in track(runs(schedule, slot_bytes, pairs), f"local, {format_size(slot_bytes)}", total=4 * pairs):
        kind = ran[0].kind
        cpu[kind].append(sum(r.cpu_s for r in ran) / chunks)
        last[kind] = ran
        exact &= all(r.exact for r in ran)
        if kind == TIMED:
            copying.append(sum(r.bytes_s for r in ran) / chunks)
        if kind in (COMPILED, TIMED):  # each is sent and taken
            exact &= sum(r.chunks for r in ran) > 1.9 * chunks
    sampled = [
        Cost(median(cpu[kind]), sum((Counter(r.seen) for r in last[kind]), Counter()), exact) for kind in (ABLE, BARE)
    ]
    beside = [all_s - bytes_s for all_s, bytes_s in zip(cpu[TIMED], copying, strict=True)]
    return [*sampled, Compiled(median(cpu[COMPILED]), median(copying), beside, exact)]


def verbs_cost(slot_bytes: int, repeat: int) -> Compiled:
    """Of queue pairs, compiled; what the device does counts as bytes."""
    schedule = schedule_of(slot_bytes)
    chunks = -(-int(schedule.length.sum()) // slot_bytes)
    found = verbs_costs(schedule, slot_bytes, chunks, repeat, TIMED_EACH)
    beside = [all_s - bytes_s for all_s, bytes_s in zip(found.all_s, found.bytes_s, strict=True)]
    return Compiled(median(found.all_s), median(found.bytes_s), beside, found.exact)


def row(name: str, slot_bytes: int, cost: Any) -> str:
    """Of a table."""
    return f"| {' | '.join([name, format_size(slot_bytes), *cost.cells()])} |" + ("" if cost.exact else " WRONG")


def virtual_cost(slot_bytes: int, repeat: int) -> Cost:
    """Of virtual wires: all ranks in one thread."""
    schedule = schedule_of(slot_bytes)
    starts = [empty(schedule.nbytes // DTYPE.itemsize, DTYPE) for _ in range(RANKS)]
    for rank, start in enumerate(starts):
        fill(start, rank=rank, ranks=RANKS, op=Op.SUM)
    expected = reference(len(starts[0]), DTYPE, ranks=RANKS, op=Op.SUM)
    cpu, exact, sampler = [], True, Sampler()
    for _ in track(range(repeat), f"virtual, {format_size(slot_bytes)}"):
        buffers = [start.copy() for start in starts]
        run = VirtualRun(schedule, buffers, Op.SUM, slot_bytes=slot_bytes)
        began = time.process_time()
        with sampler:
            run.run()
        cpu.append(time.process_time() - began)
        exact &= all(is_exact(buffer, expected) for buffer in buffers)
    return Cost(median(cpu) / (int(schedule.length.sum()) // slot_bytes), sampler.seen, exact)


def main() -> int:
    asked = parser(__doc__, "bench-chunk")
    asked.add_argument("--pairs", type=int, default=20)
    asked.add_argument("--chunk", help="chunks of this size alone, and no page")
    asked.add_argument("--only", choices=("local", "verbs", "virtual"), help="these wires alone, and no page")
    options = asked.parse_args()
    compile_all()
    table, ratios, over_verbs, good = [], [], [], True
    for slot_bytes in SIZES if options.chunk is None else (parse_size(options.chunk),):
        rows: list[tuple[str, Any]] = []
        if options.only in (None, "local"):
            able, bare, compiled = local_costs(slot_bytes, options.pairs)
            rows += [("local, compiled", compiled), ("local, Python", able), ("local, Python, cannot fail over", bare)]
            ratios.append(f"{able.beside_bytes_s / compiled.beside_bytes_s:.1f} at {format_size(slot_bytes)}")
            good &= compiled.beside_bytes_s <= TARGET_S or slot_bytes < TARGET_FROM
            over_verbs.append(row("local, compiled", slot_bytes, compiled))
        if options.only in (None, "verbs"):
            verbs = verbs_cost(slot_bytes, options.pairs)
            over_verbs.append(row("verbs, compiled", slot_bytes, verbs))
            good &= verbs.exact
        if options.only in (None, "virtual"):
            rows.append(("virtual", virtual_cost(slot_bytes, max(3, options.pairs // 4))))
        for name, cost in rows:
            table.append(row(name, slot_bytes, cost))
            good &= cost.exact
    page = [
        *HEAD,
        "",
        *COLUMNS,
        *table,
        "",
        f"Python takes so many times what compiled code takes, beside bytes: {', '.join(ratios)}.",
        "",
        *OVER_VERBS,
        "",
        *COLUMNS,
        *over_verbs,
        "",
    ]
    if options.only or options.chunk:
        print("\n".join(page))
    else:
        load = f"load average {os.getloadavg()[0]:.1f} at the end"
        write(options.output, [*page, *WHY, "", made_with(load)], lambda c: c["chunks"] == "256KiB")
    return 0 if good else 1


HEAD = f"""# What a chunk costs

Made by `make bench-chunk`: processor time of the runtime per chunk, sent and received, in microseconds.
A ring of {RANKS} ranks with one NIC each, {format_size(SIZE)} of float32 per rank, rates without a limit, \
every transfer one chunk.
Samples of the processor's time tell its parts; `beside bytes` is all but copies and folds, +- the standard error of \
sampling, of compiled code the 95 % interval of the median over runs (each {TIMED_EACH}th copy and fold is timed).
The target is {TARGET_S * 1e6:g} us from {format_size(TARGET_FROM)} on, over local wires.
`cannot fail over` is Python without acknowledgements, protocol machines, chunks kept to be sent again, or timers.
All local rows run in the same processes in turns; virtual wires emulate NICs of 8Gb/s, all ranks in one thread.
""".splitlines()
COLUMNS = f"""| wires | chunks | in all | {" | ".join(PARTS)} | beside bytes | chunks/s of a core |
|---|---|---|{"---|" * (len(PARTS) + 3)}""".splitlines()
OVER_VERBS = """## Over verbs

The same loop over queue pairs, whose devices are played: to post a write copies memory and puts a record into a \
queue, which counts with the folds.
So this is what posting, polling and all else cost the runtime, beside what a real device and its driver take.
""".splitlines()
WHY = """While nothing fails, a rank's part of engine, flows, protocol and wires is one function that numba compiles \
(`optcc/runtime/compiled/loop.py`), over local wires and over queue pairs; whatever else there is to do it leaves to \
Python, some 0.1 ms a turn, of which an operation without faults has one, and one more every eighth of a second.
What is left beside bytes, above some 2 us, grows with the bytes: caches, sleeping and waking.
Chunks of virtual wires, float16 and bfloat16 in host memory, and all chunks of a rank while a lane is slow or a flow \
is tested go by Python.
""".splitlines()


if __name__ == "__main__":
    sys.exit(main())
