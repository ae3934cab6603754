"""The two ends of a local wire: a socket, which tells when the other end is gone and wakes it, and what waits here."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any, NamedTuple

from optcc.runtime.wires.rings import Ring
from optcc.runtime.wires.slots import Slots


class Unsent(NamedTuple):
    """A chunk not yet written, and its stamps."""

    flow: int
    seq: int
    header: bytes
    payload: Any
    start: float
    end: float


class SendingEnd:
    """The sending end of a wire, and the slots at its other end."""

    def __init__(self, wire: int, sock: socket.socket, far: Slots) -> None:
        self.wire, self.sock, self.far = wire, sock, far
        self.notices: Ring  # set once all wires stand
        self.unsent: deque[Unsent] = deque()
        self.woke = 0  # the sleep of the peer in which it has been woken over this wire

    @property
    def unwritten(self) -> int:
        """How many notifications wait here."""
        return len(self.unsent)


class ReceivingEnd:
    """The receiving end of a wire, from rank `src`."""

    def __init__(self, wire: int, sock: socket.socket) -> None:
        self.wire, self.sock = wire, sock
        self.src = -1
        self.backs: Ring
        self.replies: list[tuple[int, int, int]] = []  # kind, flow, number
        self.woke = 0

    @property
    def unwritten(self) -> int:
        """How many acknowledgements and credits wait here."""
        return len(self.replies)
