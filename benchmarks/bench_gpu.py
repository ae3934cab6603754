"""Copies and folds by the resident kernel: bytes per second by its blocks and by the size of a part, and of all types.

Writes docs/bench-gpu.md. Exit status 1 when a type and operation folds less than a server with 400 Gb/s receives.
Needs a CUDA device with 4 GiB and cupy.
"""

from __future__ import annotations

import platform
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.pages import parser, table, write
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import DTYPES, Op, dtype_of
from optcc.runtime.devices.resident import BLOCKS, PART_BYTES
from optcc.values.units import format_size
from tests.served import COPY, FOLD, SLOTS, Served

KIB, MIB, GIB = 2**10, 2**20, 2**30
POOL = GIB
"""Bytes of each operand that repetitions go through in turn, so that they never come from the L2 cache."""
LEAST = 50e9
"""Bytes per second that a rank receives and is to fold."""
Parts = Sequence[tuple[DeviceArray, DeviceArray]]


def describe_gpu(index: int) -> str:
    """For people: the GPU, its driver's and cupy's versions."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(index)
    driver, runtime = cupy.cuda.runtime.driverGetVersion(), cupy.cuda.runtime.runtimeGetVersion()
    return f"{properties['name'].decode()}, CUDA driver {driver}, runtime {runtime}, cupy {cupy.__version__}"


def seconds(gpu: Any, work: Callable[[], None]) -> float:
    """How long the GPU takes over what `work` gives to `gpu.stream`, by its own clock."""
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(gpu.stream)
    work()
    end.record(gpu.stream)
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3


class Bench:
    """Two pools of random bits, and rates of work on them."""

    def __init__(self, gpu: Any, repeat: int, pool: int = POOL) -> None:
        self.gpu, self.repeat = gpu, repeat
        bits = np.random.default_rng(1).standard_normal(pool // 4, np.float32)
        self.pools = [gpu.put(bits.view(np.uint8)) for _ in range(2)]
        self._at = 0

    def parts(self, nbytes: int, count: int, dtype: str = "uint8") -> Parts:
        """The next ones, round and round."""
        kind, here, found = dtype_of(dtype), len(self.pools[0]) // nbytes, []
        for _ in range(count):
            at = self._at % here * nbytes
            to, source = (
                DeviceArray(pool.address + at, nbytes // kind.itemsize, kind, pool.gpu) for pool in self.pools
            )
            found.append((to, source))
            self._at += 1
        return found

    def memcpy(self, nbytes: int) -> float:
        """Bytes copied per second by cudaMemcpyAsync within the GPU."""
        import cupy

        def work() -> None:
            (to, source), *_ = self.parts(nbytes, 1)
            cupy.cuda.runtime.memcpyAsync(to.address, source.address, nbytes, 3, self.gpu.stream.ptr)

        return nbytes / median(seconds(self.gpu, work) for _ in range(self.repeat + 1))

    def served(
        self, task: int, dtype: str = "float32", op: Op = Op.SUM, blocks: int = BLOCKS, part: int = PART_BYTES
    ) -> float:
        """Bytes copied, or folded into others, per second by a kernel that is given all its jobs before it starts."""
        self.gpu.ready(dtype_of(dtype), op)
        served, count = Served(self.gpu, blocks), min(SLOTS - blocks, len(self.pools[0]) // part)
        taken = []
        for _ in range(self.repeat + 1):  # the first one loads the kernel
            first = served.give([(task, to, source) for to, source in self.parts(part, count, dtype)])
            taken.append(seconds(self.gpu, lambda first=first: served.launch(dtype_of(dtype), op, first)))  # type: ignore[misc]
            self.gpu.wait()
        return count * part / median(taken[1:])


def gb(rate: float) -> str:
    return f"{rate / 1e9:.0f}"


def prose(*sentences: str) -> list[str]:
    return textwrap.wrap(" ".join(sentences), 118)


def sizes(bench: Bench) -> list[str]:
    rows = [
        [str(blocks), *(gb(bench.served(FOLD, blocks=blocks, part=part << 10)) for part in (8, 32, 128, 512))]
        for blocks in (1, 4, 8, 16, 32, 64)
    ]
    copied = gb(bench.served(COPY))
    return [
        "## Blocks and parts",
        "",
        *prose(
            "GB/s of float32 that are folded into others (sum; three times as many are read and written), by blocks",
            f"of the kernel and by the size of a part. The engine has {BLOCKS} blocks and parts of",
            f"{format_size(PART_BYTES)}; so they copy {copied} GB/s, and cudaMemcpyAsync {gb(bench.memcpy(64 * MIB))}.",
        ),
        "",
        *table(["blocks", "8 KiB", "32 KiB", "128 KiB", "512 KiB"], rows),
        "",
    ]


def types(bench: Bench) -> tuple[list[str], list[str]]:
    rows, missed = [], []
    for dtype in DTYPES:
        rates = {op: bench.served(FOLD, dtype, op) for op in Op}
        missed += [f"{dtype} {op}" for op, rate in rates.items() if rate < LEAST]
        rows.append([dtype, *map(gb, rates.values())])
    text = [
        "## Types and operations",
        "",
        *prose(f"The same as the engine has it. A server with 400 Gb/s receives {gb(LEAST)} GB/s."),
        "",
        *table(["", *Op], rows),
        "",
    ]
    return text, missed


def page(bench: Bench, about: str) -> tuple[list[str], list[str]]:
    """The page, and what missed the target."""
    start = time.perf_counter()
    text = ["# Folds in GPU memory", "", "Made by `make bench-gpu` on one GPU; medians.", "", about, ""]
    text += sizes(bench)
    more, missed = types(bench)
    text += [*more, f"Missed: {', '.join(missed)}." if missed else "All targets met.", ""]
    print(f"{time.perf_counter() - start:.0f} s", flush=True)
    return text, missed


def main() -> int:
    asked = parser(__doc__, "bench-gpu")
    asked.add_argument("--repeat", type=int, default=9)
    options = asked.parse_args()
    from optcc.runtime.devices.cuda import Gpu

    about = f"{describe_gpu(0)}, Python {platform.python_version()}, numpy {np.__version__}."
    text, missed = page(Bench(Gpu(0), options.repeat), about)
    write(options.output, text)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
