"""The program's certificates are exact, and what is forged in them is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.errors import CertificateError, InfeasibleError, InputError
from optcc.theory import check_bound, lower_bound, program_bound
from optcc.theory.bound_program import BoundProgram, Solution, gap_to_every_protocol, round_dual
from optcc.theory.bounds import Scope, scope_of
from optcc.theory.certificates import check_dual, check_primal, holds_for_every_protocol
from optcc.theory.program_network import build_network
from optcc.values.bound import LARGEST_GAP, DualCut, ProgramCertificate
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from tests.conftest import clusters
from tests.effort import examples
from tests.rail_clusters import N, networks, on_rails, solved


@examples(60)
@given(cluster=networks())
def test_certificates_are_exact_and_the_gap_is_small(cluster: Cluster) -> None:
    bound = solved(cluster)
    check_bound(cluster, bound)
    assert isinstance(bound.certificate, ProgramCertificate)
    assert 0 <= bound.certificate.gap <= LARGEST_GAP
    assert sum(price.share for price in bound.certificate.prices) == pytest.approx(1, abs=1e-3)


@examples(40)
@given(cluster=networks(), data=st.data())
def test_forged_duals_are_refused(cluster: Cluster, data: st.DataObject) -> None:
    bound = solved(cluster)
    cert = bound.certificate
    assert isinstance(cert, ProgramCertificate)
    cheaper = [max(0, p - max(1, p // 100)) for p in cert.resource_prices]
    which = data.draw(st.sampled_from([i for i, p in enumerate(cert.resource_prices) if p]), label="resource")
    one_cheaper = tuple(
        c if i == which else p for i, (c, p) in enumerate(zip(cheaper, cert.resource_prices, strict=True))
    )
    forged = data.draw(
        st.sampled_from(
            [
                replace(cert, rate=cert.rate * Fraction(99, 100)),
                replace(cert, resource_prices=one_cheaper, rate=cert.rate * Fraction(99, 100)),
                replace(cert, denominator=cert.denominator * 2, rate=cert.rate / 2),
                replace(cert, cuts=cert.cuts[1:]),
                replace(cert, cuts=tuple(replace(c, weight=-c.weight) for c in cert.cuts)),
                replace(cert, cuts=(replace(cert.cuts[0], inside=()), *cert.cuts[1:])),
                replace(cert, cuts=(replace(cert.cuts[0], seen_from=99), *cert.cuts[1:])),
                replace(cert, resource_prices=cert.resource_prices[1:]),
            ]
        ),
        label="forged",
    )
    with pytest.raises(CertificateError):
        check_bound(cluster, replace(bound, certificate=forged, seconds=forged.seconds))
    with pytest.raises(CertificateError):
        check_bound(cluster, replace(bound, seconds=bound.seconds * 2))


def a_solution() -> tuple[Cluster, Solution]:
    cluster = on_rails([[1, 2], [2, 2], [2, 1], [2, 2]], spine=Fraction(2))
    return cluster, BoundProgram(build_network(cluster)).solve()


@pytest.mark.parametrize("fault", ["capacity", "roots", "unconserved", "short", "missing", "negative", "overload"])
def test_forged_primals_are_refused(fault: str) -> None:
    cluster, solution = a_solution()
    network, primal = build_network(cluster), solution.primal
    check_primal(network, primal)
    flows = dict(primal.flows)
    flow = flows[0, False].copy()
    flows[0, False] = flow
    if fault == "capacity":
        primal = replace(primal, broadcast=primal.broadcast // 2)
    elif fault == "roots":
        primal = replace(primal, roots=primal.roots * 2)
    elif fault == "unconserved":
        flow[0, 1] += 1
    elif fault == "short":
        flow[-1, int(flow[-1].argmax())] -= 1
    elif fault == "missing":
        del flows[0, False]
    elif fault == "negative":
        primal = replace(primal, broadcast=np.where(np.arange(len(primal.broadcast)) == 0, -1, primal.broadcast))
    else:
        primal = replace(primal, unit=primal.unit * Fraction(101, 100))
    with pytest.raises(CertificateError):
        check_primal(network, replace(primal, flows=flows))


def test_a_dual_whose_ways_pay_too_little_is_refused() -> None:
    """Consistent in every other way: the rate is what its prices add up to, and it would be half the optimum."""
    cluster, solution = a_solution()
    network = build_network(cluster)
    dual = round_dual(network, solution)
    check_dual(network, dual)
    with pytest.raises(CertificateError, match="pays"):
        check_dual(network, replace(dual, prices=tuple(p // 2 for p in dual.prices)))


def test_a_wider_margin_where_the_solvers_tolerance_eats_up_the_first() -> None:
    def server(name: str, first: int, nvlink: int, pod: str) -> Server:
        nics = tuple(Nic(f"nic{i}", Fraction(rate), Fraction(rate), i, i) for i, rate in enumerate((first, 1, 1)))
        return Server(name, nics, gpus=3, nvlink_rate=Fraction(nvlink), pod=pod)

    fabric = Fabric(rails=True, spine=Fraction(2), pod_oversubscription=Fraction(2))
    cluster = Cluster((server("server0", 0, 3, "0"), server("server1", 1, 9, "1")), fabric=fabric, gpu_ranks=True)
    check_bound(cluster, lower_bound(cluster, 2**20))


def two_gpus_each() -> Cluster:
    """Five servers of two GPUs, whose NICs differ in and out: no certificate of theirs binds every protocol."""
    nics = [[(3, 1), (4, 2)], [(1, 4), (2, 2)], [(4, 3), (1, 1)], [(2, 4), (3, 1)], [(1, 2), (4, 4)]]
    return Cluster(
        tuple(
            Server(
                f"server{s}",
                tuple(Nic(f"nic{g}", Fraction(o), Fraction(i), rail=g, gpu=g) for g, (o, i) in enumerate(own)),
                2,
                Fraction(9),
            )
            for s, own in enumerate(nics)
        ),
        fabric=Fabric(rails=True),
        gpu_ranks=True,
    )


def test_who_is_bound_is_told_from_the_cuts() -> None:
    """A reduce cut around several ranks binds schedules only, but where a broadcast cut around the others has as much
    weight."""
    network = build_network(on_rails([[1, 2], [2, 2], [2, 1]]))
    cut = DualCut("reduce", 0, (1, 2), 7)
    others = DualCut("broadcast", 0, (0,), 7)
    assert holds_for_every_protocol(network, [DualCut("reduce", 0, (0,), 7), DualCut("broadcast", 1, (0, 2), 3)])
    assert holds_for_every_protocol(network, [cut, others])
    assert not holds_for_every_protocol(network, [cut])
    assert not holds_for_every_protocol(network, [cut, replace(others, weight=6)])
    assert not holds_for_every_protocol(network, [cut, replace(others, seen_from=1)])
    assert not holds_for_every_protocol(network, [cut, replace(others, inside=(0, 1))])


def test_a_bound_of_schedules_alone_says_so() -> None:
    cluster = two_gpus_each()
    bound = program_bound(cluster, N)
    check_bound(cluster, bound)
    assert scope_of(cluster, bound.certificate) == Scope(False, ("linear-program", "tree-pairs"))
    assert 1e-6 < gap_to_every_protocol(cluster) < 1


# The exact program for other collectives than AllReduce, from and to a root where they have one.


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
