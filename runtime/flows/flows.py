"""One rank's flows: what goes out, what comes in, and every flow moved off a wire that is lost.

The protocol's machines (`optcc.runtime.protocol`) decide what to do about an event; the contract of `wires` hides what
carries the chunks. This file joins them and records what happened. Parts: `send_path` and `receive_path`;
`path_failover` for lost wires, `suspicion` for suspected NICs; `timeouts`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from optcc.runtime.engine.program import Move
from optcc.runtime.engine.transport import Landing, Take
from optcc.runtime.flows.ends import OPERATIONS, Ends, In, Out, machine_of
from optcc.runtime.flows.path_failover import PathFailover
from optcc.runtime.flows.progress_watchdog import ProgressWatchdog
from optcc.runtime.flows.receive_path import ReceivePath, nothing_runs
from optcc.runtime.flows.returning import Returning
from optcc.runtime.flows.send_path import SendPath
from optcc.runtime.flows.shares import Shares
from optcc.runtime.flows.suspicion import Suspicions
from optcc.runtime.flows.timeouts import Timeouts, Timers
from optcc.runtime.messages import Note
from optcc.runtime.protocol import Receiver, Sender, events, messages
from optcc.runtime.protocol.table import Commands
from optcc.runtime.wires.contract import (
    Abilities,
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
from optcc.runtime.wires.layout import Layout
from optcc.schedule import Route


class FlowTransport:
    """Transport over wires. One for a layout; `begin` starts each operation on it.

    Parameters
    ----------
    routes : by schedule name, the schedule's routes
    send : (rank, JSON value): a message to another rank, which hands it to its `message`
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
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
    ) -> None:
        self._wires, self._send, self._clock = wires, send, clock
        able = Abilities.of(wires)
        self._hasten, self._flush = able.hasten, able.flush

        waits = timeouts.back > 0 and able.renew is not None
        self._ends = ends = Ends(rank, layout, partial(Sender, waits=waits), Receiver)
        self._outs, self._ins = ends.outs, ends.ins
        self._watchdog = watchdog = ProgressWatchdog({f: out.sender for f, out in ends.outs.items()}, timeouts.progress)
        self._timers = timers = Timers(timeouts, watchdog, able.look_again or clock)
        self._suspicions = suspicions = Suspicions(
            ends, wires, watchdog, timeouts.grace, self._handle, send, self._stirred, clock
        )
        self._failover = failover = PathFailover(ends, wires, watchdog, suspicions, self._handle, self._note)
        self._returning = Returning(ends, wires, failover, self._handle, send, self._note)
        self._shares = shares = Shares(layout, routes, ends.outs, failover.lost, timeouts.look)
        self._send_path = send_path = SendPath(ends, wires, shares, self._do, clock)
        self._receive_path = ReceivePath(ends.ins, wires, self._do)
        self._inbox: deque[tuple[int, Any]] = deque()
        self._echoed: set[int] = set()  # flows: of messages that came together one echo is enough
        self._look_at = math.inf  # when to look at progress next
        self._operation = 0
        self.journal: list[Note] = []
        self._on: dict[type, Callable[[Any], None]] = {
            Completed: send_path.completed,
            Credited: send_path.credited,
            Failed: lambda f: failover.lose(f.wire, f.cause, f.detail),
            Drained: self._drained,
            Record: suspicions.recorded,
            PortDown: failover.port_down,
            PortUp: lambda up: self._note("nic up", layout.nics[up.nic].name),
        }
        self._does: dict[type, Callable[[Any, Any], object]] = {
            events.Write: send_path.write,
            events.Publish: lambda flow, c: wires.publish(flow.number, c.epoch, c.landed, c.folded),
            events.Release: lambda out, c: out.release(c.seq),
            events.Fence: failover.fence,
            events.Tell: self._tell,
            events.Read: suspicions.read,
            events.Start: self._start,
            events.Stop: lambda flow, c: timers.stop(flow.number, c.timer),
            events.Spread: suspicions.spread,
            events.Moved: self._moved,
            events.Return: lambda flow, c: wires.credit(c.wire, flow.number, c.folded),
            events.Echo: self._echo,
            events.Severed: failover.severed,
        }

    # --- the engine's side -------------------------------------------------------------------------------------------

    def begin(self, name: str, receives: Mapping[int, Move], sign: int = 0) -> None:
        """The next operation runs schedule `name`; this rank will receive these transfers.

        This rank has finished the one before. Others may not have, and may have begun this one already.
        sign : of what is called, below SIGNS; other ranks' chunks must have the same
        """
        self._operation = (self._operation + 1) % OPERATIONS
        self._shares.begin(name)
        self._send_path.begin(sign * OPERATIONS + self._operation)
        self._receive_path.begin(sign * OPERATIONS + self._operation, receives)

    def learn(self, name: str, routes: Sequence[Route], lanes: Sequence[tuple[int, ...]]) -> None:
        """Another schedule over the flows of the layout; `lanes` : route -> the flow of each of its lanes."""
        self._shares.learn(name, routes, lanes)

    def free_at(self, route: int, now: float) -> float:
        """See `SendPath`."""
        return self._send_path.free_at(route, now)

    def post(self, move: Move, payload: memoryview, ready: float) -> None:
        """Cut into chunks and begin to send."""
        self._send_path.post(move, payload, ready)
        self._look_soon()

    def poll(self, until: float, take: Take) -> list[Landing]:
        """Wait once, then deal with all that has happened.

        A timer's end counts only when all that had happened by then has been dealt with, and folds may take longer than
        a timer. So what is over by the end of one poll is dealt with by the next, after that has looked at everything.
        """
        receive_path, send_path = self._receive_path, self._send_path
        receive_path.take = take
        before = send_path.now
        waits = self._timers or self._inbox or self._returning.at < math.inf
        wake = self.next_wake() if waits else self._look_at
        due = wake <= before
        if receive_path.due:
            receive_path.take_early()
            until = -math.inf
        receive_path.hear(self._wires.poll(-math.inf if due else wake if wake < until else until), self._on)
        while self._inbox:
            self._read(*self._inbox.popleft())
        self._echoed.clear()
        send_path.now = self._clock()
        if due:
            self._expire(before)
        send_path.look()
        if send_path.busy:
            send_path.pump_all()
            self._look_soon()
        if self._flush:  # folds may come between this and the next poll
            self._flush()
        receive_path.take = nothing_runs  # the engine has its caller's buffer, which nobody keeps after the operation
        return receive_path.landed()

    def next_wake(self) -> float:
        """When `poll` has something to do even if nothing happens; inf: nothing."""
        if self._inbox:
            return -math.inf
        return min(self._look_at, self._timers.next(), self._returning.at)

    def given(self) -> bool:
        """Whether all that was posted has been given to wires, so that it lands without anything done here."""
        if self._flush:
            self._flush()
        return not self._send_path.busy

    def drain(self) -> bool:
        """Whether all that was posted has landed at the other ends; if not, `poll` returns when it has."""
        return not self._want() and not self._send_path.busy

    def give_up(self) -> None:
        """Nothing is waited for any longer. Raises PeerLostError where some flow has no wire left."""
        self._returning.give_up()

    def sent(self) -> dict[int, int]:
        """Bytes of payload that left by each NIC in this operation, replays counted: NIC -> bytes."""
        return self._send_path.sent()

    def message(self, rank: int, value: Any) -> None:
        """A message from another rank; read at the end of the next poll."""
        self._inbox.append((rank, value))

    # --- what happens ------------------------------------------------------------------------------------------------

    def _handle(self, flow: Any, event: events.Event) -> None:
        self._do(flow, machine_of(flow).handle(event))

    def _do(self, flow: Any, commands: Commands) -> None:
        for command in commands:
            self._does[type(command)](flow, command)

    def _read(self, rank: int, value: Any) -> None:
        """A message: about a wire; or to the sender of a flow if its receiver wrote it, and the other way round."""
        if isinstance(value, list) and value and isinstance(value[0], str):
            self._returning.hear(rank, value)
            return
        flow, message = messages.from_json(value)
        mine = self._ends.get(flow)
        if mine is None or mine.peer != rank:
            return  # from another layout, or a stranger
        if isinstance(message, events.Notice):
            self._failover.lose(message.wire, Cause.NOTICE, f"{message.cause} at the other end")
        elif isinstance(message, events.Suspect):
            if isinstance(mine, Out):
                self._suspicions.suspected(mine, message)
        else:
            self._handle(mine, message)

    def _expire(self, now: float) -> None:
        """Timers that had run out by `now`, and flows that have not moved for too long."""
        if now >= self._returning.at:
            self._returning.look(now)
        for flow, timer in self._timers.over(now):
            self._handle(self._ends[flow], events.Expired(timer))
        if now < self._look_at:
            return
        self._want()  # so that what has come through is known by the next look
        at = self._send_path.now
        over = self._watchdog.look(now, at, lambda flow: bool(self._outs[flow].queue))
        self._look_at = at + self._watchdog.every if self._watchdog.any else math.inf
        for flow in over:
            self._handle(self._outs[flow], events.Expired(events.Timer.PROGRESS))

    # --- what is to be done ------------------------------------------------------------------------------------------

    def _want(self) -> bool:
        """Whether something has not landed, as far as is known; makes it known, where it is not told unasked."""
        outstanding = [out for out in self._outs.values() if out.sender.outstanding]
        if self._hasten:
            for out in outstanding:
                self._hasten(out.sender.wire, out.number, out.sender.posted - 1)
        return bool(outstanding)

    def _look_soon(self) -> None:
        """Something was sent: from now on it may be stuck."""
        if self._look_at == math.inf:
            self._look_at = self._send_path.now + self._watchdog.every

    def _stirred(self) -> None:
        self._want()
        self._look_soon()

    def _start(self, flow: Out | In, command: events.Start) -> None:
        self._timers.start(flow.number, command)
        if command.timer is events.Timer.RETURN and isinstance(flow, Out):
            self._returning.wait(flow, self._clock())

    def _drained(self, happening: Drained) -> None:
        self._failover.drained(happening)
        self._returning.drained(happening.wire)

    def _tell(self, flow: Out | In, command: events.Tell) -> None:
        message = command.message
        if not isinstance(message, events.Notice) or not self._failover.already_told(flow):
            self._send(flow.peer, messages.to_json(flow.number, message))

    def _echo(self, flow: In, command: events.Echo) -> None:
        """At once, so that it is on its wire before the peer hears that this rank is alive."""
        if flow.number not in self._echoed:
            self._echoed.add(flow.number)
            self._wires.credit(command.wire, flow.number, command.folded)

    def _moved(self, out: Out, command: events.Moved) -> None:
        """For the journal; and all has to be looked after: what is sent again may be stuck, too."""
        self._suspicions.left(out.number, command.lost)
        self._watchdog.moved(out.number)
        self._look_soon()
        replayed = list(out.kept)[len(out.kept) - command.replayed :] if command.replayed else []
        self._note(
            "moved",
            *self._ends.names(command.lost),
            command.cause,
            f"to {' -> '.join(self._ends.names(command.wire))}, {command.replayed} chunks again",
            sum(len(piece.payload) for piece in replayed),
        )
        self._send_path.moved(out)

    def _note(self, kind: str, nic: str, far: str = "", cause: str = "", text: str = "", nbytes: int = 0) -> None:
        self.journal.append(Note(self._clock(), kind, nic, far, cause, text, nbytes))
