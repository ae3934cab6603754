"""Chains of work requests: arrays of C structures that one call posts.

A chunk is one request: an RDMA write with immediate value, of two elements, header and payload, each read from where it
lies. So payload and notification need no second request, and nothing is copied but the header's 64 bytes. (A header
sent inline would need a request and a packet of its own.) A credit is such a write of no bytes: there is nothing to put
inline.
"""

from __future__ import annotations

import ctypes
from socket import htonl
from struct import Struct
from typing import NamedTuple

from optcc.runtime.verbs.binding import VerbsError
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.queue_pair import QueuePair
from optcc.runtime.verbs.structs import (
    RECEIVE_REQUEST,
    SEND_ELEMENTS,
    SEND_FLAGS,
    SEND_NEXT,
    SEND_REQUEST,
    SEND_SIGNALED,
)

_NEXT, _FLAGS = Struct("=Q"), Struct("=I")

CHAIN = 32
"""Requests posted by one call at most: 5 KiB, which stays in the processor's first cache."""

RECEIVE = 0
"""Number of every receive; sends are numbered from 1."""


class Element(NamedTuple):
    """A piece of memory of this rank: address, bytes, local key."""

    address: int
    nbytes: int
    key: int


NOTHING = Element(0, 0, 0)


class SendChain:
    """Requests of one queue pair that will be posted together. `length` : how many there are."""

    def __init__(self, nic: VerbsNic, queue_pair: QueuePair) -> None:
        self._post, self._queue_pair = nic.calls.post_send, queue_pair
        size = SEND_REQUEST.size
        self._memory = ctypes.create_string_buffer(CHAIN * size)
        self._at = ctypes.addressof(self._memory)
        self._next = [self._at + (i + 1) * size for i in range(CHAIN)]
        self._elements = [self._at + i * size + SEND_ELEMENTS for i in range(CHAIN)]
        self._bad = ctypes.c_void_p()
        self._bad_at = ctypes.addressof(self._bad)
        self.length = 0

    def add(
        self,
        serial: int,
        operation: int,
        to: int,
        key: int,
        immediate: int = 0,
        first: Element = NOTHING,
        second: Element = NOTHING,
    ) -> None:
        """One more, numbered `serial`, between this rank's elements and the far end's memory at `to`.

        Elements of no bytes are left out.
        """
        i = self.length
        SEND_REQUEST.pack_into(
            self._memory,
            i * SEND_REQUEST.size,
            serial,
            self._next[i],
            self._elements[i],
            (first[1] > 0) + (second[1] > 0),
            operation,
            0,
            htonl(immediate),
            to,
            key,
            *first,
            *second,
        )
        self.length = i + 1

    def post(self, signalled: bool) -> None:
        """Post all, in one call; the last one asks for a completion, or none. Raises VerbsError."""
        last = (self.length - 1) * SEND_REQUEST.size
        _NEXT.pack_into(self._memory, last + SEND_NEXT, 0)
        if signalled:
            _FLAGS.pack_into(self._memory, last + SEND_FLAGS, SEND_SIGNALED)
        self.length = 0
        failed = self._post(self._queue_pair.address, self._at, self._bad_at)
        if failed:
            raise VerbsError("ibv_post_send", abs(failed))


class ReceiveChain:
    """Receives of a NIC's queue pairs. All are alike: they take an immediate value and no bytes."""

    def __init__(self, nic: VerbsNic) -> None:
        self._post = nic.calls.post_receive
        size = RECEIVE_REQUEST.size
        self._memory = ctypes.create_string_buffer(CHAIN * size)
        self._at = ctypes.addressof(self._memory)
        for i in range(CHAIN):
            following = self._at + (i + 1) * size if i + 1 < CHAIN else 0
            RECEIVE_REQUEST.pack_into(self._memory, i * size, RECEIVE, following, 0, 0)
        self._bad = ctypes.c_void_p()
        self._bad_at = ctypes.addressof(self._bad)

    def post(self, queue_pair: QueuePair, count: int) -> None:
        """Post so many: the end of the chain, so that its links need not change. Raises VerbsError."""
        while count:
            some = min(count, CHAIN)
            failed = self._post(queue_pair.address, self._at + (CHAIN - some) * RECEIVE_REQUEST.size, self._bad_at)
            if failed:
                raise VerbsError("ibv_post_recv", abs(failed))
            count -= some
