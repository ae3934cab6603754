"""A schedule over other NICs than those it was made for: its transfers and their order stay, and with them every sum.

A lane keeps its part of a transfer as far as both of its ports are as fast as they were. What it cannot carry any more
goes by all NICs that the two ranks have now, in proportion to their rates. So losses add up to what is left, in
whatever order they came; and with all NICs back, the schedule is as it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from optcc.schedule.columns import Lane, Port, Route, Schedule
from optcc.schedule.routes import Routes
from optcc.values.cluster import Cluster, Nic

ALL = Fraction(1)


def carried_by(cluster: Cluster, schedule: Schedule, made_for: Cluster) -> Schedule:
    """`schedule`, which was lowered for `made_for`, by the NICs of `cluster`: the same, some at other rates or dead.

    Raises InfeasibleError where two ranks that exchange something have no way to each other any more: one has no NIC,
    or on rails they have none in common.
    """
    if cluster.servers == made_for.servers:
        return schedule
    left = _parts_left(_nics(cluster), _nics(made_for))
    routes, shared = Routes(cluster), Routes(cluster)
    numbers = [_renewed(route, schedule.ports, left, routes, shared) for route in schedule.routes]
    return schedule.replace(
        ports=routes.ports,
        links=routes.links,
        routes=tuple(routes.table),
        route=np.array(numbers or [0], np.int32)[schedule.route],
    )


def _nics(cluster: Cluster) -> dict[str, Nic]:
    return {f"{server.name}/{nic.name}": nic for server in cluster.servers for nic in server.nics}


def _parts_left(now: Mapping[str, Nic], then: Mapping[str, Nic]) -> dict[str, tuple[Fraction, Fraction]]:
    """NIC -> what is left of the rates (out, in) that it had, at most all."""

    def part(rate: Fraction, old: Fraction) -> Fraction:
        return min(ALL, rate / old) if old else Fraction(0)

    return {
        name: (part(now[name].out_rate, nic.out_rate), part(now[name].in_rate, nic.in_rate))
        for name, nic in then.items()
    }


def _renewed(
    route: Route, ports: tuple[Port, ...], left: Mapping[str, tuple[Fraction, Fraction]], routes: Routes, shared: Routes
) -> int:
    """The number in `routes` of what takes the place of a route between two ports of `ports`.

    shared : routes between all NICs of two ranks
    """
    src, dst = route.src, route.dst
    shares: dict[tuple[int, int], Fraction] = {}

    def give(out: int, into: int, share: Fraction) -> None:
        if share:
            shares[out, into] = shares.get((out, into), Fraction(0)) + share

    kept = [lane.share * _left_of(lane, ports, left) for lane in route.lanes]
    for lane, share in zip(route.lanes, kept, strict=True):
        if share:
            give(routes.port_index[ports[lane.out].name], routes.port_index[ports[lane.into].name], share)
    lost = ALL - sum(kept)
    if lost:
        for lane in shared.table[shared(src, dst)].lanes:
            give(lane.out, lane.into, lost * lane.share)
    return routes.pinned(src, dst, [(out, into, share) for (out, into), share in shares.items()])


def _left_of(lane: Lane, ports: tuple[Port, ...], left: Mapping[str, tuple[Fraction, Fraction]]) -> Fraction:
    """The part of a lane that it still carries; NVLink ports are always what they were."""
    out, into = ports[lane.out], ports[lane.into]
    return ALL if out.nvlink else min(left[out.name][0], left[into.name][1])
