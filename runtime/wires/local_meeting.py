"""How the ranks of one machine connect their wires: over Unix sockets, with the receiver's slots lent along,
and the sender's buffer lent back.

Such a socket has a name that every process of the machine can connect to. Who does is asked for by the kernel's word
first (SO_PEERCRED, unix(7)): another user's connection is closed at once. Those of the same user are heard all at the
same time, and whoever has not shown the listener's token soon is sent away. Nobody is waited for but the other ranks.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import select
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any

from optcc.runtime.errors import PeerLostError, TransportError
from optcc.runtime.wires.contract import Wire
from optcc.runtime.wires.local_ends import ReceivingEnd, SendingEnd
from optcc.runtime.wires.slots import Slots

HELLO = Struct("<32sI")
"""The listener's token, which wire."""
CONNECT_S = 10.0
"""For all connections of a rank to stand. They go to this machine, so only a peer that died makes it wait."""
RETRY_S = 0.005
"""Before a listener whose queue was full is tried again."""
QUEUE = 4096
"""Connections that wait in the kernel, so that strangers who come at once keep out nobody; Linux' own limit."""
STRANGERS = 64
"""How many more than the wires that are awaited may be open without the token; then the oldest is dropped."""

_CREDENTIALS = Struct("3i")
"""Linux' struct ucred: process, user, group."""


def connect_ends(
    rank: int,
    wires: Sequence[Wire],
    exchange: Callable[[Any], list[Any]],
    lent: Slots,
    buffer: int | None,
    borrow: Callable[[int, int], Slots],
    borrow_buffer: Callable[[int, int], None],
    adopt: Callable[[SendingEnd | ReceivingEnd], None],
    clock: Callable[[], float],
) -> None:
    """Give `adopt` every end of this rank's as soon as it stands; it is the one to close them.

    The receiving end of a wire connects, for it lends its slots with the first bytes that it sends.

    exchange : an all-gather over the ranks
    lent, borrow : this rank's slots; those of another rank, by the descriptor that it lends
    buffer, borrow_buffer : descriptor of the buffer that this rank sends from, None: none is lent; takes one of another
        rank's, which is its own from then on
    Raises TransportError when ranks do not connect in time.
    """
    entering = deque(w for w, wire in enumerate(wires) if wire.dst == rank)
    leaving = {w for w, wire in enumerate(wires) if wire.src == rank}
    token = secrets.token_bytes(32)
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind("")  # Linux finds a name, which is not a file
        listener.listen(QUEUE)
        listener.setblocking(False)
        listeners = exchange([listener.getsockname().hex(), token.hex(), buffer is not None])
        first = {(wire.src, wire.dst): w for w, wire in reversed([*enumerate(wires)])}  # of two ranks: carries a buffer
        carrying: dict[int, ReceivingEnd] = {}  # by descriptor: ends by which another rank's buffer is to come
        owing: list[tuple[int, socket.socket]] = []  # rank that this rank's buffer is to go to, and by what
        strangers: dict[int, socket.socket] = {}  # by descriptor, in the order in which they came
        closing.callback(_close, strangers)
        ready = select.epoll()
        closing.callback(ready.close)
        ready.register(listener, select.EPOLLIN)
        deadline = clock() + CONNECT_S
        while entering or leaving or carrying or owing:
            left = deadline - clock()
            if left <= 0:
                awaited = [*entering, *(end.wire for end in carrying.values())]
                missing = {wires[w].dst for w in leaving} | {wires[w].src for w in awaited}
                raise TransportError(f"ranks {sorted(missing)} did not connect within {CONNECT_S:g} s")
            while entering:
                w = entering[0]
                name, theirs, lends = listeners[wires[w].src]
                try:
                    sock = _connected(bytes.fromhex(name), HELLO.pack(bytes.fromhex(theirs), w), lent.fd)
                except ConnectionError as error:
                    raise PeerLostError(wires[w].src, f"does not listen any more: {error}") from error
                if sock is None:
                    break
                entering.popleft()
                end = ReceivingEnd(w, sock)
                adopt(end)
                if lends and first[wires[w].src, rank] == w:
                    carrying[sock.fileno()] = end
                    ready.register(sock, select.EPOLLIN)
            owing = [(to, sock) for to, sock in owing if buffer is not None and not _buffer_to(to, sock, buffer)]
            if not (entering or leaving or carrying or owing):
                break
            for fd, _ in ready.poll(RETRY_S if entering or owing else left):
                if fd == listener.fileno():
                    stranger = _accepted(listener)
                    if stranger:
                        if len(strangers) >= len(leaving) + STRANGERS:
                            strangers.pop(next(iter(strangers))).close()
                        strangers[stranger.fileno()] = stranger
                        ready.register(stranger, select.EPOLLIN)
                elif fd in strangers:
                    ready.unregister(fd)
                    heard = _heard(strangers.pop(fd), token, leaving)
                    if heard:
                        w, sock, slots = heard
                        leaving.remove(w)
                        adopt(SendingEnd(w, sock, borrow(wires[w].dst, slots)))
                        if buffer is not None and first[rank, wires[w].dst] == w:
                            owing.append((wires[w].dst, sock))
                elif fd in carrying:
                    ready.unregister(fd)
                    end = carrying.pop(fd)
                    borrow_buffer(wires[end.wire].src, _buffer_from(wires[end.wire].src, end.sock))
        exchange(None)  # nobody writes before all are connected, nor closes its listener before


def _close(strangers: Mapping[int, socket.socket]) -> None:
    for sock in strangers.values():
        sock.close()


def _connected(name: bytes, hello: bytes, lent: int) -> socket.socket | None:
    """A connection to another rank's listener, over which it has been told which wire and lent the slots.

    None: its queue is full for now, or the kernel's of what is lent. Raises ConnectionError when it is gone, or another
    user's.
    """
    with contextlib.ExitStack() as failed:
        sock = failed.enter_context(socket.socket(socket.AF_UNIX))
        sock.setblocking(False)
        try:
            sock.connect(name)
        except BlockingIOError:
            return None
        if not is_own(sock):
            raise ConnectionRefusedError("another user listens there")
        if not _lent(sock, hello, lent):
            return None
        failed.pop_all()
        return sock


def _lent(sock: socket.socket, said: bytes, fd: int) -> bool:
    """Lend a descriptor; False where as many are lent as may be until others take theirs (unix(7))."""
    try:
        socket.send_fds(sock, [said], [fd])
    except OSError as error:
        if error.errno == errno.ETOOMANYREFS:
            return False
        raise
    return True


def _buffer_to(rank: int, sock: socket.socket, buffer: int) -> bool:
    """Lend another rank this one's buffer; as `_lent`. Raises PeerLostError when it is gone."""
    try:
        return _lent(sock, b"b", buffer)
    except ConnectionError as error:
        raise PeerLostError(rank, f"is gone before a buffer was lent to it: {error}") from error


def _buffer_from(rank: int, sock: socket.socket) -> int:
    """The descriptor of the buffer that another rank lends. Raises PeerLostError when it is gone."""
    try:
        said, fds, _, _ = socket.recv_fds(sock, 1, 1)
    except ConnectionError as error:
        raise PeerLostError(rank, f"is gone before it has lent its buffer: {error}") from error
    if not said:
        raise PeerLostError(rank, "is gone before it has lent its buffer")
    if not fds:  # recvmsg(2) says no more when the process may not open another
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return fds[0]


def _accepted(listener: socket.socket) -> socket.socket | None:
    """Who has connected, if the same user has."""
    try:
        sock, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):  # it has gone again
        return None
    if not is_own(sock):
        sock.close()
        return None
    sock.setblocking(False)
    return sock


def _heard(sock: socket.socket, token: bytes, awaited: set[int]) -> tuple[int, socket.socket, int] | None:
    """Which wire this is and the slots that are lent with it; None, and closed, when it is not another rank."""
    with contextlib.ExitStack() as refuse:
        refuse.callback(sock.close)
        try:
            hello, fds, flags, _ = socket.recv_fds(sock, HELLO.size, 1)
        except OSError:
            return None
        for fd in fds:
            refuse.callback(os.close, fd)
        if flags & socket.MSG_CTRUNC and not fds:  # recvmsg(2) says no more when the process may not open another
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if len(hello) != HELLO.size or len(fds) != 1:
            return None
        shown, w = HELLO.unpack(hello)
        if not hmac.compare_digest(shown, token) or w not in awaited:
            return None
        refuse.pop_all()
        return w, sock, fds[0]


def is_own(sock: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket was this user's when it connected, or began to listen."""
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.geteuid())
