"""The plan: which transfers an AllReduce makes on a cluster, beside the bound that they come close to.

Who plans lowers a recipe to transfers; everybody else gets the transfers. A plan's id is a hash of all of it, so ranks
compare ids before the first byte moves, and a changed file is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from optcc.errors import InputError
from optcc.schedule.baselines import BASELINES
from optcc.schedule.columns import Schedule
from optcc.schedule.recipe import Recipe
from optcc.schedule.routes import rated
from optcc.values.bound import Bound, Certificate, in_words
from optcc.values.cluster import Cluster
from optcc.values.units import format_seconds, format_size


@dataclass(frozen=True, eq=False)
class Recorded(Recipe):
    """What a plan that was read has in place of a recipe: the transfers, and what the planner said of its choices.

    family : that made them; segments : as deep
    choices : the family's parameters as JSON values, for people
    told : (label, text) lines for people
    seconds : with infinitely many segments and no latency
    """

    family: str  # type: ignore[misc]
    segments: int
    choices: Mapping[str, Any]
    told: tuple[tuple[str, str], ...]
    seconds: Fraction
    transfers: Schedule

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """The transfers, at the rates of `cluster`, which has the same NICs, in proportion for other bytes."""
        return rated(self.transfers.resized(nbytes), cluster)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """As the planner wrote it."""
        return self.seconds

    def check(self, cluster: Cluster) -> None:
        """Nothing: transfers are checked when they are read."""

    def content(self) -> dict[str, Any]:
        """As the planner wrote them."""
        return dict(self.choices)

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """As the planner wrote them."""
        return list(self.told)


@dataclass(frozen=True, repr=False, eq=False)
class Plan:
    """What to run on `cluster` for an AllReduce of `bound.nbytes` bytes per rank. Equal plans have equal ids.

    Attributes
    ----------
    cluster : the cluster, after its failures
    bound : the lower bound and its certificate
    recipe : what the transfers are lowered from where the plan was made; of a plan that was read, the transfers
    """

    cluster: Cluster
    bound: Bound
    recipe: Recipe

    def __repr__(self) -> str:
        size, ranks = format_size(self.bound.nbytes), len(self.cluster.ranks)
        what = f"{self.family}, {self.segments} segments, {size} per rank, {ranks} ranks"
        return f"<Plan {self.plan_id}: {what}, bound {format_seconds(self.bound.seconds)}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.plan_id == other.plan_id

    def __hash__(self) -> int:
        return hash(self.plan_id)

    @property
    def family(self) -> str:
        """The name of the family of schedules."""
        return self.recipe.family

    @property
    def segments(self) -> int:
        """Pipeline depth: into how many parts each rank's data is cut along time."""
        return self.recipe.segments

    @cached_property
    def choices(self) -> dict[str, Any]:
        """The family's parameters as JSON values, for people."""
        return self.recipe.content()

    @cached_property
    def told(self) -> tuple[tuple[str, str], ...]:
        """(label, text) lines for people: what the planner chose."""
        return tuple(self.recipe.describe(self.cluster))

    @cached_property
    def fluid_s(self) -> Fraction:
        """Seconds the schedule takes with infinitely many segments and no latency."""
        return self.recipe.fluid_s(self.cluster, self.bound.nbytes)

    @cached_property
    def _schedule(self) -> Schedule:
        return self.recipe.lower(self.cluster, self.bound.nbytes)

    def schedule(self) -> Schedule:
        """The transfers; made once."""
        return self._schedule

    def with_schedule(self, schedule: Schedule | None) -> Plan:
        """The plan, which need not be lowered again where `schedule` is what it is lowered to."""
        if schedule is not None:
            self.__dict__["_schedule"] = schedule
        return self

    def baseline(self, algorithm: str) -> Plan:
        """The same job by another algorithm, as many segments deep: "optcc" is this plan, others are in `BASELINES`.

        Raises InputError for a name that is neither, and where the baseline does not apply to the cluster.
        """
        if algorithm == "optcc":
            return self
        if algorithm not in BASELINES:
            expected = ", ".join(["optcc", *BASELINES])
            raise InputError("unknown algorithm", where="--algorithm", expected=expected, got=algorithm)
        recipe = BASELINES[algorithm](self.cluster, self.segments)
        recipe.check(self.cluster)
        return replace(self, recipe=recipe)

    def scaled(self, factor: Fraction) -> Plan:
        """The same plan on a cluster whose rates are all times `factor`: shares stay, seconds are divided by it."""
        bound, cert, cluster = self.bound, self.bound.certificate, self.cluster.scaled(factor)
        certificate = cert.scaled(factor)
        recipe = self.recipe
        return replace(
            self,
            cluster=cluster,
            recipe=replace(recipe, seconds=recipe.seconds / factor) if isinstance(recipe, Recorded) else recipe,
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
        from optcc.plans.files import id_of

        return id_of(self)

    def to_bytes(self, *, packed: bool | None = None) -> bytes:
        """The plan as a file has it (docs/plan-format.md).

        packed : whether the columns are deflated; None: where they take more than `files.STORED` bytes
        Raises InputError for one that is too large to be read again.
        """
        from optcc.plans.files import write_plan

        return write_plan(self, packed)

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "plan") -> Plan:
        """Read a plan back. Raises InputError for anything that is not an intact plan of a version that is known."""
        from optcc.plans.files import read_plan

        return read_plan(data, where)
