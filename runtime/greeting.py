"""How a rank and the hub make sure of each other before anything else is said: a shared secret that neither sends.

The rank says who it is and adds a nonce; the hub answers with a nonce of its own; each then proves the secret by an
HMAC-SHA256 (RFC 2104) over its own role, both nonces and all that the rank has said of itself. The rank proves first,
so that a stranger gets no proof to use elsewhere. The role is part of the proof, so that none can be sent back.
What follows is authentic as far as the network does not let others write into a TCP connection; it is not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Container
from dataclasses import dataclass

from optcc.runtime.errors import TransportError

PROTOCOL = 2
"""Changes with every change of what is said, here and in `messages`."""

GREETING_LIMIT = 4096
"""The most bytes of one message from a stranger."""

GREETING_S = 5.0
"""For a stranger to say all of it."""


class RefusedError(TransportError):
    """The hub does not let this process in, or this process does not believe that it is the hub; the text says why."""


@dataclass(frozen=True)
class Hello:
    """A rank to the hub: who it is."""

    protocol: int
    job: str
    rank: int
    world: int
    nonce: str


@dataclass(frozen=True)
class Challenge:
    """The hub to a rank: prove it, with this nonce."""

    nonce: str


@dataclass(frozen=True)
class Proof:
    """Either to the other: it knows the secret."""

    mac: str


@dataclass(frozen=True)
class Refused:
    """The hub to a stranger: go away."""

    why: str


def nonce() -> str:
    """32 hex digits that nobody has seen before."""
    return secrets.token_hex(16)


def proof(secret: bytes, role: str, hello: Hello, challenge: Challenge) -> Proof:
    """What only `role` ("rank" or "hub") with the secret can say in this conversation."""
    said = [role, challenge.nonce, hello.protocol, hello.job, hello.rank, hello.world, hello.nonce]
    return Proof(hmac.new(secret, json.dumps(said).encode(), hashlib.sha256).hexdigest())


def proves(given: Proof, secret: bytes, role: str, hello: Hello, challenge: Challenge) -> bool:
    """Whether `given` is the proof of `role`, compared in a time that does not depend on it."""
    return hmac.compare_digest(
        given.mac.encode(errors="backslashreplace"), proof(secret, role, hello, challenge).mac.encode()
    )


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
