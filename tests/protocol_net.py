"""A small world in virtual time for the failover protocol: two ranks, wires that fail in every way, messages lost.

`run(seed)` plays one random interleaving against real `Sender` and `Receiver` machines and raises `InvariantError`,
which names the invariant, as soon as one does not hold. The world is stricter than hardware is: a write may take effect
at any time until the receiver's end of its wire is fenced, however long ago the sender has given the wire up.

Invariants of one flow and its wires (I12 and I14 to I17 are about whole jobs, not about this world):
I1 no chunk is lost, nor its payload released before it has landed; I2 none is delivered twice; I3 after a handshake
both ends go on with the same chunk, wire and epoch; I4 both ends are fenced before that, no write of an earlier epoch
takes effect; I5 chunks and credits come in order; I6 stale and doubled messages change nothing; I7 every handshake
ends, or the flow is severed for a reason, once; I8 the loss of the last acknowledgement does not hang it; I9 no slot is
written before it is folded, nor while an old write may own it; I10 no healthy wire is fenced, so that flows on it write
nothing again; I11 nor because a peer was paused; I13 all this holds for wires that are made anew, too; I18 every credit
and every echo of one finds a receive.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop
from typing import Any

from optcc.runtime.protocol import ProtocolError, Receiver, Sender, SenderState
from optcc.runtime.protocol.events import (
    Alive,
    Ask,
    Credit,
    Deliver,
    Doubt,
    Echo,
    Event,
    Expired,
    Fence,
    FlowMessage,
    Folded,
    Found,
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
from optcc.runtime.wires.contract import Cause
from tests.protocol_ground import (
    FAULTS,
    LETTER,
    RECEIVER,
    REST,
    SENDER,
    TIMER,
    Flight,
    Flow,
    Ground,
    InvariantError,
    Path,
)
from tests.protocol_states import state_of

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
