"""AllReduce between processes on GPUs of one machine by the native engine and its resident kernel: right bits, and time
over the bound of servers with 400 Gb/s.

No NIC is played: the wires are as fast as they can be, so a ratio below 1 is possible. Ranks share a GPU by MPS where
there is one. `--twin` goes without a GPU: a thread does what the kernel does, and times mean nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from ctypes import byref, c_void_p
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

import optcc
from optcc.machine.native import library
from optcc.runtime.devices.host import Op, name_of
from optcc.runtime.devices.mps import mps_service, sharing_of
from optcc.runtime.devices.resident import BLOCKS, PART_BYTES, LentGpuMemory, ResidentFolder
from optcc.runtime.native.library import NEVER, Until
from optcc.schedule import Schedule
from tests import native_replay as native

RATE = Fraction(12_500_000_000)
"""Of a NIC, four of them a server."""
PATIENCE_S = 60.0
SECOND_NS = 10**9
LATE_COPIES = 100
"""Of the whole buffer, which the first call of each kind waits for."""
LATEST_S = 300.0
"""For all cases."""


class Tuning(NamedTuple):
    """Of the engine and the kernel: bytes, bytes, blocks, bytes."""

    segment: int = 1 << 18
    window: int = 1 << 21
    blocks: int = BLOCKS
    part: int = PART_BYTES


class Meeting:
    """What stands for the control plane between processes that are forked from here: `exchange` of each rank."""

    def __init__(self, ranks: int) -> None:
        context = get_context("fork")
        self._barrier = context.Barrier(ranks)
        self._pipes = [context.Pipe() for _ in range(ranks)]

    def exchange_of(self, rank: int) -> Callable[[Any], list[Any]]:
        """Each rank's value to all, one after another."""

        def exchange(value: Any) -> list[Any]:
            found = []
            for turn, (out, into) in enumerate(self._pipes):
                if turn == rank:
                    for _ in self._pipes:
                        out.send(value)
                for reader in range(len(self._pipes)):
                    self._barrier.wait(PATIENCE_S)
                    if reader == rank:
                        found.append(into.recv())
                self._barrier.wait(PATIENCE_S)
            return found

        return exchange


class RankOf:
    """One rank: engine, wires to the others of this machine, its GPU. Closed by `with`."""

    def __init__(self, gpu: Any, rank: int, ranks: int, where: int, exchange: Any, tuning: Tuning, ring: int) -> None:
        self.lib, self.gpu, self.rank = native.load(native_library()), gpu, rank
        self.shm, self.engine, self.programs = c_void_p(), c_void_p(), []
        self._check(self.lib.optcc_shm_open(byref(native.shm_config(ranks, rank, 1, ring)), where, byref(self.shm)))
        config = native.Config(
            segment_bytes=tuning.segment,
            window_bytes=tuning.window,
            job=1,
            suspect_ns=SECOND_NS,
            grace_ns=SECOND_NS // 2,
            knock_ns=SECOND_NS // 10,
            return_ns=60 * SECOND_NS,
            spin_ns=SECOND_NS,
        )
        self._check(self.lib.optcc_shm_engine(self.shm, byref(config), byref(self.engine)))
        self.folder = ResidentFolder(self.lib, gpu, blocks=tuning.blocks, part_bytes=tuning.part)
        self.lent = LentGpuMemory(self.lib, gpu, self.shm, rank, exchange)
        self.exchange, self.segment = exchange, tuning.segment

    @staticmethod
    def _check(result: int) -> None:
        if result != native.OK:
            raise RuntimeError(native.RESULTS[result])

    def program(self, schedule: Schedule) -> Any:
        """A rank's part, folded on the GPU."""
        any_lane = np.zeros(len(schedule.routes), np.uint64)
        made = native.program(self.lib, schedule, self.rank, self.segment, any_lane)
        self.folder.use(made)
        self.programs.append(made)
        return made

    def run(self, program: Any, buffer: Any, op: Op, stream: object = None) -> None:
        """A collective in place. RuntimeError where it does not end well."""
        self.folder.launch(buffer, op, stream)
        try:
            until = time.monotonic() + PATIENCE_S
            while not self.folder.ready:
                self.lib.optcc_progress(self.engine)
                if time.monotonic() > until:
                    raise RuntimeError("the kernel does not start")
            call = native.call_at(buffer.address, name_of(buffer.dtype), op)
            self._check(self.lib.optcc_begin(self.engine, program, call))
            self._check(self.lib.optcc_wait(self.engine, byref(Until(int(PATIENCE_S * SECOND_NS), NEVER, -1))))
        finally:
            self.folder.end()

    def __enter__(self) -> RankOf:
        return self

    def __exit__(self, *_: object) -> None:
        """When all are here: the last acknowledgement may have to be said again."""
        for _ in range(1000):
            self.lib.optcc_progress(self.engine)
        self.exchange(None)
        self.lent.close()
        self.lib.optcc_close(self.engine)
        for program in self.programs:
            self.lib.optcc_program_close(program)
        self.folder.close()
        self.lib.optcc_shm_close(self.shm)


def native_library() -> Any:
    """The path of the library that is installed."""
    return library()._name


def in_processes(ranks: int, of_rank: Callable[[int, Any], None]) -> list[int | None]:
    """Run `of_rank(rank, exchange)` in as many processes; returns their exit codes."""
    meeting, context = Meeting(ranks), get_context("fork")
    processes = [context.Process(target=of_rank, args=(rank, meeting.exchange_of(rank))) for rank in range(ranks)]
    for process in processes:
        process.start()
    until = time.monotonic() + LATEST_S
    while any(process.exitcode is None for process in processes) and time.monotonic() < until:
        time.sleep(0.05)
        if any(process.exitcode for process in processes):  # the others wait for this one
            until = min(until, time.monotonic() + 5)
    for process in processes:
        if process.exitcode is None:
            process.kill()  # a GPU's call that waits hears nothing else
        process.join()
    return [process.exitcode for process in processes]


def ring_bytes(tuning: Tuning) -> int:
    """Of the wires' rings: payloads of a GPU do not go through them, but the engine wants room for four."""
    return 4 * (-(-tuning.segment // 64) * 64 + 16384)


def gpu_of(index: int | None) -> Any:
    """That GPU, or a twin."""
    if index is None:
        from tests.cuda_twin import SharedTwin

        return SharedTwin()
    from optcc.runtime.devices.cuda import Gpu

    return Gpu(index)


def new_stream() -> Any:
    """A caller's, that waits for no other of its own accord."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def copy(out: Any, source: Any, stream: Any) -> None:
    """Within a GPU, given to the stream."""
    import cupy

    cupy.cuda.runtime.memcpyAsync(out.address, source.address, out.nbytes, 3, stream.ptr)


@dataclass
class Case:
    """Calls of one kind, and what came of them. took : seconds of each, as the slowest rank saw it"""

    name: str
    schedule: Schedule
    bound_s: float
    tuning: Tuning
    dtype: str = "float32"
    op: Op = Op.SUM
    calls: int = 1
    took: Any = None
    exact: bool = False

    def told(self) -> str:
        """For people."""
        median_s, least_s = float(np.median(self.took)), float(self.took.min())
        return (
            f"{self.name}, {self.dtype} {self.op}, {self.schedule.nbytes >> 10} KiB; segments of "
            f"{self.tuning.segment >> 10} KiB, {self.tuning.blocks} blocks, parts of {self.tuning.part >> 10} KiB: "
            f"{median_s * 1e3:.3f} ms (least {least_s * 1e3:.3f}), {median_s / self.bound_s:.3f} of the bound, "
            f"{'exact' if self.exact else 'WRONG'}"
        )


def measure(cases: Sequence[Case], gpus: int) -> None:
    """Run them one after another, all by the same processes, each call behind late work of a stream of its own.

    gpus : that ranks share, one after another; 0: twins
    """
    twin = not gpus
    context, ranks = get_context("fork"), cases[0].schedule.ranks
    lib = native.load(native_library())
    shared = [native.shm_config(ranks, 0, 1, ring_bytes(case.tuning)) for case in cases]
    memories = [mmap.mmap(-1, lib.optcc_shm_bytes(byref(each))) for each in shared]
    places = [ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in memories]
    kept: dict[tuple[int, str, Op], Any] = {}
    for case in cases:
        key = id(case.schedule), case.dtype, case.op
        if key not in kept:
            given = native.inputs(case.schedule, case.dtype, case.op, 5)
            kept[key] = given, native.expected(case.schedule, given, case.op)
    times = [context.Array("d", ranks * case.calls) for case in cases]
    right = [context.Value("i", 0) for _ in cases]

    def of_rank(rank: int, exchange: Any) -> None:
        gpu = gpu_of(None if twin else rank % gpus)
        for at, case in enumerate(cases):
            given, wanted = (of[rank] for of in kept[id(case.schedule), case.dtype, case.op])
            with RankOf(gpu, rank, ranks, places[at], exchange, case.tuning, ring_bytes(case.tuning)) as mine:
                source, buffer, result = (gpu.empty(len(given), given.dtype) for _ in range(3))
                stream = None if twin else new_stream()
                gpu.ready(buffer.dtype, case.op)
                program = mine.program(case.schedule)
                mine.lent.lend(buffer)
                gpu.put(given, source)
                for call in range(case.calls):
                    gpu.put(np.zeros_like(given), buffer)
                    exchange(None)
                    if twin or call:
                        gpu.put(given, buffer)
                    else:  # the first call is made before its buffer is filled
                        for _ in range(LATE_COPIES):
                            copy(buffer, source, stream)
                    begun = time.perf_counter()
                    mine.run(program, buffer, case.op, stream)
                    times[at][rank * case.calls + call] = time.perf_counter() - begun
                    if not twin:
                        copy(result, buffer, stream)
                        stream.synchronize()
                    if gpu.get(buffer if twin else result).tobytes() == wanted.tobytes():
                        with right[at].get_lock():
                            right[at].value += 1
                    exchange(None)

    codes = in_processes(ranks, of_rank)
    if any(codes):
        raise RuntimeError(f"ranks ended with {codes}")
    for case, took, exact in zip(cases, times, right, strict=True):
        case.took = np.array(took).reshape(ranks, case.calls).max(axis=0)
        case.took = case.took[1:] if case.calls > 1 else case.took
        case.exact = exact.value == ranks * case.calls


def main(arguments: Sequence[str] | None = None) -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--ranks", type=int, default=4)
    asked.add_argument("--mib", type=int, nargs="+", default=[64, 256])
    asked.add_argument("--calls", type=int, default=9)
    asked.add_argument("--pieces", type=int, default=8, help="that a plan cuts its transfers into")
    asked.add_argument("--segments", type=int, nargs="+", default=[Tuning().segment >> 10], help="KiB, of the engine")
    asked.add_argument("--blocks", type=int, nargs="+", default=[BLOCKS])
    asked.add_argument("--parts", type=int, nargs="+", default=[PART_BYTES >> 10], help="KiB")
    asked.add_argument("--types", action="store_true", help="all types and operations, short, in place of that")
    asked.add_argument("--gpus", type=int, default=1, help="that ranks use in turn")
    asked.add_argument("--twin", action="store_true")
    asked.add_argument("--no-mps", action="store_true")
    options = asked.parse_args(arguments)
    whole = optcc.Cluster.uniform(servers=options.ranks, nics=4, rate=RATE)
    clusters = {"all NICs": whole, "one NIC of server1 dead": whole.degrade("server1/nic0")}
    cases: list[Case] = []
    if options.types:
        plan = optcc.plan(whole, 1 << 20, segments=2)
        schedule, bound_s = plan.schedule(), float(plan.bound.seconds)
        small = Tuning(1 << 16, 1 << 19)
        cases = [Case("all NICs", schedule, bound_s, small, dtype, op) for dtype in native.TYPES for op in Op]
    for name, cluster in clusters.items() if not options.types else ():
        for mib in options.mib:
            plan = optcc.plan(cluster, mib << 20, segments=options.pieces)
            schedule, bound_s = plan.schedule(), float(plan.bound.seconds)
            for segment, blocks, part in product(options.segments, options.blocks, options.parts):
                tuning = Tuning(segment << 10, 8 * segment << 10, blocks, part << 10)
                cases.append(Case(name, schedule, bound_s, tuning, calls=options.calls))
    sharing = sharing_of(options.ranks, options.gpus, os.environ)
    serve = sharing.mps and not (options.twin or options.no_mps)
    with mps_service(os.environ) if serve else nullcontext(os.environ) as environ:
        os.environ.update(environ)
        print("twin" if options.twin else sharing.why, flush=True)
        measure(cases, 0 if options.twin else options.gpus)
    for case in cases:
        print(case.told())
    return not all(case.exact for case in cases)


if __name__ == "__main__":
    sys.exit(main())
