"""Where a message begins and ends in a stream: its length goes before it, as `multiprocessing.connection` does it."""

from __future__ import annotations

import asyncio
import struct

from optcc.runtime.codec import MessageError


def framed(data: bytes) -> bytes:
    """Ready to be written; `Connection.recv_bytes` of the standard library reads it."""
    return struct.pack("!i", len(data)) + data


async def read_frame(reader: asyncio.StreamReader, limit: int) -> bytes:
    """The next message. Raises MessageError when it is longer than `limit`, IncompleteReadError at the end."""
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    if not 0 <= length <= limit:
        raise MessageError(f"a message of {length} bytes, at most {limit} are taken")
    return await reader.readexactly(length)
