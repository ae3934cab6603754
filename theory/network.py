"""A cluster as the exact program sees it: ranks up to symmetry, ways between them, and what each way uses.

Servers that are equal in every rate are one *server type*; GPUs (or rails) that are equal on every server type are one
*slot* (or rail) type. A rank is then known by (server type, slot type). An ordered pair of ranks is known by both ends
and by whether server and slot are the same: an *orbit*. Averaging an optimal solution over all exchanges of equal
servers and of equal slots keeps it optimal, since the program is convex. So one variable for each route and orbit is
enough: 1024 GPUs of which eight lost a NIC are no larger than the nine servers that differ. Proof id linear-program in
proofs/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array  # takes a while to load, and most bounds need none

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
