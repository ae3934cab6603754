"""A cluster as the exact program sees it: ranks up to symmetry, ways between them, and what each way uses.

Servers that are equal in every rate are one *server type*; GPUs (or rails) that are equal on every server type are one
*slot* (or rail) type. A rank is then known by (server type, slot type). An ordered pair of ranks is known by both ends
and by whether server and slot are the same: an *orbit*. Averaging an optimal solution over all exchanges of equal
servers and of equal slots keeps it optimal, since the program is convex. So one variable for each route and orbit is
enough: 1024 GPUs of which eight lost a NIC are no larger than the nine servers that differ. Proof id linear-program in
proofs/README.md.

Seen from one rank v, ranks fall into nodes: equal servers other than v's, and equal slots other than v's, stay
together (`View`). That loses no cut. The least cut around v with the fewest ranks is unique (intersections of least
cuts are least cuts). So every exchange of equal servers and slots that fixes v fixes this cut, and it is a union of
such nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from optcc.errors import InfeasibleError, InputError, some
from optcc.values.cluster import Cluster, Server

OWN_RAIL = -1
"""The rail of a group whose slot is its rail: two such groups meet when their slots are the same."""


@dataclass(frozen=True)
class RailPort:
    """A rank's NICs on one rail as one port; bytes per second each way."""

    rail: int
    out_rate: Fraction
    in_rate: Fraction
    nics: tuple[str, ...]
    rails: tuple[int, ...]  # as numbered in the cluster, for people


@dataclass(frozen=True)
class RankType:
    """Ranks that symmetry makes equal: one for each server of the type and slot of the type."""

    server: int
    slot: int
    name: str
    groups: tuple[RailPort, ...]


@dataclass(frozen=True)
class Orbit:
    """Ordered pairs of ranks that symmetry makes equal: from rank type x to rank type y."""

    x: int
    y: int
    same_server: bool
    same_slot: bool


@dataclass(frozen=True)
class Resource:
    """Something that carries at most `rate` bytes per second, one of `count` equal ones; `nics` are SERVER/NIC
    names.
    """

    what: str
    rate: Fraction
    count: int
    nics: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Network:
    """The program's data.

    servers_of, slots_of : int64, how many servers (slots) each server (slot) type stands for
    way_orbit : int64 (ways,), the orbit that a way belongs to
    way_groups : int64 (ways, 2), which of the `groups` at either end it joins; (0, 0) over NVLink
    use : int64 sparse (resources, ways), load on one such resource when every pair of the orbit sends one unit this way
    """

    rank_types: tuple[RankType, ...]
    servers_of: NDArray[np.int64]
    slots_of: NDArray[np.int64]
    orbits: tuple[Orbit, ...]
    way_orbit: NDArray[np.int64]
    way_groups: NDArray[np.int64]
    resources: tuple[Resource, ...]
    use: csr_array
    reverse: NDArray[np.int64] | None
    """way -> the same way backwards, when rates in and out are equal throughout; None otherwise."""
    resource_reverse: NDArray[np.int64] | None
    """resource -> the same resource for the other direction, or None as for `reverse`."""

    @cached_property
    def multiplicity(self) -> NDArray[np.int64]:
        """How many ranks each rank type stands for."""
        return np.array([self.servers_of[t.server] * self.slots_of[t.slot] for t in self.rank_types], np.int64)

    @cached_property
    def orbit_table(self) -> NDArray[np.int64]:
        """int64 (types, types, 2, 2): (x, y, same server, same slot) -> orbit, -1 where there is none."""
        table = np.full((len(self.rank_types), len(self.rank_types), 2, 2), -1, np.int64)
        for i, o in enumerate(self.orbits):
            table[o.x, o.y, int(o.same_server), int(o.same_slot)] = i
        return table


BROADCAST_SIDE, REDUCE_SIDE = False, True


@dataclass(frozen=True)
class CollectiveKind:
    """What the program has for a collective: which of its two halves, and where its data starts (or ends).

    AllReduce has both halves and may choose its root weights. Allgather is the broadcast half with an equal shard on
    every rank, reduce-scatter the reduce half; broadcast and reduce are one half with all weight on one root. A
    reduce-scatter and an allgather of other data at once have both halves and equal shards. n is the size of the whole
    buffer: an allgather's result, a reduce-scatter's input; at once, of each.
    """

    name: str
    sides: tuple[bool, ...]
    roots: Literal["free", "even", "one"]

    def weights(self, network: Network, root: int) -> NDArray[np.int64] | None:
        """int64 (types,): relative root weight of every rank of each type; None when the program chooses."""
        if self.roots == "free":
            return None
        if self.roots == "even":
            return np.ones(len(network.rank_types), np.int64)
        one = np.zeros(len(network.rank_types), np.int64)
        one[root] = 1
        return one


ALLREDUCE = CollectiveKind("allreduce", (BROADCAST_SIDE, REDUCE_SIDE), "free")
BOTH_AT_ONCE = CollectiveKind("reduce-scatter+allgather", (BROADCAST_SIDE, REDUCE_SIDE), "even")
COLLECTIVES = {
    c.name: c
    for c in (
        ALLREDUCE,
        CollectiveKind("allgather", (BROADCAST_SIDE,), "even"),
        CollectiveKind("reduce-scatter", (REDUCE_SIDE,), "even"),
        BOTH_AT_ONCE,
        CollectiveKind("broadcast", (BROADCAST_SIDE,), "one"),
        CollectiveKind("reduce", (REDUCE_SIDE,), "one"),
    )
}


def collective_named(name: str) -> CollectiveKind:
    """The collective of that name. Raises InputError for any other."""
    if name not in COLLECTIVES:
        raise InputError(
            "unknown collective", where="collective", expected=f"one of {', '.join(COLLECTIVES)}", got=name
        )
    return COLLECTIVES[name]


def build_network(cluster: Cluster, *, merge: bool = True, apart: str | None = None) -> Network:
    """The network of `cluster`, with server `apart` and its GPUs never merged with others (a root must be one rank).

    `merge=False` keeps every server, slot and rail apart (for checking the merging). Raises InputError when GPUs are
    ranks and no NVLink rate is given.
    """
    return _Ways(cluster, merge, apart).network()


class _Ways:
    """Enumerates orbits, ways and resources."""

    def __init__(self, cluster: Cluster, merge: bool, apart: str | None) -> None:
        self.fabric, self.uplinks = cluster.fabric, cluster.uplinks
        self.servers, self.members = server_types(cluster, merge, apart)
        slots = slot_types(cluster, self.servers, merge and not (apart and cluster.gpu_ranks))
        self.types = [
            RankType(a, s, type_name(self.members[a], server, cluster.gpu_ranks, slot.indices), groups)
            for a, server in enumerate(self.servers)
            for s, slot in enumerate(slots)
            if (groups := slot.groups[a]) is not None
        ]
        self.servers_of = np.array([len(m) for m in self.members], np.int64)
        self.slots_of = np.array([len(slot.indices) for slot in slots], np.int64)
        self.keys: dict[tuple[object, ...], int] = {}
        self.resources: list[Resource] = []
        self.entries: list[tuple[int, int, int]] = []  # resource, way, load
        self.way_orbit: list[int] = []
        self.way_key: dict[tuple[int, int, bool, bool, int, int], int] = {}

    def network(self) -> Network:
        orbits = []
        for x, y, same_server, same_slot in product(
            range(len(self.types)), range(len(self.types)), (True, False), (True, False)
        ):
            partners = self._partners(x, y, same_server, same_slot)
            if partners and not (same_server and same_slot):
                orbits.append(Orbit(x, y, same_server, same_slot))
                self._ways(len(orbits) - 1, orbits[-1], partners, self._partners(y, x, same_server, same_slot))
        rows, columns, loads = (
            (np.array(c, np.int64) for c in zip(*self.entries, strict=True))
            if self.entries
            else (np.zeros(0, np.int64),) * 3
        )
        use = csr_array((loads, (rows, columns)), shape=(len(self.resources), len(self.way_orbit)))
        return Network(
            rank_types=tuple(self.types),
            servers_of=self.servers_of,
            slots_of=self.slots_of,
            orbits=tuple(orbits),
            way_orbit=np.array(self.way_orbit, np.int64),
            way_groups=np.array([key[-2:] for key in self.way_key], np.int64).reshape(-1, 2),  # in order of the ways
            resources=tuple(self.resources),
            use=use,
            reverse=self._reverse(),
            resource_reverse=self._resource_reverse(),
        )

    def _partners(self, x: int, y: int, same_server: bool, same_slot: bool) -> int:
        """How many ranks of type y one rank of type x has in this relation."""
        a, b = self.types[x], self.types[y]
        if (same_server and a.server != b.server) or (same_slot and a.slot != b.slot):
            return 0
        servers = 1 if same_server else int(self.servers_of[b.server]) - (a.server == b.server)
        return servers * (1 if same_slot else int(self.slots_of[b.slot]) - (a.slot == b.slot))

    def _ways(self, index: int, orbit: Orbit, to: int, back: int) -> None:
        """The ways of one orbit; a rank of type x has `to` partners in it, a rank of type y has `back`."""
        a, b = self.types[orbit.x], self.types[orbit.y]
        if orbit.same_server:
            rate = self.servers[a.server].nvlink_rate
            if not rate:
                raise InputError(
                    "no NVLink rate",
                    where=self.members[a.server][0],
                    expected="the rate of a GPU's NVLink port, since GPUs are the ranks",
                    got="none",
                    hint="Give nvlink: in the YAML (nvlink= in a preset), or take servers as ranks.",
                )
            way = self._way(index, orbit, 0, 0)
            self._load(way, ("nvlink out", orbit.x), to, f"NVLink out of {a.name}", rate, orbit.x)
            self._load(way, ("nvlink in", orbit.y), back, f"NVLink into {b.name}", rate, orbit.y)
            return
        pairs = int(self.servers_of[a.server] * self.slots_of[a.slot]) * to
        for (i, g), (j, h) in product(enumerate(a.groups), enumerate(b.groups)):
            together = orbit.same_slot if g.rail == OWN_RAIL else g.rail == h.rail
            if not (g.out_rate and h.in_rate) or (not together and self.fabric.spine is None):
                continue
            way = self._way(index, orbit, i, j)
            self._load(way, ("out", orbit.x, i), to, f"{_nics(a, g)}, sending", g.out_rate, orbit.x, g)
            self._load(way, ("in", orbit.y, j), back, f"{_nics(b, h)}, receiving", h.in_rate, orbit.y, h)
            if not together:
                self._spine(way, "out", a, g, int(self.servers_of[a.server]) * to)
                self._spine(way, "in", b, h, int(self.servers_of[b.server]) * back)
            pods = self.servers[a.server].pod, self.servers[b.server].pod
            if pods[0] != pods[1] and self.fabric.pod_oversubscription is not None:
                for pod, side in zip(pods, ("out", "in"), strict=True):
                    rate = self.uplinks["pod", pod, side]
                    self._load(way, ("pod", pod, side), pairs, f"the uplink of pod {pod}, {side}", rate)

    def _way(self, index: int, orbit: Orbit, i: int, j: int) -> int:
        self.way_key[orbit.x, orbit.y, orbit.same_server, orbit.same_slot, i, j] = len(self.way_orbit)
        self.way_orbit.append(index)
        return len(self.way_orbit) - 1

    def _load(
        self,
        way: int,
        key: tuple[object, ...],
        load: int,
        what: str,
        rate: Fraction,
        rank_type: int | None = None,
        group: RailPort | None = None,
        count: int = 1,
    ) -> None:
        if key not in self.keys:
            nics = tuple[str, ...]()
            if rank_type is not None:
                t = self.types[rank_type]
                count = int(self.servers_of[t.server] * self.slots_of[t.slot])
                if group is not None:
                    nics = tuple(f"{server}/{nic}" for server in self.members[t.server] for nic in group.nics)
            self.keys[key] = len(self.resources)
            self.resources.append(Resource(what, rate, count, nics))
        self.entries.append((self.keys[key], way, load))

    def _spine(self, way: int, side: str, t: RankType, group: RailPort, load: int) -> None:
        """The links of rails to the spine: equal ones of each slot's own rail, or those of the rails that were merged
        into one as one."""
        own, rails = group.rail == OWN_RAIL, group.rails
        rates = [self.uplinks["spine", rail, side] for rail in rails]
        rate = rates[0] if own else sum(rates, Fraction(0))
        if not own:
            load *= int(self.slots_of[t.slot])
        names = ", ".join(map(str, rails))
        what = f"the spine link{'s' if len(rails) > 1 else ''} of rail{'s' if len(rails) > 1 else ''} {names}, {side}"
        key = ("spine", t.slot if own else group.rail, side)
        self._load(way, key, load, what, rate, count=len(rails) if own else 1)

    @property
    def _symmetric(self) -> bool:
        nics = all(g.out_rate == g.in_rate for t in self.types for g in t.groups)
        links = (self.uplinks[kind, which, "out"] == rate for (kind, which, _), rate in self.uplinks.items())
        return nics and all(links)

    def _resource_reverse(self) -> NDArray[np.int64] | None:
        if not self._symmetric:
            return None
        other = {"out": "in", "in": "out", "nvlink out": "nvlink in", "nvlink in": "nvlink out"}
        swapped = [tuple(other.get(part, part) if isinstance(part, str) else part for part in key) for key in self.keys]
        return np.array([self.keys[key] for key in swapped], np.int64)

    def _reverse(self) -> NDArray[np.int64] | None:
        if not self._symmetric:
            return None
        backwards = np.zeros(len(self.way_orbit), np.int64)
        for (x, y, same_server, same_slot, i, j), way in self.way_key.items():
            backwards[way] = self.way_key[y, x, same_server, same_slot, j, i]
        return backwards


def _nics(t: RankType, group: RailPort) -> str:
    rails = f" (rail{'s' if len(group.rails) > 1 else ''} {', '.join(map(str, group.rails))})" if group.rails else ""
    return f"{', '.join(group.nics)} of {t.name}{rails}"


def server_types(cluster: Cluster, merge: bool, apart: str | None) -> tuple[list[Server], list[list[str]]]:
    """(a server of each type, the names of all its servers); server `apart` is a type of its own."""
    types: dict[object, tuple[Server, list[str]]] = {}
    for server in cluster.servers:
        rates = tuple((nic.rail, nic.gpu, nic.out_rate, nic.in_rate) for nic in server.nics)
        alike = merge and server.name != apart
        key = (rates, server.gpus, server.nvlink_rate, server.pod) if alike else server.name
        types.setdefault(key, (server, []))[1].append(server.name)
    return [server for server, _ in types.values()], [names for _, names in types.values()]


@dataclass
class SlotType:
    """GPU positions that are equal on every server type, and their NICs there (None: no such GPU)."""

    indices: list[int]
    groups: list[tuple[RailPort, ...] | None]

    def join(self, index: int, groups: list[tuple[RailPort, ...] | None]) -> None:
        """Add one more GPU position with equal rates: only the names are new."""
        self.indices.append(index)
        for a, (mine, other) in enumerate(zip(self.groups, groups, strict=True)):
            if mine is not None and other is not None:
                self.groups[a] = tuple(
                    replace(g, nics=g.nics + h.nics, rails=tuple(dict.fromkeys(g.rails + h.rails)))
                    for g, h in zip(mine, other, strict=True)
                )


def slot_types(cluster: Cluster, servers: list[Server], merge: bool) -> list[SlotType]:
    rails = cluster.fabric.rails
    if not cluster.gpu_ranks:
        return [SlotType([0], list(_merge_rails([_by_rail(s, None, rails) for s in servers], merge, cluster)))]
    width = max(server.gpus for server in servers)
    found = [[_by_rail(s, g, rails) if g < s.gpus else None for s in servers] for g in range(width)]
    # Slots may be exchanged when rails do not tell them apart, or when each slot has a rail to itself.
    used = [{rail for by_rail in slot if by_rail for rail in by_rail} for slot in found]
    own = rails and all(len(u) <= 1 for u in used) and sum(map(len, used)) == len(set().union(*used))
    slots: dict[object, SlotType] = {}
    for g, slot in enumerate(found):
        groups: list[tuple[RailPort, ...] | None] = []
        for by_rail in slot:
            if by_rail is None:
                groups.append(None)
            else:
                groups.append(tuple(replace(group, rail=OWN_RAIL if own else rail) for rail, group in by_rail.items()))
        rates = tuple(None if x is None else tuple((h.rail, h.out_rate, h.in_rate) for h in x) for x in groups)
        links = tuple(_links(cluster, rail) for rail in sorted(used[g]))
        key = (rates, links) if merge and (own or not rails) else g
        if key in slots:
            slots[key].join(g, groups)
        else:
            slots[key] = SlotType([g], groups)
    return list(slots.values())


def _by_rail(server: Server, gpu: int | None, rails: bool) -> dict[int, RailPort]:
    """The live NICs of one GPU (None: of the whole server), as one group per rail; without rails, as one group."""
    found: dict[int, RailPort] = {}
    for i, nic in enumerate(server.nics):
        if not nic.alive or (gpu is not None and server.gpu_of(i) != gpu):
            continue
        rail = (nic.rail if nic.rail is not None else i) if rails else 0
        old = found.get(rail, RailPort(rail, Fraction(0), Fraction(0), (), (rail,) if rails else ()))
        nics = (*old.nics, nic.name)
        found[rail] = replace(old, out_rate=old.out_rate + nic.out_rate, in_rate=old.in_rate + nic.in_rate, nics=nics)
    return found


def _links(cluster: Cluster, rail: int) -> tuple[Fraction | None, ...]:
    """A rail's spine link, out and in: rails with different links cannot stand for each other."""
    return tuple(cluster.uplinks.get(("spine", rail, way)) for way in ("out", "in"))


def _merge_rails(by_server: list[dict[int, RailPort]], merge: bool, cluster: Cluster) -> Iterator[tuple[RailPort, ...]]:
    """Rails on which every server type has equal rates become one rail as wide as all of them."""
    kinds: dict[object, list[int]] = {}
    for rail in sorted(set().union(*by_server)):
        column = tuple((g.out_rate, g.in_rate) if (g := groups.get(rail)) else None for groups in by_server)
        kinds.setdefault((column, _links(cluster, rail)) if merge else rail, []).append(rail)
    for groups in by_server:
        merged = []
        for kind in kinds.values():
            parts = [groups[rail] for rail in kind if rail in groups]
            if parts:
                merged.append(
                    RailPort(
                        rail=kind[0],
                        out_rate=sum((p.out_rate for p in parts), Fraction(0)),
                        in_rate=sum((p.in_rate for p in parts), Fraction(0)),
                        nics=tuple(name for p in parts for name in p.nics),
                        rails=tuple(rail for p in parts for rail in p.rails),
                    )
                )
        yield tuple(merged)


SHOWN = 4
"""Servers that are named one by one, so that a line can be read."""


def type_name(members: list[str], server: Server, gpu_ranks: bool, slots: list[int]) -> str:
    name = members[0]
    if len(members) > SHOWN:
        name = f"each of {len(members)} servers ({', '.join(members[: SHOWN - 1])}, ..., {members[-1]})"
    elif len(members) > 1:
        name = f"each of {', '.join(members[:-1])} and {members[-1]}"
    if not gpu_ranks:
        return name
    return f"GPU {slots[0]} of {name}" if len(slots) == 1 else f"GPUs {', '.join(map(str, slots))} of {name}"


@dataclass(frozen=True, eq=False)
class View:
    """The network around one rank of type `rank_type`; node 0 is that rank itself.

    node_type : int64 (nodes,), rank type of each node; size : int64 (nodes,), ranks in it
    pairs : int64 sparse (nodes * nodes, orbits): how many pairs of each orbit go from node i to node j, row i * nodes
    + j
    """

    rank_type: int
    node_type: NDArray[np.int64]
    size: NDArray[np.int64]
    pairs: csr_array

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.size)

    @cached_property
    def _membership(self) -> csr_array:
        return csr_array((self.size, self.node_type, np.arange(self.nodes + 1)))

    def capacity(self, network: Network, ways: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 (nodes, nodes): what goes from node i to node j in all, when each pair of a way's orbit has `ways`."""
        orbits = np.zeros(len(network.orbits), np.int64)
        np.add.at(orbits, network.way_orbit, ways)
        return np.asarray(self.pairs @ orbits).reshape(self.nodes, self.nodes)

    def entering(self, inside: NDArray[np.bool_]) -> NDArray[np.int64]:
        """int64 (orbits,): pairs of each orbit that go from outside into `inside` (bool (nodes,))."""
        crossing = (~inside[:, None] & inside[None, :]).ravel()
        return np.asarray(crossing.astype(np.int64) @ self.pairs)

    def leaving(self, inside: NDArray[np.bool_]) -> NDArray[np.int64]:
        """int64 (orbits,): pairs of each orbit that go out of `inside`."""
        return self.entering(~inside)

    def members(self, inside: NDArray[np.bool_], types: int) -> NDArray[np.int64]:
        """int64 (types,): ranks of each rank type in `inside`."""
        return np.bincount(self.node_type, np.where(inside, self.size, 0), types).astype(np.int64)


def view_from(network: Network, rank_type: int) -> View:
    """The network around one rank of `rank_type`."""
    home = network.rank_types[rank_type]
    servers = _classes(network.servers_of, home.server)
    slots = _classes(network.slots_of, home.slot)
    type_of = {(t.server, t.slot): i for i, t in enumerate(network.rank_types)}
    nodes = [
        (a, b, type_of[servers[a][0], slots[b][0]])
        for a in range(len(servers))
        for b in range(len(slots))
        if (servers[a][0], slots[b][0]) in type_of
    ]
    a, b, kind = (np.array(column) for column in zip(*nodes, strict=True))
    same_server, other_server = _relations(servers)
    same_slot, other_slot = _relations(slots)
    n = len(nodes)
    rows, columns, counts = [], [], []
    for on_server, server_pairs in ((1, same_server), (0, other_server)):
        for on_slot, slot_pairs in ((1, same_slot), (0, other_slot)):
            count = server_pairs[a[:, None], a[None, :]] * slot_pairs[b[:, None], b[None, :]]
            orbit = network.orbit_table[kind[:, None], kind[None, :], on_server, on_slot]
            there = np.flatnonzero((count > 0) & (orbit >= 0))
            rows.append(there)
            columns.append(orbit.ravel()[there])
            counts.append(count.ravel()[there])
    pairs = csr_array(
        (np.concatenate(counts), (np.concatenate(rows), np.concatenate(columns))), shape=(n * n, len(network.orbits))
    )
    size = np.array([servers[x][1] * slots[y][1] for x, y, _ in nodes], np.int64)
    return View(rank_type, kind.astype(np.int64), size, pairs)


def _classes(counts: NDArray[np.int64], home: int) -> list[tuple[int, int]]:
    """(type, how many): the home one alone first, then the rest of each type."""
    rest = [(t, int(n) - (t == home)) for t, n in enumerate(counts)]
    return [(home, 1), *((t, n) for t, n in rest if n)]


def _relations(classes: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(same, different): how many ordered pairs of members, one from class i and one from class j, are (not) one."""
    sizes = np.array([n for _, n in classes], np.int64)
    same = np.diag(sizes)
    return same, np.outer(sizes, sizes) - same


def require_connected(
    there: NDArray[np.int64] | csr_array, names: list[str], size: NDArray[np.int64] | None = None
) -> None:
    """Raise InfeasibleError unless every node reaches every other, naming those of the smallest part.

    there : (nodes, nodes), not 0 where a way leads from row to column; size : ranks of each node (None: one)
    """
    parts, part = connected_components(there, connection="strong")
    if parts > 1:
        smallest = int(np.argmin(np.bincount(part, size)))
        cut_off = sorted({names[node] for node in np.flatnonzero(part == smallest)})
        raise InfeasibleError(
            "no AllReduce is possible",
            where=some(cut_off, 4),
            expected="ways both to and from all other ranks",
            got="none one way",
            hint="Repair a NIC on a rail that others share, join the rails by a spine, or leave these servers out.",
        )
