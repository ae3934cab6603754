"""Faults of queue pairs, for tests and for fault runs: what can really be done to a NIC from here.

In the lab links and packets are ours to spoil (`lab/network.py`), and those of a played fabric
(`optcc/fabric/played.py`). Elsewhere only queue pairs are; what would need more is refused.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from optcc.errors import InputError
from optcc.machine.rdma import PLAYED_FABRIC, natural
from optcc.runtime.verbs.end import LOST, OPEN, End
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.reports import NicReports
from optcc.runtime.wires.contract import Cause, PortDown, Wire

LAB = "OPTCC_LAB"
"""Set in the environment inside the lab."""

FLUSH_S = 1.0
"""Seconds for a queue pair in the error state to give back its receives; it takes microseconds where a NIC lives."""


class VerbsFaults:
    """The part of `VerbsWires` that spoils them. A NIC is its index; only NICs of this rank can be struck."""

    _rank: int
    _wires: Sequence[Wire]
    _nics: Mapping[int, VerbsNic]
    _ends: dict[int, End]
    _bits: Mapping[int, float]
    _reports: NicReports
    _bug: str

    def cut(self, nic: int, cause: Cause = Cause.PORT, detail: str = "link down") -> None:
        """A NIC goes down: its link in the lab, elsewhere all of its queue pairs. Cause DEVICE: the device itself."""
        if cause is Cause.DEVICE:
            self._reports.device_lost(self._nics[nic], detail)
        elif LAB in os.environ or PLAYED_FABRIC in os.environ:
            _network().cut(self._number(nic))
        else:
            for end in self._of(nic):
                end.queue_pair.fail()
            self._reports.happened.append(PortDown(nic, cause, detail))

    def mend(self, nic: int, seconds: float) -> None:
        """A NIC that has gone down has its link again after so long. Raises InputError outside the lab."""
        threading.Timer(seconds, _network().restore, (self._number(nic),)).start()

    def fail_out(self, nic: int, cause: Cause = Cause.ERROR, detail: str = "post failed") -> None:
        """The sending ends of the wires that leave by `nic` are in error. Cause DEVICE: it refuses to send."""
        if cause is Cause.DEVICE:
            self._reports.device_lost(self._nics[nic], detail)
            return
        for end in self._of(nic):
            if self._wires[end.wire].src == self._rank:
                end.queue_pair.fail()

    def fail_in(self, nic: int, told: bool = False) -> None:
        """The receiving ends of the wires that enter by `nic` are in error.

        told : the receiver notices, and not the sender; else only the sender does
        """
        for end in self._of(nic):
            if self._wires[end.wire].dst != self._rank:
                continue
            if told:
                end.queue_pair.fail()
            else:
                self._hush(end)

    def _hush(self, end: End) -> None:
        """An end that takes nothing any more, and does not notice.

        What it has acknowledged is heard of first: a reset may take completions with it. So it goes into the error
        state, in which nothing more comes, gives back its receives, and is reset then.
        """
        end.state = LOST
        end.queue_pair.fail()
        patience = time.monotonic() + FLUSH_S
        self._reports.collect(end.nic)
        while end.receives and time.monotonic() < patience:
            time.sleep(0)
            self._reports.collect(end.nic)
        end.forget()

    def fail(self, wire: int, cause: Cause, detail: str) -> None:
        """This end of one wire is in error, and says so; the other end does not notice."""
        self._ends[wire].queue_pair.fail()
        self._reports.lose(self._ends[wire], cause, detail)

    def darken(self, nic: int, data: bool = True, acks: bool = True) -> None:
        """A black hole: what enters or leaves by this NIC is lost, and nobody says so; or of one kind only.

        Credits are small writes, so they count as data here. Raises InputError outside the lab.
        """
        what = "all" if data and acks else "data" if data else "acks"
        _network().lose(self._number(nic), "both", what)

    def heal(self, nic: int) -> None:
        """The end of a black hole. Raises InputError outside the lab."""
        _network().heal(self._number(nic))

    def slow(self, nic: int, factor: float) -> None:
        """From now on the NIC works at `factor` times its rate. Raises InputError outside the lab."""
        _network().rate(self._number(nic), self._bits[nic] * factor)

    def fail_nic(self, detail: str) -> None:
        """Something happens that no lost NIC can explain: the next poll raises TransportError."""
        self._bug = detail

    def _number(self, nic: int) -> int:
        """The number of a NIC among its host's: 3 of rxe3."""
        return natural(self._nics[nic].address.device)[-1][0]

    def _of(self, nic: int) -> list[End]:
        return [end for end in self._ends.values() if end.nic.index == nic and end.state is OPEN]


def _network() -> Any:
    if PLAYED_FABRIC in os.environ:
        from optcc.fabric.played import PlayedNetwork

        return PlayedNetwork()
    if LAB not in os.environ:
        raise InputError(
            "this cannot be done to real NICs from here",
            where="--transport verbs",
            expected="--cut, --kill or --pause, which can; or the lab, where links and packets can be spoilt",
            got="a fault of the network",
            hint="lab/run.sh starts the lab.",
        )
    return importlib.import_module("lab.network")
