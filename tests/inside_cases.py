"""Servers whose GPUs are ranks, schedules inside them, and what their ports carry."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from optcc.schedule import Schedule
from optcc.schedule.inside import InsideServers
from optcc.schedule.inside_parts import inside_servers
from optcc.theory.inside_split import inside_split
from optcc.values.cluster import Cluster, Fabric, Nic, Server

WHOLE = Fraction(1)
GB = 10**9


def gpus(
    servers: int, count: int = 8, nvlink: int = 450, rails: bool = False, dead: int = 0, spine: Fraction | None = None
) -> Cluster:
    """Servers with `count` GPUs, a 50 GB/s NIC each; the first server's first `dead` NICs are."""
    whole = Cluster.uniform(servers=servers, nics=count, rate=50 * GB, gpus=count, nvlink_rate=nvlink * GB)
    cluster = replace(whole, fabric=Fabric(rails=rails, spine=spine), gpu_ranks=True)
    for nic in range(dead):
        cluster = cluster.degrade(f"server0/nic{nic}")
    return cluster


def recipe(cluster: Cluster, segments: int = 4, **options: Any) -> InsideServers:
    return inside_servers(cluster, inside_split(cluster).parts, segments, **options)


@st.composite
def gpu_clusters(draw: st.DrawFn, min_servers: int = 1, rails: bool = False) -> Cluster:
    """Servers of 1 to 4 GPUs with 1 to 3 NICs of unequal rates, some dead; NVLink slow or fast. On rails a NIC each."""
    servers = []
    count = nics = draw(st.integers(1, 4))
    for s in range(draw(st.integers(min_servers, 5))):
        if not rails:
            count, nics = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        rates = [draw(st.sampled_from([0, 1, 2, 4, 4, 4])) * GB for _ in range(nics)]
        ports = tuple(
            Nic(f"nic{i}", Fraction(out), Fraction(draw(st.sampled_from([out, out, GB]))), rail=i)
            for i, out in enumerate(rates)
        )
        servers.append(Server(f"server{s}", ports, count, Fraction(draw(st.sampled_from([3, 9, 40])) * GB)))
    return Cluster(tuple(servers), fabric=Fabric(rails=rails), gpu_ranks=True)


def some_shares(draw: st.DrawFn, allowed: list[bool]) -> tuple[Fraction, ...]:
    weights = [draw(st.integers(0, 5)) * ok for ok in allowed]
    if not any(weights):
        weights = [int(ok) for ok in allowed]
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


SIZES = st.one_of(st.integers(0, 300), st.integers(1, 2**22), st.just(2**40 + 12345))


def port_bytes(schedule: Schedule, nvlink: bool) -> tuple[np.ndarray, np.ndarray]:
    """Bytes out and in of every port of the kind."""
    out, into = np.zeros((2, len(schedule.ports)))
    for route, moved in zip(
        schedule.routes, np.bincount(schedule.route, schedule.length, len(schedule.routes)), strict=True
    ):
        for lane in route.lanes:
            out[lane.out] += float(lane.share) * moved
            into[lane.into] += float(lane.share) * moved
    kind = np.array([port.nvlink == nvlink for port in schedule.ports])
    return out[kind], into[kind]
