"""What a plan runs: a family of schedules and its parameters, small and exact, lowered to transfers on every rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from optcc.errors import InputError
from optcc.schedule.columns import Schedule
from optcc.schedule.routes import fluid_seconds
from optcc.values.cluster import Cluster
from optcc.values.json_records import codec, read_json, told_apart, write_json
from optcc.values.json_types import Codec, Defs, FieldError, Json, Whole

if TYPE_CHECKING:
    from optcc.schedule.candidates import CandidateFamily, Costs
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound

MAX_SEGMENTS = 65536
SEGMENTS = f"1 to {MAX_SEGMENTS}"
Segments = Annotated[int, Whole(1, MAX_SEGMENTS)]
"""A pipeline depth."""
Window = Annotated[int, Whole(0, MAX_SEGMENTS)]
"""Segments that may be under way at once."""


class Recipe(ABC):
    """Parameters of one family. Implementations are frozen dataclasses; equal ones lower to equal schedules.

    Their fields say all of their JSON (`optcc.values.json_records`): names, types, bounds, and in the docstring what
    they are. Reader, writer and the schema of plan files follow from that.
    """

    family: ClassVar[str]
    segments: int
    """Pipeline depth: into how many parts each rank's data is cut along time."""

    @abstractmethod
    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """The transfers of an AllReduce of `nbytes` bytes per rank. Deterministic, row for row."""

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters have their types and bounds; families also check that they fit each
        other and `cluster`."""
        try:
            codec(type(self)).check(self)
        except FieldError as error:
            require(False, error.place, error.expected, error.got)

    def content(self) -> dict[str, Any]:
        """All parameters as JSON values, exact numbers as strings such as "3/5"; the id of a plan is made of them."""
        return write_json(type(self), self)  # type: ignore[no-any-return]

    @classmethod
    def read(cls, raw: Json) -> Self:
        """The recipe that `content` wrote. FieldError when it is something else."""
        return read_json(cls, raw)  # type: ignore[no-any-return]

    @abstractmethod
    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        """(label, text) lines for people."""

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """Seconds with infinitely many segments and no latency: the busiest port's, link's or uplink's work."""
        return fluid_seconds(self.lower(cluster, nbytes), cluster)

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """What the planner tries of the family on this cluster; nothing where it does not apply, or for a baseline."""
        return ()

    @classmethod
    def at_once(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Recipe | None:
        """What formulas alone say is near the best, without lowering or simulating anything; None where none do."""
        return None

    def fits(self, cluster: Cluster) -> bool:
        """Whether `check` has nothing against the cluster."""
        try:
            self.check(cluster)
        except InputError:
            return False
        return True

    def layout(self, schedule: Schedule) -> Iterable[dict[str, Any]]:
        """What goes one way through the ranks, for other libraries (`optcc.schedule.layout`).

        schedule : what it lowers to

        By default each piece of the buffer that goes by the same arcs is one, which is right for any schedule.
        """
        from optcc.schedule.layout import trees

        return trees(schedule)

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> Recipe | None:
        """The same with every rank r as `to[r]`, on a cluster of equal servers in other places, which `counts` counts;
        None where the family cannot say."""
        return None

    def like(self, cluster: Cluster, bound: Bound, costs: Costs, counts: GroupCounts) -> Recipe | None:
        """About as deep, for a similar cluster, at once: nothing is lowered or simulated. None where that cannot be
        carried over. `counts` counts the cluster."""
        return None


def require(holds: bool, where: str, expected: str, got: object) -> None:
    """Raise InputError unless `holds`; `where` is the parameter."""
    if not holds:
        raise InputError("plan does not fit its cluster", where=where, expected=expected, got=str(got)[:200])


def require_segments(segments: object) -> None:
    """Raise InputError unless `segments` is a pipeline depth in range."""
    require(type(segments) is int and 1 <= segments <= MAX_SEGMENTS, "segments", SEGMENTS, segments)


@dataclass(frozen=True, eq=False)
class OfFamily(Codec):
    """A recipe of one of `families`, as member `name`; its family's name is member "family" of the same object."""

    name: str
    families: Mapping[str, type[Recipe]]
    flat: bool = True

    def read(self, raw: Json) -> Recipe:
        """See the class."""
        for name in ("family", self.name):
            if name not in raw:
                raise FieldError(f"a field {name!r}", "none")
        family = raw["family"]
        if not isinstance(family, str) or family not in self.families:
            raise FieldError(f"one of {', '.join(self.families)}", family).inside("family")
        try:
            return self.families[family].read(raw[self.name])
        except FieldError as error:
            raise error.inside(self.name) from None

    def check(self, value: Recipe) -> None:
        """Nothing: a recipe is checked against its cluster."""

    def write(self, value: Recipe) -> Json:
        """See the class."""
        return {"family": value.family, self.name: value.content()}

    def schema(self, defs: Defs) -> dict[str, Any]:
        """See the class."""
        parts = {name: {"properties": {self.name: codec(kind).schema(defs)}} for name, kind in self.families.items()}
        found = told_apart("family", parts)
        found["properties"]["family"]["description"] = f"of `{self.name}`"
        found["properties"][self.name] = {"type": "object"}
        return {**found, "required": ["family", self.name]}
