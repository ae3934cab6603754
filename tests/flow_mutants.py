"""Bugs planted in what flows are made of."""

from __future__ import annotations

from typing import Any

from optcc.runtime.flows import flows
from optcc.runtime.flows.ends import CHUNK_HEADER
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.flows.path_failover import PathFailover
from optcc.runtime.flows.receive_path import ReceivePath
from optcc.runtime.flows.send_path import SendPath
from optcc.runtime.wires.contract import HEADER_BYTES, Arrived


class NoFence(PathFailover):
    """Ghosts: what was sent on a wire that is left may still arrive."""

    def fence(self, flow: Any, command: Any) -> None:
        self._handle(flow, flows.events.Fenced(command.wire))


class FoldsTwice(ReceivePath):
    """The first chunk after a failover is folded twice."""

    def hear(self, happenings: Any, on: Any) -> None:
        for happening in happenings:
            if isinstance(happening, Arrived):
                slot = self._wires.slot(happening.flow, happening.seq)
                _, epoch, _, nbytes, _, row, offset = CHUNK_HEADER.unpack_from(slot)
                if epoch:
                    self.take(row, offset, slot[HEADER_BYTES : HEADER_BYTES + nbytes])
            super().hear((happening,), on)


class LosesTheQueue(SendPath):
    """Chunks that had no number yet are dropped with the wire."""

    def moved(self, out: Any) -> None:
        out.queue.clear()
        self.busy.discard(out.number)


class SendsTheWrongBytes(FlowTransport):
    """One of the chunks that are sent again is another one."""

    def _moved(self, out: Any, command: Any) -> None:
        super()._moved(out, command)
        if command.replayed > 1:
            out.kept[-1] = out.kept[-2]


class LooksOnlyWhenItSends(FlowTransport):
    """The first version: nobody looked whether what was sent again came through."""

    def _moved(self, out: Any, command: Any) -> None:
        at = self._look_at
        super()._moved(out, command)
        self._look_at = at
