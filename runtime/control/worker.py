"""What a rank does when it is told to: take a job, prepare a collective, run it, check its result."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from optcc.errors import InputError
from optcc.runtime.compiled.choice import engines, path_of
from optcc.runtime.control.channel import Control
from optcc.runtime.control.clocks import by_the_hub
from optcc.runtime.control.descriptors import provide
from optcc.runtime.control.fault_injection import FaultInjector
from optcc.runtime.control.job import LOCAL, Job, digest_of
from optcc.runtime.control.job_bytes import job_from_bytes
from optcc.runtime.control.transports import open_wires
from optcc.runtime.devices.host import divide, dtype_of, reduction_of
from optcc.runtime.devices.memory import Memory, memory_of
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import program_of
from optcc.runtime.evidence.payload import fill, is_exact, reference
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.flows.receive_path import nothing_runs
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.messages import (
    Command,
    Enlist,
    Note,
    Pong,
    Prepare,
    Ran,
    RankJournal,
    Strike,
)
from optcc.runtime.wires.contract import Abilities
from optcc.runtime.wires.layout import layout_of
from optcc.runtime.wires.lent import Arena
from optcc.runtime.wires.pacing import Rates
from optcc.schedule import Port

PUNCTUAL_S = 200e-6
"""A rank waits for the common start awake for so long: who sleeps wakes up a tenth of a millisecond late."""


class Worker:
    """A rank: its buffer, and for one job at a time its part of every schedule, its wires and flows."""

    def __init__(self, control: Control) -> None:
        self._rank, self._control = control.rank, control
        self._memories: dict[str, Memory] = {}  # by name of device; kept, for what it costs to open a GPU
        self._wires: Any = None
        self._shared: Arena | None = None  # of the buffer, where other ranks may read it
        self._engine: Engine | None = None
        self._injector: FaultInjector | None = None
        self._journal: list[Note] = []  # of the flows, by this rank's clock
        self._start_s: float | None = None  # of the last collective, by the hub's clock
        self._noted: list[Note] = []  # in it, likewise
        # What emulated NICs can do, and how they ail, whatever a later job thinks of them.
        self._hardware: dict[str, Rates] = {}
        self._ailing: dict[str, tuple[Strike, float]] = {}  # NIC -> what struck it, when

    def adopt(self, enlisted: Enlist) -> None:
        """Take a job and connect to the other ranks, all at the same time."""
        self.close()
        job = self._job = _load(enlisted, self._control.payload())
        self._reduction, dtype = reduction_of(job.op), dtype_of(job.dtype)
        self._op = self._reduction.fold
        count = job.nbytes // dtype.itemsize
        self._programs = {
            name: program_of(schedule, self._rank, dtype.itemsize) for name, schedule in job.schedules.items()
        }
        if job.device not in self._memories:
            self._memories[job.device] = memory_of(job.device, self._rank)
        memory = self._memory = self._memories[job.device]
        memory.warm(dtype, self._op)
        self._shared = Arena(job.nbytes) if (job.transport, job.device) == LOCAL else None
        self._buffer = (self._shared or memory).empty(count, dtype)
        self._expected = reference(count, dtype, ranks=job.ranks, op=self._op)
        if self._reduction.mean:
            divide(self._expected, job.ranks)
        layout = self._layout = layout_of(job.schedules, job.chunk_bytes)
        if job.transport == "local":
            provide(layout, self._rank)
        rates = [self._hardware.setdefault(nic.name, self._rates(nic)) for nic in layout.nics]
        self._wires = open_wires(job.transport, self._rank, layout, rates, self._control, memory, self._shared)
        self._healing: list[tuple[float, int]] = []
        self._ail()
        timeouts = Timeouts().for_chunks_of(layout.slowest_chunk_s if job.paced else 0.0)
        routes = {name: schedule.routes for name, schedule in job.schedules.items()}
        able = Abilities.of(self._wires)
        self._clock, self._look = able.clock or time.monotonic, able.look_again or time.monotonic
        self._flows = FlowTransport(self._rank, layout, routes, self._wires, self._tell, self._clock, timeouts)
        self._engine_of = engines(path_of(job.path, job.transport, job.device, job.dtype), self._flows, self._wires)
        self._journal = self._flows.journal
        self._control.on_message = self._flows.message
        self._control.synchronize()

    def _tell(self, rank: int, message: Any) -> None:
        """A message to another rank. It may say what has been folded, which must be done then, not just begun."""
        self._memory.wait()
        self._control.send(rank, message)

    def _rates(self, nic: Port) -> Rates:
        return Rates(nic.out_rate, nic.in_rate) if self._job.paced else Rates(math.inf, math.inf)

    def _ail(self) -> None:
        """New wires do not mend a NIC."""
        number = {port.name: nic for nic, port in enumerate(self._layout.nics)}
        for name, nic in number.items():
            strike, at = self._ailing.get(name, (None, 0.0))
            if strike and strike.kind == "cut":
                self._wires.cut(nic)
            elif strike and strike.kind == "hole":
                self._wires.darken(nic)
            elif strike and strike.kind == "path" and strike.far in number:
                self._wires.break_path(nic, number[strike.far])
            elif strike and strike.kind == "flap" and time.monotonic() < at + strike.amount:
                self._wires.darken(nic)
                self._healing.append((at + strike.amount, nic))

    def _remember(self, notes: Sequence[Note]) -> None:
        for note in notes:
            for strike in self._strikes:
                if note.kind == "struck" and (note.nic, note.cause) == (strike.nic, strike.kind):
                    if strike.kind in ("cut", "hole", "flap", "path"):
                        self._ailing[note.nic] = (strike, note.at)
                    if strike.kind == "slow":
                        rates = self._hardware[note.nic]
                        self._hardware[note.nic] = Rates(rates.out * strike.amount, rates.into * strike.amount)

    def close(self) -> None:
        """Disconnect."""
        if self._wires:
            self._wires.close()
            self._wires = self._engine = self._injector = None
        if self._shared:
            self._shared.close()
            self._shared = None

    def command(self) -> Command:
        """The next command; the flows are served meanwhile, for a peer may still have to ask what has landed."""
        while (command := self._control.poll_command()) is None:
            if self._engine and self._injector:
                self._engine.serve(self._injector.wake())
                self._injector.tend()
            elif self._wires:
                self._flows.poll(math.inf, nothing_runs)
            else:
                return self._control.command()
        return command

    def prepare(self, order: Prepare) -> None:
        """Fill the buffer and set up the run, so that only the collective itself is timed."""
        if self._control.clock.offset_s:  # another machine's: it drifts
            self._control.synchronize()
        program, self._timed = self._programs[order.algorithm], order.timed
        self._strikes, self._start_s, self._noted = order.strikes, None, []
        self._flows.begin(order.algorithm, program.receives)
        engine = self._engine = self._engine_of(program, self._buffer, self._op, self._flows, self._clock, self._memory)
        self._control.state = lambda: Pong(engine.progress, engine.waiting_for())
        values = self._memory.staging(self._buffer)
        fill(values, rank=self._rank, ranks=self._job.ranks, op=self._op)
        self._memory.load(self._buffer, values)
        self._wires.register(self._memory.bytes_of(self._buffer))
        self._injector = FaultInjector(
            self._rank,
            self._layout,
            order.strikes,
            self._wires,
            self._flows.journal,
            time.monotonic,
            self._healing,
            sent=self._flows.sent,
            farewell=lambda: self._control.tell(self.journal()),
        )

    def run(self, at: float) -> Ran:
        """The collective, from the common start on."""
        assert self._engine
        assert self._injector
        clock = self._control.clock
        at = clock.here(at)
        while time.monotonic() < at - PUNCTUAL_S:
            self._engine.serve(at - PUNCTUAL_S)
        while self._look() < at:
            pass
        start, cpu = time.monotonic(), time.process_time()
        self._start_s = clock.hub(start)
        self._engine.run(self._injector)
        if self._reduction.mean:  # one rounding, the same on every rank
            self._memory.divide(self._buffer, self._job.ranks)
        self._memory.wait()
        end, cpu = time.monotonic(), time.process_time() - cpu
        self._injector.finish()
        sent = {self._layout.nics[nic].name: nbytes for nic, nbytes in self._flows.sent().items()}
        notes, self._journal[:] = list(self._journal), []
        self._remember(notes)
        ran = Ran(start, end, cpu, sent, notes, self._engine.landings() if self._timed else {})
        told = by_the_hub(ran, clock)
        self._noted = told.notes
        return told

    def journal(self) -> RankJournal:
        """What has happened here in the collective under way, or the last one; by the hub's clock."""
        clock = self._control.clock
        latest = [replace(note, at=clock.hub(note.at)) for note in self._journal]
        return RankJournal(self._start_s, [*self._noted, *latest])

    def check(self) -> bool:
        """Whether this rank holds the exact result."""
        return is_exact(self._memory.unload(self._buffer), self._expected)


def _load(enlisted: Enlist, payload: bytes) -> Job:
    """The job, once it is certain that its schedules are the ones that the parent means."""
    job = job_from_bytes(payload)
    for name, schedule in job.schedules.items():
        digest = digest_of(schedule)
        if digest != enlisted.digests[name]:
            raise InputError(
                "not the schedule that the others run", where=name, expected=enlisted.digests[name], got=digest
            )
    return job
