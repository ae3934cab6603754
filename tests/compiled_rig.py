"""The rig's ranks over the compiled path, which gives back after every few chunks so that the rig can look on.

What the taps of the rig see of Python's path is made up from what the machines have counted since the turn before: so
hooks strike at the same moments, and every chunk is counted.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from optcc.runtime.compiled.engine import CompiledEngine
from optcc.runtime.compiled.path import CompiledPath
from optcc.runtime.compiled.tables import CHUNKS
from optcc.runtime.devices.host import Array
from optcc.runtime.engine.program import Program
from tests.failover_rig import Moment, Rig

MOST = 1
"""Chunks in a turn, sent or taken."""


taken: list[int] = []
"""Chunks of every turn so far."""


class Tapped(CompiledPath):
    """The path of one rank, watched."""

    def __init__(self, rig: Rig, rank: int) -> None:
        super().__init__(rig.flows[rank], rig.ends[rank])
        self._rig, self._rank, self.most = rig, rank, MOST

    def _fill(self, engine: CompiledEngine) -> bool:
        filled = super()._fill(engine)
        self._missing = engine.tables.arrays.rows["missing"].copy()
        return filled

    def _write_back(self, engine: CompiledEngine, code: int) -> None:
        outs, ins, rig = self._flows._outs, self._flows._ins, self._rig
        before = {n: (out.sender.posted, out.sender.acked, out.sender.folded) for n, out in outs.items()}
        landed = {n: into.receiver.landed for n, into in ins.items()}
        missing = self._missing
        super()._write_back(engine, code)
        moments: list[Moment] = []
        for n, (posted, acked, folded) in before.items():
            sender = outs[n].sender
            for seq in range(posted, sender.posted):
                rig.writes[n, seq] += 1
                row = outs[n].kept[seq - outs[n].base].row if seq >= outs[n].base else -1
                moments.append(Moment("posted", self._rank, sender.wire, n, seq, row))
            if (sender.posted > posted and sender.outstanding <= 1) or sender.folded > folded:
                rig.stirred[n] = time.monotonic()
            if sender.acked > acked:
                rig.stirred[n] = time.monotonic()
                rig.acked.setdefault(n, []).append(time.monotonic())
                moments.append(Moment("acked", self._rank, sender.wire, n, sender.acked - 1))
        for n, first in landed.items():
            receiver = ins[n].receiver
            for seq in range(first, receiver.landed):
                moments.append(Moment("landed", self._rank, receiver.wire, n, seq))
                moments.append(Moment("folded", self._rank, receiver.wire, n, seq))
                if rig.delay_s:
                    time.sleep(rig.delay_s)
        taken.append(int(engine.numbers[CHUNKS]))
        rows = engine.tables.arrays.rows
        for place in np.flatnonzero(rows["missing"] != missing).tolist():
            row, left = int(rows["row"][place]), int(missing[place])
            rig.takes[rig._operation, self._rank, row, -left] += 1  # the slot may have been written again by now
            moments.append(Moment("taking", self._rank, -1, -1, -1, row))
        for moment in moments:
            rig.happened(moment)


def engine(rig: Any, rank: int, program: Program, buffer: Array) -> CompiledEngine:
    """For `Rig.engine`."""
    paths = rig.__dict__.setdefault("paths", {})
    register = getattr(rig.ends[rank], "register", None)
    if register:  # else what Python sends first would do it
        register(memoryview(buffer).cast("B"))
    if rank not in paths:
        paths[rank] = Tapped(rig, rank)
    return CompiledEngine(paths[rank], program, buffer, rig.op, rig.flows[rank], time.monotonic)
