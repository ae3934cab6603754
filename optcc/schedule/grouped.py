"""Direct exchange in two levels: inside groups of servers, and between the groups.

The data is cut into equal chunks. In each group one server, the hub, gathers a chunk's data; of the hubs one adds last:
the others send it their sums, and it sends them the total, which they spread. Every server sends as much as in direct
exchange among all. But a chunk is gathered from S-1 + G-1 others instead of P-1, with S ranks in a group and G groups:
far fewer chunks where there are many servers. Where pods are the groups, their uplinks carry the data once each way, as
the bound demands.

The route of a chunk is a tree (`trees`), the time of each transfer is found in steps (`group_moves`). A plan
holds the groups and the number of chunks; the rest follows from the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import chain, combinations
from math import ceil, isqrt, sqrt
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import numpy as np

from optcc.schedule.assemble import even_cuts
from optcc.schedule.columns import GRANULE, Schedule
from optcc.schedule.direct import DirectRows, Ints, Kind, Used, scheduled
from optcc.schedule.matchings import group_steps
from optcc.schedule.nics import (
    common_rails,
    fastest_nic,
    live_nics,
    nic_ports,
    nic_rate,
    pace_lines,
    pod_numbers,
    uplinks,
)
from optcc.schedule.recipe import CandidateFamily, Costs, Recipe, Segments, require
from optcc.schedule.routes import Routes, no_collection
from optcc.schedule.tuned import DEFAULT_SEGMENTS, FEWEST, LANDS, LARGE, MOST_TRIED, TRIED_MOVES
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster
from optcc.values.json_records import Index, Least

if TYPE_CHECKING:
    from optcc.theory.ring_shares import GroupCounts

# Direct exchange in two levels: the tree along which each chunk of the data is summed up, and its result spread.
#
# In each group one rank, the hub, gathers the chunk from its group; one of the hubs adds last, and the others send it
# their sums. Or, in one level, one rank gathers the chunk from all ranks of every group. A rank *apart* is in no
# group when sums are formed. For one half of the chunks it adds last of all: the hub sends it the sum. For the other
# half it sends its data to the hub that adds last.
#
# Every chunk, whatever its tree, is sent 2(P-1) times in all. So the choice is who sends how often, and the turn goes
# to the rank or group with the least work so far. Hubs take turns in their groups, by their NICs. Groups take turns
# to have the hub that adds last, by their NICs and uplinks. A chunk goes in one level, which takes work off all
# groups but one, if all are less busy then.


class GroupTree(NamedTuple):
    """parents : towards whom each rank sends its sum, the last one -1
    steps : the work of the busiest rank or uplink up to this chunk, in chunks on each NIC
    even : `steps` if the work were spread evenly in every group
    """

    parents: tuple[int, ...]
    steps: Fraction
    even: Fraction


def trees(
    groups: Sequence[int], nics: Sequence[int], uplinks: Sequence[Fraction | None], apart: int | None, chunks: int
) -> Iterator[GroupTree]:
    """The trees of `count` chunks, in order.

    groups : of each rank its group, 0 to G-1; nics : of each rank, how many it has; uplinks : of each group, how many
    chunks cross its border at a time, each way, None: any number; apart : the rank apart, None: there is none
    """
    ranks, every = len(groups), range(len(uplinks))
    members = [[r for r in range(ranks) if groups[r] == group and r != apart] for group in every]
    sizes, room = [len(own) for own in members], [sum(nics[r] for r in own) for own in members]
    alike = {count: [r for r in range(ranks) if nics[r] == count] for count in {*nics}}
    ways = [_two_levels(sizes, last, None if apart is None else groups[apart]) for last in every]
    direct = [_one_level(sizes, last) for last in every]
    gathered, added_last = [0] * ranks, [0] * ranks  # what each has sent, as one of its group, and for all groups
    busy, crossed, lasts = ([0] * len(every) for _ in range(3))  # of groups: sent, over uplinks, how often the last

    def linked(way: GroupWork) -> float:
        """How busy the busiest uplink would be."""
        links = enumerate(uplinks)
        return max([(crossed[g] + way.across[g]) / float(link) for g, link in links if link is not None], default=0.0)

    def after(way: GroupWork) -> float:
        """How busy the busiest group or uplink would be."""
        return max(linked(way), *((busy[g] + way.sent[g]) / room[g] for g in every))

    for chunk in range(chunks):
        hubs = [min(own, key=lambda r: (gathered[r] / nics[r], r)) for own in members]
        load = [(gathered[r] + added_last[r]) / nics[r] for r in hubs]
        # With two groups it has no more to do than the other one.
        last = min(every, key=lambda g: (max(load[g], linked(ways[g])) * (len(every) > 2), lasts[g] / room[g]))
        way, other = ways[last], min(every, key=lambda g: after(direct[g]))
        # It is worth half of what it gives the one hub to do.
        two = apart is not None or after(way) <= after(direct[other]) + Fraction(ranks - 2, 2 * room[other])
        if not two:
            last, way = other, direct[other]
        busy = [one + more for one, more in zip(busy, way.sent, strict=True)]
        crossed = [one + more for one, more in zip(crossed, way.across, strict=True)]
        top = hubs[last]
        lasts[last] += 1
        parents = [
            hubs[group] if two and rank not in (hubs[group], apart) else top for rank, group in enumerate(groups)
        ]
        parents[top] = -1
        if apart is not None and chunk < (chunks + 1) // 2:
            parents[top], parents[apart] = apart, -1
        gathered = [one + 1 for one in gathered]
        for rank, size in zip(hubs, sizes, strict=True) if two else [(top, ranks - 1)]:
            gathered[rank] += size - 1
        added_last[top] += (len(every) - 2 + (apart is not None)) * two
        links = [Fraction(work) / link for work, link in zip(crossed, uplinks, strict=True) if link is not None]
        sent = max(Fraction(max(gathered[r] + added_last[r] for r in own), count) for count, own in alike.items())
        even = max(Fraction(work, own) for work, own in zip(busy, room, strict=True))
        yield GroupTree(tuple(parents), max([sent, *links]), max([even, Fraction(chunk + 1, min(nics)), *links]))


@lru_cache(maxsize=2)
def _trees(
    groups: tuple[int, ...],
    nics: tuple[int, ...],
    uplinks: tuple[Fraction | None, ...],
    apart: int | None,
    chunks: int,
) -> list[GroupTree]:
    """`trees`, kept: whether a recipe is worth a try is asked before it is lowered."""
    return list(trees(groups, nics, uplinks, apart, chunks))


class GroupWork(NamedTuple):
    """What a chunk gives groups to send, and their uplinks to carry each way."""

    sent: list[int]
    across: list[int]


def _two_levels(sizes: Sequence[int], last: int, home: int | None) -> GroupWork:
    """In groups of so many the hub of group `last` adds last; `home` : the group that the rank apart is a pod with."""
    sent, across = [2 * size - 1 for size in sizes], [1] * len(sizes)
    sent[last] += len(sizes) - 2 + (home is not None)
    across[last] += len(sizes) - 2
    if home not in (None, last):
        across[last] += 1
        across[home] += 1
    return GroupWork(sent, across)


def _one_level(sizes: Sequence[int], last: int) -> GroupWork:
    """A rank of group `last` gathers from all."""
    sent, across = list(sizes), list(sizes)
    sent[last] += sum(sizes) - 2
    across[last] = sum(sizes) - sizes[last]
    return GroupWork(sent, across)


# When each transfer of chunks along trees goes: steps, in each of which every NIC sends a chunk and receives one.
#
# A step is a matching of the ranks on each rail, so no two senders share a receiver. It has as many of the ready
# transfers as possible, and of these the ones furthest behind an even schedule. Sums of the i-th of N chunks are due
# after i/N of the first half of the time, results after i/N of the second; transfers that others must pass on are due
# before. A transfer is ready when its data has landed. Uplinks carry a limited number of chunks in a step.


UNIT = 2**16
"""Units of time in a step: whole numbers, so that every rank finds the same steps."""
ONE_MORE = 2**32
"""Weight of one more transfer, above all due times."""


class GroupMoves(NamedTuple):
    """Transfers of chunks in columns, int64 (moves,), in order of steps; `down`: 1 for a result, 0 for a sum."""

    step: Ints
    src: Ints
    dst: Ints
    rail: Ints
    chunk: Ints
    down: Ints


def group_moves(
    trees: Sequence[Sequence[int]],
    groups: Sequence[int],
    used: Sequence[Iterable[int]],
    uplinks: Sequence[Fraction | None],
    apart: int | None,
) -> GroupMoves:
    """All transfers.

    trees : of each chunk, towards whom each rank sends its sum, the last one -1; groups : of each rank its group, 0 to
    G-1; used : of each rank the rails that it serves, any two ranks one in common; uplinks : of each group, how many
    chunks cross its border at a time, each way, None: any number; apart : the rank that adds last of all to the first
    half of the chunks, None: there is none
    """
    ranks, served = len(groups), [{*rails} for rails in used]
    nics = [len(rails) for rails in served]
    rails = sorted(set().union(*served))
    found = group_steps(
        apart=-1 if apart is None else apart, lands=LANDS, unit=UNIT, one_more=ONE_MORE,
        half=UNIT * max(-(-len(trees) * (ranks - 1) // sum(nics)), -(-len(trees) // (2 * min(nics)))),
        parent=np.array(trees, np.int64), group=np.array(groups, np.int64),
        on=np.array([[rail in mine for mine in served] for rail in rails]),
        uplink=np.array([-1 if link is None else max(1, int(link)) for link in uplinks], np.int64),
    )  # fmt: skip
    moves = GroupMoves(*found.T)
    return moves._replace(rail=np.array(rails)[moves.rail])


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
        with no_collection():
            used, routes = nics_of(cluster), Routes(cluster)
            links = links_of(cluster, self.groups)
            parents = [tree.parents for tree in self.trees(cluster)]
            moves = group_moves(parents, self.groups, used, links, self.apart)
            cuts = even_cuts(0, nbytes, self.segments)
            kept = GroupMoves(*(column[(cuts[1:] > cuts[:-1])[moves.chunk]] for column in moves))
            kind = np.where(kept.down, Kind.RESULT, Kind.RAW)
            bytes_of = cuts[kept.chunk], cuts[kept.chunk + 1]
            hub = np.zeros_like(kind)
            rows = DirectRows(kept.src, kept.dst, kept.step, kind, hub, *bytes_of, kept.rail, kept.chunk)
            order, waits = in_place(rows.key, *dependencies(kept, parents))
            return scheduled(rows, order, waits, nic_ports(cluster, routes, used), routes, nbytes)

    def trees(self, cluster: Cluster) -> list[GroupTree]:
        """The tree of each chunk."""
        nics = tuple(len(mine) for mine in nics_of(cluster))
        return _trees(self.groups, nics, tuple(links_of(cluster, self.groups)), self.apart, self.segments)

    def check(self, cluster: Cluster) -> None:
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
        """Seconds of the busiest group, uplink or slowest server, if work is spread evenly in every group.

        Where two ranks have lost different rails some of their NICs cannot be spread over: there the busiest port's or
        link's in the lowered schedule.
        """
        used = nics_of(cluster)
        if any(len(a.keys() & b.keys()) < min(len(a), len(b)) for a, b in combinations(used, 2)):
            return super().fluid_s(cluster, nbytes)
        return self.even_s(cluster, nbytes)

    def even_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """Seconds if work is spread evenly in every group."""
        return self.trees(cluster)[-1].even * nbytes / (self.segments * nic_rate(cluster))

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        lines = [("groups", told_groups(cluster, self.groups))]
        if self.apart is not None:
            name = cluster.ranks[self.apart].name
            lines.append(("apart", f"{name}, which exchanges its data with hubs that add last"))
        made = self.trees(cluster)
        direct = sum(max(map(tree.parents.count, {*tree.parents})) == len(self.groups) - 1 for tree in made)
        lines.append(("chunks", f"{self.segments}" + f", {direct} of them exchanged directly with all" * (direct > 0)))
        return [*lines, ("steps", f"{-(-made[-1].steps // 1)} or more"), *pace_lines(cluster)]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> list[CandidateFamily]:
        """By pods, or on one fabric, if there are many servers, by groups whose size is near their number.

        With o the cost of a chunk and X the bound, in seconds, k steps cost k o. A plan takes the steps for the chunks
        of its busiest server, rounded up, so good numbers of chunks fill this whole number. With few steps a plan takes
        longer, since chunks take four hops. Beside a rank apart it always takes longer, since this rank waits for first
        sums.
        """
        if not grouped(cluster):
            return []
        ranks = len(cluster.ranks)
        pods = cluster.fabric.pod_oversubscription is not None
        nics = [len(mine) for mine in nics_of(cluster)]
        groups = tuple(pod_numbers(cluster) if pods else _dealt(nics) if ranks > LARGE else [0] * ranks)
        if not max(groups):
            return []
        recipe = cls(1, groups, lone(cluster, groups))
        # As many chunks as can be tried: of few, turns are too coarse to level the others.
        if recipe.apart is not None:
            finest = replace(recipe, segments=max(1, TRIED_MOVES // ranks))
            if finest.even_s(cluster, bound.nbytes) > bound.seconds:  # the others or their uplinks would be busier
                recipe = replace(recipe, apart=None)
        return [
            CandidateFamily(
                cls.family,
                lambda chunks: replace(recipe, segments=chunks),
                by_rate=False,
                shortlist=partial(_tried, recipe, cluster, bound, costs),
                least_s=_least_s(nics, nic_rate(cluster), bound, costs),
                least_of=None if pods else partial(_least_of, cluster=cluster, nbytes=bound.nbytes, costs=costs),
                deepest=MAX_MOVES // ranks,
            )
        ]

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> GroupedExchange:
        """Every rank in the group of the rank whose part it takes."""
        back = {new: old for old, new in to.items()}
        groups = tuple(self.groups[back[rank]] for rank in range(len(back)))
        return replace(self, groups=groups, apart=None if self.apart is None else to[self.apart])

    def like(self, cluster: Cluster, bound: Bound, costs: Costs, counts: GroupCounts) -> Recipe | None:
        """The same groups and chunks, with the rank apart that this cluster has, if any."""
        return replace(self, apart=lone(cluster, self.groups)) if grouped(cluster) else None


def dependencies(moves: GroupMoves, parents: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """(row that waits, row that it waits for): a sum waits for all contributions to it, a result for the sender's own
    result. At the rank that adds last, a result waits for all contributions."""
    tree, (chunks, ranks) = np.array(parents), (len(parents), len(parents[0]))
    at, down = moves.chunk * ranks + moves.dst, moves.down > 0
    here, result = moves.chunk * ranks + moves.src, np.empty(chunks * ranks, np.int64)
    result[at[down]] = np.flatnonzero(down)
    sums = np.flatnonzero(~down)
    sums = sums[np.argsort(at[sums], kind="stable")]
    counts = np.bincount(at[sums], minlength=chunks * ranks)
    begin = np.cumsum(counts) - counts
    passed = down & (tree[moves.chunk, moves.src] >= 0)
    own = np.where(passed, 0, counts[here])
    waits = np.repeat(np.arange(len(at)), own)
    place = np.arange(len(waits)) - np.repeat(np.cumsum(own) - own, own)
    on = sums[np.repeat(begin[here], own) + place]
    return np.concatenate((waits, np.flatnonzero(passed))), np.concatenate((on, result[here[passed]]))


def in_place(key: Ints, waits: Ints, on: Ints) -> tuple[Ints, tuple[Ints, Ints]]:
    """The rows by time, after what they wait for, and by place in that order the places that each waits for, CSR."""
    key = key.copy()
    np.maximum.at(key, waits, key[on] + 1)
    order, place = np.argsort(key, kind="stable"), np.empty(len(key), np.int64)
    place[order] = np.arange(len(order))
    waits, on = place[waits], place[on]
    by_row = np.lexsort((on, waits))
    return order, (np.concatenate(([0], np.cumsum(np.bincount(waits, minlength=len(key))))), on[by_row])


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


def _least_s(nics: Sequence[int], rate: Fraction, bound: Bound, costs: Costs) -> float:
    """Seconds below which no number of chunks n comes.

    The rank with fewest NICs, m of them, needs X for all data on these NICs. It sends every chunk, each of which costs
    o: X + o n/m. Before that, or as a hub beside that, it waits for or sends one chunk more, which lasts m X/n. The sum
    is least at X + 2 sqrt(o X).
    """
    alone = bound.nbytes / float(min(nics) * rate)
    return max(
        float(bound.seconds + 4 * costs.alpha),
        alone + 2 * sqrt(costs.per_chunk * alone) + float(costs.per_chunk + 2 * costs.alpha),
    )


def _least_of(recipe: GroupedExchange, cluster: Cluster, nbytes: int, costs: Costs) -> float:
    """Seconds of the server with most chunks on each NIC, where no uplink limits anything."""
    chunk = max(0, nbytes // recipe.segments - GRANULE)
    each_s = chunk / fastest_nic(cluster) + (costs.per_chunk if chunk else 0)
    return float(recipe.trees(cluster)[-1].steps * each_s + costs.alpha)


def _tried(recipe: GroupedExchange, cluster: Cluster, bound: Bound, costs: Costs) -> list[Recipe]:
    """Recipes with the most promising numbers of chunks."""
    used = nics_of(cluster)
    nics, ranks = [len(mine) for mine in used], len(used)
    per_step = min(Fraction(sum(nics), 2 * (ranks - 1)), Fraction(min(nics)))  # chunks
    cost = float(costs.per_chunk / bound.seconds) if bound.seconds else 0.0
    # Beside a rank apart first sums come over two hops of LANDS steps each, and the end is the mirror image.
    lost = 2 * LANDS + 1 if recipe.apart is not None else 1
    best = sqrt(lost / cost) if cost else DEFAULT_SEGMENTS
    most = max(1, min(int(per_step * (2 * best + FEWEST)), TRIED_MOVES // ranks))
    if recipe.apart is not None:
        listed = [max(1, int(min(most, per_step * best * part))) for part in (1, 5 / 4, 4 / 5)]
    else:
        links = links_of(cluster, recipe.groups)
        made = trees(recipe.groups, nics, links, None, most)
        steps = [ceil(tree.steps) for tree in made]
        lasts = [max(k, (k + FEWEST) / 2) * (float(per_step) / n + cost) for n, k in enumerate(steps, 1)]
        listed = sorted(range(1, most + 1), key=lambda n: (lasts[n - 1], n))
    chosen, moves = [listed[0]], listed[0] * ranks
    for number in listed[1:]:
        moves += number * ranks
        if len(chosen) < MOST_TRIED and moves <= TRIED_MOVES:
            chosen.append(number)
    return [replace(recipe, segments=number) for number in chosen]


def _dealt(nics: Sequence[int]) -> list[int]:
    """Groups whose size is near their number, of equal sizes where possible, and equally strong: ranks with fewer of
    `nics` are dealt out first."""
    ranks, root = len(nics), isqrt(len(nics))
    sizes = [size for size in range(2, ranks // 2 + 1) if ranks % size == 0 and root <= 2 * size and size <= 2 * root]
    count = ranks // min(sizes, key=lambda size: (max(size, ranks // size), -size)) if sizes else root
    found = [0] * ranks
    for place, rank in enumerate(sorted(range(ranks), key=lambda rank: (nics[rank], rank))):
        found[rank] = place % count
    return found
