"""The communicator's all_reduce against Gloo's, both in the same four processes of this machine, in turns; and its plan
against others that a tuner could choose from.

Writes docs/bench-communicator.md. Needs torch, for its Gloo: the extra `torch`. Exit status 1 when a result is wrong or
optcc is slower than Gloo at 4 KiB or 64 MiB, 2 without torch.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import optcc
from benchmarks.pages import made_with, parser, quartiles, write
from optcc.communicator.prepared import ROUNDS, Trial, size_class
from optcc.values.cluster import Cluster
from optcc.values.units import format_seconds, format_size

RANKS = 4
SIZES = {4 << 10: 50, 64 << 10: 50, 1 << 20: 20, 8 << 20: 5, 64 << 20: 2}
"""Bytes -> calls in a row, of one and then of the other."""
JUDGED = (4 << 10, 64 << 20)
FLOOR_BYTES = 1 << 20
"""From here on the floor is told: below, memory is not what takes the time."""
PIECE = 1 << 18
"""Elements of one fold or copy of the floor: a chunk of 1 MiB."""

PLANS = {
    "tuned": None,
    "4 segments": ("nested-rings", 4),
    "16 segments": ("nested-rings", 16),
    "direct exchange": ("direct-exchange", 1),
}
"""What the planner's choice is held against: the choice by measuring, or family and depth."""
WARM = 2 * ROUNDS + 1
"""Calls before the first that counts: a communicator has chosen by then."""
PLANNED = (1 << 20, 8 << 20, 64 << 20)


class Turn(NamedTuple):
    """Calls in a row: seconds of each, on rank 0; processor seconds of each, of all ranks together."""

    wall_s: float
    cpu_s: float


def main() -> int:
    asked = parser(__doc__, "bench-communicator")
    asked.add_argument("--turns", type=int, default=15)
    options = asked.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("torch is missing; install it with: pip install torch", file=sys.stderr)
        return 2
    import torch

    lines = [
        "# The communicator's latency, against Gloo",
        "",
        f"Made by `make bench-communicator`: `all_reduce` of float32 sums between {RANKS} processes,",
        "blocking, one call after the other, on the caller's buffers: the public call of `optcc.Communicator` over its",
        f"local transport, able to fail over as always, and torch {torch.__version__}'s over Gloo on the loopback",
        f"interface. The same processes do both, in turns, {options.turns} times. Time of one call on rank 0, and",
        "processor time of all ranks; medians. Ratios are of neighbouring turns: median (quartiles).",
        "Below 1 optcc is faster.",
        "The floor is what memory allows: the folds and copies of a ring alone, by the same processes in a turn of",
        "their own, between arrays as large as the buffer.",
        "",
        "optcc's calls are on two kinds of arrays: any memory, from which ranks copy into the receivers' slots; and",
        "arrays of `Communicator.empty`, which the receivers read. Each kind has a communicator, which tunes itself.",
    ]
    good = True
    found = measured(SIZES, options.turns, "gloo")
    for kind, title in enumerate(("Any memory", "Arrays of `Communicator.empty`")):
        lines += [
            "",
            f"## {title}",
            "",
            "| size | optcc | Gloo | ratio | optcc, processor | Gloo, processor | ratio | floor | over floor |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for nbytes, turns in found.items():
            row, faster = _row(nbytes, turns[kind], *turns[-2:])
            lines.append(row)
            good &= faster or nbytes not in JUDGED
    lines += [
        "",
        "## What tuning by measuring is worth",
        "",
        "Other plans against the planner's choice, one ring of one segment, likewise in turns: time, and processor",
        "time of all ranks, each over that of the planner's choice. Above 1 the other plan is slower. `tuned` is what",
        f"the communicator does by itself: {WARM - 1} calls of a size measure the ring and the direct exchange.",
        "",
        f"| size | {' | '.join(PLANS)} |",
        f"|---|{'---|' * len(PLANS)}",
    ]
    for nbytes, (own, *others) in measured(
        {nbytes: SIZES[nbytes] for nbytes in PLANNED}, options.turns, "plans"
    ).items():
        cells = [format_size(nbytes)]
        for other in others:
            times, work = (ratios([t[c] for t in other], [t[c] for t in own])[1] for c in range(2))
            cells.append(f"{times}, processor {work}")
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "Processes of one machine are as fast as its memory, so a plan with few steps is fastest at every size;",
        "over NICs",
        "the planner's choice is tried beside a quarter and four times of its segments.",
        "",
        made_with(),
    ]
    write(options.output, lines)
    return 0 if good else 1


def _row(nbytes: int, ours: Sequence[Turn], theirs: Sequence[Turn], floor: Sequence[Turn]) -> tuple[str, bool]:
    """A line of the table of calls of `nbytes` bytes, and whether optcc is not slower."""
    cells, faster = [format_size(nbytes)], True
    for column in range(2):
        a, b = [turn[column] for turn in ours], [turn[column] for turn in theirs]
        ratio, text = ratios(a, b)
        cells += [format_seconds(median(a)), format_seconds(median(b)), text]
        faster &= ratio <= 1 or column != 0
    if nbytes < FLOOR_BYTES:
        cells += ["", ""]
    else:
        a, b = ([turn.wall_s for turn in turns] for turns in (ours, floor))
        cells += [format_seconds(median(b)), ratios(a, b)[1]]
    return f"| {' | '.join(cells)} |", faster


def ratios(a: Sequence[float], b: Sequence[float]) -> tuple[float, str]:
    """The median of a over b, turn by turn; and with quartiles, for people."""
    return quartiles(x / y for x, y in zip(a, b, strict=True))


def measured(sizes: Mapping[int, int], turns: int, rivals: str) -> dict[int, list[list[Turn]]]:
    """By size, the turns of the communicator and of each of its rivals; `sizes` : bytes -> calls in a row."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ports, pipes, processes = free_ports(1 + len(PLANS)), [], []
        for rank in range(RANKS):
            mine, theirs = context.Pipe()
            what = (rank, ports, f"{folder}/ranks", sizes, turns, rivals, theirs)
            process = context.Process(target=_rank, args=what, daemon=True)
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
    return {
        nbytes: [
            [Turn(ranks[0].wall_s, sum(turn.cpu_s for turn in ranks)) for ranks in zip(*of_ranks, strict=True)]
            for of_ranks in zip(*(rank[nbytes] for rank in found), strict=True)
        ]
        for nbytes in sizes
    }


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def _rank(
    rank: int, ports: Sequence[int], meeting: str, sizes: Mapping[int, int], turns: int, rivals: str, pipe: Any
) -> None:
    found: dict[int, list[list[Turn]]] = {}
    with ExitStack() as stack:
        comms = [
            stack.enter_context(
                optcc.Communicator(
                    rendezvous=f"127.0.0.1:{port}", rank=rank, world=RANKS, tune=tuned or rivals == "gloo"
                )
            )
            for port, tuned in (zip(ports, (False, *(plan is None for plan in PLANS.values())), strict=True))
            if rivals == "plans" or port in ports[:2]
        ]
        for comm, plan in zip(comms[1:], PLANS.values(), strict=False):
            if plan and rivals == "plans":
                comm._prepared._trial = partial(_only, comm.cluster, *plan)  # type: ignore[method-assign]
        alone = _folds_and_copies(max(sizes))
        calls: list[Callable[[Any], object]] = [comm.all_reduce for comm in comms]
        if rivals == "gloo":
            calls += [_gloo(rank, meeting), alone]
        for nbytes, row in sizes.items():
            given = (np.arange(nbytes // 4) % 1000 + rank).astype(np.float32)
            expected = (np.arange(nbytes // 4) % 1000 * RANKS + sum(range(RANKS))).astype(np.float32)
            buffers = [given.copy() for _ in calls]
            if rivals == "gloo":
                buffers[1] = comms[1].empty(nbytes // 4, np.float32)
            found[nbytes] = [[] for _ in calls]
            for turn in range(-1, turns):  # -1 warms up
                for call, buffer, times in zip(calls, buffers, found[nbytes], strict=True):
                    buffer[:] = given
                    if turn < 0:
                        for _ in range(WARM):
                            buffer[:] = given
                            call(buffer)
                    else:
                        times.append(_timed(partial(call, buffer), row))
                    if turn < 0 and call is not alone and not np.array_equal(buffer, expected):
                        raise SystemExit(f"a result of {nbytes} bytes is wrong")
        pipe.send(found)


def _folds_and_copies(most: int) -> Callable[[Any], object]:
    """A rank's part of a ring's, for buffers of `most` bytes at most: of other arrays, so that the buffer stays."""
    own, landed = np.ones(most // 4, np.float32), np.ones(most // 4, np.float32)

    def work(buffer: Any) -> None:
        part = buffer.nbytes * (RANKS - 1) // RANKS
        for fold_or_copy in (lambda a, b: np.add(a, b, out=a), np.copyto):
            for at in range(0, part // 4, PIECE):
                here = slice(at, min(at + PIECE, part // 4))
                fold_or_copy(own[here], landed[here])

    return work


def _gloo(rank: int, meeting: str) -> Callable[[Any], object]:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    return lambda buffer: torch.distributed.all_reduce(torch.from_numpy(buffer))


@cache
def _only(cluster: Cluster, family: str, segments: int, nbytes: int) -> Trial:
    return Trial([optcc.plan(cluster, size_class(nbytes), family=family, segments=segments)])


def _timed(call: Callable[[], None], calls: int) -> Turn:
    start, cpu = time.monotonic(), time.process_time()
    for _ in range(calls):
        call()
    return Turn((time.monotonic() - start) / calls, (time.process_time() - cpu) / calls)


if __name__ == "__main__":
    sys.exit(main())
