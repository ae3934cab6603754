"""How a rank and the hub make sure of each other before anything else is said: a shared secret that neither sends.

The hub begins with a nonce. The rank sends its identity and a nonce, and proves the secret by an HMAC-SHA256 (RFC
2104). The HMAC covers its role, both nonces and everything it has claimed; the hub proves it likewise. The rank proves
first, so that a stranger gets no proof to use elsewhere. The role is part of the proof, so that none can be sent back.
From the same values come the keys with which all messages after the greeting are sealed (`seals`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Container
from dataclasses import dataclass

from optcc.runtime.control.seals import Seal
from optcc.runtime.errors import TransportError

PROTOCOL = 7
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
