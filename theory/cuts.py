"""Cuts of the network as one rank sees it: the graph that separation and certificates work on.

Seen from one rank v, ranks fall into nodes: equal servers other than v's, and equal slots other than v's, stay
together. That loses no cut. The least cut around v with the fewest ranks is unique (intersections of least cuts are
least cuts). So every exchange of equal servers and slots that fixes v fixes this cut, and it is a union of such nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from optcc.theory.network import Network


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
