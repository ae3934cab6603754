"""Direct exchange in two levels beside a starving rank that is in no group.

A rank that only just has time for its own data is the hub of nothing; between pods it is in the way of its own group,
whose hubs all have time to spare but not so much that they alone could exchange all data with it. Here the others make
sums in two levels as in `optcc.schedule.grouped`, chunk by chunk: a hub in each group gathers its group's data, one of
these hubs adds last. The rank apart exchanges each chunk with the hub that adds last, in whatever group it is; where
its uplink has no room for that, half of the data with its own group's hubs.

To one half of the data it adds last of all: it is sent sums in the first half of the plan, from soon after the start,
and sends totals in the second. Of the other half it sends raw data in the first half of the plan and gets totals in the
second. So it is busy both ways all the time. The others do first what it adds last to, and spread that last.

In which step each NIC does what is found for all ranks together (`apart_steps.py`), for the first half; for the second
likewise, seen from its end. On one fabric any NIC reaches any, so that at both ends the NIC is taken
that has had least to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from itertools import accumulate
from math import lcm
from typing import Any, ClassVar, Self

import numpy as np

from optcc.cluster import Cluster
from optcc.schedule.apart_steps import Chunk, Move, sums_in_steps
from optcc.schedule.assemble import cuts_by
from optcc.schedule.columns import Schedule
from optcc.schedule.grouped import dependencies, grouped, told_groups
from optcc.schedule.many_objects import no_collection
from optcc.schedule.pods import uplinks
from optcc.schedule.recipe import Recipe, demand, demand_segments, exact
from optcc.schedule.routes import Routes
from optcc.schedule.timetable_nics import live_nics, nic_ports, nic_rate, told_pace
from optcc.schedule.timetable_rows import Ints, Kind, Rows, scheduled

BACK = {Kind.RAW: Kind.RESULT, Kind.SUM: Kind.TOTAL, Kind.PARTIAL: Kind.FINAL}
"""What goes the other way in the other half."""
STEPS, SMALL = 2, 2
"""A chunk takes so many steps, and half of that in so many windows at each end of what the one apart adds last to: with
the first of these it begins, and the others wait for the last (measured)."""
GROUPS_WEIGH = 64
"""How far behind its part a hub is in adding last weighs so many times as much as how far behind its group is."""


@dataclass(frozen=True)
class ApartExchange(Recipe):
    """Direct exchange in two levels beside a starving rank.

    Attributes
    ----------
    segments : windows, of as many chunks as the largest group has ranks; of fewer than 8 or an odd number of them the
        one apart adds last to less than half
    apart : the rank that is in no group
    inside : whether it exchanges the data that it does not add last to with its own group's hubs
    groups : of each rank its group, 0 to G-1; of the one apart that of its pod
    hubs : each rank's part of the data as a hub of its group, sum 1 in every group, 0 of the one apart
    finals : each rank's part of the data to which it adds last, but for the one apart, sum 1
    """

    family: ClassVar[str] = "apart-exchange"
    segments: int
    apart: int
    inside: bool
    groups: tuple[int, ...]
    hubs: tuple[Fraction, ...]
    finals: tuple[Fraction, ...]

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        with no_collection():
            routes, live = Routes(cluster), live_nics(cluster)
            chunks = self._chunks()
            sizes = sum(chunk.steps for chunk in chunks)
            cuts = cuts_by(0, nbytes, [Fraction(chunk.steps, sizes) for chunk in chunks]).tolist()
            rows = [
                (src, dst, step, kind, 0, cuts[chunk], cuts[chunk + 1], 0, chunk)
                for step, src, dst, kind, chunk in self._moves(chunks, cluster)
                if cuts[chunk] < cuts[chunk + 1]
            ]
            columns = Rows(*np.array(rows, np.int64).reshape(-1, len(Rows._fields)).T)
            counts = [len(mine) for mine in live]
            # Both ends' NICs in one number: the sender's, and the receiver's of as many as any rank has.
            columns = columns._replace(
                nic=_least_busy(columns, columns.src, counts) * max(counts) + _least_busy(columns, columns.dst, counts)
            )
            ports = [list(mine.values()) for mine in nic_ports(cluster, routes)]
            out = [dict(enumerate(port for port in mine for _ in range(max(counts)))) for mine in ports]
            into = [
                {i * max(counts) + place: port for i in range(max(counts)) for place, port in enumerate(mine)}
                for mine in ports
            ]
            return scheduled(columns, dependencies(columns), out, routes, nbytes, into=into)

    def _moves(self, chunks: Sequence[Chunk], cluster: Cluster) -> list[Move]:
        """All that is sent, in both halves."""
        nics, rate = [len(mine) for mine in live_nics(cluster)], nic_rate(cluster)
        room = [sum(nics) if link is None else max(1, int(link / rate)) for link in uplinks(cluster, self.groups)]
        sums = partial(
            sums_in_steps,
            members=self._members,
            apart=self.apart,
            home=self.groups[self.apart],
            nics=nics,
            uplinks=room,
        )
        first = sums(chunks)
        # The second half spreads first what the one apart does not add last to: the rest it still has to send.
        order = sorted(range(len(chunks)), key=lambda place: (chunks[place].last, place))[::-1]
        second = sums([chunks[place] for place in order])
        ends = sum(max(move.step + chunks[move.chunk].steps for move in half) for half in (first, second))
        back = [
            Move(ends - step - chunks[order[chunk]].steps, dst, src, BACK[kind], order[chunk])
            for step, src, dst, kind, chunk in reversed(second)
        ]
        return first + back

    @cached_property
    def _members(self) -> list[list[int]]:
        """The ranks of each group but the one apart."""
        return [
            [rank for rank, own in enumerate(self.groups) if own == group and rank != self.apart]
            for group in range(1 + max(self.groups))
        ]

    def _chunks(self) -> list[Chunk]:
        """Who does what with each part of the data: at any time all as much as their parts say, to within a chunk."""
        every = lcm(*(part.denominator for part in (*self.hubs, *self.finals)))
        hubs, finals = ([int(part * every) for part in parts] for parts in (self.hubs, self.finals))
        of_group = [sum(finals[rank] for rank in own) for own in self._members]
        largest = max(map(len, self._members))
        small = SMALL if self.segments >= 4 * SMALL else 0
        last = (self.segments + small) // 2  # windows, of as many bytes as the others
        short = {*range(small), *range(last - small, last)}
        steps = [STEPS // 2 if window in short else STEPS for window in range(self.segments) for _ in range(largest)]
        gathered, added = [0] * len(hubs), [0] * len(hubs)
        found = []
        for place, done in enumerate(accumulate(steps)):
            here = tuple(
                max((r for r in own if hubs[r]), key=lambda r: (hubs[r] * done - gathered[r] * every, -r))
                for own in self._members
            )
            adding = [sum(added[rank] for rank in own) for own in self._members]
            final = max(
                range(len(here)),
                key=lambda g: (
                    GROUPS_WEIGH * (finals[here[g]] * done - added[here[g]] * every)
                    + of_group[g] * done
                    - adding[g] * every,
                    -g,
                ),
            )
            for rank in here:
                gathered[rank] += steps[place]
            added[here[final]] += steps[place]
            inside = self.inside and place >= last * largest
            partner = here[self.groups[self.apart] if inside else final]
            found.append(Chunk(here, final, partner, place < last * largest, steps[place]))
        return found

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        ranks = len(cluster.ranks)
        fits = grouped(cluster) and not cluster.fabric.rails
        demand(fits, "cluster", "servers as ranks, NICs of one pace that all reach each other", ranks)
        demand_segments(self.segments)
        demand(isinstance(self.inside, bool), "inside", "true or false", self.inside)
        demand(0 <= self.apart < ranks, "apart", f"0 to {ranks - 1}", self.apart)
        sizes = {len(self.groups), len(self.hubs), len(self.finals)}
        demand(sizes == {ranks}, "groups", f"{ranks} of them, of hubs and of finals", sizes)
        named = sorted({*self.groups})
        demand(named == list(range(len(named))) and len(named) > 1, "groups", "0 to G-1, two or more", named)
        demand(min(map(len, self._members)) > 0, "groups", "another rank in the group of the one apart", self.groups)
        demand(not (self.hubs[self.apart] or self.finals[self.apart]), "apart", "a hub of nothing", self.apart)
        each = {sum(self.hubs[r] for r in own) for own in self._members}
        demand(min(self.hubs) >= 0 and each == {1}, "hubs", "parts of sum 1 in every group", each)
        demand(min(self.finals) >= 0 and sum(self.finals) == 1, "finals", "parts of sum 1", sum(self.finals))
        idle = [r for r, (x, y) in enumerate(zip(self.hubs, self.finals, strict=True)) if y and not x]
        demand(not idle, "finals", "0 of ranks that are hubs of nothing", idle)

    def content(self) -> dict[str, Any]:
        """Every field as JSON values."""
        return {
            "segments": self.segments,
            "apart": self.apart,
            "inside": self.inside,
            "groups": list(self.groups),
            "hubs": [str(x) for x in self.hubs],
            "finals": [str(x) for x in self.finals],
        }

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """The recipe of `content`."""
        return cls(
            segments=raw["segments"],
            apart=raw["apart"],
            inside=raw["inside"],
            groups=tuple(raw["groups"]),
            hubs=tuple(exact(x) for x in raw["hubs"]),
            finals=tuple(exact(x) for x in raw["finals"]),
        )

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """The groups, and with whom the one apart exchanges its data."""
        partners = "hubs that add last, in all groups"
        if self.inside:
            partners += "; of the data that it does not add last to, with the hubs of its own"
        return [
            ("groups", told_groups(cluster, self.groups)),
            ("apart", f"{cluster.ranks[self.apart].name}, which exchanges its data with the {partners}"),
            ("windows", f"{self.segments}, of {max(map(len, self._members))} chunks; one NIC for each transfer"),
            *told_pace(cluster),
        ]


def _least_busy(rows: Rows, ends: Ints, counts: Sequence[int]) -> Ints:
    """Of each row the place of its end's NIC, of `counts` that this rank has: the one that has had least to do."""
    done = [[0] * count for count in counts]
    found = np.empty_like(ends)
    sizes = (rows.stop - rows.start).tolist()
    for row in np.argsort(rows.key, kind="stable").tolist():
        own = done[ends[row]]
        found[row] = nic = own.index(min(own))
        own[nic] += sizes[row]
    return found
