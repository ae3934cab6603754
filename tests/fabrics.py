"""Random clusters on rails, with or without a spine, pods and GPUs as ranks, and rings on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from hypothesis import strategies as st

from optcc.schedule import Schedule
from optcc.schedule.nested import NestedRings, Ordering
from optcc.values.cluster import Cluster, Fabric, Nic, Server


@st.composite
def fabrics(draw: st.DrawFn, max_servers: int = 6) -> Cluster:
    """2 to `max_servers` servers with 1 to 3 NICs of unequal rates, some dead, in two pods."""
    rails = draw(st.booleans())
    count, nics = draw(st.integers(2, max_servers)), draw(st.integers(1, 3))
    servers = []
    for s in range(count):
        rates = draw(st.lists(st.sampled_from([0, 1, 2, 2, 4]), min_size=2 * nics, max_size=2 * nics))
        mine = tuple(
            Nic(f"nic{i}", Fraction(rates[2 * i] * 1000), Fraction(rates[2 * i + 1] * 1000), rail=i)
            for i in range(nics)
        )
        servers.append(Server(f"server{s}", mine, pod=str(s % 2)))
    fabric = Fabric(
        rails=rails,
        spine=draw(st.sampled_from([None, Fraction(2), Fraction(3, 2)])) if rails else None,
        pod_oversubscription=draw(st.sampled_from([None, Fraction(2), Fraction(9)])),
    )
    return Cluster(tuple(servers), fabric=fabric)


def gpu_cluster(servers: int = 2, gpus: int = 2, nvlink_rate: int = 4000) -> Cluster:
    """GPUs as ranks, each beside one NIC of 1000 bytes per second, on rails."""
    made = Cluster.uniform(servers=servers, nics=gpus, rate=1000, nvlink_rate=nvlink_rate)
    return Cluster(made.servers, fabric=Fabric(rails=True), gpu_ranks=True)


def ring(cluster: Cluster, nbytes: int, *, order: Sequence[int] | None = None, segments: int = 3) -> Schedule:
    """One ring over all ranks, equal shards."""
    ranks = len(cluster.ranks)
    shares = ((ranks, Fraction(1)),)
    recipe = NestedRings(shares, tuple(order or range(ranks)), segments, orderings=(Ordering.VIA_LEAF,))
    return recipe.lower(cluster, nbytes)


def pods_of(cluster: Cluster, size: int, factor: int = 2) -> Cluster:
    """The cluster with so many servers in each pod, whose uplink was built for 1/factor of its NICs' rates."""
    fabric = replace(cluster.fabric, pod_oversubscription=Fraction(factor))
    now, before = (
        replace(each, fabric=fabric, pristine=None, servers=tuple(
            replace(server, pod=f"pod{s // size}") for s, server in enumerate(each.servers)
        ))
        for each in (cluster, cluster.fault_free)
    )  # fmt: skip
    return replace(now, pristine=before)
