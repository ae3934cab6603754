"""What a plan runs: a family of schedules and its parameters, small and exact, lowered to transfers on every rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self

from optcc.errors import InputError
from optcc.schedule.columns import Schedule
from optcc.schedule.routes import fluid_seconds
from optcc.values.cluster import Cluster

if TYPE_CHECKING:
    from optcc.schedule.candidates import CandidateFamily, Costs
    from optcc.theory.tally import GroupCounts
    from optcc.values.bound import Bound

MAX_SEGMENTS = 65536
SEGMENTS = f"1 to {MAX_SEGMENTS}"


class Recipe(ABC):
    """Parameters of one family. Implementations are frozen dataclasses; equal ones lower to equal schedules."""

    family: ClassVar[str]
    segments: int
    """Pipeline depth: into how many parts each rank's data is cut along time."""

    @abstractmethod
    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """The transfers of an AllReduce of `nbytes` bytes per rank. Deterministic, row for row."""

    @abstractmethod
    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless the parameters fit each other and `cluster`."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """All parameters as JSON values, exact numbers as strings such as "3/5"; the id of a plan is made of them."""

    @classmethod
    @abstractmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """The recipe that `content` wrote. KeyError, TypeError or ValueError when it is something else."""

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

    def relabelled(self, to: Mapping[int, int], tally: GroupCounts) -> Recipe | None:
        """The same with every rank r as `to[r]`, on a cluster of equal servers in other places, which `tally` counts;
        None where the family cannot say."""
        return None

    def like(self, cluster: Cluster, bound: Bound, costs: Costs, tally: GroupCounts) -> Recipe | None:
        """About as deep, for a similar cluster, at once: nothing is lowered or simulated. None where that cannot be
        carried over. `tally` counts the cluster."""
        return None


def require(holds: bool, where: str, expected: str, got: object) -> None:
    """Raise InputError unless `holds`; `where` is the parameter."""
    if not holds:
        raise InputError("plan does not fit its cluster", where=where, expected=expected, got=str(got)[:200])


def require_segments(segments: object) -> None:
    """Raise InputError unless `segments` is a pipeline depth in range."""
    whole = isinstance(segments, int) and not isinstance(segments, bool)
    require(whole and 1 <= segments <= MAX_SEGMENTS, "segments", SEGMENTS, segments)  # type: ignore[operator]
