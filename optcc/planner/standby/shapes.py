"""Which states may come next, each shape of them once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from optcc.planner.standby.state import Places, State
from optcc.theory.ring_shares import GroupCounts
from optcc.values.cluster import Cluster


def closed_form(cluster: Cluster) -> bool:
    """Servers as ranks on one non-blocking fabric: the bound is the largest of four terms, nested rings have shares."""
    return cluster.fabric.flat and not cluster.gpu_ranks and len(cluster.servers) > 1


@dataclass(frozen=True)
class Now:
    """A state and, in the closed form, its counts."""

    state: State
    counts: GroupCounts | None

    @classmethod
    def of(cls, cluster: Cluster) -> Now:
        """Before any event."""
        return cls(State(cluster), GroupCounts.of(cluster) if closed_form(cluster) else None)

    @cached_property
    def key(self) -> Hashable:
        """Of the table: equal for clusters that need the same decision."""
        return self.state.deviations if self.counts is None else (self.counts.key, self.state.shared)

    @property
    def possible(self) -> bool:
        """No server is cut off; outside the closed form the planner has to find that out."""
        return self.counts is None or self.counts.levels[0][0] > 0

    def after(self, place: tuple[int, int], rate: Fraction | None) -> Now:
        """See `State.after`."""
        state = self.state.after(place, rate)
        if self.counts is None:
            return Now(state, None)
        old, new = self.state.cluster.servers[place[0]], state.cluster.servers[place[0]]
        return Now(state, self.counts.moved(place[0], old, new))


def upcoming(now: Now, places: Places, *, lookahead: int, lefts: Sequence[Fraction], most: int) -> list[Now]:
    """`now`, what repairs make of it, then every single failure, then every second one, to `lookahead` in a row.

    A failure leaves a NIC one of the fractions `lefts` of its rate. In the closed form every shape comes once,
    elsewhere every NIC does and only the next failure is looked at. At most `most` states.
    """
    found: dict[Hashable, Now] = {}

    def add(states: Iterator[Now]) -> list[Now]:
        new = []
        for state in states:
            if len(found) < most and state.possible and state.key not in found:
                found[state.key] = state
                new.append(state)
        return new

    edge = add(iter([now]))
    add(now.after(places[nic], None) for nic, _, _ in sorted(now.state.deviations))
    for _ in range(lookahead if now.counts is not None else min(lookahead, 1)):
        edge = add(failed for state in edge for failed in _failures(state, lefts))
    return list(found.values())


def _failures(now: Now, lefts: Sequence[Fraction]) -> Iterator[Now]:
    """One more failure: in the closed form at the first server of each group only."""
    cluster = now.state.cluster
    servers = range(len(cluster.servers)) if now.counts is None else sorted(m[0] for m in now.counts.groups.values())
    for s in servers:
        for i, (nic, whole) in enumerate(zip(cluster.servers[s].nics, cluster.fault_free.servers[s].nics, strict=True)):
            for left in lefts:
                rate = left * max(whole.out_rate, whole.in_rate)
                if rate < max(nic.out_rate, nic.in_rate):
                    yield now.after((s, i), rate)
