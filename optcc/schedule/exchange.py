"""Direct exchange lowered to transfers: every part of the data has a hub that gathers it from all and sends it to all.

Two hops instead of a ring's 2(P-1). Which rank is the hub of how much is what loads ranks by their rates (proof id
attained); a rank that is too slow is a hub of nothing, and sends and receives every byte once. Nobody starves if the
first half of the time is for raw data, the second for results, on every port. A slow rank breaks that: it sends raw
data for longer than it receives any. So for a part of the data it adds last (VIA_LEAF in `nested`): the hub sends it
the sum of the others in the first half and gets the finished sum back in the second. With the part of
`optcc.theory.hubs.hub_split` both directions of every port have as much to do in the first half as in the second.

The data of all hubs is cut into rounds. In a round offset d follows offset d - 1: rank i sends to i + d, so that
nobody sends to whom another one sends. Rounds by way of a slow rank come first with their raw data and last with their
results, the others between them. What goes first is a matter of time: each transfer is as urgent as its place in the
plan above, in which the second half mirrors the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np

from optcc.cluster import Cluster
from optcc.schedule.columns import Schedule
from optcc.schedule.exchange_clock import TICKS
from optcc.schedule.exchange_rounds import rounds
from optcc.schedule.exchange_rows import columns_of, fused, joined
from optcc.schedule.rails import Way, balanced_lanes
from optcc.schedule.recipe import MAX_SEGMENTS, Recipe, demand, demand_segments, exact
from optcc.schedule.routes import Routes


@dataclass(frozen=True)
class Exchange(Recipe):
    """Direct exchange.

    Attributes
    ----------
    segments : pipeline depth
    shares : each rank's part of the data as a hub, sum 1
    via : (slow rank, the part of the full ranks' data that it adds last to); in all at most 1
    ways : rounds of the data by way of slow ranks
    thin : the other data has one round for so many segments
    narrow : in so many first and last rounds by way of slow ranks each transfer takes one NIC: fewer chunks per NIC
    most : rounds grow from 1 to this and shrink again
    own : rounds of what slow ranks are hubs of
    """

    family: ClassVar[str] = "exchange"
    segments: int
    shares: tuple[Fraction, ...]
    via: tuple[tuple[int, Fraction], ...] = ()
    ways: int = 1
    most: int = 1
    own: int = 1
    thin: int = 1
    narrow: int = 0

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        ranks, routes, via = len(cluster.ranks), Routes(cluster), dict(self.via)
        made = rounds(
            nbytes,
            self.shares,
            via,
            ways=self.ways,
            segments=-(-self.segments // self.thin),
            most=self.most,
            own=self.own,
            narrow=self.narrow,
        )
        parts = [columns_of(r, ranks) for r in made]
        head = int(sum(via.values()) * TICKS) // 2
        c, kept = fused(joined(parts), made, ranks, head)
        order = kept[np.argsort(c.key[kept], kind="stable")]
        place = np.empty(len(c.src), np.int64)
        place[order] = np.arange(len(order))
        waits, dep = place[c.waits], place[c.dep]
        dep = dep[np.argsort(waits * len(order) + dep, kind="stable")]
        way = self._way(cluster, routes)
        turns = int(c.turn.max(initial=-1)) + 2
        pair, kinds = np.unique((c.src[order] * ranks + c.dst[order]) * turns + c.turn[order] + 1, return_inverse=True)
        ends = [(*divmod(p // turns, ranks), p % turns - 1) for p in pair.tolist()]
        route = np.array([way(src, dst, turn) for src, dst, turn in ends], np.int32)
        number = np.repeat(np.arange(len(made), dtype=np.int32), [len(part.src) for part in parts])
        return Schedule(
            ranks=ranks,
            nbytes=nbytes,
            ports=routes.ports,
            routes=tuple(routes.table),
            route=route[kinds],
            offset=c.start[order],
            length=c.stop[order] - c.start[order],
            reduce=c.reduce[order].astype(np.bool_),
            stage=c.stage[order].astype(np.uint8),
            segment=number[order],
            dep_ptr=np.concatenate(([0], np.cumsum(np.bincount(waits, minlength=len(order))))).astype(np.int64),
            dep_idx=dep,
            links=routes.links,
        )

    def _way(self, cluster: Cluster, routes: Routes) -> Way:
        slow = dict(self.via)
        full = next(r for r in range(len(self.shares)) if r not in slow)
        carried = {r: share + self.shares[full] for r, share in enumerate(self.shares)}
        whole = 1 + (len(self.shares) - 2) * self.shares[full]
        return balanced_lanes(cluster, routes, carried, whole)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """On one non-blocking fabric from the shares, exactly; elsewhere from the bytes of the lowered schedule."""
        if not cluster.fabric.flat or cluster.gpu_ranks:
            return super().fluid_s(cluster, nbytes)
        pairs = zip(self.shares, cluster.ranks, strict=True)
        loads = ((1 + (len(self.shares) - 2) * x) / min(rank.out_rate, rank.in_rate) for x, rank in pairs)
        return max(loads) * nbytes

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        ranks = len(cluster.ranks)
        demand(ranks >= 3, "ranks", "3 or more", ranks)
        demand(len(self.shares) == ranks, "shares", f"{ranks} of them", len(self.shares))
        demand(min(self.shares) >= 0 and sum(self.shares) == 1, "shares", "parts of sum 1", sum(self.shares))
        slow = [r for r, _ in self.via]
        fits = all(type(r) is int and 0 <= r < ranks for r in slow) and len(set(slow)) == len(slow)
        demand(fits, "via", "different ranks", slow)
        parts = [part for _, part in self.via]
        demand(all(part >= 0 for part in parts) and sum(parts) <= 1, "via", "parts of at most 1 in all", parts)
        full = [x for r, x in enumerate(self.shares) if r not in slow]
        demand(bool(full) and full[0] > 0 and len(set(full)) == 1, "shares", "equal ones of full ranks", full)
        demand_segments(self.segments)
        for name, value in (("ways", self.ways), ("most", self.most), ("own", self.own), ("thin", self.thin)):
            demand(type(value) is int and 1 <= value <= MAX_SEGMENTS, name, f"1 to {MAX_SEGMENTS}", value)
        narrow = self.narrow
        demand(type(narrow) is int and 0 <= narrow <= MAX_SEGMENTS, "narrow", f"0 to {MAX_SEGMENTS}", narrow)

    def content(self) -> dict[str, Any]:
        """Every field as JSON values."""
        return {
            "segments": self.segments,
            "shares": [str(x) for x in self.shares],
            "via": [[r, str(part)] for r, part in self.via],
            "ways": self.ways,
            "most": self.most,
            "own": self.own,
            "thin": self.thin,
            "narrow": self.narrow,
        }

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """The recipe of `content`."""
        return cls(
            segments=raw["segments"],
            shares=tuple(exact(x) for x in raw["shares"]),
            via=tuple((r, exact(part)) for r, part in raw["via"]),
            ways=raw["ways"],
            most=raw["most"],
            own=raw["own"],
            thin=raw["thin"],
            narrow=raw["narrow"],
        )

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """Who gathers what, who adds last, and the rounds."""
        lines = [("hubs", f"{sum(x > 0 for x in self.shares)} of {len(self.shares)}, each exchanges directly with all")]
        for r, part in self.via[:4]:
            own = f"hub of {float(self.shares[r]) * 100:.4g} %, adds last to {float(part) * 100:.4g} %"
            lines.append((cluster.ranks[r].name, own))
        if len(self.via) > 4:
            lines.append(("more slow ranks", str(len(self.via) - 4)))
        rounds = (
            f"{-(-self.segments // self.thin)}, {self.ways} by way of slow ranks, {self.own} of their own"
            if self.via
            else str(-(-self.segments // self.thin))
        )
        return [*lines, ("rounds", rounds)]
