"""Every way between ranks and what it uses: NICs, NVLink ports, links of rails to the spine, uplinks of pods."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from optcc.errors import InputError
from optcc.theory.network import OWN_RAIL, Network, Orbit, RailPort, RankType, Resource
from optcc.theory.symmetry import server_types, slot_types, type_name
from optcc.values.cluster import Cluster, Server


def build_network(cluster: Cluster, *, merge: bool = True, apart: str | None = None) -> Network:
    """The network of `cluster`, with server `apart` and its GPUs never merged with others (a root must be one rank).

    `merge=False` keeps every server, slot and rail apart (for checking the merging). Raises InputError when GPUs are
    ranks and no NVLink rate is given.
    """
    servers, members = server_types(cluster, merge, apart)
    slots = slot_types(cluster, servers, merge and not (apart and cluster.gpu_ranks))
    types = [
        RankType(a, s, type_name(members[a], servers[a], cluster.gpu_ranks, slot.indices), groups)
        for a in range(len(servers))
        for s, slot in enumerate(slots)
        if (groups := slot.groups[a]) is not None
    ]
    servers_of = np.array([len(m) for m in members], np.int64)
    slots_of = np.array([len(slot.indices) for slot in slots], np.int64)
    return _Ways(cluster, servers, members, types, servers_of, slots_of).network()


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
        self.uplinks = cluster.uplinks
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

    def _spine(self, way: int, side: str, t: RankType, group: RailPort, load: int) -> None:
        """The link of one rail to the spine: of each slot's own rail, or of all the rails that were merged into one."""
        own = group.rail == OWN_RAIL
        rails = group.rails[:1] if own else group.rails
        rate = sum((self.uplinks["spine", rail, side] for rail in rails), Fraction(0))
        if not own:
            load *= int(self.slots_of[t.slot])
        names = ", ".join(map(str, rails))
        what = f"the spine link{'s' if len(rails) > 1 else ''} of rail{'s' if len(rails) > 1 else ''} {names}, {side}"
        self._load(way, ("spine", t.slot if own else group.rail, side), load, what, rate)

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
