"""NICs that may be black holes: whatever uses one is tested together, once one flow has come upon it.

Or one flow after the other would, each with a deadline of its own: those that only begin to send when others have gone
on. A flow that owes something is tested by that. For a flow that owes nothing, the far end sends the last credit once
more, and its record is read where wires can. Arrivals over its wire clear it. Only its own wire's silence in the time
of grace, with a peer that is alive, makes it move.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from optcc.runtime.flows.ends import Ends, In, Out
from optcc.runtime.flows.progress_watchdog import ProgressWatchdog
from optcc.runtime.protocol import events, messages
from optcc.runtime.wires.contract import Record, Wires


class Suspicions:
    """Those of one rank.

    Parameters
    ----------
    span : seconds from when a NIC was doubted in which that is not done again
    handle : have the machine of a flow handle an event
    send : (rank, JSON value): a message to another rank
    soon : something may be stuck from now on
    """

    def __init__(
        self,
        ends: Ends,
        wires: Wires,
        watchdog: ProgressWatchdog,
        span: float,
        handle: Callable[[Out | In, events.Event], None],
        send: Callable[[int, Any], None],
        soon: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._ends, self._wires, self._watchdog, self._span = ends, wires, watchdog, span
        self._handle, self._send, self._soon, self._clock = handle, send, soon, clock
        self._nics: dict[int, float] = {}  # NICs of this rank that are or were in doubt, since when
        self._reading: dict[int, int] = {}  # flow -> the wire over which its record is being read

    def of(self, nic: int) -> bool:
        """Whether a NIC of this rank is in doubt, or has been a moment ago."""
        return self._clock() < self._nics.get(nic, -math.inf) + 2 * self._span

    def spread(self, flow: Out | In, command: events.Spread) -> None:
        """Have all flows tested whose wires use this rank's NIC of a wire, but for `flow`, which is being tested."""
        nic, now = self._ends.nic(command.wire), self._clock()
        if now < self._nics.get(nic, -math.inf) + self._span:
            return  # the same doubt again
        self._nics[nic] = now
        for out in self._ends.outs.values():
            if out is not flow and self._ends.nic(out.sender.wire) == nic:
                self._test(out)
        for other in self._ends.ins.values():
            if other is not flow and self._ends.nic(other.receiver.wire) == nic:
                self._send(other.peer, messages.to_json(other.number, events.Suspect(other.receiver.epoch)))

    def suspected(self, out: Out, message: events.Suspect) -> None:
        """The other end doubts its NIC."""
        if out.sender.epoch == message.epoch:
            self._test(out)

    def _test(self, out: Out) -> None:
        sender = out.sender
        if sender.state is not sender.steady:
            return  # it is being tested, or moves
        reading = not sender.outstanding and self._read(out, sender.wire)
        self._watchdog.doubt(out.number, self._clock())
        self._handle(out, events.Doubt(reading))
        self._soon()

    # --- reads: of one flow there is one at a time, and if that is over another wire it says nothing about this one ---

    def read(self, out: Out, command: events.Read) -> None:
        """Read a flow's record over the wire that it has asked for."""
        self._read(out, command.wire)

    def _read(self, out: Out, wire: int) -> bool:
        return self._wires.ask_record(wire, out.number) and self._reading.setdefault(out.number, wire) == wire

    def recorded(self, record: Record) -> None:
        """A record has been read: the answer to a question, or the end of a test."""
        self._reading.pop(record.flow, None)
        out = self._ends.outs[record.flow]
        self._handle(out, events.Answer(record.epoch, record.landed, record.folded))
        self._handle(out, events.Heard(record.epoch))
        sender = out.sender
        if record.epoch < sender.epoch and sender.stuck(False):
            self._read(out, sender.wire)  # asked for before the flow moved: it says nothing about this epoch

    def left(self, flow: int, wire: int) -> None:
        """A flow has left a wire, which is drained: with it went what was being read over it."""
        if self._reading.get(flow) == wire:
            del self._reading[flow]
