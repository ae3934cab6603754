"""Sums of the plugin for NCCL on a GPU, with CUDA and NCCL's launches played: a kernel that comes late, goes early, or
never comes; and what is missing leaves the sums to the processor, and is said."""

from __future__ import annotations

import ctypes
import re
import signal
import time
from collections.abc import Callable
from ctypes import byref, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bench_nccl_gpu import Job, Life
from tests.native_build import LOOSE, Mutant, build
from tests.nccl_ranks import Build, Outcome, Ranks, loopback, played_cuda, run, sanitizing, shared_build

pytestmark = pytest.mark.cc


@pytest.fixture(scope="module")
def built() -> Build:
    return shared_build()


def play(built: Build, ranks: int, flags: str = "-O2", **more: str) -> Outcome:
    """Two groups, a communicator each, and one that is aborted, at each of the ranks."""
    seed = int(more.pop("seed", "1"))
    version = int(more.pop("version", "12"))
    calls = int(more.pop("calls", "60"))
    env = {**played_cuda(built, flags), "PLAYED_CUDA_SEED": str(seed), "HARNESS_LIMIT_S": "100", **more}
    return run(built, loopback(ranks), seed=seed, calls=calls, version=version, env=env)


def sums(outcome: Outcome) -> dict[str, float]:
    """What seats say when they are left, of all ranks together."""
    found: dict[str, float] = {
        "gpu": 0,
        "kernels": 0,
        "processor": 0,
        "left": 0,
        "graphs": 0,
        "without": 0,
        "late": 0,
        "idle": 0,
    }
    form = (
        r"sums: ([\d.]+) MB by the GPU in (\d+) kernels, ([\d.]+) MB by the processor; "
        r"(\d+) jobs of kernels that had gone; (\d+) launches for graphs "
        r"and (\d+) others without a kernel, (\d+) kernels that came late, (\d+) that left with nothing to do"
    )
    for told in re.findall(form, "\n".join(outcome.logged)):
        for name, value in zip(found, told, strict=True):
            found[name] += float(value)
    return found


@pytest.mark.parametrize(("ranks", "version"), [(2, 12), (3, 11), (4, 12)])
def test_kernels_beside_nccls_add(built: Build, ranks: int, version: int) -> None:
    """All types and operations, right to the bit; two communicators on a GPU at once."""
    outcome = play(built, ranks, seed=str(ranks), version=str(version))
    assert not outcome.fault
    assert "sums of this group are the GPU's" in outcome.logged[0]
    found = sums(outcome)
    assert found["gpu"] > 1
    assert found["kernels"] > 3


@pytest.mark.parametrize(("seed", "segment"), [(1, 131072), (2, 4096), (3, 131072)])
def test_kernels_that_come_and_go_as_they_like(built: Build, seed: int, segment: int) -> None:
    """Hooks that come late or never, launches for graphs, kernels that end before their calls do or begin late."""
    more = {"HARNESS_LAUNCHES": "odd", "PLAYED_CUDA_LATE_US": "20000", "OPTCC_SEGMENT_BYTES": str(segment)}
    outcome = play(built, 2 + seed % 3, seed=str(seed), calls="80", **more)
    assert not outcome.fault
    found = sums(outcome)
    assert found["graphs"] > 0
    assert found["kernels"] > 0


def test_kernels_leave_while_a_rank_is_late(built: Build) -> None:
    """The others' have nothing to do meanwhile, and leave; every sum is right, by whomever."""
    env = {**played_cuda(built), "HARNESS_LIMIT_S": "100"}
    with Ranks(built, loopback(3), calls=200, env=env) as ranks:
        log = ranks.folder / "log.0"
        while "on by" not in log.read_text(encoding="utf-8"):
            time.sleep(0.01)
        for _ in range(3):
            ranks.processes[1].send_signal(signal.SIGSTOP)
            time.sleep(0.8)
            ranks.processes[1].send_signal(signal.SIGCONT)
            time.sleep(0.1)
        outcome = ranks.outcome()
    assert not outcome.fault
    found = sums(outcome)
    assert found["idle"] > 0
    assert found["gpu"] > 1


def test_a_kernel_that_does_not_begin_is_not_waited_for(built: Build) -> None:
    outcome = play(built, 2, PLAYED_CUDA_NEVER="1")
    assert not outcome.fault
    found = sums(outcome)
    assert found["gpu"] == found["kernels"] == 0
    assert found["processor"] > 1
    assert found["late"] > 3


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"OPTCC_GPU": "off"}, "OPTCC_GPU=off"),
        ({"version": "10"}, "NCCL is older than 2.28, or NCCL_PROFILER_PLUGIN names another library"),
        ({"LD_LIBRARY_PATH": "/nowhere"}, "there is no libcuda.so.1"),
        ({"PLAYED_CUDA_BROKEN": "cuCtxGetCurrent"}, "the thread that connects has no GPU"),
    ],
)
def test_what_is_missing_is_said_and_the_processor_adds(built: Build, more: dict[str, str], why: str) -> None:
    outcome = play(built, 2, calls="20", **more)
    assert not outcome.fault
    assert all(f"sums of this group are the processor's: {why}" in log for log in outcome.logged)


@pytest.mark.parametrize("broken", ["cuModuleLoadData", "nvrtcCompileProgram", "serve_life", "tell_over"])
def test_what_fails_later_leaves_the_processor(built: Build, broken: str) -> None:
    """`tell_over`: nothing else would end the kernel, so it is told at once."""
    outcome = play(built, 3, PLAYED_CUDA_BROKEN=broken, calls="40")
    assert not outcome.fault
    assert sums(outcome)["processor"] > 1
    assert ("NVRTC does not compile" in outcome.logged[0]) == (broken == "nvrtcCompileProgram")
    assert "has not ended" not in "".join(outcome.logged)


class Seat:
    """What a communicator has on a GPU, without one: twins are the kernels. Its job: 3 and an array are added up."""

    def __init__(self, lib: Any, blocks: int) -> None:
        self.lib, self.blocks, self.total = lib, blocks, 300
        lib.optcc_gpu_bytes.restype = c_uint64
        self.room = np.zeros(lib.optcc_gpu_bytes(blocks) + 128, np.uint8)
        self.memory = c_void_p(self.room.ctypes.data + -self.room.ctypes.data % 128)
        self.to, self.origin = np.full(self.total, 3, np.int8), np.arange(self.total).astype(np.int8)
        self.gpu, self.twins = c_void_p(), []
        assert lib.optcc_gpu_open(self.memory, blocks, c_uint64(128), byref(self.gpu)) == 0
        for array in (self.to, self.origin):
            assert lib.optcc_gpu_reach(self.gpu, c_void_p(array.ctypes.data), c_uint64(self.total)) == 0

    def life(self) -> tuple[c_uint64, int, c_void_p]:
        """A kernel is launched: its word, its number, its twin."""
        life, twin = Life(), c_void_p()
        assert self.lib.optcc_gpu_ask(self.gpu, 0, byref(life)) == 0
        number, seed = c_uint64(life.number), c_uint64(1)
        assert self.lib.optcc_gpu_twin_life(self.memory, self.blocks, 0, number, seed, byref(twin)) == 0
        self.twins.append(twin)
        return c_uint64.from_address(life.over), life.number, twin

    def look(self, now_ns: int = 0) -> bool:
        """Whether jobs go to a kernel."""
        return bool(self.lib.optcc_gpu_look(self.gpu, c_uint64(now_ns)) == 0)

    def gone(self) -> bool:
        return bool(self.lib.optcc_gpu_gone(self.gpu) == 0)

    def fold(self) -> c_uint64:
        job, ticket = Job(self.to.ctypes.data, self.origin.ctypes.data, self.total, 0, 0, 1), c_uint64()
        assert self.lib.optcc_gpu_job(self.gpu, byref(job), byref(ticket)) == 0
        return ticket

    def done(self, ticket: c_uint64) -> bool:
        return bool(self.lib.optcc_gpu_done(self.gpu, ticket) == 0)

    def right(self, jobs: int = 1) -> bool:
        return bool((self.to == np.int8(3) + np.int8(jobs) * self.origin).all())

    def close(self) -> None:
        for twin in self.twins:
            self.lib.optcc_gpu_twin_close(twin)
        self.lib.optcc_gpu_close(self.gpu)


def late_jobs(lib: Any) -> bool:
    """Whether a job is done that is given after the kernel has gone, and before anybody has looked whether it has."""
    seat = Seat(lib, 2)
    assert not seat.look()
    over, number, twin = seat.life()
    while not seat.look():
        lib.optcc_gpu_twin_step(twin, 1)
    over.value = number
    while lib.optcc_gpu_twin_step(twin, 1):
        pass
    ticket = seat.fold()
    assert not seat.done(ticket)
    assert not seat.look()
    assert seat.done(ticket)
    assert seat.gone()
    seat.close()
    return seat.right()


def unseen(lib: Any) -> bool:
    """Whether two kernels have gone of which the second came and went before anybody looked."""
    seat = Seat(lib, 4)
    for seen in (True, False):
        over, number, twin = seat.life()
        lib.optcc_gpu_twin_step(twin, 1000)
        assert not seen or seat.look()
        over.value = number
        assert lib.optcc_gpu_twin_step(twin, 1000) == 0
    seat.look()
    gone = seat.gone()
    seat.close()
    return gone


STAYS_NS = 250_000_000
"""As native/folder_gpu.c has it."""


def idle_left(lib: Any, steps: int) -> str:
    """What is wrong with a kernel that is given a job, and then nothing for long: it leaves, no moment too early, takes
    no jobs then, and has not gone before NCCL's kernel has ended, behind which something writes where it looks.

    steps : of its blocks, until it is looked at; a few, and some blocks have not begun.
    """
    seat, counts = Seat(lib, 4), (c_uint64 * 6)()
    over, number, twin = seat.life()
    assert not seat.look()  # nothing is there, so nothing is idle
    lib.optcc_gpu_twin_step(twin, steps)
    now_ns = 10**10
    there = seat.look(now_ns)
    if there:
        now_ns += STAYS_NS - 1
        ticket = seat.fold()
        while not seat.done(ticket):
            lib.optcc_gpu_twin_step(twin, 1)
        seat.look(now_ns)
        assert seat.right()
    told = []
    for later_ns in (STAYS_NS - 1, STAYS_NS):
        takes = seat.look(now_ns + later_ns)
        told.append(over.value != 0)
    at_once = seat.done(seat.fold())
    left = lib.optcc_gpu_twin_step(twin, 1000)  # those that had no place find that there is nothing to do
    seat.look(now_ns + STAYS_NS)
    gone = [seat.gone()]
    over.value = number
    seat.look(now_ns + STAYS_NS)
    gone.append(seat.gone())
    lib.optcc_gpu_count(seat.gpu, byref(counts))
    seat.close()
    found = told, takes, at_once, left, gone, counts[2], counts[5], seat.right(1 + there)
    return "" if found == ([False, True], False, True, 0, [False, True], there, 1, True) else str(found)


def finds(folder: Path, bug: Mutant, check: Callable[[Any], bool]) -> bool:
    """Whether a check of a library fails with a bug."""
    folder.mkdir()
    return not check(ctypes.CDLL(str(build(folder, bug.planted(folder), LOOSE))))


def test_a_job_that_a_kernel_has_left_is_done(tmp_path: Path) -> None:
    assert late_jobs(ctypes.CDLL(str(build(tmp_path))))
    forgotten = Mutant("folder_gpu.c", "                do_slot(slot); /* else", "                ; /* else")
    assert finds(tmp_path / "wrong", forgotten, late_jobs)


def test_a_kernel_that_nobody_has_seen_has_gone(tmp_path: Path) -> None:
    assert unseen(ctypes.CDLL(str(build(tmp_path))))
    assert finds(tmp_path / "wrong", Mutant("folder_gpu.c", "acquire) < life)", "acquire) != life)"), unseen)


@pytest.mark.parametrize("steps", [3, 1000])
def test_a_kernel_that_has_nothing_to_do_gives_its_place_away(steps: int, tmp_path: Path) -> None:
    """NCCL's may wait for it. So does one of which not all blocks have found a place."""
    assert idle_left(ctypes.CDLL(str(build(tmp_path))), steps) == ""
    late = "now_ns >= g->idle_ns + STAYS_NS"
    bugs = {
        "it stays": (late, "now_ns < g->idle_ns"),
        "it leaves too early": (late, late + " - 1"),
        "it has gone before NCCL's": (
            "memory_order_acquire) != life)\n        return 0;",
            "memory_order_acquire) == 99)\n        return 0;",
        ),
        "it is given jobs": ("if (ends(g->lives, g->life))", "if (has_gone(g, g->life))"),
    }
    for name, (old, new) in bugs.items():
        if steps == 1000 or name != "it is given jobs":
            assert finds(tmp_path / name, Mutant("folder_gpu.c", old, new), lambda lib: not idle_left(lib, steps)), name


def test_another_word_for_the_gpu_is_refused(built: Build) -> None:
    outcome = play(built, 2, OPTCC_GPU="on", calls="4", HARNESS_LIMIT_S="20")
    assert "OPTCC_GPU=on: expected auto" in outcome.logged[0]
    assert outcome.fault


# --- bugs that must be found, sanitizers -----------------------------------------------------------------------------


MUTANTS = {
    "a kernel is believed to be there before it is": Mutant(
        "folder_gpu.c", "if (begun < g->blocks || ends", "if (ends"
    ),
    "a slot is used again while it is read": Mutant(
        "nccl/groups.c", "p->read[p->heard % SLOTS] = landed == OPTCC_AGAIN;", "p->read[p->heard % SLOTS] = 0;"
    ),
    "a call begins before its input is there": Mutant(
        "nccl/groups.c", "if (g->gpu && optcc_gpu_done(g->gpu, c->ticket) != OPTCC_OK)", "if (0)"
    ),
    "another type's jobs go to the kernel": Mutant(
        "folder_gpu.c", "(!job->fold || job->type == g->type) &&\n", "\n"
    ),
    "a first job that is not the next": Mutant(
        "folder_gpu.c", "(&g->lives[FIRST], g->next,", "(&g->lives[FIRST], g->next + 1,"
    ),
}  # fmt: skip


def found(mutant: str, folder: Path) -> bool:
    built = Build.wrong(folder, MUTANTS[mutant])
    more = {"HARNESS_LAUNCHES": "odd", "HARNESS_LIMIT_S": "25", "OPTCC_RETURN_S": "5", "calls": "150"}
    more["OPTCC_SEGMENT_BYTES"] = "4096"  # what comes is more messages than a connection has slots
    return any(play(built, 3, seed=str(seed), **more).fault for seed in (1, 2))


def test_a_slot_that_is_used_again_is_found(tmp_path: Path) -> None:
    assert found("a slot is used again while it is read", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_mutant_is_found(mutant: str, tmp_path: Path) -> None:
    assert found(mutant, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(kind: str) -> None:
    built = shared_build(kind)
    outcome = play(built, 3, sanitizing(kind), HARNESS_LAUNCHES="odd", calls="40", OPTCC_RETURN_S="100")
    assert not outcome.unsound
