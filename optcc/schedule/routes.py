"""Which NICs carry a transfer: the live ones of both ranks, in proportion to their rates, within the fabric's
limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from optcc.cluster import Cluster, Nic
from optcc.errors import InfeasibleError
from optcc.schedule.columns import Lane, Route, Schedule, ports_of


@dataclass(frozen=True)
class _Port:
    index: int
    rail: int
    nic: Nic


class Routes:
    """Routes made on demand: each rank's live NICs share every transfer in proportion to their rates.

    The sender's NICs cut the transfer by their out rates, the receiver's by their in rates; each overlap of the
    two cuts is a lane, so that k and l NICs meet in at most k + l - 1 lanes and all end together. On rails this is
    done rail by rail, each rail in proportion to what it can carry between the two; only ranks that share no rail
    use the spine.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.ports = ports_of(cluster)
        self._fabric = cluster.fabric
        self._names = [rank.name for rank in cluster.ranks]
        self._ports: list[list[_Port]] = []
        index = 0
        for rank in cluster.ranks:
            mine = []
            for i, nic in enumerate(rank.nics):
                if nic.alive:
                    mine.append(_Port(index, nic.rail if nic.rail is not None else i, nic))
                    index += 1
            self._ports.append(mine)
        self._index: dict[tuple[int, int], int] = {}
        self.table: list[Route] = []

    def __call__(self, src: int, dst: int) -> int:
        """Index of the route from rank `src` to rank `dst`. Raises InfeasibleError when there is none."""
        index = self._index.get((src, dst))
        if index is None:
            index = self._index[src, dst] = len(self.table)
            self.table.append(Route(src, dst, tuple(self._lanes(src, dst))))
        return index

    def _lanes(self, src: int, dst: int) -> Iterator[Lane]:
        leaving = [(p, p.nic.out_rate) for p in self._ports[src] if p.nic.out_rate]
        entering = [(p, p.nic.in_rate) for p in self._ports[dst] if p.nic.in_rate]
        for name, found in ((self._names[src], leaving), (self._names[dst], entering)):
            if not found:
                raise InfeasibleError(
                    "no AllReduce is possible", where=name, expected="a live NIC each way", got="none"
                )
        if not self._fabric.rails:
            yield from _overlay(leaving, entering, Fraction(1))
            return
        rails = {}
        for rail in sorted({p.rail for p, _ in leaving} & {p.rail for p, _ in entering}):
            out, into = [x for x in leaving if x[0].rail == rail], [x for x in entering if x[0].rail == rail]
            width = min(sum((rate for _, rate in side), Fraction(0)) for side in (out, into))
            rails[rail] = (width, out, into)
        total = sum((width for width, _, _ in rails.values()), Fraction(0))
        for width, out, into in rails.values():
            yield from _overlay(out, into, width / total)
        if not rails:
            if self._fabric.spine is None:
                raise InfeasibleError(
                    "no way between two ranks that a ring would make neighbours",
                    where=f"{self._names[src]} to {self._names[dst]}",
                    expected="a rail with a live NIC on both",
                    got="none, and no spine",
                    hint="The bound still holds; rings need a rail in common between neighbours.",
                )
            yield from _overlay(leaving, entering, Fraction(1))


def _overlay(
    leaving: list[tuple[_Port, Fraction]], entering: list[tuple[_Port, Fraction]], share: Fraction
) -> Iterator[Lane]:
    """Lanes that carry `share` of a transfer, cut on both sides in proportion to the rates."""
    outs, ins = _cumulative(leaving), _cumulative(entering)
    at, i, j = Fraction(0), 0, 0
    while at < 1:
        end = min(outs[i][1], ins[j][1])
        yield Lane(outs[i][0], ins[j][0], (end - at) * share)
        at, i, j = end, i + (outs[i][1] == end), j + (ins[j][1] == end)


def _cumulative(ports: list[tuple[_Port, Fraction]]) -> list[tuple[int, Fraction]]:
    """(port, cumulative share) of the ports; the last share is exactly 1."""
    total, done, cuts = sum((rate for _, rate in ports), Fraction(0)), Fraction(0), []
    for port, rate in ports:
        done += rate
        cuts.append((port.index, done / total))
    return cuts


def crosses_shared_links(table: list[Route], cluster: Cluster) -> bool:
    """Does any lane use a spine link or an oversubscribed pod's uplink?"""
    fabric, ranks = cluster.fabric, cluster.ranks
    rails = [nic.rail if nic.rail is not None else i for r in ranks for i, nic in enumerate(r.nics) if nic.alive]
    for route in table:
        a, b = (cluster.servers[ranks[r].server].pod for r in (route.src, route.dst))
        if a != b and fabric.pod_oversubscription is not None:
            return True
        if fabric.rails and any(rails[lane.out] != rails[lane.into] for lane in route.lanes):
            return True
    return False


def fluid_seconds(schedule: Schedule, cluster: Cluster) -> Fraction:
    """Seconds that the busiest port, spine link or uplink needs for all its bytes: the schedule's time with perfect
    overlap and no latency. `cluster` is the one that the schedule was lowered for.
    """
    fabric, ranks = cluster.fabric, cluster.ranks
    ports = [
        (r.index, nic, nic.rail if nic.rail is not None else i)
        for r in ranks
        for i, nic in enumerate(r.nics)
        if nic.alive
    ]
    rates: dict[tuple[str, object, str], Fraction] = {}
    load: dict[tuple[str, object, str], Fraction] = {}

    def use(kind: str, which: object, way: str, rate: Fraction, nbytes: Fraction) -> None:
        rates[kind, which, way] = rate
        load[kind, which, way] = load.get((kind, which, way), Fraction(0)) + nbytes

    moved = np.bincount(schedule.route, schedule.length, len(schedule.routes))
    for route, nbytes in zip(schedule.routes, moved.tolist(), strict=True):
        pods = [cluster.servers[ranks[r].server].pod for r in (route.src, route.dst)]
        for lane in route.lanes:
            part = lane.share * round(nbytes)
            ends = ((lane.out, "out", pods[0]), (lane.into, "in", pods[1]))
            apart = fabric.rails and ports[lane.out][2] != ports[lane.into][2]
            for port, way, pod in ends:
                _, nic, rail = ports[port]
                use("port", port, way, nic.out_rate if way == "out" else nic.in_rate, part)
                if apart:
                    use("spine", rail, way, cluster.uplinks["spine", rail, way], part)
                if pods[0] != pods[1] and fabric.pod_oversubscription is not None:
                    use("pod", pod, way, cluster.uplinks["pod", pod, way], part)
    return max((load[key] / rates[key] for key in load), default=Fraction(0))
