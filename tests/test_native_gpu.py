"""Copies and folds that are done late, by a folder or a GPU's kernel, and payloads that are read where they lie."""

from __future__ import annotations

import ctypes
import faulthandler
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from ctypes import byref, c_uint32, c_uint64, c_void_p
from multiprocessing import get_context
from pathlib import Path
from shutil import copyfile
from threading import Thread
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import optcc
from benchmarks import bench_gpu_native as bench
from optcc.errors import InputError
from optcc.runtime.devices import resident
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Array, Op, dtype_of
from optcc.runtime.native.library import WireState
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from tests import native_replay as native
from tests.cuda_twin import SharedTwin, TwinGpu
from tests.effort import cases
from tests.native_build import LOOSE, Mutant, build
from tests.native_replay import RIGHT, SECOND_NS, World, grounds, load, play
from tests.test_native_engine import ground_of

pytestmark = pytest.mark.cc


# --- a folder that takes its time, over virtual wires that fail ----------------------------------------------------


def test_every_seed_ends_with_the_right_bits(lib: Any) -> None:
    for seed in range(cases(6000)):
        outcome = play(lib, seed, late=True)
        assert not outcome.fault, f"{outcome.fault}; python -m tests.native_replay --late {seed}"


def test_where_a_rank_is_killed_all_others_end_and_no_job_runs_on(lib: Any) -> None:
    results = set()
    for seed in range(cases(2000)):
        outcome = play(lib, seed, doomed=True, late=True)
        assert not outcome.doomed_fault, f"{outcome.doomed_fault}; python -m tests.native_replay --late --doomed {seed}"
        results.add(outcome.result)
    assert results == {"ok", "lost"}


def test_what_is_still_being_taken_in_is_a_duplicate_and_is_not_acknowledged(lib: Any) -> None:
    """Jobs that take longer than a wire may be silent: segments go again, and nothing lands twice."""
    duplicates = 0
    for seed in range(20):
        ground = grounds()[seed % len(grounds())]
        with World(lib, ground, {"seed": seed, "latency_ns": 500}) as world:
            world.job_ns = 3 * world.suspect_ns
            _, schedule = native.in_place(ground)[0]
            world.task(schedule, "float32", Op.SUM, *RIGHT.of(schedule, "float32", Op.SUM))
            outcome = world.run(100 * world.return_ns)
        assert not outcome.fault
        duplicates += outcome.counters["duplicates"]
    assert duplicates


def test_jobs_cost_their_time_and_no_more(lib: Any) -> None:
    """In virtual time: short jobs change little, and who waits for one is called when it may be done."""
    ground = ground_of("4 x 2, one at a third")
    _, schedule = native.in_place(ground)[0]
    took = []
    for job_ns in (0, 1):
        with World(lib, ground, {"seed": 1, "latency_ns": 500}) as world:
            world.job_ns = job_ns
            world.task(schedule, "float32", Op.SUM, *RIGHT.of(schedule, "float32", Op.SUM))
            outcome = world.run(world.return_ns)
            assert not outcome.fault
            took.append(outcome.now_ns)
    assert took[1] < 1.2 * took[0]


# --- ranks of one process over the memory of a machine -------------------------------------------------------------


class Tuned(NamedTuple):
    """Of the engine and the kernel's twin."""

    segment: int = 1024
    blocks: int = 4
    part: int = 256
    window: int = 4096
    silent_ns: int = 60 * SECOND_NS


class Machine:
    """All ranks in one process, one after another: lent buffers, and jobs by the twin, which does some now and then.

    gpu : whether there is a twin; else the processor folds
    """

    copies_short = 0

    def __init__(self, lib: Any, schedule: Schedule, dtype: str, op: Op, seed: int, tuned: Tuned, *, gpu: bool) -> None:
        self.lib, self.schedule, self.dtype, self.op, self.gpu = lib, schedule, dtype, op, gpu
        self.draw = random.Random(seed)
        self.blocks = tuned.blocks
        self.given = native.inputs(schedule, dtype, op, seed)
        self.buffers = [self._lent_memory(one) for one in self.given]
        ranks, ring = schedule.ranks, -(-(5 * tuned.segment + (64 << 10)) // 64) * 64
        self.shared = aligned(lib.optcc_shm_bytes(byref(native.shm_config(ranks, 0, 1, ring))), 64)
        self.shms, self.engines, self.programs = [], [], []
        self.rings, self.gpus, self.twins, self.earlies = [], [], [c_void_p() for _ in range(ranks)], []
        any_lane = np.zeros(len(schedule.routes), np.uint64)
        for rank in range(ranks):
            shm, engine = c_void_p(), c_void_p()
            shared = native.shm_config(ranks, rank, 1, ring)
            assert lib.optcc_shm_open(byref(shared), self.shared.ctypes.data, byref(shm)) == native.OK
            config = native.Config(
                segment_bytes=tuned.segment,
                window_bytes=tuned.window,
                job=seed + 1,
                suspect_ns=tuned.silent_ns // 10,
                grace_ns=tuned.silent_ns // 10,
                knock_ns=tuned.silent_ns // 10,
                return_ns=tuned.silent_ns,
            )
            assert lib.optcc_shm_engine(shm, byref(config), byref(engine)) == native.OK
            made = native.program(lib, schedule, rank, tuned.segment, any_lane)
            self.shms.append(shm)
            self.engines.append(engine)
            self.programs.append(made)
            if gpu:
                self._give_gpu(made, tuned)
            region = c_uint32()
            base, nbytes = self.buffers[rank].ctypes.data, self.buffers[rank].nbytes
            assert lib.optcc_shm_lend(shm, base, nbytes, self.copies_short, byref(region)) == native.OK
            assert region.value == 0
        for rank, shm in enumerate(self.shms):
            for peer in set(range(ranks)) - {rank}:
                theirs = self.buffers[peer]
                assert lib.optcc_shm_reach(shm, peer, 0, theirs.ctypes.data, theirs.nbytes) == native.OK

    def _lent_memory(self, given: Array) -> Array:
        room = aligned(given.nbytes, 128).view(given.dtype)
        room[:] = given
        return room

    def _give_gpu(self, made: Any, tuned: Tuned) -> None:
        ring, gpu = aligned(self.lib.optcc_gpu_bytes(tuned.blocks), 128), c_void_p()
        assert self.lib.optcc_gpu_open(ring.ctypes.data, tuned.blocks, tuned.part, byref(gpu)) == native.OK
        early = aligned(max(1, self.lib.optcc_program_early(made)), 128)
        assert self.lib.optcc_gpu_use(gpu, made, early.ctypes.data) == native.OK
        self.rings.append(ring)
        self.gpus.append(gpu)
        self.earlies.append(early)

    def begin(self, rank: int) -> None:
        if self.gpu:
            first, kind, how = c_uint64(), native.TYPES.index(self.dtype), native.OPS.index(self.op)
            assert self.lib.optcc_gpu_launch(self.gpus[rank], kind, how, byref(first)) == native.OK
            assert self.lib.optcc_gpu_idle(self.gpus[rank]) == native.AGAIN
            seed, twin = self.draw.getrandbits(32), self.twins[rank]
            ring = self.rings[rank].ctypes.data
            self.lib.optcc_gpu_twin_open(ring, self.blocks, kind, how, first.value, seed, byref(twin))
            self.wait_for_gpu(rank)
        call = native.call(self.buffers[rank], self.dtype, self.op)
        assert self.lib.optcc_begin(self.engines[rank], self.programs[rank], call) == 0

    def wait_for_gpu(self, rank: int) -> None:
        for _ in range(10_000):
            self.lib.optcc_gpu_twin_step(self.twins[rank], 1)
            if self.lib.optcc_gpu_idle(self.gpus[rank]) == native.OK:
                return
        raise AssertionError("the twin does nothing")

    def end(self, rank: int) -> None:
        if self.gpu:
            assert self.lib.optcc_gpu_end(self.gpus[rank]) == native.OK
            self.wait_for_gpu(rank)
            assert self.lib.optcc_gpu_twin_step(self.twins[rank], 1) == 0
            self.lib.optcc_gpu_twin_close(self.twins[rank])

    def step(self, rank: int) -> int:
        """What the rank's engine says of its collective, after some of its work."""
        self.lib.optcc_progress(self.engines[rank])
        if self.gpu:
            self.lib.optcc_gpu_twin_step(self.twins[rank], self.draw.randrange(8))
        return int(self.lib.optcc_test(self.engines[rank], None))

    def run(self, rounds: int = 200_000) -> list[int]:
        """A collective of all; returns ranks whose bits are wrong. A buffer is spoilt as soon as it is given back."""
        right = native.expected(self.schedule, self.given, self.op)
        ranks = range(self.schedule.ranks)
        results: dict[int, bytes] = {}
        for rank in ranks:
            self.buffers[rank][:] = self.given[rank]
        for rank in ranks:
            self.begin(rank)
        for _ in range(rounds):
            rank = self.draw.choice(ranks)
            if rank in results:
                self.lib.optcc_progress(self.engines[rank])
            elif self.step(rank) != native.AGAIN:
                results[rank] = self.buffers[rank].tobytes()
                self.end(rank)
                self.buffers[rank].view(np.uint8)[:] = 0xA5
            if len(results) == len(ranks):
                break
        return [rank for rank in ranks if results.get(rank) != right[rank].tobytes()]

    def close(self) -> None:
        for engine, made, shm in zip(self.engines, self.programs, self.shms, strict=True):
            self.lib.optcc_close(engine)
            self.lib.optcc_program_close(made)
            self.lib.optcc_shm_close(shm)
        for gpu in self.gpus:
            self.lib.optcc_gpu_close(gpu)


def aligned(nbytes: int, to: int) -> Array:
    """Zeros that begin at a multiple of `to`."""
    room = np.zeros(nbytes + to, np.uint8)
    start = -room.ctypes.data % to
    return room[start : start + nbytes]


@pytest.fixture
def machine(lib: Any) -> Iterator[Any]:
    """Makes machines that are closed after the test."""
    made: list[Machine] = []

    def make(name: str, dtype: str, op: Op, seed: int, tuned: Tuned | None = None, *, gpu: bool = True) -> Machine:
        schedules = LARGE if name == "large" else native.in_place(ground_of(name))
        schedule = schedules[seed % len(schedules)][1]
        made.append(Machine(lib, schedule, dtype, op, seed, tuned or Tuned(), gpu=gpu))
        return made[-1]

    yield make
    for one in made:
        one.close()


LARGE = native.in_place(
    native.ground("large", Cluster.uniform(servers=2, nics=1, rate=native.RATE_OF_A_NIC), 1 << 19, 2)
)
"""Rows that are longer than what is copied."""
MANY = Tuned(segment=16384, blocks=2, part=128, window=1 << 20)
"""More parts at once than there are slots."""
CALLS = (*native.CALLS, ("uint8", Op.MIN), ("int64", Op.PROD), ("uint16", Op.SUM))


@pytest.mark.parametrize("name", ["2 x 1", "4 x 2, one at a third", "8 x 2, one dead"])
@pytest.mark.parametrize("gpu", [False, True], ids=["host", "gpu"])
def test_payloads_are_read_where_they_lie(machine: Any, name: str, gpu: bool) -> None:
    for seed in range(16):
        one = machine(name, *CALLS[seed % len(CALLS)], seed, gpu=gpu)
        for _ in range(2):
            assert one.run() == [], f"seed {seed}"


@pytest.mark.parametrize("short", [0, 1])
def test_only_what_is_short_and_the_hosts_goes_through_a_ring(machine: Any, monkeypatch: Any, short: int) -> None:
    monkeypatch.setattr(Machine, "copies_short", short)
    for segment, copied in ((2048, short), (8192, 0)):
        one = machine("large", "uint8", Op.MAX, 0, Tuned(segment=segment), gpu=False)
        for given in one.given:
            given[:] = 0xC7
        assert one.run() == []
        assert (bytes([0xC7] * 64) in one.shared.tobytes()) == copied


def test_more_jobs_than_slots_wait_their_turn(machine: Any) -> None:
    """Thousands of parts of a few bytes, on a ring of a thousand slots that goes around many times."""
    one = machine("large", "float32", Op.SUM, 3, MANY)
    for _ in range(4):
        assert one.run() == []


def test_a_gpu_that_takes_no_more_jobs_ends_the_collective_everywhere(lib: Any, machine: Any) -> None:
    one = machine("4 x 2, one at a third", "float32", Op.SUM, 1)
    for rank in range(4):
        one.begin(rank)
    assert lib.optcc_gpu_end(one.gpus[2]) == native.OK
    for _ in range(20_000):
        results = [one.step(rank) for rank in range(4)]
        if native.AGAIN not in results:
            break
    assert results == [native.LOST] * 4
    for engine in one.engines:
        lost = c_uint32()
        lib.optcc_test(engine, byref(lost))
        assert lost.value == 2
    for rank in (0, 1, 3):
        one.end(rank)
    again = native.call(one.buffers[0], "float32", Op.SUM)
    assert lib.optcc_begin(one.engines[0], one.programs[0], again) == native.LOST


class Pair:
    """Two ranks, of which rank 1 has been given jobs that read rank 0's memory, and none is done."""

    def __init__(self, lib: Any, make: Any, silent_ns: int = 60 * SECOND_NS) -> None:
        self.one = make("2 x 1", "float32", Op.SUM, 0, Tuned(silent_ns=silent_ns))
        for rank in (0, 1):
            self.one.begin(rank)
        for _ in range(1000):
            for engine in self.one.engines:
                lib.optcc_progress(engine)
            if lib.optcc_gpu_idle(self.one.gpus[1]) == native.AGAIN:
                return
        raise AssertionError("nothing comes")

    def end_of(self, rank: int) -> int:
        """What comes of the rank's collective, the other one doing nothing."""
        until = time.monotonic() + 60
        while (result := self.one.step(rank)) == native.AGAIN:
            assert time.monotonic() < until
        return result


def test_nothing_is_given_back_that_is_read_still(lib: Any, machine: Any) -> None:
    """Rank 0's GPU takes no more jobs, and all is lost. But rank 1 reads its memory, and folds into its own."""
    pair = Pair(lib, machine)
    assert lib.optcc_gpu_end(pair.one.gpus[0]) == native.OK
    for _ in range(100):
        for engine in pair.one.engines:
            lib.optcc_progress(engine)
            assert lib.optcc_test(engine, None) == native.AGAIN
    assert pair.end_of(1) == pair.end_of(0) == native.LOST


def test_who_has_stopped_while_it_reads_is_waited_for_and_not_for_ever(lib: Any, machine: Any) -> None:
    """Rank 0 gives up; rank 1 goes on later, has read what may have changed, and says so."""
    pair = Pair(lib, machine, silent_ns=10**7)
    assert pair.end_of(0) == native.LOST
    pair.one.buffers[0][:] = 1e9
    assert pair.end_of(1) == native.LOST


# --- the kernel itself, on the processor ---------------------------------------------------------------------------

RUN_BLOCK = """
extern "C" void run_block(unsigned block, unsigned blocks, unsigned threads, const u64* slots, u64 count, u64* done,
                          u64 first) {
  std::barrier<> everyone(threads), lanes(32);
  all = &everyone, warp = &lanes;
  blockIdx.x = block, gridDim.x = blocks, blockDim.x = threads;
  std::vector<std::thread> team;
  for (unsigned i = 0; i < threads; ++i)
    team.emplace_back([=] { threadIdx.x = i; SERVE_IT(slots, count, done, first); });
  for (std::thread& one : team) one.join();
}
"""


def kernel_on_processor(folder: Path, dtype: str, op: Op) -> Path:
    """A library with one block of the resident kernel as a function: fold.cu, compiled by g++, but for what is in PTX.
    Each copy of the file has variables of its own."""
    text = (native.ROOT / "runtime" / "devices" / "kernels" / "fold.cu").read_text(encoding="utf-8")
    begin, end = (
        text.index("template <class T>\n__device__ __forceinline__ T fresh"),
        text.index("template <class A, class B>"),
    )
    shim = (native.ROOT / "tests" / "kernel_on_processor.h").read_text(encoding="utf-8")
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(shim + text[:begin] + text[end:] + RUN_BLOCK.replace("SERVE_IT", f"serve_{op}"), encoding="utf-8")
    command = ["g++", "-std=c++20", "-O1", "-w", "-fno-gnu-unique", f"-DTYPE_{dtype}", "-shared", "-fPIC", "-pthread"]
    made = subprocess.run([*command, str(source), "-o", str(library)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return library


class KernelMachine(Machine):
    """With the kernel in the twin's place.

    lent : buffers so far; the first two begin at the same place within a word, the next two do not
    """

    copies: ClassVar[dict[tuple[int, int], Any]] = {}
    threads: ClassVar[list[Thread]] = []
    lent = 0

    def _lent_memory(self, given: Array) -> Array:
        room = aligned(given.nbytes + 128, 128).view(given.dtype)
        start = 1 if self.lent < 2 else self.lent % 2
        KernelMachine.lent += 1
        room[start : start + len(given)] = given
        return room[start : start + len(given)]

    def begin(self, rank: int) -> None:
        first, kind, how = c_uint64(), native.TYPES.index(self.dtype), native.OPS.index(self.op)
        assert self.lib.optcc_gpu_launch(self.gpus[rank], kind, how, byref(first)) == native.OK
        offset, ring = c_uint64(), self.rings[rank].ctypes.data
        count = self.lib.optcc_gpu_slots(self.blocks, byref(offset))
        for block in range(self.blocks):
            slots = c_void_p(ring + offset.value), c_uint64(count)
            arguments = (block, self.blocks, 32, *slots, c_void_p(ring), c_uint64(first.value))
            self.threads.append(Thread(target=self.copies[rank, block], args=arguments, daemon=True))
            self.threads[-1].start()
        self.wait_for_gpu(rank)
        call = native.call(self.buffers[rank], self.dtype, self.op)
        assert self.lib.optcc_begin(self.engines[rank], self.programs[rank], call) == 0

    def wait_for_gpu(self, rank: int) -> None:
        until = time.monotonic() + 100
        while self.lib.optcc_gpu_idle(self.gpus[rank]) != native.OK:
            assert time.monotonic() < until
            time.sleep(1e-4)

    def step(self, rank: int) -> int:
        self.lib.optcc_progress(self.engines[rank])
        time.sleep(1e-4)
        return int(self.lib.optcc_test(self.engines[rank], None))

    def end(self, rank: int) -> None:
        assert self.lib.optcc_gpu_end(self.gpus[rank]) == native.OK
        self.wait_for_gpu(rank)


@pytest.mark.cc
@pytest.mark.long
@pytest.mark.parametrize(("dtype", "op"), [("int16", Op.SUM), ("int32", Op.MIN), ("uint64", Op.PROD)])
def test_the_kernel_does_what_its_twin_does(lib: Any, tmp_path: Path, dtype: str, op: Op) -> None:
    """Slots, rounds, parts, words and what fills none; not what a GPU's memory does."""
    blocks = 2
    KernelMachine.lent = 0
    KernelMachine.threads.clear()
    library = kernel_on_processor(tmp_path, dtype, op)
    KernelMachine.copies = {
        (rank, block): ctypes.CDLL(str(copyfile(library, tmp_path / f"{rank}-{block}.so"))).run_block
        for rank in (0, 1)
        for block in range(blocks)
    }
    for tuned in (Tuned(blocks=blocks), Tuned(segment=4096, blocks=blocks, part=1024)):
        one = KernelMachine(lib, native.in_place(ground_of("2 x 1"))[0][1], dtype, op, 1, tuned, gpu=True)
        for _ in range(2):
            assert one.run() == []
        for thread in KernelMachine.threads:
            thread.join(100)
            assert not thread.is_alive()
        one.close()


# --- what is refused -----------------------------------------------------------------------------------------------


def test_a_folder_needs_wires_that_hold_payloads_and_memory_that_it_can_name(lib: Any) -> None:
    gpu, room = c_void_p(), aligned(lib.optcc_gpu_bytes(64), 128)
    for at, blocks, part in ((8, 4, 256), (0, 0, 256), (0, 3, 256), (0, 128, 256), (0, 4, 0), (0, 4, 100)):
        assert lib.optcc_gpu_open(room.ctypes.data + at, blocks, part, byref(gpu)) == native.BAD
        assert not gpu
    assert lib.optcc_gpu_open(room.ctypes.data, 4, 256, byref(gpu)) == native.OK
    assert lib.optcc_gpu_end(gpu) == native.BAD
    assert lib.optcc_gpu_launch(gpu, 99, 0, byref(c_uint64())) == native.BAD
    assert lib.optcc_gpu_launch(gpu, 0, 9, byref(c_uint64())) == native.BAD
    assert lib.optcc_gpu_launch(gpu, 0, 0, byref(c_uint64())) == native.OK
    assert lib.optcc_gpu_launch(gpu, 0, 0, byref(c_uint64())) == native.AGAIN
    lib.optcc_gpu_close(gpu)


def test_regions_are_bounded_and_checked(lib: Any, machine: Any) -> None:
    one = machine("2 x 1", "int32", Op.SUM, 0, gpu=False)
    shm, region, here = one.shms[0], c_uint32(), one.buffers[0].ctypes.data
    numbers = []
    while lib.optcc_shm_lend(shm, here, 64, 1, byref(region)) == native.OK:
        numbers.append(region.value)
    assert numbers == [*range(1, 64)]
    assert lib.optcc_shm_lend(shm, None, 64, 1, byref(region)) == native.BAD
    for peer, number, at, nbytes in (
        (0, 0, here, 8),
        (2, 0, here, 8),
        (1, 64, here, 8),
        (1, 0, here, 0),
        (1, 0, None, 8),
    ):
        assert lib.optcc_shm_reach(shm, peer, number, at, nbytes) == native.BAD


@pytest.mark.parametrize("reached", [False, True], ids=["nothing", "almost all of a segment"])
def test_memory_that_is_not_reached_is_not_read(lib: Any, machine: Any, reached: bool) -> None:
    """Rank 1 does not reach what rank 0 lends: it takes the wire for lost, and nothing is folded."""
    one = machine("large", "int32", Op.SUM, 0, Tuned(segment=8192), gpu=False)
    first = int(one.schedule.offset[np.flatnonzero(one.schedule.dst == 1)[0]])
    at, nbytes = (one.buffers[0].ctypes.data, first + 8192 - 8) if reached else (None, 0)
    assert lib.optcc_shm_reach(one.shms[1], 0, 0, at, nbytes) == native.OK
    for rank in (0, 1):
        one.begin(rank)
    before = one.buffers[1].copy()
    for _ in range(1000):
        for engine in one.engines:
            lib.optcc_progress(engine)
    state, counters = WireState(), native.Counters()
    lib.optcc_wire_look(one.engines[1], 0, byref(state))
    lib.optcc_count(one.engines[1], byref(counters))
    assert counters.left > 0
    assert counters.landed_segments == 0
    assert one.buffers[1].tobytes() == before.tobytes()


# --- the Python side -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_processes_with_a_twin_each(dtype: str) -> None:
    """The whole way: engine, wires, folder, memory that is lent; the script that runs on GPUs."""
    cluster = Cluster.uniform(servers=3, nics=2, rate=native.RATE_OF_A_NIC).degrade("server1/nic0")
    schedule = optcc.plan(cluster, 1 << 20, segments=2).schedule()
    case = bench.Case("", schedule, 1.0, bench.Tuning(1 << 15, 1 << 17, 4, 4096), dtype, calls=2)
    bench.measure([case, case], gpus=0)
    assert case.exact
    assert "exact" in case.told()


def test_wrong_bits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.uniform(servers=2, nics=1, rate=native.RATE_OF_A_NIC)
    schedule = optcc.plan(cluster, 1 << 16, segments=1).schedule()
    monkeypatch.setattr(native, "expected", lambda schedule, given, op: [one + 1 for one in given])
    case = bench.Case("", schedule, 1.0, bench.Tuning())
    bench.measure([case], gpus=0)
    assert not case.exact


def test_a_folder_is_used_one_collective_at_a_time() -> None:
    from optcc.machine.native import library

    gpu, lib = TwinGpu(), load(Path(library()._name))
    folder = resident.ResidentFolder(lib, gpu, blocks=2)
    buffer = gpu.empty(8, dtype_of("float32"))
    folder.launch(buffer, Op.SUM)
    folder.end()
    gpu.wait()
    assert folder.ready
    assert gpu.freed_early == 0
    folder.launch(gpu.empty(1, buffer.dtype), Op.SUM)
    assert gpu.freed_early == 1
    folder.end()
    folder.launch(buffer, Op.SUM)
    with pytest.raises(RuntimeError, match="a collective runs"):
        folder.launch(buffer, Op.SUM)
    folder.end()
    folder.end()
    for _ in range(600):  # nobody waits until the one before has ended, but where there is no room for more
        folder.launch(buffer, Op.SUM)
        folder.end()
    while not folder.ready:
        pass
    with pytest.raises(InputError, match="cannot name"):
        folder.launch(DeviceArray(1 << 48, 1, buffer.dtype, 0), Op.SUM)
    folder.close()


def test_memory_is_lent_once_and_whole() -> None:
    """A part of what was lent is lent; another allocation is not; there is room for 64."""
    from optcc.machine.native import library

    lib = load(Path(library()._name))
    shared = [native.shm_config(2, rank, 1, 1 << 16) for rank in (0, 1)]
    room, shms = aligned(lib.optcc_shm_bytes(byref(shared[0])), 64), [c_void_p(), c_void_p()]
    for rank in (0, 1):
        assert lib.optcc_shm_open(byref(shared[rank]), room.ctypes.data, byref(shms[rank])) == native.OK
    gpu, said = SharedTwin(), []

    def exchange(value: Any) -> list[Any]:
        said.append(value)
        return [value, None]

    lent = resident.LentGpuMemory(lib, gpu, shms[0], 0, exchange)
    array = gpu.empty(100, dtype_of("float32"))
    assert not lent.lends(array)
    lent.lend(array)
    assert lent.lends(array)
    assert lent.lends(array[10:20])
    assert said[0] == [0, gpu.share(gpu_bytes(array)).as_json()]
    lent.lend(array[3:5])
    assert said[2] is None
    assert not lent.lends(gpu.empty(100, dtype_of("float32")))
    others = [gpu.empty(1, dtype_of("int8")) for _ in range(64)]
    for other in others[:63]:
        lent.lend(other)
    with pytest.raises(InputError, match="no room"):
        lent.lend(others[63])
    lent.close()
    assert not lent.lends(array)
    for shm in shms:
        lib.optcc_shm_close(shm)


def gpu_bytes(array: DeviceArray) -> DeviceArray:
    return DeviceArray(array.address, array.nbytes, np.dtype(np.uint8), array.gpu, array.owner)


@pytest.mark.gpu
@pytest.mark.parametrize("arguments", [("--types",), ("--mib", "16", "--calls", "3")], ids=["types", "large"])
def test_on_a_gpu(arguments: tuple[str, ...]) -> None:
    """The script, in processes that have not opened a GPU: all bits are right, behind late work of a stream."""
    command = [sys.executable, "-m", "benchmarks.bench_gpu_native", "--ranks", "2", *arguments]
    done = subprocess.run(command, cwd=native.ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "exact" in done.stdout


# --- mutants -------------------------------------------------------------------------------------------------------


MUTANTS = {
    "a payload is released before its job is done": Mutant(
        "flow.c",
        "        return 1;\n    default:\n        e->counters.refused",
        "        return 0;\n    default:\n        e->counters.refused",
    ),
    "a segment is acknowledged twice": Mutant(
        "flow.c", "(p->landed[place / 64] | p->taking[place / 64])", "(p->landed[place / 64])"
    ),
    "the buffer is given back while jobs run": Mutant(
        "flow.c", "!e->program || due_ns(e) != UINT64_MAX", "!e->program"
    ),
    "nobody asks for jobs again": Mutant("flow.c", "due < UINT64_MAX ? e->now_ns + due : UINT64_MAX", "UINT64_MAX"),
    "a job that has begun is done": Mutant("program.c", "if (ended != OPTCC_OK)", "if (0)"),
    "a kept row counts when its folds begin": Mutant(
        "program.c", "if (give(p, &w))\n        p->receive", "give(p, &w);\n        p->receive"
    ),
    "what is kept while its turn comes is forgotten": Mutant(
        "program.c", "if (r->before)\n            return;", "return;"
    ),
    "a job that was not begun is dropped": Mutant("program.c", "if (begun != OPTCC_OK)\n                break;", ""),
    "a fold of the wrong bytes": Mutant("program.c", "w->target == FROM_EARLY ? early : w->bytes", "w->bytes"),
    "a part is done before its block is": Mutant(
        "folder_gpu.c", "return done > number / g->blocks;", "return done >= number / g->blocks;"
    ),
    "the first part is the job": Mutant(
        "folder_gpu.c", "for (uint64_t i = 0; i < parts; i++)", "for (uint64_t i = 0; i < 1; i++)"
    ),
    "slots are written while they are read": Mutant(
        "folder_gpu.c",
        "        if (g->next + parts + g->blocks > g->unfinished + SLOTS)\n            return OPTCC_AGAIN;",
        "",
    ),
    "a payload that is lent has left at once": Mutant(
        "wires_shm.c",
        "        w->lent++;\n",
        "        w->lent++;\n        w->forgotten++;\n        w->left++;\n        s->owed++;\n",
    ),
    "a payload is never returned": Mutant(
        "wires_shm.c", "    atomic_store(&w->in->returned, ++w->returned);\n    wake", "    wake"
    ),
    "bytes beyond a region are read": Mutant("wires_shm.c", "|| length > r->bytes - where.offset\n", "\n"),
}


def find(library: Path) -> None:
    """Exit status 1, or a crash, when something is found."""
    lib = load(library)
    faulthandler.disable()
    for seed in range(150):
        if play(lib, seed, late=True).fault or play(lib, seed, doomed=True, late=True).doomed_fault:
            sys.exit(1)
    for seed in range(24):
        schedules = LARGE if seed % 2 else native.in_place(ground_of("4 x 2, one at a third"))
        one = Machine(lib, schedules[0][1], *CALLS[seed % len(CALLS)], seed, MANY if seed % 2 else Tuned(), gpu=True)
        if one.run(50_000) or one.run(50_000):
            sys.exit(1)

    def make(name: str, dtype: str, op: Op, seed: int, tuned: Tuned | None = None, *, gpu: bool = True) -> Machine:
        schedules = LARGE if name == "large" else native.in_place(ground_of(name))
        return Machine(lib, schedules[0][1], dtype, op, seed, tuned or Tuned(), gpu=gpu)

    try:
        test_memory_that_is_not_reached_is_not_read(lib, make, True)
        test_nothing_is_given_back_that_is_read_still(lib, make)
        test_jobs_cost_their_time_and_no_more(lib)
    except AssertionError:
        sys.exit(1)
    sys.exit(0)


QUICK = ("a payload is released before its job is done", "a job that has begun is done", "a payload is never returned")


def tried(library: Path) -> int | None:
    grounds()
    child = get_context("fork").Process(target=find, args=(library,))
    child.start()
    child.join(300)
    if child.exitcode is None:
        child.kill()
        child.join()
    return child.exitcode


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in MUTANTS]
)
def test_a_mutant_is_found(name: str, tmp_path: Path) -> None:
    assert tried(build(tmp_path, MUTANTS[name].planted(tmp_path), LOOSE))


@pytest.mark.long
def test_without_a_mutant_nothing_is_found(tmp_path: Path) -> None:
    assert tried(build(tmp_path)) == 0


# --- sanitizers ----------------------------------------------------------------------------------------------------

WATCHED = "import sys; from pathlib import Path; from tests.test_native_gpu import find; find(Path(sys.argv[1]))"


def watched(library: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WATCHED, str(library)]
    return subprocess.run(
        command, cwd=native.ROOT, env=native.sanitized(), capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.long
def test_nothing_is_touched_but_what_is_given(tmp_path: Path) -> None:
    done = watched(build(tmp_path, flags=native.SANITIZERS))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.long
def test_the_sanitizers_see_a_queue_that_is_too_short(tmp_path: Path) -> None:
    short = Mutant("program.c", "p->work = room(segments,", "p->work = room(segments / 2,")
    done = watched(build(tmp_path, short.planted(tmp_path), native.SANITIZERS))
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
