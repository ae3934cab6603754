"""One rank's flows over local wires, or over those of GPUs: where slots are, and what is said of chunks besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optcc.runtime.compiled.flow_table import FlowTable, Questions, address_of
from optcc.runtime.flows.flows import FlowTransport
from optcc.runtime.wires.contract import HEADER_BYTES
from optcc.runtime.wires.cuda_slots import CudaSlots, stride_of
from optcc.runtime.wires.lent import FarArena
from optcc.runtime.wires.local import LocalWires
from optcc.runtime.wires.rings import WORD

if TYPE_CHECKING:
    from optcc.runtime.compiled.engine import CompiledEngine


class LocalFlows(FlowTable):
    """Over local wires, and over those of GPUs."""

    def __init__(self, flows: FlowTransport, wires: LocalWires) -> None:
        self._unmapped: dict[int, FarArena] = {}  # incoming flow -> what its chunks may be lent from, so far nothing
        super().__init__(flows, wires)

    def _place(self, number: int, record: Any) -> bool:
        wires, spec, comes = self._wires, self._specs[number], number in self._ins
        slots = wires._slots if comes else wires._far.get(spec.dst)
        if slots is None or number not in slots:
            return False
        base = address_of(slots._bytes)
        start, _, size = slots._places[number]
        record["size"], record["slots"], record["mark"] = size, base + start, base + slots._marks_at[number] * WORD
        record["payloads"], record["stride"] = base + start + HEADER_BYTES, size
        if isinstance(slots, CudaSlots):
            record["payloads"], record["stride"] = slots.payload(number, 0, 0).address, stride_of(spec)
        if comes:
            record["withdrawn"] = base + slots._withdrawn_at(spec.src) * WORD
            if spec.src in wires._far_arenas:
                self._unmapped[number] = wires._far_arenas[spec.src]
        return True

    def reach(self) -> None:
        """What has been mapped meanwhile."""
        for number, far in [*self._unmapped.items()]:
            if far.bytes:
                del self._unmapped[number]
                record = self.tables.flows[number]
                record["far"], record["far_bytes"] = address_of(far.bytes), len(far.bytes)

    def fill(self, engine: CompiledEngine) -> bool:
        """See `FlowTable`."""
        self.reach()
        return super().fill(engine)

    def _sends(self, wire: int, number: int) -> bool:
        wires = self._wires
        end = wires._out.get(wire)
        return end is not None and not end.unsent and wire not in wires._no_data and wire not in wires._no_acks

    def _takes(self, wire: int) -> bool:
        wires = self._wires
        return wire in wires._in and wire not in wires._no_data and wire not in wires._no_acks

    def _said(self) -> tuple[Questions, Questions]:
        return dict(self._wires._calls), dict(self._wires._asked)

    def _say(self, calls: Questions, asked: Questions) -> None:
        self._wires._calls, self._wires._asked = calls, asked

    def _landed(self, wire: int, number: int, acked: int) -> int:
        landed: int = self._wires.landed(wire, number)
        return max(acked, landed)

    def _told(self, wire: int, number: int, acked: int) -> None:
        told = self._wires._told
        told[wire, number] = max(acked, told.get((wire, number), 0))
