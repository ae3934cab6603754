"""One port of one RDMA device, opened: its completions, its events, and the memory registered on it."""

from __future__ import annotations

from typing import Any, Self

from optcc.machine.rdma import NicAddress
from optcc.runtime.verbs.binding import CQ, MR, PD, PyverbsError, async_events, enums, open_channel, open_device

_BATCH = 64
"""Completions asked for at once."""


class VerbsNic:
    """Context, protection domain, completion queue with its channel, memory regions. Close queue pairs first.

    Attributes
    ----------
    fds : descriptors of completions and of asynchronous events
    memory : the rank's own memory; payload : what `register` was given last (None before)
    """

    def __init__(self, index: int, address: NicAddress, completions: int, base: int, size: int) -> None:
        self.index, self.address = index, address
        self._open: list[Any] = []
        try:
            self.context, self.events_fd = open_device(address.device)
            self._open.append(self.context)
            port = self.context.query_port(address.port)
            self.lid, self.mtu, self.active = port.lid, port.active_mtu, port.state == enums.IBV_PORT_ACTIVE
            self.ports = self.context.query_device().phys_port_cnt
            self.gid = (
                "" if address.gid_index is None else str(self.context.query_gid(address.port, address.gid_index).gid)
            )
            self.pd = self._keep(PD(self.context))
            self._channel, self.completions_fd = open_channel(self.context)
            self._keep(self._channel)
            self.cq = self._keep(CQ(self.context, completions, None, self._channel, 0))
            self._armed = False
            self.arms()
            remote = enums.IBV_ACCESS_REMOTE_WRITE | enums.IBV_ACCESS_REMOTE_READ
            self.memory = self._keep(MR(self.pd, size, enums.IBV_ACCESS_LOCAL_WRITE | remote, address=base))
            self.payload: Any = None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, base: int, size: int) -> None:
        """Let payloads lie here, instead of where they lay before."""
        if self.payload is not None:
            self.payload.close()
            self.payload = None
        self.payload = MR(self.pd, size, enums.IBV_ACCESS_LOCAL_WRITE, address=base)

    def arms(self) -> bool:
        """Ask for an event with the next completion; False: that was so already. If not, poll the queue once more."""
        if self._armed:
            return False
        self.cq.req_notify()
        self._armed = True
        return True

    def take_event(self) -> None:
        """Take the event off the channel. There is no other until the next `arms`."""
        try:
            self._channel.get_cq_event(self.cq)
        except PyverbsError:
            return  # it was not for us: nothing to read
        self.cq.ack_events(1)
        self._armed = False

    def rearm(self) -> None:
        """Take the event off the channel and ask for the next; poll the queue after this until it is empty."""
        self.take_event()
        self.arms()

    def completions(self) -> list[Any]:
        """All completions that are there."""
        found: list[Any] = []
        while True:
            count, some = self.cq.poll(_BATCH)
            found += some
            if count < _BATCH:
                return found

    def events(self) -> list[int]:
        """Types of all asynchronous events that are there."""
        return async_events(self.context)

    def is_active(self) -> bool:
        """Whether the port has a link, by asking."""
        return bool(self.context.query_port(self.address.port).state == enums.IBV_PORT_ACTIVE)

    def close(self) -> None:
        """Close everything, children first."""
        if getattr(self, "payload", None) is not None:
            self.payload.close()
            self.payload = None
        while self._open:
            self._open.pop().close()

    def _keep(self, thing: Any) -> Any:
        self._open.append(thing)
        return thing
