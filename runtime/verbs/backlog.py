"""Until when NICs are busy with what this rank has given them, by their rates.

A NIC is given its next chunk a moment before it will be idle. Given later it would idle; much earlier, and chunks that
become ready meanwhile wait behind others that need not go yet. So that moment is as short as this machine allows: waits
that end late make it longer.

The NIC at the other end counts, too. It may be the only one left of its server, and take from several NICs of this rank
no more than from one. What it cannot take yet would only lie in the switch, for as long as soft-RoCE allows: 64 packets
of each queue pair. Acknowledgements to that NIC wait behind them, and a sender stops with 128 packets unacknowledged.
(`RXE_INFLIGHT_SKBS_PER_QP_HIGH`, `RXE_MAX_UNACKED_PSNS` in Linux 6.1, drivers/infiniband/sw/rxe/rxe_param.h; in other
fabrics the switch would stop the senders.)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from optcc.runtime.wires.contract import HEADER_BYTES
from optcc.runtime.wires.pacing import Rates

PACKET_BYTES = 58
"""Around the payload of every RoCE v2 packet: Ethernet 14, IPv4 20, UDP 8, transport header 12, checksum 4."""

PAYLOAD = 4096 / (4096 + PACKET_BYTES)
"""Part of a packet on the wire that is payload, at a path MTU of 4096. With a smaller one NICs are given work a little
too soon, to no harm."""

CHUNK_BYTES = HEADER_BYTES + PACKET_BYTES + 16 + 4
"""What a chunk takes besides: its header, by which payloads of whole packets need one more; an address, and the
immediate value."""

ACKS_BYTES = PACKET_BYTES + 4
"""And what the other end sends back, by the NIC at which it arrives: an acknowledgement."""

POST_S = 5e-6
"""From waking up until the NIC has its chunk."""

_FORGET = 1 / 64
"""How soon lateness is forgotten: by so much with every wait that ends in time."""


class Backlog:
    """Of all ports by number.

    Parameters
    ----------
    rates : None: unlimited
    early_s : the most by which a NIC is given work early

    Attributes
    ----------
    under_way : chunks that each port was given and that are not known to be done
    """

    def __init__(self, ports: int, rates: Sequence[Rates] | None, early_s: float) -> None:
        self._early_s, self._late = early_s, 0.0
        # No plan sends by a NIC whose rate is 0; should it be asked to do something even so, nothing is known of it.
        self._out = [(rates[port].out or inf) * PAYLOAD if rates else inf for port in range(ports)]
        self._into = [(rates[port].into or inf) * PAYLOAD if rates else inf for port in range(ports)]
        self._sent, self._taken = [0.0] * ports, [0.0] * ports
        self.under_way = [0] * ports

    def give(self, out: int, into: int, nbytes: int, now: float) -> None:
        """A chunk leaves by `out` for `into`, at the other end."""
        nbytes += CHUNK_BYTES
        self.under_way[out] += 1
        self._sent[out] = max(now, self._sent[out]) + nbytes / self._out[out]
        self._taken[into] = max(now, self._taken[into]) + nbytes / self._into[into]

    def arrived(self, port: int, now: float) -> None:
        """A chunk has, at `port`: if that has something to send, its acknowledgements delay it."""
        if self._sent[port] > now:
            self._sent[port] += ACKS_BYTES / self._out[port]

    def waited(self, until: float, now: float) -> None:
        """Nothing happened until the time at which a wait was to end. Waits with nothing under way do not count: how
        late one ends that was for a common start tells nothing of those in between.
        """
        if any(self.under_way):
            late = min(now - until, self._early_s)  # after a long fold it is no lateness of the wait
            self._late = max(late, self._late + (late - self._late) * _FORGET)

    def next_at(self, out: int, into: int) -> float:
        """When to give `out` its next chunk for `into`."""
        return max(self._sent[out], self._taken[into]) - min(self._early_s, max(self._late, POST_S))
