"""How a rank reaches the hub: the connection and its time limits, the greeting, and messages read from it."""

from __future__ import annotations

import socket
import struct
from multiprocessing.connection import Connection
from typing import Any

from optcc.runtime.codec import MessageError, decode, encode
from optcc.runtime.control.greeting import (
    GREETING_LIMIT,
    GREETING_S,
    PROTOCOL,
    Challenge,
    Hello,
    Introduction,
    Refused,
    RefusedError,
    Welcome,
    proof,
    proves,
    seals,
)
from optcc.runtime.control.seals import Seal
from optcc.runtime.errors import TransportError
from optcc.runtime.forks import own

Address = tuple[str, int]

TIMEOUT_S = 300.0
"""What a process that lives may take, where its caller says nothing else: for an operation, which all others must have
come to and finished by then; for taking a message, or sending the rest of one that it has begun."""
SILENCE_S = 15
"""After so long without a sign from the other machine's kernel, a connection is taken to be lost."""
RETRY_S = 0.1
"""Between two attempts to reach a hub that is not there yet."""


class HubLostError(TransportError):
    """The control channel ended: the hub is gone, cannot be reached, or does not speak this protocol."""


def prepare(sock: socket.socket) -> None:
    """Send small messages at once, and have the kernel notice within about SILENCE_S that the other machine is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": SILENCE_S // 3, "TCP_KEEPINTVL": SILENCE_S // 3, "TCP_KEEPCNT": 2}
    for name, value in {**options, "TCP_USER_TIMEOUT": 1000 * SILENCE_S}.items():
        if hasattr(socket, name):  # Linux; elsewhere the system's own timeout counts
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def connect(address: Address, within_s: float) -> Connection:
    """A connection to the hub, whose waits end after `within_s` seconds. OSError when none is there GREETING_S long."""
    with socket.create_connection(address, min(GREETING_S, within_s)) as sock:
        sock.setblocking(True)
        prepare(sock)
        limit_waits(sock, within_s)
        return own(Connection(sock.detach()))


def limit_waits(sock: socket.socket, within_s: float) -> None:
    """Let the kernel end every read and write on it after so many seconds."""
    timeout = struct.pack("ll", int(within_s), int(within_s % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)


def introduce(connection: Connection, secret: bytes, hello: Hello) -> tuple[Seal, Seal]:
    """Both sides' proofs, then the seals of the rank's and of the hub's messages.

    EOFError or OSError when the hub ends it without a reason: it may not be ready, or a crowd is at its door.
    """

    def hear(kind: type) -> Any:
        answer = decoded(connection.recv_bytes(GREETING_LIMIT), (kind, Refused))
        if isinstance(answer, Refused):
            raise RefusedError(f"the hub refuses rank {hello.rank}: {answer.why}")
        return answer

    challenge: Challenge = hear(Challenge)
    if challenge.protocol != PROTOCOL:
        raise RefusedError(
            f"the hub speaks protocol {challenge.protocol}, rank {hello.rank} protocol {PROTOCOL}: "
            "run the same version of optcc everywhere"
        )
    connection.send_bytes(encode(Introduction(hello, proof(secret, "rank", hello, challenge))))
    if not proves(hear(Welcome).mac, secret, "hub", hello, challenge):
        raise RefusedError("what answers as the hub does not know the secret of this job")
    return seals(secret, hello, challenge)


def decoded(data: bytes, allowed: tuple[type, ...]) -> Any:
    """A message of one of the kinds `allowed`. Raises HubLostError for anything else."""
    try:
        return decode(data, allowed)
    except MessageError as error:
        raise HubLostError(f"the hub has sent nonsense: {error}") from error


def read_message(connection: Connection, limit: int) -> bytes:
    """The bytes of the next message, at most `limit`. Raises HubLostError where the connection has ended."""
    try:
        return connection.recv_bytes(limit)
    except EOFError:
        raise HubLostError("lost the hub: it closed the connection") from None
    except OSError as error:  # also when the rest of a message does not come: BlockingIOError
        raise HubLostError(f"lost the hub: {error}") from error
