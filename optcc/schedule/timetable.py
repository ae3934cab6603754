"""Direct exchange by timetable: one server has fewer NICs than the others, and no NIC that limits ever waits.

Hubs and what goes by way of the slow server are those of `exchange`. Here each transfer takes one NIC, and each rail
has a timetable (`timetable_slots`): in step t everybody sends to the rank d(t) further, a permutation, so that senders
never meet at a receiver. That works out since the slow server's rails are all-to-alls of all servers with equally much
for every pair, and the other rails the same among full servers: where the bound is set by all, every NIC is busy all
the time. With r rounds a NIC pays for 2r(P-1) chunks; besides these and two latencies nothing is lost.

A pair's bytes of a half follow its slots on all rails in order of time. What goes by way of the slow server lies first
in each hub's section, is gathered first, and is handed out last, so that everything is there well before it is due.

A slow server that is a hub of nothing has nothing to receive before first sums exist: its first slots stay empty, and
steps begin small and double. The second half is the first one's mirror image in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Self

import numpy as np

from optcc.cluster import Cluster
from optcc.schedule.assemble import granule
from optcc.schedule.columns import Schedule
from optcc.schedule.recipe import MAX_SEGMENTS, Recipe, demand, demand_segments, exact
from optcc.schedule.routes import Routes
from optcc.schedule.timetable_rows import STAGES, Kind, Piece, Rows, cut, dependencies
from optcc.schedule.timetable_slots import TICKS, Slot, merged, mirrored, slots, step_sizes

MAX_DOUBLINGS = 16
ONE_NIC = (Fraction(1),)


@dataclass(frozen=True)
class Timetable(Recipe):
    """Direct exchange by timetable.

    Attributes
    ----------
    segments : full rounds in each half; with `steps`, how often steps double in size before one full round
    shares : each rank's part of the data as a hub, sum 1
    via : (slow rank, the part of the full ranks' data that it adds last to), one of them
    steps : steps of each size before the full round; 0: full rounds only
    """

    family: ClassVar[str] = "timetable"
    segments: int
    shares: tuple[Fraction, ...]
    via: tuple[tuple[int, Fraction], ...]
    steps: int = 0

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        routes = Routes(cluster)
        rows, via_end = self._rows(cluster, nbytes)
        key, pairs = rows.key.copy(), dependencies(rows, via_end)
        for waits, on in pairs:  # after what it waits for, also where the timetable has them too near
            np.maximum.at(key, waits, key[on] + 1)
        order = np.argsort(key, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        waits, on = (place[np.concatenate([pair[end] for pair in pairs] or [order[:0]])] for end in (0, 1))
        ports = _ports(cluster, routes)
        nics = 1 + max(max(mine) for mine in ports)
        ends, which = np.unique(
            (rows.src * self._ranks + rows.dst)[order] * nics + rows.nic[order], return_inverse=True
        )
        route = []
        for end in ends.tolist():
            (src, dst), nic = divmod(end // nics, self._ranks), end % nics
            route.append(routes.alike(src, dst, [(ports[src][nic], ports[dst][nic])], ONE_NIC))
        return Schedule(
            ranks=self._ranks,
            nbytes=nbytes,
            ports=routes.ports,
            routes=tuple(routes.table),
            route=np.array(route, np.int32)[which],
            offset=rows.start[order],
            length=(rows.stop - rows.start)[order],
            reduce=(rows.kind <= Kind.PARTIAL)[order],
            stage=STAGES[rows.kind[order]].astype(np.uint8),
            segment=rows.segment[order].astype(np.int32),
            dep_ptr=np.concatenate(([0], np.cumsum(np.bincount(waits, minlength=len(order))))).astype(np.int64),
            dep_idx=on[np.lexsort((on, waits))],
            links=routes.links,
        )

    @property
    def _ranks(self) -> int:
        return len(self.shares)

    def _sizes(self, peers: int, steps: int) -> list[int]:
        return step_sizes(peers, 1, self.segments, steps) if self.steps else step_sizes(peers, self.segments, 0, 0)

    def _rows(self, cluster: Cluster, nbytes: int) -> tuple[Rows, dict[int, int]]:
        """All transfers, and where in each full hub's section the part by way of the slow rank ends."""
        ranks, ((slow, part),) = self._ranks, self.via
        ends = [granule(end * nbytes, nbytes) for end in accumulate(self.shares[:-1], initial=Fraction(0))]
        section = list(pairwise([*ends, nbytes]))
        via = {r: granule(low + part * (high - low), nbytes) for r, (low, high) in enumerate(section) if r != slow}
        alive, dead, split = self._rails(cluster)
        common = slots(alive, ranks - 1, self._sizes(ranks - 1, self.steps))
        others = slots(dead, ranks - 2, self._sizes(ranks - 2, max(1, self.steps * (ranks - 2) // (ranks - 1))))
        full = [r for r in range(ranks) if r != slow]
        number = {r: i for i, r in enumerate(full)}
        # On one rail and with one round a pair has one slot only.
        idle = 1 if not self.shares[slow] and min(map(len, common)) > 1 else 0
        joined: dict[tuple[int, int], list[Slot]] = {}

        def both(d: int, e: int) -> list[Slot]:
            """Of full ranks `d` apart, `e` without the slow one."""
            if (d, e) not in joined:
                joined[d, e] = merged(common[d - 1], split, others[e - 1])
            return joined[d, e]

        def halves(i: int, k: int) -> tuple[tuple[list[Slot], list[Piece]], tuple[list[Slot], list[Piece]]]:
            """What i sends to k in each half, and when: in the second as k sends to i, seen from the end."""
            forth, back = common[(k - i) % ranks - 1], mirrored(common[(i - k) % ranks - 1])
            own = Piece(Kind.OWN, slow, *section[slow])
            if k == slow:
                (low, high), end = section[i], via[i]
                return (forth[idle:], [own, Piece(Kind.PARTIAL, i, low, end)]), (
                    back,
                    [Piece(Kind.RESULT, i, end, high)],
                )
            (low, high), end = section[k], via[k]
            if i == slow:
                final = [Piece(Kind.FINAL, k, low, end), own._replace(kind=Kind.OWN_RESULT)]
                return (forth, [Piece(Kind.RAW, k, end, high)]), (back[: len(back) - idle], final)
            e, f = ((number[b] - number[a]) % (ranks - 1) for a, b in ((i, k), (k, i)))
            forth, back = both((k - i) % ranks, e), mirrored(both((i - k) % ranks, f))
            (first, last), mine = section[i], via[i]
            results = [Piece(Kind.RESULT, i, mine, last), Piece(Kind.RESULT, i, first, mine)]
            return (forth, [Piece(Kind.RAW, k, low, high)]), (back, results)

        found = [
            (i, k, begin + half * TICKS // 2, *rest)
            for i in range(ranks)
            for k in range(ranks)
            if i != k
            for half, (times, pieces) in enumerate(halves(i, k))
            for begin, *rest in cut(pieces, times)
        ]
        return Rows(*np.array(found, np.int64).reshape(-1, len(Rows._fields)).T), via

    def _rails(self, cluster: Cluster) -> tuple[list[int], list[int], Fraction]:
        """Places of the NICs that all have, of those that only full ranks have, and which part of what full ranks send
        each other goes by the former, so that all NICs of full ranks are equally busy."""
        (slow, _), full = self.via[0], self._full
        every, alive = _live(cluster, full), _live(cluster, slow)
        carried, whole = self.shares[slow] + self.shares[full], 1 + (self._ranks - 2) * self.shares[full]
        of_each = whole / len(every) - carried / len(alive)
        split = max(Fraction(0), min(Fraction(1), of_each * len(alive) / (whole - carried)))
        return alive, [nic for nic in every if nic not in alive], split

    @property
    def _full(self) -> int:
        return 1 if self.via[0][0] == 0 else 0

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        ranks = len(cluster.ranks)
        demand(applies(cluster), "cluster", "one server with fewer NICs than the others, all of one rate", ranks)
        demand(len(self.shares) == ranks, "shares", f"{ranks} of them", len(self.shares))
        demand(min(self.shares) >= 0 and sum(self.shares) == 1, "shares", "parts of sum 1", sum(self.shares))
        demand([r for r, _ in self.via] == [reduced(cluster)], "via", "the server with fewer NICs", self.via)
        part = self.via[0][1]
        demand(0 <= part <= 1, "via", "a part from 0 to 1", part)
        full = {x for r, x in enumerate(self.shares) if r != self.via[0][0]}
        demand(len(full) == 1 and min(full) > 0, "shares", "equal ones of full ranks", full)
        demand_segments(self.segments)
        demand(type(self.steps) is int and 0 <= self.steps <= MAX_SEGMENTS, "steps", f"0 to {MAX_SEGMENTS}", self.steps)
        few = not self.steps or self.segments <= MAX_DOUBLINGS
        demand(few, "segments", f"1 to {MAX_DOUBLINGS} with steps that double", self.segments)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """The busiest NIC's work, from the shares."""
        (slow, _), (alive, dead, split) = self.via[0], self._rails(cluster)
        rate = cluster.ranks[slow].out_rate / len(alive)
        carried = self.shares[slow] + self.shares[self._full]
        among = (self._ranks - 2) * 2 * self.shares[self._full]
        works = [
            (self._ranks - 1) * carried / len(alive),
            carried / len(alive) + among * split / len(alive),
            among * (1 - split) / len(dead),
        ]
        return max(works) * nbytes / rate

    def content(self) -> dict[str, Any]:
        """Every field as JSON values."""
        return {
            "segments": self.segments,
            "shares": [str(x) for x in self.shares],
            "via": [[r, str(part)] for r, part in self.via],
            "steps": self.steps,
        }

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """The recipe of `content`."""
        return cls(
            segments=raw["segments"],
            shares=tuple(exact(x) for x in raw["shares"]),
            via=tuple((r, exact(part)) for r, part in raw["via"]),
            steps=raw["steps"],
        )

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """Who gathers what, who adds last, and the rounds."""
        slow, part = self.via[0]
        own = f"hub of {float(self.shares[slow]) * 100:.4g} %, adds last to {float(part) * 100:.4g} %"
        rounds = f"{self.segments} in each half"
        if self.steps:
            rounds = f"1 in each half, and {self.segments * self.steps} smaller steps, doubled every {self.steps}"
        return [
            ("hubs", f"{sum(x > 0 for x in self.shares)} of {self._ranks}, each exchanges directly with all"),
            (cluster.ranks[slow].name, own),
            ("rounds", f"{rounds}; one NIC for each transfer"),
        ]


def applies(cluster: Cluster) -> bool:
    """One fabric, servers as ranks, live NICs of one rate, and one server that lacks some of those of the others."""
    rates = {rate for rank in cluster.ranks for nic in rank.nics if nic.alive for rate in (nic.out_rate, nic.in_rate)}
    if not cluster.fabric.flat or cluster.gpu_ranks or len(cluster.ranks) < 3 or len(rates) != 1:
        return False
    live = [_live(cluster, r) for r in range(len(cluster.ranks))]
    every = max(live, key=len)
    fewer = [mine for mine in live if mine != every]
    return len(fewer) == 1 and bool(fewer[0]) and set(fewer[0]) < set(every)


def reduced(cluster: Cluster) -> int:
    """The rank with fewer NICs, where the timetable applies."""
    return min(range(len(cluster.ranks)), key=lambda r: len(_live(cluster, r)))


def _live(cluster: Cluster, rank: int) -> list[int]:
    """Places of the live NICs in their server."""
    return [i for i, nic in enumerate(cluster.ranks[rank].nics) if nic.alive]


def _ports(cluster: Cluster, routes: Routes) -> list[dict[int, int]]:
    """Of each rank, place of a live NIC -> its port."""
    names = [cluster.servers[rank.server].name for rank in cluster.ranks]
    return [
        {i: routes.port_index[f"{name}/{rank.nics[i].name}"] for i in _live(cluster, r)}
        for r, (name, rank) in enumerate(zip(names, cluster.ranks, strict=True))
    ]
