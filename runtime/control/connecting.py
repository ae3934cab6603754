"""How a rank and the hub reach each other and make sure of each other: frames, seals, the greeting, the connection."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import os
import secrets
import select
import socket
import struct
from collections.abc import Container
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from optcc.runtime.codec import MessageError, decode, encode
from optcc.runtime.errors import TransportError
from optcc.runtime.forks import own

# Where a message begins and ends in a stream: its length goes before it, as `multiprocessing.connection` does it.

SILENCE_S = 15
"""After so long without a sign from the other machine's kernel, or without the rest of a message, a connection is taken
to be lost."""

ONE_PIECE_BYTES = 16 << 10
"""`Connection.send_bytes` gives the kernel as many at a time, and it has room for them where the other end reads."""


def framed(data: bytes) -> bytes:
    """Ready to be written; `Connection.recv_bytes` of the standard library reads it."""
    return struct.pack("!i", len(data)) + data


def rest_s(length: int) -> float | None:
    """For the rest of a message that has begun: as long as a machine may be silent; None: for longer than that.

    What is sent in one piece comes whole, whatever its sender does then; a sender that is stopped in the middle of more
    is late, and others say so.
    """
    return SILENCE_S if length <= ONE_PIECE_BYTES else None


async def read_frame(reader: asyncio.StreamReader, limit: int) -> bytes:
    """The next message. Raises MessageError when it is longer than `limit`, IncompleteReadError at the end,
    TimeoutError where it has begun and does not go on."""

    async def exactly(count: int, seconds: float | None) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                return await reader.readexactly(count)
        except TimeoutError:  # this process may have been stopped itself: what has come meanwhile counts
            async with asyncio.timeout(RETRY_S):
                return await reader.readexactly(count)

    head = await reader.readexactly(1)
    (length,) = struct.unpack("!i", head + await exactly(3, SILENCE_S))
    if not 0 <= length <= limit:
        raise MessageError(f"a message of {length} bytes, at most {limit} are taken")
    return await exactly(length, rest_s(length))


# Who wrote a message, and that it is the next one: a keyed tag on every message between a rank and the hub.
#
# The tag is BLAKE2b with a key (RFC 7693) over the number of the message and its bytes. Each direction of each
# connection has a key of its own (`seals`) and counts from 0. So the check fails for a message that is forged,
# altered, cut short, replayed, reordered, reflected to its sender, or from another connection. It also fails for the
# message after one that was left out. Nothing is encrypted.

TAG_BYTES = 16
"""Of a tag: a guess is right once in 2^128, and the first wrong one ends the connection."""

TAMPERED = "its control channel was tampered with"
"""The cause of the verdict, the same whichever end has noticed and whatever was done."""


class TamperedError(MessageError):
    """A message is not what the other end has sent next."""


class Seal:
    """One direction of a connection, at either end.

    key : of 32 bytes; None: a pair of sockets between a process and its child, where the kernel lets in nobody else,
        and no tags are needed
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key, self._count = key, 0

    def seal(self, message: bytes) -> bytes:
        """The next message with its tag, to be sent."""
        return self._next(message) + message

    def unseal(self, data: bytes) -> bytes:
        """The message that was sealed as the next one; TamperedError for anything else."""
        if self._key is None:
            return data
        message = data[TAG_BYTES:]
        if not hmac.compare_digest(data[:TAG_BYTES], self._next(message)):
            raise TamperedError(f"message {self._count - 1} is not what the other end has sent")
        return message

    def _next(self, message: bytes) -> bytes:
        if self._key is None:
            return b""
        tag = hashlib.blake2b(self._count.to_bytes(8, "big"), digest_size=TAG_BYTES, key=self._key)
        tag.update(message)
        self._count += 1
        return tag.digest()


# How a rank and the hub make sure of each other before anything else is said: a shared secret that neither sends.
#
# The hub begins with a nonce. The rank sends its identity and a nonce, and proves the secret by an HMAC-SHA256 (RFC
# 2104). The HMAC covers its role, both nonces and everything it has claimed; the hub proves it likewise. The rank
# proves first, so that a stranger gets no proof to use elsewhere. The role is part of the proof, so that none can be
# sent back. From the same values come the keys with which all messages after the greeting are sealed (`seals`).

PROTOCOL = 10
"""Changes with every change of what is said, here and in `messages`."""

GREETING_LIMIT = 4096
"""The most bytes of one message from a stranger."""

GREETING_S = 5.0
"""For a stranger to say all of it."""


class RefusedError(TransportError):
    """The hub does not let this process in, or this process does not believe that it is the hub; the text says why."""


@dataclass(frozen=True)
class Challenge:
    """The hub to whoever connects: prove who you are, with this nonce."""

    protocol: int
    nonce: str


@dataclass(frozen=True)
class Hello:
    """A rank to the hub: who it is."""

    job: str
    rank: int
    world: int
    nonce: str


@dataclass(frozen=True)
class Introduction:
    """A rank to the hub: who it is, and the proof."""

    hello: Hello
    mac: str


@dataclass(frozen=True)
class Welcome:
    """The hub to a rank that it lets in: the hub's proof."""

    mac: str


@dataclass(frozen=True)
class Refused:
    """The hub to a stranger: go away."""

    why: str


def nonce() -> str:
    """32 hex digits that nobody has seen before."""
    return secrets.token_hex(16)


def proof(secret: bytes, role: str, hello: Hello, challenge: Challenge) -> str:
    """What only `role` ("rank" or "hub") with the secret can say in this conversation, in hex."""
    return _derived(secret, f"proof of the {role}", hello, challenge).hex()


def proves(mac: str, secret: bytes, role: str, hello: Hello, challenge: Challenge) -> bool:
    """Whether `mac` is the proof of `role`, compared in a time that does not depend on it."""
    return hmac.compare_digest(mac.encode(errors="backslashreplace"), proof(secret, role, hello, challenge).encode())


def seals(secret: bytes, hello: Hello, challenge: Challenge) -> tuple[Seal, Seal]:
    """Of this conversation, what seals the rank's messages and what seals the hub's."""
    of_rank, of_hub = (Seal(_derived(secret, f"messages of the {role}", hello, challenge)) for role in ("rank", "hub"))
    return of_rank, of_hub


def _derived(secret: bytes, purpose: str, hello: Hello, challenge: Challenge) -> bytes:
    """32 bytes for one purpose in this conversation; those for another purpose do not tell them."""
    said = [purpose, challenge.protocol, challenge.nonce, hello.job, hello.rank, hello.world, hello.nonce]
    return hmac.digest(secret, json.dumps(said).encode(), hashlib.sha256)


def objection(hello: Hello, job: str, world: int, present: Container[int]) -> str | None:
    """Why the hub of `job` does not take somebody who knows the secret; None: it does."""
    if hello.job != job:
        return f"this is job {job!r}, not {hello.job!r}"
    if hello.world != world:
        return f"this job has {world} ranks, not {hello.world}"
    if not 0 <= hello.rank < world:
        return f"rank {hello.rank} is not one of 0 to {world - 1}"
    if hello.rank in present:
        return f"rank {hello.rank} is here already"
    return None


# The connection and its time limits, the greeting at the rank's end, and messages read from it

Address = tuple[str, int]

TIMEOUT_S = 300.0
"""What a process that lives may take, where its caller says nothing else: for an operation, which all others must have
come to and finished by then; for taking a message, or sending the rest of a long one."""
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


def read_message(connection: Connection, limit: int, within_s: float) -> bytes:
    """The bytes of the next message, at most `limit`, of which the first has come. Raises HubLostError where the
    connection has ended, or no more of it comes; `within_s` : for so long, where it is not sent in one piece."""

    def exactly(count: int, seconds: float) -> bytes:
        data = bytearray()
        while len(data) < count:  # all of it may take long: the hub may have as much to send to every rank
            if not select.select([connection], [], [], None if seconds == math.inf else seconds)[0]:
                raise HubLostError(f"lost the hub: the rest of a message has not come within {seconds:.3g} s")
            more = os.read(connection.fileno(), count - len(data))
            if not more:
                raise HubLostError("lost the hub: it closed the connection")
            data += more
        return bytes(data)

    try:
        (length,) = struct.unpack("!i", exactly(4, SILENCE_S))
        if not 0 <= length <= limit:
            raise HubLostError(f"lost the hub: a message of {length} bytes, at most {limit} are taken")
        rest = rest_s(length)
        return exactly(length, within_s if rest is None else rest)
    except OSError as error:
        raise HubLostError(f"lost the hub: {error}") from error
