"""Replies that are kept, and one computation for all who ask the same at the same time."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec


class Replies:
    """Encoded replies, the most lately used ones up to `most` bytes."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes) -> bytes | None:
        """The reply, which counts as a use of it."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: bytes, reply: bytes) -> None:
        """Keep it, unless it alone is too large."""
        if len(reply) > self.most or key in self._kept:
            return
        self._kept[key] = reply
        self.held += len(reply)
        while self.held > self.most:
            _, gone = self._kept.popitem(last=False)
            self.held -= len(gone)


@dataclass
class _Making:
    """A reply that is being made, and how many wait for it."""

    task: asyncio.Task[bytes]
    waiting: int = 0


class SharedReplies:
    """Makes replies once: what is kept is given again, and who asks for what is being made waits for that.

    When the last one who waits is cancelled, so is the making.
    """

    def __init__(self, kept: Replies) -> None:
        self.kept = kept
        self._making: dict[bytes, _Making] = {}

    async def get(self, kind: bytes, request: Any, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The reply to `request`, whose JSON is its key among those of its `kind`."""
        key = hashlib.sha256(kind + msgspec.json.encode(request)).digest()
        kept = self.kept.get(key)
        if kept is not None:
            return kept
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = _Making(asyncio.create_task(self._make(key, make)))
            # An error that nobody waits for is no defect to be reported.
            making.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        making.waiting += 1
        try:
            return await asyncio.shield(making.task)
        finally:
            making.waiting -= 1
            if not making.waiting or making.task.done():
                making.task.cancel()
                if self._making.get(key) is making:  # whoever asks from now on begins anew
                    del self._making[key]

    async def _make(self, key: bytes, make: Callable[[], Awaitable[bytes]]) -> bytes:
        reply = await make()
        self.kept.put(key, reply)
        return reply
