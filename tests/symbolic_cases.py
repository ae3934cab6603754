"""Optimal times of collectives by linear programs over rates between ranks or over trees, free of our formulas."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import sympy as sp
from scipy.optimize import linprog

from optcc.theory.bounds import lower_bound
from optcc.theory.derivations import (
    B_i,
    C,
    K,
    L,
    P,
    Result,
    T_opt,
    X,
    a,
    b,
    c12,
    c13,
    c23,
    ell,
    exact,
    k,
    m,
    min_in,
    min_out,
    n,
    o,
    others_in,
    others_out,
    q,
    root_in,
    root_out,
    s,
    sum_in,
    sum_out,
)
from optcc.theory.ring_shares import level_loads, nested_shares
from optcc.values.cluster import Cluster, Nic, Server

Rates = Sequence[Fraction]


def packing_time(out: Rates, into: Rates, enters: Callable[[set[int]], Fraction]) -> Fraction:
    """Seconds per byte of a broadcast-like collective: `enters(ranks)` is the share of the data that must enter a set.

    By Edmonds' branching theorem (1973) rates between ranks suffice when every set can be entered; the program finds
    the best such rates, and its optimum is rounded to a simple fraction.
    """
    p = len(out)
    pairs = [(i, j) for i, j in product(range(p), repeat=2) if i != j]
    rows: list[list[float]] = []
    limits: list[float] = []
    for i in range(p):
        rows += [[float(src == i) for src, _ in pairs] + [0.0], [float(dst == i) for _, dst in pairs] + [0.0]]
        limits += [float(out[i]), float(into[i])]
    for members in range(1, 2**p - 1):
        inside = {i for i in range(p) if members >> i & 1}
        rows.append([-float(src not in inside and dst in inside) for src, dst in pairs] + [float(enters(inside))])
        limits.append(0.0)
    best = linprog([0.0] * len(pairs) + [-1.0], A_ub=rows, b_ub=limits, method="highs")
    return 1 / Fraction(-best.fun).limit_denominator(10**6)


def allgather_time(out: Rates, into: Rates) -> Fraction:
    """Seconds per byte of the result, equal shards."""
    return packing_time(out, into, lambda inside: 1 - Fraction(len(inside), len(out)))


def broadcast_time(out: Rates, into: Rates) -> Fraction:
    """Seconds per byte, rank 0 the root."""
    return packing_time(out, into, lambda inside: Fraction(0 not in inside))


def triangle_time(one_two: Fraction, one_three: Fraction, two_three: Fraction) -> Fraction:
    """AllReduce over three ranks joined by links of these rates each way: every pair of a reduce tree and a broadcast
    tree with one root, packed by a linear program. Seconds per byte."""
    links = {(0, 1): one_two, (0, 2): one_three, (1, 2): two_three}
    edges = [(i, j) for i, j in product(range(3), repeat=2) if i != j]
    pairs = [
        [(dst, src) for src, dst in up] + down for root in range(3) for up in _trees(root) for down in _trees(root)
    ]
    use = [[pair.count(edge) for pair in pairs] for edge in edges]
    limits = [float(links[min(edge), max(edge)]) for edge in edges]
    best = linprog([-1.0] * len(pairs), A_ub=use, b_ub=limits, method="highs")
    return 1 / Fraction(-best.fun).limit_denominator(10**6)


def _trees(root: int) -> list[list[tuple[int, int]]]:
    """The three trees out of `root` that reach both other ranks."""
    x, y = (i for i in range(3) if i != root)
    return [[(root, x), (root, y)], [(root, x), (x, y)], [(root, y), (y, x)]]


# Numbers for the symbols of every derived formula, and what it must then equal, by exact arithmetic of another kind.
#
# Nothing here uses the derivations: the right answers come from lower_bound on degraded clusters, from counting slots
# and bytes, from shares.py, and from linear programs over transfers and trees.


Case = tuple[dict[Any, Any], Fraction | int]
"""Values for the symbols, and the number the formula must then equal; for a one-sided formula, the number it bounds."""

ONE_SIDED = {"one-over-p", "one-over-p-lower"}


def check(result: Result, case: Case) -> None:
    """AssertionError unless the formula of `result` gives the case's number, or lies on the right side of it."""
    values, expected = case
    plain = {symbol: _number(value) for symbol, value in values.items()}
    value = result.expression.subs(plain).subs(plain)  # the second time for L(P-m), once P and m are numbers
    assert value.is_number, f"{result.id}: {value.free_symbols} have no value"
    if result.id not in ONE_SIDED:
        assert sp.simplify(value - _number(expected)) == 0, f"{result.id}: {value} for {expected} at {values}"
    elif result.relation == "<=":
        assert _number(expected) <= value, f"{result.id}: {expected} exceeds {value} at {values}"
    else:
        assert _number(expected) >= value, f"{result.id}: {expected} is below {value} at {values}"


def _number(value: Fraction | int) -> Any:
    return exact(Fraction(value))


_rng = random.Random()


def reseed() -> None:
    """Start the random cases anew, so that a test's cases do not depend on which tests ran before it."""
    _rng.seed(7)


def rate() -> Fraction:
    return Fraction(_rng.randint(1, 60), _rng.choice([1, 2, 3, 7]))


def slowdown(low: Fraction = Fraction(1), high: Fraction = Fraction(8)) -> Fraction:
    return low + (high - low) * Fraction(_rng.randint(0, 1000), 1000)


def switch(ranks: int) -> Fraction:
    return Fraction(2 * ranks - 3, ranks - 1)


def overhead(ranks: int, slow: Fraction, stragglers: int = 1) -> Fraction:
    """T*/T0 from lower_bound on a cluster degraded by `Cluster.degrade`."""
    cluster = Cluster.uniform(servers=ranks, nics=1, rate=Fraction(10))
    for i in range(stragglers):
        cluster = cluster.degrade(f"server{i}/nic0", 1 / slow)
    bound = lower_bound(cluster, 10**6)
    return bound.seconds / bound.fault_free_s


def fabric(ranks: int) -> Cluster:
    """A random cluster, rates out and in unrelated."""
    return Cluster(tuple(Server(f"s{i}", (Nic("nic", rate(), rate()),)) for i in range(ranks)))


def straggler_case() -> Case:
    ranks, slow = _rng.randint(3, 40), slowdown()
    return {P: ranks, ell: slow}, overhead(ranks, slow)


def several_case() -> Case:
    ranks, slow = _rng.randint(3, 20), slowdown()
    count = _rng.randint(1, ranks)
    return {P: ranks, ell: slow, s: count}, overhead(ranks, slow, count)


def switch_case(most: int = 5) -> Case:
    """The slowdown at which the certificate of lower_bound changes its kind, found by bisection."""
    ranks = _rng.randint(6, 12)
    count = _rng.randint(1, most)
    low, high = Fraction(1), Fraction(64)
    for _ in range(50):
        middle = (low + high) / 2
        cluster = Cluster.uniform(servers=ranks, nics=1, rate=Fraction(10))
        for i in range(count):
            cluster = cluster.degrade(f"server{i}/nic0", 1 / middle)
        kind = lower_bound(cluster, 10**6).certificate.kind
        low, high = (middle, high) if kind == "traffic" else (low, middle)
    return {P: ranks, s: count}, low.limit_denominator(1000)


def lost_case() -> Case:
    ranks, lost = _rng.randint(3, 30), Fraction(_rng.randint(0, 99), 100)
    return {P: ranks, X: lost}, overhead(ranks, 1 / (1 - lost))


def fabric_case(bound: Callable[[list[Fraction], list[Fraction]], Fraction]) -> Case:
    cluster = fabric(_rng.randint(2, 7))
    out, into = [r.out_rate for r in cluster.ranks], [r.in_rate for r in cluster.ranks]
    values = {
        P: len(out),
        n: 10**6,
        min_out: min(out),
        min_in: min(into),
        sum_out: sum(out),
        sum_in: sum(into),
        root_out: out[0],
        root_in: into[0],
        others_out: min(out[1:]),
        others_in: min(into[1:]),
    }
    return values, bound(out, into) * 10**6


def allreduce_time(out: list[Fraction], into: list[Fraction]) -> Fraction:
    servers = tuple(Server(f"s{i}", (Nic("nic", *pair),)) for i, pair in enumerate(zip(out, into, strict=True)))
    return lower_bound(Cluster(servers), 1).seconds


def triangle_case() -> Case:
    links = [rate() for _ in range(3)]
    return dict(zip((c12, c13, c23), links, strict=True)) | {n: 10**6}, 10**6 * triangle_time(*links)


def ring_shares_case() -> Case:
    """A share from the closed form in ring_shares.py, which has its own tests against the linear program."""
    ranks = _rng.randint(3, 7)
    rates = sorted(Fraction(_rng.randint(40, 80)) for _ in range(ranks))
    loads, ring = (
        [Fraction(1), *(load for load, n in level_loads([(r, 1) for r in rates]) for _ in range(n))],
        _rng.randint(1, ranks),
    )
    values = {L(ranks - ring + 1): loads[ranks - ring + 1], L(ranks - ring): loads[ranks - ring], P: ranks, m: ring}
    return values, nested_shares(rates).get(ring, Fraction(0))


def two_patterns_case() -> Case:
    ranks = _rng.randint(3, 20)
    slow = slowdown(high=switch(ranks))
    shares = nested_shares([10 / slow] + [Fraction(10)] * (ranks - 1))
    return {P: ranks, ell: slow}, shares.get(ranks - 1, Fraction(0))


def pipeline_case() -> Case:
    """Slots counted one by one: a segment leaves when the link out is free, returns when the link in is."""
    segments, in_free = _rng.randint(1, 50), 0
    for left_at in range(1, segments + 1):
        in_free = max(in_free, left_at) + 1
    return {k: segments}, Fraction(in_free, segments)


def segment_count_case() -> Case:
    """A perfect square, so that the best real segment count is whole and can be found by trying all."""
    best, chunks = _rng.randint(1, 30), _rng.randint(1, 9)
    values = {T_opt: Fraction(best**2 * chunks, 1000), a: Fraction(1), b: Fraction(chunks), o: Fraction(1, 1000)}
    times = {g: values[T_opt] * (1 + Fraction(1, g)) + chunks * values[o] * g for g in range(1, 100)}
    return values, min(times, key=lambda g: times[g])


def ring_case(scheme: str) -> Case:
    """Rivals by counting bytes at the degraded rank's ports, with N equal NICs of which one is lost."""
    ranks, nics = _rng.randint(3, 20), _rng.randint(2, 8)
    lost, chunks = Fraction(1, nics), _rng.randint(1, 64)
    healthy = Fraction(2 * (ranks - 1), ranks)  # seconds with n = B = 1
    if scheme == "balance":
        seconds = healthy / ((nics - 1) * Fraction(1, nics))
    elif scheme == "hot-repair":
        per_nic = [Fraction(1, nics)] * (nics - 2) + [Fraction(2, nics)]
        seconds = max(healthy * part / Fraction(1, nics) for part in per_nic)
    else:
        chunk = lost / chunks
        seconds = healthy * (1 - lost) / (1 - lost) + (chunks + 1) * chunk / (1 - lost)
    return {P: ranks, X: lost, K: chunks}, seconds / healthy


def one_rank_case() -> Case:
    port = rate()
    return {n: 10**6, B_i: port}, 10**6 / port


def blocks_case() -> Case:
    """AllReduce over q merged ranks, each with an equal part of the crossing capacity."""
    blocks, crossing = _rng.randint(3, 9), rate()
    merged = Cluster.uniform(servers=blocks, nics=1, rate=crossing / blocks)
    return {q: blocks, C: crossing, n: 10**6}, lower_bound(merged, 10**6).seconds


def equal_shards_case() -> Case:
    """Two phases in which every rank sends P-1 shards of n/P, at the pace of the slowest."""
    ranks, slow = _rng.randint(3, 20), slowdown()
    phase = max(Fraction(ranks - 1, ranks) / port for port in (1 / slow, Fraction(1)))
    return {ell: slow}, 2 * phase / Fraction(2 * (ranks - 1), ranks)


def over_p_case() -> Case:
    ranks = _rng.randint(3, 40)
    slow = slowdown(high=switch(ranks))
    return {P: ranks, ell: slow}, overhead(ranks, slow) - 1


def hard_case() -> Case:
    ranks = _rng.randint(3, 40)
    slow = slowdown(low=switch(ranks))
    return {P: ranks, ell: slow}, overhead(ranks, slow) - 1


def half_case() -> Case:
    ranks = _rng.randint(3, 200)
    return {P: ranks}, overhead(ranks, Fraction(2)) - 1


def many_ranks_case() -> Case:
    """Slowdowns in halves, so that the limit is a multiple of 1/4 and 400 ranks are enough to tell which."""
    slow = Fraction(_rng.randint(2, 12), 2)
    return {ell: slow}, Fraction(round(4 * overhead(400, slow)), 4)


def hard_limit_case() -> Case:
    ranks = _rng.randint(3, 30)
    return {P: ranks}, overhead(ranks, Fraction(10**9)) / 10**9


CASES: dict[str, Callable[[], Case]] = {
    "cut": one_rank_case,
    "traffic": lambda: fabric_case(lambda out, _: Fraction(2 * (len(out) - 1)) / sum(out)),
    "partition": blocks_case,
    "closed-form": lambda: fabric_case(allreduce_time),
    "bidirected-three": triangle_case,
    "single-straggler": straggler_case,
    "single-straggler-switch": lambda: switch_case(1),
    "several-stragglers": several_case,
    "several-stragglers-switch": switch_case,
    "limit-many-ranks": many_ranks_case,
    "limit-mild": lambda: ({}, overhead(_rng.randint(3, 40), Fraction(1))),
    "limit-hard": hard_limit_case,
    "one-over-p": over_p_case,
    "one-over-p-lower": over_p_case,
    "half-rate": half_case,
    "hard-failure": hard_case,
    "nested-ring-shares": ring_shares_case,
    "two-patterns": two_patterns_case,
    "optimum-lost-share": lost_case,
    "r2cc-allreduce": lambda: ring_case("r2cc-allreduce"),
    "balance": lambda: ring_case("balance"),
    "hot-repair": lambda: ring_case("hot-repair"),
    "k-segments": pipeline_case,
    "segment-count": segment_count_case,
    "allgather-bound": lambda: fabric_case(allgather_time),
    "reduce-scatter-bound": lambda: fabric_case(lambda out, into: allgather_time(into, out)),
    "broadcast-bound": lambda: fabric_case(broadcast_time),
    "reduce-bound": lambda: fabric_case(lambda out, into: broadcast_time(into, out)),
    "equal-shards": equal_shards_case,
}
