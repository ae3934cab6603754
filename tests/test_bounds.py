"""The bound in closed form against formulas computed here on their own, and certificates that cannot be forged."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import CertificateError, InfeasibleError, InputError
from optcc.theory import check_loads, nested_shares
from optcc.theory.ring_shares import ring_loads
from optcc.values.bound import check_certificate
from optcc.values.cluster import Cluster
from tests.conftest import GBPS, clusters

N = 2**30


def eight_nics(servers: int, dead: dict[int, int]) -> Cluster:
    """8 x 400 Gb/s per server; `dead` maps server index to how many of its NICs are dead."""
    cluster = Cluster.uniform(servers=servers, nics=8, rate=400 * GBPS)
    for server, count in dead.items():
        for nic in range(count):
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


@pytest.mark.parametrize("dead", [0, 1, 2, 4, 6, 7])
@pytest.mark.parametrize("servers", [3, 4, 8, 128])
def test_single_straggler_formula(servers: int, dead: int) -> None:
    slow = Fraction(8, 8 - dead)  # l: the straggler has 1/l of the others' rate
    expected = max(servers / (servers - 1 + 1 / slow), slow * servers / (2 * (servers - 1)))
    bound = optcc.lower_bound(eight_nics(servers, {1: dead}), N)
    assert bound.overhead == expected - 1
    assert bound.fault_free_s == Fraction(2 * (servers - 1) * N, servers * 8 * 400 * GBPS)


def test_overhead_at_half_rate_is_one_over_p_minus_one() -> None:
    assert optcc.lower_bound(eight_nics(16, {3: 4}), N).overhead == Fraction(1, 15)


@pytest.mark.parametrize("dead", [{0: 2, 3: 4}, {0: 1, 1: 1, 2: 1}, {0: 6, 1: 6}, {0: 4, 1: 2, 2: 7}])
def test_several_degraded_servers(dead: dict[int, int]) -> None:
    rates = [Fraction((8 - dead.get(s, 0)) * 400 * GBPS) for s in range(4)]
    expected = N * max(1 / min(rates), 6 / sum(rates))
    assert optcc.lower_bound(eight_nics(4, dead), N).seconds == expected


def test_one_nic_at_37_percent() -> None:
    cluster = Cluster.uniform(servers=4, nics=8, rate=400 * GBPS).degrade("server1/nic2", 0.37)
    total = (31 + Fraction(37, 100)) * 400 * GBPS
    assert optcc.lower_bound(cluster, N).seconds == 6 * N / total


@given(cluster=clusters(symmetric=False), nbytes=st.integers(1, 2**40))
def test_certificate_holds_and_names_the_largest_term(cluster: Cluster, nbytes: int) -> None:
    bound = optcc.lower_bound(cluster, nbytes)
    check_certificate(cluster, bound)
    outs, ins = [r.out_rate for r in cluster.ranks], [r.in_rate for r in cluster.ranks]
    p = len(outs)
    assert bound.seconds == nbytes * max(1 / min(outs), 1 / min(ins), 2 * (p - 1) / sum(outs), 2 * (p - 1) / sum(ins))


@given(cluster=clusters(symmetric=False), data=st.data())
def test_forged_certificates_are_refused(cluster: Cluster, data: st.DataObject) -> None:
    bound = optcc.lower_bound(cluster, N)
    cert = bound.certificate
    forged = data.draw(
        st.sampled_from(
            [
                replace(bound, seconds=bound.seconds * Fraction(101, 100)),
                replace(bound, seconds=bound.seconds * Fraction(99, 100)),
                replace(bound, certificate=replace(cert, rate=cert.rate / 2), seconds=bound.seconds * 2),
                replace(bound, certificate=replace(cert, nbytes=cert.nbytes * 2), seconds=bound.seconds * 2),
                replace(bound, certificate=replace(cert, ranks=(*cert.ranks, len(cluster.ranks)))),
                replace(bound, certificate=replace(cert, kind="traffic" if cert.kind == "cut" else "cut")),
                replace(bound, certificate=replace(cert, kind="trivial")),
                replace(bound, certificate=replace(cert, ranks=cert.ranks[:1] * 2)),
            ]
        )
    )
    with pytest.raises(CertificateError):
        check_certificate(cluster, forged)


@given(cluster=clusters())
def test_shares_reach_the_bound(cluster: Cluster) -> None:
    rates = [r.out_rate for r in cluster.ranks]
    shares = nested_shares(rates)
    check_loads(shares, rates, optcc.lower_bound(cluster, 1).seconds)
    assert sum(ring_loads(shares, len(rates))) == 2 * (len(rates) - 1)


@given(cluster=clusters(), data=st.data())
def test_wrong_shares_are_refused(cluster: Cluster, data: st.DataObject) -> None:
    rates = [r.out_rate for r in cluster.ranks]
    per_byte, shares = optcc.lower_bound(cluster, 1).seconds, nested_shares(rates)
    m = data.draw(st.sampled_from(sorted(shares)))
    with pytest.raises(CertificateError):
        check_loads({**shares, m: shares[m] * Fraction(9, 10)}, rates, per_byte)
    with pytest.raises(CertificateError):
        check_loads(shares, rates, per_byte * Fraction(999, 1000))


def test_one_rank_needs_no_time() -> None:
    bound = optcc.lower_bound(Cluster.uniform(servers=1, rate=1000), N)
    check_certificate(Cluster.uniform(servers=1, rate=1000), bound)
    assert (bound.seconds, bound.overhead) == (0, 0)


def test_two_ranks_exchange() -> None:
    cluster = Cluster.uniform(servers=2, rate=1000).degrade("server0/nic0", Fraction(1, 4))
    assert optcc.lower_bound(cluster, 1000).seconds == 4
    assert optcc.plan(cluster, 1000).fluid_s == 4


def test_all_nics_dead_is_infeasible() -> None:
    with pytest.raises(InfeasibleError, match=r"server1: no AllReduce is possible, expected at least one live NIC"):
        optcc.lower_bound(eight_nics(4, {1: 8}), N)


@pytest.mark.parametrize("nbytes", [-1, 2**60 + 1, 10**30])
def test_absurd_sizes(nbytes: int) -> None:
    with pytest.raises(InputError, match="size out of range"):
        optcc.lower_bound(Cluster.uniform(servers=2, rate=1000), nbytes)


def test_no_bytes_take_no_time() -> None:
    assert optcc.lower_bound(Cluster.uniform(servers=4, rate=1000), 0).seconds == 0
