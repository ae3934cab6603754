"""Where a rank waits for the other ranks of its machine to connect, and how they do.

A Unix socket has a name that every process of the machine can connect to. Who does is asked for by the kernel's word
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
from collections.abc import Collection
from struct import Struct
from typing import NamedTuple, Self

from optcc.runtime.wires.local_lending import lend

HELLO = Struct("<32sI")
"""The listener's token, which wire."""
QUEUE = 4096
"""Connections that wait in the kernel, so that strangers who come at once keep out nobody; Linux' own limit."""
STRANGERS = 64
"""How many more than the wires that are awaited may be open without the token; then the oldest is dropped."""

_CREDENTIALS = Struct("3i")
"""Linux' struct ucred: process, user, group."""


class PeerConnection(NamedTuple):
    """Another rank that has connected: by which wire, and the descriptor of the slots that it lends."""

    wire: int
    sock: socket.socket
    slots: int


class LocalListener:
    """A listener whose descriptors, and those of who has not shown the token yet, are in `ready`. A context manager.

    address : its name and its token, for the other ranks; JSON values
    """

    def __init__(self, ready: select.epoll) -> None:
        self._ready, self._token = ready, secrets.token_bytes(32)
        self._strangers: dict[int, socket.socket] = {}  # by descriptor, in the order in which they came
        self._sock = socket.socket(socket.AF_UNIX)
        try:
            self._sock.bind("")  # Linux finds a name, which is not a file
            self._sock.listen(QUEUE)
            self._sock.setblocking(False)
            ready.register(self._sock, select.EPOLLIN)
            self.address = (self._sock.getsockname().hex(), self._token.hex())
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._sock, *self._strangers.values()):
            sock.close()

    def let_go(self) -> None:
        """In a forked child: its copies of descriptors."""
        self.__exit__()

    def hear(self, fd: int, awaited: Collection[int]) -> PeerConnection | None:
        """One descriptor can be read: who has shown the token, with one of the wires that are awaited; else None."""
        if fd == self._sock.fileno():
            self._accept(len(awaited) + STRANGERS)
        elif fd in self._strangers:  # else it was sent away since
            self._ready.unregister(fd)
            return heard(self._strangers.pop(fd), self._token, awaited)
        return None

    def _accept(self, most: int) -> None:
        sock = _accepted(self._sock)
        if sock is not None:
            if len(self._strangers) >= most:
                self._strangers.pop(next(iter(self._strangers))).close()
            self._strangers[sock.fileno()] = sock
            self._ready.register(sock, select.EPOLLIN)


def connected(name: str, token: str, wire: int, slots: int) -> socket.socket | None:
    """A connection to another rank's listener, which has been told which wire, and lent the slots, over it.

    name, token : the listener's `address`; slots : their descriptor

    None: its queue is full for now, or the kernel's of what is lent. Raises ConnectionError when it is gone, or another
    user's.
    """
    with contextlib.ExitStack() as failed:
        sock = failed.enter_context(socket.socket(socket.AF_UNIX))
        sock.setblocking(False)
        try:
            sock.connect(bytes.fromhex(name))
        except BlockingIOError:
            return None
        if not is_own(sock):
            raise ConnectionRefusedError("another user listens there")
        if not lend(sock, HELLO.pack(bytes.fromhex(token), wire), slots):
            return None
        failed.pop_all()
        return sock


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


def heard(sock: socket.socket, token: bytes, awaited: Collection[int]) -> PeerConnection | None:
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
        shown, wire = HELLO.unpack(hello)
        if not hmac.compare_digest(shown, token) or wire not in awaited:
            return None
        refuse.pop_all()
        return PeerConnection(wire, sock, fds[0])


def is_own(sock: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket was this user's when it connected, or began to listen."""
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.geteuid())
