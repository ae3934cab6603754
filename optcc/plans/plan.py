"""The plan: small, exact, and enough for every rank to lower the same schedule by itself.

A plan grows with the servers and NICs it names (9 kB for 4 x 8), not with the schedule. Its id is a hash of its
content, so ranks compare ids before the first byte moves, and an edited file is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from optcc.errors import InputError
from optcc.schedule.baselines import BASELINES
from optcc.schedule.columns import Schedule
from optcc.schedule.recipe import Recipe
from optcc.values.bound import Bound, Certificate, in_words
from optcc.values.cluster import Cluster
from optcc.values.units import format_seconds, format_size


@dataclass(frozen=True, repr=False)
class Plan:
    """What to run on `cluster` for an AllReduce of `bound.nbytes` bytes per rank.

    Attributes
    ----------
    cluster : the cluster, after its failures
    bound : the lower bound and its certificate
    recipe : the family of schedules and its parameters
    """

    cluster: Cluster
    bound: Bound
    recipe: Recipe

    def __repr__(self) -> str:
        size, ranks = format_size(self.bound.nbytes), len(self.cluster.ranks)
        what = f"{self.recipe.family}, {self.recipe.segments} segments, {size} per rank, {ranks} ranks"
        return f"<Plan {self.plan_id}: {what}, bound {format_seconds(self.bound.seconds)}>"

    @cached_property
    def fluid_s(self) -> Fraction:
        """Seconds the schedule takes with infinitely many segments and no latency."""
        return self.recipe.fluid_s(self.cluster, self.bound.nbytes)

    def schedule(self) -> Schedule:
        """Lower to transfers. Deterministic: equal plans give equal schedules, row for row."""
        return self.recipe.lower(self.cluster, self.bound.nbytes)

    def baseline(self, algorithm: str) -> Plan:
        """The same job by another algorithm, as many segments deep: "optcc" is this plan, others are in `BASELINES`.

        Raises InputError for a name that is neither, and where the baseline does not apply to the cluster.
        """
        if algorithm == "optcc":
            return self
        if algorithm not in BASELINES:
            expected = ", ".join(["optcc", *BASELINES])
            raise InputError("unknown algorithm", where="--algorithm", expected=expected, got=algorithm)
        recipe = BASELINES[algorithm](self.cluster, self.recipe.segments)
        recipe.check(self.cluster)
        return replace(self, recipe=recipe)

    def scaled(self, factor: Fraction) -> Plan:
        """The same plan on a cluster whose rates are all times `factor`: shares stay, seconds are divided by it."""
        bound, cert, cluster = self.bound, self.bound.certificate, self.cluster.scaled(factor)
        certificate = cert.scaled(factor)
        return replace(
            self,
            cluster=cluster,
            bound=replace(
                bound,
                seconds=bound.seconds / factor,
                fault_free_s=bound.fault_free_s / factor,
                # the program's words name shares, a closed form's name rates
                bottleneck=in_words(cluster, certificate) if isinstance(certificate, Certificate) else bound.bottleneck,
                certificate=certificate,
                fault_free=bound.fault_free and bound.fault_free.scaled(factor),
            ),
        )

    @cached_property
    def plan_id(self) -> str:
        """Sixteen hex digits that name this plan's content."""
        from optcc.plans.files import content_id, plan_content

        return content_id(plan_content(self))

    def to_json(self, lowered: str | None = None) -> str:
        """The plan as JSON text: rates in bytes per second, fractions as strings such as "3/5" (docs/plan-format.md).

        lowered : also write what it lowers to, "layout" (rings, trees, NIC shares, offsets) or "transfers" (every row
            besides). It belongs to no id: a plan is the same plan with and without it.
        Raises InputError where `optcc.plans.lowered.lowered_content` does.
        """
        from optcc.plans.files import write_plan

        return write_plan(self, lowered)

    @classmethod
    def from_json(cls, text: str, where: str = "plan") -> Plan:
        """Read a plan back. Raises InputError for anything that is not an intact plan of a version that is known."""
        from optcc.plans.files import read_plan

        return read_plan(text, where)
