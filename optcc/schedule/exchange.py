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
from optcc.schedule.assemble import demand_memory
from optcc.schedule.columns import Schedule
from optcc.schedule.exchange_clock import TICKS
from optcc.schedule.exchange_load import busiest_nic_s
from optcc.schedule.exchange_rounds import Round, rounds
from optcc.schedule.exchange_rows import Moves, edges, in_order
from optcc.schedule.many_objects import no_collection
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
        ranks, routes = len(cluster.ranks), Routes(cluster)
        demand_memory(2 * ranks * (ranks - 1) * -(-self.segments // self.thin))
        made = self._rounds(nbytes)
        moves, turn, place = in_order(made, ranks, nbytes, self._head)
        dep, waits = (place[rows] for rows in edges(made, ranks))
        dep = dep[np.argsort(waits * len(moves) + dep, kind="stable")]
        way = self._way(cluster, routes)
        turns = int(turn.max(initial=-1)) + 2
        pair, kinds = np.unique((moves.src * ranks + moves.dst) * turns + turn + 1, return_inverse=True)
        ends = [(*divmod(p // turns, ranks), p % turns - 1) for p in pair.tolist()]
        with no_collection():
            route = np.array([way(src, dst, turn) for src, dst, turn in ends], np.int32)
        return Schedule(
            ranks=ranks,
            nbytes=nbytes,
            ports=routes.ports,
            routes=tuple(routes.table),
            route=route[kinds],
            offset=moves.offset,
            length=moves.length,
            reduce=moves.reduce,
            stage=moves.stage,
            segment=moves.segment,
            dep_ptr=np.concatenate(([0], np.cumsum(np.bincount(waits, minlength=len(moves))))).astype(np.int64),
            dep_idx=dep,
            links=routes.links,
        )

    def moves(self, nbytes: int) -> Moves:
        """The transfers of `lower`, in its order, without their NICs and dependencies, whatever the cluster."""
        return in_order(self._rounds(nbytes), len(self.shares), nbytes, self._head)[0]

    @property
    def _head(self) -> int:
        return int(sum(part for _, part in self.via) * TICKS) // 2

    def _rounds(self, nbytes: int) -> list[Round]:
        return rounds(
            nbytes,
            self.shares,
            dict(self.via),
            ways=self.ways,
            segments=-(-self.segments // self.thin),
            most=self.most,
            own=self.own,
            narrow=self.narrow,
        )

    def _way(self, cluster: Cluster, routes: Routes) -> Way:
        slow = dict(self.via)
        full = next(r for r in range(len(self.shares)) if r not in slow)
        carried = {r: share + self.shares[full] for r, share in enumerate(self.shares)}
        whole = 1 + (len(self.shares) - 2) * self.shares[full]
        return balanced_lanes(cluster, routes, carried, whole)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """On one non-blocking fabric from the shares, exactly; elsewhere, and with narrow rounds, from the bytes of the
        lowered schedule."""
        if not cluster.fabric.flat or cluster.gpu_ranks or self.narrow:
            return super().fluid_s(cluster, nbytes)
        routes = Routes(cluster)
        return busiest_nic_s(cluster, routes, self._way(cluster, routes), self.shares) * nbytes

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
