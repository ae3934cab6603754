"""What comes in over local wires.

A chunk counts as arrived when its emulated NICs have served it, not when its bytes are here. So a NIC that dies in the
middle of a chunk loses it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from optcc.runtime.errors import TransportError
from optcc.runtime.wires.contract import HEADER_BYTES, Arrived
from optcc.runtime.wires.local_parts import LocalParts
from optcc.runtime.wires.local_replies import CALL
from optcc.runtime.wires.pacing import Chunk
from optcc.runtime.wires.rings import fence


class LocalArrivals(LocalParts):
    """The part of `LocalWires` that reads notifications."""

    def _notice(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Chunks, or the wish to be told."""
        now, passes = self._clock(), self._clocks.passes
        arrived: list[Arrived] = []
        for record in records:
            flow, nbytes, seq, start, stop, wire = record
            if wire not in self._in:
                continue  # lost with its wire
            if wire in self._no_data:
                self._stuck.setdefault(wire, []).append(record)
            elif nbytes == CALL and flow in self._slots:
                self._arrive(arrived)
                arrived = []
                self._calls[wire, flow] = seq
                self._answer_call(wire, flow)
            elif flow not in self._slots or HEADER_BYTES + nbytes > self._slots.size(flow):
                raise TransportError(f"a chunk of {nbytes} bytes for flow {flow} came on wire {wire}")
            else:
                into = self._wires[wire].into
                at = passes(into, stop, now)
                if at < math.inf:
                    arrived.append(Arrived(wire, flow, seq, at))
                else:
                    self._clocks.arrive(into, Chunk(flow, seq, nbytes, wire), start, stop)
        if arrived:
            self._arrive(arrived)

    def _land(self, now: float) -> None:
        """What is through its emulated NICs."""
        landed = self._clocks.landed(now)
        if landed:
            arrived = [Arrived(wire, flow, seq, at) for at, (flow, seq, _, wire) in landed]
            self._arrive(self._held_back(arrived) if self._no_data else arrived)

    def _held_back(self, arrived: Iterable[Arrived]) -> list[Arrived]:
        """Keep what a black hole keeps; returns the rest."""
        through: list[Arrived] = []
        for chunk in arrived:
            self._no_data.get(chunk.wire, through).append(chunk)
        return through

    def _arrive(self, arrived: Sequence[Arrived]) -> None:
        if self._far_arenas:
            arrived = [chunk for chunk in arrived if self._fetch(chunk)]
        self._news += arrived
        self._acknowledge(arrived)

    def _fetch(self, chunk: Arrived) -> bool:
        """A chunk that is lent, into its slot, before it is acknowledged. False: its sender has given up."""
        wire, flow, seq, _ = chunk
        lent = self._slots.lent(flow, seq)
        if lent is None:
            return True
        if wire not in self._in:
            return False
        src = self._wires[wire].src
        start, nbytes = lent
        arena = self._far_arenas[src]
        arena.map()
        payload = arena.bytes[start : start + nbytes]
        if len(payload) != nbytes:
            raise TransportError(f"a chunk of {nbytes} bytes at {start} of the buffer of rank {src}, which has fewer")
        self._slots.fill(flow, seq, payload)
        fence()
        if self._slots.has_withdrawn(src):
            self._fail(wire, "its sender has given up")
            return False
        return True

    def _unstick(self, wire: int) -> None:
        """What a black hole has kept comes through."""
        records = self._stuck.pop(wire, ())
        if wire in self._in:
            self._notice(records)
        else:
            for record in records:
                self._back(record)
