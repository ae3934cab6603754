"""The lowered part of a plan file: everything an executor needs that does not lower a recipe itself, as JSON values.

There are two depths. Depth "layout" has ports, routes with the bytes of each lane of each NIC, and channels (rings and
trees with their offsets). Depth "transfers" also has every row of the schedule, in order of priority.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from optcc.errors import InputError
from optcc.plans.lowered_fields import PortFields, RouteFields, TransferFields
from optcc.plans.plan import Plan
from optcc.schedule.columns import GRANULE, Schedule
from optcc.values.cluster import Cluster

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
