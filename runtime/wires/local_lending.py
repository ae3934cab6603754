"""Descriptors that ranks of a machine lend each other over a Unix socket: of slots, and of the buffer sent from."""

from __future__ import annotations

import errno
import os
import socket

from optcc.runtime.errors import PeerLostError

_BUFFER = b"b"
"""What goes with a buffer's descriptor, for a message must have a byte."""


def lend(sock: socket.socket, said: bytes, fd: int) -> bool:
    """Lend a descriptor; False where as many are lent as may be until others take theirs (unix(7))."""
    try:
        socket.send_fds(sock, [said], [fd])
    except OSError as error:
        if error.errno == errno.ETOOMANYREFS:
            return False
        raise
    return True


def lend_buffer(rank: int, sock: socket.socket, buffer: int) -> bool:
    """Lend another rank this one's buffer; as `lend`. Raises PeerLostError when it is gone."""
    try:
        return lend(sock, _BUFFER, buffer)
    except ConnectionError as error:
        raise PeerLostError(rank, f"is gone before a buffer was lent to it: {error}") from error


def borrow_buffer(rank: int, sock: socket.socket) -> int:
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
