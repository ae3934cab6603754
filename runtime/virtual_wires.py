"""Wires in virtual time: the emulated NICs of all ranks in one thread, with a clock that is set by hand.

Deterministic, so that what they do can be held against the simulator. A chunk is in the far rank's memory when its NICs
are through with it; acknowledgements and credits take no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from optcc.runtime.layout import Layout
from optcc.runtime.pacing import Chunk, PortClocks, Rates
from optcc.runtime.wires import (
    HEADER_BYTES,
    Arrived,
    Cause,
    Completed,
    Credited,
    Drained,
    Failed,
    Happening,
    PortDown,
    Record,
)


class VirtualNet:
    """What joins the ranks' ends. `now` is everybody's clock, in seconds."""

    def __init__(self, layout: Layout) -> None:
        self.now = 0.0
        self.layout = layout
        # Wires that carry nothing for now: what is stuck, as (rank it is on its way to, what it will hear).
        self.dark: dict[int, list[tuple[int, Happening]]] = {}
        self.ends = [VirtualWires(self, rank) for rank in range(layout.ranks)]

    def clock(self) -> float:
        """The time."""
        return self.now

    def next_landing(self) -> float:
        """When something lands next if nothing else is done; now, where something has happened already."""
        if any(end.news for end in self.ends):
            return self.now
        return min((end.clocks.next_landing() for end in self.ends), default=math.inf)


class VirtualWires:
    """One rank's ends."""

    def __init__(self, net: VirtualNet, rank: int) -> None:
        self._net, self._layout, self._rank = net, net.layout, rank
        self.clocks = PortClocks(net.layout.rates)
        self.news: list[Happening] = []
        self.fenced: set[int] = set()
        self.under_way: dict[tuple[int, ...], bytes] = {}  # (wire, flow, seq) -> header and payload
        self.records: dict[int, tuple[int, int, int]] = {}
        self._slots = {
            f: bytearray(s.window * _size(s.slot_bytes)) for f, s in enumerate(net.layout.flows) if s.dst == rank
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, memory: memoryview) -> None:
        """Any memory will do."""

    def write(self, wire: int, flow: int, seq: int, header: bytes, payload: memoryview, ready: float) -> None:
        """On its way, unless the wire is lost at either end."""
        ends = self._layout.wires[wire]
        start, end = self.clocks.depart(ends.out, len(payload), ready)
        peer = self._net.ends[ends.dst]
        if wire in self.fenced or wire in peer.fenced:
            return
        peer.under_way[wire, flow, seq] = header + payload
        peer.clocks.arrive(ends.into, Chunk(flow, seq, len(payload), wire), start, end)

    def free_at(self, wire: int, now: float) -> float:
        """When the emulated NIC is free."""
        return self.clocks.free_at(self._layout.wires[wire].out)

    def credit(self, wire: int, flow: int, folded: int) -> None:
        """There at once."""
        self._back(wire, Credited(wire, flow, folded))

    def publish(self, flow: int, epoch: int, landed: int, folded: int) -> None:
        """For `ask_record`."""
        self.records[flow] = (epoch, landed, folded)

    def ask_record(self, wire: int, flow: int) -> bool:
        """Answered at once."""
        far = self._net.ends[self._layout.wires[wire].dst]
        if wire not in self.fenced | far.fenced | self._net.dark.keys():
            self.news.append(Record(flow, *far.records.get(flow, (0, 0, 0))))
        return True

    def fence(self, wire: int) -> None:
        """Lost at this end; what is on its way in is dropped."""
        self._lose(wire)
        self.news.append(Drained(wire))

    def slot(self, flow: int, seq: int) -> memoryview:
        """Header and room for the payload."""
        spec = self._layout.flows[flow]
        size = _size(spec.slot_bytes)
        at = seq % spec.window * size
        return memoryview(self._slots[flow])[at : at + size]

    def poll(self, until: float) -> Sequence[Happening]:
        """What has happened by the net's time; does not wait."""
        for at, chunk in self.clocks.landed(self._net.now):
            arrived = Arrived(chunk.wire, chunk.flow, chunk.seq, at)
            if chunk.wire in self._net.dark:
                self._net.dark[chunk.wire].append((self._rank, arrived))
            else:
                self.take(arrived)
        news, self.news = self.news, []
        return news

    def close(self) -> None:
        """Nothing to free."""

    def take(self, arrived: Arrived) -> None:
        """A chunk is through its NICs: into its slot."""
        data = self.under_way.pop(arrived[:3])
        self.slot(arrived.flow, arrived.seq)[: len(data)] = data
        self.news.append(arrived)
        self._back(arrived.wire, Completed(*arrived[:3]))

    def _back(self, wire: int, happening: Happening) -> None:
        src = self._layout.wires[wire].src
        if wire in self._net.dark:
            self._net.dark[wire].append((src, happening))
        elif wire not in self.fenced | self._net.ends[src].fenced:
            self._net.ends[src].news.append(happening)

    def _lose(self, wire: int) -> None:
        self.fenced.add(wire)
        self.clocks.forget(wire)
        if wire in self._net.dark:
            self._net.dark[wire] = [stuck for stuck in self._net.dark[wire] if stuck[0] != self._rank]

    # --- faults ------------------------------------------------------------------------------------------------------

    def cut(self, nic: int) -> None:
        """The link of a NIC of this rank goes down, and it says so; the far ends notice by their next write's error."""
        for w in self._of(nic):
            self._lose(w)
            wire = self._layout.wires[w]
            far = self._net.ends[wire.src if wire.into == nic else wire.dst]
            far.news.append(Failed(w, Cause.ERROR, "retries exceeded"))
        self.news.append(PortDown(nic, Cause.PORT, "link down"))

    def darken(self, nic: int) -> None:
        """A black hole: whatever enters or leaves by this NIC is stuck, and nobody says so."""
        for wire in self._of(nic):
            self._net.dark.setdefault(wire, [])

    def heal(self, nic: int) -> None:
        """The end of a black hole: what is not fenced goes on."""
        for wire in self._of(nic):
            for rank, happening in self._net.dark.pop(wire, ()):
                if isinstance(happening, Arrived):
                    self._net.ends[rank].take(happening._replace(at=self._net.now))
                else:
                    self._net.ends[rank].news.append(happening)

    def slow(self, nic: int, factor: float) -> None:
        """From now on the NIC works at `factor` times its rate, at both ends of its wires."""
        for end in self._net.ends:
            rates = end.clocks.rates[nic]
            end.clocks.rates[nic] = Rates(rates.out * factor, rates.into * factor)

    def _of(self, nic: int) -> list[int]:
        return [w for w, wire in enumerate(self._layout.wires) if nic in (wire.out, wire.into)]


def _size(payload: int) -> int:
    return HEADER_BYTES + payload
