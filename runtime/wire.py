"""Transfers on a stream socket: a header (row, stamps), then the payload, straight from and to the rank's memory."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from struct import Struct

from optcc.runtime.errors import PeerLostError
from optcc.runtime.transport import Place


def _header(stamps: int) -> Struct:
    return Struct(f"<q{stamps}d")


class Outgoing:
    """The sending end of the connection to rank `peer`; messages carry up to `stamps` stamps, padded with zeros."""

    def __init__(self, sock: socket.socket, peer: int, stamps: int) -> None:
        self.sock, self.peer = sock, peer
        self._header, self._stamps = _header(stamps), stamps
        self._unsent: list[memoryview] = []

    @property
    def clear(self) -> bool:
        """Whether the kernel has taken everything."""
        return not self._unsent

    def send(self, row: int, stamps: Sequence[float], payload: memoryview) -> None:
        """Hand a message to the kernel, as far as it takes it now; `flush` sends the rest."""
        padded = (*stamps, *[0.0] * (self._stamps - len(stamps)))
        self._unsent += (memoryview(self._header.pack(row, *padded)), payload)
        self.flush()

    def flush(self) -> None:
        """Give the kernel as much as it takes."""
        while self._unsent:
            try:
                sent = self.sock.sendmsg(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise PeerLostError(self.peer, str(error.strerror)) from None
            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.pop(0))
            if self._unsent:
                self._unsent[0] = self._unsent[0][sent:]


class Incoming:
    """The receiving end of the connection from rank `peer`."""

    def __init__(self, sock: socket.socket, peer: int, stamps: int) -> None:
        self.sock, self.peer = sock, peer
        self._header = _header(stamps)
        self._front = memoryview(bytearray(self._header.size))
        self._message: tuple[int, tuple[float, ...]] | None = None  # the header, while its payload arrives
        self._missing = self._front

    def receive(self, place: Place) -> list[tuple[int, tuple[float, ...]]]:
        """Read what is there; returns (row, stamps) of every transfer whose payload is now complete."""
        complete: list[tuple[int, tuple[float, ...]]] = []
        while True:
            try:
                got = self.sock.recv_into(self._missing)
            except BlockingIOError:
                return complete
            except OSError as error:
                raise PeerLostError(self.peer, str(error.strerror)) from None
            if got == 0:
                raise PeerLostError(self.peer, "it closed the connection")
            self._missing = self._missing[got:]
            if len(self._missing):
                continue
            if self._message is None:
                row, *stamps = self._header.unpack(self._front)
                self._message, self._missing = (row, tuple(stamps)), place(row)
            else:
                complete.append(self._message)
                self._message, self._missing = None, self._front
