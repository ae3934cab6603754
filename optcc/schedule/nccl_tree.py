"""NCCL's Tree as a baseline: two binary trees with half of the data each, over servers in an order of ours.

From src/graph/trees.cc of NCCL 2.30.7. The first tree is `btree`; the second is the first one mirrored, or shifted by
one where the number of servers is odd. A server inside one tree is a leaf of the other, and sends and receives twice
the data; the root of the one that is a leaf of the other has the data once. So slow servers go to such places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar

import numpy as np

from optcc.schedule.assemble import (
    TemplateRow,
    Way,
    add_row,
    assemble,
    in_channels,
    on_single_nics,
    require_channels,
    require_memory,
    segment_bounds,
)
from optcc.schedule.columns import Schedule, Stage
from optcc.schedule.recipe import Recipe, Segments, require
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster
from optcc.values.json_records import OMITTED, Index


def btree(count: int, place: int) -> list[int]:
    """The children of a place in NCCL's binary tree of so many, whose root is 0.

    >>> [btree(6, place) for place in range(6)]
    [[4], [], [1, 3], [], [2, 5], []]
    """
    if place == 0:
        return [1 << (count - 1).bit_length() - 1] if count > 1 else []
    below = (place & -place) >> 1
    children = [place - below] if below else []
    step = below
    while step and place + step >= count:
        step >>= 1
    return children + ([place + step] if step else [])


def both_trees(count: int) -> list[list[tuple[int, int]]]:
    """The two trees: (parent, child) by place in rank order, a parent before its children.

    >>> both_trees(4)
    [[(0, 2), (2, 1), (2, 3)], [(3, 1), (1, 2), (1, 0)]]
    """
    second = [(place + 1) % count if count % 2 else count - 1 - place for place in range(count)]
    found = []
    for names in (list(range(count)), second):
        edges, places = [], [0]
        for place in places:
            children = btree(count, place)
            edges += [(names[place], names[child]) for child in children]
            places += children
        found.append(edges)
    return found


def tree_loads(count: int) -> list[Fraction]:
    """By place in rank order: how often a server sends the data, as often as it receives it, in both trees.

    >>> [str(load) for load in tree_loads(4)]
    ['1', '2', '2', '1']
    """
    loads = [Fraction(0)] * count
    for edges in both_trees(count):
        for pair in edges:
            for place in pair:
                loads[place] += Fraction(1, 2)
    return loads


def best_order(rates: Sequence[Fraction]) -> list[int]:
    """Servers by place for NCCL's Tree: the slower, the less to carry; servers alike stay in their order.

    >>> best_order([Fraction(1), Fraction(1), Fraction(1, 2), Fraction(1)])
    [2, 0, 1, 3]
    """
    loads, count = tree_loads(len(rates)), len(rates)
    slow = sorted((server for server in range(count) if rates[server] < max(rates)), key=lambda server: rates[server])
    places = sorted(range(count), key=lambda place: (loads[place], place))[: len(slow)]
    order = dict(zip(places, slow, strict=True))
    others = iter(server for server in range(count) if server not in slow)
    return [order[place] if place in order else next(others) for place in range(count)]


def _up_and_down(rows: list[TemplateRow], half: int, edges: Sequence[tuple[int, int]], way: Way) -> None:
    """Append the sum of one half of a segment, from the leaves up, and its way down again. A hop is a level."""
    depth = {edges[0][0]: 0} if edges else {}
    for parent, child in edges:
        depth[child] = depth[parent] + 1
    height = max(depth.values(), default=0)
    sums: dict[int, tuple[int, ...]] = {}
    for parent, child in reversed(edges):
        hop, landed = height - depth[child], sums.get(child, ())
        added = add_row(rows, half, way(child, parent), hop, True, Stage.REDUCE_SCATTER, landed)
        sums[parent] = (*sums.get(parent, ()), *added)
    result = dict(list(sums.items())[-1:])  # the root's
    for parent, child in edges:
        hop = height + depth[parent]
        result[child] = add_row(rows, half, way(parent, child), hop, False, Stage.ALLGATHER, result[parent])


@dataclass(frozen=True)
class NcclTree(Recipe):
    """NCCL's Tree between servers.

    segments : pipeline depth, over all channels
    order : the rank at each place in rank order
    channels : segment i is of channel i modulo so many, on one NIC of each server; None: every transfer is striped
    """

    family: ClassVar[str] = "nccl-tree"
    segments: Segments
    order: tuple[Index, ...]
    channels: Annotated[Segments | None, OMITTED] = None

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        routes, count = Routes(cluster), len(cluster.ranks)
        require_memory(4 * (count - 1) * self.segments)
        bounds = segment_bounds(0, nbytes, self.segments, 2)
        rows: list[TemplateRow] = []
        for half, edges in enumerate(both_trees(count)):
            _up_and_down(rows, half, [(self.order[a], self.order[b]) for a, b in edges], routes)
        schedule = assemble(cluster, nbytes, routes, [(rows, np.arange(self.segments), bounds)] if rows else [])
        return schedule if self.channels is None else on_single_nics(schedule, cluster, self.channels, [bounds])

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless every rank has one place, and channels fit."""
        super().check(cluster)
        ranks = list(range(len(cluster.ranks)))
        require(sorted(self.order) == ranks, "order", f"each of the ranks 0 to {ranks[-1]} once", list(self.order))
        require_channels(self.channels, cluster)

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        first, last = (cluster.ranks[self.order[place]].name for place in (0, -1))
        return [
            ("trees", f"two, with half of the data each; first in rank order is {first}, last {last}"),
            ("segments", f"{self.segments}, {in_channels(self.channels)}"),
        ]
