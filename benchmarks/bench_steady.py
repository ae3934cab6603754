"""What it costs to be able to fail over while nothing fails. Writes docs/bench-steady.md.

The runtime against itself without failover, in turns, in the same processes: same engine, same schedule, same wires.
Exit status 1 when a result is wrong or an AllReduce takes over 1.03 times as long.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

import optcc
from optcc.runtime.devices.host import Op, empty
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import program_of
from optcc.runtime.engine.transport import Landing, Take
from optcc.runtime.evidence.payload import fill, is_exact, reference
from optcc.runtime.flows.ends import CHUNK_HEADER, CHUNK_MARK
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.contract import HEADER_BYTES, Arrived, Credited
from optcc.runtime.wires.layout import SLOT_BYTES, Layout, layout_of
from optcc.runtime.wires.local import LocalWires
from optcc.runtime.wires.pacing import Rates
from optcc.schedule import Schedule
from optcc.values.units import format_rate, format_seconds, format_size

RANKS, SIZE = 4, 64 * 2**20
CASES = ((SLOT_BYTES, Fraction(10**9, 2)), (SLOT_BYTES, None), (SLOT_BYTES // 4, None))
"""Bytes of a chunk, and bytes per second of a NIC; None: as fast as the machine goes."""
MOST = 1.03
OVER = "over"


class Quiet(LocalWires):
    """Wires that need not tell the sender that a chunk has arrived."""

    acknowledges = True

    def _acknowledge(self, *landed: int) -> None:
        if self.acknowledges:
            super()._acknowledge(*landed)

    def _tell(self, *landed: int) -> None:
        if self.acknowledges:
            super()._tell(*landed)


@dataclass
class Count:
    """All that a flow without failover knows."""

    wire: int
    window: int
    posted: int = 0
    folded: int = 0


class Bare(FlowTransport):
    """The same flows, unable to move: no machines, epochs, chunks kept to be sent again, or timers.

    What stays is what landing in slots needs: a window, and credits.
    """

    def __init__(self, rank: int, layout: Layout, *rest: Any) -> None:
        super().__init__(rank, layout, *rest)
        self._every = {f: flow.receiver.credit_every for f, flow in self._ins.items()}
        for f, out in self._outs.items():
            out.sender = Count(layout.flows[f].wires[0], layout.flows[f].window)  # type: ignore[assignment]
        self._send_path.pump = self._pump  # type: ignore[method-assign]
        self._busy = self._send_path.busy

    def _pump(self, out: Any) -> None:
        now, count = self._clock(), out.sender
        while (
            out.queue and count.posted - count.folded < count.window and self._wires.free_at(count.wire, now) < math.inf
        ):
            ready, operation, row, offset, payload = out.queue.popleft()
            header = CHUNK_HEADER.pack(CHUNK_MARK, 0, operation, len(payload), count.posted, row, offset)
            self._wires.write(count.wire, out.number, count.posted, header, payload, ready)
            count.posted += 1
        if not out.queue:
            self._busy.discard(out.number)

    def poll(self, until: float, take: Take) -> list[Landing]:
        landings, missing = [], self._receive_path._missing
        for happening in self._wires.poll(until):
            if type(happening) is Arrived:
                wire, flow, seq, at = happening
                slot = self._wires.slot(flow, seq)
                _, _, _, nbytes, _, row, offset = CHUNK_HEADER.unpack_from(slot)
                take(row, offset, slot[HEADER_BYTES : HEADER_BYTES + nbytes])
                missing[row] -= nbytes
                if missing[row] == 0:
                    landings.append(Landing(row, at))
                if (seq + 1) % self._every[flow] == 0:
                    self._wires.credit(wire, flow, seq + 1)
            elif type(happening) is Credited:
                self._outs[happening.flow].sender.folded = happening.folded
        if self._busy:
            for flow in sorted(self._busy, key=lambda flow: self._outs[flow].queue[0].row):
                self._pump(self._outs[flow])
        return landings

    def drain(self) -> bool:
        """By the credits; the chunks of a run are a multiple of what one gives back, so the last says all."""
        return not self._busy and all(out.sender.posted == out.sender.folded for out in self._outs.values())


KINDS: tuple[tuple[type[FlowTransport], bool], ...] = ((FlowTransport, True), (Bare, False))
"""Transport, and whether arrivals are acknowledged."""


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


def rank_main(rank: int, schedule: Schedule, slot_bytes: int, paced: bool, pairs: int, pipe: Connection) -> None:
    """Both kinds in turns: with, without, without, with, ..."""

    def exchange(value: Any) -> list[Any]:
        pipe.send(value)
        return list(pipe.recv())

    layout = layout_of({"it": schedule}, slot_bytes)
    rates = layout.rates if paced else [Rates(math.inf, math.inf)] * len(layout.nics)
    program = program_of(schedule, rank, 4)
    # One set of wires for both: two would differ by several per cent for where their slots lie in memory.
    wires = Quiet(rank, layout.wires, layout.flows, rates, exchange=exchange, watch=Silence())
    routes = {"it": schedule.routes}
    both = [kind(rank, layout, routes, wires, lambda *_: None, time.monotonic) for kind, _ in KINDS]
    start = empty(schedule.nbytes // 4, np.dtype(np.float32))
    fill(start, rank=rank, ranks=RANKS, op=Op.SUM)
    expected = reference(len(start), start.dtype, ranks=RANKS, op=Op.SUM)
    buffer = start.copy()
    turns = [0, 1] + [kind for pair in range(pairs) for kind in ((0, 1) if pair % 2 else (1, 0))]
    for turn, kind in enumerate(turns):
        buffer[:] = start
        wires.acknowledges = KINDS[kind][1]
        both[kind].begin("it", program.receives)
        engine = Engine(program, buffer, Op.SUM, both[kind], time.monotonic)
        at = max(exchange(time.monotonic())) + 0.003
        time.sleep(max(0.0, at - time.monotonic()))
        began, cpu = time.monotonic(), time.process_time()
        engine.run()
        ended, cpu = time.monotonic(), time.process_time() - cpu
        exact = is_exact(buffer, expected) if turn % 20 < 2 or turn >= len(turns) - 2 else True
        exchange(Ran(kind, began, ended, cpu, exact))
        both[kind].poll(0.0, engine.take)  # the last credits, so that the other does not hear of them
    exchange(OVER)


def runs(schedule: Schedule, slot_bytes: int, paced: bool, pairs: int) -> Iterator[list[Ran]]:
    """All ranks' parts of every run but the first of each kind."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(RANKS)]
    ranks = [
        context.Process(target=rank_main, args=(rank, schedule, slot_bytes, paced, pairs, pipes[rank][1]), daemon=True)
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


def row(slot_bytes: int, rate: Fraction | None, pairs: int) -> tuple[list[str], float, bool]:
    """The table's cells, the ratio of times, whether all results were exact."""
    cluster = optcc.Cluster.uniform(servers=RANKS, nics=1, rate=rate or Fraction(10**9))
    schedule = optcc.plan(cluster, SIZE, segments=max(1, SIZE // RANKS // (4 * slot_bytes))).schedule()
    seconds: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    exact = True
    title = f"{format_size(slot_bytes)}, {format_rate(rate) if rate else 'no limit'}"
    for ran in track(runs(schedule, slot_bytes, rate is not None, pairs), title, total=2 * pairs):
        seconds[ran[0].kind].append(max(r.end for r in ran) - min(r.start for r in ran))
        cpu[ran[0].kind].append(sum(r.cpu_s for r in ran))
        exact &= all(r.exact for r in ran)
    cells, found = title.split(", "), []
    for able, bare in (seconds, cpu):
        ratios = [a / b for a, b in zip(able, bare, strict=True)]
        low, ratio, high = quantiles(ratios)
        within = 1.57 * (high - low) / math.sqrt(len(ratios))
        found.append(ratio)
        cells += [format_seconds(median(able)), format_seconds(median(bare))]
        cells += [f"{ratio:.3f} +- {within:.3f} ({low:.2f}-{high:.2f})"]
    return cells, found[0], exact


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/bench-steady.md"))
    parser.add_argument("--pairs", type=int, default=200)
    options = parser.parse_args()
    lines = [
        "# What it costs to be able to fail over",
        "",
        f"Made by `make bench-steady`: {RANKS} ranks of one machine, a NIC each, {format_size(SIZE)} of float32, one",
        "ring; nothing fails. The runtime as it is, and the same without failover: no acknowledgements, protocol",
        "machines, epochs, chunks kept to be sent again, or timers; what stays is the window and its credits, which",
        "landing in slots needs anyhow. Both run in the same processes over the same wires, in turns,",
        f"{options.pairs} pairs. Time is from the first rank's start to the last one's end; processor time is of all",
        "ranks. Medians, and of the pairs' ratios the median +- its 95 % interval (quartiles).",
        "",
        "| chunks | a NIC's rate | time, able | without | ratio | processor, able | without | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    good = True
    for slot_bytes, rate in CASES:
        cells, ratio, exact = row(slot_bytes, rate, options.pairs)
        lines.append(f"| {' | '.join(cells)} |" + ("" if exact else " WRONG"))
        good &= exact and ratio <= MOST
    lines += [
        "",
        "Where NICs are the limit the work is done while they send. Without a limit only copying is left beside it.",
        "What every chunk pays is a few numbers at each end (`optcc/runtime/protocol/steady.py`), and what every poll",
        "pays is a mark in shared memory for each flow that brought something. Messages acknowledge only at the end",
        "and where something may be stuck, for the rest credits do.",
        "",
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs.",
        "",
    ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
