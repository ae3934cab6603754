"""Wires made anew: when a flow has none left, its sending rank tries those that it had, until one works again.

The sender's end is made anew first, where its NIC has a link, and the receiver is told how to reach it (`Reopen`). The
receiver lets go of its own former end, makes a new one, connects it, and tells (`Reopened`); or it says that its NIC
has no link (`Shut`), and is asked again a little later. Messages between two ranks keep their order, so none about the
former life of a wire comes after that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from optcc.runtime.errors import TransportError
from optcc.runtime.flows.ends import Ends, In, Out
from optcc.runtime.flows.path_failover import Noting, PathFailover
from optcc.runtime.protocol import SenderState, events
from optcc.runtime.wires.contract import Abilities, Cause, Wires

REOPEN, REOPENED, SHUT = "reopen", "reopened", "shut"
"""What ranks say to each other about a wire: [which of these, wire, number of the try, how to reach this end]."""

FIRST_S, LAST_S = 0.01, 0.25
"""From one try to the next: at first, and later, each time twice as long."""


class Returning:
    """That of one rank.

    Parameters
    ----------
    handle : have the machine of a flow handle an event
    send : (rank, JSON value): a message to another rank
    note : write into the journal
    """

    def __init__(
        self,
        ends: Ends,
        wires: Wires,
        failover: PathFailover,
        handle: Callable[[Out | In, events.Event], None],
        send: Callable[[int, Any], None],
        note: Noting,
    ) -> None:
        self._ends, self._wires, self._failover = ends, wires, failover
        self._handle, self._send, self._note = handle, send, note
        able = Abilities.of(wires)
        self._renew, self._join = able.renew, able.join
        self.at = math.inf  # when to try next
        self._every = FIRST_S
        self._waiting: dict[int, Out] = {}  # flows that have no wire
        self._tries: dict[int, int] = {}  # outgoing wire -> number of the last try
        self._asked: set[int] = set()  # of these, those that are not answered
        self._wanted: dict[int, tuple[int, Any]] = {}  # incoming wire -> the try, and how to reach its far end

    def wait(self, out: Out, now: float) -> None:
        """A flow has no wire left."""
        peer = f"rank {out.peer}"
        if all(other.peer != out.peer for other in self._waiting.values()):
            self._note("waiting", self._ends.names(out.sender.wire)[0], "", "", f"for a way to {peer} to come back")
        self._waiting[out.number] = out
        self.at, self._every = now, FIRST_S

    def give_up(self) -> None:
        """Raises where something has still no wire to go by."""
        for out in list(self._waiting.values()):
            if out.sender.state is SenderState.WAITING:
                self._handle(out, events.Expired(events.Timer.RETURN))
            if out.sender.state is SenderState.STRANDED and out.queue:
                self._handle(out, events.Send())

    def look(self, now: float) -> None:
        """Try all wires of the flows that wait, as far as they are not being tried."""
        waits = (SenderState.WAITING, SenderState.STRANDED)
        self._waiting = {flow: out for flow, out in self._waiting.items() if out.sender.state in waits}
        for out in list(self._waiting.values()):
            for wire in out.sender.wires:
                if wire not in self._failover.lost:
                    self._handle(out, events.Found(wire))
                elif wire not in self._asked and self._failover.is_drained(wire):
                    self._try(wire, out.peer)
        self.at = now + self._every if self._waiting else math.inf
        self._every = min(2 * self._every, LAST_S)

    def _try(self, wire: int, peer: int) -> None:
        assert self._renew
        told = self._renew(wire)
        if told is not None:
            self._tries[wire] = number = self._tries.get(wire, 0) + 1
            self._asked.add(wire)
            self._send(peer, [REOPEN, wire, number, told])

    def hear(self, rank: int, value: Any) -> None:
        """A message of another rank. Raises TransportError for anything that is none."""
        try:
            kind, wire, number, told = value
            ends = self._ends.layout.wires[wire]
            known = isinstance(number, int) and wire >= 0
        except (TypeError, ValueError, IndexError) as error:
            raise TransportError(f"not a message about a wire: {value!r} ({error})") from None
        mine = ends.src if kind in (REOPENED, SHUT) else ends.dst
        if not known or (mine, ends.src + ends.dst - mine) != (self._ends.rank, rank):
            raise TransportError(f"rank {rank} says of a wire what it cannot know: {value!r}")
        if kind == REOPEN:
            self._failover.lose(wire, Cause.NOTICE, "to be made anew")
            self._wanted[wire] = number, told
            if self._failover.is_drained(wire):
                self.drained(wire)
        elif number == self._tries.get(wire) and wire in self._asked:
            self._asked.discard(wire)
            if kind == REOPENED and self._join and self._join(wire, told):
                self._found(wire)

    def drained(self, wire: int) -> None:
        """This end of a wire is fenced: make it anew, if that was asked for."""
        wanted = self._wanted.pop(wire, None)
        if wanted is None:
            return
        number, told = wanted
        made = self._renew(wire) if self._renew else None
        if made is None or not (self._join and self._join(wire, told)):
            self._send(self._ends.layout.wires[wire].src, [SHUT, wire, number, None])
            return
        self._found(wire)
        self._send(self._ends.layout.wires[wire].src, [REOPENED, wire, number, made])

    def _found(self, wire: int) -> None:
        self._failover.found(wire)
        self._note("made anew", *self._ends.names(wire))
        for flow in self._ends.using.get(wire, ()):
            self._handle(flow, events.Found(wire))
