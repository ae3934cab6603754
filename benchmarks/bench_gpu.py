"""Folds in GPU memory against the copy bandwidth of the same GPU in the same run, fused folds, and what a launch costs.

Writes docs/bench-gpu.md. Exit status 1 when a fold of 1 MiB or more stays under 90 % of the copy bandwidth at its size.
Needs a CUDA device with 12 GiB and cupy.
"""

from __future__ import annotations

import platform
import sys
import textwrap
import time
from collections.abc import Callable
from statistics import median

import cupy
import numpy as np

from benchmarks.pages import parser, table, write
from optcc.runtime.devices.cuda import Gpu, describe_gpu
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import DTYPES, Op, dtype_of
from optcc.values.units import format_seconds, format_size

KIB, MIB, GIB = 2**10, 2**20, 2**30
POOL = GIB
"""Bytes of each operand that repetitions go through in turn, so that 1 MiB and more never come from the L2 cache."""
SHARE = 0.9
Work = Callable[[int], None]


def seconds(gpu: Gpu, work: Callable[[], None], repeat: int) -> list[float]:
    """How long the GPU takes over what `work` gives to the fold stream, `repeat` times, by its own clock."""
    taken = []
    for _ in range(repeat):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(gpu.stream)
        work()
        end.record(gpu.stream)
        end.synchronize()
        taken.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return taken


class Bench:
    """Three pools of random bits, and rates of work on them."""

    def __init__(self, gpu: Gpu, quick: bool) -> None:
        self.gpu, self.quick = gpu, quick
        bits = np.random.default_rng(1).standard_normal(POOL // 64, np.float32).view(np.uint8)
        first = gpu.put(bits)
        self.pools = [gpu.empty(POOL, first.dtype) for _ in range(3)]
        for pool in self.pools:
            for at in range(0, POOL, len(bits)):
                gpu.copy(pool[at : at + len(bits)], first)
        gpu.wait()
        self.failed: list[str] = []

    def part(self, pool: int, index: int, nbytes: int, dtype: str = "float32", shift: int = 0) -> DeviceArray:
        """Bytes number `index` of a pool, counted round and round."""
        at = index % ((POOL - 64) // nbytes) * nbytes + shift
        return self.pools[pool][at : at + nbytes].view(dtype_of(dtype))

    def seconds(self, work: Work, nbytes: int) -> float:
        """Device seconds of one repetition among many, one after another in a graph."""
        count = max(2, min(1000, (2 if self.quick else 8) * GIB // nbytes))
        work(0)
        self.gpu.wait()
        with self.gpu.recorded(self.gpu.stream) as graph:
            for index in range(count):
                work(index)
        seconds(self.gpu, lambda: graph[0].launch(self.gpu.stream), 1)
        return median(seconds(self.gpu, lambda: graph[0].launch(self.gpu.stream), 5)) / count

    def memcpy(self, nbytes: int) -> float:
        """Bytes per second read and written by cudaMemcpyAsync within the GPU."""
        work: Work = lambda i: self.gpu.memcpy(self.part(0, i, nbytes), self.part(1, i, nbytes))  # noqa: E731
        return 2 * nbytes / self.seconds(work, nbytes)

    def copy(self, nbytes: int) -> float:
        """The same by our own kernel."""
        work: Work = lambda i: self.gpu.copy(self.part(0, i, nbytes), self.part(1, i, nbytes))  # noqa: E731
        return 2 * nbytes / self.seconds(work, nbytes)

    def fold(self, nbytes: int, dtype: str = "float32", op: Op = Op.SUM, shift: int = 0, apart: int = 0) -> float:
        """Bytes per second read and written by folds in place; `shift` and `apart` are bytes of misalignment."""

        def work(i: int) -> None:
            own, landed = self.part(0, i, nbytes, dtype, shift), self.part(1, i, nbytes, dtype, shift + apart)
            self.gpu.fold(op, own, landed)

        return 3 * nbytes / self.seconds(work, nbytes)

    def demand(self, holds: bool, what: str) -> str:
        """A mark for the table; what does not hold is remembered."""
        if not holds:
            self.failed.append(what)
        return "" if holds else " (under 90 %)"


def tb(rate: float) -> str:
    return f"{rate / 1e12:.2f}"


def prose(*sentences: str) -> list[str]:
    return textwrap.wrap(" ".join(sentences), 118)


def spaced(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["", *table(head, rows), ""]


def folds(bench: Bench) -> list[str]:
    sizes = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, POOL // 2]
    memcpys, kernels = ({size: rate(size) for size in sizes} for rate in (bench.memcpy, bench.copy))
    copies = {size: max(memcpys[size], kernels[size]) for size in sizes}
    rows = []
    for size in sizes:
        rate = bench.fold(size)
        share = rate / copies[size]
        mark = bench.demand(size < MIB or share >= SHARE, f"float32 sum of {format_size(size)}")
        rates = (memcpys[size], kernels[size], rate)
        rows.append([format_size(size), *(tb(r) for r in rates), f"{100 * share:.1f} %{mark}"])
    text = [
        "## Folds against copies",
        "",
        *prose(
            "TB/s, counting bytes read and written: a copy of n bytes moves 2n, a fold 3n. Repetitions one after",
            "another in a graph, over memory that the L2 cache does not hold (64 KiB and 256 KiB partly come from it).",
        ),
        *spaced(["size", "cudaMemcpyAsync", "copy kernel", "fold (float32 sum, in place)", "fold / better copy"], rows),
        "Every type and operation, 64 MiB, as a share of the better copy's bandwidth at that size:",
    ]
    rows = []
    for dtype in DTYPES:
        shares = [bench.fold(64 * MIB, dtype, op) / copies[64 * MIB] for op in Op]
        marks = [bench.demand(s >= SHARE, f"{dtype} {op}") for s, op in zip(shares, Op, strict=True)]
        rows.append([dtype, *(f"{100 * s:.1f} %{m}" for s, m in zip(shares, marks, strict=True))])
    text += spaced(["", *Op], rows)
    text += ["At 1 MiB, the types that need most instructions:"]
    rows = []
    for dtype in ("uint8", "float16", "bfloat16", "float64"):
        share = bench.fold(MIB, dtype) / copies[MIB]
        rows.append([dtype, f"{100 * share:.1f} %{bench.demand(share >= SHARE, f'{dtype} sum of 1 MiB')}"])
    text += spaced(["", "sum"], rows)
    shifted, unlike = bench.fold(64 * MIB, shift=8), bench.fold(64 * MIB, apart=4)
    eight = bench.fold(64 * MIB, apart=8)
    alike, by_8, by_4 = (f"{100 * rate / copies[64 * MIB]:.1f} %" for rate in (shifted, eight, unlike))
    return [
        *text,
        *prose(
            f"Misaligned alike by 8 bytes (schedules cut at multiples of 8, and slots are placed alike): {alike}.",
            f"Operands that lie unlike by 8 bytes: {by_8}; by 4 bytes: {by_4}.",
        ),
        "",
    ]


def fusion(bench: Bench) -> list[str]:
    gpu, rows = bench.gpu, []
    for size in (MIB, 4 * MIB, 16 * MIB, 64 * MIB):
        parts = lambda i, n=size: tuple(bench.part(pool, i, n) for pool in range(3))  # noqa: E731

        def separate(i: int, parts: Callable[[int], tuple[DeviceArray, ...]] = parts) -> None:
            own, landed, onward = parts(i)
            gpu.fold(Op.SUM, own, landed)
            gpu.copy(onward, own)

        def passing(i: int, parts: Callable[[int], tuple[DeviceArray, ...]] = parts) -> None:
            own, landed, onward = parts(i)
            gpu.fold(Op.SUM, own, landed, onward)

        def keeping(i: int, parts: Callable[[int], tuple[DeviceArray, ...]] = parts) -> None:
            own, landed, onward = parts(i)
            gpu.fold(Op.SUM, own, landed, own, onward)

        apart, passed, kept = (bench.seconds(work, size) for work in (separate, passing, keeping))
        rows.append(
            [
                format_size(size),
                *(format_seconds(s) for s in (apart, kept, passed)),
                f"{apart / kept:.2f}",
                f"{apart / passed:.2f}",
            ]
        )
    return [
        "## One kernel for own + landed -> the next hop's buffer",
        "",
        *prose(
            "Apart: a fold in place, then a copy onward (5n bytes). Kept: one kernel writes both (4n). Passed on: one",
            "kernel writes the next hop's buffer only (3n), for partial results that nobody reads here again.",
        ),
        *spaced(["size", "apart", "kept", "passed on", "apart / kept", "apart / passed on"], rows),
    ]


def launches(bench: Bench) -> list[str]:
    gpu = bench.gpu
    small = [bench.part(pool, 0, 1024) for pool in range(2)]
    gpu.fold(Op.SUM, *small)
    gpu.wait()
    calls = 3000
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(calls):
            gpu.fold(Op.SUM, *small)
        taken.append((time.perf_counter() - start) / calls)
        gpu.wait()
    in_graph = bench.seconds(lambda i: gpu.fold(Op.SUM, *small), 8 * MIB)
    full = bench.fold(256 * MIB)
    sizes = [128 * KIB, 256 * KIB, 512 * KIB, *(n * MIB for n in (1, 2, 4, 8, 16, 32, 64))]
    rows, first = [], {}
    names = "called from Python", "graph", "graph, 4 streams"
    for size in sizes:
        parts = [(bench.part(0, i, size), bench.part(1, i, size)) for i in range(min(512, POOL // size - 1))]

        def one_by_one(parts: list[tuple[DeviceArray, DeviceArray]] = parts) -> None:
            for own, landed in parts:
                gpu.fold(Op.SUM, own, landed)

        called = 3 * size * len(parts) / median(seconds(gpu, one_by_one, 5))
        graphed, beside = bench.fold(size), four_streams(bench, size)
        rates = {names[0]: called, names[1]: graphed, names[2]: beside}
        for name, rate in rates.items():
            if rate >= SHARE * full:
                first.setdefault(name, size)
        rows.append([format_size(size), *(f"{100 * rate / full:.1f} %" for rate in rates.values())])
    found = "; ".join(f"{name}: {format_size(size)}" for name, size in first.items())
    return [
        "## What a launch costs",
        "",
        *prose(
            f"A call of `fold` takes {1e6 * min(taken):.2f} us of the processor; a fold of 1 KiB in a graph takes",
            f"{1e6 * in_graph:.2f} us on the GPU, which is what one chunk costs beyond its bytes. Rates of chunks,",
            f"as a share of the rate at 256 MiB ({tb(full)} TB/s):",
        ),
        *spaced(["chunk", *names], rows),
        f"The smallest chunk that reaches 90 % of it: {found}.",
        "",
    ]


def four_streams(bench: Bench, size: int) -> float:
    """Bytes per second of folds in place that four streams of a graph have between them."""
    gpu = bench.gpu
    streams = [gpu.new_stream() for _ in range(4)]
    count = max(8, min(1000, 4 * GIB // size))
    with gpu.recorded(gpu.stream) as graph:
        start = gpu.mark()
        for stream in streams:
            stream.wait_event(start)
        for i in range(count):
            gpu.fold(Op.SUM, bench.part(0, i, size), bench.part(1, i, size), stream=streams[i % 4])
        for stream in streams:
            gpu.stream.wait_event(gpu.mark(stream))
    seconds(gpu, lambda: graph[0].launch(gpu.stream), 1)
    return 3 * size * count / median(seconds(gpu, lambda: graph[0].launch(gpu.stream), 5))


def main() -> int:
    asked = parser(__doc__, "bench-gpu")
    asked.add_argument("--quick", action="store_true", help="fewer repetitions")
    options = asked.parse_args()
    gpu = Gpu(0)
    bench = Bench(gpu, options.quick)
    text = ["# Folds in GPU memory", "", "Made by `make bench-gpu` on one GPU; medians of 5 or more.", ""]
    text += [f"{describe_gpu(gpu.index)}, Python {platform.python_version()}, numpy {np.__version__}.", ""]
    for section in (folds, fusion, launches):
        start = time.perf_counter()
        text += section(bench)
        print(f"{section.__name__}: {time.perf_counter() - start:.0f} s", flush=True)
    text += ["Missed: " + "; ".join(bench.failed) + "." if bench.failed else "All targets met.", ""]
    write(options.output, text)
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
