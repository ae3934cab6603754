"""Local wires made anew, one at a time, while the others go on: see `Abilities.renew` and `join`.

The sender's end listens, the receiver's connects and lends its slots, as when ranks meet (`local_meeting`).
"""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from typing import Any

from optcc.runtime.errors import TransportError
from optcc.runtime.wires.contract import PortUp
from optcc.runtime.wires.local_ends import ReceivingEnd, SendingEnd
from optcc.runtime.wires.local_listener import LocalListener, PeerConnection, connected
from optcc.runtime.wires.local_parts import LocalParts
from optcc.runtime.wires.rings import Ring


class _Door:
    """Where the far end of one wire will connect."""

    def __init__(self) -> None:
        self._ready = select.epoll()
        self._listener = LocalListener(self._ready)
        self.address = self._listener.address

    def came(self, wire: int) -> PeerConnection | None:
        """Who has connected, if it has, for this wire."""
        while events := self._ready.poll(0):
            for fd, _ in events:
                peer = self._listener.hear(fd, (wire,))
                if peer is not None:
                    return peer
        return None

    def close(self) -> None:
        """Nobody can connect any more."""
        self._listener.__exit__()
        self._ready.close()


class LocalRenewing(LocalParts):
    """The part of `LocalWires` that does it."""

    _doors: dict[int, _Door]  # by outgoing wire: its far end has not connected yet
    _notices_to: dict[int, Ring]  # by rank: to write
    _backs_to: dict[int, Ring]  # likewise
    remade: int

    def renew(self, wire: int) -> list[Any] | None:
        """See `Abilities`."""
        ends = self._wires[wire]
        if (ends.out if ends.src == self._rank else ends.into) in self.away:
            return None
        if ends.src != self._rank:
            return []
        if wire not in self._doors:
            self._doors[wire] = _Door()
        return list(self._doors[wire].address)

    def join(self, wire: int, told: Any) -> bool:
        """See `Abilities`. Raises TransportError for what no `renew` has given."""
        self._read_rings()  # what is there belongs to the wire's former life, and goes with it
        end = self._let_in(wire) if self._wires[wire].src == self._rank else self._connected(wire, told)
        if end is None:
            return False
        self._adopt(end)
        self._join_rings([end])
        self.remade += 1
        return True

    def _let_in(self, wire: int) -> SendingEnd | None:
        door = self._doors.pop(wire, None)
        if door is None:
            return None
        peer = door.came(wire)
        door.close()
        return SendingEnd(wire, peer.sock, self._borrow(self._wires[wire].dst, peer.slots)) if peer else None

    def _connected(self, wire: int, told: Any) -> ReceivingEnd | None:
        try:
            name, token = told
            sock = connected(name, token, wire, self._slots.fd)
        except ConnectionError:
            return None
        except (TypeError, ValueError) as error:
            raise TransportError(f"not an end of a wire: {told!r}") from error
        if sock is None:
            return None
        self._slots.open_wire(wire)
        return ReceivingEnd(wire, sock)

    def _join_rings(self, ends: Sequence[SendingEnd | ReceivingEnd]) -> None:
        """These ends use them."""
        for end in ends:
            wire = self._wires[end.wire]
            if isinstance(end, SendingEnd):
                end.notices = self._notices_to[wire.dst]
            else:
                end.src, end.backs = wire.src, self._backs_to[wire.src]

    def _come_back(self, now: float) -> float:
        """NICs that have a link again, and when the next one will; inf: none."""
        for nic in [nic for nic, at in self.away.items() if at <= now]:
            del self.away[nic]
            self._news.append(PortUp(nic))
        return min(self.away.values(), default=math.inf)
