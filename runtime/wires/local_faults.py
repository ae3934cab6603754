"""Faults of local wires, for tests and for fault runs: what a NIC, its link or its driver may do to them."""

from __future__ import annotations

import math
import select
from typing import Any

from optcc.runtime.wires.contract import Cause, Failed, PortDown
from optcc.runtime.wires.local_parts import LocalParts
from optcc.runtime.wires.pacing import Rates


class LocalFaults(LocalParts):
    """The part of `LocalWires` that spoils them. A NIC is its index; only this rank's ends of wires are touched."""

    def cut(self, nic: int, cause: Cause = Cause.PORT, detail: str = "link down") -> None:
        """A NIC of this rank goes down: its connections end, and it says so."""
        self.away[nic] = math.inf
        for wire in self._of(nic):
            self._close(wire)
        self._news.append(PortDown(nic, cause, detail))

    def mend(self, nic: int, seconds: float) -> None:
        """A NIC that has gone down has its link again after so long."""
        self.away[nic] = self._clock() + seconds

    def fail_out(self, nic: int, cause: Cause = Cause.ERROR, detail: str = "retries exceeded") -> None:
        """The sending ends of the wires that leave by `nic` fail; the receiving ends do not notice."""
        for wire in self._of(nic):
            if wire in self._out:
                self.fail(wire, cause, detail)

    def fail_in(self, nic: int, told: bool = False) -> None:
        """The receiving ends of the wires that enter by `nic` fail.

        told : the receiver notices, and not the sender; else the other way round
        """
        for wire in self._of(nic):
            if wire in self._in:
                if told:
                    self.fail(wire, Cause.ERROR, "flushed")
                else:
                    self._close(wire)

    def fail(self, wire: int, cause: Cause, detail: str) -> None:
        """This end of one wire fails, and says so; the other end does not notice."""
        self._stop(wire, True, True)
        self._news.append(Failed(wire, cause, detail))

    def darken(self, nic: int, data: bool = True, acks: bool = True) -> None:
        """A black hole: what enters or leaves by this NIC is stuck, and nobody says so; or one way only.

        It is not lost until the wire is fenced: a NIC would go on trying to send it, for a while.
        """
        for wire in self._of(nic):
            self._stop(wire, data, acks)

    def break_path(self, nic: int, far: int) -> None:
        """A black hole between this NIC and one of another rank; both do as well as ever with others."""
        for wire in set(self._of(nic)).intersection(self._of(far)):
            self._stop(wire, True, True)

    def heal(self, nic: int) -> None:
        """The end of a black hole: what is not fenced goes on."""
        for wire in self._of(nic):
            end = self._out.get(wire) or self._in[wire]
            deaf = self._is_deaf(end)
            self._no_acks.discard(wire)
            for flow, seq in self._unsaid.pop(wire, {}).items():
                self._mark(wire, flow, seq)
            self._arrive(self._no_data.pop(wire, ()))
            if deaf:
                self._epoll.register(end.sock, select.EPOLLIN)
            self._unstick(wire)
            if wire in self._out:
                self._flush(self._out[wire])

    def held(self, nic: int) -> dict[int, int]:
        """How many notifications, acknowledgements and credits a black hole at this NIC keeps waiting, by wire."""
        self._read_rings()
        return {wire: self._waiting(wire) for wire in self._of(nic)}

    def _waiting(self, wire: int) -> int:
        end = self._out.get(wire) or self._in[wire]
        kept: tuple[Any, ...] = (self._no_data.get(wire, ()), self._unsaid.get(wire, ()), self._stuck.get(wire, ()))
        here: int = sum(len(each) for each in kept) + end.unwritten
        return here

    def slow(self, nic: int, factor: float) -> None:
        """From now on the NIC works at `factor` times its rate."""
        rates = self._clocks.rates[nic]
        self._clocks.rates[nic] = Rates(rates.out * factor, rates.into * factor)

    def fail_nic(self, detail: str) -> None:
        """Something happens that no lost NIC can explain: the next poll raises TransportError."""
        self._bug = detail

    def _stop(self, wire: int, data: bool, acks: bool) -> None:
        end = self._out.get(wire) or self._in[wire]
        deaf = self._is_deaf(end)
        if data:
            self._no_data.setdefault(wire, [])
        if acks:
            self._no_acks.add(wire)
        if self._is_deaf(end) and not deaf:
            self._epoll.unregister(end.sock)

    def _is_deaf(self, end: Any) -> bool:
        """Whether nothing comes in at this end, so that not even its closing is noticed."""
        return end.wire in (self._no_acks if end.wire in self._out else self._no_data)

    def _of(self, nic: int) -> list[int]:
        return [w for w in (*self._out, *self._in) if nic in (self._wires[w].out, self._wires[w].into)]
