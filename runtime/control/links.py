"""What joins one rank of a communicator to the others: wires, the flows over them, and schedules run on those."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from optcc.runtime.compiled.choice import ChunkPath, engines
from optcc.runtime.control.channel import Control
from optcc.runtime.control.descriptors import provide
from optcc.runtime.control.fault_injection import FaultInjector
from optcc.runtime.control.transports import open_wires
from optcc.runtime.devices.host import Op
from optcc.runtime.devices.memory import HOST
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import Program
from optcc.runtime.errors import PeerLateError
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.flows.receive_path import nothing_runs
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.messages import Note, Strike
from optcc.runtime.wires.layout import Layout
from optcc.runtime.wires.lent import Arena
from optcc.runtime.wires.pacing import Rates
from optcc.schedule import Schedule


class Links:
    """Those of rank `rank`, none at first; made by `connect`, on all ranks at the same time.

    path : of chunks; return_s : so long a rank without a NIC waits for one to be back
    """

    def __init__(self, rank: int, transport: str, control: Control, path: ChunkPath, return_s: float) -> None:
        self._rank, self._transport, self._control = rank, transport, control
        self._wires: Any = None
        self._flows: FlowTransport | None = None
        self._strikes: list[Strike] = []
        self._path, self._timeouts = path, Timeouts(back=return_s)
        self._away: dict[str, float] = {}  # emulated NICs whose links are down, and until when
        self._engine_of: Callable[..., Engine] = Engine

    @property
    def up(self) -> bool:
        """Whether there are any."""
        return self._flows is not None

    def connect(self, layout: Layout, schedules: dict[str, Schedule], lent: Arena | None = None) -> None:
        """Wires for these schedules, of the same layout on all ranks. `lent` : as of `open_wires`."""
        self.layout = layout
        if self._transport == "local":
            provide(layout, self._rank)
        rates = [Rates(math.inf, math.inf)] * len(layout.nics)
        self._wires = open_wires(self._transport, self._rank, layout, rates, self._control, HOST, lent)
        routes = {name: schedule.routes for name, schedule in schedules.items()}
        for nic, port in enumerate(layout.nics):
            if port.name in self._away:
                self._wires.cut(nic)
                self._wires.mend(nic, self._away[port.name] - time.monotonic())
        self._flows = FlowTransport(
            self._rank, layout, routes, self._wires, self._control.send, time.monotonic, self._timeouts
        )
        self._engine_of = engines(self._path, self._flows, self._wires)
        self._control.on_message = self._flows.message

    def close(self) -> None:
        """Let go of all; an end that closes is a loss at the other one."""
        if self._wires:
            self._away = {self.layout.nics[nic].name: at for nic, at in getattr(self._wires, "away", {}).items()}
            self._wires.close()
        self._wires = self._flows = None
        self._control.on_message = lambda origin, value: None
        if self._transport != "local":
            gc.collect()  # their memory, registered and large, hangs in cycles of flows and wires

    def learn(self, name: str, schedule: Schedule, lanes: Sequence[tuple[int, ...]]) -> None:
        """Another schedule over the wires that are there."""
        assert self._flows
        self._flows.learn(name, schedule.routes, lanes)

    def run(
        self,
        name: str,
        program: Program,
        buffer: Any,
        op: Op,
        sign: int,
        *,
        within_s: float,
        linger: bool = True,
        parts: Any = None,
    ) -> None:
        """The collective itself, in place on `buffer`, shape (elements,). PeerLateError when it is not done in time.

        linger : False: nobody writes to what is sent afterwards, so there is no need to wait until all has landed
        parts : as of `Engine`
        """
        flows = self._flows
        assert flows
        linger = linger or self._transport != "local"  # a NIC reads from the memory that is registered
        flows.begin(name, program.receives, sign)
        engine = self._engine_of(program, buffer, op, flows, time.monotonic, HOST, linger, parts)
        if linger:
            self._wires.register(HOST.bytes_of(buffer if parts is None else parts))
        engine.run(_Deadline(within_s, engine, flows, self._injector(flows)))

    def poll(self, until: float) -> None:
        """Between operations: one wait, no longer than `until`, and what peers ask."""
        assert self._flows
        self._flows.poll(min(until, self._flows.next_wake()), nothing_runs)

    def notes(self) -> list[Note]:
        """What has been noted since this was asked."""
        if not self._flows or not self._flows.journal:
            return []
        notes, self._flows.journal[:] = list(self._flows.journal), []
        return notes

    def strike(self, strike: Strike) -> None:
        """In the next operation: a fault on purpose at a NIC of this rank; nothing where that is not used any more."""
        self._strikes.append(strike)

    def _injector(self, flows: FlowTransport) -> FaultInjector | None:
        used = {nic.name for nic in self.layout.nics}
        strikes, self._strikes = [strike for strike in self._strikes if {strike.nic, strike.far} - {""} <= used], []
        if not strikes:
            return None
        return FaultInjector(
            self._rank, self.layout, strikes, self._wires, flows.journal, time.monotonic, sent=flows.sent
        )


class _Deadline:
    """Ends an operation that takes too long, and has an injector look on, if there is one."""

    def __init__(self, within_s: float, engine: Engine, flows: FlowTransport, injector: FaultInjector | None) -> None:
        self._within_s, self._engine, self._flows, self._injector = within_s, engine, flows, injector
        self._end = time.monotonic() + within_s

    def look(self, done: float) -> None:
        if self._injector:
            self._injector.look(done)
        if time.monotonic() > self._end:
            self._flows.give_up()  # a lost NIC explains more than what it makes late
            why = f"not done within {self._within_s:.3g} s: {self._engine.waiting_for()}"
            raise PeerLateError(self._engine.awaited, why)

    def due(self) -> float:
        return self._injector.due() if self._injector else math.inf

    def wake(self) -> float:
        return min(self._end, self._injector.wake()) if self._injector else self._end
