"""What joins one rank to the others: wires, the flows over them, and schedules run on those."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optcc.runtime.compiled.choice import ChunkPath, engines
from optcc.runtime.control.channel import Control
from optcc.runtime.control.fault_injection import FaultInjector
from optcc.runtime.control.limits import provide
from optcc.runtime.control.transports import open_wires
from optcc.runtime.devices.host import Op
from optcc.runtime.devices.memory import HOST, Memory
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import Program, program_of
from optcc.runtime.errors import PeerLateError
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.flows.receive_path import nothing_runs
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.messages import Note, Strike
from optcc.runtime.wires.contract import Abilities
from optcc.runtime.wires.layout import Layout
from optcc.runtime.wires.lent import Arena
from optcc.runtime.wires.pacing import Rates
from optcc.schedule import Port, Schedule


@dataclass
class Hardware:
    """What emulated NICs can do, and how they ail, whatever wires are made of them later.

    rates : by name; ailing : what struck a NIC, and when
    """

    rates: dict[str, Rates] = field(default_factory=dict)
    ailing: dict[str, tuple[Strike, float]] = field(default_factory=dict)

    def rates_of(self, nics: Sequence[Port], paced: bool) -> list[Rates]:
        """As they have become; of a NIC that is new, its own. paced : False: as fast as the machine goes."""
        unlimited = Rates(math.inf, math.inf)
        return [
            self.rates.setdefault(nic.name, Rates(nic.out_rate, nic.in_rate) if paced else unlimited) for nic in nics
        ]

    def strike(self, wires: Any, nics: Sequence[Port]) -> list[tuple[float, int]]:
        """New wires do not mend a NIC. Returns when which flapping one (its index) heals."""
        number, healing = {port.name: nic for nic, port in enumerate(nics)}, []
        for name, nic in number.items():
            strike, at = self.ailing.get(name, (None, 0.0))
            if strike and strike.kind == "cut":
                wires.cut(nic)
            elif strike and strike.kind == "hole":
                wires.darken(nic)
            elif strike and strike.kind == "path" and strike.far in number:
                wires.break_path(nic, number[strike.far])
            elif strike and strike.kind == "flap" and time.monotonic() < at + strike.amount:
                wires.darken(nic)
                healing.append((at + strike.amount, nic))
        return healing

    def remember(self, strikes: Sequence[Strike], notes: Sequence[Note]) -> None:
        """Of these, what has struck."""
        for note in notes:
            for strike in strikes:
                if note.kind == "struck" and (note.nic, note.cause) == (strike.nic, strike.kind):
                    if strike.kind in ("cut", "hole", "flap", "path"):
                        self.ailing[note.nic] = (strike, note.at)
                    if strike.kind == "slow":
                        rates = self.rates[note.nic]
                        self.rates[note.nic] = Rates(rates.out * strike.amount, rates.into * strike.amount)


class Links:
    """Those of the rank of `control`, none at first; made by `connect`, on all ranks at the same time.

    path : of chunks; memory : of the buffers; timeouts : of flows
    hardware : of emulated NICs that have rates, and ail from one operation to the next; None: neither
    paced : it has rates
    moving : an operation has its time anew with whatever moves on this rank
    farewell : called before this process is killed on purpose
    """

    def __init__(
        self,
        transport: str,
        control: Control,
        path: ChunkPath,
        timeouts: Timeouts,
        *,
        memory: Memory = HOST,
        hardware: Hardware | None = None,
        paced: bool = False,
        moving: bool = False,
        farewell: Callable[[], None] = lambda: None,
    ) -> None:
        self._rank, self._transport, self._control = control.rank, transport, control
        self._wires: Any = None
        self._flows: FlowTransport | None = None
        self._strikes: list[Strike] = []
        self._path, self._timeouts, self._memory = path, timeouts, memory
        self._hardware, self._paced, self._moving, self._farewell = hardware, paced, moving, farewell
        self._away: dict[str, float] = {}  # emulated NICs whose links are down, and until when
        self._noted: list[Note] = []  # by flows that there are no more
        self._begun: Engine | None = None  # that of an operation that begins: it takes what comes
        self._injector: FaultInjector | None = None  # of the last operation with strikes: it heals what is to heal

    @property
    def up(self) -> bool:
        """Whether there are any."""
        return self._flows is not None

    def connect(self, layout: Layout, schedules: Mapping[str, Schedule], lent: Arena | None = None) -> None:
        """Wires for these schedules, of the same layout on all ranks. `lent` : as of `open_wires`."""
        self.layout = layout
        if self._transport == "local":
            provide(layout, self._rank)
        hardware = self._hardware or Hardware()
        rates = hardware.rates_of(layout.nics, self._paced)
        self._wires = open_wires(self._transport, self._rank, layout, rates, self._control, self._memory, lent)
        routes = {name: schedule.routes for name, schedule in schedules.items()}
        for nic, port in enumerate(layout.nics):
            if port.name in self._away:
                self._wires.cut(nic)
                self._wires.mend(nic, self._away[port.name] - time.monotonic())
        self._healing = hardware.strike(self._wires, layout.nics)
        able = Abilities.of(self._wires)
        self._clock, self.look_at_clock = able.clock or time.monotonic, able.look_again or time.monotonic
        self._flows = FlowTransport(self._rank, layout, routes, self._wires, self._tell, self._clock, self._timeouts)
        self._engine_of = engines(self._path, self._flows, self._wires)
        self._control.on_message = self._flows.message

    def _tell(self, rank: int, message: Any) -> None:
        """A message to another rank. It may say what has been folded, which must be done then, not just begun."""
        self._memory.wait()
        self._control.send(rank, message)

    def close(self) -> None:
        """Let go of all; an end that closes is a loss at the other one."""
        if self._wires:
            self._away = {self.layout.nics[nic].name: at for nic, at in getattr(self._wires, "away", {}).items()}
            self._wires.close()
        self._noted += self._flows.journal if self._flows else []
        self._wires = self._flows = self._begun = self._injector = None
        self._control.on_message = lambda origin, value: None
        if self._transport != "local":
            gc.collect()  # their memory, registered and large, hangs in cycles of flows and wires

    def program(self, schedule: Schedule, itemsize: int) -> Program:
        """This rank's part of a schedule, of elements of `itemsize` bytes."""
        return program_of(schedule, self._rank, itemsize)

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
        start: Callable[[Engine], None] | None = None,
    ) -> None:
        """The collective itself, in place on `buffer`, shape (elements,). PeerLateError when it is not done in time.

        linger : False: nobody writes to what is sent afterwards, so there is no need to wait until all has landed
        parts : as of `Engine`
        start : called once all is ready, before the first byte is sent
        """
        flows = self._flows
        assert flows
        linger = linger or self._transport != "local"  # a NIC reads from the memory that is registered
        flows.begin(name, program.receives, sign)
        engine = self._engine_of(program, buffer, op, flows, self._clock, self._memory, linger, parts)
        if linger:
            self._wires.register(self._memory.bytes_of(buffer if parts is None else parts))
        injector = self._injector_of(flows)
        if start:
            self._begun = engine
            start(engine)
            self._begun = None
        engine.run(_Deadline(within_s, engine, flows, injector, self._moving))
        if injector:
            injector.finish()

    def poll(self, until: float) -> None:
        """Between operations: one wait, no longer than `until`, and what peers ask."""
        assert self._flows
        if self._injector:
            until = min(until, self._injector.wake())
        if self._begun:
            self._begun.serve(min(until, self._flows.next_wake()))
        else:
            self._flows.poll(min(until, self._flows.next_wake()), nothing_runs)
        if self._injector:
            self._injector.tend()

    def notes(self) -> list[Note]:
        """What has been noted since this was asked."""
        notes, self._noted = self._noted, []
        if self._flows and self._flows.journal:
            notes += self._flows.journal
            self._flows.journal[:] = []
        return notes

    def sent(self) -> dict[str, int]:
        """Bytes of payload that have left by each NIC of this rank in the last operation, replays counted."""
        assert self._flows
        return {self.layout.nics[nic].name: nbytes for nic, nbytes in self._flows.sent().items()}

    def strike(self, strike: Strike) -> None:
        """In the next operation: a fault on purpose at a NIC of this rank; nothing where that is not used any more."""
        self._strikes.append(strike)

    def _injector_of(self, flows: FlowTransport) -> FaultInjector | None:
        used = {nic.name for nic in self.layout.nics}
        strikes, self._strikes = [strike for strike in self._strikes if {strike.nic, strike.far} - {""} <= used], []
        if strikes or self._healing:
            self._injector = FaultInjector(
                self._rank,
                self.layout,
                strikes,
                self._wires,
                flows.journal,
                time.monotonic,
                self._healing,
                sent=flows.sent,
                farewell=self._farewell,
            )
        return self._injector if strikes or self._healing else None


class _Deadline:
    """Ends an operation that takes too long, and has an injector look on, if there is one.

    moving : too long is so long without any transfer that is done
    """

    def __init__(
        self, within_s: float, engine: Engine, flows: FlowTransport, injector: FaultInjector | None, moving: bool
    ) -> None:
        self._within_s, self._engine, self._flows, self._injector = within_s, engine, flows, injector
        self._end = time.monotonic() + within_s
        self._moving, self._done = moving, -1.0

    def look(self, done: float) -> None:
        if self._injector:
            self._injector.look(done)
        if self._moving and done != self._done:
            self._done, self._end = done, time.monotonic() + self._within_s
        if time.monotonic() > self._end:
            self._flows.give_up()  # a lost NIC explains more than what it makes late
            what = "no progress for" if self._moving else "not done within"
            raise PeerLateError(self._engine.awaited, f"{what} {self._within_s:.3g} s: {self._engine.waiting_for()}")

    def due(self) -> float:
        return self._injector.due() if self._injector else math.inf

    def wake(self) -> float:
        return min(self._end, self._injector.wake()) if self._injector else self._end
