"""The contract between the engine and whatever moves bytes: simulated, local, verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from optcc.runtime.program import Move

Place = Callable[[int], memoryview]
"""Where the bytes of an arriving transfer go: row -> exactly its length of writable bytes. Asked once per transfer."""


class Landing(NamedTuple):
    """Transfer `row` is complete at its destination since the time `at`."""

    row: int
    at: float


class Transport(Protocol):
    """Moves one rank's transfers of one run of a schedule. Times are absolute seconds of the engine's clock.

    A transport may write the bytes of a transfer to `place(row)` before it reports the transfer as landed, and may
    read a posted payload until the transfer has arrived. Both are safe in a schedule that the verifier accepts: what
    overwrites bytes that a rank sends depends, through other ranks, on the arrival of what it sent.
    """

    def free_at(self, route: int, now: float) -> float:
        """The time from which the ports of `route` can take a transfer: past, or `now` where that is all one knows.

        inf: not before `poll` has returned.
        """
        ...

    def post(self, move: Move, payload: memoryview, ready: float) -> None:
        """Send `payload`, which could go since the time `ready`. Does not block.

        Raises TransportError when the peer is gone.
        """
        ...

    def poll(self, until: float, place: Place) -> list[Landing]:
        """Wait until something happens, but not after `until`; returns what has landed, in order of time."""
        ...

    @property
    def drained(self) -> bool:
        """Whether all that was posted has left this rank's memory."""
        ...


class Watch(Protocol):
    """What can interrupt a wait: a file descriptor, and what to do when it can be read."""

    def fileno(self) -> int:
        """The descriptor to wait for."""
        ...

    def check(self) -> None:
        """Read what has come; returns to go on, raises to stop the run."""
        ...
