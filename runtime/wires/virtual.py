"""Wires in virtual time: the emulated NICs of all ranks in one thread, with a clock that is set by hand.

Deterministic, so that what they do can be held against the simulator. A chunk is in the far rank's memory when its NICs
are through with it; acknowledgements and credits take no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from optcc.runtime.errors import TransportError
from optcc.runtime.wires.contract import (
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
from optcc.runtime.wires.layout import Layout
from optcc.runtime.wires.pacing import Chunk, PortClocks, Rates


class VirtualNet:
    """What joins the ranks' ends. `now` is everybody's clock, in seconds."""

    def __init__(self, layout: Layout) -> None:
        self.now = 0.0
        self.layout = layout
        self.paused: set[int] = set()  # ranks that do nothing for now
        # Wires whose chunks, or whose acknowledgements and credits, do not come through for now: what is stuck.
        self.no_data: dict[int, list[Arrived]] = {}
        self.no_acks: dict[int, list[Happening]] = {}
        self.ends = [VirtualWires(self, rank) for rank in range(layout.ranks)]

    def clock(self) -> float:
        """The time."""
        return self.now

    def next_landing(self) -> float:
        """When something lands next if nothing else is done; now, where something has happened already."""
        awake = [end for rank, end in enumerate(self.ends) if rank not in self.paused]
        if any(end.news for end in awake):
            return self.now
        return min((end.clocks.next_landing() for end in awake), default=math.inf)


class VirtualWires:
    """One rank's ends."""

    def __init__(self, net: VirtualNet, rank: int) -> None:
        self._net, self._layout, self._rank = net, net.layout, rank
        self.clocks = PortClocks(net.layout.rates)
        self.news: list[Happening] = []
        self.fenced: set[int] = set()
        self.under_way: dict[tuple[int, ...], bytes] = {}  # (wire, flow, seq) -> header and payload
        self.records: dict[int, tuple[int, int, int]] = {}
        self.bug = ""
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
        if wire in self.fenced:
            return
        if wire in peer.fenced:
            if wire not in self._net.no_data:
                self._give_up(wire)
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
        if wire not in self.fenced | far.fenced | self._net.no_data.keys() | self._net.no_acks.keys():
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
        """What has happened by the net's time; does not wait. Raises TransportError for a planted bug."""
        if self.bug:
            raise TransportError(self.bug)
        for at, chunk in self.clocks.landed(self._net.now):
            arrived = Arrived(chunk.wire, chunk.flow, chunk.seq, at)
            if chunk.wire in self._net.no_data:
                self._net.no_data[chunk.wire].append(arrived)
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
        src = self._net.ends[self._layout.wires[wire].src]
        if wire in self._net.no_acks:
            self._net.no_acks[wire].append(happening)
        elif wire not in self.fenced | src.fenced:
            src.news.append(happening)

    def _lose(self, wire: int) -> None:
        """This end neither sends nor takes anything any more."""
        self.fenced.add(wire)
        self.clocks.forget(wire)
        stuck = self._net.no_acks if self._layout.wires[wire].src == self._rank else self._net.no_data
        stuck.get(wire, []).clear()

    def _give_up(self, wire: int) -> None:
        self.news.append(Failed(wire, Cause.ERROR, "retries exceeded"))

    # --- faults ------------------------------------------------------------------------------------------------------

    def cut(self, nic: int, cause: Cause = Cause.PORT, detail: str = "link down") -> None:
        """A NIC of this rank goes down, and it says so; the far ends notice by their next write's error."""
        for w in self._of(nic):
            self._lose(w)
            wire = self._layout.wires[w]
            self._net.ends[wire.src if wire.into == nic else wire.dst]._give_up(w)
        self.news.append(PortDown(nic, cause, detail))

    def mend(self, nic: int, seconds: float) -> None:
        """Nothing: no wire is made anew here, so that the NIC's return changes nothing."""

    def fail_out(self, nic: int, cause: Cause = Cause.ERROR, detail: str = "flushed") -> None:
        """The sending ends of the wires that leave this rank by `nic` fail; the receiving ends do not notice."""
        for wire in self._of(nic):
            if self._layout.wires[wire].out == nic and wire not in self.fenced:
                self._lose(wire)
                self.news.append(Failed(wire, cause, detail))

    def fail_in(self, nic: int, told: bool = False) -> None:
        """The receiving ends of the wires that enter this rank by `nic` fail.

        told : the receiver notices, and not the sender; else the other way round
        """
        for wire in self._of(nic):
            if self._layout.wires[wire].into == nic and wire not in self.fenced:
                self._lose(wire)
                if told:
                    self._net.no_data.setdefault(wire, [])
                    self.news.append(Failed(wire, Cause.ERROR, "flushed"))
                elif any(key[0] == wire for key in self.under_way):
                    self._net.ends[self._layout.wires[wire].src]._give_up(wire)

    def darken(self, nic: int, data: bool = True, acks: bool = True) -> None:
        """A black hole: what enters or leaves by this NIC is stuck, and nobody says so; or one way only."""
        for wire in self._of(nic):
            if data:
                self._net.no_data.setdefault(wire, [])
            if acks:
                self._net.no_acks.setdefault(wire, [])

    def break_path(self, nic: int, far: int) -> None:
        """A black hole between this NIC and one of another rank; both do as well as ever with others."""
        for wire in set(self._of(nic)).intersection(self._of(far)):
            self._net.no_data.setdefault(wire, [])
            self._net.no_acks.setdefault(wire, [])

    def heal(self, nic: int) -> None:
        """The end of a black hole: what is not fenced goes on."""
        for wire in self._of(nic):
            ends = self._layout.wires[wire]
            self._net.ends[ends.src].news += self._net.no_acks.pop(wire, [])
            for arrived in self._net.no_data.pop(wire, []):
                self._net.ends[ends.dst].take(arrived._replace(at=self._net.now))

    def fail_nic(self, detail: str) -> None:
        """Something happens that no lost NIC can explain: the next poll raises TransportError."""
        self.bug = detail

    def slow(self, nic: int, factor: float) -> None:
        """From now on the NIC works at `factor` times its rate, at both ends of its wires."""
        for end in self._net.ends:
            rates = end.clocks.rates[nic]
            end.clocks.rates[nic] = Rates(rates.out * factor, rates.into * factor)

    def _of(self, nic: int) -> list[int]:
        return [w for w, wire in enumerate(self._layout.wires) if nic in (wire.out, wire.into)]


def _size(payload: int) -> int:
    return HEADER_BYTES + payload
