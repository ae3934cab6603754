"""Direct exchange in steps: every part of the data has a hub, which gathers it from all and sends the sum to all.

There are two hops, and the hubs' shares load servers by their NICs (proof id attained). Each transfer takes one NIC at
each end: one chunk, not one on every NIC. The times of transfers are found in steps, one after another. A step is a
matching, on each rail, of ranks that have something for each other, the pairs furthest behind first; so no two senders
share a receiver. A result is sent when its contributions have landed.

There is a way to find steps for each of three kinds of clusters: no server starves (`steps_none`), one does
(`steps_one`), or several do (`steps_several`). A server starves if its own data takes it nearly the whole time of the
bound: then it is the hub of nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, ClassVar

from optcc.schedule.columns import Schedule
from optcc.schedule.direct_rows import dependencies, scheduled
from optcc.schedule.lanes import MAX_LANES, in_lanes, lane_lines, nics_of
from optcc.schedule.many_objects import no_collection
from optcc.schedule.nics import fewest_nics_first, nic_ports, nic_rate, pace_lines
from optcc.schedule.pods import direct_uplink_s
from optcc.schedule.recipe import Recipe, require
from optcc.schedule.routes import Routes
from optcc.schedule.steps import Finder
from optcc.schedule.steps_none import NoneStarves
from optcc.schedule.steps_one import OneStarves
from optcc.schedule.steps_several import SeveralStarve
from optcc.values.cluster import Cluster
from optcc.values.json_types import Choice, Exact, Whole

if TYPE_CHECKING:
    from optcc.schedule.candidates import CandidateFamily, Costs
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound

FINDERS: dict[str, Finder] = {finder.name: finder for finder in (NoneStarves(), OneStarves(), SeveralStarve())}
MAX_STEPS = 1024
MAX_GROWTH, MAX_LONGER, MAX_CHUNK = 4, 2**24, Fraction(1)
"""Limits: one step over the one before; the longest step over the first; a chunk's cost, as part of a half."""


@dataclass(frozen=True)
class DirectExchange(Recipe):
    """Direct exchange in steps. Who does what follows from the cluster: ranks are not named.

    Attributes
    ----------
    segments : number of rounds of the plan where no rank starves, else of steps of each half
    steps : the kind of cluster: "none-starves", "one-starves" or "several-starve"
    growth : where some rank starves, the length of a step over the one before, at first
    growing : with several starving ranks, the number of steps that grow
    margin : the part of a half from the end of a step until its bytes are counted on
    chunk : the part of a half that a chunk costs
    last : the part of the data to which the starving rank adds last
    lanes : number of lanes of a NIC; slow NICs have fewer
    """

    family: ClassVar[str] = "direct-exchange"
    segments: Annotated[int, Whole(1, MAX_STEPS)]
    steps: Annotated[str, Choice(tuple(FINDERS))] = NoneStarves.name
    growth: Annotated[Fraction, Exact(1, MAX_GROWTH)] = Fraction(1)
    growing: int = 0
    margin: Fraction = Fraction(0)
    chunk: Annotated[Fraction, Exact(most=MAX_CHUNK)] = Fraction(0)
    last: Fraction = Fraction(0)
    lanes: Annotated[int, Whole(1, MAX_LANES)] = 1

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """See the module. Steps are found for the ranks in an order of their NICs: which server lacks some makes no
        difference."""
        finder = FINDERS[self.steps]
        with no_collection():
            order, arranged = fewest_nics_first(in_lanes(cluster, self.lanes))
            routes, (rows, after, held) = Routes(cluster), finder.timed(self, arranged, nbytes)
            rows = rows._replace(
                src=order[rows.src],
                dst=order[rows.dst],
                hub=order[rows.hub],
                key=rows.key * self.lanes + rows.nic % self.lanes,  # a NIC's lanes one after the other
            )
            after = {int(order[hub]): end for hub, end in after.items()}
            used = [mine for _, mine in sorted(zip(order.tolist(), finder.used(arranged), strict=True))]
            ports = nic_ports(cluster, routes, nics_of(used, self.lanes))
            return scheduled(rows, dependencies(rows, after), ports, routes, nbytes, ordered=True, held=held)

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""
        super().check(cluster)
        cluster = in_lanes(cluster, self.lanes)
        finder = FINDERS[self.steps]
        kind = {OneStarves.name: "where one starves", SeveralStarve.name: "where several starve"}
        fits = f"servers of NICs of one pace, {kind.get(self.steps, 'where none starves')}"
        require(finder.applies(cluster), "cluster", fits, f"{len(cluster.ranks)} ranks, other ones")
        most = finder.most_steps(cluster)
        require(self.segments <= most, "segments", f"1 to {most}", self.segments)
        longer = self.growth ** finder.growing(self)
        require(longer <= MAX_LONGER, "growth", f"steps at most {MAX_LONGER} times as long as the first", self.growth)
        require(self.margin < 1, "margin", "less than 1", self.margin)
        most_last = Fraction(self.steps == OneStarves.name, 2)
        require(0 <= self.last <= most_last, "last", "0 to 1/2 where one starves, else 0", self.last)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """Seconds of the busiest server, all its NICs equally busy, or of the busiest uplink of a pod. A hub of the
        part x sends 1 - x to the others and x to each of them."""
        _, cluster = fewest_nics_first(in_lanes(cluster, self.lanes))
        finder, rate = FINDERS[self.steps], nic_rate(cluster)
        shares = finder.shares(cluster)
        works = [
            (1 + (len(shares) - 2) * x) / (len(mine) * rate)
            for x, mine in zip(shares, finder.used(cluster), strict=True)
        ]
        return max(max(works) * nbytes, direct_uplink_s(cluster, shares, nbytes))

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """The hubs' shares, and the steps."""
        finder, laned = FINDERS[self.steps], in_lanes(cluster, self.lanes)
        kinds = sorted(Counter(finder.shares(laned)).items(), reverse=True)
        parts = ", ".join(f"{count} of {100 * float(share):.4g} %" for share, count in kinds if share)
        hubs = ("hubs", f"{parts}, each exchanges directly with all")
        told = pace_lines(cluster) if self.lanes == 1 else lane_lines(cluster, self.lanes)
        return [hubs, *finder.told(self, laned), *told]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """See `direct_candidates`."""
        from optcc.schedule.direct_candidates import direct_candidates

        return direct_candidates(cluster, bound, costs)

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> DirectExchange:
        """Itself: it names no rank."""
        return self

    @classmethod
    def at_once(cls, cluster: Cluster, bound: Bound, costs: Costs) -> DirectExchange | None:
        """The number of steps that the formula puts first."""
        from optcc.schedule.direct_candidates import by_formula

        return by_formula(cluster, bound, costs)

    def like(self, cluster: Cluster, bound: Bound, costs: Costs, counts: GroupCounts) -> DirectExchange | None:
        """See `at_once`: it asks for no neighbour."""
        return self.at_once(cluster, bound, costs)
