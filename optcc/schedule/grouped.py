"""Direct exchange in two levels: inside groups of servers, and between the groups.

Inside its group every server is the hub of a section, as in a timetable: it gathers the group's data for it, and
spreads the result. In between the hubs of the same bytes, one of each group, exchange directly, too: one of them
gathers the others' sums and sends the total back. Every server sends as much as by direct exchange of all, but meets
S-1 + G-1 others instead of P-1: far fewer chunks where there are many servers. Where pods are the groups, little
crosses their uplinks: the data once each way, as the bound demands, and (G-2) Y more.

Each transfer takes one NIC. Inside a group that is the group's timetable, in which the halves are gathering and
spreading. What a hub has gathered first goes to the other groups while it gathers the rest, and is back before it is to
be spread. Where sections differ, hubs gather in an order in which the same bytes are ready in all groups at about the
same time. Partners and NICs of the exchange between groups are staggered, so that senders seldom meet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise, permutations
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from optcc.cluster import Cluster
from optcc.schedule.assemble import cuts_by, even_cuts, granule
from optcc.schedule.columns import Schedule
from optcc.schedule.direct_rows import Ints, Kind, Piece, Rows, cut, overlapping, scheduled
from optcc.schedule.grouped_slots import Times, by_offsets
from optcc.schedule.many_objects import no_collection
from optcc.schedule.nics import common_rails, live_nics, nic_ports, nic_rate, told_pace
from optcc.schedule.pods import pod_numbers, uplinks
from optcc.schedule.recipe import Recipe, demand, demand_segments, exact
from optcc.schedule.routes import Routes
from optcc.schedule.slots import HALF, in_time, mirrored, whole

if TYPE_CHECKING:
    from optcc.bound import Bound
    from optcc.ladder import Costs, Ladder
    from optcc.theory.tally import Tally

MAX_ROUNDS = 256
SMALL_PART = Fraction(1, 9)
"""What hubs of different groups have in common is cut into as many windows as a section, if it is more of one."""
AFTER = HALF // 2**20
"""What is due at the same time goes first, of what is on its way inside groups (times of slots are rounded): sums that
went before it would hold up all that is gathered then (measured)."""

EVEN = Fraction(21, 20)
"""A schedule may be so many times above what it would be if NICs were equally busy: by whole chunks they hardly are."""

Section = list[tuple[int, int]]
"""(start, stop) of bytes, in the order in which they are gathered."""


class Window(NamedTuple):
    """Bytes whose hubs, one of each group, are the same ones: which part of all that these have in common, None where
    that is little or one of them is slow; the hubs; from where to where each group's hub adds last."""

    turn: int | None
    hubs: tuple[int, ...]
    cuts: list[int]


@dataclass(frozen=True)
class GroupedExchange(Recipe):
    """Direct exchange in two levels.

    Attributes
    ----------
    segments : windows, one after the other, in which hubs of different groups exchange, of what they have in common
    rounds : of each group's timetable, in each half
    groups : of each rank its group, 0 to G-1
    shares : each rank's part of the data as a hub of its group, sum 1 in every group
    finals : each group's part of the data to which its hubs add last, sum 1
    """

    family: ClassVar[str] = "grouped-exchange"
    segments: int
    rounds: int
    groups: tuple[int, ...]
    shares: tuple[Fraction, ...]
    finals: tuple[Fraction, ...]

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        with no_collection():
            routes, live = Routes(cluster), live_nics(cluster)
            windows = self._windows(self._owned(nbytes))
            section = self._sections(windows)
            found: list[tuple[int, ...]] = []
            for ranks in self._members:
                times = self._times(ranks, live)
                for i, k in permutations(ranks, 2):
                    raw = [Piece(Kind.RAW, k, *part) for part in section[k]]
                    result = [Piece(Kind.RESULT, i, *part) for part in section[i]]
                    slots = whole(times(i, k), in_time(mirrored(times(k, i)), live[k]))
                    found += ((i, k, *part) for part in cut(raw + result, slots))
            found += self._between(windows, live, found)
            rows = Rows(*np.array(found, np.int64).reshape(-1, len(Rows._fields)).T)
            return scheduled(rows, dependencies(rows), nic_ports(cluster, routes), routes, nbytes)

    @cached_property
    def _members(self) -> list[list[int]]:
        """The ranks of each group."""
        members: dict[int, list[int]] = defaultdict(list)
        for rank, group in enumerate(self.groups):
            members[group].append(rank)
        return [members[group] for group in sorted(members)]

    def _owned(self, nbytes: int) -> list[Section]:
        """The bytes that each rank is the hub of in its group.

        Groups of as many hubs have equal sections where that is possible, so that hubs of one group meet hubs of
        others in step. What a slow hub has less the faster ones of its group have more.
        """
        found: list[Section] = [[] for _ in self.groups]
        for members in self._members:
            ranks = [r for r in members if self.shares[r]]
            takers = [r for r in ranks if self.shares[r] * len(ranks) > 1]
            cuts, over = even_cuts(0, nbytes, len(ranks)).tolist(), []
            for rank, (low, high) in zip(ranks, pairwise(cuts), strict=True):
                less = self.shares[rank] * len(ranks) < 1
                own = min(high, granule(low + self.shares[rank] * nbytes, nbytes)) if less else high
                found[rank] = [(low, own)] if own > low else []
                over += [(own, high)] if own < high else []
            more = [self.shares[r] - Fraction(1, len(ranks)) for r in takers]
            cuts = cuts_by(0, sum(high - low for low, high in over), [x / sum(more) for x in more]).tolist()
            for rank, (start, stop) in zip(takers, pairwise(cuts), strict=bool(takers)):
                before = 0
                for low, high in over:
                    a, b = (min(max(end - before, 0), high - low) for end in (start, stop))
                    found[rank] += [(low + a, low + b)] if b > a else []
                    before += high - low
        return found

    def _times(self, ranks: Sequence[int], live: Sequence[Iterable[int]]) -> Times:
        """The slots of the first half for what one rank of a group sends another."""
        place = {rank: i for i, rank in enumerate(ranks)}
        nics = [tuple(live[r]) for r in ranks]
        pairs = by_offsets([self.shares[r] for r in ranks], nics, self.rounds)
        return lambda i, k: pairs(place[i], place[k])

    def _windows(self, owned: Sequence[Section]) -> list[Window]:
        """All bytes, in the order in which their hubs gather them: those of the same bytes at about the same time."""
        borders = sorted({end for own in owned for ends in own for end in ends})
        owners = [sorted((*ends, rank) for rank in ranks for ends in owned[rank]) for ranks in self._members]
        longest = max((high - low for own in owned for low, high in own), default=0)
        counts = [sum(self.shares[rank] > 0 for rank in ranks) for ranks in self._members]
        slow = {rank for rank, x in enumerate(self.shares) if x * counts[self.groups[rank]] < 1}
        at, found = [0] * len(owners), []
        for low, high in pairwise(borders):
            for group, own in enumerate(owners):
                at[group] += own[at[group]][1] <= low
            hubs = tuple(own[i][2] for own, i in zip(owners, at, strict=True))
            part = Fraction(high - low, longest)
            in_step = part >= SMALL_PART and not slow & {*hubs}
            count = self.segments if in_step else max(1, round(self.segments * part))
            for turn, (start, stop) in enumerate(pairwise(even_cuts(low, high, count).tolist())):
                if stop > start:
                    window = Window(turn if in_step else None, hubs, cuts_by(start, stop, self.finals).tolist())
                    found.append((Fraction(2 * turn + 1, 2 * count), window))
        return [window for _, window in sorted(found, key=lambda each: each[0])]

    def _sections(self, windows: Sequence[Window]) -> list[Section]:
        """What each rank is the hub of, in the order in which it gathers it."""
        found: list[Section] = [[] for _ in self.groups]
        for window in windows:
            start, stop = window.cuts[0], window.cuts[-1]
            for own in (found[hub] for hub in window.hubs):
                own.append((own.pop()[0] if own and own[-1][1] == start else start, stop))
        return found

    def _between(
        self, windows: Sequence[Window], live: Sequence[Mapping[int, object]], inside: Sequence[tuple[int, ...]]
    ) -> list[tuple[int, ...]]:
        """What goes between groups, by NICs in turn. inside : what goes inside them

        Windows of one turn all use the same NICs at the same time, so that nobody is ahead of others on them. What is
        left of sections afterwards is given to NICs that have least to do.
        """
        busy: Counter[tuple[int, int, bool]] = Counter()  # bytes by rank, NIC and way
        for i, k, *_, start, stop, nic, _ in inside:
            busy[i, nic, True] += stop - start
            busy[k, nic, False] += stop - start
        groups, found = len(self.finals), list[tuple[int, ...]]()
        timed = zip(windows, self._gathered(windows), strict=True)
        for window, gathered in sorted(timed, key=lambda each: each[0].turn is None):
            for place, (i, k, key, kind, hub, start, stop) in enumerate(self._exchanged(window, gathered)):
                common = sorted({*live[i]} & {*live[k]})
                if window.turn is not None:
                    away = (self.groups[k] - self.groups[i]) % groups
                    ahead = len(common) // 2 if kind == Kind.TOTAL else 0
                    nic = common[(window.turn * (groups - 1) + away - 1 + ahead) % len(common)]
                else:
                    nic = min(common, key=lambda n: (max(busy[i, n, True], busy[k, n, False]), n))
                busy[i, nic, True] += stop - start
                busy[k, nic, False] += stop - start
                found.append((i, k, key, kind, hub, start, stop, nic, place))
        return found

    def _gathered(self, windows: Sequence[Window]) -> list[list[int]]:
        """When each window's data is at its hub in each group. A slow rank sends data for longer than a half."""
        sizes = [window.cuts[-1] - window.cuts[0] for window in windows]
        total, done = Counter[int](), Counter[int]()
        for window, size in zip(windows, sizes, strict=True):
            total.update(dict.fromkeys(window.hubs, size))
        slowest = [min(self.shares[rank] for rank in own) for own in self._members]
        lasts = [
            2 * HALF * x / (x + slowest[group]) if x else 0 for x, group in zip(self.shares, self.groups, strict=True)
        ]
        found = []
        for window, size in zip(windows, sizes, strict=True):
            done.update(dict.fromkeys(window.hubs, size))
            found.append([int(lasts[hub] * done[hub] / total[hub]) for hub in window.hubs])
        return found

    def _exchanged(self, window: Window, gathered: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Sums to the hubs that add last, when the window has been gathered, and totals from them."""
        hubs, cuts = window.hubs, window.cuts
        slots = [HALF // (self.rounds * max(1, len(own) - 1)) for own in self._members]  # about what a turn takes
        due = [when + slot + AFTER for when, slot in zip(gathered, slots, strict=True)]
        latest = max(due) + max(slots)
        for away in range(1, len(hubs)):
            for group, hub in enumerate(hubs):
                # In a step all groups send as far: what the one so much further adds last to, what this one has.
                other = (group + away) % len(hubs)
                for kind, last, key in ((Kind.SUM, other, due[group]), (Kind.TOTAL, group, latest)):
                    part = cuts[last], cuts[last + 1]
                    if part[0] < part[1]:
                        yield hub, hubs[other], key + away, kind, hubs[last], *part

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        ranks = len(cluster.ranks)
        demand(grouped(cluster), "cluster", "servers as ranks, NICs of one pace, each two with a rail in common", ranks)
        demand_segments(self.segments)
        demand(1 <= self.rounds <= MAX_ROUNDS, "rounds", f"1 to {MAX_ROUNDS}", self.rounds)
        demand(len(self.groups) == ranks == len(self.shares), "groups", f"{ranks} of them, and of shares", self.groups)
        named = sorted(set(self.groups))
        demand(named == list(range(len(self.finals))) and len(named) > 1, "groups", "0 to G-1, two or more", named)
        demand(min(self.finals) >= 0 and sum(self.finals) == 1, "finals", "parts of sum 1", sum(self.finals))
        each = [sum(self.shares[r] for r in own) for own in self._members]
        demand(min(self.shares) >= 0 and {*each} == {1}, "shares", "parts of sum 1 in every group", each)
        live = live_nics(cluster)
        for own in self._members:
            kinds = {(tuple(live[r]), self.shares[r]) for r in own}
            alike = len(kinds) == len({nics for nics, _ in kinds})
            demand(alike, "shares", "equal ones of servers of a group with the same NICs", "others")

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """`even_s`; where NICs cannot be equally busy, or groups are not the pods, the schedule's."""
        found, even = super().fluid_s(cluster, nbytes), self.even_s(cluster, nbytes)
        lacking = cluster.fabric.rails and len({frozenset(mine) for mine in live_nics(cluster)}) > 1
        return found if lacking or found > EVEN * even else even

    def even_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """The busiest server's work if all its NICs are equally busy, or the busiest uplink's if groups are pods."""
        rate, count = nic_rate(cluster), len(self.finals)
        works = []
        for x, group, mine in zip(self.shares, self.groups, live_nics(cluster), strict=True):
            others = self.groups.count(group) - 1
            works.append((1 + others * x + (count - 2) * self.finals[group] * x) / (len(mine) * rate))
        for uplink, final in zip(uplinks(cluster, self.groups), self.finals, strict=True):
            works += [(1 + (count - 2) * final) / uplink] if uplink is not None else []
        return max(works) * nbytes

    def content(self) -> dict[str, Any]:
        """Every field as JSON values."""
        return {
            "segments": self.segments,
            "rounds": self.rounds,
            "groups": list(self.groups),
            "shares": [str(x) for x in self.shares],
            "finals": [str(x) for x in self.finals],
        }

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """The recipe of `content`."""
        return cls(
            segments=raw["segments"],
            rounds=raw["rounds"],
            groups=tuple(raw["groups"]),
            shares=tuple(exact(x) for x in raw["shares"]),
            finals=tuple(exact(x) for x in raw["finals"]),
        )

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """The groups, who gathers what, and the rounds."""
        lines = [("groups", told_groups(cluster, self.groups))]
        lines.append(("hubs", "every server of a group exchanges with all of it, and with its like in other groups"))
        slow = [r for r, x in enumerate(self.shares) if x < max(self.shares[k] for k in self._members[self.groups[r]])]
        lines += [(cluster.ranks[r].name, f"hub of {float(self.shares[r]) * 100:.4g} %") for r in slow[:4]]
        if len(slow) > 4:
            lines.append(("more slow ranks", str(len(slow) - 4)))
        lines.append(("rounds in a group", f"{self.rounds} in each half; one NIC for each transfer"))
        return [*lines, ("windows", f"{self.segments} of a hub's section, between groups"), *told_pace(cluster)]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[Ladder]:
        """See `grouped_candidates`."""
        from optcc.schedule.grouped_candidates import grouped_ladders

        return grouped_ladders(cluster, bound, costs)

    def relabelled(self, to: Mapping[int, int], tally: Tally) -> GroupedExchange:
        """Every rank in the group of the one whose part it takes."""
        back = {new: old for old, new in to.items()}
        order = [back[rank] for rank in range(len(back))]
        groups, shares = (tuple(column[r] for r in order) for column in (self.groups, self.shares))
        return replace(self, groups=groups, shares=shares)  # type: ignore[arg-type]

    def like(self, cluster: Cluster, bound: Bound, costs: Costs, tally: Tally) -> Recipe | None:
        """The same groups with the parts that suit this cluster, unless a server would have none."""
        from optcc.schedule.grouped_candidates import split

        if not grouped(cluster):
            return None
        shares, finals = split(cluster, self.groups)
        return replace(self, shares=shares, finals=finals) if min(shares) else None


def dependencies(rows: Rows) -> list[tuple[Ints, Ints]]:
    """Pairs (row that waits, row that it waits for), those of later kinds after those that they may wait for."""
    none = np.empty(0, np.int64)
    sent, landed = _by_kind(rows, rows.src), _by_kind(rows, rows.dst)
    found: list[tuple[Ints, Ints]] = []
    for kind, earlier in (
        (Kind.SUM, (Kind.RAW,)),
        (Kind.PARTIAL, (Kind.RAW, Kind.SUM)),
        (Kind.FINAL, (Kind.PARTIAL,)),
        (Kind.TOTAL, (Kind.RAW, Kind.SUM, Kind.FINAL)),
        (Kind.RESULT, (Kind.RAW, Kind.SUM, Kind.FINAL, Kind.TOTAL)),
    ):
        for rank in np.unique(rows.src).tolist():
            waits = sent.get((rank, kind), none)
            found += (overlapping(rows, waits, landed.get((rank, before), none)) for before in earlier)
    return found


def told_groups(cluster: Cluster, groups: Sequence[int]) -> str:
    """How many there are, of how many servers, for people."""
    sizes = [groups.count(group) for group in {*groups}]
    text = f"{len(sizes)} of {min(sizes)}" + (f" to {max(sizes)}" if max(sizes) > min(sizes) else "") + " servers"
    pods = pod_numbers(cluster)
    return (
        f"{text}, the pods"
        if max(pods) and len({*zip(pods, groups, strict=True)}) == len({*pods}) == len({*groups})
        else text
    )


def _by_kind(rows: Rows, ends: Ints) -> dict[tuple[int, int], Ints]:
    """(rank at that end, kind) -> its rows, in order of senders and of bytes."""
    key = ends * len(Kind) + rows.kind
    order = np.lexsort((rows.start, rows.src, key))
    parts = np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(order) else []
    return {divmod(int(key[part[0]]), len(Kind)): part for part in parts}


def grouped(cluster: Cluster) -> bool:
    """Servers as ranks, three or more, of which every two have a NIC in use in common."""
    ranks = cluster.ranks
    if cluster.gpu_ranks or len(ranks) < 3:
        return False
    live = [tuple(mine) for mine in live_nics(cluster)]
    return all(live) and common_rails(live)
