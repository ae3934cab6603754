"""The exact program for other collectives than AllReduce, from and to a root where they have one."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.errors import CertificateError, InfeasibleError, InputError
from optcc.theory import check_bound, program_bound
from optcc.values.bound import ProgramCertificate
from optcc.values.cluster import Cluster, Nic, Server
from tests.conftest import clusters
from tests.effort import examples
from tests.rail_clusters import N, on_rails


@examples(60)
@given(cluster=clusters(min_ranks=2, max_ranks=6, symmetric=False), data=st.data())
def test_other_collectives_meet_their_bounds_on_one_fabric(cluster: Cluster, data: st.DataObject) -> None:
    """Against the cut and traffic bounds written out here; reduce and reduce-scatter mirror broadcast and allgather."""
    outs, ins = [r.out_rate for r in cluster.ranks], [r.in_rate for r in cluster.ranks]
    p, root = len(outs), data.draw(st.integers(0, len(cluster.ranks) - 1), label="root")
    name = cluster.ranks[root].name

    def gather(give: list[Fraction], take: list[Fraction]) -> Fraction:
        return max(Fraction(p - 1, p) / min(take), Fraction(1, p) / min(give), (p - 1) / sum(give, Fraction(0)))

    def spread(give: list[Fraction], take: list[Fraction]) -> Fraction:
        others = [rate for r, rate in enumerate(take) if r != root]
        return max(1 / give[root], 1 / min(others), (p - 1) / sum(give, Fraction(0)))

    for collective, at, expected in (
        ("allgather", None, gather(outs, ins)),
        ("reduce-scatter", None, gather(ins, outs)),
        ("broadcast", name, spread(outs, ins)),
        ("reduce", name, spread(ins, outs)),
    ):
        bound = program_bound(cluster, N, collective, at)
        check_bound(cluster, bound)
        assert float(bound.seconds) >= float(N * expected) * (1 - 1e-6)
        assert float(bound.seconds) == pytest.approx(float(N * expected), rel=1e-6)


def test_a_certificate_is_for_one_collective() -> None:
    cluster = on_rails([[1, 2], [2, 2], [2, 1]])
    bound = program_bound(cluster, N, "allgather")
    assert isinstance(bound.certificate, ProgramCertificate)
    with pytest.raises(CertificateError, match="a half that reduce-scatter does not have"):
        check_bound(cluster, replace(bound, certificate=replace(bound.certificate, collective="reduce-scatter")))
    with pytest.raises(InputError, match="no such root"):
        program_bound(cluster, N, "broadcast", "server9")
    with pytest.raises(InputError, match="has no root"):
        program_bound(cluster, N, "allgather", "server0")
    with pytest.raises(InputError, match="unknown collective"):
        program_bound(cluster, N, "gossip")


def test_a_root_cut_off_one_way_is_no_obstacle_the_other_way() -> None:
    """A server that can only receive takes part in a broadcast, and one that can only send in a reduce."""
    rates = [(10, 10), (0, 10), (10, 10)]
    servers = tuple(Server(f"server{i}", (Nic("nic0", Fraction(o), Fraction(r)),)) for i, (o, r) in enumerate(rates))
    bound = program_bound(Cluster(servers), N, "broadcast", "server0")
    check_bound(Cluster(servers), bound)
    assert bound.seconds == pytest.approx(N / 10, rel=1e-6)
    with pytest.raises(InfeasibleError):
        program_bound(Cluster(servers), N, "broadcast", "server1")


def test_one_rank_takes_no_time_whatever_the_collective() -> None:
    assert program_bound(Cluster.uniform(servers=1, rate=1000), N, "allgather").seconds == 0
