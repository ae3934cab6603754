"""The communicator's all_reduce on GPUs' arrays beside NCCL's, in the same processes, one to a GPU, in turns.

Writes docs/bench-gpu-communicator.md. Needs GPUs of one host, cupy, and torch for NCCL. Exit status 1 when a result is
wrong or optcc takes more than twice as long. `--twin` goes without a GPU and NCCL, which proves nothing but the script.
"""

from __future__ import annotations

import cProfile
import io
import multiprocessing
import os
import pstats
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np

import optcc
from benchmarks.bench_communicator import free_ports, ratios
from benchmarks.pages import made_with, parser, table, write
from optcc.communicator import interface
from optcc.communicator.on_gpu import OWN_GPU
from optcc.communicator.prepared import ROUNDS
from optcc.runtime.native.wires import GpuTuning
from optcc.values.units import format_seconds, format_size

MIB = 1 << 20
SIZES = {4 << 10: 20, MIB: 20, 64 * MIB: 5, 256 * MIB: 3}
"""Bytes -> calls in a row, of one and then of the other."""
TARGET, JUDGED = 2.0, (64 * MIB, 256 * MIB)
STAGED_CALLS = 3
"""Through host memory, for comparison."""
TUNINGS = [
    OWN_GPU,
    *(OWN_GPU._replace(segment=segment, window=16 * segment) for segment in (512 << 10, MIB)),
    *(OWN_GPU._replace(window=window) for window in (8 * MIB, 16 * MIB, 64 * MIB)),
    *(OWN_GPU._replace(part=part) for part in (32 << 10, 64 << 10, 256 << 10)),
    *(OWN_GPU._replace(blocks=blocks) for blocks in (16, 32)),
]
"""Tried one after the other, beside the first; each of its own communicator."""
LATEST_S = 540.0


class Kit:
    """Of one rank: arrays on its GPU, and NCCL."""

    def __init__(self, rank: int, world: int, port: int) -> None:
        import torch

        self._torch, self._device = torch, f"cuda:{rank}"
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group("nccl", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        self.versions = f"torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
        self.name = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(rank)}"

    def array(self, values: Any) -> Any:
        """A copy on the GPU."""
        return self._torch.from_numpy(values).to(self._device)

    def host(self, array: Any) -> Any:
        """A copy in host memory."""
        return array.cpu().numpy()

    def nccl(self, array: Any) -> None:
        """NCCL's, with its end awaited as optcc's is."""
        self._torch.distributed.all_reduce(array)
        self._torch.cuda.synchronize()

    def close(self) -> None:
        """Let go of NCCL."""
        self._torch.distributed.destroy_process_group()


class TwinKit:
    """What stands for it without a GPU."""

    versions, name = "no NCCL", "twins"

    def __init__(self, rank: int, world: int, port: int) -> None:
        from optcc.communicator import buffers
        from tests.test_communicator_gpu import FoldingTwin, OnTwin

        self._rank, self._of = rank, OnTwin
        twin = FoldingTwin(rank)
        buffers.gpu_numbered = lambda number: twin
        interface.gpu_called = lambda device: twin if device != "cpu" else None

    def array(self, values: Any) -> Any:
        """A copy that says it is on the twin."""
        return self._of(values.copy(), self._rank)

    def host(self, array: Any) -> Any:
        """What it is."""
        return array.array

    def nccl(self, array: Any) -> None:
        """Nothing, slowly."""
        time.sleep(1e-3)

    def close(self) -> None:
        """Nothing."""


def main() -> int:
    asked = parser(__doc__, "bench-gpu-communicator")
    asked.add_argument("--turns", type=int, default=15)
    asked.add_argument("--gpus", type=int, default=2)
    asked.add_argument("--sizes", type=int, nargs="+", default=[*SIZES], help="bytes")
    asked.add_argument("--no-tunings", action="store_true")
    asked.add_argument("--twin", action="store_true")
    options = asked.parse_args()
    context = multiprocessing.get_context("spawn")
    tunings = TUNINGS[:0] if options.no_tunings else TUNINGS
    ports = free_ports(4 + len(tunings))
    told = options.gpus, ports, options.turns, options.sizes, tunings, options.twin
    pipes, processes = [], []
    for rank in range(options.gpus):
        mine, theirs = context.Pipe()
        processes.append(context.Process(target=_rank, args=(rank, *told, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(mine)
    found: list[Any] = []
    until = time.monotonic() + LATEST_S
    while True:  # what rank 0 says is told at once: time may be short
        try:
            if not pipes[0].poll(max(0.0, until - time.monotonic())):
                print("rank 0 does not answer", file=sys.stderr)
                break
            said = pipes[0].recv()
        except EOFError:
            break
        print(*said, flush=True)
        found.append(said)
    for process in processes:
        process.join(10)
        if process.exitcode is None:
            process.kill()
    kinds = {kind: [said[1:] for said in found if said[0] == kind] for kind in ("size", "tuning", "about", "wrong")}
    if not kinds["about"]:
        return 1
    missed = [
        f"{format_size(size)}: {ratio:.2f}" for size, ratio, *_ in kinds["size"] if size in JUDGED and ratio > TARGET
    ]
    lines = [
        "# The communicator on GPUs' arrays, beside NCCL",
        "",
        f"Made by `make bench-gpu-communicator`: `all_reduce` of float32 sums in place, on {kinds['about'][0][0]}, a",
        'process to each: `optcc.Communicator(device="cuda")`, able to fail over as always, and NCCL by torch, both in',
        f"these processes, in turns, {options.turns} times, each call awaited. Time of a call on rank 0: medians.",
        "Ratios are of neighbouring turns: median (quartiles). Below 1 optcc is faster. *Folding* is the part of a",
        "call in which the ranks exchange and fold; the rest is copies within the GPU and waits for it.",
        '*By host memory* is a communicator with `device="cpu"`.',
        "",
        *table(
            ("size", "optcc", "folding", "NCCL", "ratio", "by host memory"),
            [(format_size(size), *cells) for size, _, *cells in kinds["size"]],
        ),
        "",
        "## Tunings",
        "",
        "Of the engine: segments, windows, blocks of the kernel, parts of a block; medians of one call.",
        "",
        *table(
            ("segment", "window", "blocks", "part", *(format_size(size) for size in JUDGED)),
            kinds["tuning"],
        ),
        "",
        f"Target, {TARGET:g} times NCCL: {'missed: ' + '; '.join(missed) if missed else 'met'}.",
        "",
        made_with(kinds["about"][0][1], f"numpy {np.__version__}"),
    ]
    write(options.output, lines, lambda cells: True)
    return 1 if missed or kinds["wrong"] or any(process.exitcode for process in processes) else 0


def _rank(
    rank: int,
    world: int,
    ports: Sequence[int],
    turns: int,
    sizes: Sequence[int],
    tunings: Sequence[GpuTuning],
    twin: bool,
    pipe: Any,
) -> None:
    def say(*what: object) -> None:
        if rank == 0:
            pipe.send(what)

    try:
        kit = (TwinKit if twin else Kit)(rank, world, ports[0])
        say("about", kit.name, kit.versions)
        _sizes(kit, rank, world, ports[1:3], turns, sizes, say)
        for port, tuning in zip(ports[3:-1], tunings, strict=True):
            _tuning(kit, rank, world, port, tuning, say)
        _profile(kit, rank, world, ports[-1], say)
        kit.close()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the others wait for nobody


def _made(rank: int, world: int, port: int, device: str, tune: bool = True) -> Any:
    return optcc.Communicator(rendezvous=f"127.0.0.1:{port}", rank=rank, world=world, device=device, tune=tune)


def _seconds(call: Callable[[], object], count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begun) / count


def _folding(comm: Any) -> list[float]:
    """Seconds of each call from now on, without copies."""
    found: list[float] = []
    run = comm._collectives._run

    def timed(*what: Any) -> float:
        seconds: float = run(*what)
        found.append(seconds)
        return seconds

    comm._collectives._run = timed
    return found


def _sizes(
    kit: Any, rank: int, world: int, ports: Sequence[int], turns: int, sizes: Sequence[int], say: Callable[..., None]
) -> None:
    with ExitStack() as stack:
        comm = stack.enter_context(_made(rank, world, ports[0], f"cuda:{rank}"))
        staged = stack.enter_context(_made(rank, world, ports[1], "cpu"))
        folding = _folding(comm)
        for nbytes in sizes:
            given = (np.arange(nbytes // 4) % 1000 + rank).astype(np.float32)
            total = (np.arange(nbytes // 4) % 1000 * world + sum(range(world))).astype(np.float32)
            for each in (comm, staged):
                x = kit.array(given)
                each.all_reduce(x)
                if not np.array_equal(kit.host(x), total):
                    say("wrong", nbytes)
                    print(f"rank {rank}: a result of {nbytes} bytes is wrong", file=sys.stderr, flush=True)
            x = kit.array(np.zeros_like(given))
            for _ in range(2 * ROUNDS + 1):  # a communicator has chosen its plan by then
                comm.all_reduce(x)
            for _ in range(5):
                kit.nccl(x)
            ours, theirs, count = [], [], SIZES.get(nbytes, 3)
            folding.clear()
            for _ in range(turns):
                comm.barrier()
                ours.append(_seconds(lambda x=x: comm.all_reduce(x), count))
                comm.barrier()
                theirs.append(_seconds(lambda x=x: kit.nccl(x), count))
            part = sorted(folding)[len(folding) // 2]
            through = _seconds(lambda x=x: staged.all_reduce(x), STAGED_CALLS)
            ratio, text = ratios(ours, theirs)
            cells = [format_seconds(each) for each in (median(ours), part, median(theirs))]
            say("size", nbytes, ratio, *cells, text, format_seconds(through))


def _tuning(kit: Any, rank: int, world: int, port: int, tuning: GpuTuning, say: Callable[..., None]) -> None:
    interface.tuning_for = lambda gpus: tuning
    with _made(rank, world, port, f"cuda:{rank}", tune=False) as comm:
        cells = []
        for nbytes in JUDGED:
            x = kit.array(np.zeros(nbytes // 4, np.float32))
            for _ in range(3):
                comm.all_reduce(x)
            cells.append(format_seconds(median(_seconds(lambda x=x: comm.all_reduce(x), 1) for _ in range(7))))
    named = [format_size(tuning.segment), format_size(tuning.window), tuning.blocks, format_size(tuning.part)]
    say("tuning", *named, *cells)


def _profile(kit: Any, rank: int, world: int, port: int, say: Callable[..., None]) -> None:
    """Where a small call's time goes: on standard output alone."""
    with _made(rank, world, port, f"cuda:{rank}") as comm:
        x = kit.array(np.zeros(1024, np.float32))
        for _ in range(20):
            comm.all_reduce(x)
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(200):
            comm.all_reduce(x)
        profile.disable()
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(30)
        say("profile", text.getvalue())


if __name__ == "__main__":
    sys.exit(main())
