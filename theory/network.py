"""A cluster as the exact program sees it: ranks up to symmetry, ways between them, and what each way uses.

Servers that are equal in every rate are one *server type*; GPUs (or rails) that are equal on every server type are one
*slot* (or rail) type. A rank is then known by (server type, slot type), and an ordered pair of ranks by both ends and
by whether server and slot are the same: an *orbit*. Averaging an optimal solution over all exchanges of equal servers
and of equal slots keeps it optimal, since the program is convex, so one variable for each way and orbit is enough:
1024 GPUs of which eight lost a NIC are no larger than the nine servers that differ. Proof id linear-program in
proofs/README.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from optcc.cluster import Cluster, Server
from optcc.errors import InfeasibleError, InputError

OWN_RAIL = -1
"""The rail of a group whose slot is its rail: two such groups meet when their slots are the same."""


@dataclass(frozen=True)
class Group:
    """A rank's NICs on one rail as one port; bytes per second each way."""

    rail: int
    out_rate: Fraction
    in_rate: Fraction
    nics: tuple[str, ...]


@dataclass(frozen=True)
class RankType:
    """Ranks that symmetry makes equal: one for each server of the type and slot of the type."""

    server: int
    slot: int
    name: str
    groups: tuple[Group, ...]


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
    use : int64 sparse (resources, ways), load on one such resource when every pair of the orbit sends one unit this way
    """

    rank_types: tuple[RankType, ...]
    servers_of: NDArray[np.int64]
    slots_of: NDArray[np.int64]
    orbits: tuple[Orbit, ...]
    way_orbit: NDArray[np.int64]
    resources: tuple[Resource, ...]
    use: csr_array
    reverse: NDArray[np.int64] | None
    """way -> the same way backwards, when rates in and out are equal throughout; None otherwise."""

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


def build_network(cluster: Cluster, *, merge: bool = True) -> Network:
    """The network of `cluster`; `merge=False` keeps every server, slot and rail apart (for checking the merging).

    Raises InfeasibleError when a rank has no way out or no way in, InputError when GPUs are ranks and no NVLink rate is
    given.
    """
    servers, members = _server_types(cluster, merge)
    slots = _slots(cluster, servers, merge)
    types = [
        RankType(a, s, _names(members[a], servers[a], cluster.gpu_ranks, slot.indices), groups)
        for a in range(len(servers))
        for s, slot in enumerate(slots)
        if (groups := slot.groups[a]) is not None
    ]
    servers_of = np.array([len(m) for m in members], np.int64)
    slots_of = np.array([len(slot.indices) for slot in slots], np.int64)
    return _Ways(cluster, servers, members, types, servers_of, slots_of).network()


def _server_types(cluster: Cluster, merge: bool) -> tuple[list[Server], list[list[str]]]:
    """(a server of each type, the names of all its servers)."""
    types: dict[object, tuple[Server, list[str]]] = {}
    for server in cluster.servers:
        rates = tuple((nic.rail, nic.gpu, nic.out_rate, nic.in_rate) for nic in server.nics)
        key = (rates, server.gpus, server.nvlink_rate, server.pod) if merge else server.name
        types.setdefault(key, (server, []))[1].append(server.name)
    return [server for server, _ in types.values()], [names for _, names in types.values()]


@dataclass
class _Slot:
    """GPU positions that are equal on every server type, and their NICs there (None: no such GPU)."""

    indices: list[int]
    groups: list[tuple[Group, ...] | None] = field(default_factory=list)


def _slots(cluster: Cluster, servers: list[Server], merge: bool) -> list[_Slot]:
    rails = cluster.fabric.rails
    if not cluster.gpu_ranks:
        return [_Slot([0], list(_merge_rails([_by_rail(s, None, rails) for s in servers], merge)))]
    width = max(server.gpus for server in servers)
    found = [[_by_rail(s, g, rails) if g < s.gpus else None for s in servers] for g in range(width)]
    # Slots may be exchanged when rails do not tell them apart, or when each slot has a rail to itself.
    used = [{rail for by_rail in slot if by_rail for rail in by_rail} for slot in found]
    own = rails and all(len(u) <= 1 for u in used) and sum(map(len, used)) == len(set().union(*used))
    slots: dict[object, _Slot] = {}
    for g, slot in enumerate(found):
        groups: list[tuple[Group, ...] | None] = []
        for by_rail in slot:
            if by_rail is None:
                groups.append(None)
            else:
                groups.append(tuple(_rename(group, OWN_RAIL if own else rail) for rail, group in by_rail.items()))
        rates = tuple(None if x is None else tuple((h.rail, h.out_rate, h.in_rate) for h in x) for x in groups)
        key = rates if merge and (own or not rails) else g
        slots.setdefault(key, _Slot([], groups)).indices.append(g)
    return list(slots.values())


def _by_rail(server: Server, gpu: int | None, rails: bool) -> dict[int, Group]:
    """The live NICs of one GPU (None: of the whole server), as one group per rail; without rails, as one group."""
    found: dict[int, Group] = {}
    for i, nic in enumerate(server.nics):
        if not nic.alive or (gpu is not None and server.gpu_of(i) != gpu):
            continue
        rail = (nic.rail if nic.rail is not None else i) if rails else 0
        old = found.get(rail, Group(rail, Fraction(0), Fraction(0), ()))
        found[rail] = Group(rail, old.out_rate + nic.out_rate, old.in_rate + nic.in_rate, (*old.nics, nic.name))
    return found


def _merge_rails(by_server: list[dict[int, Group]], merge: bool) -> Iterator[tuple[Group, ...]]:
    """Rails on which every server type has equal rates become one rail as wide as all of them."""
    kinds: dict[object, list[int]] = {}
    for rail in sorted(set().union(*by_server)):
        column = tuple((g.out_rate, g.in_rate) if (g := groups.get(rail)) else None for groups in by_server)
        kinds.setdefault(column if merge else rail, []).append(rail)
    for groups in by_server:
        merged = []
        for kind in kinds.values():
            parts = [groups[rail] for rail in kind if rail in groups]
            if parts:
                out, into = (
                    sum(rates, Fraction(0)) for rates in zip(*((p.out_rate, p.in_rate) for p in parts), strict=True)
                )
                merged.append(Group(kind[0], out, into, tuple(name for p in parts for name in p.nics)))
        yield tuple(merged)


def _rename(group: Group, rail: int) -> Group:
    return Group(rail, group.out_rate, group.in_rate, group.nics)


def _names(members: list[str], server: Server, gpu_ranks: bool, slots: list[int]) -> str:
    name = members[0] if len(members) == 1 else f"each of {members[0]}..{members[-1]} ({len(members)} servers)"
    if not gpu_ranks:
        return name
    return f"GPU {slots[0]} of {name}" if len(slots) == 1 else f"GPUs {', '.join(map(str, slots))} of {name}"


class _Ways:
    """Enumerates orbits, ways and resources."""

    def __init__(
        self,
        cluster: Cluster,
        servers: list[Server],
        members: list[list[str]],
        types: list[RankType],
        servers_of: NDArray[np.int64],
        slots_of: NDArray[np.int64],
    ) -> None:
        self.fabric, self.servers, self.members, self.types = cluster.fabric, servers, members, types
        self.servers_of, self.slots_of = servers_of, slots_of
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
        self._check_reachable(orbits)
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
            resources=tuple(self.resources),
            use=use,
            reverse=self._reverse(),
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
            self._load(way, ("out", orbit.x, i), to, f"{_nics(a, g)}, out", g.out_rate, orbit.x, g)
            self._load(way, ("in", orbit.y, j), back, f"{_nics(b, h)}, in", h.in_rate, orbit.y, h)
            if not together:
                self._spine(way, "out", a, g, int(self.servers_of[a.server]) * to)
                self._spine(way, "in", b, h, int(self.servers_of[b.server]) * back)
            pods = self.servers[a.server].pod, self.servers[b.server].pod
            if pods[0] != pods[1] and self.fabric.pod_oversubscription is not None:
                for pod, side in zip(pods, ("out", "in"), strict=True):
                    rate = self._pod_rate(pod, side) / self.fabric.pod_oversubscription
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
        group: Group | None = None,
    ) -> None:
        if key not in self.keys:
            count, nics = 1, tuple[str, ...]()
            if rank_type is not None:
                t = self.types[rank_type]
                count = int(self.servers_of[t.server] * self.slots_of[t.slot])
                if group is not None:
                    nics = tuple(f"{server}/{nic}" for server in self.members[t.server] for nic in group.nics)
            self.keys[key] = len(self.resources)
            self.resources.append(Resource(what, rate, count, nics))
        self.entries.append((self.keys[key], way, load))

    def _spine(self, way: int, side: str, t: RankType, group: Group, load: int) -> None:
        """The link of one rail to the spine. A slot type with rails of its own has one such link for each slot."""
        own = group.rail == OWN_RAIL
        rail = t.slot if own else group.rail
        assert self.fabric.spine is not None
        total = Fraction(0)
        for other in self.types:
            for g in other.groups:
                if (other.slot == t.slot) if own else (g.rail == group.rail):
                    times = int(self.servers_of[other.server]) * (1 if own else int(self.slots_of[other.slot]))
                    total += times * (g.out_rate if side == "out" else g.in_rate)
        if not own:
            load *= int(self.slots_of[t.slot])
        self._load(
            way, ("spine", rail, side), load, f"the spine link of rail {rail}, {side}", total / self.fabric.spine
        )

    def _pod_rate(self, pod: str | None, side: str) -> Fraction:
        return sum(
            (
                (s.out_rate if side == "out" else s.in_rate) * int(count)
                for s, count in zip(self.servers, self.servers_of, strict=True)
                if s.pod == pod
            ),
            Fraction(0),
        )

    def _check_reachable(self, orbits: list[Orbit]) -> None:
        leaving = {orbits[o].x for o in self.way_orbit}
        entering = {orbits[o].y for o in self.way_orbit}
        alone = int(self.servers_of.sum()) == 1 and len(self.types) == 1 and int(self.slots_of.sum()) == 1
        for i, t in enumerate(self.types):
            for side, reached in (("out of", leaving), ("into", entering)):
                if i not in reached and not alone:
                    raise InfeasibleError(
                        "no AllReduce is possible",
                        where=t.name,
                        expected=f"a way {side} it: a live NIC on a rail that others share",
                        got="none",
                        hint="Repair a NIC of this server or leave the server out of the job.",
                    )

    def _reverse(self) -> NDArray[np.int64] | None:
        if any(g.out_rate != g.in_rate for t in self.types for g in t.groups):
            return None
        backwards = np.zeros(len(self.way_orbit), np.int64)
        for (x, y, same_server, same_slot, i, j), way in self.way_key.items():
            backwards[way] = self.way_key[y, x, same_server, same_slot, j, i]
        return backwards


def _nics(t: RankType, group: Group) -> str:
    rail = "" if group.rail <= 0 and len(t.groups) == 1 else f" on rail {group.rail}"
    return f"{len(group.nics)} NIC{'s' if len(group.nics) > 1 else ''} of {t.name}{rail}"
