"""The two ends of a local wire: a socket, and what waits to go over it."""

from __future__ import annotations

import socket
from collections import deque
from struct import Struct
from typing import NamedTuple

from optcc.runtime.slots import Slots

NOTICE = Struct("<IIqdd")
"""Flow, bytes of payload, seq, when its first NIC starts and ends with it."""
BACK = Struct("<IIq")
"""Kind, flow, number: what comes back."""


class Unsent(NamedTuple):
    """A chunk not yet written, and its stamps."""

    flow: int
    seq: int
    header: bytes
    payload: memoryview
    start: float
    end: float


class Out:
    """The sending end of a wire, and the slots at its other end."""

    reads = BACK

    def __init__(self, wire: int, sock: socket.socket, far: Slots) -> None:
        self.wire, self.sock, self.far = wire, sock, far
        self.unsent: deque[Unsent] = deque()
        self.waits = False  # for the kernel to take more
        self.partial = b""  # of a record

    @property
    def unwritten(self) -> int:
        """How many notifications wait here."""
        return len(self.unsent)


class In:
    """The receiving end of a wire."""

    reads = NOTICE

    def __init__(self, wire: int, sock: socket.socket) -> None:
        self.wire, self.sock = wire, sock
        self.replies = bytearray()
        self.waits = False
        self.partial = b""

    @property
    def unwritten(self) -> int:
        """How many acknowledgements and credits wait here."""
        return len(self.replies) // BACK.size
