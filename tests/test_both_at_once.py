"""A reduce-scatter and an allgather of other data at once: closed form, schedules that reach it, program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optcc.errors import CertificateError
from optcc.theory import check_bound, lower_bound, program_bound
from optcc.theory.bound_program import gap_to_every_protocol
from optcc.theory.bounds import Scope, scope_of
from optcc.theory.program_network import BOTH_AT_ONCE, build_network
from optcc.values.bound import LARGEST_GAP, ProgramCertificate
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from tests.conftest import clusters
from tests.effort import examples
from tests.rail_clusters import N, networks, solved

PAIR = BOTH_AT_ONCE.name
Arrow = tuple[int, int]


def hub_arrows(ranks: int, owner: int, hub: int) -> list[Arrow]:
    """Who sends an element of `owner` to whom in an allgather, by way of `hub`, in order."""
    rest = [r for r in range(ranks) if r not in (owner, hub)]
    return [(owner, hub)] * (owner != hub) + [(hub, r) for r in rest]


def hubs(give: Sequence[Fraction], own: Sequence[Fraction]) -> list[Fraction]:
    """The part of the elements with each rank as hub, for ranks that may send `give`, of which `own` goes off."""
    room = [rate - less for rate, less in zip(give, own, strict=True)]
    return [one / sum(room, Fraction(0)) for one in room]


def sent(parts: Sequence[Fraction], shares: Sequence[Fraction]) -> list[Fraction]:
    """What each rank sends if the owners have `shares` of the elements and the hubs `parts` of each share."""
    ranks, load = len(parts), [Fraction(0)] * len(parts)
    for owner, share in enumerate(shares):
        for hub, part in enumerate(parts):
            for sender, _ in hub_arrows(ranks, owner, hub):
                load[sender] += share * part
    return load


def over(rates: Sequence[Fraction], load: Sequence[Fraction]) -> bool:
    return any(one > rate for one, rate in zip(load, rates, strict=True))


@pytest.mark.parametrize("ranks", [3, 4, 5])
def test_by_a_hub_every_rank_receives_an_element_once(ranks: int) -> None:
    for owner in range(ranks):
        for hub in range(ranks):
            arrows = hub_arrows(ranks, owner, hub)
            assert sorted(v for _, v in arrows) == [r for r in range(ranks) if r != owner]
            assert all(u in {owner, *(v for _, v in arrows[:i])} for i, (u, _) in enumerate(arrows))


@examples(100)
@given(cluster=clusters(symmetric=False))
def test_hubs_reach_the_closed_form_for_any_rates(cluster: Cluster) -> None:
    """Both collectives' loads, added up, exactly; the reduce-scatter is the allgather turned around."""
    least, p = lower_bound(cluster, 1).seconds, len(cluster.ranks)
    shards = [Fraction(1, p)] * p
    for rates in ([r.out_rate * least for r in cluster.ranks], [r.in_rate * least for r in cluster.ranks]):
        other = Fraction(p - 1, p)  # what each rank sends (receives) for the other collective
        give = [rate - other for rate in rates]
        assert min(give) >= Fraction(1, p)
        load = sent(hubs(give, shards), shards)
        assert not over(give, load)
        assert sum(load) == p - 1


def test_hubs_by_rate_alone_do_not_reach_it() -> None:
    """Half a rank's rate lost: it has nothing left to be a hub with."""
    rates = [Fraction(1), Fraction(2), Fraction(2), Fraction(2)]
    shards, give = [Fraction(1, 4)] * 4, [rate - Fraction(3, 4) for rate in rates]
    assert not over(give, sent(hubs(give, shards), shards))
    assert over(give, sent(hubs(give, [Fraction(0)] * 4), shards))


@examples(60)
@given(cluster=clusters(min_ranks=3, max_ranks=6, symmetric=False), data=st.data())
def test_hubs_broadcast_as_fast_as_the_bound(cluster: Cluster, data: st.DataObject) -> None:
    """And reduce: for the rates out and in exchanged. Every rank but the root receives each element once."""
    p, root = len(cluster.ranks), data.draw(st.integers(0, len(cluster.ranks) - 1), label="root")
    owner = [Fraction(int(r == root)) for r in range(p)]
    for rates in ([r.out_rate for r in cluster.ranks], [r.in_rate for r in cluster.ranks]):
        least = max(1 / rates[root], (p - 1) / sum(rates, Fraction(0)))
        give = [rate * least for rate in rates]
        assert not over(give, sent(hubs(give, owner), owner))


@examples(60)
@given(cluster=clusters(min_ranks=2, max_ranks=6, symmetric=False))
def test_the_program_finds_the_closed_form_of_allreduce(cluster: Cluster) -> None:
    bound, expected = program_bound(cluster, N, PAIR), lower_bound(cluster, N).seconds
    check_bound(cluster, bound)
    assert bound.seconds <= expected <= bound.seconds * (1 + 2 * LARGEST_GAP)
    assert scope_of(cluster, bound.certificate).proof_ids[0] == "both-at-once"


def test_one_after_the_other_takes_longer() -> None:
    """Six ranks, one at half the rate: 2 n/B at once, 10/3 one after the other, 5/3 if nothing had failed."""
    cluster = Cluster.uniform(servers=6, nics=2, rate=Fraction(N)).degrade("server0/nic0")
    one, other, both = (
        float(program_bound(cluster, 2 * N, name).seconds) for name in ("reduce-scatter", "allgather", PAIR)
    )
    assert both == pytest.approx(2, rel=1e-5)
    assert one + other == pytest.approx(10 / 3, rel=1e-5)


@examples(60)
@given(cluster=networks())
def test_never_faster_than_allreduce(cluster: Cluster) -> None:
    least = solved(cluster)
    bound = program_bound(cluster, N, PAIR)
    check_bound(cluster, bound)
    assert isinstance(bound.certificate, ProgramCertificate)
    assert isinstance(least.certificate, ProgramCertificate)
    assert bound.certificate.reached <= least.certificate.rate
    scope = scope_of(cluster, bound.certificate)
    if scope.every_protocol:
        assert bound.certificate.rate <= least.certificate.rate * (1 + 2 * LARGEST_GAP)
    else:
        assert build_network(cluster).reverse is None  # with equal rates both ways, shards cost nothing
        assert scope == Scope(False, ("both-at-once",))
        assert gap_to_every_protocol(cluster, BOTH_AT_ONCE) >= -2 * LARGEST_GAP


def test_equal_shards_cost_more_where_allreduce_chooses_its_roots() -> None:
    """Rails with other rates in than out."""
    rates = [[(2, 4), (2, 0), (0, 4)], [(0, 4), (1, 4), (1, 0)], [(2, 0), (1, 1), (1, 4)]]
    servers = tuple(
        Server(f"server{s}", tuple(Nic(f"nic{i}", Fraction(o), Fraction(n), rail=i) for i, (o, n) in enumerate(nics)))
        for s, nics in enumerate(rates)
    )
    cluster = Cluster(servers, fabric=Fabric(rails=True))
    pair, least = program_bound(cluster, N, PAIR), program_bound(cluster, N)
    assert scope_of(cluster, least.certificate).every_protocol
    assert float(pair.seconds / least.seconds) == pytest.approx(4 / 3, rel=1e-5)
    assert scope_of(cluster, pair.certificate) == Scope(False, ("both-at-once",))
    assert float(gap_to_every_protocol(cluster, BOTH_AT_ONCE)) == pytest.approx(1 / 3, rel=1e-5)


def test_the_dual_of_one_half_is_refused() -> None:
    cluster = Cluster.uniform(servers=4, nics=2, rate=Fraction(N)).degrade("server0/nic0")
    bound = program_bound(cluster, N, PAIR)
    cert = bound.certificate
    assert isinstance(cert, ProgramCertificate)
    half = tuple(cut for cut in cert.cuts if cut.side == "reduce")
    with pytest.raises(CertificateError, match="left out"):
        check_bound(cluster, replace(bound, certificate=replace(cert, cuts=half)))
