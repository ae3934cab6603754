"""Direct exchange by a Latin square: two servers have half of their NICs or fewer, alike, and set the bound together.

Each of the two can send from the beginning, but what it is to receive without receiving anything twice are sums that
lack only its own part, which wait for what the other has sent. They cannot run ahead of each other, so rounds cannot
grow: what counts is how soon after the one has sent a chunk the other is sent the sum (docs/schedules.md).

The full servers are hubs of equal sections, of which the two add last to one half each. A section is gathered in
*windows*, chunk by chunk. In step t of H, the number of hubs, hub h sends to hub s(t) - h (mod H): a Latin square, in
which every hub has heard from every other one after H steps, and nobody ever meets another sender. Where that would be
h itself, it exchanges with a slow server instead: that one's data for this window, and the sum of an earlier one. With
an even number of hubs two of them do so for every even s, none for an odd one: even steps of the square are made on
NICs that the slow servers have, odd ones on the others, in turn. With an odd number one does in every step: steps are
made in turn on NICs that exchange with the one slow server and on others for the other.

A window that has been gathered goes to the slow server `margin` steps later or more, as chunks in so many steps are
under way at once and one more latency passes. The second half is the first one's mirror image in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from optcc.cluster import Cluster
from optcc.schedule.assemble import even_cuts
from optcc.schedule.columns import Schedule
from optcc.schedule.pods import direct_uplink_s
from optcc.schedule.recipe import Recipe, demand, demand_segments
from optcc.schedule.routes import Routes
from optcc.schedule.timetable_nics import live_nics, nic_ports, nic_rate, starving_pair, told_pace
from optcc.schedule.timetable_rows import Kind, Rows, dependencies, scheduled

MAX_MARGIN = 4096
KINDS = ((Kind.RAW, Kind.PARTIAL), (Kind.RESULT, Kind.FINAL))
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LatinExchange(Recipe):
    """Direct exchange by a Latin square.

    Attributes
    ----------
    segments : windows of each hub's section
    slow : the two slow ranks, in order
    margin : steps, at least, from the last one of a window to the one that sends its sum to a slow rank
    """

    family: ClassVar[str] = "latin-exchange"
    segments: int
    slow: tuple[int, int]
    margin: int

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        routes, live, hubs = Routes(cluster), live_nics(cluster), self._hubs(len(cluster.ranks))
        fewer, places = [list(live[rank]) for rank in self.slow], list(live[hubs[0]])
        if cluster.fabric.rails:  # else any NIC reaches any
            places = list(dict.fromkeys([*fewer[0], *(fewer[1] if len(hubs) % 2 else ()), *places]))
        mine = {rank: dict(enumerate(places)) for rank in hubs}
        for which, rank in enumerate(self.slow):  # an odd number of hubs has NICs of its own for each of the two
            mine[rank] = dict(enumerate(live[rank], which * len(fewer[0]) if len(hubs) % 2 else 0))
        ports = [
            {nic: port[place] for nic, place in mine[rank].items()}
            for rank, port in enumerate(nic_ports(cluster, routes))
        ]
        sections = even_cuts(0, nbytes, len(hubs)).tolist()
        cuts = np.array([even_cuts(start, stop, self.segments) for start, stop in pairwise(sections)])
        rows = self._rows(np.array(hubs), cuts, len(fewer[0]), len(places))
        pairs = dependencies(rows, dict(zip(hubs, sections[1:], strict=True)))
        return scheduled(rows, pairs, ports, routes, nbytes)

    def _hubs(self, ranks: int) -> list[int]:
        return [rank for rank in range(ranks) if rank not in self.slow]

    def _rows(self, ranks: Ints, cuts: Ints, fewer: int, nics: int) -> Rows:
        """All transfers that carry something.

        ranks : (H,), the hubs; cuts : (H, windows + 1), where their windows begin and end; fewer, nics : how many the
        slow servers have and the others
        """
        count, windows, slow = len(ranks), self.segments, np.array(self.slow)
        odd = count % 2

        def last(hub: Ints, window: Ints) -> Ints:
            """Which of the slow ranks adds last to a window. The other one sends its data for it to the hub."""
            return 1 - (window * count + turn[hub]) % 2 if odd else (window + hub // (count // 2)) % 2

        # Of an even number even steps of the square, those with the slow ranks, come second in each two of a window.
        square = np.arange(count) if odd else np.arange(count) ^ 1
        turn = np.argsort(square)[2 * np.arange(count) % count]  # of each hub, the step with a slow rank
        step, hub = np.indices((count * windows, count)).reshape(2, -1)
        to = (square[step % count] - hub) % count
        window, owner = np.indices((windows, count)).reshape(2, -1)
        due = (window + 1) * count - 1 + self.margin
        when = due + (turn[owner] - due) % count
        if odd:  # a step on NICs for the one that adds last
            when += np.where(when % 2 == last(owner, window), 0, count)
        end = count * windows + int(when.max())  # the last step of the plan

        halves = []
        for mirrored in (False, True):
            # In the mirror what was gathered first comes first, and every slow rank has its own NICs again.
            of = [(windows // 2 * 2 - each) % windows if mirrored else each for each in (step // count, window)]
            raw = np.where(to == hub, slow[1 - last(to, of[0])], ranks[hub]), ranks[to], step, to, of[0]
            sums = ranks[owner], slow[last(owner, of[1])], when, owner, of[1]
            for kind, (src, dst, at, whose, which) in zip(KINDS[mirrored], (raw, sums), strict=True):
                first = at % 2 == 1 - odd  # on the NICs that serve the first slow rank, or both
                nic = np.where(first, at // 2 % fewer, fewer + at // 2 % (fewer if odd else nics - fewer))
                ends = (dst, src, end - at) if mirrored else (src, dst, at)
                bounds = cuts[whose, which], cuts[whose, which + 1]
                place = which + windows * mirrored
                halves.append((*ends, np.full(len(at), kind), ranks[whose], *bounds, nic, place))
        columns = [np.concatenate(each) for each in zip(*halves, strict=True)]
        rows = Rows(*columns)
        some = rows.start < rows.stop
        return Rows(*(column[some] for column in rows))

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        pair = latin_pair(cluster)
        demand(pair is not None, "cluster", "two servers alike that have half of their NICs or fewer", "another one")
        demand(tuple(self.slow) == pair, "slow", f"the two ranks with fewer NICs, {pair}", self.slow)
        demand_segments(self.segments)
        demand(0 <= self.margin <= MAX_MARGIN, "margin", f"0 to {MAX_MARGIN}", self.margin)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """What the slow servers need, as the NICs of the hubs are no busier than theirs; or the busiest uplink."""
        ranks = len(cluster.ranks)
        shares = [Fraction(rank not in self.slow, ranks - 2) for rank in range(ranks)]
        slow_s = nbytes / (len(live_nics(cluster)[self.slow[0]]) * nic_rate(cluster))
        return max(slow_s, direct_uplink_s(cluster, shares, nbytes))

    def content(self) -> dict[str, Any]:
        """Every field as JSON values."""
        return {"segments": self.segments, "slow": list(self.slow), "margin": self.margin}

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """The recipe of `content`."""
        first, second = raw["slow"]
        return cls(segments=raw["segments"], slow=(first, second), margin=raw["margin"])

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """Who gathers what, and who adds last."""
        names = " and ".join(cluster.ranks[rank].name for rank in self.slow)
        hubs = len(cluster.ranks) - 2
        return [
            ("hubs", f"{hubs} of {hubs + 2}, each exchanges directly with all"),
            ("add last", f"{names}, to one half each"),
            ("windows", f"{self.segments}, sent on {self.margin} steps after their ends; one NIC for each transfer"),
            *told_pace(cluster),
        ]


def latin_pair(cluster: Cluster) -> tuple[int, int] | None:
    """The two ranks with equally many NICs, half of the others' at most; None where there are no such two.

    On rails an even number of hubs meets both on the same NICs, so they must have lost the same; an odd number on
    different ones. Where there are no rails any NIC will do.
    """
    pair, live = starving_pair(cluster), live_nics(cluster)
    if pair is None or len(live[pair[0]]) != len(live[pair[1]]):
        return None
    if not cluster.fabric.rails:
        return pair
    first, second = (set(live[rank]) for rank in pair)
    return pair if (first.isdisjoint(second) if len(live) % 2 else first == second) else None
