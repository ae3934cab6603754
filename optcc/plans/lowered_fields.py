"""The fields of the lowered part of a plan file, which is only written: what readers in other languages find there."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from optcc.schedule.recipe import MAX_SEGMENTS
from optcc.values.json_records import Bytes, Exact, Index, Least, Natural, Whole

ExactText = Annotated[str, Exact()]
Window = Annotated[int, Whole(0, 2 * MAX_SEGMENTS)]
"""A recipe's, rounded up to a multiple of its orderings."""
Count = Annotated[int, Whole(0, 2**63 - 1)]
Way = TypedDict("Way", {"out": ExactText, "in": ExactText})


class RankFields(TypedDict):
    """A rank, in the order of their numbers."""

    name: str
    server: Index


class PortFields(Way):
    """A live NIC, or an NVLink port where GPUs are ranks.

    name : SERVER/NIC or SERVER/gpuN/nvlink; rail : null: reaches every port of its kind
    """

    name: str
    rank: Index
    rail: Index | None
    nvlink: bool


class LinkFields(TypedDict):
    """What lanes share beyond ports, one way: a spine link, a pod's uplink."""

    name: str
    rate: ExactText


class LaneFields(TypedDict):
    """A lane of a route.

    out : the port it leaves by; into : the port it enters by
    share : of every transfer, those of a route sum to 1
    """

    out: Index
    into: Index
    share: ExactText
    links: list[Index]


class SplitFields(TypedDict):
    """How a transfer of one length is cut.

    cuts : lane l carries bytes cuts[l] to cuts[l + 1] of the transfer
    """

    length: Bytes
    cuts: Annotated[list[Bytes], Least(2)]


class RouteFields(TypedDict):
    """A way from rank to rank.

    splits : for every length of a transfer that occurs on this route, ascending
    """

    src: Index
    dst: Index
    lanes: Annotated[list[LaneFields], Least(1)]
    splits: list[SplitFields]


class RingSegment(TypedDict):
    """A segment of a ring.

    segment : its place in the pipeline; two of a channel may share one
    cuts : section s is bytes cuts[s] to cuts[s + 1]; it may be empty
    """

    segment: Index
    ordering: Literal["plain", "leaf-first", "via-leaf", "leaf-last"]
    cuts: Annotated[list[Bytes], Least(2)]


class RingFields(TypedDict):
    """A channel round a ring.

    members : in ring order: each sends to the next, the last to the first
    leaves : ranks that join the ring in each section, in the order in which their bytes are added
    owners : of section s of every segment
    via : of section s the leaf that adds last where the ordering is via-leaf or leaf-last; empty without leaves
    window : a hint: so many segments under way at once; 0: any
    """

    kind: Literal["ring"]
    members: Annotated[list[Index], Least(1)]
    leaves: list[Index]
    owners: Annotated[list[Index], Least(1)]
    via: list[Index]
    window: Window
    segments: Annotated[list[RingSegment], Least(1)]


class TreeSegment(TypedDict):
    """A segment of a tree.

    cuts : its first byte, and the byte after its last
    """

    segment: Index
    cuts: tuple[Bytes, Bytes]


class TreeFields(TypedDict):
    """A channel up and down a tree.

    up : routes, children before parents; down : routes, parents before children
    window : a hint: so many segments under way at once; 0: any
    """

    kind: Literal["tree"]
    root: Index
    up: Annotated[list[Index], Least(1)]
    down: Annotated[list[Index], Least(1)]
    window: Window
    segments: Annotated[list[TreeSegment], Least(1)]


class TransferFields(TypedDict):
    """Every transfer, in columns. Row order is priority, and the order in which sums into the same bytes are folded.

    count : of rows, the length of every column
    src : sending rank; dst : receiving rank; route : index into routes, of the same src and dst
    offset : first byte; length : bytes, at least 1
    reduce : 1: add to the receiver's bytes; 0: replace them
    stage : 1 reduce-scatter, 2 to a leaf, 3 from a leaf, 4 allgather; for people
    segment : place in the pipeline; for people
    dep_ptr : count + 1 positions in deps
    deps : row i may be sent when rows deps[dep_ptr[i]] to deps[dep_ptr[i + 1] - 1] have landed; all are earlier rows,
        and land where row i starts
    """

    count: Count
    src: list[Index]
    dst: list[Index]
    route: list[Index]
    offset: list[Bytes]
    length: list[Bytes]
    reduce: list[Literal[0, 1]]
    stage: list[Annotated[int, Whole(1, 4)]]
    segment: list[Index]
    dep_ptr: Annotated[list[Count], Least(1)]
    deps: list[Count]


class LoweredFields(TypedDict):
    """What a plan lowers to, for executors that do not lower a recipe themselves. Derived from the rest, and in no id.

    granule : every cut of the buffer, but its end, is a multiple of so many bytes
    ranks : by number
    ports : live NICs, and NVLink ports where GPUs are ranks
    links : what lanes share beyond ports, one way: spine links, pod uplinks
    routes : the ways from rank to rank
    channels : stretches of the buffer that go one way; none for a single rank
    transfers : where the depth is "transfers", and only there
    """

    depth: Literal["layout", "transfers"]
    granule: Natural
    ranks: Annotated[list[RankFields], Least(1)]
    ports: list[PortFields]
    links: list[LinkFields]
    routes: list[RouteFields]
    channels: list[RingFields | TreeFields]
    transfers: NotRequired[TransferFields]
