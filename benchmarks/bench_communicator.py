"""The communicator's all_reduce against Gloo's, both in the same four processes of this machine, in turns.

Writes docs/bench-communicator.md. Needs torch, for its Gloo: the extra `torch`. Exit status 1 when a result is wrong or
optcc is slower than Gloo at 4 KiB or 64 MiB, 2 without torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import numpy as np

import optcc
from optcc.units import format_seconds, format_size

RANKS = 4
SIZES = {4 << 10: 50, 64 << 10: 50, 1 << 20: 20, 8 << 20: 5, 64 << 20: 2}
"""Bytes -> calls in a row, of one and then of the other."""
JUDGED = (4 << 10, 64 << 20)


class Turn(NamedTuple):
    """Calls in a row: seconds of each, on rank 0; processor seconds of each, of all ranks together."""

    wall_s: float
    cpu_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/bench-communicator.md"))
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("torch is missing; install it with: pip install torch", file=sys.stderr)
        return 2
    import torch

    lines = [
        "# The communicator's latency, against Gloo",
        "",
        f"Made by `python -m benchmarks.bench_communicator`: `all_reduce` of float32 sums between {RANKS} processes,",
        "blocking, one call after the other, on the caller's buffers: the public call of `optcc.Communicator` over its",
        f"local transport, able to fail over as always, and torch {torch.__version__}'s over Gloo on the loopback",
        f"interface. The same processes do both, in turns, {options.turns} times. Time of one call on rank 0, and",
        "processor time of all ranks; medians. Ratios are of neighbouring turns: median (quartiles).",
        "Below 1 optcc is faster.",
        "",
        "| size | optcc | Gloo | ratio | optcc, processor | Gloo, processor | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    good = True
    for nbytes, (ours, theirs) in measured(options.turns).items():
        cells = [format_size(nbytes)]
        for column in range(2):
            a, b = [turn[column] for turn in ours], [turn[column] for turn in theirs]
            low, ratio, high = quantiles(x / y for x, y in zip(a, b, strict=True))
            cells += [format_seconds(median(a)), format_seconds(median(b)), f"{ratio:.2f} ({low:.2f}-{high:.2f})"]
            good &= ratio <= 1 or column != 0 or nbytes not in JUDGED
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"Python {platform.python_version()}, {os.cpu_count()} CPUs.", ""]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))
    return 0 if good else 1


def measured(turns: int) -> dict[int, tuple[list[Turn], list[Turn]]]:
    """By size, the turns of optcc and of Gloo."""
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(RANKS):
            mine, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(rank, port, f"{folder}/ranks", turns, theirs), daemon=True)
            process.start()
            pipes.append(mine)
            processes.append(process)
        found = []
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(900):
                raise SystemExit(f"rank {rank} does not answer")
            found.append(pipe.recv())
        for process in processes:
            process.join(30)
    made: dict[int, tuple[list[Turn], list[Turn]]] = {}
    for nbytes in SIZES:
        both = tuple(
            [Turn(all_ranks[0][0], sum(cpu for _, cpu in all_ranks)) for all_ranks in zip(*of_ranks, strict=True)]
            for of_ranks in zip(*(rank[nbytes] for rank in found), strict=True)
        )
        made[nbytes] = both[0], both[1]
    return made


def _rank(rank: int, port: int, meeting: str, turns: int, pipe: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    found: dict[int, tuple[list[Turn], list[Turn]]] = {}
    with optcc.Communicator(rendezvous=f"127.0.0.1:{port}", rank=rank, world=RANKS) as comm:
        for nbytes, calls in SIZES.items():
            given = (np.arange(nbytes // 4) % 1000 + rank).astype(np.float32)
            expected = (np.arange(nbytes // 4) % 1000 * RANKS + sum(range(RANKS))).astype(np.float32)
            buffer = given.copy()
            tensor = torch.from_numpy(buffer)

            def ours(buffer: Any = buffer) -> None:
                comm.all_reduce(buffer)

            def theirs(tensor: Any = tensor) -> None:
                torch.distributed.all_reduce(tensor)

            found[nbytes] = [], []
            for turn in range(-1, turns):  # -1 warms up
                for call, times in zip((ours, theirs), found[nbytes], strict=True):
                    buffer[:] = given
                    took = _timed(call, calls if turn >= 0 else 1)
                    if turn >= 0:
                        times.append(took)
                    elif not np.array_equal(buffer, expected):
                        raise SystemExit(f"a result of {nbytes} bytes is wrong")
        pipe.send(found)
    torch.distributed.destroy_process_group()


def _timed(call: Callable[[], None], calls: int) -> Turn:
    start, cpu = time.monotonic(), time.process_time()
    for _ in range(calls):
        call()
    return Turn((time.monotonic() - start) / calls, (time.process_time() - cpu) / calls)


if __name__ == "__main__":
    sys.exit(main())
