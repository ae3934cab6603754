"""One rank's flows: transfers cut into chunks, chunks numbered, and every flow moved off a wire that is lost.

What to do about an event is decided by the protocol's machines (`optcc.runtime.protocol`), what carries the chunks is
behind the contract of `wires`; this file joins them, keeps the time, and remembers what happened.

A transfer is cut among its route's flows by the shares of the schedule. When some of them have lost their home wire,
what is new is cut among the others, and the lost ones carry only what they had begun. So a NIC's traffic spreads over
all that is left, as its rates allow, until the next plan.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from struct import Struct
from typing import Any, NamedTuple

from optcc.runtime import letters
from optcc.runtime.errors import FlowSeveredError, NicsLostError, TransportError
from optcc.runtime.layout import Layout
from optcc.runtime.messages import Note
from optcc.runtime.program import Move
from optcc.runtime.protocol import Receiver, Sender, words
from optcc.runtime.protocol.table import Commands
from optcc.runtime.stalls import Stalls
from optcc.runtime.transport import Landing, Take
from optcc.runtime.wires import (
    HEADER_BYTES,
    Arrived,
    Cause,
    Completed,
    Credited,
    Drained,
    Failed,
    PortDown,
    PortUp,
    Record,
    Wires,
)
from optcc.schedule import Route
from optcc.schedule.columns import GRANULE

CHUNK_HEADER = Struct(f"<IIIIqqq{HEADER_BYTES - 40}x")
"""Mark, epoch, operation, bytes, seq, row, offset in the buffer."""

CHUNK_MARK = 0x0C0FFEE5
"""Marks a slot that holds a chunk."""


CREDITS = 4
"""A window is given back in so many parts: less to do than slot by slot, and the sender need not wait."""


@dataclass(frozen=True)
class Patience:
    """How long a flow waits, in seconds.

    progress : at most so long without progress while something is outstanding, before the peer is asked; at least
        three quarters of it. What a NIC was given before, for whichever flow, is progress when it comes through
    grace : from the peer's answer to the verdict that the wire is a black hole
    answer : for an answer to a question, before it is repeated
    """

    progress: float = 1.0
    grace: float = 0.5
    answer: float = 0.25


_SEND = words.Send()


class _Piece(NamedTuple):
    """A chunk to send."""

    ready: float
    operation: int
    row: int
    offset: int
    payload: memoryview


@dataclass(eq=False)
class _Out:
    """An outgoing flow: its machine, chunks not yet numbered, and numbered ones that may have to be sent again."""

    number: int
    peer: int
    home: int
    sender: Sender
    queue: deque[_Piece] = field(default_factory=deque)
    kept: deque[_Piece] = field(default_factory=deque)
    base: int = 0  # number of the first kept chunk


@dataclass(eq=False)
class _In:
    """An incoming flow."""

    number: int
    peer: int
    receiver: Receiver


class FlowTransport:
    """Transport over wires. One for a layout; `begin` starts each operation on it.

    Parameters
    ----------
    routes : by schedule name, the schedule's routes
    send : (rank, JSON value): a letter to another rank, which hands it to its `letter`
    journal : notes of all failovers so far, kinds: lost (a wire), moved (a flow)
    """

    def __init__(
        self,
        rank: int,
        layout: Layout,
        routes: Mapping[str, Sequence[Route]],
        wires: Wires,
        send: Callable[[int, Any], None],
        clock: Callable[[], float],
        patience: Patience = Patience(),
    ) -> None:
        self._rank, self._layout, self._routes, self._wires = rank, layout, routes, wires
        self._send, self._clock, self._patience = send, clock, patience
        self._hasten: Callable[[int, int, int], None] | None = getattr(wires, "hasten", None)
        # Where payloads land that are not in host memory with their headers.
        self._elsewhere: Callable[[int, int, int], Any] | None = getattr(wires, "payload", None)

        def ends_of(wires: Sequence[int]) -> dict[int, tuple[int, int]]:
            return {wire: (layout.wires[wire].out, layout.wires[wire].into) for wire in wires}

        self._outs = {
            f: _Out(f, spec.dst, spec.wires[0], Sender(spec.wires, spec.window, ends=ends_of(spec.wires)))
            for f, spec in enumerate(layout.flows)
            if spec.src == rank
        }
        self._ins = {
            f: _In(f, spec.src, Receiver(spec.wires, spec.window, credit_every=-(-spec.window // CREDITS)))
            for f, spec in enumerate(layout.flows)
            if spec.dst == rank
        }
        self._stalls = Stalls({f: out.sender for f, out in self._outs.items()}, patience.progress)
        self._using: dict[int, list[_Out | _In]] = {}  # wire -> the flows that may use it
        ends: list[_Out | _In] = [*self._outs.values(), *self._ins.values()]
        for flow in ends:
            for wire in layout.flows[flow.number].wires:
                self._using.setdefault(wire, []).append(flow)
        self._lost: set[int] = set()
        self._down: set[int] = set()  # NICs of this rank
        self._noticed: set[tuple[int, int]] = set()  # (peer, wire), while flows hear of a loss
        self._fences: dict[int, list[_Out | _In]] = {}  # wire -> flows that wait until it is drained
        self._drained: set[int] = set()
        self._mail: deque[tuple[int, Any]] = deque()
        self._timers: dict[tuple[int, words.Timer], float] = {}
        self._look_at = math.inf  # when to look at progress next
        self._busy: set[int] = set()  # outgoing flows with a queue
        self._operation = 0
        self._now = clock()  # as of the last look: looking takes time, too
        self._missing: dict[int, int] = {}  # row -> bytes still to come
        self._landings: list[Landing] = []
        self._posted: Counter[int] = Counter()  # wire -> bytes in this operation
        self._take: Take = nothing_runs
        self.journal: list[Note] = []
        self._on: dict[type, Callable[[Any], None]] = {
            Completed: self._completed,
            Arrived: self._arrived,
            Credited: self._credited,
            Failed: lambda f: self._lose(f.wire, f.cause, f.detail),
            Drained: self._now_drained,
            Record: lambda r: self._handle(self._outs[r.flow], words.Answer(r.epoch, r.landed, r.folded)),
            PortDown: self._port_down,
            PortUp: lambda up: self._note("nic up", layout.nics[up.nic].name),
        }
        self._does: dict[type, Callable[[Any, Any], object]] = {
            words.Write: self._write,
            words.Publish: lambda flow, c: wires.publish(flow.number, c.epoch, c.landed, c.folded),
            words.Release: self._release,
            words.Fence: self._fence,
            words.Tell: self._tell,
            words.Read: lambda flow, c: wires.ask_record(c.wire, flow.number),
            words.Start: self._start,
            words.Stop: lambda flow, c: self._timers.pop((flow.number, c.timer), None),
            words.Moved: self._moved,
            words.Return: lambda flow, c: wires.credit(c.wire, flow.number, c.folded),
            words.Severed: self._severed,
        }

    # --- the engine's side -------------------------------------------------------------------------------------------

    def begin(self, name: str, receives: Mapping[int, Move]) -> None:
        """The next operation runs schedule `name`; this rank will receive these transfers.

        Every rank has finished the one before: what comes in from now on belongs to this one.
        """
        self._operation += 1
        self._lanes = self._layout.lanes[name]
        self._route = self._routes[name]
        self._missing = {row: move.length for row, move in receives.items()}
        self._posted.clear()

    def free_at(self, route: int, now: float) -> float:
        """As soon as one NIC of the route is free: waiting for all of them would leave that one idle.

        Nothing may wait in the route's queues then, so that which transfer goes next is decided late.
        """
        first, self._now = math.inf, now
        for flow in self._live(route):
            out = self._outs[flow]
            if out.queue:
                return math.inf
            first = min(first, self._wires.free_at(out.sender.wire, now))
        return first

    def post(self, move: Move, payload: memoryview, ready: float) -> None:
        """Cut into chunks and begin to send."""
        flows = self._lanes[move.route]
        live = self._live(move.route)
        cuts = self._route[move.route].cuts(move.length) if len(live) == len(flows) else self._recut(move, live)
        for flow, (start, stop) in zip(live, pairwise(cuts), strict=True):
            out, most = self._outs[flow], self._layout.flows[flow].slot_bytes
            for at in range(start, stop, most):
                part = payload[at : min(at + most, stop)]
                out.queue.append(_Piece(ready, self._operation, move.row, move.offset + at, part))
            if out.queue:
                self._busy.add(flow)
                self._pump(out)

    def poll(self, until: float, take: Take) -> list[Landing]:
        """Wait once, then deal with all that has happened."""
        self._take = take
        wake = self.next_wake() if self._timers or self._mail else self._look_at
        for happening in self._wires.poll(wake if wake < until else until):
            if type(happening) is Arrived:
                self._arrived(happening)
            else:
                self._on[type(happening)](happening)
        while self._mail:
            self._read(*self._mail.popleft())
        self._now = now = self._clock()
        if self._timers or now >= self._look_at:
            self._expire(now)
        if self._busy:
            for flow in sorted(self._busy, key=lambda flow: self._outs[flow].queue[0].row):
                self._pump(self._outs[flow])
        landings, self._landings = self._landings, []
        if len(landings) > 1:
            landings.sort(key=lambda landing: landing.at)
        return landings

    def next_wake(self) -> float:
        """When `poll` has something to do even if nothing happens; inf: nothing."""
        if self._mail:
            return -math.inf
        return min(self._look_at, *self._timers.values()) if self._timers else self._look_at

    def drain(self) -> bool:
        """Whether all that was posted has landed at the other ends; if not, `poll` returns when it has."""
        return not self._want() and not self._busy

    def sent(self) -> dict[int, int]:
        """Bytes of payload that left by each NIC in this operation, replays counted: NIC -> bytes."""
        sent: Counter[int] = Counter()
        for wire, nbytes in self._posted.items():
            sent[self._layout.wires[wire].out] += nbytes
        return dict(sent)

    def letter(self, rank: int, value: Any) -> None:
        """A letter from another rank; read at the end of the next poll."""
        self._mail.append((rank, value))

    # --- what happens ------------------------------------------------------------------------------------------------

    def _handle(self, flow: Any, event: words.Event) -> None:
        machine = flow.sender if isinstance(flow, _Out) else flow.receiver
        self._do(flow, machine.handle(event))

    def _do(self, flow: Any, commands: Commands) -> None:
        for command in commands:
            self._does[type(command)](flow, command)

    # Every chunk pays for these three and for `_pump`, and with a cold cache, since a payload has just gone through it.
    # So they ask the machines without words (`protocol.steady`), as long as these take it.

    def _completed(self, done: Completed) -> None:
        wire, number, seq = done
        out = self._outs[number]
        if not out.sender.acknowledged(wire, seq):
            self._do(out, out.sender.handle(words.Acked(wire, seq)))
            return
        kept = out.kept
        while out.base <= seq:
            kept.popleft()
            out.base += 1

    def _credited(self, credit: Credited) -> None:
        wire, number, folded = credit
        sender = self._outs[number].sender
        if not sender.credited(folded):
            sender.handle(words.Credit(wire, folded))

    def _arrived(self, arrived: Arrived) -> None:
        """The chunk goes to the engine, and its slot back to the sender, unless it is a ghost."""
        wire, number, seq, at = arrived
        slot = self._wires.slot(number, seq)
        mark, epoch, operation, nbytes, there, row, offset = CHUNK_HEADER.unpack_from(slot)
        if mark != CHUNK_MARK or there != seq:
            raise TransportError(f"flow {number}: the slot of chunk {seq} holds {there} (canary {mark:#x})")
        receiver = self._ins[number].receiver
        folded = receiver.passes(wire, epoch, seq)
        if folded < 0 and not receiver.handle(words.Landed(wire, epoch, seq)):
            return
        if operation != self._operation:
            raise TransportError(f"flow {number}: a chunk of operation {operation} in operation {self._operation}")
        if self._elsewhere:
            self._take(row, offset, self._elsewhere(number, seq, nbytes))
        else:
            self._take(row, offset, slot[HEADER_BYTES : HEADER_BYTES + nbytes])
        missing = self._missing[row] = self._missing[row] - nbytes
        if missing == 0:
            self._landings.append(Landing(row, at))
        if folded > 0:
            self._wires.credit(receiver.wire, number, folded)
        elif folded < 0:
            self._do(self._ins[number], receiver.handle(words.Folded(seq)))

    def _lose(self, wire: int, cause: Cause, detail: str) -> None:
        """Every flow that may use the wire has to know."""
        if wire in self._lost:
            return
        self._lost.add(wire)
        self._noticed.clear()
        if cause is Cause.PROGRESS:
            self._stalls.suspect((self._layout.wires[wire].out, self._layout.wires[wire].into))
        self._note("lost", *self._names(wire), cause, detail)
        for flow in self._using.get(wire, ()):
            self._handle(flow, words.Lost(wire, cause))
        self._noticed.clear()  # a notice that a probe asks for again is told again

    def _port_down(self, down: PortDown) -> None:
        self._down.add(down.nic)
        self._note("nic down", self._layout.nics[down.nic].name, "", down.cause, down.detail)
        for wire in self._using:
            if down.nic in (self._layout.wires[wire].out, self._layout.wires[wire].into):
                self._lose(wire, down.cause, down.detail)

    def _now_drained(self, happening: Drained) -> None:
        self._drained.add(happening.wire)
        for flow in self._fences.pop(happening.wire, ()):
            self._handle(flow, words.Fenced(happening.wire))

    def _read(self, rank: int, value: Any) -> None:
        """A letter: to the sender of the flow if its receiver wrote it, and the other way round."""
        flow, letter = letters.from_json(value)
        mine = self._outs.get(flow) or self._ins.get(flow)
        if mine is None or mine.peer != rank:
            return  # from another layout, or a stranger
        if isinstance(letter, words.Notice):
            self._lose(letter.wire, Cause.NOTICE, f"{letter.cause} at the other end")
        else:
            self._handle(mine, letter)

    def _expire(self, now: float) -> None:
        """Timers that have run out, and flows that have not moved for too long."""
        for (flow, timer), at in list(self._timers.items()):
            if at <= now and self._timers.pop((flow, timer), None) is not None:
                if timer is words.Timer.GRACE and self._stalls.still_moves(flow):
                    self._timers[flow, timer] = now + self._patience.grace  # its chunks have not had their turn
                else:
                    self._handle(self._outs[flow], words.Expired(timer))
        if now < self._look_at:
            return
        self._want()  # so that what has come through is known by the next look
        over = self._stalls.look(now, lambda flow: bool(self._outs[flow].queue))
        self._look_at = now + self._stalls.every if self._stalls.any else math.inf
        for flow in over:
            self._handle(self._outs[flow], words.Expired(words.Timer.PROGRESS))

    # --- what is to be done ------------------------------------------------------------------------------------------

    def _pump(self, out: _Out) -> None:
        """Number and send queued chunks while the window and the NIC take them."""
        now, sender, queue = self._now, out.sender, out.queue
        while queue and self._wires.free_at(sender.wire, now) < math.inf:
            if sender.sends():
                ready, operation, row, offset, payload = piece = queue.popleft()
                out.kept.append(piece)
                wire, seq, nbytes = sender.wire, sender.posted - 1, len(payload)
                self._posted[wire] += nbytes
                header = CHUNK_HEADER.pack(CHUNK_MARK, sender.epoch, operation, nbytes, seq, row, offset)
                self._wires.write(wire, out.number, seq, header, payload, ready)
            elif sender.may_send:
                out.kept.append(queue.popleft())
                self._do(out, sender.handle(_SEND))
            else:
                break
        if not queue:
            self._busy.discard(out.number)
        if self._look_at == math.inf:
            self._look_soon(now)

    def _want(self) -> bool:
        """Whether something has not landed, as far as is known; makes it known, where it is not told unasked."""
        outstanding = [out for out in self._outs.values() if out.sender.outstanding]
        if self._hasten:
            for out in outstanding:
                self._hasten(out.sender.wire, out.number, out.sender.posted - 1)
        return bool(outstanding)

    def _look_soon(self, now: float) -> None:
        """Something was sent: from now on it may be stuck."""
        self._look_at = min(self._look_at, now + self._stalls.every)

    def _write(self, out: _Out, command: words.Write) -> None:
        wire, epoch, seq, again = command
        ready, operation, row, offset, payload = out.kept[seq - out.base]
        nbytes = len(payload)
        self._posted[wire] += nbytes
        header = CHUNK_HEADER.pack(CHUNK_MARK, epoch, operation, nbytes, seq, row, offset)
        self._wires.write(wire, out.number, seq, header, payload, self._clock() if again else ready)

    def _release(self, out: _Out, command: words.Release) -> None:
        while out.base < command.seq:
            out.kept.popleft()
            out.base += 1

    def _fence(self, flow: _Out | _In, command: words.Fence) -> None:
        """A wire is fenced once, for all its flows: the others lose it with this one."""
        if command.wire in self._drained:
            self._handle(flow, words.Fenced(command.wire))
            return
        waiting = self._fences.setdefault(command.wire, [])
        if flow not in waiting:
            waiting.append(flow)
        if len(waiting) == 1:
            if isinstance(flow, _Out):
                self._lose(command.wire, flow.sender.cause, "given up")
            else:
                self._lose(command.wire, Cause.NOTICE, "fenced at the other end")
            self._wires.fence(command.wire)  # noted before: the other end may see it at once, and note that

    def _tell(self, flow: _Out | _In, command: words.Tell) -> None:
        letter = command.letter
        if isinstance(letter, words.Notice):
            if (flow.peer, letter.wire) in self._noticed:
                return  # said already, for another flow of the same wire
            self._noticed.add((flow.peer, letter.wire))
        self._send(flow.peer, letters.to_json(flow.number, letter))

    def _start(self, flow: _Out, command: words.Start) -> None:
        seconds = {words.Timer.GRACE: self._patience.grace, words.Timer.ANSWER: self._patience.answer}[command.timer]
        if command.timer is words.Timer.GRACE:
            self._stalls.grace(flow.number)
        self._timers[flow.number, command.timer] = self._clock() + seconds

    def _moved(self, out: _Out, command: words.Moved) -> None:
        """What had no number yet goes by the flows of the route that are still at home, if there are any."""
        self._look_soon(self._clock())  # what is sent again may be stuck, too
        replayed = list(out.kept)[len(out.kept) - command.replayed :] if command.replayed else []
        self._note(
            "moved",
            *self._names(command.lost),
            command.cause,
            f"to {' -> '.join(self._names(command.wire))}, {command.replayed} chunks again",
            sum(len(piece.payload) for piece in replayed),
        )
        siblings = [
            other
            for other in self._outs.values()
            if other.peer == out.peer and self._at_home(other) and other is not out
        ]
        if siblings:
            self._spread(out.queue, siblings)
            out.queue.clear()
            self._busy.discard(out.number)

    def _spread(self, pieces: Iterable[_Piece], among: Sequence[_Out]) -> None:
        """Each to the flow that would be through with it first, by the rates of the plan and what it has queued."""
        rates, wires = self._layout.rates, self._layout.wires
        homes = [wires[out.home] for out in among]
        worth = [min(rates[wire.out].out, rates[wire.into].into) for wire in homes]
        if math.inf in worth:
            worth = [1.0] * len(among)
        load = [sum(len(piece.payload) for piece in (*out.kept, *out.queue)) for out in among]
        for piece in pieces:
            first = min(range(len(among)), key=lambda i: (load[i] + len(piece.payload)) / worth[i])
            load[first] += len(piece.payload)
            among[first].queue.append(piece)
        self._busy.update(out.number for out in among if out.queue)

    def _severed(self, flow: _Out | _In, command: words.Severed) -> None:
        """This rank is to blame when all its NICs that reach the peer are down, else the peer."""
        wires = self._layout.wires
        mine = {wires[wire].out for wire in self._layout.flows[flow.number].wires}
        raise (NicsLostError if mine <= self._down else FlowSeveredError)(flow.peer, command.why)

    # --- shares ------------------------------------------------------------------------------------------------------

    def _live(self, route: int) -> list[int]:
        """The flows of a route that are at home; all of them when none is."""
        flows = self._lanes[route]
        if not self._lost:
            return list(flows)
        return [flow for flow in flows if self._at_home(self._outs[flow])] or list(flows)

    def _at_home(self, out: _Out) -> bool:
        return out.sender.wire == out.home and out.home not in self._lost

    def _recut(self, move: Move, live: Sequence[int]) -> list[int]:
        """Where to cut a transfer among the flows that are left, in proportion to their shares."""
        lanes = self._route[move.route].lanes
        share = [lane.share for lane, flow in zip(lanes, self._lanes[move.route], strict=True) if flow in live]
        total = sum(share)
        cuts, done = [0], Fraction(0)
        for part in share[:-1]:
            done += part
            cuts.append(min(move.length, round(done / total * move.length / GRANULE) * GRANULE))
        return [*cuts, move.length]

    def _names(self, wire: int) -> tuple[str, str]:
        """The NIC of this rank, and the one at the other end."""
        ends, nics = self._layout.wires[wire], self._layout.nics
        names = (nics[ends.out].name, nics[ends.into].name)
        return names if ends.src == self._rank else (names[1], names[0])

    def _note(self, kind: str, nic: str, far: str = "", cause: str = "", text: str = "", nbytes: int = 0) -> None:
        self.journal.append(Note(self._clock(), kind, nic, far, cause, text, nbytes))


def nothing_runs(row: int, offset: int, data: memoryview) -> None:
    """Take nothing: for polls between operations."""
    raise TransportError(f"transfer {row} arrived while nothing runs")
