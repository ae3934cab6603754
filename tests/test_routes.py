"""Which ports and links a transfer uses: rails, spine, pods, NVLink, and routes that a caller pins."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import optcc
from optcc.errors import InfeasibleError, InputError, VerifyError
from optcc.schedule import Lane, Link
from optcc.schedule.routes import Routes, fluid_seconds, ports_of
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from tests.effort import examples
from tests.fabrics import fabrics, gpu_cluster, ring


def crossed(routes: Routes, src: int, dst: int) -> set[tuple[str, ...]]:
    """The names of the links of every lane between two ranks."""
    return {tuple(routes.links[link].name for link in lane.links) for lane in routes.table[routes(src, dst)].lanes}


def test_links_between_pods_and_rails_in_the_order_crossed() -> None:
    one = Fraction(1000)
    servers = (
        Server("a", (Nic("nic0", one, one, rail=0),), pod="left"),
        Server("b", (Nic("nic0", one, one, rail=1),), pod="right"),
        Server("c", (Nic("nic0", one, one, rail=0),), pod="right"),
    )
    routes = Routes(Cluster(servers, fabric=Fabric(rails=True, spine=Fraction(2), pod_oversubscription=Fraction(4))))
    up, down = "uplink of pod left, out", "uplink of pod right, in"
    assert crossed(routes, 0, 1) == {(up, "spine link of rail 0, out", "spine link of rail 1, in", down)}
    assert crossed(routes, 0, 2) == {(up, down)}
    assert crossed(routes, 1, 2) == {("spine link of rail 1, out", "spine link of rail 0, in")}
    rates = {link.name: link.rate for link in routes.links}
    assert rates[up] == 250
    assert rates[down] == 500
    assert rates["spine link of rail 0, out"] == 1000


def test_one_fabric_has_no_links() -> None:
    schedule = ring(Cluster.uniform(servers=3, nics=2, rate=1000), 300)
    assert schedule.links == ()
    assert not schedule.shared_links


@examples(100)
@given(cluster=fabrics())
def test_fluid_time_counts_every_port_and_link(cluster: Cluster) -> None:
    """Against a count of its own, row by row: who moved what, and over which rails and pods."""
    try:
        schedule = ring(cluster, 10**6, segments=1)
    except InputError:
        assume(False)
        raise
    load: dict[object, Fraction] = {}
    nics = {f"{s.name}/{nic.name}": (s.pod, nic.rail, nic) for s in cluster.servers for nic in s.nics}
    for row in range(len(schedule)):
        for lane in schedule.routes[schedule.route[row]].lanes:
            moved = lane.share * int(schedule.length[row])
            (pod_a, rail_a, a), (pod_b, rail_b, b) = (nics[schedule.ports[p].name] for p in (lane.out, lane.into))
            uses = {("port", lane.out, "out"): a.out_rate, ("port", lane.into, "in"): b.in_rate}
            if cluster.fabric.rails and rail_a != rail_b:
                uses |= {
                    (key := ("spine", rail, way)): cluster.uplinks[key]
                    for rail, way in ((rail_a, "out"), (rail_b, "in"))
                }
            if pod_a != pod_b and cluster.fabric.pod_oversubscription is not None:
                uses |= {
                    (key := ("pod", pod, way)): cluster.uplinks[key] for pod, way in ((pod_a, "out"), (pod_b, "in"))
                }
            for key, rate in uses.items():
                load[key] = load.get(key, Fraction(0)) + moved / rate
    assert fluid_seconds(schedule, cluster) == max(load.values())
    assert schedule.shared_links == any(kind != "port" for kind, *_ in load)
    optcc.verify(schedule)


@pytest.mark.parametrize("links", [(7,), (-1,), (1,)])
def test_the_verifier_refuses_a_link_that_is_not_there_or_dead(links: tuple[int, ...]) -> None:
    schedule = ring(Cluster.uniform(servers=3, rate=1000), 300)
    schedule = schedule.replace(links=(Link("good", 1.0), Link("dead", 0.0)))
    optcc.verify(schedule)
    first = schedule.routes[0]
    crossing = first._replace(lanes=(first.lanes[0]._replace(links=links),))
    with pytest.raises(VerifyError, match="crosses link"):
        optcc.verify(schedule.replace(routes=(crossing, *schedule.routes[1:])))


def test_gpus_have_their_nics_and_an_nvlink_port() -> None:
    ports = ports_of(gpu_cluster(gpu_count := 2))
    assert [port.name for port in ports[:4]] == [
        "server0/nic0",
        "server0/gpu0/nvlink",
        "server0/nic1",
        "server0/gpu1/nvlink",
    ]
    assert [port.rank for port in ports] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [port.out_rate for port in ports[:2]] == [1000, 4000]
    assert len(ports) == 4 * gpu_count


def test_gpus_of_a_server_meet_over_nvlink_only() -> None:
    routes = Routes(gpu_cluster())
    inside, across = routes.table[routes(0, 1)], routes.table[routes(0, 2)]
    names = [[(routes.ports[x.out].name, routes.ports[x.into].name) for x in route.lanes] for route in (inside, across)]
    assert names == [[("server0/gpu0/nvlink", "server0/gpu1/nvlink")], [("server0/nic0", "server1/nic0")]]


def test_rails_of_gpus_are_those_of_their_server() -> None:
    """NICs without a rail take their place in the server, not in the GPU's own list."""
    nics = tuple(Nic(f"nic{i}", Fraction(1000), Fraction(1000)) for i in range(2))
    servers = tuple(Server(f"server{s}", nics, gpus=2, nvlink_rate=Fraction(4000)) for s in range(2))
    routes = Routes(Cluster(servers, fabric=Fabric(rails=True), gpu_ranks=True))
    with pytest.raises(InfeasibleError, match="a rail with a live NIC on both"):
        routes(0, 3)
    assert len(routes.table[routes(1, 3)].lanes) == 1


def test_a_gpu_without_a_nic_is_told_of_its_neighbours() -> None:
    routes = Routes(gpu_cluster().degrade("server0/nic1"))
    assert routes.table[routes(1, 0)].lanes
    with pytest.raises(InfeasibleError, match="through its neighbours"):
        routes(1, 3)
    with pytest.raises(InfeasibleError, match="server0/gpu1"):
        routes(3, 1)


def test_no_nvlink_rate_is_said() -> None:
    with pytest.raises(InfeasibleError, match="no NVLink rate"):
        Routes(gpu_cluster(nvlink_rate=0))(0, 1)


def test_a_pinned_route_uses_just_these_ports() -> None:
    cluster = Cluster.uniform(servers=3, nics=3, rate=1000)
    routes = Routes(replace(cluster, fabric=Fabric(rails=True, spine=Fraction(1))))
    lanes = [
        (routes.port_index["server0/nic2"], routes.port_index["server1/nic2"], Fraction(1, 4)),
        (routes.port_index["server0/nic2"], routes.port_index["server1/nic0"], Fraction(3, 4)),
    ]
    index = routes.pinned(0, 1, lanes)
    assert routes.pinned(0, 1, tuple(lanes)) == index
    assert routes(0, 1) != index
    straight, over = routes.table[index].lanes
    assert straight == Lane(8 - 6, 5, Fraction(1, 4))
    assert [routes.links[link].name for link in over.links] == ["spine link of rail 2, out", "spine link of rail 0, in"]


@pytest.mark.parametrize(
    ("out", "into", "share", "what"),
    [
        ("server0/nic0", "server1/nic0", Fraction(1, 2), "do not carry a transfer"),
        ("server0/nic0", "server1/nic1", Fraction(1), "no such lane"),
        ("server1/nic0", "server0/nic0", Fraction(1), "no such lane"),
        ("server0/gpu0/nvlink", "server1/gpu0/nvlink", Fraction(1), "no such lane"),
    ],
)
def test_a_pinned_route_that_the_fabric_does_not_have(out: str, into: str, share: Fraction, what: str) -> None:
    routes = Routes(gpu_cluster())
    with pytest.raises(InputError, match=what):
        routes.pinned(0, 2, [(routes.port_index[out], routes.port_index[into], share)])


def test_gpus_of_a_server_are_not_pinned_to_nics() -> None:
    made = Cluster.uniform(servers=2, nics=2, rate=1000, nvlink_rate=4000)
    routes = Routes(Cluster(made.servers, gpu_ranks=True))
    with pytest.raises(InfeasibleError, match="no such lane"):
        routes.pinned(0, 1, [(routes.port_index["server0/nic0"], routes.port_index["server0/nic1"], Fraction(1))])


@given(shares=st.lists(st.fractions(Fraction(1, 50), 1), min_size=1, max_size=9), nbytes=st.integers(0, 2**45))
def test_cuts_round_as_fractions_do(shares: list[Fraction], nbytes: int) -> None:
    total = sum(shares)
    lanes = tuple(Lane(i, i, share / total) for i, share in enumerate(shares))
    cuts = optcc.schedule.Route(0, 1, lanes).cuts(nbytes)
    ends = np.cumsum([lane.share for lane in lanes[:-1]])
    assert cuts == [0, *(min(nbytes, round(end * nbytes / 8) * 8) for end in ends), nbytes]


@pytest.mark.parametrize(("nbytes", "cut"), [(8, 0), (24, 16), (40, 16), (41, 24)])
def test_a_cut_between_two_granules_goes_to_the_even_one(nbytes: int, cut: int) -> None:
    halves = tuple(Lane(i, i, Fraction(1, 2)) for i in range(2))
    assert optcc.schedule.Route(0, 1, halves).cuts(nbytes) == [0, cut, nbytes]
