"""All ranks of a schedule in one thread, in virtual time: engine, flows and emulated NICs without a machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from optcc.errors import SimulationError
from optcc.runtime.device import Array, Op
from optcc.runtime.engine import Engine
from optcc.runtime.flows import FlowTransport, Patience
from optcc.runtime.layout import layout_of
from optcc.runtime.program import program_of
from optcc.runtime.virtual_wires import VirtualNet
from optcc.schedule import Schedule

Fault = Callable[[VirtualNet], None]
"""What happens to the net at its time."""


class VirtualRun:
    """One run, step by step. `flows` and `engines` by rank, to look into.

    slot_bytes : the most that a chunk carries; whole stripes unless given, which is the simulator's model
    """

    def __init__(
        self,
        schedule: Schedule,
        buffers: Sequence[Array],
        op: Op,
        *,
        slot_bytes: int | None = None,
        patience: Patience = Patience(),  # noqa: B008 - frozen
    ) -> None:
        layout = layout_of({"it": schedule}, slot_bytes or max(8, schedule.nbytes))
        self.net = VirtualNet(layout)
        routes = {"it": schedule.routes}
        self.flows = [
            FlowTransport(rank, layout, routes, end, self._post_for(rank), self.net.clock, patience)
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
        return lambda to, value: self.flows[to].letter(rank, value)

    def run(self, faults: Sequence[tuple[float, Fault]] = ()) -> float:
        """Until all ranks are done; returns the virtual seconds it takes.

        Raises SimulationError when transfers are left that nothing will ever let start.
        """
        pending = sorted(faults, key=lambda fault: fault[0])
        for engine in self.engines:
            engine.begin()
        while not all(engine.finished for engine in self.engines):
            wakes = [engine.post_ready() for engine in self.engines]
            wakes += [flows.next_wake() for flows in self.flows]
            now = min([*wakes, self.net.next_landing(), pending[0][0] if pending else math.inf])
            if now == math.inf:
                stuck = next(rank for rank, engine in enumerate(self.engines) if not engine.finished)
                raise SimulationError(f"deadlock: rank {stuck} has {self.engines[stuck].waiting_for()}")
            self.net.now = max(self.net.now, now)
            while pending and pending[0][0] <= self.net.now:
                pending.pop(0)[1](self.net)
            # All that lands in this instant does so before anything is posted, so that priority sees all that is ready.
            for engine, flows in zip(self.engines, self.flows, strict=True):
                for row, at in flows.poll(self.net.now, engine.take):
                    engine.landed(row, at)
        return self.net.now


def run_virtual(schedule: Schedule, buffers: Sequence[Array], op: Op) -> float:
    """Run `schedule` on one buffer per rank, in place; returns the virtual seconds it takes.

    Raises SimulationError when transfers are left that nothing will ever let start.
    """
    return VirtualRun(schedule, buffers, op).run()
