"""From the schedules of a job to what must be connected: NICs, wires between them, flows over the wires.

A lane of a schedule becomes a flow. Its home wire joins the lane's two NICs; its backups join all other pairs of NICs
of the two ranks that reach each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from optcc.errors import InputError
from optcc.runtime.wires.contract import FlowSpec, Wire
from optcc.runtime.wires.pacing import Rates
from optcc.schedule import Port, Schedule

SLOT_BYTES = 1 << 20
"""The most that a chunk carries. Larger chunks spread what a chunk costs beside its bytes, which is a twentieth of what
the bytes cost at this size (docs/bench-chunk.md, compiled); smaller ones fold sooner and lose less with a NIC."""

GPU_SLOT_BYTES = 4 << 20
"""The same between GPUs' memories. With chunks of 1 MiB an AllReduce at 400 Gb/s a server took a third longer, for each
chunk starts kernels (docs/hardware.md)."""

WINDOW_BYTES = 16 << 20
"""Landing slots between two ranks, one way: the rate times the time until a process comes round to its credits."""

WINDOW = (4, 64)
"""The fewest and the most landing slots of a flow."""


@dataclass(frozen=True)
class Layout:
    """What all ranks of a job connect; the same on all of them, made from the same schedules.

    nics : the ports of all schedules; a NIC's index here is its number everywhere below
    wires, flows : tables, numbered alike on all ranks
    lanes : schedule name -> route -> the flow of each of its lanes
    """

    ranks: int
    nics: tuple[Port, ...]
    wires: tuple[Wire, ...]
    flows: tuple[FlowSpec, ...]
    lanes: Mapping[str, tuple[tuple[int, ...], ...]]

    def lanes_of(self, schedule: Schedule) -> tuple[tuple[int, ...], ...] | None:
        """Route -> the flow of each of its lanes, of another schedule; None: it needs flows that are not here."""
        number = {nic: i for i, nic in enumerate(self.nics)}
        try:
            return tuple(
                tuple(
                    self._homes[route.src, route.dst, number[schedule.ports[e.out]], number[schedule.ports[e.into]]]
                    for e in route.lanes
                )
                for route in schedule.routes
            )
        except KeyError:
            return None

    @cached_property
    def _homes(self) -> dict[tuple[int, int, int, int], int]:
        """(Source, destination, NIC out, NIC in) -> the flow that has its home there."""
        homes = [self.wires[flow.wires[0]] for flow in self.flows]
        return {(wire.src, wire.dst, wire.out, wire.into): flow for flow, wire in enumerate(homes)}

    @property
    def rates(self) -> list[Rates]:
        """The rates of the NICs."""
        return [Rates(nic.out_rate, nic.in_rate) for nic in self.nics]

    @property
    def slowest_chunk_s(self) -> float:
        """The longest that one chunk keeps two NICs busy; 0 without flows."""
        wires = [self.wires[wire] for flow in self.flows for wire in flow.wires]
        slowest = min((min(self.nics[w.out].out_rate, self.nics[w.into].in_rate) for w in wires), default=0.0)
        return 2 * max(flow.slot_bytes for flow in self.flows) / slowest if slowest else 0.0


def layout_of(
    schedules: Mapping[str, Schedule],
    slot_bytes: int = SLOT_BYTES,
    granule: int = 8,
    window_bytes: int = WINDOW_BYTES,
    spare: Iterable[Port] = (),
) -> Layout:
    """The layout of a job.

    slot_bytes : the most that a chunk carries; fewer between ranks of which no transfer has as much to carry
    window_bytes : landing slots of a flow, in all; at least WINDOW[0] of them
    spare : ports that no schedule uses, by which flows may go when they have lost others

    Raises InputError when schedules name the same port with different rates.
    """
    ranks = max(schedule.ranks for schedule in schedules.values())
    nics: dict[str, Port] = {}
    for name, schedule in schedules.items():
        for port in schedule.ports:
            if nics.setdefault(port.name, port) != port:
                raise InputError(
                    "a port with two rates", where=f"{name}, {port.name}", expected=str(nics[port.name]), got=port
                )
    for port in spare:
        nics.setdefault(port.name, port)
    number = {name: i for i, name in enumerate(nics)}
    homes: dict[tuple[int, int, int, int], int] = {}
    lanes = {
        name: tuple(
            tuple(
                homes.setdefault(
                    (
                        route.src,
                        route.dst,
                        number[schedule.ports[lane.out].name],
                        number[schedule.ports[lane.into].name],
                    ),
                    len(homes),
                )
                for lane in route.lanes
            )
            for route in schedule.routes
        )
        for name, schedule in schedules.items()
    }
    ports = tuple(nics.values())
    longest = _longest_stripes(schedules.values())
    slots = {
        (src, dst): -(-min(slot_bytes, longest[src, dst]) // granule) * granule or granule for src, dst, *_ in homes
    }
    wires = _Wires(ports)
    flows = tuple(
        FlowSpec(src, dst, wires.of(src, dst, out, into), _window(slots[src, dst], window_bytes), slots[src, dst])
        for src, dst, out, into in homes
    )
    return Layout(ranks, ports, tuple(wires.table), flows, lanes)


def longest_transfer_s(schedule: Schedule) -> float:
    """Nothing need happen for so long: one transfer in turn at its sending and its receiving port, in seconds."""
    longest = 0.0
    for route, length in _kinds(schedule):
        lanes = schedule.routes[route].lanes
        for lane, (start, stop) in zip(lanes, pairwise(schedule.routes[route].cuts(length)), strict=True):
            if stop > start:
                out, into = schedule.ports[lane.out].out_rate, schedule.ports[lane.into].in_rate
                longest = max(longest, (stop - start) / out + (stop - start) / into)
    return longest


def _kinds(schedule: Schedule) -> list[tuple[int, int]]:
    """(route, length) of every kind of transfer."""
    kinds = np.unique(np.stack((schedule.route, schedule.length), axis=1), axis=0).tolist()
    return [(route, length) for route, length in kinds]


def _longest_stripes(schedules: Iterable[Schedule]) -> dict[tuple[int, int], int]:
    """The most bytes of one transfer that one lane carries, by (source, destination): flows between the same ranks
    take over from each other."""
    longest: dict[tuple[int, int], int] = defaultdict(int)
    for schedule in schedules:
        for number, length in _kinds(schedule):
            route = schedule.routes[number]
            most = max(stop - start for start, stop in pairwise(route.cuts(length)))
            longest[route.src, route.dst] = max(longest[route.src, route.dst], most)
    return longest


def _window(slot: int, nbytes: int) -> int:
    return min(max(nbytes // slot, WINDOW[0]), WINDOW[1])


class _Wires:
    """The table of wires as it grows: all that flows need, each once."""

    def __init__(self, ports: tuple[Port, ...]) -> None:
        self.table: dict[Wire, int] = {}
        self._ports = ports
        self._of_rank: dict[int, list[int]] = {}
        for i, port in enumerate(ports):
            if port.out_rate > 0 and port.in_rate > 0:
                self._of_rank.setdefault(port.rank, []).append(i)

    def of(self, src: int, dst: int, out: int, into: int) -> tuple[int, ...]:
        """The home wire, then backups: first those that share no NIC with it, since either may be the lost one.

        Backups of neighbouring lanes start at different NICs, so that not all flows of a server crowd onto one.
        """
        pairs = [
            (o, i)
            for o in self._of_rank.get(src, ())
            for i in self._of_rank.get(dst, ())
            if self._reaches(o, i) and self._ports[o].nvlink == self._ports[out].nvlink
        ]
        count = len(self._ports)
        pairs.sort(key=lambda p: ((p[0] == out) + (p[1] == into), (p[0] - out) % count, (p[1] - into) % count))
        chosen = dict.fromkeys([(out, into), *pairs])
        return tuple(self.table.setdefault(Wire(src, dst, o, i), len(self.table)) for o, i in chosen)

    def _reaches(self, out: int, into: int) -> bool:
        rails = {self._ports[out].rail, self._ports[into].rail} - {None}
        return len(rails) < 2
