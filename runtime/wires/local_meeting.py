"""How the ranks of one machine connect their wires: over Unix sockets, with the receiver's slots lent along,
and the sender's buffer lent back.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from optcc.runtime.engine.transport import Watch
from optcc.runtime.errors import PeerLateError, PeerLostError
from optcc.runtime.forks import own
from optcc.runtime.wires.contract import Wire
from optcc.runtime.wires.local_ends import ReceivingEnd, SendingEnd
from optcc.runtime.wires.local_lending import borrow_buffer, lend_buffer
from optcc.runtime.wires.local_listener import LocalListener, connected
from optcc.runtime.wires.slots import Slots

RETRY_S = 0.005
"""Before a listener whose queue was full is tried again."""

Borrow = Callable[[int, int], Slots]
BorrowBuffer = Callable[[int, int], None]
Adopt = Callable[[SendingEnd | ReceivingEnd], None]


def connect_ends(
    rank: int,
    wires: Sequence[Wire],
    exchange: Callable[[Any], list[Any]],
    lent: Slots,
    buffer: int | None,
    borrow: Borrow,
    take_buffer: BorrowBuffer,
    adopt: Adopt,
    watch: Watch,
    within_s: float,
) -> None:
    """Give `adopt` every end of this rank's as soon as it stands; it is the one to close them.

    The receiving end of a wire connects, for it lends its slots with the first bytes that it sends.

    exchange : an all-gather over the ranks
    lent, borrow : this rank's slots; those of another rank, by the descriptor that it lends
    buffer, take_buffer : descriptor of the buffer that this rank sends from, None: none is lent; takes one of another
        rank's, which is its own from then on
    watch : what it raises ends the wait
    Raises PeerLateError when ranks do not connect within `within_s`.
    """
    with select.epoll() as ready, LocalListener(ready) as listener:
        own(listener, LocalListener.let_go)
        told = exchange([*listener.address, buffer is not None])
        leaving = _SendingEnds(rank, wires, listener, buffer, borrow, adopt)
        entering = _ReceivingEnds(rank, wires, told, lent, ready, take_buffer, adopt)
        deadline = time.monotonic() + within_s
        ready.register(watch.fileno(), select.EPOLLIN)
        while True:
            entering.connect()
            leaving.lend_buffer()
            missing = entering.missing | leaving.missing
            if not missing:
                break
            left = deadline - time.monotonic()
            if left <= 0:
                raise PeerLateError(min(missing), f"ranks {sorted(missing)} did not connect within {within_s:.3g} s")
            wait = RETRY_S if entering.unconnected or leaving.owing else left
            for fd, _ in ready.poll(None if wait == math.inf else wait):
                if fd == watch.fileno():
                    watch.check()
                elif not entering.hear(fd):
                    leaving.hear(fd)
        exchange(None)  # nobody writes before all are connected, nor closes its listener before


def _carries_buffer(wires: Sequence[Wire]) -> list[bool]:
    """By wire: whether its sender's buffer is lent over it, which it is over the first of two ranks."""
    first = {(wire.src, wire.dst): w for w, wire in reversed([*enumerate(wires)])}
    return [first[wire.src, wire.dst] == w for w, wire in enumerate(wires)]


class _ReceivingEnds:
    """This rank connects those, and waits for the buffers of the ranks that lend one.

    unconnected : wires whose turn is to come, in order
    """

    def __init__(
        self,
        rank: int,
        wires: Sequence[Wire],
        told: Sequence[tuple[str, str, bool]],
        lent: Slots,
        ready: select.epoll,
        take_buffer: BorrowBuffer,
        adopt: Adopt,
    ) -> None:
        self._wires, self._told, self._lent, self._ready = wires, told, lent, ready
        self._take_buffer, self._adopt = take_buffer, adopt
        self._carries = _carries_buffer(wires)
        self.unconnected = deque(w for w, wire in enumerate(wires) if wire.dst == rank)
        self._carrying: dict[int, ReceivingEnd] = {}  # by descriptor: those by which a buffer is to come

    @property
    def missing(self) -> set[int]:
        """Ranks that something is awaited of."""
        return {self._wires[w].src for w in (*self.unconnected, *(end.wire for end in self._carrying.values()))}

    def connect(self) -> None:
        """As many as can be for now. Raises PeerLostError."""
        while self.unconnected:
            w = self.unconnected[0]
            src = self._wires[w].src
            name, token, lends = self._told[src]
            try:
                sock = connected(name, token, w, self._lent.fd)
            except ConnectionError as error:
                raise PeerLostError(src, f"does not listen any more: {error}") from error
            if sock is None:
                return
            self.unconnected.popleft()
            end = ReceivingEnd(w, sock)
            self._adopt(end)
            if lends and self._carries[w]:
                self._carrying[sock.fileno()] = end
                self._ready.register(sock, select.EPOLLIN)

    def hear(self, fd: int) -> bool:
        """A descriptor can be read; whether it was one of these, by which a buffer has come."""
        if fd not in self._carrying:
            return False
        self._ready.unregister(fd)
        end = self._carrying.pop(fd)
        src = self._wires[end.wire].src
        self._take_buffer(src, borrow_buffer(src, end.sock))
        return True


class _SendingEnds:
    """Each rank that receives from this rank connects to it. Where this rank has a buffer to lend, it lends it to them.

    owing : ranks that the buffer is still to go to, and by what
    """

    def __init__(
        self,
        rank: int,
        wires: Sequence[Wire],
        listener: LocalListener,
        buffer: int | None,
        borrow: Borrow,
        adopt: Adopt,
    ) -> None:
        self._wires, self._listener, self._buffer = wires, listener, buffer
        self._borrow, self._adopt = borrow, adopt
        self._carries = _carries_buffer(wires)
        self._awaited = {w for w, wire in enumerate(wires) if wire.src == rank}
        self.owing: list[tuple[int, socket.socket]] = []

    @property
    def missing(self) -> set[int]:
        """Ranks that have not connected, or could not be lent the buffer yet."""
        return {self._wires[w].dst for w in self._awaited} | {to for to, _ in self.owing}

    def hear(self, fd: int) -> None:
        """A descriptor can be read: of the listener, or of who has come to it."""
        peer = self._listener.hear(fd, self._awaited)
        if peer is not None:
            dst = self._wires[peer.wire].dst
            self._awaited.remove(peer.wire)
            self._adopt(SendingEnd(peer.wire, peer.sock, self._borrow(dst, peer.slots)))
            if self._buffer is not None and self._carries[peer.wire]:
                self.owing.append((dst, peer.sock))

    def lend_buffer(self) -> None:
        """To whom it can be lent for now. Raises PeerLostError."""
        if self._buffer is not None:
            self.owing = [(to, sock) for to, sock in self.owing if not lend_buffer(to, sock, self._buffer)]
