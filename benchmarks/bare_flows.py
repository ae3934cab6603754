"""Flows and local wires without what only failover needs, for benchmarks that compare the runtime with and without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optcc.runtime.engine.transport import Landing, Take
from optcc.runtime.flows.ends import CHUNK_HEADER, CHUNK_MARK
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.contract import HEADER_BYTES, Arrived, Credited
from optcc.runtime.wires.layout import Layout
from optcc.runtime.wires.local import LocalWires


class Quiet(LocalWires):
    """Wires that need not tell the sender that a chunk has arrived."""

    acknowledges = True

    def _acknowledge(self, arrived: Sequence[Arrived]) -> None:
        if self.acknowledges:
            super()._acknowledge(arrived)

    def _tell(self, wire: int, flow: int, landed: int) -> None:
        if self.acknowledges:
            super()._tell(wire, flow, landed)


@dataclass
class Count:
    """All that a flow without failover knows."""

    wire: int
    window: int
    posted: int = 0
    folded: int = 0


class Bare(FlowTransport):
    """The same flows, unable to move: no machines, epochs, chunks kept to be sent again, or timers.

    What stays is what landing in slots needs: a window, and credits.
    """

    def __init__(self, rank: int, layout: Layout, *rest: Any) -> None:
        super().__init__(rank, layout, *rest)
        self._every = {f: flow.receiver.credit_every for f, flow in self._ins.items()}
        for f, out in self._outs.items():
            out.sender = Count(layout.flows[f].wires[0], layout.flows[f].window)  # type: ignore[assignment]
        self._send_path.pump = self._pump  # type: ignore[method-assign]
        self._busy = self._send_path.busy

    def _pump(self, out: Any) -> None:
        now, count = self._clock(), out.sender
        while (
            out.queue and count.posted - count.folded < count.window and self._wires.free_at(count.wire, now) < math.inf
        ):
            ready, operation, row, offset, payload = out.queue.popleft()
            header = CHUNK_HEADER.pack(CHUNK_MARK, 0, operation, len(payload), count.posted, row, offset)
            self._wires.write(count.wire, out.number, count.posted, header, payload, ready)
            count.posted += 1
        if not out.queue:
            self._busy.discard(out.number)

    def poll(self, until: float, take: Take) -> list[Landing]:
        landings, missing = [], self._receive_path._missing
        for happening in self._wires.poll(until):
            if type(happening) is Arrived:
                wire, flow, seq, at = happening
                slot = self._wires.slot(flow, seq)
                _, _, _, nbytes, _, row, offset = CHUNK_HEADER.unpack_from(slot)
                take(row, offset, slot[HEADER_BYTES : HEADER_BYTES + nbytes])
                missing[row] -= nbytes
                if missing[row] == 0:
                    landings.append(Landing(row, at))
                if (seq + 1) % self._every[flow] == 0:
                    self._wires.credit(wire, flow, seq + 1)
            elif type(happening) is Credited:
                self._outs[happening.flow].sender.folded = happening.folded
        if self._busy:
            for flow in sorted(self._busy, key=lambda flow: self._outs[flow].queue[0].row):
                self._pump(self._outs[flow])
        return landings

    def drain(self) -> bool:
        """By the credits; the chunks of a run are a multiple of what one gives back, so the last says all."""
        return not self._busy and all(out.sender.posted == out.sender.folded for out in self._outs.values())
