"""Who wrote a message, and that it is the next one: a keyed tag on every message between a rank and the hub.

The tag is BLAKE2b with a key (RFC 7693) over the number of the message and its bytes. Each direction of each connection
has a key of its own (`greeting.seals`) and counts from 0. So the check fails for a message that is forged, altered, cut
short, replayed, reordered, reflected to its sender, or from another connection. It also fails for the message after one
that was left out. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac

from optcc.runtime.codec import MessageError

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
