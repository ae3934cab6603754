"""The ground on which `protocol_net` plays: virtual time, two ranks that may be paused, wires that fail anyhow."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from heapq import heappush
from typing import Any

from optcc.runtime.protocol import Receiver, Sender
from optcc.runtime.protocol.events import Acked, Answer, Credit, Event, Fenced, Found, Heard, Landed, Lost, Timer
from optcc.runtime.wires.contract import ECHOES, Cause

SENDER, RECEIVER = 0, 1
REST, HAPPENING, LETTER, TIMER = range(4)
"""In this order a process does what there is to do: what it had begun, what its wires say, messages, timers."""
FAULTS = ("sender error", "receiver error", "data lost", "acks lost", "black hole", *("link down", "flap") * 2)


class InvariantError(AssertionError):
    """The invariant `check` does not hold."""

    def __init__(self, check: str, why: str) -> None:
        self.check = check
        super().__init__(f"{check}: {why}")


class Flight:
    """One write of a chunk."""

    __slots__ = ("epoch", "flow", "landed", "life", "seq", "wire")

    def __init__(self, flow: Flow, wire: Path, epoch: int, seq: int) -> None:
        self.flow, self.wire, self.epoch, self.seq = flow, wire, epoch, seq
        self.life, self.landed = wire.life, False

    def may_land(self) -> bool:
        return not (self.landed or self.wire.dead[RECEIVER] or self.wire.life != self.life)


class Path:
    """A wire. `forth` and `back`: whether that direction works; `dead`, `fenced`: its ends."""

    def __init__(self, number: int) -> None:
        self.number, self.life = number, 0
        self.flows: list[Flow] = []
        self.faulty = False  # ever since the run began
        self.anew()

    def anew(self) -> None:
        self.forth = self.back = self.retries = True
        self.dead, self.fenced = [False, False], [False, False]
        self.blocked: list[Flight] = []
        self.held: list[tuple[Flow, Event]] = []
        self.retrying = False
        self.unseen: Counter[Flow] = Counter()  # credits that have come and that the sender has not looked at
        self.reading: set[Flow] = set()  # whose record is being read over it
        self.next_forth = self.next_back = self.next_report = 0.0


class Flow:
    """Both ends of a flow, its landing slots (None: free), and what an observer knows about it."""

    def __init__(self, sender: Sender, receiver: Receiver, chunks: int) -> None:
        self.ends = (sender, receiver)
        self.sender, self.receiver, self.chunks = sender, receiver, chunks
        self.ready = 0  # chunks the engine has to send so far
        self.slots: list[Flight | None] = [None] * receiver.window
        self.last: list[Flight | None] = [None] * receiver.window  # the last write into each slot
        self.record = (0, 0, 0)
        self.found: tuple[Counter[int], Counter[int]] = (
            Counter(),
            Counter(),
        )  # life of each wire, by end
        self.begun = 0  # the last epoch in which something was written
        self.delivered: list[int] = []
        self.folds: Counter[int] = Counter()
        self.in_memory: set[int] = set()
        self.returned = self.asked = 0  # the last credit; the highest epoch to reach the receiver
        self.questions: Counter[int] = Counter()  # how often was asked, by epoch
        self.sample: tuple[bool, int] = (False, -1)
        self.timers: Counter[tuple[int, Timer]] = Counter()  # by end; older ones are void

    def done(self) -> bool:
        return self.sender.acked == self.receiver.folded == self.chunks


class Ground(ABC):
    """Everything in it happens in order of a heap: (time, number, what, its arguments)."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.now, self._count, self.steps = 0.0, 0, 0
        self.heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.seen: Counter[str] = Counter()  # what happened, as proof that the run was of any use
        self.paused = [False, False]
        self.backlog: list[list[tuple[int, Callable[..., None], tuple[Any, ...]]]] = [[], []]
        self.by_process = False  # whether a rank's process acknowledges what has landed, and not its NIC
        self.was_paused = self.over = False
        self.paths: list[Path] = []
        self.flows: list[Flow] = []

    @abstractmethod
    def _handle(self, flow: Flow, side: int, event: Event) -> None:
        """Give an event to the machine at one side of a flow."""

    def _later(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        self._at(self.now + delay, what, *args)

    def _at(self, time: float, what: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heappush(self.heap, (time, self._count, what, args))

    # --- ranks ----------------------------------------------------------------------------------------------------

    def _process(self, side: int, what: Callable[..., None], *args: Any, turn: int = HAPPENING) -> None:
        """Work of a rank's process, at once or when it is no longer paused, in its turn."""
        if self.paused[side]:
            self.backlog[side].append((turn, what, args))
        else:
            what(*args)

    def _pause(self, side: int, span: float) -> None:
        if not self.paused[side]:
            self.paused[side] = self.was_paused = True
            self._later(span, self._resume, side)

    def _resume(self, side: int) -> None:
        self.paused[side] = False
        todo, self.backlog[side] = self.backlog[side], []
        for turn, what, args in sorted(todo, key=lambda work: work[0]):
            if not self.over:
                self._process(side, what, *args, turn=turn)  # it may be paused again

    def _tell_rank(self, flow: Flow, side: int, event: Event, path: Path | None = None, life: int = 0) -> None:
        self._process(side, self._hear, flow, side, event, path, life)

    def _hear(self, flow: Flow, side: int, event: Event, path: Path | None, life: int) -> None:
        """A rank takes note of an event, but not of a former life of a wire, nor of one that it has not found yet."""
        if isinstance(event, Found) and path is not None:
            flow.found[side][path.number] = life
        if path is None or path.life == life == flow.found[side][path.number]:
            self._handle(flow, side, event)

    # --- wires ----------------------------------------------------------------------------------------------------

    def _land(self, flight: Flight) -> None:
        path = flight.wire
        if not flight.may_land():
            self._retry(path)
        elif path.blocked or not path.forth:
            path.blocked.append(flight)
            self._retry(path)
        else:
            self._into_memory(flight)

    def _into_memory(self, flight: Flight) -> None:
        flow, path, seq = flight.flow, flight.wire, flight.seq
        if flight.epoch < flow.receiver.epoch:
            raise InvariantError("I4", f"chunk {seq} of epoch {flight.epoch} written in epoch {flow.receiver.epoch}")
        slot = seq % flow.receiver.window
        there = flow.slots[slot]
        if there is not None:
            raise InvariantError("I9", f"chunk {seq} overwrites chunk {there.seq}, which is not folded")
        flow.slots[slot] = flight
        flight.landed = True
        flow.in_memory.add(seq)
        path.next_report = max(path.next_report, self.now + 0.5 * self.rng.random())
        landed = Landed(path.number, flight.epoch, seq)
        self._at(path.next_report, self._tell_rank, flow, RECEIVER, landed, path, path.life)
        if self.by_process:
            self._at(path.next_report, self._process, RECEIVER, self._acknowledge, flight)
        else:
            self._send_back(path, flow, Acked(path.number, seq))

    def _acknowledge(self, flight: Flight) -> None:
        path = flight.wire
        if path.life == flight.life and not path.dead[RECEIVER]:
            self._send_back(path, flight.flow, Acked(path.number, flight.seq))

    def _send_back(self, path: Path, flow: Flow, event: Event) -> None:
        path.next_back = max(path.next_back, self.now + self.rng.random())
        self._at(path.next_back, self._come_back, path, path.life, flow, event)

    def _come_back(self, path: Path, life: int, flow: Flow, event: Event) -> None:
        if path.life != life or path.dead[SENDER]:
            return
        if path.back:
            self._arrive(path, flow, event)
        else:
            path.held.append((flow, event))
            self._retry(path)

    def _arrive(self, path: Path, flow: Flow, event: Event) -> None:
        """What goes back is at the sender's NIC. A credit takes a receive until the sender has looked at it."""
        if isinstance(event, Credit):
            path.unseen[flow] += 1
            if path.unseen[flow] > flow.receiver.window + ECHOES:
                raise InvariantError("I18", f"{event} finds no receive: {path.unseen[flow]} have come unseen")
            self._process(SENDER, self._see, path, path.life, flow, event)
        else:
            self._tell_rank(flow, SENDER, event)

    def _see(self, path: Path, life: int, flow: Flow, event: Event) -> None:
        if path.life == life:
            path.unseen[flow] -= 1
        self._hear(flow, SENDER, event, None, 0)

    def _retry(self, path: Path) -> None:
        if path.retries and not path.retrying:
            path.retrying = True
            self._later(8 * self.rng.random(), self._retried, path, path.life)

    def _retried(self, path: Path, life: int) -> None:
        path.retrying = False
        if path.life == life and (path.blocked or path.held or path.dead[RECEIVER]) and not path.dead[SENDER]:
            path.dead[SENDER] = True
            self._spread(path, SENDER, Cause.ERROR)

    def _spread(self, path: Path, side: int, cause: Cause, but: Flow | None = None) -> None:
        """All flows of a wire hear of its loss at this end, each in its own time."""
        for flow in path.flows:
            if flow is not but:
                event = Lost(path.number, cause)
                self._later(5 * self.rng.random() ** 2, self._tell_rank, flow, side, event, path, path.life)

    def _fault(self, path: Path, kind: str) -> None:
        rand = self.rng.random
        path.faulty = True
        self.seen[kind] += 1
        self._later(25 * rand() ** 2, self._late, path, path.life)
        if kind == "sender error":
            path.dead[SENDER] = True
            path.forth = path.forth and rand() < 0.5
            self._spread(path, SENDER, Cause.ERROR)
            return
        if kind == "receiver error":
            path.dead[RECEIVER] = True
            path.retries = rand() < 0.5
            if rand() < 0.5:
                self._spread(path, RECEIVER, Cause.ERROR)
            return
        path.forth = path.forth and kind == "acks lost"
        path.back = path.back and kind == "data lost"
        path.retries = kind != "black hole" and rand() < 0.5
        if kind in ("link down", "flap"):
            for side in (SENDER, RECEIVER):
                if rand() < 0.5:
                    self._spread(path, side, Cause.PORT)
        if kind == "flap":
            self._later(12 * rand() ** 2, self._heal, path, path.life)

    def _late(self, path: Path, life: int) -> None:
        """What was on its way when the wire failed takes effect after all, whatever the sender thinks by now."""
        if path.life != life:
            return
        blocked, path.blocked = path.blocked, []
        for flight in blocked:
            if flight.may_land():
                self.seen["landed late"] += 1
                self._into_memory(flight)

    def _heal(self, path: Path, life: int) -> None:
        if path.life != life:
            return
        path.forth = path.back = True
        self._late(path, life)
        held, path.held = path.held, []
        for flow, event in held:
            if not path.dead[SENDER]:
                self._arrive(path, flow, event)

    def _fence(self, path: Path, life: int, side: int, flow: Flow) -> None:
        """The fence takes effect. What was reported before is told before."""
        if path.life != life:
            return
        if not path.fenced[side]:
            path.dead[side] = path.fenced[side] = True
            self._spread(path, side, Cause.ERROR, but=flow)
            if all(path.fenced):
                self._later(20 * self.rng.random(), self._remake, path)
        when = max(self.now, path.next_report) if side == RECEIVER else self.now
        for other in path.flows:
            if other is flow or self.rng.random() < 0.5:
                self._at(when, self._tell_rank, other, side, Fenced(path.number), path, life)

    def _remake(self, path: Path) -> None:
        """New ends, if no flow is on the wire or about to be; its former life is forgotten."""
        for flow in path.flows:
            sender, receiver = flow.sender, flow.receiver
            if path.number in (sender.wire, sender._target, receiver.wire, receiver._asked.wire):
                return
        path.anew()
        path.life += 1
        self.seen["found"] += 1
        for flow in path.flows:
            for side in (SENDER, RECEIVER):
                self._later(3 * self.rng.random(), self._tell_rank, flow, side, Found(path.number), path, path.life)

    # --- records: over a wire one read at a time, of what the far end says when the read comes by -------------------

    def _read_over(self, path: Path, flow: Flow) -> None:
        if flow not in path.reading:
            path.reading.add(flow)
            self._later(self.rng.random(), self._look_up, path, path.life, flow)

    def _look_up(self, path: Path, life: int, flow: Flow) -> None:
        if path.life == life and path.forth and not any(path.dead):
            self._later(self.rng.random(), self._bring, path, life, flow, flow.record)

    def _bring(self, path: Path, life: int, flow: Flow, record: tuple[int, int, int]) -> None:
        if path.life == life and path.back and not any(path.dead):
            self._process(SENDER, self._recorded, path, life, flow, record)

    def _recorded(self, path: Path, life: int, flow: Flow, record: tuple[int, int, int]) -> None:
        if not path.life == life == flow.found[SENDER][path.number]:
            return
        path.reading.discard(flow)
        tested = flow.sender.stuck(False)
        self.seen["heard of an old epoch" if tested and record[0] < flow.sender.epoch else "heard"] += tested
        self._handle(flow, SENDER, Answer(*record))
        self._handle(flow, SENDER, Heard(record[0]))
        self._recorded_before(flow, record[0])

    def _recorded_before(self, flow: Flow, epoch: int) -> None:
        """What was asked for before the flow moved says nothing about its wire; who is tested by it asks again."""
        if epoch < flow.sender.epoch and flow.sender.stuck(False):
            self._read_over(self.paths[flow.sender.wire], flow)
