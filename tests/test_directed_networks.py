"""`optcc bound` on random directed networks, against a linear program of its own: from NICs, with every cut.

It shares with optcc the theorem alone: no merging of equal ranks, no cuts on demand, no rounding, no `build_network`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, combinations, permutations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

import optcc
from optcc.errors import InfeasibleError
from optcc.theory.bound_costs import bound_with_costs
from optcc.theory.bound_file import bound_file
from optcc.theory.bounds import scope_of
from optcc.theory.program_network import BOTH_AT_ONCE
from optcc.values.bound import LARGEST_GAP, ProgramCertificate
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from tests.bound_check_alone import by_stranger
from tests.effort import examples

N = 2**20
NEAR = 3 * float(LARGEST_GAP)
Arcs = dict[tuple[int, int], int]


@dataclass(frozen=True)
class Limits:
    """Ways from rank to rank, and what each of them uses: `use` (limits, ways) within `rates`, bytes per second."""

    ranks: int
    ways: tuple[tuple[int, int], ...]
    use: NDArray[np.float64]
    rates: NDArray[np.float64]


def limits_of(cluster: Cluster) -> Limits:
    """Straight from the NICs of servers: a way by each pair of NICs of one rail, or of two that a spine joins."""
    nics = [
        (s, server.pod, nic.rail, float(nic.out_rate), float(nic.in_rate))
        for s, server in enumerate(cluster.servers)
        for nic in server.nics
    ]
    rates: dict[tuple[str, object], float] = {}
    for i, nic in enumerate(nics):
        rates["sending", i], rates["receiving", i] = nic[3:]
    for server in cluster.fault_free.servers:
        for port in server.nics:
            for way, rate in (("out", port.out_rate), ("in", port.in_rate)):
                for link, which, factor in (
                    ("rail", port.rail, cluster.fabric.spine),
                    ("pod", server.pod, cluster.fabric.pod_oversubscription),
                ):
                    if factor is not None:
                        key = f"{link} {way}", which
                        rates[key] = rates.get(key, 0.0) + float(rate / factor)
    ways, used = [], []
    for (i, a), (j, b) in permutations(enumerate(nics), 2):
        if a[0] == b[0] or not (a[3] and b[4]) or (a[2] != b[2] and cluster.fabric.spine is None):
            continue
        uses: set[tuple[str, object]] = {("sending", i), ("receiving", j)}
        uses |= {("rail out", a[2]), ("rail in", b[2])} if a[2] != b[2] else set()
        uses |= {("pod out", a[1]), ("pod in", b[1])} if a[1] != b[1] else set()
        ways.append((a[0], b[0]))
        used.append(uses)
    use = np.array([[float(key in uses) for uses in used] for key in rates]).reshape(len(rates), len(ways))
    return Limits(len(cluster.servers), tuple(ways), use, np.array(list(rates.values())))


def sets(ranks: int) -> list[frozenset[int]]:
    """All sets of ranks but the empty one and that of all."""
    return [frozenset(s) for size in range(1, ranks) for s in combinations(range(ranks), size)]


def rate_of(
    limits: Limits,
    broadcast: Iterable[frozenset[int]],
    reduce: Iterable[frozenset[int]],
    whole: Iterable[frozenset[int]] = (),
    *,
    equal: bool = False,
) -> float:
    """The greatest rate, bytes per second, by the broadcast, reduce and whole cuts around these sets.

    equal : the same part of the data ends at every rank, not where it suits best
    """
    n, many = limits.ranks, len(limits.ways)
    scale = limits.rates[limits.rates > 0].min()
    rows, right = [], []

    def crossing(inside: frozenset[int], *, into: bool) -> NDArray[np.float64]:
        ends = ((v, u) if into else (u, v) for u, v in limits.ways)
        return np.array([float(u in inside and v not in inside) for u, v in ends])

    nothing, nobody = np.zeros(many), frozenset[int]()
    for (
        roots,
        halves,
    ) in chain(  # R is at most the roots' weights and what crosses, of the broadcast and the reduce half
        ((s, (crossing(s, into=True), nothing)) for s in broadcast),
        ((s, (nothing, crossing(s, into=False))) for s in reduce),
        ((nobody, (crossing(s, into=True), crossing(s, into=True))) for s in whole),
    ):
        rows.append(np.concatenate(([1.0], [-float(r in roots) for r in range(n)], *(-half for half in halves))))
        right.append(0.0)
    for line, rate in zip(limits.use, limits.rates, strict=True):
        rows.append(np.concatenate(([0.0], np.zeros(n), line, line)))
        right.append(float(rate / scale))
    same = [np.concatenate(([-1.0], np.ones(n), nothing, nothing))]
    if equal:
        same = [np.concatenate(([-1.0 / n], np.eye(n)[r], nothing, nothing)) for r in range(n)]
    gain = np.concatenate(([-1.0], np.zeros(n + 2 * many)))
    found = linprog(
        gain, A_ub=np.array(rows), b_ub=right, A_eq=np.array(same), b_eq=np.zeros(len(same)), method="highs"
    )
    assert found.status == 0, found.message
    return float(-found.fun * scale)


def digraph(ranks: int, arcs: Arcs) -> Cluster:
    """Each arc a rail of its own, with a NIC that sends at one end and one that receives at the other."""
    servers: list[list[Nic]] = [[] for _ in range(ranks)]
    for rail, ((u, v), rate) in enumerate(arcs.items()):
        servers[u].append(Nic(f"to{v}", Fraction(rate), Fraction(0), rail=rail))
        servers[v].append(Nic(f"from{u}", Fraction(0), Fraction(rate), rail=rail))
    return Cluster(
        tuple(Server(f"server{s}", tuple(nics)) for s, nics in enumerate(servers)), fabric=Fabric(rails=True)
    )


@st.composite
def digraphs(draw: st.DrawFn) -> Cluster:
    """2 to 6 ranks, at most three arcs out of each and one beside a ring, so that all reach all."""
    ranks = draw(st.integers(2, 6))
    order = draw(st.permutations(range(ranks)))
    rate = st.integers(1, 4)
    arcs = {(u, v): draw(rate) for u, v in zip(order, (*order[1:], order[0]), strict=True)}
    more = [pair for pair in permutations(range(ranks), 2) if pair not in arcs]
    for pair in draw(st.lists(st.sampled_from(more), unique=True, max_size=2 * ranks)) if more else ():
        arcs[pair] = draw(rate)
    return digraph(ranks, arcs)


@st.composite
def railed(draw: st.DrawFn) -> Cluster:
    """Servers that share rails, with a spine and pods or without; rates in and out differ, some are 0."""
    rate = st.sampled_from([0, 1, 2, 4])
    rails, alike = draw(st.integers(1, 3)), draw(st.booleans())
    servers = []
    for s in range(draw(st.integers(2, 5))):
        nics = [Nic(f"nic{i}", Fraction(draw(rate)), Fraction(draw(rate)), rail=i) for i in range(rails)]
        if alike and s > 1:
            nics = list(servers[1].nics)
        servers.append(Server(f"server{s}", tuple(nics), pod=str(s % 2)))
    spine, pods = (draw(st.sampled_from([None, Fraction(2), Fraction(3, 2)])) for _ in range(2))
    return Cluster(tuple(servers), fabric=Fabric(rails=True, spine=spine, pod_oversubscription=pods))


def same_rate(cluster: Cluster) -> bool:
    """Whether the bound is that of the program of one's own, and binds no one that it does not."""
    bound, limits = optcc.lower_bound(cluster, N), limits_of(cluster)
    every = sets(limits.ranks)
    singles = [s for s in every if len(s) == 1]
    right = rate_of(limits, every, every)
    if float(N / bound.seconds) != pytest.approx(right, rel=NEAR):
        return False
    binds = scope_of(cluster, bound.certificate).every_protocol
    return not binds or rate_of(limits, every, singles, every) >= right * (1 - NEAR)


@examples(500)
@given(cluster=digraphs() | railed())
def test_the_bound_is_that_of_the_program_with_every_cut(cluster: Cluster) -> None:
    try:
        bound = optcc.lower_bound(cluster, N)
    except InfeasibleError:
        assume(False)
        raise
    assert same_rate(cluster)
    assert isinstance(bound.certificate, ProgramCertificate)
    assert by_stranger(json.dumps(bound_file(cluster, bound_with_costs(cluster, bound, 0, 0)))) is None
    pair, limits = optcc.lower_bound(cluster, N, BOTH_AT_ONCE.name), limits_of(cluster)
    every = sets(limits.ranks)
    assert float(N / pair.seconds) == pytest.approx(rate_of(limits, every, every, equal=True), rel=NEAR)


@examples(200)
@given(cluster=digraphs() | railed())
def test_who_is_bound_is_told_right(cluster: Cluster) -> None:
    """Where the cuts that bind every protocol allow more, no certificate says that it binds them all."""
    limits = limits_of(cluster)
    every = sets(limits.ranks)
    try:
        bound = optcc.lower_bound(cluster, N)
    except InfeasibleError:
        assume(False)
        raise
    free = rate_of(limits, every, [s for s in every if len(s) == 1], every)
    if free > rate_of(limits, every, every) * (1 + NEAR):
        symmetric = all(nic.out_rate == nic.in_rate for server in cluster.servers for nic in server.nics)
        assert symmetric or not scope_of(cluster, bound.certificate).every_protocol


def test_a_rank_that_hears_by_one_arc_alone() -> None:
    """A ring of one direction: all of R passes the arc 1>2, and roots that sum to a trifle more did not fit."""
    cluster = digraph(4, {(0, 1): 3, (1, 2): 1, (2, 3): 4, (3, 0): 4})
    assert same_rate(cluster)
    assert float(N / optcc.lower_bound(cluster, N).seconds) == pytest.approx(1, rel=NEAR)


STAR = {(0, 1): 1, (1, 0): 2, (1, 2): 2, (2, 1): 1, (2, 0): 1}
GAP = dict.fromkeys([(0, 1), (0, 3), (1, 2), (2, 0), (2, 1), (3, 4), (3, 5), (4, 0), (4, 1), (4, 3), (5, 2)], 1)
"""proofs/written/half-program.md: the program's rate is 5/6, that of the cuts that bind every protocol 1."""


def test_a_network_where_half_of_the_program_allows_more() -> None:
    cluster = digraph(6, GAP)
    limits, every = limits_of(cluster), sets(6)
    assert rate_of(limits, every, every) == pytest.approx(5 / 6)
    assert rate_of(limits, every, [s for s in every if len(s) == 1], every) == pytest.approx(1)
    bound = optcc.lower_bound(cluster, N)
    assert float(N / bound.seconds) == pytest.approx(5 / 6, rel=NEAR)
    assert not scope_of(cluster, bound.certificate).every_protocol


@pytest.mark.parametrize("planted", ["single cuts alone", "no rails", "a faster arc", "no reduce half"])
def test_a_bound_that_is_wrong_is_noticed(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slip changes the rate of some of these networks."""
    real = optcc.lower_bound
    networks: Sequence[Cluster] = (digraph(3, STAR), digraph(6, GAP))
    assert all(map(same_rate, networks))

    def wrong(cluster: Cluster, nbytes: int) -> object:
        bound = real(cluster, nbytes)
        limits = limits_of(cluster)
        every = sets(limits.ranks)
        singles = [s for s in every if len(s) in (1, limits.ranks - 1)]
        if planted == "no rails":
            return real(replace(cluster, fabric=Fabric()), nbytes)
        if planted == "a faster arc":
            faster = (
                replace(s, nics=tuple(replace(nic, out_rate=2 * nic.out_rate, in_rate=2 * nic.in_rate)
                                      if nic.rail == 0 else nic for nic in s.nics)) for s in cluster.servers
            )  # fmt: skip
            return real(replace(cluster, servers=tuple(faster)), nbytes)
        rate = rate_of(limits, *((singles, singles) if planted == "single cuts alone" else (every, ())))
        return replace(bound, seconds=nbytes / Fraction(rate))

    monkeypatch.setattr(optcc, "lower_bound", wrong)
    assert not all(map(same_rate, networks))
