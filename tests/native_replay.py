"""The native engine played whole from a seed: real schedules, virtual NICs, faults, exact results.

``python -m tests.native_replay SEED ...`` plays seeds again and says what happened; ``--sanitize`` does so with
AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from ctypes import POINTER, byref, c_double, c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import optcc
from optcc.errors import InputError
from optcc.planner.search import candidate_families
from optcc.plans.plan import Plan
from optcc.runtime.devices.host import BFLOAT16, Array, Op, dtype_of, fold, narrow
from optcc.runtime.native.library import (
    COUNTERS,
    NEVER,
    OPS,
    TYPES,
    Call,
    Config,
    Counters,
    ResultOf,
    ShmConfig,
    Until,
    WireEnds,
    declare,
    open_program,
    struct,
)
from optcc.schedule import Schedule
from optcc.schedule.columns import BESIDE
from optcc.schedule.whole import WholeVectors, digit_lists
from optcc.values.cluster import Cluster
from tests.native_build import build

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

OK, AGAIN, LOST, BAD, MEMORY, LATE, DIFFERS = ResultOf
RESULTS = tuple(result.name.lower() for result in ResultOf)
DIE, RETURN, MUTE, UNMUTE, RATE, PAUSE, RESUME, KILL = range(8)
MAGIC, VERSION = 0x0CC70A11, 3  # OPTCC_MAGIC, OPTCC_VERSION
DATA, HELLO, PROBE, ALIVE, NOTICE, KNOCK, WELCOME, GIVEUP = range(1, 9)
SPAN = 256


Weather = struct(
    "Weather",
    *((name, c_uint64) for name in ("seed", "latency_ns", "jitter_ns")),
    *((name, c_uint32) for name in ("lost", "doubled")),
)
Frame = struct(
    "Frame",
    ("magic", c_uint32),
    ("version", c_uint8),
    ("kind", c_uint8),
    ("lane", c_uint16),
    ("from_", c_uint32),
    ("to", c_uint32),
    ("job", c_uint64),
    ("epoch", c_uint32),
    ("word", c_uint32),
    ("begun", c_uint64),
    ("floor", c_uint64),
    ("landed", c_uint64 * (SPAN // 64)),
    ("seq", c_uint64),
    ("operation", c_uint64),
    ("row", c_uint32),
    ("length", c_uint32),
    ("offset", c_uint64),
    ("tag", c_uint64 * 2),
)


def load(library: Path) -> Any:
    """The library, with the types of what it returns and takes."""
    lib = declare(ctypes.CDLL(str(library)))
    u32, u64, pointer = c_uint32, c_uint64, c_void_p
    for name, result, *arguments in (
        ("optcc_world_open", pointer, u32, POINTER(Weather)),
        ("optcc_world_close", None, pointer),
        ("optcc_world_nic", c_int, pointer, u32, c_double, c_double),
        ("optcc_world_wire", c_int, pointer, u32, u32, u32, u32),
        ("optcc_world_engine", c_int, pointer, POINTER(Config), POINTER(pointer)),
        ("optcc_world_task", c_int, pointer, u32, pointer, pointer, pointer, u64, c_int, c_int),
        ("optcc_world_folder", c_int, pointer, u32, pointer, u64),
        ("optcc_world_fault", c_int, pointer, u64, c_int, u32, u32, u64),
        ("optcc_world_run", c_int, pointer, u64),
        ("optcc_world_now", u64, pointer),
        ("optcc_world_touched", u64, pointer),
        ("optcc_world_done", u32, pointer, u32),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


# --- schedules: what the planner and the baselines make of a few clusters -------------------------------------------


def plans(cluster: Cluster, nbytes: int, segments: int) -> list[Plan]:
    """One plan of every family and baseline that takes the cluster; of whole vectors every number of hops."""
    bound = optcc.lower_bound(cluster, nbytes)
    found: dict[str, Plan] = {}
    for offer in candidate_families(cluster, bound):
        try:
            recipe = offer.make(segments)
            recipe.check(cluster)
            found.setdefault(recipe.family, Plan(cluster, bound, recipe))
        except InputError:  # the family asks for another kind of cluster
            continue
    first = next(iter(found.values()))
    for digits in digit_lists(len(cluster.ranks), 1)[1:]:
        found[f"whole-vectors, {digits}"] = Plan(cluster, bound, WholeVectors(digits, segments))
    return [*found.values(), first.baseline("ring")] if "ring" not in found else list(found.values())


@dataclass(eq=False)
class Ground:
    """A cluster and schedules for it; lanes between two ranks as (NIC of the lower rank, NIC of the higher one)."""

    name: str
    schedules: list[tuple[str, Schedule]]
    wires: dict[tuple[int, int], list[tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.wires = {}
        nics = [len(mine) for mine in self.nics]
        for _, schedule in self.schedules:
            for route in schedule.routes:
                pair = min(route.src, route.dst), max(route.src, route.dst)
                for lane in route.lanes:
                    ends = self.nic_of[lane.out], self.nic_of[lane.into]
                    self._add(pair, ends if route.src < route.dst else ends[::-1])
        for pair in list(self.wires):  # so that every NIC has a way to every peer
            for i in range(max(nics[pair[0]], nics[pair[1]])):
                self._add(pair, (i % nics[pair[0]], i % nics[pair[1]]))

    def _add(self, pair: tuple[int, int], ends: tuple[int, int]) -> None:
        lanes = self.wires.setdefault(pair, [])
        if ends not in lanes:
            lanes.append(ends)

    @property
    def ports(self) -> Any:
        return self.schedules[0][1].ports

    @property
    def ranks(self) -> int:
        return self.schedules[0][1].ranks

    @cached_property
    def nics(self) -> list[list[int]]:
        """Of each rank, its ports."""
        return [[p for p, port in enumerate(self.ports) if port.rank == rank] for rank in range(self.ranks)]

    @cached_property
    def nic_of(self) -> dict[int, int]:
        return {port: nic for mine in self.nics for nic, port in enumerate(mine)}

    @property
    def slowest(self) -> float:
        return float(min(min(port.out_rate, port.in_rate) for port in self.ports))

    def lanes(self, schedule: Schedule) -> Array:
        """For each route the set of its lanes, as a word."""
        words = []
        for route in schedule.routes:
            lanes = self.wires[min(route.src, route.dst), max(route.src, route.dst)]
            ends = ((self.nic_of[lane.out], self.nic_of[lane.into]) for lane in route.lanes)
            words.append(sum({1 << lanes.index(e if route.src < route.dst else e[::-1]) for e in ends}))
        return np.array(words, np.uint64)


RATE_OF_A_NIC = 10**9


def ground(name: str, cluster: Cluster, nbytes: int, segments: int) -> Ground:
    return Ground(name, [(plan.recipe.family, plan.schedule()) for plan in plans(cluster, nbytes, segments)])


def clusters() -> dict[str, Cluster]:
    def of(servers: int, nics: int) -> Cluster:
        return Cluster.uniform(servers=servers, nics=nics, rate=RATE_OF_A_NIC)

    return {
        "2 x 1": of(2, 1),
        "2 x 8, one dead": of(2, 8).degrade("server1/nic3"),
        "3 x 2": of(3, 2),
        "4 x 2, one at a third": of(4, 2).degrade("server1/nic0", Fraction(1, 3)),
        "4 x 8, two dead": of(4, 8).degrade("server1/nic0").degrade("server1/nic1"),
        "4 x 1, one at half": of(4, 1).degrade("server2/nic0", Fraction(1, 2)),
        "8 x 2, one dead": of(8, 2).degrade("server1/nic0"),
    }


@cache
def grounds() -> list[Ground]:
    """Small ones, to be played many times."""
    return [ground(name, cluster, 16384, 2) for name, cluster in clusters().items()]


# --- what is right -------------------------------------------------------------------------------------------------


def inputs(schedule: Schedule, dtype: str, op: Op, seed: int) -> list[Array]:
    """A buffer for each rank: any lost, doubled or misplaced element, and any other order of floats, shows."""
    draw, kind = np.random.default_rng(seed), dtype_of(dtype)
    buffers = []
    for _ in range(schedule.ranks):
        count = schedule.nbytes // kind.itemsize
        if kind.kind in "iu":
            made = draw.integers(0, 256, schedule.nbytes, np.uint8).view(kind)
            buffers.append(made | kind.type(1) if op is Op.PROD else made)
        else:
            numbers = draw.standard_normal(count).astype(np.float32)
            buffers.append(narrow(numbers) if kind == BFLOAT16 else numbers.astype(kind))
    return buffers


def expected(schedule: Schedule, buffers: Sequence[Array], op: Op) -> list[Array]:
    """The result by the rules of `optcc.schedule.columns`, one row after another, by numpy's folds in row order."""
    mine = [buffer.copy() for buffer in buffers]
    size = buffers[0].itemsize
    beside = Beside(schedule)
    for row in in_order(schedule):
        part = slice(int(schedule.offset[row]) // size, int(schedule.offset[row] + schedule.length[row]) // size)
        src, dst = int(schedule.src[row]), int(schedule.dst[row])
        landed = beside.sum(src, part, mine[src], op, beside.waited_for(row))
        if schedule.reduce[row] == BESIDE:
            beside.landed[row] = landed
        elif schedule.reduce[row]:
            fold(op, mine[dst][part], landed)
        else:
            mine[dst][part] = landed
    for rank, begin, stop in beside.ranges:
        part = slice(begin // size, stop // size)
        mine[rank][part] = beside.sum(rank, part, mine[rank], op, len(schedule))
    return mine


class Beside:
    """What has landed beside, and its sums, as the rules say: from the beginning for every sum, and nothing kept."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.landed: dict[int, Array] = {}
        self._rows = np.flatnonzero(schedule.reduce == BESIDE) if schedule.beside else np.zeros(0, np.int64)
        ends = schedule.offset + schedule.length
        self.ranges = sorted({(int(schedule.dst[r]), int(schedule.offset[r]), int(ends[r])) for r in self._rows})

    def waited_for(self, row: int) -> int:
        """The last row that landed beside the bytes of `row` at its sender and that it waits for; -1: none."""
        return max((int(d) for d in self._schedule.deps(row) if self._meets(int(d), row)), default=-1)

    def _meets(self, dep: int, row: int) -> bool:
        return bool(self._schedule.reduce[dep] == BESIDE) and self._schedule.offset[dep] == self._schedule.offset[row]

    def sum(self, rank: int, part: slice, own: Array, op: Op, upto: int) -> Array:
        """The rank's own elements with all up to the row `upto` that landed beside them."""
        s, size = self._schedule, own.itemsize
        mine = [r for r in self._rows.tolist() if s.dst[r] == rank and s.offset[r] == part.start * size]
        sends = [r for r in range(len(s)) if s.src[r] == rank and s.offset[r] == part.start * size]
        ends = {self.waited_for(r) for r in sends}
        total, group = own[part].copy(), list[int]()
        for row in mine:
            if row > upto:
                break
            group.append(row)
            if row in ends or row == mine[-1]:
                parts = [self.landed[r] for r in group if s.src[r] < rank]
                parts += [total, *(self.landed[r] for r in group if s.src[r] > rank)]
                total, group = parts[0].copy(), []
                for each in parts[1:]:
                    fold(op, total, each)
        return total


def in_order(schedule: Schedule) -> Iterable[int]:
    """Rows, each after what it waits for and after lower rows that reduce into some of the same bytes."""
    rows = range(len(schedule))
    before = [set(schedule.deps(row).tolist()) for row in rows]
    for rank in range(schedule.ranks):
        folds = np.flatnonzero(schedule.reduce & (schedule.dst == rank)).tolist()
        for at, row in enumerate(folds):
            begin, end = schedule.offset[row], schedule.offset[row] + schedule.length[row]
            for lower in folds[:at]:
                if schedule.offset[lower] < end and begin < schedule.offset[lower] + schedule.length[lower]:
                    before[row].add(lower)
    done: set[int] = set()
    while len(done) < len(before):
        now = [row for row in rows if row not in done and before[row] <= done]
        assert now, "the schedule waits for itself"
        for row in now:
            yield row
        done.update(now)


class Right:
    """Inputs and results of a few kinds of calls of each schedule, kept."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, Op], tuple[list[Array], list[Array]]] = {}

    def of(self, schedule: Schedule, dtype: str, op: Op) -> tuple[list[Array], list[Array]]:
        key = id(schedule), dtype, op
        if key not in self._kept:
            given = inputs(schedule, dtype, op, len(self._kept))
            self._kept[key] = given, expected(schedule, given, op)
        return self._kept[key]


RIGHT = Right()


# --- one world -----------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came of a run. wrong : (task, rank) whose result differs; touched : buffers given back too early; segments :
    that the tasks have"""

    result: str
    now_ns: int
    wrong: list[tuple[int, int]]
    touched: int
    segments: int
    counters: dict[str, int]

    @property
    def fault(self) -> str:
        """What is wrong with a run that should have ended well; empty: nothing."""
        if self.result != "ok":
            return self.result
        if self.counters["landed_segments"] != self.segments:
            return f"{self.counters['landed_segments']} segments landed of {self.segments}"
        return self.doomed_fault

    @property
    def doomed_fault(self) -> str:
        """Likewise with a run in which a rank was killed."""
        if self.result not in ("ok", "lost"):
            return self.result
        if self.wrong:
            return f"wrong results of (task, rank) {self.wrong}"
        if self.touched:
            return f"{self.touched} buffers given back too early"
        return f"{self.counters['refused']} frames refused" if self.counters["refused"] else ""


def cuts(schedule: Schedule, lanes: Array, most: int) -> Array:
    """By row, the length of its segments: as many as its lanes, or a multiple, and none longer than `most`."""
    in_turn = np.maximum(1, np.array([int(word).bit_count() for word in lanes], np.int64))[schedule.route]
    count = -(-schedule.length // most)
    rounds = -(-count // in_turn)
    even = -(-schedule.length // (rounds * in_turn))
    return np.where(count < in_turn, most, np.minimum(most, -(-even // 64) * 64))


def segments(schedule: Schedule, lanes: Array, most: int) -> int:
    """Of all its rows."""
    return int((-(-schedule.length // cuts(schedule, lanes, most))).sum())


def program(lib: Any, schedule: Schedule, rank: int, segment: int, lanes: Array) -> Any:
    """A rank's part of a schedule; `lanes` by route."""
    return open_program(lib, schedule, rank, lanes, segment)


def call(buffer: Array, dtype: str, op: Op) -> Any:
    """In place on an array."""
    return call_at(buffer.ctypes.data, dtype, op)


def call_at(address: int, dtype: str, op: Op) -> Any:
    """In place at an address."""
    return byref(Call(address, None, TYPES.index(dtype), OPS.index(op), 1))


class World:
    """Engines of all ranks of a ground over virtual wires; closed by `with`."""

    def __init__(
        self,
        lib: Any,
        ground: Ground,
        weather: dict[str, int],
        *,
        segment: int = 1024,
        window: int = 4096,
        suspect_ns: int | None = None,
    ) -> None:
        self.lib, self.ground, self.segment = lib, ground, segment
        latency = weather.get("latency_ns", 0)
        queue_ns = round((ground.ranks + 1) * (window + segment) / ground.slowest * 1e9)
        self.suspect_ns = suspect_ns or 4 * queue_ns + 20 * (latency + weather.get("jitter_ns", 0)) + 1000
        self.return_ns = 100 * self.suspect_ns
        self.job = weather["seed"] ^ 0x5EED
        self.world = lib.optcc_world_open(ground.ranks, byref(Weather(**weather)))
        self.programs: list[Any] = []
        self.job_ns = 0
        """The longest that a folder takes for a job; 0: the processor folds, at once."""
        self.segments = 0
        self.tasks: list[tuple[list[Array], list[Array], list[Array]]] = []
        for rank, mine in enumerate(ground.nics):
            for port in mine:
                self._call("optcc_world_nic", rank, ground.ports[port].out_rate, ground.ports[port].in_rate)
        for (low, high), lanes in ground.wires.items():
            for ends in lanes:
                self._call("optcc_world_wire", low, ends[0], high, ends[1])
        self.engines = []
        for rank in range(ground.ranks):
            config = Config(
                rank=rank,
                ranks=ground.ranks,
                segment_bytes=segment,
                window_bytes=window,
                job=self.job,
                suspect_ns=self.suspect_ns,
                grace_ns=self.suspect_ns // 2,
                knock_ns=self.suspect_ns // 4,
                return_ns=self.return_ns,
            )
            engine = c_void_p()
            self._call("optcc_world_engine", byref(config), byref(engine))
            self.engines.append(engine)

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self.lib, name)(self.world, *arguments)
        assert result == OK, (name, RESULTS[result], arguments)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.lib.optcc_world_close(self.world)
        for program in self.programs:
            self.lib.optcc_program_close(program)

    def program(self, schedule: Schedule, rank: int) -> Any:
        """A rank's part of a schedule."""
        made = program(self.lib, schedule, rank, self.segment, self.ground.lanes(schedule))
        self.programs.append(made)
        if self.job_ns:
            self._call("optcc_world_folder", rank, made, self.job_ns)
        return made

    def task(self, schedule: Schedule, dtype: str, op: Op, given: list[Array], right: list[Array]) -> None:
        """One more collective of all ranks."""
        buffers, results = [one.copy() for one in given], [np.zeros_like(one) for one in given]
        self.tasks.append((buffers, results, right))
        self.segments += segments(schedule, self.ground.lanes(schedule), self.segment)
        for rank in range(schedule.ranks):
            where = buffers[rank].ctypes.data, results[rank].ctypes.data
            kind = TYPES.index(dtype), OPS.index(op)
            self._call("optcc_world_task", rank, self.program(schedule, rank), *where, schedule.nbytes, *kind)

    def fault(self, at_ns: float, kind: int, rank: int, nic: int = 0, value: int = 0) -> None:
        self._call("optcc_world_fault", int(at_ns), kind, rank, nic, value)

    def run(self, limit_ns: int) -> Outcome:
        """Play until all is done, or `limit_ns` of virtual time."""
        result = self.lib.optcc_world_run(self.world, limit_ns)
        wrong = [
            (task, rank)
            for task, (_, results, right) in enumerate(self.tasks)
            for rank in range(self.ground.ranks)
            if task < self.lib.optcc_world_done(self.world, rank) and results[rank].tobytes() != right[rank].tobytes()
        ]
        total = dict.fromkeys(COUNTERS, 0)
        for engine in self.engines:
            for name, value in self.counters(engine).items():
                total[name] += value
        touched = self.lib.optcc_world_touched(self.world)
        now_ns = self.lib.optcc_world_now(self.world)
        return Outcome(RESULTS[result], now_ns, wrong, touched, self.segments, total)

    def counters(self, engine: Any) -> dict[str, int]:
        counters = Counters()
        self.lib.optcc_count(engine, byref(counters))
        return {name: getattr(counters, name) for name in COUNTERS}


# --- processes -----------------------------------------------------------------------------------------------------

SECOND_NS = 10**9


def shm_config(ranks: int, rank: int, lanes: int, ring: int) -> Any:
    """Of ranks with `lanes` NICs each, every one joined to the NIC of the same number of every other rank."""
    nics, joined = np.full(ranks, lanes, np.uint32), np.ones((ranks, ranks), np.uint8)
    ends = [(peer, lane, lane, lane) for peer in range(ranks) for lane in range(lanes) if peer != rank]
    wires = (WireEnds * len(ends))(*(WireEnds(*end) for end in ends))
    made = ShmConfig(
        rank=rank,
        ranks=ranks,
        nics=nics.ctypes.data,
        joined=joined.ctypes.data,
        ring_bytes=ring,
        wires=len(ends),
        wire=ctypes.addressof(wires),
    )
    made.kept = nics, joined, wires
    return made


def share(lib: Any, ranks: int, lanes: int = 1, ring: int = 1 << 20) -> Any:
    """Memory for ranks that are forked from here."""
    return ctypes.c_char.from_buffer(mmap.mmap(-1, lib.optcc_shm_bytes(byref(shm_config(ranks, 0, lanes, ring)))))


def run_shared(
    lib: Any,
    where: Any,
    schedule: Schedule,
    rank: int,
    buffers: Iterable[Array],
    op: Op,
    *,
    lanes: int = 1,
    ring: int = 1 << 20,
) -> list[int]:
    """One rank's collectives, one after another, in place, over shared memory; returns nanoseconds of each."""
    shm, engine = c_void_p(), c_void_p()
    assert lib.optcc_shm_open(byref(shm_config(schedule.ranks, rank, lanes, ring)), where, byref(shm)) == OK
    config = Config(
        segment_bytes=65536,
        window_bytes=262144,
        job=1,
        suspect_ns=SECOND_NS,
        grace_ns=SECOND_NS // 2,
        knock_ns=SECOND_NS // 10,
        return_ns=60 * SECOND_NS,
        spin_ns=100_000,
    )
    assert lib.optcc_shm_engine(shm, byref(config), byref(engine)) == OK
    took, any_lane = [], np.zeros(len(schedule.routes), np.uint64)
    made = program(lib, schedule, rank, 65536, any_lane)
    for buffer in buffers:
        begun = time.perf_counter_ns()
        assert lib.optcc_begin(engine, made, call(buffer, "float32", op)) == OK
        result = lib.optcc_wait(engine, byref(Until(60 * SECOND_NS, NEVER, -1)))
        took.append(time.perf_counter_ns() - begun)
        assert result == OK, RESULTS[result]
    for _ in range(1000):  # the last acknowledgement may have to be said again
        lib.optcc_progress(engine)
    lib.optcc_close(engine)
    lib.optcc_program_close(made)
    lib.optcc_shm_close(shm)
    return took


def latency(lib: Any, ranks: int, nbytes: int, calls: int = 20_000) -> Array:
    """Seconds of a maximum of `nbytes`, of `calls` in a row, as rank 0 of as many processes sees them: the least, the
    twentieth and the median, of which the first two say more on a machine that does other things."""
    cluster = Cluster.uniform(servers=ranks, nics=1, rate=RATE_OF_A_NIC)
    schedule = optcc.plan(cluster, nbytes, alpha="1us", per_chunk="1us").schedule()
    memory = share(lib, ranks)
    where = ctypes.addressof(memory)

    cores = sorted(os.sched_getaffinity(0))

    def rank_of(rank: int) -> list[int]:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})  # two on one core would wait for each other
        buffer = np.ones(nbytes // 4, np.float32)
        return run_shared(lib, where, schedule, rank, (buffer for _ in range(calls)), Op.MAX)

    others = [get_context("fork").Process(target=rank_of, args=(rank,)) for rank in range(1, ranks)]
    for other in others:
        other.start()
    took = rank_of(0)
    os.sched_setaffinity(0, cores)
    for other in others:
        other.join(60)
    assert all(other.exitcode == 0 for other in others)
    return np.percentile(took[calls // 10 :], (0, 5, 50)) / 1e9


# --- one seed ------------------------------------------------------------------------------------------------------


@dataclass
class Script:
    """What a seed says: calls, weather and faults, as (time in parts of the fault-free run, kind, rank, NIC, value)."""

    ground: Ground
    tasks: list[tuple[str, Schedule, str, Op]]
    weather: dict[str, int]
    faults: list[tuple[float, int, int, int, int]]


CALLS = (("float32", Op.SUM), ("float16", Op.SUM), ("int32", Op.SUM), ("bfloat16", Op.PROD), ("float64", Op.MAX))


def script(seed: int) -> Script:
    """Faults of every kind. One NIC of each rank, the same of all, always comes back; so all must end well."""
    draw = random.Random(seed)
    ground = draw.choice(grounds())
    tasks = [(*draw.choice(ground.schedules), *draw.choice(CALLS)) for _ in range(draw.choice((1, 1, 2, 3)))]
    weather = {"seed": seed, "latency_ns": draw.choice((500, 2000, 10000))}
    if draw.random() < 0.4:
        weather["jitter_ns"] = draw.choice((1000, 20000))
    if draw.random() < 0.4:
        weather["lost"] = draw.choice((1000, 50_000, 200_000))
    if draw.random() < 0.3:
        weather["doubled"] = 100_000
    spared, faults = draw.randrange(8), []
    for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 5))):
        rank = draw.randrange(ground.ranks)
        nics = len(ground.nics[rank])
        nic, at, told = draw.randrange(nics), draw.uniform(0, 1.2) * len(tasks), draw.randrange(2)
        lasts = draw.choice((0.05, 0.5, 3.0, 30.0))
        heals = nic == spared % nics or draw.random() < 0.5
        match draw.choice(("die", "die", "mute", "mute", "rate", "pause", "start")):
            case "die":
                faults.append((at, DIE, rank, nic, told))
                if heals:
                    faults.append((at + lasts, RETURN, rank, nic, draw.randrange(2)))
            case "mute":
                faults.append((at, MUTE, rank, nic, draw.choice((1, 2, 3))))
                if heals:
                    faults.append((at + lasts, UNMUTE, rank, nic, 0))
            case "rate":
                faults.append((at, RATE, rank, nic, draw.choice((100_000, 500_000))))
            case "pause":
                faults += [(at, PAUSE, rank, 0, 0), (at + lasts, RESUME, rank, 0, 0)]
            case "start":  # one rank comes late
                faults += [(0, PAUSE, rank, 0, 0), (lasts, RESUME, rank, 0, 0)]
    return Script(ground, tasks, weather, faults)


def in_place(ground: Ground) -> list[tuple[str, Schedule]]:
    """Its schedules without receive buffers, which a folder of its own does not serve, nor a NIC that reads them."""
    return [(name, schedule) for name, schedule in ground.schedules if not schedule.beside]


def play(lib: Any, seed: int, doomed: bool = False, late: bool = False) -> Outcome:
    """Play a seed, bounded in virtual time. What should come of it: `Outcome.fault` is empty.

    doomed : a rank is killed, too, and all others must end, well or not (`Outcome.doomed_fault`)
    late : copies and folds are done by a folder that takes its time, now and then longer than a wire may be silent
    """
    said = script(seed)
    with World(lib, said.ground, said.weather) as world:
        if late:
            world.job_ns = random.Random(seed * 7).choice((1, 1000, world.suspect_ns // 10, 2 * world.suspect_ns))
        for number, (_, drawn, dtype, op) in enumerate(said.tasks):
            instead = in_place(said.ground)
            schedule = instead[number % len(instead)][1] if late and drawn.beside else drawn
            world.task(schedule, dtype, op, *RIGHT.of(schedule, dtype, op))
        healthy_ns = 4 * 16384 / said.ground.slowest * 1e9 + 40 * said.weather["latency_ns"]
        # Nothing lasts so long that a peer may be given up.
        unit_ns = min(healthy_ns, world.return_ns / 100)
        for at, kind, rank, nic, value in said.faults:
            world.fault(at * unit_ns, kind, rank, nic, value)
        if doomed:
            draw = random.Random(~seed)
            at = draw.uniform(0, len(said.tasks)) * unit_ns * draw.choice((0.1, 1))
            world.fault(at, KILL, draw.randrange(said.ground.ranks))
        return world.run(limit_ns=10 * world.return_ns)


# --- a peer that lies ----------------------------------------------------------------------------------------------


class Liar:
    """Rank 0 of two, before it has sent anything, and frames that may come from rank 1."""

    def __init__(self, lib: Any, seed: int) -> None:
        self.lib, self.draw = lib, random.Random(seed)
        self.ground = next(one for one in grounds() if one.name == "2 x 1")
        self.schedule = self.ground.schedules[0][1]
        self.world = World(lib, self.ground, {"seed": seed})
        (self.buffer, _) = inputs(self.schedule, "int32", Op.SUM, seed)
        self.engine = self.world.engines[0]
        program = self.world.program(self.schedule, 0)
        assert lib.optcc_begin(self.engine, program, call(self.buffer, "int32", Op.SUM)) == OK
        self.honest = [self.frame(seq, *segment) for seq, segment in enumerate(self._segments())]
        self.taken: set[int] = set()

    def _segments(self) -> Iterable[tuple[int, int, int]]:
        """(row, offset in it, length) of all that comes to rank 0."""
        steps = cuts(self.schedule, self.ground.lanes(self.schedule), self.world.segment)
        for row in np.flatnonzero(self.schedule.dst == 0).tolist():
            length, step = int(self.schedule.length[row]), int(steps[row])
            for offset in range(0, length, step):
                yield row, offset, min(step, length - offset)

    def frame(self, seq: int, row: int, offset: int, length: int) -> Any:
        return Frame(
            magic=MAGIC,
            version=VERSION,
            kind=DATA,
            from_=1,
            to=0,
            job=self.world.job,
            epoch=1,
            begun=1,
            seq=seq,
            operation=1,
            row=row,
            length=length,
            offset=offset,
        )

    def hear(self, frame: Any, payload: bytes) -> None:
        told = bytes(frame) + payload
        self.lib.optcc_hear(self.engine, 0, told, len(told))

    def bend(self, frame: Any) -> Any:
        """Change a few of a frame's fields."""
        bent = Frame.from_buffer_copy(frame)
        for _ in range(self.draw.choice((0, 1, 1, 1, 2, 3))):
            name, kind = self.draw.choice(Frame._fields_)
            old = getattr(bent, name)
            if isinstance(old, ctypes.Array):
                old[self.draw.randrange(len(old))] = self.draw.getrandbits(64)
                continue
            most = 2 ** (8 * ctypes.sizeof(kind)) - 1
            new = self.draw.choice(
                (0, 1, 2, old + 1, old - 1, old + 8, old * 2, most, most - old, self.draw.getrandbits(64))
            )
            setattr(bent, name, new & most)
        return bent

    def believable(self, frame: Any, length: int) -> bool:
        """Whether a segment is one that rank 1 may send now."""
        first = self.honest[0]
        same = ("magic", "version", "kind", "lane", "from_", "to", "job", "operation")
        known = {(f.row, f.offset, f.length): i for i, f in enumerate(self.honest)}
        place = known.get((frame.row, frame.offset, frame.length))
        return (
            all(getattr(frame, name) == getattr(first, name) for name in same)
            and place is not None
            and place not in self.taken
            and length == frame.length
            and frame.begun <= 2
            and frame.floor == 0
            and not any(frame.landed)
            and frame.seq < SPAN + len(self.taken)
        )


def fuzz(lib: Any, count: int, seed: int) -> str:
    """`count` messages that rank 1 might send, most of them wrong; what was believed that must not be, or nothing."""
    believed = told = 0
    while told < count:
        liar = Liar(lib, seed + told)
        with liar.world:
            for _ in range(min(100, count - told)):
                told += 1
                frame = liar.draw.choice(liar.honest)
                if liar.draw.random() < 0.3:
                    frame = Frame.from_buffer_copy(frame)
                    frame.kind, frame.length = liar.draw.randrange(12), 0
                bent = liar.bend(frame)
                payload = bytes(liar.draw.choice((frame.length, frame.length, frame.length, bent.length % 4096, 0)))
                payload = b"\xee" * len(payload)
                before, landed = liar.buffer.copy(), liar.world.counters(liar.engine)["landed_segments"]
                may = liar.believable(bent, len(payload))
                if liar.draw.random() < 0.02:  # cut anywhere
                    short = (bytes(bent) + payload)[: liar.draw.randrange(200)]
                    lib.optcc_hear(liar.engine, 0, short, len(short))
                    may = may and len(short) == len(bytes(bent)) + len(payload)
                else:
                    liar.hear(bent, payload)
                if liar.world.counters(liar.engine)["landed_segments"] == landed:
                    if before.tobytes() != liar.buffer.tobytes():
                        return f"a refused frame has changed the buffer: message {told}"
                    continue
                if not may:
                    return f"believed: message {told}"
                believed += 1
                known = [(f.row, f.offset) for f in liar.honest]
                liar.taken.add(known.index((bent.row, bent.offset)))
    return "" if believed else "nothing was believed, not even what is true"


def scribble(lib: Any, count: int, seed: int) -> None:
    """A peer that writes anything into the memory that it shares: nothing may crash, and no call may take for ever."""
    ground, draw = next(one for one in grounds() if one.name == "2 x 1"), np.random.default_rng(seed)
    schedule = ground.schedules[0][1]
    made = program(lib, schedule, 0, 1024, ground.lanes(schedule))
    (buffer, theirs), region = inputs(schedule, "int32", Op.SUM, seed), c_uint32()
    shared = shm_config(2, 0, 1, 1 << 16)
    size = lib.optcc_shm_bytes(byref(shared))
    likely = np.array((0, 1, 64, 128, 192, 1 << 16, 2**63, 2**64 - 1), np.uint64)
    for round_ in range(count):
        memory = mmap.mmap(-1, size)
        bytes_ = np.frombuffer(memory, np.uint8)
        shm, engine = c_void_p(), c_void_p()
        assert lib.optcc_shm_open(byref(shared), bytes_.ctypes.data, byref(shm)) == OK
        assert lib.optcc_shm_lend(shm, buffer.ctypes.data, buffer.nbytes, 0, byref(region)) == OK
        assert lib.optcc_shm_reach(shm, 1, 0, theirs.ctypes.data, theirs.nbytes) == OK
        config = Config(segment_bytes=1024, window_bytes=4096, job=1, suspect_ns=1000, grace_ns=500, knock_ns=10)
        config.return_ns = SECOND_NS
        assert lib.optcc_shm_engine(shm, byref(config), byref(engine)) == OK
        lib.optcc_begin(engine, made, call(buffer, "int32", Op.SUM))
        for _ in range(10):
            words = bytes_.view(np.uint64)
            places = draw.integers(0, len(words), int(draw.choice((10, 1000, len(words)))))
            words[places] = draw.choice(likely, len(places))
            if round_ % 2:  # what is said to be written is likely
                words[[0, size // 8 // 4, size // 8 // 2, 3 * size // 8 // 4]] = 64 * draw.integers(0, 2000, 4)
            lib.optcc_progress(engine)
        lib.optcc_close(engine)
        lib.optcc_shm_close(shm)
    lib.optcc_program_close(made)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--doomed", action="store_true", help="a rank is killed, too")
    parser.add_argument("--late", action="store_true", help="a folder that takes its time")
    parser.add_argument("--fuzz", type=int, default=0, metavar="N", help="N messages of a peer that lies")
    parser.add_argument(
        "--latency", nargs="*", type=int, default=[], metavar="RANKS", help="of calls between processes"
    )
    parser.add_argument("--sanitize", action="store_true", help="compile with sanitizers (needs libasan)")
    parser.add_argument("--library", type=Path, help="a library that is compiled already")
    given = parser.parse_args(arguments)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        library = given.library or build(Path(folder), flags=SANITIZERS if given.sanitize else ("-O2",))
        if given.sanitize and "libasan" not in os.environ.get("LD_PRELOAD", ""):
            return subprocess.run(
                [
                    *(sys.executable, "-m", "tests.native_replay", "--library", str(library)),
                    *(
                        "--fuzz",
                        str(given.fuzz),
                        *["--doomed"] * given.doomed,
                        *["--late"] * given.late,
                        *map(str, given.seeds),
                    ),
                ],
                cwd=ROOT,
                env=sanitized(),
                check=False,
            ).returncode
        lib = load(library)
        for seed in given.seeds:
            said, outcome = script(seed), play(lib, seed, given.doomed, given.late)
            fault = outcome.doomed_fault if given.doomed else outcome.fault
            calls = ", ".join(f"{family} {dtype} {op}" for family, _, dtype, op in said.tasks)
            print(f"seed {seed}: {said.ground.name}; {calls}; {said.weather}; {len(said.faults)} faults")
            print(f"  {fault or 'right'} ({outcome.result}) after {outcome.now_ns / 1e6:.3f} ms; {outcome.counters}")
            bad += fault != ""
        for ranks in given.latency:
            for nbytes in (8, 4096, 65536):
                least, low, median = latency(lib, ranks, nbytes) * 1e6
                print(f"{ranks} processes, {nbytes} bytes: {least:.1f} us at least, {low:.1f}, median {median:.1f}")
        if given.fuzz:
            scribble(lib, given.fuzz // 100, seed=1)
            lies = fuzz(lib, given.fuzz, seed=1)
            print(f"{given.fuzz} messages: {lies or 'none believed that must not be'}")
            bad += lies != ""
    return bad != 0


def sanitized() -> dict[str, str]:
    """The environment in which Python loads a library with sanitizers."""
    preload = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return {**os.environ, "LD_PRELOAD": preload.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}


if __name__ == "__main__":
    sys.exit(main())
