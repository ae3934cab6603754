"""AllReduce on one machine as fast as it goes: optcc's local transport against Gloo and the machine's memory, in turns.

Writes docs/bench-gloo.md. Needs torch, for its Gloo: the extra `torch`, or `pip install torch`. Exit status 1 when a
result is wrong or, at 64 MiB, the compiled path is less than 4 times as fast as Gloo or takes more than 1.5 times what
memory allows; 2 without torch.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from rich.progress import track

import optcc
from benchmarks.memory_floor import MemoryFloor
from benchmarks.pages import parser, write
from optcc.runtime.compiled.choice import PATHS
from optcc.runtime.control.launch import run_schedules
from optcc.values.units import format_seconds, format_size

RANKS = 4
SIZES = (2**20, 8 * 2**20, 64 * 2**20)
JUDGED, OVER_GLOO, OVER_FLOOR = 64 * 2**20, 0.25, 1.5
"""The size and path that count, and the most that optcc may take of Gloo's time and of the floor."""
RATE = Fraction(4 * 10**9)
"""What the plan is made for: about what a rank copies per second here."""

LEAD_S = 0.03
"""From the decision to start to the start."""


class Times(NamedTuple):
    """One AllReduce: seconds from the first rank's start to the last one's end, processor seconds of all ranks."""

    wall_s: float
    cpu_s: float


class Gloo:
    """Four processes of torch.distributed over Gloo, on the loopback interface."""

    def __init__(self, nbytes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._stack = ExitStack()
        meeting = Path(self._stack.enter_context(tempfile.TemporaryDirectory())) / "ranks"
        self._pipes: list[Connection] = []
        for rank in range(RANKS):
            mine, theirs = context.Pipe()
            process = context.Process(target=_gloo_rank, args=(rank, str(meeting), nbytes, theirs), daemon=True)
            process.start()
            self._stack.callback(process.join, 10)
            self._pipes.append(mine)
        self._replies()

    def __enter__(self) -> Gloo:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        self._stack.close()

    def run(self) -> Times:
        """One AllReduce, its result checked. All ranks have filled their buffers before any of them starts."""
        for pipe in self._pipes:
            pipe.send("fill")
        self._replies()
        start = time.monotonic() + LEAD_S
        for pipe in self._pipes:
            pipe.send(start)
        ran = self._replies()
        return Times(max(end for _, end, _ in ran) - min(start for start, _, _ in ran), sum(cpu for *_, cpu in ran))

    def _replies(self) -> list[Any]:
        replies = []
        for pipe in self._pipes:
            if not pipe.poll(60):
                raise SystemExit("a Gloo rank does not answer")
            replies.append(pipe.recv())
        return replies


def _gloo_rank(rank: int, meeting: str, nbytes: int, pipe: Connection) -> None:
    """Sum when told; the buffer is filled before and checked after, out of the time."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    index = torch.arange(nbytes // 4) % 1000
    buffer = torch.empty(nbytes // 4, dtype=torch.float32)
    expected = (index * RANKS + sum(range(RANKS))).float()
    pipe.send(None)
    while pipe.recv() is not None:
        torch.add(index, rank, out=buffer)
        pipe.send(None)
        time.sleep(max(0.0, pipe.recv() - time.monotonic()))
        start, cpu = time.monotonic(), time.process_time()
        torch.distributed.all_reduce(buffer)
        end, cpu = time.monotonic(), time.process_time() - cpu
        if not torch.equal(buffer, expected):
            raise SystemExit("Gloo's result is wrong")
        pipe.send((start, end, cpu))


def measure(nbytes: int, repeat: int, path: str) -> tuple[list[Times], list[Times], list[float], bool]:
    """optcc's and Gloo's runs and the seconds that memory takes, in turns; whether optcc's results were exact."""
    cluster = optcc.Cluster.uniform(servers=RANKS, nics=1, rate=RATE)
    schedule = optcc.plan(cluster, nbytes, family="nested-rings", segments=1).schedule()
    theirs: list[Times] = []
    floor: list[float] = []
    with Gloo(nbytes) as gloo, MemoryFloor(nbytes) as memory:
        gloo.run()
        memory.run(schedule)

        def others(*_: object) -> None:
            theirs.append(gloo.run())
            floor.append(memory.run(schedule))

        run = run_schedules({"optcc": schedule}, repeat=repeat, paced=False, path=path, progress=others)["optcc"]
    return [Times(*both) for both in zip(run.seconds, run.cpu_s, strict=True)], theirs, floor, all(run.exact)


def over(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Quartiles of a over b, run by run."""
    low, ratio, high = quantiles(x / y for x, y in zip(a, b, strict=True))
    return low, ratio, high


def text(ratio: tuple[float, float, float]) -> str:
    low, middle, high = ratio
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def seconds(many: Sequence[float]) -> str:
    return format_seconds(median(many))


def main() -> int:
    asked = parser(__doc__, "bench-gloo")
    asked.add_argument("--repeat", type=int, default=25)
    options = asked.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("torch is missing; install it with: pip install torch", file=sys.stderr)
        return 2
    import torch

    lines = [
        "# AllReduce on one machine, against Gloo",
        "",
        f"Made by `make bench-gloo`: float32 sum between {RANKS} processes, no rates emulated, every result checked.",
        "optcc runs one ring of one segment over its local transport, able to fail over as always.",
        "A communicator's tuner takes the same ring on one machine. In a direct exchange pieces of three ranks come",
        "before their turn to be folded, and each is copied once more.",
        f"Gloo is torch {torch.__version__}'s `all_reduce` on the loopback interface.",
        "The floor is what memory allows: the schedule's folds and copies alone, by as many processes as cores,",
        "between arrays of their own.",
        f"All processes are started first; then optcc, Gloo and the floor take turns, {options.repeat} times.",
        "Time from the first rank's start to the last one's end, and processor time of all ranks; medians.",
        "Ratios are of neighbouring runs: median (quartiles).",
        "",
        "| size | path | optcc | Gloo | over Gloo | floor | over floor | optcc, processor | Gloo, processor | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    good = True
    for nbytes, path in track([(nbytes, path) for nbytes in SIZES for path in PATHS], "Running"):
        ours, theirs, floor, exact = measure(nbytes, options.repeat, path)
        wall, cpu = zip(*ours, strict=True)
        gloo_wall, gloo_cpu = zip(*theirs, strict=True)
        over_gloo, over_floor = over(wall, gloo_wall), over(wall, floor)
        cells = [format_size(nbytes), path, seconds(wall), seconds(gloo_wall), text(over_gloo), seconds(floor)]
        cells += [text(over_floor), seconds(cpu), seconds(gloo_cpu), text(over(cpu, gloo_cpu))]
        if (nbytes, path) == (JUDGED, "compiled"):
            good &= over_gloo[1] <= OVER_GLOO and over_floor[1] <= OVER_FLOOR
        good &= exact
        lines.append(f"| {' | '.join(cells)} |" + ("" if exact else " WRONG"))
    lines += [
        "",
        "## Which bytes are touched",
        "",
        "Ranks' buffers lie in memory that the ranks share.",
        "The compiled path leaves a chunk where it is in its sender's buffer and says where; the receiver folds or",
        "copies it from there.",
        "So a payload byte that is folded is read with the receiver's own and written once, three bytes in all, and",
        "one that is copied two: what the floor counts.",
        "Python's path, and a communicator whose callers bring their own buffers, copy a chunk into the receiver's",
        "landing slot first: two bytes more for each.",
        "Gloo sends through TCP, which copies every byte twice.",
        "With more segments than the one here a chunk is sent on while it is in the processor's cache, so that memory",
        "sees less than the floor counts; what each chunk costs besides outweighs that here.",
        "",
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f} at the end.",
        "",
    ]
    write(options.output, lines, lambda c: c["path"] == "compiled")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
