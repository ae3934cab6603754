"""What asynchronous events say about a rank's NICs. They come without the number of the port or queue pair meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from optcc.runtime.errors import TransportError
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.structs import (
    EVENT_CQ_ERR,
    EVENT_DEVICE_FATAL,
    EVENT_PORT_ACTIVE,
    EVENT_PORT_ERR,
    EVENT_QP_ACCESS_ERR,
    EVENT_QP_FATAL,
    EVENT_QP_REQ_ERR,
)
from optcc.runtime.wires.contract import Cause, PortDown, PortUp

_QUEUE_PAIR = frozenset((EVENT_QP_FATAL, EVENT_QP_REQ_ERR, EVENT_QP_ACCESS_ERR))


class PortChange(NamedTuple):
    """Of one NIC: its port, in order; whether the device is gone; whether some queue pair has failed."""

    port: list[PortDown | PortUp]
    gone: bool
    queue_pairs: bool


class PortStates:
    """The state of every port as told so far."""

    def __init__(self, nics: Mapping[int, VerbsNic]) -> None:
        self._up = {index: nic.active for index, nic in nics.items()}

    def without_link(self, nics: Mapping[int, VerbsNic]) -> list[PortDown]:
        """The ports that were down when they were opened."""
        return [_down(nics[index]) for index, up in self._up.items() if not up]

    def read(self, nic: VerbsNic) -> PortChange:
        """Take all events that are there. Raises TransportError for the overrun of a completion queue."""
        port: list[PortDown | PortUp] = []
        events = nic.events()
        if EVENT_CQ_ERR in events:
            raise TransportError(f"{nic.address.device}: its completion queue has overrun; this is a bug")
        for event in events:
            if event not in (EVENT_PORT_ERR, EVENT_PORT_ACTIVE):
                continue
            # A device of one port means that one; not even the shortest flap is missed. Of more, ask.
            up = event == EVENT_PORT_ACTIVE if nic.ports == 1 else nic.is_active()
            if up != self._up[nic.index]:
                self._up[nic.index] = up
                port.append(PortUp(nic.index) if up else _down(nic))
        return PortChange(port, EVENT_DEVICE_FATAL in events, any(event in _QUEUE_PAIR for event in events))


def _down(nic: VerbsNic) -> PortDown:
    return PortDown(nic.index, Cause.PORT, f"{nic.address.device} port {nic.address.port} has no link")
