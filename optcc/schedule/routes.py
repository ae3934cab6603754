"""Which ports carry a transfer and which links it crosses: live NICs of both ranks in proportion to their rates, within
the fabric's limits; NVLink between the GPUs of one server.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InfeasibleError, InputError
from optcc.schedule.columns import BESIDE, Lane, Link, Port, Route, Schedule
from optcc.values.cluster import Cluster, Nic


@dataclass(frozen=True)
class _End:
    """A port with its exact rates."""

    index: int
    port: Port
    out_rate: Fraction
    in_rate: Fraction


def _ends(cluster: Cluster) -> tuple[_End, ...]:
    """Every live NIC of every rank, and, where GPUs are ranks, the NVLink port of each after its NICs."""
    ends: list[_End] = []
    rank = 0
    for server in cluster.servers:
        for gpu in range(server.gpus if cluster.gpu_ranks else 1):
            for i, nic in enumerate(server.nics):
                if nic.alive and (not cluster.gpu_ranks or server.gpu_of(i) == gpu):
                    rail = (i if nic.rail is None else nic.rail) if cluster.fabric.rails else None
                    rates = float(nic.out_rate), float(nic.in_rate)
                    port = Port(f"{server.name}/{nic.name}", rank, *rates, rail)
                    ends.append(_End(len(ends), port, nic.out_rate, nic.in_rate))
            if cluster.gpu_ranks and server.nvlink_rate:
                rate = server.nvlink_rate
                port = Port(f"{server.name}/gpu{gpu}/nvlink", rank, float(rate), float(rate), nvlink=True)
                ends.append(_End(len(ends), port, rate, rate))
            rank += 1
    return tuple(ends)


def ports_of(cluster: Cluster) -> tuple[Port, ...]:
    """Every live NIC of every rank, named SERVER/NIC, and where GPUs are ranks SERVER/gpuN/nvlink, in cluster order."""
    return tuple(end.port for end in _ends(cluster))


_LINK_NAMES = {"spine": "spine link of rail", "pod": "uplink of pod"}


Column = Sequence[int] | NDArray[Any]


class Routes:
    """Routes made on demand, and the ports and links that their lanes point into.

    Between servers each rank's live NICs share every transfer in proportion to their rates. The sender's NICs cut the
    transfer by their out rates, the receiver's by their in rates; each overlap of the two cuts is a lane, so that k and
    l NICs meet in at most k + l - 1 lanes and all end together. On rails this is done rail by rail, each rail in
    proportion to what it can carry between the two; only ranks that share no rail use the spine. Between GPUs of one
    server there is one lane, over their NVLink ports.

    Attributes
    ----------
    ports, table, links : as in `Schedule` (`table` is its `routes`)
    port_index : name of a port, such as "server0/nic3", -> its index
    """

    def __init__(self, cluster: Cluster) -> None:
        ends = _ends(cluster)
        self.ports = tuple(end.port for end in ends)
        self.port_index = {port.name: i for i, port in enumerate(self.ports)}
        self.links = tuple(
            Link(f"{_LINK_NAMES[kind]} {which}, {way}", float(rate))
            for (kind, which, way), rate in cluster.uplinks.items()
        )
        self.table: list[Route] = []
        self._link_index = {key: i for i, key in enumerate(cluster.uplinks)}
        self._fabric = cluster.fabric
        self._ranks = cluster.ranks
        self._pods = [cluster.servers[rank.server].pod for rank in self._ranks]
        self._ends: list[list[_End]] = [[] for _ in self._ranks]
        for end in ends:
            self._ends[end.port.rank].append(end)
        self._index: dict[object, int] = {}
        # Ranks of one kind have NICs of the same rates, in order: what two kinds share out is found once.
        kinds: dict[tuple[tuple[Fraction, Fraction], ...], int] = {}
        rates = [tuple([(end.out_rate, end.in_rate) for end in mine if not end.port.nvlink]) for mine in self._ends]
        self._kind = [kinds.setdefault(mine, len(kinds)) for mine in rates]
        self._parts: dict[tuple[int, int], list[tuple[int, int, Fraction]]] = {}

    def __call__(self, src: int, dst: int) -> int:
        """Index of the route from rank `src` to rank `dst`. Raises InfeasibleError when there is none."""
        index = self._index.get((src, dst))
        return self._add((src, dst), src, dst, self._shared_out(src, dst)) if index is None else index

    def schedule(self, nbytes: int, columns: Iterable[Column], waits: Column, dep: Column) -> Schedule:
        """The schedule of these columns, `route` to `segment` as in `Schedule`, over the routes made so far.

        waits : of each row, how many rows it waits for; dep : these rows, row after row
        """
        route, offset, length, reduce, stage, segment = columns
        adds: NDArray[Any] = np.ascontiguousarray(reduce, np.uint8)
        return Schedule(
            ranks=len(self._ranks),
            nbytes=nbytes,
            ports=self.ports,
            routes=tuple(self.table),
            route=np.ascontiguousarray(route, np.int32),
            offset=np.ascontiguousarray(offset, np.int64),
            length=np.ascontiguousarray(length, np.int64),
            reduce=adds if (adds == BESIDE).any() else adds.astype(np.bool_),
            stage=np.ascontiguousarray(stage, np.uint8),
            segment=np.ascontiguousarray(segment, np.int32),
            dep_ptr=np.concatenate(([0], np.cumsum(waits, dtype=np.int64))).astype(np.int64),
            dep_idx=np.ascontiguousarray(dep, np.int64),
            links=self.links,
        )

    def exist(self, src: int, dst: int) -> bool:
        """Whether there is a route from rank `src` to rank `dst`."""
        try:
            self(src, dst)
        except InfeasibleError:
            return False
        return True

    def pinned(self, src: int, dst: int, lanes: Sequence[tuple[int, int, Fraction]]) -> int:
        """Index of the route whose lanes the caller chose: (port it leaves by, port it enters by, share), sum 1.

        Raises InputError for shares that do not sum to 1, InfeasibleError for a lane that the fabric does not have.
        """
        key = (src, dst, tuple(lanes))
        if key not in self._index:
            self._check(src, dst, lanes)
            return self._add(key, src, dst, lanes)
        return self._index[key]

    def given(self, src: int, dst: int, lanes: Sequence[tuple[int, int, Fraction]]) -> int:
        """As `pinned`, but always another route, even where there is an equal one."""
        self._check(src, dst, lanes)
        return self._add(object(), src, dst, lanes)

    def single(self, ends: Sequence[tuple[int, int, int, int]]) -> range:
        """Indices of new routes of one lane, as `pinned`: (source, destination, port out, port in), all different. The
        first is checked."""
        first, one = len(self.table), Fraction(1)
        for src, dst, out, into in ends[:1]:
            self._check(src, dst, [(out, into, one)])
        self.table += [
            Route(src, dst, (Lane(out, into, one, self._crossed(out, into)),)) for src, dst, out, into in ends
        ]
        return range(first, len(self.table))

    def by_rail(self, src: int, dst: int, out: int, into: int) -> int:
        """Index of the route that leaves by the live NICs of rail `out` and enters by those of rail `into`.

        Raises InfeasibleError where the fabric has no such route.
        """
        key = (src, dst, out, into)
        if key in self._index:
            return self._index[key]
        leaving = [(end, end.out_rate) for end in self._ends[src] if end.out_rate and end.port.rail == out]
        entering = [(end, end.in_rate) for end in self._ends[dst] if end.in_rate and end.port.rail == into]
        if not leaving or not entering:
            raise InfeasibleError(
                "no such lane",
                where=f"{self._ranks[src].name} to {self._ranks[dst].name}",
                expected="live NICs on both rails",
                got=f"rail {out} to rail {into}",
            )
        self._index[key] = self.pinned(src, dst, list(_overlay(leaving, entering, Fraction(1))))
        return self._index[key]

    def _add(self, key: object, src: int, dst: int, lanes: Sequence[tuple[int, int, Fraction]]) -> int:
        self._index[key] = len(self.table)
        made = tuple([Lane(out, into, share, self._crossed(out, into)) for out, into, share in lanes])
        self.table.append(Route(src, dst, made))
        return self._index[key]

    def _crossed(self, out: int, into: int) -> tuple[int, ...]:
        """The links between two ports: up from the pod, over the spine, and down again."""
        if not self.links:
            return ()
        a, b = self.ports[out], self.ports[into]
        keys: list[tuple[str, object, str]] = []
        if a.rail != b.rail:
            keys = [("spine", a.rail, "out"), ("spine", b.rail, "in")]
        pods = self._pods[a.rank], self._pods[b.rank]
        if pods[0] != pods[1] and self._fabric.pod_oversubscription is not None:
            keys = [("pod", pods[0], "out"), *keys, ("pod", pods[1], "in")]
        return tuple(self._link_index[key] for key in keys)

    def _check(self, src: int, dst: int, lanes: Sequence[tuple[int, int, Fraction]]) -> None:
        where = f"{self._ranks[src].name} to {self._ranks[dst].name}"
        if sum((share for _, _, share in lanes), Fraction(0)) != 1 or any(share <= 0 for _, _, share in lanes):
            shares = [str(share) for _, _, share in lanes]
            raise InputError("lanes that do not carry a transfer", where=where, expected="sum 1", got=str(shares))
        for out, into, _ in lanes:
            a, b = self.ports[out], self.ports[into]
            nvlink = self._ranks[src].server == self._ranks[dst].server
            joined = a.nvlink == b.nvlink == nvlink and (a.rail == b.rail or self._fabric.spine is not None)
            if (a.rank, b.rank) != (src, dst) or not joined or not (a.out_rate and b.in_rate):
                raise InfeasibleError(
                    "no such lane",
                    where=where,
                    expected="NVLink ports inside a server, else live NICs of these ranks that a rail or a spine joins",
                    got=f"{a.name} to {b.name}",
                )

    def _shared_out(self, src: int, dst: int) -> list[tuple[int, int, Fraction]]:
        """The lanes between two ranks, over all that they have."""
        if self._ranks[src].server == self._ranks[dst].server:
            return [(self._nvlink(src), self._nvlink(dst), Fraction(1))]
        kind = self._kind[src], self._kind[dst]
        if kind in self._parts:
            mine, other = self._ends[src], self._ends[dst]
            return [(mine[i].index, other[j].index, share) for i, j, share in self._parts[kind]]
        leaving = [(end, end.out_rate) for end in self._ends[src] if end.out_rate and not end.port.nvlink]
        entering = [(end, end.in_rate) for end in self._ends[dst] if end.in_rate and not end.port.nvlink]
        for rank, found, way in ((src, leaving, "out"), (dst, entering, "in")):
            if not found:
                self._no_nic(rank, way)
        if not self._fabric.rails:
            lanes = list(_overlay(leaving, entering, Fraction(1)))
            place = {end.index: i for rank in (src, dst) for i, end in enumerate(self._ends[rank])}
            self._parts[kind] = [(place[leaves], place[enters], share) for leaves, enters, share in lanes]
            return lanes
        rails = {}
        common = {e.port.rail for e, _ in leaving} & {e.port.rail for e, _ in entering}
        for rail in sorted(rail for rail in common if rail is not None):
            out, into = [x for x in leaving if x[0].port.rail == rail], [x for x in entering if x[0].port.rail == rail]
            width = min(sum((rate for _, rate in side), Fraction(0)) for side in (out, into))
            rails[rail] = (width, out, into)
        if not rails:
            if self._fabric.spine is None:
                raise InfeasibleError(
                    "no way between two ranks that a ring would make neighbours",
                    where=f"{self._ranks[src].name} to {self._ranks[dst].name}",
                    expected="a rail with a live NIC on both",
                    got="none, and no spine",
                    hint="The bound still holds; rings need a rail in common between neighbours.",
                )
            return list(_overlay(leaving, entering, Fraction(1)))
        total = sum((width for width, _, _ in rails.values()), Fraction(0))
        return [lane for width, out, into in rails.values() for lane in _overlay(out, into, width / total)]

    def _nvlink(self, rank: int) -> int:
        found = next((end.index for end in self._ends[rank] if end.port.nvlink), None)
        if found is None:
            raise InfeasibleError(
                "no NVLink rate",
                where=self._ranks[rank].name,
                expected="the rate of a GPU's NVLink port, since GPUs are the ranks",
                got="none",
                hint="Give nvlink: in the YAML (nvlink= in a preset), or take servers as ranks.",
            )
        return found

    def _no_nic(self, rank: int, way: str) -> None:
        name = self._ranks[rank].name
        if any(end.port.nvlink for end in self._ends[rank]):
            raise InfeasibleError(
                "no way between servers from a GPU without a live NIC",
                where=name,
                expected=f"a live NIC beside it, {way}",
                got="none",
                hint="It reaches other servers through its neighbours: over NVLink, then by a NIC of theirs.",
            )
        raise InfeasibleError("no AllReduce is possible", where=name, expected="a live NIC each way", got="none")


def _overlay(
    leaving: list[tuple[_End, Fraction]], entering: list[tuple[_End, Fraction]], share: Fraction
) -> Iterator[tuple[int, int, Fraction]]:
    """Lanes that carry `share` of a transfer, cut on both sides in proportion to the rates."""
    for i, j, part in _overlaps(tuple(rate for _, rate in leaving), tuple(rate for _, rate in entering)):
        yield leaving[i][0].index, entering[j][0].index, part if share == 1 else part * share


@lru_cache(maxsize=1024)
def _overlaps(leaving: tuple[Fraction, ...], entering: tuple[Fraction, ...]) -> tuple[tuple[int, int, Fraction], ...]:
    """(place, place, part of the whole) of what overlaps when [0, 1] is cut in proportion to each of both. Kept, since
    most pairs of ranks have the same rates, and a plan is lowered many times until it is chosen."""
    outs, ins = _cumulative(leaving), _cumulative(entering)
    found, at, i, j = [], Fraction(0), 0, 0
    while at < 1:
        end = min(outs[i], ins[j])
        found.append((i, j, end - at))
        at, i, j = end, i + (outs[i] == end), j + (ins[j] == end)
    return tuple(found)


def _cumulative(rates: tuple[Fraction, ...]) -> list[Fraction]:
    """Where the parts end; the last exactly at 1."""
    total = sum(rates, Fraction(0))
    return [done / total for done in accumulate(rates)]


def fluid_seconds(schedule: Schedule, cluster: Cluster) -> Fraction:
    """Seconds that the busiest port or link needs for all its bytes: the schedule's time with perfect overlap and no
    latency. `cluster` is the one that the schedule was lowered for; it has the exact rates.
    """
    moved = np.bincount(schedule.route, schedule.length, len(schedule.routes))
    return busiest_seconds(schedule.routes, [round(nbytes) for nbytes in moved.tolist()], cluster)


def busiest_seconds(routes: Sequence[Route], moved: Sequence[Fraction | int], cluster: Cluster) -> Fraction:
    """Seconds that the busiest port or link of `cluster` needs when each of its `routes` carries `moved` bytes."""
    ends, uplinks = _ends(cluster), tuple(cluster.uplinks.values())
    rates = {("out", i): end.out_rate for i, end in enumerate(ends)}
    rates |= {("in", i): end.in_rate for i, end in enumerate(ends)} | {("link", i): x for i, x in enumerate(uplinks)}
    # Few shares occur: bytes of equal ones are added up first, which is faster where bytes are whole numbers.
    sums: dict[tuple[str, int], dict[Fraction, Fraction | int]] = {}
    for route, nbytes in zip(routes, moved, strict=True):
        for lane in route.lanes if nbytes else ():
            for where in (("out", lane.out), ("in", lane.into), *(("link", link) for link in lane.links)):
                mine = sums.setdefault(where, {})
                mine[lane.share] = mine.get(lane.share, 0) + nbytes
    work = (sum((share * n for share, n in mine.items()), Fraction(0)) / rates[where] for where, mine in sums.items())
    return max(work, default=Fraction(0))


# Making very many small objects at once, such as the routes between a thousand GPUs.


@contextmanager
def no_collection() -> Iterator[None]:
    """Among hundreds of thousands of new objects, none of them in a cycle, looking for cycles takes longer than making
    them. The collector is as it was afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# A schedule over other NICs than those it was made for: its transfers and their order stay, and with them every sum.
#
# A lane keeps its part of a transfer as far as both of its ports are as fast as they were. What it cannot carry any
# more goes by all NICs that the two ranks have now, in proportion to their rates. So losses add up to what is left,
# in whatever order they came; and with all NICs back, the schedule is as it was made.


ALL = Fraction(1)


def carried_by(cluster: Cluster, schedule: Schedule, made_for: Cluster) -> Schedule:
    """`schedule`, which was lowered for `made_for`, by the NICs of `cluster`: the same, some at other rates or dead.

    Raises InfeasibleError where two ranks that exchange something have no way to each other any more: one has no NIC,
    or on rails they have none in common.
    """
    if cluster.servers == made_for.servers:
        return schedule
    left = _parts_left(_nics(cluster), _nics(made_for))
    routes, shared = Routes(cluster), Routes(cluster)
    numbers = [_renewed(route, schedule.ports, left, routes, shared) for route in schedule.routes]
    return schedule.replace(
        ports=routes.ports,
        links=routes.links,
        routes=tuple(routes.table),
        route=np.array(numbers or [0], np.int32)[schedule.route],
    )


def _nics(cluster: Cluster) -> dict[str, Nic]:
    return {f"{server.name}/{nic.name}": nic for server in cluster.servers for nic in server.nics}


def _parts_left(now: Mapping[str, Nic], then: Mapping[str, Nic]) -> dict[str, tuple[Fraction, Fraction]]:
    """NIC -> what is left of the rates (out, in) that it had, at most all."""

    def part(rate: Fraction, old: Fraction) -> Fraction:
        return min(ALL, rate / old) if old else Fraction(0)

    return {
        name: (part(now[name].out_rate, nic.out_rate), part(now[name].in_rate, nic.in_rate))
        for name, nic in then.items()
    }


def _renewed(
    route: Route, ports: tuple[Port, ...], left: Mapping[str, tuple[Fraction, Fraction]], routes: Routes, shared: Routes
) -> int:
    """The number in `routes` of what takes the place of a route between two ports of `ports`.

    shared : routes between all NICs of two ranks
    """
    src, dst = route.src, route.dst
    shares: dict[tuple[int, int], Fraction] = {}

    def give(out: int, into: int, share: Fraction) -> None:
        if share:
            shares[out, into] = shares.get((out, into), Fraction(0)) + share

    kept = [lane.share * _left_of(lane, ports, left) for lane in route.lanes]
    for lane, share in zip(route.lanes, kept, strict=True):
        if share:
            give(routes.port_index[ports[lane.out].name], routes.port_index[ports[lane.into].name], share)
    lost = ALL - sum(kept)
    if lost:
        for lane in shared.table[shared(src, dst)].lanes:
            give(lane.out, lane.into, lost * lane.share)
    return routes.pinned(src, dst, [(out, into, share) for (out, into), share in shares.items()])


def _left_of(lane: Lane, ports: tuple[Port, ...], left: Mapping[str, tuple[Fraction, Fraction]]) -> Fraction:
    """The part of a lane that it still carries; NVLink ports are always what they were."""
    out, into = ports[lane.out], ports[lane.into]
    return ALL if out.nvlink else min(left[out.name][0], left[into.name][1])


def rated(schedule: Schedule, cluster: Cluster) -> Schedule:
    """`schedule` with its ports and links at the rates of `cluster`, which has the same live NICs."""
    routes = Routes(cluster)
    if (routes.ports, routes.links) == (schedule.ports, schedule.links):
        return schedule
    return schedule.replace(ports=routes.ports, links=routes.links)
