"""What was decided in advance: for each shape of a cluster and each size the recipe that the planner found best.

A shape is a cluster with its servers' names forgotten, so failures that are alike share an entry: 128 servers of
8 equal NICs have 1024 single failures of one shape. An entry keeps recipes, not schedules: a few kilobytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import sqrt
from typing import TYPE_CHECKING

from optcc.plans import rings_in_order
from optcc.schedule.exchange import Exchange
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.latin import LatinExchange
from optcc.schedule.lockstep import LockstepExchange
from optcc.schedule.nested import NestedRings
from optcc.schedule.packed import Arc, PackedTrees, TreePair
from optcc.schedule.recipe import Recipe
from optcc.schedule.steady import SteadyExchange
from optcc.schedule.timetable import Timetable
from optcc.schedule.timetable_nics import applies, evened
from optcc.schedule.trees import ComplementaryTrees

if TYPE_CHECKING:
    from optcc.cluster import Cluster
    from optcc.plans import Plan
    from optcc.theory.tally import Tally


MOST_STARVING, STARVING_ROUNDS = 8, 0.6
MOST_EVEN, EVEN_ROUNDS = 2, 0.3
"""Rounds of direct exchange that was not chosen by trying: the most, and of the root of chunks; where a server starves
and where none does."""


@dataclass(frozen=True)
class Entry:
    """The plans of one shape, by size; no plan where the shape has none. `tally` is of the cluster they were made for,
    None outside the closed form, where a shape is one cluster only."""

    plans: Mapping[int, Plan]
    tally: Tally | None = None

    def recipe(self, size: int, tally: Tally | None) -> Recipe | None:
        """The recipe for the cluster that `tally` counts, which is of the entry's shape; None where its family is not
        known here and the servers have other places."""
        made = self.plans[size].recipe
        if tally is None or self.tally is None or tally.groups == self.tally.groups:
            return made
        return relabelled(made, matching(self.tally, tally), tally)


def matching(old: Tally, new: Tally) -> dict[int, int]:
    """Rank of `old` -> the rank of `new` that takes its part; equal servers in ascending order."""
    return {a: b for sign, members in old.groups.items() for a, b in zip(members, new.groups[sign], strict=True)}


def relabelled(recipe: Recipe, to: Mapping[int, int], tally: Tally) -> Recipe | None:
    """Every rank r as `to[r]`, on the cluster that `tally` counts. None for a family that is not known here."""
    if isinstance(recipe, NestedRings):
        return replace(recipe, order=tally.order)
    if isinstance(recipe, ComplementaryTrees | LockstepExchange):
        return recipe  # trees and steps are made of the rates anew whenever they are lowered
    if isinstance(recipe, Exchange | Timetable):
        shares = [Fraction(0)] * len(recipe.shares)
        for rank, share in enumerate(recipe.shares):
            shares[to[rank]] = share
        via = sorted((to[rank], part) for rank, part in recipe.via)
        return replace(recipe, shares=tuple(shares), via=tuple(via))
    if isinstance(recipe, GroupedExchange):
        back = {new: old for old, new in to.items()}
        order = [back[rank] for rank in range(len(back))]
        groups = tuple(recipe.groups[r] for r in order)
        return replace(recipe, groups=groups, shares=tuple(recipe.shares[r] for r in order))
    if isinstance(recipe, LatinExchange):
        first, second = sorted(to[rank] for rank in recipe.slow)
        return replace(recipe, slow=(first, second))
    if isinstance(recipe, SteadyExchange):
        return replace(recipe, slow=tuple(sorted(to[rank] for rank in recipe.slow)))
    if isinstance(recipe, PackedTrees):
        trees = (
            TreePair(tree.share, to[tree.root], _moved(tree.up, to), _moved(tree.down, to)) for tree in recipe.trees
        )
        return replace(recipe, trees=tuple(trees))
    return None


def _moved(arcs: tuple[Arc, ...], to: Mapping[int, int]) -> tuple[Arc, ...]:
    return tuple(arc._replace(src=to[arc.src], dst=to[arc.dst]) for arc in arcs)


def direct_for(cluster: Cluster, tally: Tally, chunks: float) -> Recipe:
    """Direct exchange of a usual depth, for three ranks and more; by timetable where there is one without trying.

    chunks : so many to each other server the bound would last. Rounds lose as much to chunks as they save in filling
    at about a root of that (measured).
    """
    hubs, last = tally.hub_split()
    if 0 in hubs:
        rounds = max(1, round(min(MOST_STARVING, STARVING_ROUNDS * sqrt(chunks))))
        return Exchange(rounds, hubs, last, ways=rounds, most=min(16, 2 * rounds), thin=min(4, rounds))
    rounds = max(1, round(min(MOST_EVEN, EVEN_ROUNDS * sqrt(chunks))))
    if applies(cluster) and evened(cluster) is cluster:
        return Timetable(rounds, hubs)
    return Exchange(rounds, hubs, last, own=rounds)


class Table:
    """Entries by key, the most lately used `keep` of them. Not thread-safe: its planner's lock is."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable) -> Entry | None:
        """The entry, which counts as a use of it."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: Hashable, entry: Entry) -> None:
        """Keep an entry; the one that was not used for longest makes room."""
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self._entries) > self.keep:
            self._entries.popitem(last=False)

    def nearest(self, tally: Tally) -> Entry | None:
        """The entry whose servers' rates differ least in all; one with a degraded server if `tally` has one."""
        offered = [e for e in self._entries.values() if e.plans and e.tally and e.tally.ranks == tally.ranks]
        uneven = [e for e in offered if e.tally and len(e.tally.levels) > 1]
        if len(tally.levels) > 1 and uneven:
            offered = uneven
        return min(offered, key=lambda e: distance(e.tally, tally) if e.tally else Fraction(0), default=None)


def distance(a: Tally, b: Tally) -> float:
    """Sum over servers, weakest first, of how much their usable rates differ, in units of the fastest server's."""
    total, place = 0.0, 0
    steps = [[(float(rate / tally.levels[-1][0]), len(members)) for rate, members in tally.levels] for tally in (a, b)]
    at, ends = [0, 0], [steps[0][0][1], steps[1][0][1]]
    while place < a.ranks:
        until = min(ends)
        total += (until - place) * abs(steps[0][at[0]][0] - steps[1][at[1]][0])
        place = until
        for side in (0, 1):
            if ends[side] == place and place < a.ranks:
                at[side] += 1
                ends[side] += steps[side][at[side]][1]
    return total


def like(entry: Entry, size: int, tally: Tally, fitted: ComplementaryTrees | GroupedExchange | None) -> Recipe | None:
    """A recipe for a cluster of another shape than the entry's: its family, as deep, with shares of its own. None where
    that cannot be carried over: a healthy cluster's exchange has no slow ranks that a failure's could go by.

    fitted : the entry's trees or groups for the cluster, where it has such
    """
    made = entry.plans[size].recipe
    if isinstance(made, NestedRings):
        return rings_in_order(tally.order, tally.shares(), made.segments)
    if isinstance(made, Exchange) and tally.ranks > 2:
        shares, via = tally.hub_split()
        if bool(via) == bool(made.via):
            return replace(made, shares=shares, via=via)
    if isinstance(made, Timetable):
        hubs, last = tally.hub_split()
        if made.growth and len(last) == 1 and 0 in hubs and len(set(hubs)) == 2:  # the only degraded one starves
            return replace(made, shares=hubs, via=((last[0][0], made.via[0][1]),))
        # What suits equal servers may lose a quarter of the time where one has fewer NICs.
        if last and 0 not in hubs and not made.growth and len({*made.shares}) > 1:
            return replace(made, shares=hubs, via=())
    if isinstance(made, ComplementaryTrees | GroupedExchange):
        return fitted
    return None
