"""Wires and NICs that one rank takes to be lost: who has to know, what is fenced, and who is to blame at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from optcc.runtime.errors import FlowSeveredError, NicsLostError
from optcc.runtime.flows.ends import Ends, In, Out
from optcc.runtime.flows.progress_watchdog import ProgressWatchdog
from optcc.runtime.flows.suspicion import Suspicions
from optcc.runtime.protocol import events
from optcc.runtime.wires.contract import Cause, Drained, PortDown, Wires


class Noting(Protocol):
    """Writes into a rank's journal."""

    def __call__(self, kind: str, nic: str, far: str = "", cause: str = "", text: str = "", nbytes: int = 0) -> None:
        """See `Note`."""
        ...


class PathFailover:
    """Those of one rank.

    Parameters
    ----------
    handle : have the machine of a flow handle an event
    note : write into the journal
    lost : wires
    """

    def __init__(
        self,
        ends: Ends,
        wires: Wires,
        watchdog: ProgressWatchdog,
        suspicions: Suspicions,
        handle: Callable[[Out | In, events.Event], None],
        note: Noting,
    ) -> None:
        self._ends, self._layout, self._wires = ends, ends.layout, wires
        self._watchdog, self._suspicions = watchdog, suspicions
        self._handle, self._note = handle, note
        self.lost: set[int] = set()
        self._down: set[int] = set()  # NICs of this rank
        self._told: set[int] | None = None  # peers that have been told, while flows hear of a loss
        self._fences: dict[int, list[Out | In]] = {}  # wire -> flows that wait until it is drained
        self._drained: set[int] = set()

    def lose(self, wire: int, cause: Cause, detail: str) -> None:
        """Every flow that may use the wire has to know."""
        if wire in self.lost:
            return
        self.lost.add(wire)
        if cause is Cause.PROGRESS:
            self._watchdog.suspect((self._layout.wires[wire].out, self._layout.wires[wire].into))
        self._note("lost", *self._ends.names(wire), cause, detail)
        self._told = set()
        for flow in self._ends.using.get(wire, ()):
            self._handle(flow, events.Lost(wire, cause))
        self._told = None  # a notice that is repeated is told again

    def already_told(self, flow: Out | In) -> bool:
        """Whether the peer has just been told of this loss for another flow of the same wire; else it is now."""
        if self._told is None:
            return False
        told = flow.peer in self._told
        self._told.add(flow.peer)
        return told

    def port_down(self, down: PortDown) -> None:
        """A NIC of this rank, with all wires that use it."""
        self._down.add(down.nic)
        self._note("nic down", self._layout.nics[down.nic].name, "", down.cause, down.detail)
        for wire in self._ends.using:
            if down.nic in (self._layout.wires[wire].out, self._layout.wires[wire].into):
                self.lose(wire, down.cause, down.detail)

    def is_drained(self, wire: int) -> bool:
        """Whether this end of a wire is fenced. If not, it will be, and `drained` is called."""
        if wire in self._drained:
            return True
        if wire not in self._fences:
            self._fences[wire] = []
            self._wires.fence(wire)
        return False

    def found(self, wire: int) -> None:
        """A wire has been made anew."""
        self.lost.discard(wire)
        self._drained.discard(wire)
        self._down.discard(self._ends.nic(wire))

    def fence(self, flow: Out | In, command: events.Fence) -> None:
        """A wire is fenced once, for all its flows: the others lose it with this one."""
        wire = command.wire
        if wire in self._drained:
            self._handle(flow, events.Fenced(wire))
            return
        begun = wire in self._fences
        waiting = self._fences.setdefault(wire, [])
        if flow not in waiting:
            waiting.append(flow)
        if not begun:
            if isinstance(flow, Out):
                self.lose(wire, flow.sender.cause, "given up")
            else:
                self.lose(wire, Cause.NOTICE, "fenced at the other end")
                if self._suspicions.of(self._ends.nic(wire)):
                    self._watchdog.suspect((self._ends.nic(wire),))
            self._wires.fence(wire)  # noted before: the other end may see it at once, and note that

    def drained(self, happening: Drained) -> None:
        """This end of a wire is fenced."""
        self._drained.add(happening.wire)
        self._note("fenced", *self._ends.names(happening.wire), text="this end is drained")
        for flow in self._fences.pop(happening.wire, ()):
            self._handle(flow, events.Fenced(happening.wire))

    def severed(self, flow: Out | In, command: events.Severed) -> None:
        """Raises: this rank is to blame when all its NICs that reach the peer are down, else the peer."""
        wires = self._layout.wires
        mine = {wires[wire].out for wire in self._layout.flows[flow.number].wires}
        raise (NicsLostError if mine <= self._down else FlowSeveredError)(flow.peer, command.why)
