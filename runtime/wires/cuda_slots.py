"""Landing slots whose payloads are in the memory of the receiver's GPU; the headers stay in host memory that is shared.

The processor reads a header to know what a chunk is; only the GPU reads its payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.wires.contract import HEADER_BYTES, FlowSpec
from optcc.runtime.wires.slots import Slots

ALIGN = 256
"""Payloads start at multiples of it, so that folds and copies work on whole words wherever the buffer's part lies."""


def room_for(rank: int, flows: Sequence[FlowSpec]) -> int:
    """Bytes of device memory that the payloads of all flows into `rank` take."""
    return sum(flow.window * stride_of(flow) for flow in flows if flow.dst == rank)


class CudaSlots(Slots):
    """The slots of all flows into `rank`, whose payloads are in `room`: its own memory, or another rank's, mapped here.

    fd : of the headers of another rank; closed with this
    """

    def __init__(self, rank: int, flows: Sequence[FlowSpec], room: DeviceArray, fd: int | None = None) -> None:
        super().__init__(rank, [replace(flow, slot_bytes=0) for flow in flows], fd)
        self._room = room
        self._payloads: dict[int, tuple[int, FlowSpec]] = {}
        start = 0
        for number, flow in enumerate(flows):
            if flow.dst == rank:
                self._payloads[number] = (start, flow)
                start += flow.window * stride_of(flow)

    def size(self, flow: int) -> int:
        """Bytes of a slot, header included."""
        return HEADER_BYTES + self._payloads[flow][1].slot_bytes

    def put(self, flow: int, seq: int, header: bytes, payload: Any) -> None:
        """The header; the payload is there already, see `payload`."""
        self.slot(flow, seq)[:] = header

    def payload(self, flow: int, seq: int, nbytes: int) -> DeviceArray:
        """Where the payload of a chunk is, shape (nbytes,), uint8."""
        start, spec = self._payloads[flow]
        at = start + seq % spec.window * stride_of(spec)
        return self._room[at : at + nbytes]


def stride_of(flow: FlowSpec) -> int:
    """Bytes from the payload of one slot of a flow to that of the next."""
    return -(-flow.slot_bytes // ALIGN) * ALIGN
