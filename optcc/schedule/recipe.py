"""A family of schedules and its parameters, small and exact: what the planner chooses and lowers to transfers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from optcc.errors import InputError
from optcc.schedule.columns import Schedule
from optcc.schedule.routes import fluid_seconds
from optcc.schedule.tuned import DEFAULT_SEGMENTS, MIN_CHUNK, MIN_GPU_CHUNK
from optcc.values.cluster import Cluster
from optcc.values.json_records import FieldError, Whole, codec, write_json

if TYPE_CHECKING:
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound

# A family of schedules on one cluster with its number of segments left open, for the planner to try.


def default_segments(nbytes: int, ranks: int, *, gpus: bool = False) -> int:
    """64 (the pipeline's fill costs about 1/64), fewer when sections would fall under 16 KiB (256 KiB between GPUs), or
    a ring have more than 2^24 transfers, a gigabyte of columns: over 362 ranks."""
    least = MIN_GPU_CHUNK if gpus else MIN_CHUNK
    return max(1, min(DEFAULT_SEGMENTS, nbytes // (least * ranks), 2**23 // ranks**2))


class Costs(NamedTuple):
    """What a chunk, or a message, costs besides its bytes.

    alpha : seconds from its sender to its receiver; per_chunk : seconds that either end spends on it; jitter : by how
    much its time differs by chance, as `optcc.simulate` takes it
    """

    alpha: Fraction = Fraction(0)
    per_chunk: Fraction = Fraction(0)
    jitter: float = 0.0

    def __bool__(self) -> bool:
        return any(self)


@dataclass(frozen=True)
class CandidateFamily:
    """One family on one cluster: `make(segments)` is its recipe; `name` says which, for people.

    guess : segments to begin with, where a formula knows about how many are best
    shortlist : where there is one, just these recipes are tried, which a family's own reckoning puts first
    near : each makes others from the fastest so far of the shortlist, in one or two ways: of each they are tried in
    their order while they are faster, and the second way where the first led nowhere
    by_rate : transfers are striped over NICs by their rates, so that a server's NICs may be simulated as one
    costly : finding the recipe may take long
    deepest : most segments that are tried, where more would be too many transfers
    least_s : none of them takes fewer seconds, so that they are not tried after what is faster
    least_of : likewise of one of the shortlist, from less than it takes to lower it
    """

    name: str
    make: Callable[[int], Recipe]
    guess: int | None = None
    shortlist: Callable[[], Sequence[Recipe]] | None = None
    near: Sequence[Callable[[Any], Sequence[Sequence[Recipe]]]] = ()
    by_rate: bool = True
    costly: bool = False
    deepest: int | None = None
    least_s: float = 0.0
    least_of: Callable[[Any], float] | None = None


MAX_SEGMENTS = 65536
SEGMENTS = f"1 to {MAX_SEGMENTS}"
Segments = Annotated[int, Whole(1, MAX_SEGMENTS)]
"""A pipeline depth."""
Window = Annotated[int, Whole(0, MAX_SEGMENTS)]
"""Segments that may be under way at once."""


class Recipe(ABC):
    """Parameters of one family. Implementations are frozen dataclasses; equal ones lower to equal schedules.

    Their fields say what `content` writes (`optcc.values.json_records`), and in the docstring what they are.
    """

    family: ClassVar[str]
    beside: ClassVar[bool] = False
    """Whether its transfers land in receive buffers, beside the result (`Schedule.beside`)."""
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
        """All parameters as JSON values, for people, exact numbers as strings such as "3/5"."""
        return write_json(type(self), self)  # type: ignore[no-any-return]

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
