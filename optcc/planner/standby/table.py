"""What was decided in advance: for each shape of a cluster and each size the recipe that the planner found best.

A shape is a cluster without its servers' names, so similar failures share an entry. 128 servers of 8 equal NICs have
1024 single failures of one shape. An entry keeps recipes, not schedules: a few kilobytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcc.schedule.recipe import Recipe

if TYPE_CHECKING:
    from optcc.plans.plan import Plan
    from optcc.theory.ring_shares import GroupCounts


@dataclass(frozen=True)
class Entry:
    """The plans of one shape, by size; no plan where the shape has none. `counts` is of the cluster they were made for,
    None outside the closed form, where a shape is one cluster only."""

    plans: Mapping[int, Plan]
    counts: GroupCounts | None = None

    def recipe(self, size: int, counts: GroupCounts | None) -> Recipe | None:
        """The recipe for the cluster that `counts` counts, which is of the entry's shape; None where its family is not
        known here and the servers have other places."""
        made = self.plans[size].recipe
        if counts is None or self.counts is None or counts.groups == self.counts.groups:
            return made
        return made.relabelled(matching(self.counts, counts), counts)


def matching(old: GroupCounts, new: GroupCounts) -> dict[int, int]:
    """Rank of `old` -> the rank of `new` that takes its part; equal servers in ascending order."""
    return {a: b for sign, members in old.groups.items() for a, b in zip(members, new.groups[sign], strict=True)}


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
