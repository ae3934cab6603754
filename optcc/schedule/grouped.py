"""Direct exchange in two levels: inside groups of servers, and between the groups.

The data is cut into equal chunks. In each group one server, the hub, gathers a chunk's data; of the hubs one adds last:
the others send it their sums, and it sends them the total, which they spread. Every server sends as much as in direct
exchange among all. But a chunk is gathered from S-1 + G-1 others instead of P-1, with S ranks in a group and G groups:
far fewer chunks where there are many servers. Where pods are the groups, their uplinks carry the data once each way, as
the bound demands.

The route of a chunk is a tree (`grouped_trees`), the time of each transfer is found in steps (`grouped_steps`). A plan
holds the groups and the number of chunks; the rest follows from the cluster.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np

from optcc.errors import InputError
from optcc.schedule.assemble import even_cuts
from optcc.schedule.columns import Schedule
from optcc.schedule.direct_rows import Ints, Kind, scheduled
from optcc.schedule.grouped_steps import GroupMove, in_steps
from optcc.schedule.grouped_trees import GroupTree, trees
from optcc.schedule.many_objects import no_collection
from optcc.schedule.nics import common_rails, live_nics, nic_ports, nic_rate, pace_lines
from optcc.schedule.pods import pod_numbers, uplinks
from optcc.schedule.recipe import Recipe, Segments, require
from optcc.schedule.routes import Routes
from optcc.schedule.steps import Used, rows_of
from optcc.values.cluster import Cluster
from optcc.values.json_records import Least
from optcc.values.json_types import Index, Json

if TYPE_CHECKING:
    from optcc.schedule.candidates import CandidateFamily, Costs
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound

MAX_MOVES = 2**20
"""Limit of chunks times ranks: twice as many transfers take a minute to find, and some GB."""


@dataclass(frozen=True)
class GroupedExchange(Recipe):
    """Direct exchange in two levels.

    Attributes
    ----------
    segments : chunks
    groups : of each rank its group, 0 to G-1
    apart : a rank that only exchanges each chunk with the hub that adds last, None: there is none
    """

    family: ClassVar[str] = "grouped-exchange"
    segments: Segments
    groups: Annotated[tuple[Index, ...], Least(3)]
    apart: Index | None = None

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        with no_collection():
            used, routes = nics_of(cluster), Routes(cluster)
            links = links_of(cluster, self.groups)
            parents = [tree.parents for tree in self.trees(cluster)]
            moves = in_steps(parents, self.groups, used, links, self.apart)
            cuts = even_cuts(0, nbytes, self.segments).tolist()
            kept = [move for move in moves if cuts[move.chunk] < cuts[move.chunk + 1]]
            kinds = Kind.RAW, Kind.RESULT
            rows = rows_of(
                [
                    (m.src, m.dst, m.step, kinds[m.down], 0, cuts[m.chunk], cuts[m.chunk + 1], m.rail, m.chunk)
                    for m in kept
                ]
            )
            return scheduled(rows, [dependencies(kept, parents)], nic_ports(cluster, routes, used), routes, nbytes)

    def trees(self, cluster: Cluster) -> list[GroupTree]:
        """The tree of each chunk."""
        nics = [len(mine) for mine in nics_of(cluster)]
        return list(trees(self.groups, nics, links_of(cluster, self.groups), self.apart, self.segments))

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        super().check(cluster)
        ranks = len(cluster.ranks)
        require(
            grouped(cluster),
            "cluster",
            "servers as ranks, NICs of one pace, each two with a rail in common, none alone on a rail",
            ranks,
        )
        most = MAX_MOVES // ranks
        require(self.segments <= most, "segments", f"1 to {most}, of {ranks} servers", self.segments)
        require(len(self.groups) == ranks, "groups", f"{ranks} of them", self.groups)
        named = sorted({*self.groups})
        require(named == list(range(len(named))) and len(named) > 1, "groups", "0 to G-1, two or more", named)
        if self.apart is not None:
            require(self.apart < ranks, "apart", f"0 to {ranks - 1}", self.apart)
            alone = self.groups.count(self.groups[self.apart]) == 1
            require(not alone, "apart", "a rank with others in its group", self.apart)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """Seconds of the busiest group, uplink or slowest server, if work is spread evenly in every group."""
        return self.trees(cluster)[-1].even * nbytes / (self.segments * nic_rate(cluster))

    @classmethod
    def read(cls, raw: Json) -> Self:
        """The recipe of `content`."""
        if isinstance(raw, dict) and "rounds" in raw:
            raise InputError(
                "a family of an earlier version",
                where="family",
                expected="a recipe of groups and chunks",
                got=cls.family,
                hint="Make the plan anew with optcc plan.",
            )
        return super().read(raw)

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """The groups, and the trees of chunks."""
        lines = [("groups", told_groups(cluster, self.groups))]
        if self.apart is not None:
            name = cluster.ranks[self.apart].name
            lines.append(("apart", f"{name}, which exchanges its data with hubs that add last"))
        made = self.trees(cluster)
        direct = sum(max(map(tree.parents.count, {*tree.parents})) == len(self.groups) - 1 for tree in made)
        lines.append(("chunks", f"{self.segments}" + f", {direct} of them exchanged directly with all" * (direct > 0)))
        return [*lines, ("steps", f"{-(-made[-1].steps // 1)} or more"), *pace_lines(cluster)]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """See `grouped_candidates`."""
        from optcc.schedule.grouped_candidates import grouped_candidates

        return grouped_candidates(cluster, bound, costs)

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> GroupedExchange:
        """Every rank in the group of the rank whose part it takes."""
        back = {new: old for old, new in to.items()}
        groups = tuple(self.groups[back[rank]] for rank in range(len(back)))
        return replace(self, groups=groups, apart=None if self.apart is None else to[self.apart])

    def like(self, cluster: Cluster, bound: Bound, costs: Costs, counts: GroupCounts) -> Recipe | None:
        """The same groups and chunks, with the rank apart that this cluster has, if any."""
        return replace(self, apart=lone(cluster, self.groups)) if grouped(cluster) else None


def dependencies(moves: Sequence[GroupMove], parents: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """(row that waits, row that it waits for): a sum waits for all contributions to it, a result for the sender's own
    result. At the rank that adds last, a result waits for all contributions."""
    sums: dict[tuple[int, int], list[int]] = defaultdict(list)
    results: dict[tuple[int, int], list[int]] = {}
    for row, move in enumerate(moves):
        if move.down:
            results[move.chunk, move.dst] = [row]
        else:
            sums[move.chunk, move.dst].append(row)
    waits, on = list[int](), list[int]()
    for row, move in enumerate(moves):
        here = move.chunk, move.src
        landed = results[here] if move.down and parents[move.chunk][move.src] >= 0 else sums.get(here, [])
        waits += [row] * len(landed)
        on += landed
    return np.array(waits, np.int64), np.array(on, np.int64)


def nics_of(cluster: Cluster) -> Used:
    """Of each rank the rails that it serves -> its NIC there. On one fabric, where any NIC reaches any, these are the
    first rails: a rank with fewer NICs then shares all its rails."""
    live = live_nics(cluster)
    return live if cluster.fabric.rails else [dict(enumerate(mine.values())) for mine in live]


def links_of(cluster: Cluster, groups: Sequence[int]) -> list[Fraction | None]:
    """Of each group, how many NICs' chunks its uplink carries at a time; None: there is no uplink."""
    rate = nic_rate(cluster)
    return [None if uplink is None else uplink / rate for uplink in uplinks(cluster, groups)]


def lone(cluster: Cluster, groups: Sequence[int]) -> int | None:
    """The one starving rank, which nearly needs all the time for its own data, if the other ranks can do everything
    else in this time. Among pods, its pod must have other ranks. None: there is none."""
    if cluster.fabric.pod_oversubscription is None:
        return None
    nics = [len(mine) for mine in live_nics(cluster)]
    slowest, second = sorted(nics)[:2]
    rank = nics.index(slowest)
    starves = slowest < second and sum(nics) >= slowest * 2 * (len(nics) - 1)
    return rank if starves and groups.count(groups[rank]) > 1 else None


def told_groups(cluster: Cluster, groups: Sequence[int]) -> str:
    """The number of groups and their sizes, as text for people."""
    sizes = [groups.count(group) for group in {*groups}]
    text = f"{len(sizes)} of {min(sizes)}" + (f" to {max(sizes)}" if max(sizes) > min(sizes) else "") + " servers"
    pods = pod_numbers(cluster)
    same = max(pods) and len({*zip(pods, groups, strict=True)}) == len({*pods}) == len({*groups})
    return f"{text}, the pods" if same else text


def grouped(cluster: Cluster) -> bool:
    """Servers as ranks, three or more, every two with a common NIC in use, and no NIC in use alone on its rail."""
    if cluster.gpu_ranks or len(cluster.ranks) < 3:
        return False
    live = [tuple(mine) for mine in nics_of(cluster)]
    return all(live) and common_rails(live) and min(Counter(chain(*live)).values()) > 1
