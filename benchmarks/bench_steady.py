"""What it costs to be able to fail over while nothing fails. Writes docs/bench-steady.md.

The runtime against itself without failover, in turns, in the same processes: same engine, same schedule, same wires.
Exit status 1 when a result is wrong or an AllReduce takes over 1.03 times as long.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

import optcc
from benchmarks.bare_compiled import Bare, BarePath, Quiet, compile_bare
from benchmarks.pages import interval, made_with, parser, write
from optcc.runtime.compiled.compiling import compile_all
from optcc.runtime.compiled.engine import CompiledEngine
from optcc.runtime.compiled.path import CompiledPath
from optcc.runtime.devices.host import Op, empty
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import program_of
from optcc.runtime.evidence.payload import fill, is_exact, reference
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.layout import SLOT_BYTES, layout_of
from optcc.runtime.wires.lent import Arena
from optcc.runtime.wires.pacing import Rates
from optcc.schedule import Schedule
from optcc.values.units import format_rate, format_seconds, format_size

RANKS, SIZE = 4, 64 * 2**20
CASES = ((SLOT_BYTES, Fraction(10**9, 2)), (SLOT_BYTES, None), (SLOT_BYTES // 4, None))
"""Bytes of a chunk, and bytes per second of a NIC; None: as fast as the machine goes."""
MOST = 1.03
OVER = "over"
HEAD = (
    "| chunks | a NIC's rate | time, able | without | ratio | processor, able | without | ratio |",
    "|---|---|---|---|---|---|---|---|",
)


KINDS: tuple[tuple[type[FlowTransport], bool], ...] = ((FlowTransport, True), (Bare, False))
"""Transport, and whether arrivals are acknowledged."""
PATHS = (CompiledPath, BarePath)
"""The same two over compiled code."""


class Ran(NamedTuple):
    """A rank's part of one run."""

    kind: int
    start: float
    end: float
    cpu_s: float
    exact: bool


class Silence:
    """A watch that never speaks."""

    def __init__(self) -> None:
        self._fds = os.pipe()

    def fileno(self) -> int:
        return self._fds[0]

    def check(self) -> None:
        pass


class Case(NamedTuple):
    """One row of a table. rate : of a NIC, bytes per second; None: as fast as the machine goes."""

    compiled: bool
    slot_bytes: int
    rate: Fraction | None


def rank_main(rank: int, schedule: Schedule, case: Case, pairs: int, pipe: Connection) -> None:
    """Both kinds in turns: with, without, without, with, ..."""

    def exchange(value: Any) -> list[Any]:
        pipe.send(value)
        return list(pipe.recv())

    layout = layout_of({"it": schedule}, case.slot_bytes)
    rates = layout.rates if case.rate else [Rates(math.inf, math.inf)] * len(layout.nics)
    program = program_of(schedule, rank, 4)
    # One set of wires for both: two would differ by several per cent for where their slots lie in memory.
    lent = Arena(schedule.nbytes) if case.compiled else None  # as `optcc run` does
    buffer = (lent.empty if lent else empty)(schedule.nbytes // 4, np.dtype(np.float32))
    wires = Quiet(rank, layout.wires, layout.flows, rates, exchange=exchange, watch=Silence(), lent=lent)
    routes = {"it": schedule.routes}
    both = [kind(rank, layout, routes, wires, lambda *_: None, time.monotonic) for kind, _ in KINDS]
    engines: list[Callable[..., Engine]] = [Engine, Engine]
    if case.compiled:
        engines = [partial(CompiledEngine, path(flows, wires)) for path, flows in zip(PATHS, both, strict=True)]
    start = empty(schedule.nbytes // 4, np.dtype(np.float32))
    fill(start, rank=rank, ranks=RANKS, op=Op.SUM)
    expected = reference(len(start), start.dtype, ranks=RANKS, op=Op.SUM)
    turns = [0, 1] + [kind for pair in range(pairs) for kind in ((0, 1) if pair % 2 else (1, 0))]
    for turn, kind in enumerate(turns):
        buffer[:] = start
        wires.acknowledges = KINDS[kind][1]
        both[kind].begin("it", program.receives)
        engine = engines[kind](program, buffer, Op.SUM, both[kind], time.monotonic)
        at = max(exchange(time.monotonic())) + 0.003
        time.sleep(max(0.0, at - time.monotonic()))
        began, cpu = time.monotonic(), time.process_time()
        engine.run()
        ended, cpu = time.monotonic(), time.process_time() - cpu
        exact = is_exact(buffer, expected) if turn % 20 < 2 or turn >= len(turns) - 2 else True
        exchange(Ran(kind, began, ended, cpu, exact))
        both[kind].poll(0.0, engine.take)  # the last credits, so that the other does not hear of them
    exchange(OVER)


def runs(schedule: Schedule, case: Case, pairs: int) -> Iterator[list[Ran]]:
    """All ranks' parts of every run but the first of each kind."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(RANKS)]
    ranks = [
        context.Process(target=rank_main, args=(rank, schedule, case, pairs, pipes[rank][1]), daemon=True)
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    warm_up = len(KINDS)
    while True:
        values: list[Any] = []
        for pipe, _ in pipes:
            if not pipe.poll(60):
                raise SystemExit("a rank does not answer")
            values.append(pipe.recv())
        for pipe, _ in pipes:
            pipe.send(values)
        if values[0] == OVER:
            break
        if isinstance(values[0], Ran):
            warm_up -= 1
            if warm_up < 0:
                yield values
    for process in ranks:
        process.join()


def row(case: Case, pairs: int) -> tuple[list[str], float, bool]:
    """The table's cells, the ratio of times, whether all results were exact."""
    cluster = optcc.Cluster.uniform(servers=RANKS, nics=1, rate=case.rate or Fraction(10**9))
    schedule = optcc.plan(cluster, SIZE, segments=max(1, SIZE // RANKS // (4 * case.slot_bytes))).schedule()
    seconds: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    exact = True
    title = f"{format_size(case.slot_bytes)}, {format_rate(case.rate) if case.rate else 'no limit'}"
    for ran in track(runs(schedule, case, pairs), title, total=2 * pairs):
        seconds[ran[0].kind].append(max(r.end for r in ran) - min(r.start for r in ran))
        cpu[ran[0].kind].append(sum(r.cpu_s for r in ran))
        exact &= all(r.exact for r in ran)
    cells, found = title.split(", "), []
    for able, bare in (seconds, cpu):
        ratios = [a / b for a, b in zip(able, bare, strict=True)]
        ratio, shown = interval(ratios)
        found.append(ratio)
        cells += [format_seconds(median(able)), format_seconds(median(bare)), shown]
    return cells, found[0], exact


def main() -> int:
    asked = parser(__doc__, "bench-steady")
    asked.add_argument("--pairs", type=int, default=200)
    options = asked.parse_args()
    compile_all()
    compile_bare()  # here and once, for processes that are forked
    good, tables = True, list[list[str]]()
    for compiled in (False, True):
        tables.append(list(HEAD))
        for slot_bytes, rate in CASES:
            cells, ratio, exact = row(Case(compiled, slot_bytes, rate), options.pairs)
            tables[-1].append(f"| {' | '.join(cells)} |" + ("" if exact else " WRONG"))
            good &= exact and ratio <= MOST
    lines = [
        "# What it costs to be able to fail over",
        "",
        f"Made by `make bench-steady`: {RANKS} ranks of one machine, a NIC each, {format_size(SIZE)} of float32, one",
        "ring; nothing fails. The runtime as it is, and the same without failover, run in the same processes over the",
        f"same wires, in turns, {options.pairs} pairs. Time is from the first rank's start to the last one's end;",
        "processor time is of all ranks. Medians, and of the pairs' ratios the median +- its 95 % interval",
        "(quartiles).",
        "",
        "## Chunks by compiled code",
        "",
        "Buffers are lent, as in `optcc run`. Without failover, the same sources are compiled a second time, less the",
        "lines that only failover needs (`benchmarks/bare_compiled.py` has them one by one): marks of what has landed,",
        "numbers and epochs of chunks and their checks, what may have to be sent again, the watch over progress. What",
        "stays: the window and its credits, checks of sizes and places, rings, sleeping and waking, the engine.",
        "",
        *tables[1],
        "",
        "## Chunks by Python",
        "",
        "Without failover there are no acknowledgements, protocol machines, epochs, chunks kept to be sent again, or",
        "timers; what stays is the window and its credits, which landing in slots needs anyhow.",
        "",
        *tables[0],
        "",
        "Where NICs are the limit the work is done while they send. What every chunk pays is a few numbers at each end",
        "(`optcc/runtime/protocol/steady.py`), what every poll pays a mark in shared memory for each flow.",
        "",
        made_with(),
    ]
    write(options.output, lines)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
