"""Clusters: pure failures, exact rates, names that can be typed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InputError
from optcc.values.cluster import Cluster, Nic, Server, degrade_all
from tests.conftest import clusters

RATE = Fraction(50_000_000_000)
HEALTHY = Cluster.uniform(servers=4, nics=8, rate=RATE)


def test_uniform() -> None:
    assert [server.name for server in HEALTHY.servers] == ["server0", "server1", "server2", "server3"]
    for server in HEALTHY.servers:
        assert [nic.name for nic in server.nics] == [f"nic{i}" for i in range(8)]
        assert [nic.rail for nic in server.nics] == list(range(8))
        assert server.gpus == 8
        assert server.out_rate == server.in_rate == 8 * RATE
    assert HEALTHY.fault_free is HEALTHY


@pytest.mark.parametrize(
    ("nics", "gpus", "beside"),
    [(8, 8, [0, 1, 2, 3, 4, 5, 6, 7]), (4, 8, [0, 2, 4, 6]), (4, 2, [0, 0, 1, 1]), (2, 1, [0, 0])],
)
def test_uniform_spreads_nics_over_gpus(nics: int, gpus: int, beside: list[int]) -> None:
    server = Cluster.uniform(servers=2, nics=nics, rate=RATE, gpus=gpus).servers[0]
    assert [nic.gpu for nic in server.nics] == beside


@given(st.fractions(0, 1), st.integers(0, 3), st.integers(0, 7))
def test_degrade_is_pure_and_exact(left: Fraction, s: int, i: int) -> None:
    before = Cluster.uniform(servers=4, nics=8, rate=RATE)
    hurt = HEALTHY.degrade(f"server{s}/nic{i}", left)
    assert before == HEALTHY
    nic = hurt.servers[s].nics[i]
    assert nic.out_rate == nic.in_rate == RATE * left
    assert nic.alive == (left > 0)
    assert hurt.servers[s].out_rate == (7 + left) * RATE
    assert [x for j, x in enumerate(hurt.servers) if j != s] == [x for j, x in enumerate(HEALTHY.servers) if j != s]
    assert hurt.fault_free == HEALTHY


def test_degrade_keeps_what_was_before_every_failure() -> None:
    hurt = degrade_all(HEALTHY, [("server0/nic0", 0), ("server1/nic3", 0.5), ("server1/nic3", Fraction(1, 2))])
    assert hurt.servers[1].nics[3].out_rate == RATE / 4
    assert hurt.fault_free == HEALTHY


@pytest.mark.parametrize(("left", "exact"), [(0.37, Fraction(37, 100)), (0.1, Fraction(1, 10)), (1, Fraction(1))])
def test_a_float_means_its_decimal(left: float, exact: Fraction) -> None:
    assert HEALTHY.degrade("server0/nic0", left).servers[0].nics[0].out_rate == RATE * exact


@pytest.mark.parametrize("left", [-1, 1.001, float("nan"), float("inf"), Fraction(9, 8)])
def test_degrade_refuses_a_fraction_out_of_range(left: float) -> None:
    with pytest.raises(InputError, match="fraction left out of range, expected 0 to 1"):
        HEALTHY.degrade("server0/nic0", left)


@pytest.mark.parametrize(
    ("nic", "message"),
    [
        ("server9/nic0", "no such server in the cluster, expected one of server0, server1, server2, server3"),
        ("server1/mlx5_0", "no such NIC in server1, expected one of nic0, nic1"),
        ("server1", "expected SERVER/NIC"),
        ("/nic0", "expected SERVER/NIC"),
        ("server1/", "expected SERVER/NIC"),
    ],
)
def test_degrade_refuses_an_unknown_nic(nic: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        HEALTHY.degrade(nic)


@given(clusters(symmetric=False), st.fractions(0, 10**6))
def test_scaled(cluster: Cluster, factor: Fraction) -> None:
    scaled = cluster.degrade("server0/nic0", 0.5).scaled(factor)
    expected = cluster.scaled(factor).degrade("server0/nic0", 0.5)
    assert scaled == expected
    assert scaled.fault_free == cluster.scaled(factor)
    for before, after in zip(cluster.servers[1:], scaled.servers[1:], strict=True):
        assert after.out_rate == before.out_rate * factor
        assert after.in_rate == before.in_rate * factor


@given(clusters(symmetric=False))
def test_a_rank_owns_the_nics_of_its_server(cluster: Cluster) -> None:
    assert [rank.index for rank in cluster.ranks] == list(range(len(cluster.servers)))
    for rank in cluster.ranks:
        server = cluster.servers[rank.server]
        assert (rank.name, rank.nics) == (server.name, server.nics)
        assert (rank.out_rate, rank.in_rate) == (server.out_rate, server.in_rate)


def test_replicate() -> None:
    one = Cluster((Server("gpu-a", (Nic("mlx5_0", RATE, RATE),)),))
    assert [server.name for server in one.replicate(3).servers] == ["server0", "server1", "server2"]
    with pytest.raises(InputError, match="only a one-server topology"):
        one.replicate(3).replicate(2)
    for count in (0, -1, 65537):
        with pytest.raises(InputError, match="--servers: count out of range"):
            one.replicate(count)


@pytest.mark.parametrize("name", ["", "a/b", "a=b", "a b", "a\nb", "\x1b[31m", "x" * 256, "a\ud800"])
def test_names_that_cannot_be_typed_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="not a NIC name"):
        Nic(name, RATE, RATE)
    with pytest.raises(InputError, match="not a server name"):
        Server(name, ())


def test_inconsistent_values_are_refused() -> None:
    nic = Nic("a", RATE, RATE)
    with pytest.raises(InputError, match="negative rate"):
        Nic("a", RATE, Fraction(-1))
    with pytest.raises(InputError, match="two NICs of one name"):
        Server("s", (nic, nic))
    with pytest.raises(InputError, match="no GPU"):
        Server("s", (nic,), gpus=0)
    with pytest.raises(InputError, match="s: too many GPUs, expected at most 65536"):
        Server("s", (nic,), gpus=2**70)
    many = tuple(Server(f"s{i}", (nic,), gpus=2**16) for i in range(17))
    assert len(Cluster(many).ranks) == 17
    with pytest.raises(InputError, match="too many GPUs in all, expected at most 1048576"):
        Cluster(many, gpu_ranks=True)
    with pytest.raises(InputError, match="two servers of one name"):
        Cluster((Server("s", (nic,)), Server("s", (nic,))))
    with pytest.raises(InputError, match="no server"):
        Cluster(())
    with pytest.raises(InputError, match="gpus: count out of range"):
        Cluster.uniform(servers=1, rate=RATE, gpus=0)


def test_what_people_write_is_taken_in_python_too() -> None:
    cluster = Cluster.uniform(servers=4, nics=8, rate="400Gb/s", nvlink_rate="450GB/s")
    assert cluster == Cluster.uniform(servers=4, nics=8, rate=50 * 10**9, nvlink_rate=450 * 10**9)
    hurt = cluster.degrade("server1/nic0", "37%")
    assert hurt == cluster.degrade("server1/nic0", 0.37) == cluster.degrade("server1/nic0", "148Gb/s")
    assert optcc.lower_bound(hurt, "1GiB") == optcc.lower_bound(hurt, 2**30)
    asked = optcc.plan(hurt, "1MiB", alpha="5us", per_chunk="1us")
    assert asked == optcc.plan(hurt, 2**20, alpha=Fraction(5, 10**6), per_chunk=Fraction(1, 10**6))


def test_what_cannot_be_read_in_python_is_told() -> None:
    cluster = Cluster.uniform(servers=4, rate="400Gb/s")
    for wrong in (
        lambda: Cluster.uniform(servers=4, rate="fast"),
        lambda: cluster.degrade("server1/nic0", "much"),
        lambda: cluster.degrade("server1/nic0", "500Gb/s"),
        lambda: optcc.lower_bound(cluster, "1Gb"),
        lambda: optcc.plan(cluster, "1MiB", alpha="5"),
        lambda: optcc.plan(cluster, None),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError):
            wrong()


def test_a_plan_is_told_in_a_line() -> None:
    plan = optcc.plan(Cluster.uniform(servers=8, nics=8, rate="400Gb/s").degrade("server1/nic0"), "64MiB")
    for value in (plan, plan.schedule(), plan.bound):
        assert len(repr(value)) < 400
    assert plan.plan_id in repr(plan)


def test_rates_as_text() -> None:
    assert Cluster.uniform(servers=4, nics=8, rate="400Gb/s") == HEALTHY
    assert Nic("a", "400G", "50GB/s") == Nic("a", RATE, RATE)  # type: ignore[arg-type]
    nvlink = Server("s", (), nvlink_rate="450GB/s")  # type: ignore[arg-type]
    assert nvlink.nvlink_rate == 450 * 10**9
    assert HEALTHY.degrade("server0/nic0", "37%") == HEALTHY.degrade("server0/nic0", Fraction(37, 100))
    assert HEALTHY.degrade("server0/nic0", "150Gb/s") == HEALTHY.degrade("server0/nic0", Fraction(3, 8))


@pytest.mark.parametrize("rate", ["fast", "400", "400Gib", None, float("nan"), float("inf"), -1, True, [1]])
def test_what_is_no_rate_is_refused(rate: object) -> None:
    with pytest.raises(InputError, match="rate"):
        Cluster.uniform(servers=4, rate=rate)  # type: ignore[arg-type]
    for one in ((rate, RATE), (RATE, rate)):
        with pytest.raises(InputError, match=r"a\.(out|in)_rate: "):
            Nic("a", *one)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", ["4", 2.5, None, True, 0])
def test_what_is_no_count_is_refused(count: object) -> None:
    for name in ("servers", "nics", "gpus") if count is not None else ("servers", "nics"):
        with pytest.raises(InputError, match=f"{name}: count out of range, expected 1 to 65536"):
            Cluster.uniform(**{"servers": 2, "rate": RATE, name: count})  # type: ignore[arg-type]
    assert len(Cluster.uniform(servers=np.int64(3), rate=RATE).servers) == 3  # type: ignore[arg-type]


def test_a_repr_is_a_line() -> None:
    assert repr(HEALTHY) == "<Cluster: 4 servers with 8 NICs, 3.2Tb/s each>"
    hurt = HEALTHY.degrade("server1/nic0").degrade("server2/nic0", "50%")
    expected = "<Cluster: 2 servers with 8 NICs, 3.2Tb/s each; server1 with 7 of 8 NICs, 2.8Tb/s; "
    assert repr(hurt) == expected + "server2 with 8 NICs, 3Tb/s>"
    uneven = degrade_all(HEALTHY, [(f"server{s}/nic0", s / 4) for s in range(4)])
    assert repr(uneven).endswith("; 1 more>")
    assert len(repr(degrade_all(HEALTHY, [(f"server{s}/nic{i}", i / 8) for s in range(4) for i in range(s)]))) < 200
