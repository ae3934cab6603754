"""Clusters on rails, given and random, and the exact program's bound for them."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import assume
from hypothesis import strategies as st

from optcc.errors import InfeasibleError
from optcc.theory import program_bound
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster, Fabric, Nic, Server

N = 2**30


def on_rails(rates: list[list[int]], **fabric: Fraction) -> Cluster:
    """Server i has a NIC of rates[i][j] bytes per second each way on rail j."""
    servers = tuple(
        Server(f"server{i}", tuple(Nic(f"nic{j}", Fraction(r), Fraction(r), rail=j) for j, r in enumerate(row)))
        for i, row in enumerate(rates)
    )
    return Cluster(servers, fabric=Fabric(rails=True, **fabric))


@st.composite
def networks(draw: st.DrawFn, max_servers: int = 4, gpus: bool = True) -> Cluster:
    """Servers on rails, with or without a spine, pods and GPUs as ranks; some NICs dead, some slow."""
    rails, count = draw(st.integers(1, 3)), draw(st.integers(2, max_servers))
    both = draw(st.booleans())
    rate = st.sampled_from([0, 1, 2, 2, 4])
    servers = []
    for s in range(count):
        nics = []
        for i in range(rails):
            out = draw(rate)
            nics.append(Nic(f"nic{i}", Fraction(out), Fraction(out if both else draw(rate)), rail=i, gpu=i))
        servers.append(Server(f"server{s}", tuple(nics), rails, Fraction(draw(st.sampled_from([3, 9]))), str(s % 2)))
    fabric = Fabric(
        rails=True,
        spine=draw(st.sampled_from([None, Fraction(2), Fraction(3, 2)])),
        pod_oversubscription=draw(st.sampled_from([None, Fraction(2)])),
    )
    return Cluster(tuple(servers), fabric=fabric, gpu_ranks=gpus and draw(st.booleans()))


def solved(cluster: Cluster) -> Bound:
    """The program's bound; clusters that no AllReduce can cross are not what the test is about."""
    try:
        return program_bound(cluster, N)
    except InfeasibleError:
        assume(False)
        raise
