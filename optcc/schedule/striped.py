"""Striped exchange: direct exchange among servers of any rates, each transfer over all NICs of both ends by rate.

Every part of the data has a hub that gathers it from all and sends it to all, as in `direct`. The steps of `direct`,
which need NICs of one rate, are not used. It also runs between servers where GPUs are ranks (`inside`).

Two hops instead of a ring's 2(P-1). The hubs' shares load ranks by their rates (proof id attained). A rank that is too
slow is hub of nothing, and sends and receives every byte once. Nobody starves if the first half of the time is for raw
data, the second for results, on every port. A slow rank breaks that: it sends raw data for longer than it receives any.
So for a part of the data it adds last (VIA_LEAF in `nested`). The hub sends it the sum of the others in the first half
and gets the finished sum back in the second. With the part of `optcc.theory.ring_shares.hub_split` both directions
of every port have as much to do in the first half as in the second.

The data of all hubs is cut into rounds. In a round offset d follows offset d - 1: rank i sends to i + d, so no two
ranks send to the same rank. Rounds by way of slow ranks come first with their raw data and last with their results, the
others between them. The order follows time: each transfer is as urgent as its place in the plan above, whose second
half mirrors the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from optcc.schedule.assemble import require_memory
from optcc.schedule.columns import Schedule
from optcc.schedule.many_objects import no_collection
from optcc.schedule.recipe import Recipe, Segments, require
from optcc.schedule.routes import Routes
from optcc.schedule.striped_rounds import TICKS, HubRound, rounds
from optcc.schedule.striped_rows import Moves, edges, in_order
from optcc.schedule.tuned import WAYS
from optcc.values.cluster import Cluster
from optcc.values.json_types import Index

if TYPE_CHECKING:
    from optcc.schedule.candidates import CandidateFamily, Costs
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound


@dataclass(frozen=True)
class StripedExchange(Recipe):
    """Direct exchange between servers.

    Attributes
    ----------
    segments : rounds of the data that does not pass slow ranks
    shares : each rank's part of the data as a hub, sum 1
    via : (slow rank, the part of the full ranks' data that it adds last to); in all at most 1
    ways : rounds of the data by way of slow ranks
    """

    family: ClassVar[str] = "striped-exchange"
    segments: Segments
    shares: tuple[Fraction, ...]
    via: tuple[tuple[Index, Fraction], ...] = ()
    ways: Segments = 1

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module."""
        ranks, routes = len(cluster.ranks), Routes(cluster)
        require_memory(2 * ranks * (ranks - 1) * (self.segments + self.ways))
        made = self._rounds(nbytes)
        moves, place = in_order(made, ranks, nbytes, self._head)
        dep, waits = (place[rows] for rows in edges(made, ranks))
        dep = dep[np.argsort(waits * len(moves) + dep, kind="stable")]
        pair, kinds = np.unique(moves.src * ranks + moves.dst, return_inverse=True)
        with no_collection():
            route = np.array([routes(*divmod(ends, ranks)) for ends in pair.tolist()], np.int32)
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
        """The transfers of `lower`, in its order, without dependencies, whatever the cluster."""
        return in_order(self._rounds(nbytes), len(self.shares), nbytes, self._head)[0]

    @property
    def _head(self) -> int:
        return int(sum(part for _, part in self.via) * TICKS) // 2

    def _rounds(self, nbytes: int) -> list[HubRound]:
        return rounds(nbytes, self.shares, dict(self.via), self.segments, self.ways)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """On one non-blocking fabric from the shares, exactly; elsewhere from the bytes of the lowered schedule."""
        if not cluster.fabric.flat or cluster.gpu_ranks:
            return super().fluid_s(cluster, nbytes)
        loads = zip(self.shares, cluster.ranks, strict=True)
        return max((1 + (len(self.shares) - 2) * x) / min(rank.out_rate, rank.in_rate) for x, rank in loads) * nbytes

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        super().check(cluster)
        ranks = len(cluster.ranks)
        require(ranks >= 3, "ranks", "3 or more", ranks)
        require(len(self.shares) == ranks, "shares", f"{ranks} of them", len(self.shares))
        require(min(self.shares) >= 0 and sum(self.shares) == 1, "shares", "parts of sum 1", sum(self.shares))
        slow = [r for r, _ in self.via]
        fits = all(r < ranks for r in slow) and len(set(slow)) == len(slow)
        require(fits, "via", "different ranks", slow)
        parts = [part for _, part in self.via]
        require(all(part >= 0 for part in parts) and sum(parts) <= 1, "via", "parts of at most 1 in all", parts)
        full = [x for r, x in enumerate(self.shares) if r not in slow]
        require(bool(full) and full[0] > 0 and len(set(full)) == 1, "shares", "equal ones of full ranks", full)

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """The hubs' shares, the ranks that add last, and the rounds."""
        lines = [("hubs", f"{sum(x > 0 for x in self.shares)} of {len(self.shares)}, each exchanges directly with all")]
        for r, part in self.via[:4]:
            own = f"hub of {float(self.shares[r]) * 100:.4g} %, adds last to {float(part) * 100:.4g} %"
            lines.append((cluster.ranks[r].name, own))
        if len(self.via) > 4:
            lines.append(("more slow ranks", str(len(self.via) - 4)))
        by_way = f", {self.ways} by way of slow ranks, one for each slow hub" if self.via else ""
        return [*lines, ("rounds", f"{self.segments}{by_way}")]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """For fabrics where any NIC reaches any, up to a number of servers that limits transfers. One round by way of
        slow ranks is the fewest chunks, but leaves a rank that is hub of nothing idle at first."""
        from optcc.schedule.candidates import CandidateFamily
        from optcc.schedule.effort import MANY
        from optcc.theory.ring_shares import hub_split

        ranks = cluster.ranks
        if cluster.gpu_ranks or not cluster.fabric.flat or not 3 <= len(ranks) <= MANY:
            return []
        if not min(min(rank.out_rate, rank.in_rate) for rank in ranks):
            return []
        shares, via = hub_split(cluster)
        chunks = 2 * (len(ranks) - 1)  # on every NIC
        least_s = float(cls(1, shares, via).fluid_s(cluster, bound.nbytes) + chunks * costs.per_chunk + 2 * costs.alpha)

        def growing(ways: int) -> StripedExchange:
            return cls(-(-ways // WAYS), shares, via, ways)

        plain = CandidateFamily(cls.family, lambda segments: cls(segments, shares, via), least_s=least_s)
        return [plain, CandidateFamily(cls.family, growing, least_s=least_s)] if via else [plain]

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> StripedExchange:
        """Every share at the rank that takes its part."""
        shares = [Fraction(0)] * len(self.shares)
        for rank, share in enumerate(self.shares):
            shares[to[rank]] = share
        via = tuple(sorted((to[rank], part) for rank, part in self.via))
        return replace(self, shares=tuple(shares), via=via)

    def like(self, cluster: Cluster, bound: Bound, costs: Costs, counts: GroupCounts) -> StripedExchange | None:
        """As many rounds, with shares of this cluster."""
        return replace(self, shares=counts.hub_split()[0], via=counts.hub_split()[1]) if counts.ranks > 2 else None
