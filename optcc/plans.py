"""The plan: small, exact, and enough for every rank to lower the same schedule by itself.

A plan grows with the servers and NICs it names (9 kB for 4 x 8), not with the schedule. Its id is a hash of its
content, so ranks compare ids before the first byte moves, and an edited file is noticed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from optcc.bound import Bound, Certificate, ProgramCertificate
from optcc.cluster import Cluster
from optcc.errors import InputError
from optcc.schedule.columns import Schedule
from optcc.schedule.nested import Ordering, lower
from optcc.schedule.routes import fluid_seconds


@dataclass(frozen=True)
class Plan:
    """What to run on `cluster` for an AllReduce of `bound.nbytes` bytes per rank.

    Attributes
    ----------
    bound : the lower bound and its certificate
    family : "nested-rings" or "ring"
    shares : (ring size m, share of the data), shares sum to 1
    order : ranks from weakest to strongest; ring size m is the last m of them
    segments : pipeline depth; orderings : cycled over the segments
    segment_sizes : the part of the data in each segment, sum 1; None: all equal
    """

    cluster: Cluster
    bound: Bound
    family: str
    shares: tuple[tuple[int, Fraction], ...]
    order: tuple[int, ...]
    segments: int
    orderings: tuple[Ordering, ...]
    segment_sizes: tuple[Fraction, ...] | None = None

    @cached_property
    def fluid_s(self) -> Fraction:
        """Seconds the schedule takes with infinitely many segments and no latency: its slowest port's work.

        On one non-blocking fabric from the shares, exactly; elsewhere from the bytes of the lowered schedule.
        """
        if not self.cluster.fabric.flat:
            return fluid_seconds(self.schedule(), self.cluster)
        ranks = len(self.order)
        worst = Fraction(0)
        for place, r in enumerate(self.order):
            rank = self.cluster.ranks[r]
            load = sum(
                (s * (Fraction(m + ranks - 2, m) if place >= ranks - m else 1) for m, s in self.shares), Fraction(0)
            )
            worst = max(worst, load / min(rank.out_rate, rank.in_rate)) if load else worst
        return worst * self.bound.nbytes

    def schedule(self) -> Schedule:
        """Lower to transfers. Deterministic: equal plans give equal schedules, row for row."""
        return lower(
            self.cluster,
            self.bound.nbytes,
            dict(self.shares),
            order=self.order,
            segments=self.segments if self.segment_sizes is None else self.segment_sizes,
            orderings=self.orderings,
        )

    def baseline(self, algorithm: str) -> Plan:
        """The same job by another algorithm: "optcc" (this plan) or "ring" (one ring over all ranks, equal shards)."""
        if algorithm == "optcc":
            return self
        if algorithm != "ring":
            raise InputError("unknown algorithm", where="--algorithm", expected="optcc or ring", got=algorithm)
        ranks = len(self.order)
        shares = ((ranks, Fraction(1)),) if ranks > 1 else ()
        # A ring in cluster order, as libraries build it: the order of strength does not matter to it.
        return replace(self, family="ring", shares=shares, order=tuple(range(ranks)))

    def scaled(self, factor: Fraction) -> Plan:
        """The same plan on a cluster whose rates are all times `factor`: shares stay, seconds are divided by it."""
        bound, cert = self.bound, self.bound.certificate
        certificate: Certificate | ProgramCertificate
        if isinstance(cert, ProgramCertificate):
            certificate = replace(cert, rate=cert.rate * factor, reached=cert.reached * factor)
        else:
            certificate = replace(cert, rate=cert.rate * factor)
        return replace(
            self,
            cluster=self.cluster.scaled(factor),
            bound=replace(
                bound,
                seconds=bound.seconds / factor,
                fault_free_s=bound.fault_free_s / factor,
                certificate=certificate,
            ),
        )

    @cached_property
    def plan_id(self) -> str:
        """Sixteen hex digits that name this plan's content."""
        from optcc.plan_files import plan_content

        canonical = json.dumps(plan_content(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The plan as JSON text: rates in bytes per second, fractions as strings such as "3/5"."""
        from optcc.plan_files import plan_content

        return json.dumps({"plan_id": self.plan_id, **plan_content(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str, where: str = "plan") -> Plan:
        """Read a plan back. Raises InputError for anything that is not an intact plan of this version."""
        from optcc.plan_files import read_plan

        return read_plan(text, where)


def check_plan(plan: Plan) -> None:
    """Raise InputError unless the plan's parts fit each other and its cluster."""
    ranks = len(plan.cluster.ranks)

    def demand(holds: bool, where: str, expected: str, got: object) -> None:
        if not holds:
            raise InputError("plan does not fit its cluster", where=where, expected=expected, got=str(got)[:200])

    demand(sorted(plan.order) == list(range(ranks)), "order", f"each of 0..{ranks - 1} once", plan.order)
    demand(isinstance(plan.segments, int) and 1 <= plan.segments <= MAX_SEGMENTS, "segments", SEGMENTS, plan.segments)
    sizes = plan.segment_sizes
    if sizes is not None:
        demand(len(sizes) == plan.segments, "segment_sizes", f"{plan.segments} of them", len(sizes))
        demand(min(sizes) > 0 and sum(sizes) == 1, "segment_sizes", "sizes above 0 of sum 1", sum(sizes))
    demand(bool(plan.orderings), "orderings", "at least one", plan.orderings)
    demand(all(1 <= m <= ranks and s > 0 for m, s in plan.shares), "shares", f"ring 1..{ranks}, > 0", plan.shares)
    demand(len({m for m, _ in plan.shares}) == len(plan.shares), "shares", "each ring size once", plan.shares)
    demand(ranks == 1 or sum(s for _, s in plan.shares) == 1, "shares", "a sum of 1", plan.shares)


MAX_SEGMENTS = 65536
SEGMENTS = f"1 to {MAX_SEGMENTS}"
DEFAULT_SEGMENTS = 64
MIN_CHUNK = 16 * 1024
"""A section smaller than this spends more on per-message cost than a deeper pipeline saves."""


def make_plan(cluster: Cluster, bound: Bound, shares: dict[int, Fraction], *, segments: int | None = None) -> Plan:
    """Put a bound and nested-ring shares together into a Plan.

    `segments` defaults to 64 (the pipeline's fill costs about 1/64), fewer when sections would fall under 16 KiB.
    """
    ranks = cluster.ranks
    order = tuple(sorted(range(len(ranks)), key=lambda r: (min(ranks[r].out_rate, ranks[r].in_rate), r)))
    if segments is None:
        segments = max(1, min(DEFAULT_SEGMENTS, bound.nbytes // (MIN_CHUNK * len(ranks))))
    if not 1 <= segments <= MAX_SEGMENTS:
        raise InputError("segments out of range", where="--segments", expected=SEGMENTS, got=segments)
    plan = Plan(
        cluster=cluster,
        bound=bound,
        family="nested-rings" if set(shares) - {len(ranks)} else "ring",
        shares=tuple(sorted(shares.items())),
        order=order,
        segments=segments,
        orderings=_orderings(shares, len(ranks)),
    )
    check_plan(plan)
    return plan


def _orderings(shares: dict[int, Fraction], ranks: int) -> tuple[Ordering, ...]:
    """One degraded rank: alternate, so that its link is busy both ways from the start. Several: the leaves take turns
    at adding last, which the simulator shows to be smoother (docs/schedules.md)."""
    leaves = ranks - min(shares, default=ranks)
    return (Ordering.LEAF_FIRST, Ordering.VIA_LEAF) if leaves == 1 else (Ordering.VIA_LEAF,)
