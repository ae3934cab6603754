"""What a plan runs: a family of schedules and its parameters, small and exact, lowered to transfers on every rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np

from optcc.errors import InputError
from optcc.schedule.columns import Schedule
from optcc.schedule.routes import fluid_seconds
from optcc.schedule.tuned import DEFAULT_SEGMENTS, MIN_CHUNK, MIN_GPU_CHUNK
from optcc.values.cluster import Cluster
from optcc.values.json_records import Codec, Defs, FieldError, Json, Whole, codec, read_json, told_apart, write_json

if TYPE_CHECKING:
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound

# Rings and trees of a schedule with their bytes, without transfers, for a collective library's own kernels.
#
# A *channel* is a range of the buffer with one route: round a ring of some ranks, which others join as leaves, or up
# and down one tree. It is cut into segments, one after another in time, and these into sections, each with an owner
# that sums it.


PLAIN = "plain"
"""The ordering of a ring without leaves."""
LEAF_LAST = "leaf-last"
"""R2CC: the ring sums and shares out without its leaf, which then adds and sends the result along the ring."""


def ring_channel(
    members: Sequence[int], leaves: Sequence[int], segments: list[tuple[int, str, Sequence[int]]], window: int = 0
) -> dict[str, Any]:
    """A channel round a ring. `segments`: (segment, ordering, cuts); all have as many sections, section s belonging to
    members[s % m]."""
    sections = range(len(segments[0][2]) - 1)
    return {
        "kind": "ring",
        "members": list(members),
        "leaves": list(leaves),
        "owners": [members[s % len(members)] for s in sections],
        "via": [leaves[s % len(leaves)] for s in sections] if leaves else [],
        "window": window,
        "segments": [
            {"segment": segment, "ordering": ordering, "cuts": [int(cut) for cut in cuts]}
            for segment, ordering, cuts in segments
        ],
    }


def tree_channels(schedule: Schedule, window: int = 0) -> Iterator[dict[str, Any]]:
    """Channels from the rows alone: pieces of the buffer with the same arcs, added in the same order, are one channel.

    A hub of direct exchange is a tree of one hop; where a slow rank adds last, that is the root, the hub its child.
    """
    bounds = np.unique(np.concatenate((schedule.offset, schedule.offset + schedule.length)))
    low = np.searchsorted(bounds, schedule.offset)
    counts = np.searchsorted(bounds, schedule.offset + schedule.length) - low
    rows = np.repeat(np.arange(len(schedule)), counts)
    piece = np.repeat(low, counts) + np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.argsort(piece, kind="stable")
    ends = np.flatnonzero(np.diff(piece[order])) + 1
    found: dict[tuple[tuple[int, ...], frozenset[int]], dict[str, Any]] = {}
    for start, stop, mine in zip(bounds[:-1].tolist(), bounds[1:].tolist(), np.split(rows[order], ends), strict=True):
        up, down = mine[schedule.reduce[mine]], mine[~schedule.reduce[mine]]
        arcs = schedule.route[up].tolist(), schedule.route[down].tolist()
        channel = found.setdefault(
            (tuple(arcs[0]), frozenset(arcs[1])),
            {
                "kind": "tree",
                "root": int(schedule.dst[up[-1]]),
                "up": arcs[0],
                "down": arcs[1],
                "window": window,
                "segments": [],
            },
        )
        channel["segments"].append({"segment": int(schedule.segment[mine].min()), "cuts": [start, stop]})
    for channel in found.values():
        channel["segments"].sort(key=lambda segment: (segment["segment"], segment["cuts"]))
    yield from found.values()


# A family of schedules on one cluster with its number of segments left open, for the planner to try.


def default_segments(nbytes: int, ranks: int, *, gpus: bool = False) -> int:
    """64 (the pipeline's fill costs about 1/64), fewer when sections would fall under 16 KiB (256 KiB between GPUs)."""
    return max(1, min(DEFAULT_SEGMENTS, nbytes // ((MIN_GPU_CHUNK if gpus else MIN_CHUNK) * ranks)))


class Costs(NamedTuple):
    """What a chunk, or a message, costs besides its bytes.

    alpha : seconds from its sender to its receiver; per_chunk : seconds that either end spends on it
    """

    alpha: Fraction = Fraction(0)
    per_chunk: Fraction = Fraction(0)

    def __bool__(self) -> bool:
        return bool(self.alpha or self.per_chunk)


@dataclass(frozen=True)
class CandidateFamily:
    """One family on one cluster: `make(segments)` is its recipe; `name` says which, for people.

    guess : segments to begin with, where a formula knows about how many are best
    shortlist : where there is one, just these recipes are tried, which a family's own reckoning puts first
    by_rate : transfers are striped over NICs by their rates, so that a server's NICs may be simulated as one
    costly : finding the recipe may take long
    deepest : most segments that are tried, where more would be too many transfers
    least_s : none of them takes fewer seconds, so that they are not tried after what is faster
    """

    name: str
    make: Callable[[int], Recipe]
    guess: int | None = None
    shortlist: Callable[[], Sequence[Recipe]] | None = None
    by_rate: bool = True
    costly: bool = False
    deepest: int | None = None
    least_s: float = 0.0


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
        """What goes one way through the ranks, for other libraries: channels, as of `ring_channel` and `tree_channels`.

        schedule : what it lowers to

        By default each piece of the buffer that goes by the same arcs is one, which is right for any schedule.
        """
        return tree_channels(schedule)

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
        return {"family": value.family, self.name: value.content()}

    def schema(self, defs: Defs) -> dict[str, Any]:
        parts = {name: {"properties": {self.name: codec(kind).schema(defs)}} for name, kind in self.families.items()}
        found = told_apart("family", parts)
        found["properties"]["family"]["description"] = f"of `{self.name}`"
        found["properties"][self.name] = {"type": "object"}
        return {**found, "required": ["family", self.name]}
