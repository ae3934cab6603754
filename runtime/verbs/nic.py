"""One port of one RDMA device, opened: its completions, its events, and the memory registered on it."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Self

from optcc.machine.rdma import NicAddress
from optcc.runtime.verbs.binding import (
    VerbsError,
    ack_async_event,
    ack_cq_events,
    async_fd,
    call,
    channel_fd,
    hot_calls,
    make,
    open_device,
    ports_of,
)
from optcc.runtime.verbs.closing import close_each, closed_if_it_fails
from optcc.runtime.verbs.memory_region import LOCAL, REMOTE, MemoryRegion
from optcc.runtime.verbs.structs import COMPLETION, PORT_ACTIVE, AsyncEvent, Completion, PortAttributes

_BATCH = 64
"""Completions asked for at once: 3 KiB."""


class VerbsNic:
    """Context, protection domain, completion queue with its channel, memory regions. Close queue pairs first.

    Attributes
    ----------
    completions_fd, events_fd : descriptors of completions and of asynchronous events
    memory : the rank's own memory; payload_key : names what `register` was given last (0 before: no NIC reads by that)
    calls : the device's own functions for posting
    left : which of the completions polled last nobody has read: from, to
    """

    def __init__(self, index: int, address: NicAddress, completions: int, base: int, size: int) -> None:
        self.index, self.address = index, address
        self._open: list[Callable[[], None]] = []
        self.payload_key, self._payload = 0, list[MemoryRegion]()
        with closed_if_it_fails(self.close):
            self.context = open_device(address.device)
            self._later("ibv_close_device", self.context)
            self.calls = hot_calls(self.context)
            self.events_fd = async_fd(self.context)
            os.set_blocking(self.events_fd, False)
            self.active = self.refresh()
            self.ports = ports_of(self.context)
            self.domain = make("ibv_alloc_pd", self.context)
            self._later("ibv_dealloc_pd", self.domain)
            self._channel = make("ibv_create_comp_channel", self.context)
            self._later("ibv_destroy_comp_channel", self._channel)
            self.completions_fd = channel_fd(self._channel)
            os.set_blocking(self.completions_fd, False)
            self.queue = make("ibv_create_cq", self.context, completions, None, self._channel, 0)
            self._later("ibv_destroy_cq", self.queue)
            self._polled = ctypes.create_string_buffer(_BATCH * COMPLETION.size)
            self._polled_at, self._polled_view = ctypes.addressof(self._polled), memoryview(self._polled)
            self.left = (0, 0)
            self._armed = False
            self.arms()
            self.memory = MemoryRegion.of(self.domain, base, size, REMOTE)
            self._open.append(self.memory.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, base: int, size: int) -> None:
        """Let payloads lie here, instead of where they lay before. Raises VerbsError."""
        self._forget_payload()
        payload = MemoryRegion.of(self.domain, base, size, LOCAL)
        self.payload_key = payload.lkey
        self._payload.append(payload)

    def arms(self) -> bool:
        """Ask for an event with the next completion; False: that was so already. If not, poll the queue once more."""
        if self._armed:
            return False
        failed = self.calls.notify(self.queue, 0)
        if failed:
            raise VerbsError("ibv_req_notify_cq", failed)
        self._armed = True
        return True

    def take_event(self) -> None:
        """Take the event off the channel. There is no other until the next `arms`."""
        queue, context = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            call("ibv_get_cq_event", self._channel, ctypes.byref(queue), ctypes.byref(context))
        except VerbsError:
            return  # it was not for us: nothing to read
        ack_cq_events(self.queue, 1)
        self._armed = False

    def rearm(self) -> None:
        """Take the event off the channel and ask for the next; poll the queue after this until it is empty."""
        self.take_event()
        self.arms()

    def completions(self) -> list[Completion]:
        """All completions that are there. Raises VerbsError."""
        (at, to), self.left = self.left, (0, 0)
        found = [*self._read(at, to)]
        while True:
            count = self.calls.poll(self.queue, _BATCH, self._polled_at)
            if count < 0:
                raise VerbsError("ibv_poll_cq", -count)
            if count:
                found += self._read(0, count)
            if count < _BATCH:
                return found

    def _read(self, at: int, to: int) -> Iterable[Completion]:
        """These of the completions polled last."""
        size = COMPLETION.size
        return map(Completion._make, COMPLETION.iter_unpack(self._polled_view[at * size : to * size]))

    def events(self) -> list[int]:
        """Types of all asynchronous events that are there."""
        found: list[int] = []
        event = AsyncEvent()
        while True:
            try:
                call("ibv_get_async_event", self.context, ctypes.byref(event))
            except VerbsError as error:
                if error.number == errno.EAGAIN:
                    return found
                raise
            found.append(event.event_type)
            ack_async_event(ctypes.byref(event))

    def refresh(self) -> bool:
        """How others reach it, by asking: `lid`, `mtu`, `gid`. Whether the port has a link. Raises VerbsError."""
        port, where = self._port(), self.address
        self.lid, self.mtu = port.lid, port.active_mtu
        self.gid = "" if where.gid_index is None else self._gid(where.port, where.gid_index)
        return bool(port.state == PORT_ACTIVE)

    def is_active(self) -> bool:
        """Whether the port has a link, by asking."""
        return bool(self._port().state == PORT_ACTIVE)

    def close(self) -> None:
        """Close everything, children first. Raises VerbsError for what could not be, after all has been tried."""
        closing, self._open = [self._forget_payload, *reversed(self._open)], []
        close_each(self.address.device, closing)

    def _forget_payload(self) -> None:
        self.payload_key = 0
        while self._payload:
            self._payload.pop().close()

    def _later(self, name: str, thing: int) -> None:
        """Call this when all is closed."""
        self._open.append(partial(call, name, thing))

    def _port(self) -> PortAttributes:
        port = PortAttributes()
        call("ibv_query_port", self.context, self.address.port, ctypes.byref(port))
        return port

    def _gid(self, port: int, index: int) -> str:
        """As IPv6 text."""
        gid = ctypes.create_string_buffer(16)
        call("ibv_query_gid", self.context, port, index, gid)
        return str(ipaddress.IPv6Address(gid.raw))
