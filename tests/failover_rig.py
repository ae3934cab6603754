"""All ranks of a job as threads of this process, over real wires that are struck at exact moments."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from optcc.runtime.devices.host import Array, Op
from optcc.runtime.engine.loop import Engine
from optcc.runtime.engine.program import Program, program_of
from optcc.runtime.errors import RankFailedError
from optcc.runtime.evidence.payload import peculiar
from optcc.runtime.flows.ends import CHUNK_HEADER
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.flows.receive_path import nothing_runs
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.measuring.virtual_run import VirtualRun
from optcc.runtime.messages import Note
from optcc.runtime.protocol import events
from optcc.runtime.protocol.doubting import MUTE
from optcc.runtime.wires import layout as layout_module
from optcc.runtime.wires.contract import Arrived, Completed, Credited
from optcc.runtime.wires.layout import Layout, layout_of
from optcc.schedule import Schedule
from tests.failover_mail import Mailbox, Post

TIMEOUTS = Timeouts(progress=0.2, grace=0.15, answer=0.03)
BOUND_S = 20.0
"""No run here takes as long; one that does hangs."""

Open = Callable[[Layout, Sequence["Mailbox"]], Sequence[Any]]
"""Connect all ranks' wires; the mailboxes are their watches."""


class Moment:
    """What a rank's wires have just done: kind (posted, landed, taking, folded, acked), wire, flow, chunk."""

    def __init__(self, kind: str, rank: int, wire: int, flow: int, seq: int, row: int = -1) -> None:
        self.kind, self.rank, self.wire, self.flow, self.seq, self.row = kind, rank, wire, flow, seq, row


Hook = Callable[["Rig", Moment], None]
"""Called by the thread of the rank; may strike that rank's wires at once, and others' by `Rig.later`."""


class Tap:
    """Wires that tell the rig what they do."""

    def __init__(self, rig: Rig, rank: int, wires: Any) -> None:
        self._rig, self._rank, self._wires = rig, rank, wires

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wires, name)

    def write(self, wire: int, flow: int, seq: int, header: bytes, *rest: Any) -> None:
        self._wires.write(wire, flow, seq, header, *rest)
        self._rig.writes[flow, seq] += 1
        if self._rig.flows[self._rank]._outs[flow].sender.outstanding <= 1:
            self._rig.stirred[flow] = time.monotonic()
        row = CHUNK_HEADER.unpack(header)[5]
        self._rig.happened(Moment("posted", self._rank, wire, flow, seq, row))

    def credit(self, wire: int, flow: int, folded: int) -> None:
        self._rig.happened(Moment("folded", self._rank, wire, flow, folded - 1))
        self._wires.credit(wire, flow, folded)

    def poll(self, until: float) -> Sequence[Any]:
        news: Sequence[Any] = self._wires.poll(until)
        for it in news:
            if isinstance(it, Arrived):
                self._rig.happened(Moment("landed", self._rank, it.wire, it.flow, it.seq))
            elif isinstance(it, Credited):
                self._rig.stirred[it.flow] = time.monotonic()
            elif isinstance(it, Completed):
                # A wire that is given up tells what had come through before.
                if self._rig.flows[self._rank]._outs[it.flow].sender.state not in MUTE:
                    self._rig.stirred[it.flow] = time.monotonic()
                self._rig.acked.setdefault(it.flow, []).append(time.monotonic())
                self._rig.happened(Moment("acked", self._rank, it.wire, it.flow, it.seq))
        return news


@dataclass(frozen=True)
class Felt:
    """A flow that has moved: its note; seconds since something last came through, or since it was first owed."""

    note: Note
    waited: float


class Rig:
    """A job of one or more schedules over wires that `connect` opens. A context manager.

    Attributes
    ----------
    struck : what was struck, when; journals : by rank; felt : of every move
    writes, takes : how often each chunk (flow, seq) was written, and each piece (operation, rank, row, offset) taken
    """

    def __init__(
        self,
        schedules: Mapping[str, Schedule],
        connect: Open,
        *,
        slot_bytes: int = 2048,
        window: int = 4,
        timeouts: Timeouts = TIMEOUTS,
        post: Post | None = None,
        hook: Hook | None = None,
        op: Op = Op.SUM,
    ) -> None:
        with mock.patch.object(layout_module, "WINDOW", (1, window)):
            self.layout = layout_of(schedules, slot_bytes)
        self.schedules, self.timeouts, self.hook, self.op = schedules, timeouts, hook, op
        self.post = post or Post()
        self.nics = {nic.name: i for i, nic in enumerate(self.layout.nics)}
        self.boxes = [Mailbox() for _ in range(self.layout.ranks)]
        self.ends = list(connect(self.layout, self.boxes))
        routes = {name: schedule.routes for name, schedule in schedules.items()}
        self.flows = [
            FlowTransport(
                rank, self.layout, routes, Tap(self, rank, end), self._sender(rank), time.monotonic, self.timeouts
            )
            for rank, end in enumerate(self.ends)
        ]
        self.struck: list[tuple[float, str]] = []
        self.messages: list[tuple[float, int, Any]] = []
        self.writes: Counter[tuple[int, int]] = Counter()
        self.takes: Counter[tuple[int, int, int, int]] = Counter()
        self.acked: dict[int, list[float]] = {}  # flow -> when something was acknowledged
        self.stirred: dict[int, float] = {}  # flow -> when something last came through, or was first owed
        self.felt: list[Felt] = []
        self.finished: dict[int, float] = {}  # rank -> when it was done
        self.delay_s = 0.0  # of every fold
        self.on_message: Callable[[int, int, Any], None] = lambda sender, to, value: None
        for each in self.flows:
            self._watch_moves(each)
        self._timers: list[threading.Timer] = []
        self._operation = 0
        self._expected: dict[str, list[bytes]] = {}

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()
        for end in (*self.ends, *self.boxes):
            end.close()

    # --- strikes ------------------------------------------------------------------------------------------------------

    def strike(self, what: str, nic: str, **how: Any) -> None:
        """Strike a NIC, from the thread of its rank."""
        rank = self.layout.nics[self.nics[nic]].rank
        self.struck.append((time.monotonic(), f"{what} {nic}"))
        getattr(self.ends[rank], what)(self.nics[nic], **how)

    def later(self, what: str, nic: str, seconds: float = 0.0, **how: Any) -> None:
        """Strike a NIC of any rank, soon."""
        self.after(seconds, self.layout.nics[self.nics[nic]].rank, lambda: self.strike(what, nic, **how))

    def after(self, seconds: float, rank: int, what: Callable[[], None]) -> None:
        """Have a rank do something after a while."""
        if not seconds:
            self.boxes[rank].put(what)
            return
        timer = threading.Timer(seconds, self.boxes[rank].put, (what,))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def happened(self, moment: Moment) -> None:
        if self.hook:
            self.hook(self, moment)

    def _sender(self, rank: int) -> Callable[[int, Any], None]:
        def send(to: int, value: Any) -> None:
            self.messages.append((time.monotonic(), rank, value))
            self.on_message(rank, to, value)
            for delay in self.post.ways():
                self.after(delay, to, lambda: self.flows[to].message(rank, value))

        return send

    # --- runs ---------------------------------------------------------------------------------------------------------

    @property
    def journals(self) -> list[list[Note]]:
        return [flows.journal for flows in self.flows]

    def notes(self, kind: str) -> list[Note]:
        """Of all ranks, by time."""
        return sorted((note for journal in self.journals for note in journal if note.kind == kind), key=lambda n: n.at)

    def again(self) -> dict[int, int]:
        """Flow -> chunks that were written more than once."""
        return dict(Counter(flow for (flow, _), times in self.writes.items() if times > 1))

    def flow_of(self, src: int, dst: int, lane: int = 0) -> int:
        """A flow between two ranks."""
        return [f for f, spec in enumerate(self.layout.flows) if (spec.src, spec.dst) == (src, dst)][lane]

    def run(self, name: str = "it") -> list[BaseException | None]:
        """One operation on all ranks; returns what each has raised. Raises AssertionError for wrong results.

        A rank that fails ends the run of all, with the verdict that the hub would give.
        """
        schedule = self.schedules[name]
        self._operation += 1
        buffers = [self._placed(rank, values) for rank, values in enumerate(inputs(schedule))]
        programs = [program_of(schedule, rank, 4) for rank in range(schedule.ranks)]
        ended: list[BaseException | None] = [None] * schedule.ranks
        left = [schedule.ranks]
        lock, ready = threading.Lock(), threading.Barrier(schedule.ranks)
        engines = [
            self.engine(rank, program, buffer)
            for rank, (program, buffer) in enumerate(zip(programs, buffers, strict=True))
        ]
        for rank, engine in enumerate(engines):
            self._watch_folds(rank, engine)

        def verdict(rank: int, error: BaseException) -> None:
            cause = RankFailedError(rank, str(error))

            def fail() -> None:
                raise cause

            with lock:  # two ranks may fail at once; like the hub, all ranks hear the same first
                for box in self.boxes:
                    box.put(fail)

        def one(rank: int, engine: Engine, program: Program) -> None:
            try:
                self.flows[rank].begin(name, program.receives)
                ready.wait(BOUND_S)
                engine.run()
                self.finished[rank] = time.monotonic()
                with lock:
                    left[0] -= 1
                    last = not left[0]
                if last:
                    for box in self.boxes:
                        box.put(lambda: None)
                while left[0]:  # a peer may still have to ask what has landed
                    engine.serve(time.monotonic() + 1.0)
            except BaseException as error:
                ended[rank] = error
                if not isinstance(error, RankFailedError):
                    verdict(rank, error)
                    try:
                        while True:
                            self.boxes[rank].check()
                    except RankFailedError as heard:
                        ended[rank] = heard

        threads = [
            threading.Thread(target=one, args=(rank, engine, program), daemon=True)
            for rank, (engine, program) in enumerate(zip(engines, programs, strict=True))
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + BOUND_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        hung = [f"rank {rank} has {engines[rank].waiting_for()}" for rank, t in enumerate(threads) if t.is_alive()]
        if hung:
            verdict(0, TimeoutError("; ".join(hung)))
            for thread in threads:
                thread.join(BOUND_S)
            raise AssertionError(f"hangs: {'; '.join(hung)}")
        if not any(ended):
            self._check(name, buffers)
        return ended

    def _placed(self, rank: int, values: Array) -> Array:
        """In the buffer that a rank lends, if it lends one."""
        lent = getattr(self.ends[rank], "_lent", None)
        if lent is None:
            return values
        own: Array = np.frombuffer(lent.bytes, values.dtype, len(values))
        own[:] = values
        return own

    def engine(self, rank: int, program: Program, buffer: Array) -> Engine:
        """That of one rank; `compiled_rig` puts another in its place."""
        return Engine(program, buffer, self.op, self.flows[rank], time.monotonic)

    def idle(self, until: float) -> None:
        """All ranks look after their flows, between operations."""
        while time.monotonic() < until:
            for each in self.flows:
                each.poll(time.monotonic() + 0.001, nothing_runs)

    def _watch_moves(self, flows: FlowTransport) -> None:
        moves = flows._does[events.Moved]

        def watched(out: Any, command: events.Moved) -> None:
            moves(out, command)
            note = next(note for note in reversed(flows.journal) if note.kind == "moved")
            self.felt.append(Felt(note, note.at - self.stirred.get(out.number, note.at)))
            self.stirred[out.number] = note.at

        flows._does[events.Moved] = watched

    def _watch_folds(self, rank: int, engine: Engine) -> None:
        take, operation = engine.take, self._operation

        def watched(row: int, offset: int, data: memoryview) -> None:
            self.takes[operation, rank, row, offset] += 1
            self.happened(Moment("taking", rank, -1, -1, -1, row))
            if self.delay_s:
                time.sleep(self.delay_s)
            take(row, offset, data)

        engine.take = watched  # type: ignore[method-assign]

    def _check(self, name: str, buffers: Sequence[Array]) -> None:
        """The fault-free bits on every rank (I1, I2, I15), each piece once, both ends agree (I3), no ghost (I4)."""
        if name not in self._expected:
            self._expected[name] = fault_free(self.schedules[name], self.op)
        for rank, (buffer, expected) in enumerate(zip(buffers, self._expected[name], strict=True)):
            assert buffer.tobytes() == expected, f"rank {rank} has not the fault-free result"
        assert max(self.takes.values(), default=1) == 1, "a piece was taken twice"
        for number, spec in enumerate(self.layout.flows):
            sender = self.flows[spec.src]._outs[number].sender
            receiver = self.flows[spec.dst]._ins[number].receiver
            assert sender.posted == sender.acked == receiver.landed == receiver.folded, f"flow {number}"
            assert receiver.ghosts == 0, f"ghosts in flow {number}"


def inputs(schedule: Schedule) -> list[Array]:
    """Random floats: their sum in another order has other bits. One of eight is a zero, an infinity, a NaN or
    subnormal, whose bits in a sum, a minimum or a maximum must not depend on where pieces are cut."""
    odd = peculiar(np.dtype(np.float32))
    made = []
    for rank in range(schedule.ranks):
        rng = np.random.default_rng(rank)
        values = rng.standard_normal(schedule.nbytes // 4).astype(np.float32)
        where = rng.random(len(values)) < 1 / 8
        values.view(np.uint32)[where] = rng.choice(odd.view(np.uint32), int(where.sum()))
        made.append(values)
    return made


def fault_free(schedule: Schedule, op: Op) -> list[bytes]:
    """The result on every rank, in virtual time. Which bits it has does not depend on times: folds have an order."""
    buffers = inputs(schedule)
    VirtualRun(schedule, buffers, op).run()
    return [buffer.tobytes() for buffer in buffers]
