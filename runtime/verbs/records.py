"""Completion records: what a receiver publishes about its flows, and how a sender reads that without asking it."""

from __future__ import annotations

from collections.abc import Iterable

from optcc.runtime.verbs.end import End
from optcc.runtime.verbs.layout import RECORD_BYTES, RegionLayout, pack_record, unpack_record
from optcc.runtime.wires.contract import Record


class Records:
    """Those of one rank's incoming flows, and its reads of the far ends'.

    Parameters
    ----------
    memory, base : the rank's own memory and where it lies
    mine, far : its layout, and by outgoing flow that of the flow's receiver
    """

    def __init__(self, memory: memoryview, base: int, mine: RegionLayout, far: dict[int, RegionLayout]) -> None:
        self._memory, self._base, self._mine, self._far = memory, base, mine, far
        self._reading: set[int] = set()
        for flow in mine.records:
            self.publish(flow, 0, 0, 0)

    def publish(self, flow: int, epoch: int, landed: int, folded: int) -> None:
        """Set the record of an incoming flow."""
        at = self._mine.records[flow]
        self._memory[at : at + RECORD_BYTES] = pack_record(epoch, landed, folded)

    def ask(self, end: End, flow: int) -> None:
        """Read the record of an outgoing flow, unless that is under way."""
        if flow not in self._reading:
            self._read(end, flow)

    def came(self, end: End, flow: int) -> Record | None:
        """A read is done. None: it met the record half written, and has been posted again."""
        at = self._mine.landings[flow]
        self._reading.discard(flow)
        record = unpack_record(self._memory[at : at + RECORD_BYTES])
        if record is None and end.is_open:
            self._read(end, flow)
        return None if record is None else Record(flow, *record)

    def failed(self, flows: Iterable[int]) -> None:
        """Reads for these flows will not be answered."""
        self._reading.difference_update(flows)

    def _read(self, end: End, flow: int) -> None:
        end.read(
            flow, self._base + self._mine.landings[flow], RECORD_BYTES, end.remote[0] + self._far[flow].records[flow]
        )
        self._reading.add(flow)
