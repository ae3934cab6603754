"""The contract between the engine and what moves a rank's transfers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from optcc.runtime.engine.program import Move

Take = Callable[[int, int, memoryview], None]
"""A piece of a transfer is here: (row, offset in the buffer in bytes, its bytes, valid during the call only)."""


class Landing(NamedTuple):
    """Transfer `row` is complete at its destination since the time `at`; all its pieces have been taken."""

    row: int
    at: float


class Transport(Protocol):
    """Moves one rank's transfers of one run of a schedule. Times are absolute seconds of the engine's clock."""

    def free_at(self, route: int, now: float) -> float:
        """The time from which the ports of `route` can take a transfer: past, or `now` where that is all one knows.

        inf: not before `poll` has returned.
        """
        ...

    def post(self, move: Move, payload: memoryview, ready: float) -> None:
        """Send `payload`, which could go since the time `ready`. Does not block.

        The payload may be read until the transfer has arrived. That is safe in a schedule that the verifier accepts:
        what overwrites bytes that a rank sends depends, through other ranks, on the arrival of what it sent.
        """
        ...

    def poll(self, until: float, take: Take) -> list[Landing]:
        """Wait until something happens, but not after `until`; returns what has landed, in order of time.

        Raises TransportError when a peer cannot be reached any more.
        """
        ...

    def drain(self) -> bool:
        """Whether all that was posted has arrived at the other ends. For when there is nothing else to wait for: while
        it has not, `poll` returns as soon as it has.
        """
        ...

    def given(self) -> bool:
        """Whether all that was posted lands without anything more done at this end, unless something is lost."""
        ...


class Attendant(Protocol):
    """Who looks on while a schedule runs: strikes on purpose (`fault_injection.FaultInjector`), a deadline."""

    def look(self, done: float) -> None:
        """A part `done` of the rank's transfers, 0 to 1, are done; raises to stop the run."""
        ...

    def wake(self) -> float:
        """When to look again although nothing happens; inf: never."""
        ...

    def due(self) -> float:
        """The part done at which `look` has something to do next; inf: at none, but for what `wake` says."""
        ...


class Watch(Protocol):
    """What can interrupt a wait: a file descriptor, and what to do when it can be read."""

    def fileno(self) -> int:
        """The descriptor to wait for."""
        ...

    def check(self) -> None:
        """Read what has come; returns to go on, raises to stop the run."""
        ...
