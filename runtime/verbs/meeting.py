"""How ranks' ends of wires come together: open NICs, make queue pairs, tell each other, connect."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optcc.machine.rdma import NicAddress
from optcc.runtime.errors import TransportError
from optcc.runtime.verbs.binding import VerbsError
from optcc.runtime.verbs.closing import close_each
from optcc.runtime.verbs.end import End
from optcc.runtime.verbs.layout import depth, receives
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.queue_pair import Endpoint
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.wires.contract import Cause, FlowSpec, Wire

Exchange = Callable[[Any], list[Any]]
"""Gives every rank's value (of JSON) to all ranks, in order of rank; waits for all of them."""

PACKETS = 1 << 24  # packet sequence numbers have 24 bits


@dataclass
class OpenedEnds:
    """What has been opened, by index of NIC and of wire; wires that could not be, with cause and detail.

    Close it whatever happened: ends before NICs.
    """

    nics: dict[int, VerbsNic] = field(default_factory=dict)
    ends: dict[int, End] = field(default_factory=dict)
    lost: dict[int, tuple[Cause, str]] = field(default_factory=dict)
    absent: dict[int, str] = field(default_factory=dict)  # NICs that could not be opened, and why

    def give_up(self, wire: int, cause: Cause, why: str) -> None:
        """This wire never was."""
        end = self.ends.pop(wire, None)
        if end is not None:
            end.close()
        self.lost.setdefault(wire, (cause, why))

    def close(self) -> None:
        """Everything, children first. Raises VerbsError for what could not be, after all has been tried."""
        closing = [*(end.close for end in self.ends.values()), *(nic.close for nic in self.nics.values())]
        self.ends.clear()
        self.nics.clear()
        close_each("queue pairs and NICs", closing)


def open_ends(
    opened: OpenedEnds,
    rank: int,
    wires: Sequence[Wire],
    flows: Sequence[FlowSpec],
    nics: Mapping[int, NicAddress],
    memory: tuple[int, int],
    settings: VerbsSettings,
) -> None:
    """Open the NICs that wires of `rank` need and make its ends; `memory` (address, bytes) is what peers write to.

    A NIC that cannot be opened is lost, with its wires. Raises TransportError for an end that cannot be made on a NIC
    that works: a limit is too low, which the wires that could be made would hide.
    """
    ports: dict[int, list[int]] = {}
    for w, wire in enumerate(wires):
        if rank in (wire.src, wire.dst):
            ports.setdefault(own_port(rank, wire), []).append(w)
    for port, using in ports.items():
        deep = {w: depth(w, flows) for w in using}
        come = {w: receives(w, flows) for w in using}
        try:
            if port not in nics:
                raise VerbsError("no such NIC here")
            # Chunks and credits are twice the depth at most. All come back when flushed; so do receives, and a fence
            # adds a mark.
            most = sum(2 * deep[w] + come[w] + 1 for w in using)
            opened.nics[port] = VerbsNic(port, nics[port], most, *memory)
        except VerbsError as why:
            opened.absent[port] = str(why)
            for w in using:
                opened.give_up(w, Cause.DEVICE, str(why))
            continue
        for w in using:
            first, sends, nic = secrets.randbelow(PACKETS), 2 * deep[w], opened.nics[port]
            try:
                opened.ends[w] = End(w, nic, sends, come[w], first, settings)
            except VerbsError as why:
                raise TransportError(
                    f"wire {w} from rank {wires[w].src} to rank {wires[w].dst} gets no queue pair on "
                    f"{nic.address.device}: {why}. It asks for {sends + 1} sends and {come[w]} receives, beside "
                    f"{len(opened.ends)} wires of this rank that have theirs: compare the device's limits (max_qp and "
                    "max_qp_wr of ibv_devinfo -v), and the memory that a process may lock (ulimit -l)"
                ) from why


def connect_ends(
    opened: OpenedEnds, rank: int, wires: Sequence[Wire], base: int, exchange: Exchange, settings: VerbsSettings
) -> None:
    """Connect every end to its far end. Both ends of a wire are given up where one of them has failed."""
    told = exchange(
        {
            "base": base,
            "keys": [[port, nic.memory.rkey] for port, nic in opened.nics.items()],
            "ends": [[w, *end.endpoint] for w, end in opened.ends.items()],
        }
    )
    endpoints = [{w: Endpoint(*rest) for w, *rest in told[r]["ends"]} for r in range(len(told))]
    keys = [dict(told[r]["keys"]) for r in range(len(told))]
    for w, end in list(opened.ends.items()):
        wire = wires[w]
        far, port = (wire.dst, wire.into) if wire.src == rank else (wire.src, wire.out)
        if w not in endpoints[far]:
            opened.give_up(w, Cause.NOTICE, f"rank {far} has no such NIC")
            continue
        try:
            end.connect(endpoints[far][w], (told[far]["base"], keys[far][port]), settings)
        except VerbsError as why:
            opened.give_up(w, Cause.ERROR, f"cannot be connected: {why}")
    for far, lost in enumerate(exchange(sorted(opened.lost))):
        for w in lost:
            if far != rank and rank in (wires[w].src, wires[w].dst):
                opened.give_up(w, Cause.NOTICE, f"rank {far} could not connect it")


def own_port(rank: int, wire: Wire) -> int:
    """The port of `rank` that a wire of its own uses."""
    return wire.out if wire.src == rank else wire.into
