"""All ranks of a schedule in one thread, in virtual time: the engine and the emulated NICs without a machine.

Deterministic, so that what they do can be held against the simulator and the reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from optcc.errors import SimulationError
from optcc.runtime.device import Array, Op
from optcc.runtime.engine import Engine
from optcc.runtime.pacing import PortClocks, stripes_of
from optcc.runtime.program import Move, program_of
from optcc.runtime.transport import Landing, Place
from optcc.schedule import Schedule


def run_virtual(schedule: Schedule, buffers: Sequence[Array], op: Op) -> float:
    """Run `schedule` on one buffer per rank, in place; returns the virtual seconds it takes.

    Raises SimulationError when transfers are left that nothing will ever let start.
    """
    fabric = _Fabric(schedule, buffers, op)
    for engine in fabric.engines:
        engine.begin()
    while not all(engine.finished for engine in fabric.engines):
        wakes = [engine.post_ready() for engine in fabric.engines]
        fabric.now = min(wakes + [pacing.next_landing() for pacing in fabric.pacings])
        if fabric.now == math.inf:
            stuck = next(rank for rank, engine in enumerate(fabric.engines) if not engine.finished)
            raise SimulationError(f"deadlock: rank {stuck} has {fabric.engines[stuck].waiting_for()}")
        # All that lands in this instant does so before anything is posted, so that priority sees all that is ready.
        for engine, pacing in zip(fabric.engines, fabric.pacings, strict=True):
            for row, at in pacing.landed(fabric.now):
                engine.landed(row, at)
    return fabric.now


class _Fabric:
    """The ranks, and a clock that is set by hand."""

    def __init__(self, schedule: Schedule, buffers: Sequence[Array], op: Op) -> None:
        self.now = 0.0
        stripes = stripes_of(schedule)
        self.programs = [program_of(schedule, rank, buffers[rank].itemsize) for rank in range(schedule.ranks)]
        self.pacings = [PortClocks(schedule, stripes) for _ in self.programs]
        self.engines = [
            Engine(program, buffer, op, _VirtualTransport(self, program.rank), lambda: self.now)
            for program, buffer in zip(self.programs, buffers, strict=True)
        ]


class _VirtualTransport:
    """One rank's end: what it posts is in its peer's memory at once, and lands when the peer's pacing says."""

    drained = True

    def __init__(self, fabric: _Fabric, rank: int) -> None:
        self._fabric, self._rank = fabric, rank

    def free_at(self, route: int, now: float) -> float:
        return self._fabric.pacings[self._rank].free_at(route, now)

    def post(self, move: Move, payload: memoryview, ready: float) -> None:
        stamps = self._fabric.pacings[self._rank].depart(move, ready)
        self._fabric.engines[move.peer].place(move.row)[:] = payload
        arrived = self._fabric.programs[move.peer].receives[move.row]
        self._fabric.pacings[move.peer].arrive(arrived, stamps)

    def poll(self, until: float, place: Place) -> list[Landing]:
        return self._fabric.pacings[self._rank].landed(self._fabric.now)
