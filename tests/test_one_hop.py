"""Where there is no time for two hops: no way to share out chunks carries more, plans come near, forgeries fail."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import CertificateError
from optcc.theory import check_bound_with_costs
from optcc.theory.bound_costs import SPANS_PER_S, carried, one_hop_bytes
from optcc.values.bound import BoundWithCosts, OneHopCosts
from optcc.values.cluster import Cluster
from tests.conftest import clusters, degraded
from tests.effort import examples
from tests.test_costs import US, bound, check_plans, costs_us
from tests.test_postal import with_few

FEMTO = Fraction(1, SPANS_PER_S)


@examples(200)
@given(
    rate=st.integers(1, 20), nbytes=st.integers(1, 50), span=st.fractions(0, 60, max_denominator=9),
    per_chunk=st.integers(0, 9),
)  # fmt: skip
def test_no_way_to_share_out_chunks_carries_more(rate: int, nbytes: int, span: Fraction, per_chunk: int) -> None:
    """Every number of chunks, each of the vector or less, on one NIC; with so many that none has time for a byte."""
    every = [min(count * Fraction(nbytes), (span - count * per_chunk) * rate) for count in range(1300)]
    assert carried(Fraction(rate), nbytes, span, Fraction(per_chunk)) == max(every)


def test_carried_grows_with_time() -> None:
    spans = [Fraction(i, 7) for i in range(200)]
    found = [carried(Fraction(3), 10, span, Fraction(2)) for span in spans]
    assert found == sorted(found)
    assert found[0] == 0


def one_hop(cluster: Cluster, nbytes: int) -> BoundWithCosts:
    found = bound(cluster, nbytes, 5 * US, US)
    assert isinstance(found.certificate, OneHopCosts)
    return found


@pytest.mark.parametrize(("nbytes", "us", "near"), [(2**14, 7.57, 1.02), (2**16, 9.29, 1.04)])
def test_the_plan_comes_near(nbytes: int, us: float, near: float) -> None:
    """Four of one server's 8 NICs dead: seven vectors by four NICs, so two chunks on three of them."""
    cluster = with_few(8, 8, 4)
    found = one_hop(cluster, nbytes)
    by_hand = Fraction(7) / 4 * nbytes / (50 * 10**9) + 7 * US
    assert by_hand - FEMTO <= found.seconds < by_hand
    assert float(found.seconds) * 1e6 == pytest.approx(us, abs=0.005)
    plan = optcc.plan(cluster, nbytes, alpha=5 * US, per_chunk=US)
    time_s = optcc.simulate(plan.schedule(), alpha=5 * US, per_chunk=US).time_s
    assert float(found.seconds) <= time_s <= near * float(found.seconds)


def test_two_hops_are_the_most_that_it_proves() -> None:
    cluster = with_few(8, 2, 0)
    found = one_hop(cluster, 2**16)
    assert found.seconds == 12 * US
    assert not isinstance(bound(cluster, 2**22, 5 * US, US).certificate, OneHopCosts)
    assert not isinstance(bound(cluster, 2**16, Fraction(0), Fraction(0)).certificate, OneHopCosts)


def test_what_a_server_sends_counts_too() -> None:
    """Two NICs out, eight in."""
    cluster = with_few(8, 8, 0)
    server = cluster.servers[1]
    nics = tuple(replace(nic, out_rate=nic.out_rate if i < 2 else Fraction(0)) for i, nic in enumerate(server.nics))
    hurt = replace(cluster, servers=(cluster.servers[0], replace(server, nics=nics), *cluster.servers[2:]))
    found = bound(hurt, 2**12, 5 * US, US)
    assert isinstance(found.certificate, OneHopCosts)
    assert (found.certificate.direction, found.certificate.server) == ("out", 1)


few = st.sampled_from([1, 7, 1024, 2**13, 2**15, 2**16, 2**17])


@examples(60)
@given(cluster=clusters(min_ranks=2, max_ranks=8, symmetric=False) | degraded(min_ranks=2), nbytes=few, costs=costs_us)
def test_no_plan_of_few_bytes_is_faster(cluster: Cluster, nbytes: int, costs: tuple[int, int]) -> None:
    check_plans(cluster, nbytes, costs)


@examples(60)
@given(cluster=degraded(min_ranks=2), nbytes=few, alpha=st.integers(1, 60), per_chunk=st.integers(0, 20))
def test_longer_spans_are_refused(cluster: Cluster, nbytes: int, alpha: int, per_chunk: int) -> None:
    found = bound(cluster, nbytes, alpha * US, per_chunk * US)
    check_bound_with_costs(cluster, found)
    cert = found.certificate
    if isinstance(cert, OneHopCosts):
        longer = replace(cert, span=cert.span + FEMTO)
        parts = (found.parts[0], replace(found.parts[1], seconds=longer.span))
        forged = replace(found, certificate=longer, seconds=found.seconds + FEMTO, parts=parts)
        with pytest.raises(CertificateError, match=r"one hop in|two hops"):
            check_bound_with_costs(cluster, forged)


def test_forged_certificates_are_refused() -> None:
    cluster = with_few(8, 8, 4)
    found = one_hop(cluster, 2**16)
    cert = found.certificate
    assert isinstance(cert, OneHopCosts)
    check_bound_with_costs(cluster, found)
    for forged in (
        replace(found, certificate=replace(cert, server=0)),
        replace(found, certificate=replace(cert, server=-1)),
        replace(found, certificate=replace(cert, server=8)),
        replace(found, certificate=replace(cert, span=Fraction(-1))),
        replace(found, certificate=replace(cert, span=cert.span / 2)),
        replace(found, alpha=found.alpha / 2),
        replace(found, per_chunk=found.per_chunk / 2),
    ):
        with pytest.raises(CertificateError):
            check_bound_with_costs(cluster, forged)
    assert {one_hop_bytes(cluster, s, "in", 2**16, cert.span, US) >= 7 * 2**16 for s in (0, 1)} == {True, False}


def test_all_ways_of_small_exchanges() -> None:
    """Two NICs, three vectors: every number of chunks on each of them, and the least time by hand."""
    rates, nbytes, o = (Fraction(2), Fraction(1)), 4, Fraction(1)

    def seconds(counts: tuple[int, int]) -> Fraction:
        """The least time in which NICs with so many chunks carry three vectors; in steps of 1/12."""
        for step in range(1000):
            span = Fraction(step, 12)
            most = [min(c * Fraction(nbytes), (span - c * o) * r) for c, r in zip(counts, rates, strict=True)]
            if sum(max(Fraction(0), one) for one in most) >= 3 * nbytes:
                return span
        return Fraction(1000)

    best = min(seconds(counts) for counts in product(range(4), range(4)))
    before, at = (sum(carried(r, nbytes, best - late, o) for r in rates) for late in (Fraction(1, 12), Fraction(0)))
    assert before < 3 * nbytes <= at
