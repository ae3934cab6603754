"""What an end of a flow remembers."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import cache
from heapq import heappop, heappush
from typing import Any

from optcc.runtime.protocol import ProtocolError, Receiver, Sender, SenderState
from optcc.runtime.protocol.events import (
    Acked,
    Alive,
    Answer,
    Ask,
    Credit,
    Deliver,
    Doubt,
    Echo,
    Event,
    Expired,
    Fence,
    Fenced,
    FlowMessage,
    Folded,
    Found,
    Heard,
    Landed,
    Lost,
    Moved,
    Notice,
    Publish,
    Read,
    Refuse,
    Release,
    Return,
    Send,
    Severed,
    Spread,
    Start,
    Stop,
    Suspect,
    Tell,
    Timer,
    Write,
)
from optcc.runtime.wires.contract import ECHOES, Cause


def state_of(end: Sender | Receiver) -> dict[str, Any]:
    """Everything that an end remembers."""
    values = ((name, getattr(end, name)) for name in _names(type(end)))
    return {name: set(value) if isinstance(value, set) else value for name, value in values}


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(sorted({name for cls in kind.__mro__ for name in getattr(cls, "__slots__", ())} - {"_on"}))


# The ground on which `protocol_net` plays: virtual time, two ranks that may be paused, wires that fail anyhow.


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


# A small world in virtual time for the failover protocol: two ranks, wires that fail in every way, messages lost.
#
# `run(seed)` plays one random interleaving against real `Sender` and `Receiver` machines and raises `InvariantError`,
# which names the invariant, as soon as one does not hold. The world is stricter than hardware is: a write may take
# effect at any time until the receiver's end of its wire is fenced, however long ago the sender has given the wire up.
#
# Invariants of one flow and its wires (I12 and I14 to I17 are about whole jobs, not about this world): I1 no chunk is
# lost, nor its payload released before it has landed; I2 none is delivered twice; I3 after a handshake both ends go on
# with the same chunk, wire and epoch; I4 both ends are fenced before that, no write of an earlier epoch takes effect;
# I5 chunks and credits come in order; I6 stale and doubled messages change nothing; I7 every handshake ends, or the
# flow is severed for a reason, once; I8 the loss of the last acknowledgement does not hang it; I9 no slot is written
# before it is folded, nor while an old write may own it; I10 no healthy wire is fenced, so that flows on it write
# nothing again; I11 nor because a peer was paused; I13 all this holds for wires that are made anew, too; I18 every
# credit and every echo of one finds a receive.


PROGRESS, GRACE, ANSWER, FIRST = 6.0, 4.0, 3.0, 0.5  # timers, in units of the longest healthy delay on a wire
FEW, MANY = 3, 80
"""Questions a sender may ask: few, so that it gives up at times, or so many that half of all messages may get lost."""

TIMEOUTS = 4000.0
"""A run that has not ended by then hangs. The longest timeouts and pauses that can add up stay well below."""


class Net(Ground):
    """Flows between the two ranks, and an observer of all they do."""

    def __init__(self, seed: int, sender: type[Sender] = Sender, receiver: type[Receiver] = Receiver) -> None:
        super().__init__(seed)
        self._scenario(sender, receiver)

    # --- what is tried --------------------------------------------------------------------------------------------

    def _scenario(self, sender: type[Sender], receiver: type[Receiver]) -> None:
        rng, rand = self.rng, self.rng.random
        self.paths = [Path(number) for number in range(rng.choice((1, 2, 2, 3, 3)))]
        self.loss = rng.choice((0.0, 0.0, 0.2, 0.5))
        self.doubled = rng.choice((0.0, 0.3))
        self.message_delay = rng.choice((0.5, 2.0, 10.0))
        self.fold_delay = rng.choice((0.2, 1.0, 4.0, 20.0))
        self.readable = rand() < 0.5
        self.linger = 15.0 if rand() < 0.2 else 0.0
        self.by_process = rand() < 0.5
        self.naps = rng.choice((0, 0, 0, 2))  # pauses right after a rank has said that it is alive
        self.flows = []
        for _ in range(1 if rand() < 0.6 else 2):
            window = rng.choice((1, 2, 3, 4))
            wires = rng.sample(range(len(self.paths)), len(self.paths))
            asks = FEW if rand() < 0.1 else MANY
            ends = sender(wires, window, asks=asks), receiver(wires, window, credit_every=1 + int(rand() * window))
            flow = Flow(*ends, chunks=int(rand() * 4 * window) + (rand() < 0.9))
            self.flows.append(flow)
            for wire in wires:
                self.paths[wire].flows.append(flow)
            self._later(PROGRESS * rand(), self._tick, flow)
            for part in range(1, 1 + (1 if rand() < 0.5 else 3)):
                self._later(part * 6 * rand() if part > 1 else 0.0, self._supply, flow, flow.chunks * part // 3 + 1)
            self._later(20 * rand(), self._supply, flow, flow.chunks)
            for _ in range(int(rand() * 2.2)):
                self._later(20 * rand(), self._process, SENDER, self._doubt, flow)
        moment = 8 * rand()
        for _ in range(int(rand() * 4.5)):
            path = rng.choice(self.paths) if rand() < 0.5 else self.paths[self.flows[0].sender.wire]
            self._later(moment, self._fault, path, rng.choice(FAULTS))
            moment = moment + 2 * rand() if rand() < 0.6 else 16 * rand()
        for _ in range(int(rand() * 2.2)):
            self._later(10 * rand(), self._pause, rng.choice((SENDER, RECEIVER)), 40 * rand())

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self) -> Net:
        """Until every flow is done or one is severed. Raises InvariantError."""
        heap, end = self.heap, TIMEOUTS
        while heap and not self.over:
            self.now, _, what, args = heappop(heap)
            if self.now > end:
                break
            self.steps += 1
            what(*args)
            if end == TIMEOUTS and all(flow.done() for flow in self.flows):
                end = self.now + self.linger
        for flow in self.flows:
            if not self.over and not flow.done():
                self._hangs(flow)
            if not self.over and (sorted(flow.folds) != list(range(flow.chunks)) or set(flow.folds.values()) - {1}):
                raise InvariantError("I1", f"folded {dict(flow.folds)} of {flow.chunks} chunks")
        return self

    def _hangs(self, flow: Flow) -> None:
        told = f"{flow.sender.state} at {flow.sender.acked}, {flow.receiver.state} at {flow.receiver.landed}"
        if flow.sender.state in (SenderState.FENCING, SenderState.ASKING):
            raise InvariantError("I7", f"a handshake never ends: {told}")
        if flow.receiver.folded == flow.chunks:
            raise InvariantError("I8", f"all is there but the last acknowledgement: {told}")
        raise InvariantError("I1", f"{flow.chunks} chunks never arrive: {told}")

    def _supply(self, flow: Flow, ready: int) -> None:
        flow.ready = max(flow.ready, min(ready, flow.chunks))
        self._process(SENDER, self._pump, flow)

    def _pump(self, flow: Flow) -> None:
        while flow.ready > flow.sender.posted and flow.sender.may_send and not self.over:
            self._do(flow, SENDER, flow.sender.handle(Send()))

    def _handle(self, flow: Flow, side: int, event: Event) -> None:
        self._do(flow, side, flow.ends[side].handle(event))
        if side == SENDER:
            self._pump(flow)

    # --- timers ---------------------------------------------------------------------------------------------------

    def _tick(self, flow: Flow) -> None:
        self._later(PROGRESS, self._tick, flow)
        self._process(SENDER, self._sample, flow, turn=TIMER)

    def _sample(self, flow: Flow) -> None:
        sender = flow.sender
        before, flow.sample = flow.sample, (sender.stuck(flow.ready > sender.posted), sender.progress)
        if flow.sample[0] and flow.sample == before:
            self._handle(flow, SENDER, Expired(Timer.PROGRESS))

    def _expire(self, flow: Flow, side: int, timer: Timer, number: int) -> None:
        self._process(side, self._expired, flow, side, timer, number, turn=TIMER)

    def _expired(self, flow: Flow, side: int, timer: Timer, number: int) -> None:
        if flow.timers[side, timer] == number:
            self._handle(flow, side, Expired(timer))

    # --- doubt ----------------------------------------------------------------------------------------------------

    def _doubt(self, flow: Flow) -> None:
        """Somebody thinks that the flow's wire may be a black hole, with or without reason."""
        sender = flow.sender
        if sender.state is not SenderState.ACTIVE or self.over:
            return
        reading = self.readable and not sender.outstanding
        if reading:
            self._read_over(self.paths[sender.wire], flow)
        self.seen["doubted"] += 1
        self._handle(flow, SENDER, Doubt(reading))

    # --- messages --------------------------------------------------------------------------------------------------

    def _post(self, flow: Flow, side: int, message: FlowMessage) -> None:
        rand = self.rng.random
        if rand() < self.loss:
            self.seen["messages lost"] += 1
            return
        path = self.paths[message.wire] if isinstance(message, (Ask, Refuse, Notice)) else None
        envelope = [message, path, path.life if path else 0, False]
        copies = 1 + (rand() < self.doubled)
        self.seen["messages doubled"] += copies - 1
        for _ in range(copies):
            self._later(self.message_delay * rand(), self._deliver_letter, flow, 1 - side, envelope)

    def _deliver_letter(self, flow: Flow, side: int, envelope: list[Any]) -> None:
        self._process(side, self._open, flow, side, envelope, turn=LETTER)

    def _open(self, flow: Flow, side: int, envelope: list[Any]) -> None:
        message, path, life, read = envelope
        if path is not None and not path.life == life == flow.found[side][path.number]:
            return None
        if isinstance(message, Suspect):  # once more is once more tested
            return self._doubt(flow) if flow.sender.epoch == message.epoch else None
        envelope[3] = True
        known = flow.sender.epoch if side == SENDER else flow.asked
        if not read and (isinstance(message, Notice) or message.epoch >= known):
            if isinstance(message, Ask):
                flow.asked = message.epoch
            return self._handle(flow, side, message)
        self.seen["stale messages"] += 1
        end = flow.ends[side]
        before = state_of(end)
        commands = end.handle(message)
        if state_of(end) != before or any(not isinstance(command, (Tell, Spread, Echo)) for command in commands):
            raise InvariantError(
                "I6", f"{message} again, or too late, changes {before} to {state_of(end)} and has {commands} done"
            )
        return self._do(flow, side, commands)

    # --- commands -------------------------------------------------------------------------------------------------

    def _do(self, flow: Flow, side: int, commands: tuple[Any, ...]) -> None:
        for nth, command in enumerate(commands):
            if self.paused[side]:  # by what it has just done
                return self._process(side, self._do, flow, side, commands[nth:], turn=REST)
            DO[type(command)](self, flow, side, command)
        return None

    def _write(self, flow: Flow, _: int, command: Write) -> None:
        path, epoch, seq, again = self.paths[command.wire], command.epoch, command.seq, command.again
        slot = seq % flow.receiver.window
        before = flow.last[slot]
        if flow.slots[slot] is not None or (before is not None and before.may_land()):
            raise InvariantError("I9", f"chunk {seq} written into a slot that chunk {before and before.seq} may own")
        if epoch > flow.begun:
            flow.begun = epoch
            if (epoch, seq) != flow.record[:2]:
                raise InvariantError("I3", f"epoch {epoch} begins with chunk {seq}, the receiver said {flow.record}")
        self.seen["written again" if again else "written"] += 1
        flight = flow.last[slot] = Flight(flow, path, epoch, seq)
        if not path.dead[SENDER]:
            path.next_forth = max(path.next_forth, self.now + self.rng.random())
            self._at(path.next_forth, self._land, flight)
        else:
            flight.life = -1

    def _fence_command(self, flow: Flow, side: int, command: Fence) -> None:
        path = self.paths[command.wire]
        if not path.faulty:
            check = "I11" if self.was_paused else "I10"
            raise InvariantError(check, f"wire {command.wire} is healthy and is fenced at end {side}")
        self._later(self.rng.random(), self._fence, path, path.life, side, flow)

    def _tell(self, flow: Flow, side: int, command: Tell) -> None:
        message = command.message
        self.seen[type(message).__name__] += 1
        if isinstance(message, Ask):
            flow.questions[message.epoch] += 1
            if not self.paths[flow.sender.wire].fenced[SENDER]:
                raise InvariantError("I4", f"{message}, but the sender's end of wire {flow.sender.wire} is not fenced")
        self._post(flow, side, message)
        if isinstance(message, Alive) and self.naps and self.rng.random() < 0.3:
            self.naps -= 1
            self.seen["paused right after it was alive"] += 1
            self._pause(side, 40 * self.rng.random())

    def _start(self, flow: Flow, side: int, command: Start) -> None:
        flow.timers[side, command.timer] += 1
        span = GRACE if command.timer is Timer.GRACE else min(ANSWER, FIRST * 2**command.nth)
        self._later(span, self._expire, flow, side, command.timer, flow.timers[side, command.timer])

    def _stop(self, flow: Flow, side: int, command: Stop) -> None:
        flow.timers[side, command.timer] += 1

    def _have_tested(self, flow: Flow, side: int, _: Spread) -> None:
        """All wires of the world use the same NICs."""
        for other in self.flows:
            if other is not flow and side == SENDER:
                self._doubt(other)
            elif other is not flow:
                self._post(other, side, Suspect(other.receiver.epoch))

    def _deliver(self, flow: Flow, _: int, command: Deliver) -> None:
        seq = command.seq
        there = flow.slots[seq % flow.receiver.window]
        if seq in flow.delivered:
            raise InvariantError("I2", f"chunk {seq} is delivered twice")
        if flow.delivered and seq < flow.delivered[-1]:
            raise InvariantError("I5", f"chunk {seq} is delivered after {flow.delivered[-1]}")
        if there is None or there.seq != seq:
            raise InvariantError("I1", f"chunk {seq} is delivered and not in its slot")
        flow.delivered.append(seq)
        self._later(self.fold_delay * self.rng.random(), self._process, RECEIVER, self._fold, flow, there)

    def _fold(self, flow: Flow, flight: Flight) -> None:
        slot = flight.seq % flow.receiver.window
        if flow.slots[slot] is not flight:
            raise InvariantError("I9", f"chunk {flight.seq} is overwritten while it is folded")
        flow.slots[slot] = None
        flow.folds[flight.seq] += 1
        self._handle(flow, RECEIVER, Folded(flight.seq))

    def _return(self, flow: Flow, _: int, command: Return) -> None:
        if command.folded <= flow.returned:
            raise InvariantError("I5", f"credit {command.folded} after {flow.returned}")
        if any(seq not in flow.folds for seq in range(flow.returned, command.folded)):
            raise InvariantError("I9", f"credit {command.folded}, folded {sorted(flow.folds)}")
        flow.returned = command.folded
        path = self.paths[command.wire]
        if not path.dead[RECEIVER]:
            self._send_back(path, flow, Credit(path.number, command.folded))

    def _echo(self, flow: Flow, _: int, command: Echo) -> None:
        path = self.paths[command.wire]
        if command.folded != flow.returned and not flow.questions:
            raise InvariantError("I5", f"credit {command.folded} again, the last was {flow.returned}")
        if not path.dead[RECEIVER]:
            self._send_back(path, flow, Credit(path.number, command.folded))

    def _publish(self, flow: Flow, _: int, command: Publish) -> None:
        if command <= flow.record:
            raise InvariantError("I5", f"{command} after {flow.record}")
        flow.record = (command.epoch, command.landed, command.folded)

    def _read(self, flow: Flow, _: int, command: Read) -> None:
        if self.readable:
            self._read_over(self.paths[command.wire], flow)

    def _release(self, flow: Flow, _: int, command: Release) -> None:
        if any(seq not in flow.in_memory for seq in range(command.seq)):
            raise InvariantError(
                "I1", f"payloads below {command.seq} are released, landed have {sorted(flow.in_memory)}"
            )

    def _moved(self, flow: Flow, _: int, command: Moved) -> None:
        sender, receiver = flow.sender, flow.receiver
        self.seen["moved"] += 1
        self.seen["moved back"] += self.paths[command.wire].life > 0
        here = (sender.epoch, sender.wire, sender.posted - command.replayed)
        there = (receiver.epoch, receiver.wire, receiver.landed)
        if here != there or sender.acked != receiver.landed:
            raise InvariantError("I3", f"epoch, wire, next chunk: {here} at the sender, {there} at the receiver")
        if self.rng.random() < 0.3:  # its new NICs may be suspect, too, while the record is still being read
            self._later(self.rng.random(), self._process, SENDER, self._doubt, flow)

    def _severed(self, flow: Flow, side: int, command: Severed) -> None:
        sender = flow.sender
        self.seen["severed"] += 1
        owes = sender.posted > sender.acked or flow.ready > sender.posted
        without_wire = sender.lost == set(sender.wires) and all(self.paths[wire].faulty for wire in sender.lost)
        unanswered = sender.asks == FEW and flow.questions[sender.epoch] == FEW  # MANY are as good as answered
        if not (without_wire and owes) and not unanswered:
            raise InvariantError("I7", f"severed for no reason: {command.why}")
        for event in (Send(), Lost(sender.wire, Cause.PORT), Found(sender.wire), Expired(Timer.ANSWER)):
            if sender.handle(event):
                raise InvariantError("I7", "does something after it was severed")
        self.over = True


DO: dict[type, Callable[..., None]] = {
    Write: Net._write,
    Fence: Net._fence_command,
    Tell: Net._tell,
    Start: Net._start,
    Stop: Net._stop,
    Echo: Net._echo,
    Spread: Net._have_tested,
    Deliver: Net._deliver,
    Return: Net._return,
    Publish: Net._publish,
    Read: Net._read,
    Release: Net._release,
    Moved: Net._moved,
    Severed: Net._severed,
}


def run(seed: int, sender: type[Sender] = Sender, receiver: type[Receiver] = Receiver, net: type[Net] = Net) -> Net:
    """One interleaving. Raises InvariantError; for a machine's own complaint its check is "protocol"."""
    try:
        return net(seed, sender, receiver).run()
    except ProtocolError as error:
        raise InvariantError("protocol", str(error)) from error
