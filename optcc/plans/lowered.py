"""The lowered part of a plan file: everything an executor needs that does not lower a recipe itself, as JSON values.

There are two depths. Depth "layout" has ports, routes with the bytes of each lane of each NIC, and channels (rings and
trees with their offsets). Depth "transfers" also has every row of the schedule, in order of priority.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from optcc.errors import InputError
from optcc.plans.plan import Plan
from optcc.schedule.columns import GRANULE, Schedule
from optcc.schedule.recipe import MAX_SEGMENTS
from optcc.values.cluster import Cluster
from optcc.values.json_records import Bytes, Exact, Index, Least, Natural, Whole

# The fields of the lowered part of a plan file, which is only written: what readers in other languages find there.


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


DEPTHS = ("layout", "transfers")
MAX_TRANSFERS = 1_000_000
"""55 MB of JSON or more, of the 64 MiB that a plan file may have. Whoever needs more lowers
the recipe, or takes the layout, which does not grow with the hops."""


def lowered_content(plan: Plan, depth: object) -> dict[str, Any]:
    """The lowered part of `plan`, of one of `DEPTHS`.

    Raises InputError for another depth, or more than `MAX_TRANSFERS` transfers.
    """
    if depth not in DEPTHS:
        raise InputError("no such depth", where="--lowered", expected=" or ".join(DEPTHS), got=str(depth)[:60])
    schedule = plan.schedule()
    if depth == "transfers" and len(schedule) > MAX_TRANSFERS:
        raise InputError(
            "too many transfers for a file",
            where="--lowered transfers",
            expected=f"at most {MAX_TRANSFERS}",
            got=len(schedule),
            hint="Fewer --segments, or --lowered layout.",
        )
    channels = list(plan.recipe.layout(schedule)) if len(schedule) else []
    content = {
        "depth": depth,
        "granule": GRANULE,
        "ranks": [{"name": rank.name, "server": rank.server} for rank in plan.cluster.ranks],
        "ports": _ports(plan.cluster, schedule),
        "links": [
            {"name": link.name, "rate": str(rate)}
            for link, rate in zip(schedule.links, plan.cluster.uplinks.values(), strict=True)
        ],
        "routes": _routes(schedule, channels),
        "channels": channels,
    }
    return content if depth == "layout" else {**content, "transfers": _transfers(schedule)}


def _ports(cluster: Cluster, schedule: Schedule) -> list[PortFields]:
    rates: dict[str, tuple[Fraction, Fraction]] = {}
    for server in cluster.servers:
        rates |= {f"{server.name}/{nic.name}": (nic.out_rate, nic.in_rate) for nic in server.nics}
        nvlink = (server.nvlink_rate, server.nvlink_rate)
        rates |= {f"{server.name}/gpu{gpu}/nvlink": nvlink for gpu in range(server.gpus)}
    return [
        {
            "name": port.name,
            "rank": port.rank,
            "rail": port.rail,
            "nvlink": port.nvlink,
            "out": str(rates[port.name][0]),
            "in": str(rates[port.name][1]),
        }
        for port in schedule.ports
    ]


def _routes(schedule: Schedule, channels: list[dict[str, Any]]) -> list[RouteFields]:
    """Each with its lanes, and where transfers of each length that occurs are cut among them."""
    lengths: list[set[int]] = [set() for _ in schedule.routes]
    for route, length in set(zip(schedule.route.tolist(), schedule.length.tolist(), strict=True)):
        lengths[route].add(length)
    for channel in channels:
        if channel["kind"] == "tree":  # transfers may carry several of its sections at once
            own = {segment["cuts"][1] - segment["cuts"][0] for segment in channel["segments"]}
            for route in {*channel["up"], *channel["down"]}:
                lengths[route] |= own
    return [
        {
            "src": route.src,
            "dst": route.dst,
            "lanes": [
                {"out": lane.out, "into": lane.into, "share": str(lane.share), "links": list(lane.links)}
                for lane in route.lanes
            ],
            "splits": [{"length": length, "cuts": route.cuts(length)} for length in sorted(mine)],
        }
        for route, mine in zip(schedule.routes, lengths, strict=True)
    ]


def _transfers(schedule: Schedule) -> TransferFields:
    return {
        "count": len(schedule),
        "src": schedule.src.tolist(),
        "dst": schedule.dst.tolist(),
        "route": schedule.route.tolist(),
        "offset": schedule.offset.tolist(),
        "length": schedule.length.tolist(),
        "reduce": schedule.reduce.astype(int).tolist(),
        "stage": schedule.stage.tolist(),
        "segment": schedule.segment.tolist(),
        "dep_ptr": schedule.dep_ptr.tolist(),
        "deps": schedule.dep_idx.tolist(),
    }
