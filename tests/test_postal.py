"""What few bytes cost: no schedule tells all servers sooner, one exchange comes near, and forged times are refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import CertificateError
from optcc.schedule import Schedule, Stage
from optcc.schedule.assemble import TemplateRow, assemble
from optcc.schedule.routes import Routes
from optcc.theory import check_bound_with_costs
from optcc.theory.bound_check import check_arrivals
from optcc.theory.bound_costs import earliest
from optcc.values.bound import BoundWithCosts, FluidCosts, OneHopCosts, PostalCosts
from optcc.values.cluster import Cluster
from tests.conftest import clusters, degraded
from tests.effort import examples
from tests.test_costs import US, bound, check, check_plans, costs_us
from tests.test_starving_pair import lacking, recipes

ports = st.integers(0, 3)


def all_told(own: int, others: tuple[int, ...], alpha: int, per_chunk: int) -> int:
    """The soonest time by which all are told, if the ports free first serve the others in the order given."""
    free, end = [0] * own, 0
    for count in others:
        start = min(free)
        free[free.index(start)] = start + per_chunk
        end = max(end, landed := start + alpha + per_chunk)
        free += [landed] * count
    return end


@examples(200)
@given(own=st.integers(1, 3), others=st.lists(ports, min_size=1, max_size=5), alpha=st.integers(0, 6), o=ports)
def test_no_order_tells_all_sooner(own: int, others: list[int], alpha: int, o: int) -> None:
    """Every order in which servers can be told, by ports that never wait; times in whole units."""
    found = earliest(own, others, Fraction(alpha), Fraction(o + 1))
    check_arrivals(found, own, others, Fraction(alpha), Fraction(o + 1))
    best = min(all_told(own, order, alpha, o + 1) for order in set(permutations(others)))
    assert found[-1][0] == best


@examples(200)
@given(
    own=st.integers(1, 4),
    others=st.lists(st.integers(0, 8), min_size=1, max_size=40),
    costs=st.tuples(st.integers(0, 50), st.integers(1, 20)),
    data=st.data(),
)
def test_later_times_are_refused(own: int, others: list[int], costs: tuple[int, int], data: st.DataObject) -> None:
    alpha, o = map(Fraction, costs)
    found = list(earliest(own, others, alpha, o))
    check_arrivals(tuple(found), own, others, alpha, o)
    which = data.draw(st.integers(0, len(found) - 1), label="arrival")
    when, many = found[which]
    with pytest.raises(CertificateError, match=r"can have been told|order of time"):
        check_arrivals((*found[:which], (when + Fraction(1, 10**9), many), *found[which + 1 :]), own, others, alpha, o)
    with pytest.raises(CertificateError, match="not all"):
        check_arrivals((*found[:which], *found[which + 1 :]), own, others, alpha, o)


def test_arrivals_by_hand() -> None:
    """Alpha 5, a chunk 1, one port each: the first that is told tells its own first when the seventh is told."""
    found = earliest(1, [1] * 15, Fraction(5), Fraction(1))
    assert found == tuple((Fraction(t), many) for t, many in zip(range(6, 15), [1] * 6 + [2, 3, 4], strict=True))
    assert earliest(2, [0, 3, 1], Fraction(0), Fraction(1)) == ((Fraction(1), 2), (Fraction(2), 1))
    with pytest.raises(CertificateError, match="not all"):
        check_arrivals(((Fraction(1), 3), (Fraction(1), 0)), 3, [1, 1, 1], Fraction(0), Fraction(1))
    with pytest.raises(CertificateError, match="can have been told"):  # chunks of no cost come at alpha, all of them
        check_arrivals(((Fraction(5), 1), (Fraction(6), 1)), 1, [1, 1], Fraction(5), Fraction(0))


def one_exchange(cluster: Cluster, nbytes: int) -> Schedule:
    """Every server sends its own data to every other, whole, over the NICs in turn; received in buffers of their own.

    Of no family: it adds what has come when all has, which a schedule in place cannot say. Its time is what counts.
    """
    way, ranks, rows = Routes(cluster), len(cluster.ranks), []
    out, into = (
        [[f"{server.name}/{nic.name}" for nic in server.nics if getattr(nic, rate)] for server in cluster.servers]
        for rate in ("out_rate", "in_rate")
    )
    for step in range(1, ranks):
        for src in range(ranks):
            dst = (src + step) % ranks
            names = (nics[(step - 1) % len(nics)] for nics in (out[src], into[dst]))
            ends = tuple(way.port_index[name] for name in names)
            rows.append(TemplateRow(0, way.pinned(src, dst, [(*ends, Fraction(1))]), 0, True, Stage.REDUCE_SCATTER, ()))
    return assemble(cluster, nbytes, way, [(rows, np.array([0]), np.array([[0, nbytes]]))])


def with_few(servers: int, nics: int, dead: int) -> Cluster:
    """Servers of 400 Gb/s NICs, the second without `dead` of its own."""
    cluster = Cluster.uniform(servers=servers, nics=nics, rate=Fraction(50 * 10**9))
    for nic in range(dead):
        cluster = cluster.degrade(f"server1/nic{nic}")
    return cluster


@pytest.mark.parametrize(
    ("servers", "nics", "dead", "near"), [(8, 1, 0, 1.02), (8, 8, 5, 1.02), (16, 8, 5, 1.02), (16, 8, 6, 1.1)]
)
def test_one_exchange_comes_near(servers: int, nics: int, dead: int, near: float) -> None:
    """1 KiB, 5 us a hop, 1 us a chunk: without this bound, and that of one hop, the exchange is 1.3 times and more."""
    cluster, costs = with_few(servers, nics, dead), (5 * US, US)
    found = bound(cluster, 1024, *costs)
    assert isinstance(found.certificate, PostalCosts | OneHopCosts)
    schedule = one_exchange(cluster, 1024)
    check(schedule, found.seconds, *costs)
    time_s = optcc.simulate(schedule, alpha=5 * US, per_chunk=US).time_s
    assert time_s <= near * float(found.seconds)
    assert time_s > 1.3 * float(found.bound.seconds + 6 * US)
    with pytest.raises(AssertionError):  # a bound above it is noticed
        check(schedule, found.seconds * Fraction(near), *costs)


def test_the_exchange_is_not_near_everywhere() -> None:
    """Sixteen servers of one NIC: telling by way of others takes 14 us, but a server can add only what it has."""
    found = bound(with_few(16, 1, 0), 1024, 5 * US, US)
    assert found.seconds == 14 * US
    time_s = optcc.simulate(one_exchange(with_few(16, 1, 0), 1024), alpha=5 * US, per_chunk=US).time_s
    assert 1.4 < time_s / float(found.seconds) < 1.5


few = st.sampled_from([1, 7, 100, 1024, 2**15])


@examples(60)
@given(
    cluster=clusters(min_ranks=2, max_ranks=8, symmetric=False) | degraded(min_ranks=2, max_ranks=32),
    nbytes=few,
    costs=costs_us,
)
def test_no_plan_of_few_bytes_is_faster(cluster: Cluster, nbytes: int, costs: tuple[int, int]) -> None:
    check_plans(cluster, nbytes, costs)


@examples(60)
@given(
    lost=st.sampled_from([(4, 1), (6, 1), (8, 1), (8, 2, 1), (5, 4, 3), (7, 4, 3, 1), (9, 3, 2, 0, 2)]),
    nbytes=few,
    costs=costs_us,
    segments=st.integers(1, 4),
)
def test_no_family_is_faster_with_few_bytes(
    lost: tuple[int, ...], nbytes: int, costs: tuple[int, int], segments: int
) -> None:
    cluster, (alpha, per_chunk) = lacking(*lost), (cost * US for cost in costs)
    least = bound(cluster, nbytes, alpha, per_chunk).seconds
    for recipe in recipes(cluster, nbytes, alpha, per_chunk, segments):
        check(recipe.lower(cluster, nbytes), least, alpha, per_chunk)


def test_what_all_tell_one_counts_too() -> None:
    """Three live NICs out, one in: the others' chunks come one by one."""
    cluster = with_few(8, 3, 0)
    for nic in ("nic0", "nic1"):
        cluster = one_way(cluster, nic)
    found = bound(cluster, 1024, 5 * US, US)
    assert isinstance(found.certificate, PostalCosts)
    assert (found.certificate.direction, found.certificate.server) == ("in", 1)
    check(one_exchange(cluster, 1024), found.seconds, 5 * US, US)


def one_way(cluster: Cluster, nic: str) -> Cluster:
    """Nothing comes in by that NIC of the second server."""
    server = cluster.servers[1]
    nics = tuple(replace(one, in_rate=Fraction(0)) if one.name == nic else one for one in server.nics)
    return replace(cluster, servers=(cluster.servers[0], replace(server, nics=nics), *cluster.servers[2:]))


def test_forged_certificates_are_refused() -> None:
    found = bound(with_few(16, 8, 6), 1024, 5 * US, US)
    cert = found.certificate
    assert isinstance(cert, PostalCosts)
    late = (*cert.arrivals[:-1], (cert.arrivals[-1][0] + US, cert.arrivals[-1][1]))

    def later(one: BoundWithCosts) -> BoundWithCosts:
        return replace(one, seconds=one.seconds + US, parts=(replace(one.parts[0], seconds=one.seconds + US),))

    for forged in (
        later(replace(found, certificate=replace(cert, arrivals=late))),
        later(found),
        replace(found, certificate=replace(cert, server=0)),
        replace(found, certificate=replace(cert, server=-1)),
        replace(found, certificate=replace(cert, server=16)),
        replace(found, certificate=replace(cert, arrivals=())),
        replace(found, certificate=replace(cert, arrivals=cert.arrivals[::-1])),
        replace(found, certificate=FluidCosts()),
        replace(found, alpha=found.alpha / 2),
        replace(found, per_chunk=found.per_chunk / 2),
        replace(found, bound=optcc.lower_bound(with_few(16, 8, 6), 0)),
    ):
        with pytest.raises(CertificateError):
            check_bound_with_costs(with_few(16, 8, 6), forged)
