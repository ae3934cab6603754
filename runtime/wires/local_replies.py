"""What goes back on a local wire: how far a flow has come, and credits.

What has landed is marked in shared memory, which the sender looks at whenever it is awake; a message comes only if it
has asked for one (`hasten`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from optcc.runtime.wires.contract import Arrived, Completed, Credited
from optcc.runtime.wires.local_parts import LocalParts
from optcc.runtime.wires.rings import fence

CALL = 2**32 - 1
"""In a notification, instead of a chunk's bytes: wake me when this chunk, noticed before, has landed."""
ACK, CREDIT = 1, 2
"""Kinds of what comes back."""


class LocalReplies(LocalParts):
    """The part of `LocalWires` that gives and takes acknowledgements and credits."""

    def credit(self, wire: int, flow: int, folded: int) -> None:
        """Goes at once."""
        self._reply(wire, CREDIT, flow, folded)
        self._send_replies(wire)

    def hasten(self, wire: int, flow: int, seq: int) -> None:
        """Tell of this chunk's completion as soon as it has landed, and now how far the flow has come by this wire.

        Of what nobody has asked for only credits tell: a look at a mark, or a message, for every chunk costs too much.
        """
        out = self._out.get(wire)
        if out is None or self._asked.get((wire, flow)) == seq:
            return
        if out.far.landed(flow, wire) <= seq and wire not in self._no_data:
            if not out.notices.put(flow, CALL, seq, 0.0, 0.0, wire):
                self._full.add(wire)
                return
            fence()
            sleep = out.far.sleeps()
            if sleep and sleep != out.woke:
                self._wake(out, sleep)
                if wire not in self._out:
                    return  # gone, as `poll` will tell
        self._asked[wire, flow] = seq

    def landed(self, wire: int, flow: int) -> int:
        """What is below has landed of an outgoing flow, as far as it can be seen now: nobody is asked or woken."""
        out = self._out.get(wire)
        return out.far.landed(flow, wire) if out is not None and wire not in self._no_acks else 0

    def _acknowledge(self, arrived: Sequence[Arrived]) -> None:
        """By the last one of each flow on each wire, which stands for those before it."""
        for (wire, flow), seq in {(wire, flow): seq for wire, flow, seq, _ in arrived}.items():
            self._mark(wire, flow, seq)

    def _mark(self, wire: int, flow: int, seq: int) -> None:
        """Tell how far a flow has come; wake its sender, if it wants to know."""
        if self._no_acks and wire in self._no_acks:
            self._unsaid.setdefault(wire, {})[flow] = seq
            return
        self._slots.mark(flow, wire, seq)
        if self._calls:
            self._answer_call(wire, flow)

    def _answer_call(self, wire: int, flow: int) -> None:
        seq = self._calls.get((wire, flow), math.inf)
        if self._slots.landed(flow, wire) > seq:
            self._reply(wire, ACK, flow, self._calls.pop((wire, flow)))

    def _see_landed(self) -> None:
        """What the marks say of what was asked for."""
        for (wire, flow), seq in [*self._asked.items()]:
            if wire not in self._no_acks:
                landed = self._out[wire].far.landed(flow, wire)
                self._tell(wire, flow, landed)
                if landed > seq:
                    del self._asked[wire, flow]

    def _tell(self, wire: int, flow: int, landed: int) -> None:
        if landed > self._told.get((wire, flow), 0):
            self._told[wire, flow] = landed
            self._news.append(Completed(wire, flow, landed - 1))

    def _back(self, record: tuple[Any, ...]) -> None:
        """A credit, which acknowledges, too. An acknowledgement is only to wake: the marks tell more."""
        kind, flow, number, wire = record
        if wire not in self._out:
            return
        if wire in self._no_acks:
            self._stuck.setdefault(wire, []).append(record)
        elif kind == CREDIT:
            self._tell(wire, flow, number)
            self._news.append(Credited(wire, flow, number))

    def _reply(self, wire: int, kind: int, flow: int, number: int) -> None:
        end = self._in.get(wire)
        if end is not None:
            end.replies.append((kind, flow, number))
            self._dirty.add(wire)

    def _send_replies(self, wire: int) -> None:
        """All that is to go back on a wire; what finds no room waits for `poll`."""
        end = self._in.get(wire)
        if end is None:
            self._dirty.discard(wire)
            return
        if wire in self._no_acks:
            return
        sent = 0
        for kind, flow, number in end.replies:
            if not end.backs.put(kind, flow, number, wire):
                break
            sent += 1
        del end.replies[:sent]
        if not end.replies:
            self._dirty.discard(wire)
        fence()
        sleep = self._slots.sleeps(end.src)
        if sleep and sleep != end.woke:
            self._wake(end, sleep)
