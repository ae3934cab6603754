"""All ranks of a schedule in one thread, in virtual time: engine, flows and emulated NICs without a machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count

from optcc.errors import SimulationError
from optcc.runtime.devices.host import Array, Op
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import program_of
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.wires.layout import layout_of
from optcc.runtime.wires.virtual import VirtualNet
from optcc.schedule import Schedule

Fault = Callable[[VirtualNet], None]
"""What happens to the net at its time."""


class VirtualRun:
    """One run, step by step. `flows` and `engines` by rank, to look into; `at` lets something happen at its time.

    slot_bytes : the most that a chunk carries; whole stripes unless given, which is the simulator's model
    """

    def __init__(
        self,
        schedule: Schedule,
        buffers: Sequence[Array],
        op: Op,
        *,
        slot_bytes: int | None = None,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
    ) -> None:
        self._pending: list[tuple[float, int, Fault]] = []
        self._order = count()
        layout = layout_of({"it": schedule}, slot_bytes or max(8, schedule.nbytes))
        self.net = VirtualNet(layout)
        routes = {"it": schedule.routes}
        self.flows = [
            FlowTransport(rank, layout, routes, end, self._post_for(rank), self.net.clock, timeouts)
            for rank, end in enumerate(self.net.ends)
        ]
        programs = [program_of(schedule, rank, buffers[rank].itemsize) for rank in range(schedule.ranks)]
        self.engines = [
            Engine(program, buffer, op, flows, self.net.clock)
            for program, buffer, flows in zip(programs, buffers, self.flows, strict=True)
        ]
        for program, flows in zip(programs, self.flows, strict=True):
            flows.begin("it", program.receives)

    def _post_for(self, rank: int) -> Callable[[int, object], None]:
        return lambda to, value: self.flows[to].message(rank, value)

    def at(self, time: float, fault: Fault) -> None:
        """Let `fault` happen at a time; of those of one time, the first given comes first."""
        heappush(self._pending, (time, next(self._order), fault))

    def run(self, faults: Sequence[tuple[float, Fault]] = ()) -> float:
        """Until all ranks are done; returns the virtual seconds it takes.

        Raises SimulationError when transfers are left that nothing will ever let start.
        """
        for time, fault in faults:
            self.at(time, fault)
        pending, paused = self._pending, self.net.paused
        for engine in self.engines:
            engine.begin()
        while not all(engine.finished for engine in self.engines):
            awake = [rank for rank in range(len(self.engines)) if rank not in paused]
            wakes = [self.engines[rank].post_ready() for rank in awake]
            wakes += [self.flows[rank].next_wake() for rank in awake]
            now = min([*wakes, self.net.next_landing(), pending[0][0] if pending else math.inf])
            if now == math.inf:
                stuck = next(rank for rank, engine in enumerate(self.engines) if not engine.finished)
                raise SimulationError(f"deadlock: rank {stuck} has {self.engines[stuck].waiting_for()}")
            self.net.now = max(self.net.now, now)
            while pending and pending[0][0] <= self.net.now:
                heappop(pending)[2](self.net)
            # All that lands in this instant does so before anything is posted, so that priority sees all that is ready.
            for rank, (engine, flows) in enumerate(zip(self.engines, self.flows, strict=True)):
                if rank not in paused:
                    for row, at in flows.poll(self.net.now, engine.take):
                        engine.landed(row, at)
        return self.net.now


def run_virtual(schedule: Schedule, buffers: Sequence[Array], op: Op) -> float:
    """Run `schedule` on one buffer per rank, in place; returns the virtual seconds it takes.

    Raises SimulationError when transfers are left that nothing will ever let start.
    """
    return VirtualRun(schedule, buffers, op).run()
