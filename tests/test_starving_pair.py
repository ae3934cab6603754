"""Two starving servers: the formula is the least of its program, no schedule undercuts the bound, one comes close."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import sympy as sp
from hypothesis import given
from hypothesis import strategies as st

import optcc
from optcc.errors import InfeasibleError, InputError
from optcc.planner.search import candidate_families
from optcc.schedule import Schedule, Stage
from optcc.schedule.assemble import TemplateRow, assemble, even_cuts
from optcc.schedule.routes import Routes
from optcc.simulation.simulator import Receivers
from optcc.theory import lower_bound
from optcc.theory.bound_costs import pair_prices, pair_s, spared, starving_pair_s
from optcc.values.cluster import Cluster, Fabric
from tests.effort import examples

US = Fraction(1, 10**6)
RATE = 10**9
FAMILIES = {"nested-rings", "direct-exchange", "trees", "packed-trees"}


def lacking(servers: int, nics: int, *dead: int, rails: bool = False) -> Cluster:
    """`servers` servers of `nics` NICs, `dead[i]` of the i-th one's dead."""
    cluster = replace(Cluster.uniform(servers=servers, nics=nics, rate=RATE), fabric=Fabric(rails=rails))
    for server, count in enumerate(dead):
        for nic in range(count):
            cluster = cluster.degrade(f"server{server}/nic{nic}")
    return cluster


# The least of sum x_i^2/2 + o i x_i


def chunked(work_s: Fraction, per_chunk: Fraction) -> Fraction:
    """G(X) of the proof, by its formula: m chunks with m(m-1)/2 o < X <= m(m+1)/2 o. Seconds squared."""
    if not work_s or not per_chunk:
        return Fraction(0)
    chunks = (math.isqrt(4 * math.ceil(2 * work_s / per_chunk)) + 1) // 2
    level = work_s / chunks + per_chunk * (chunks + 1) / 2
    squares = Fraction(chunks * (chunks + 1) * (2 * chunks + 1), 6)
    return (chunks * level**2 - per_chunk**2 * squares) / 2


def ports_s(rates: tuple[Fraction, Fraction], nbytes: int, direct: Fraction) -> Fraction:
    """(a) of the proof without costs: what ports of A and B need if so many elements are direct, each way. Seconds."""
    return nbytes * (2 + direct) / sum(rates)


def waiting_s(
    rates: tuple[Fraction, Fraction], nbytes: int, direct: Fraction, alpha: Fraction, per_chunk: Fraction
) -> Fraction:
    """(b) of the proof if so many elements are direct from A to B. Seconds."""
    cuts = [nbytes / rate for rate in rates]
    waits = sum((chunked((1 - direct) * cut, per_chunk) / cut for cut in cuts), Fraction(0))
    return sum(cuts, Fraction(0)) / 2 + waits + (2 - direct) * alpha


@given(
    level=st.fractions(0, 40, max_denominator=100),
    o=st.fractions(Fraction(1, 20), 5, max_denominator=100),
    price=st.fractions(0, 60, max_denominator=100),
)
def test_what_prices_spare_is_the_sum_of_all_that_gain(level: Fraction, o: Fraction, price: Fraction) -> None:
    every = ((level - o * i) ** 2 / 2 - price for i in range(1, int(level / o) + 2) if level > o * i)
    assert spared(level, o, price) == sum((gain for gain in every if gain > 0), Fraction(0))


@pytest.mark.parametrize("chunks", [1, 2, 5, 9])
@pytest.mark.parametrize("work", [1.0, 7.0, 60.0])
@pytest.mark.parametrize("level", [2.0, 6.5, 14.0])
def test_no_number_of_chunks_is_below_its_level(chunks: int, work: float, level: float) -> None:
    """In units of o: sum x_i^2/2 + i x_i + mu over any chunks of sum X is at least L X - S(L)."""
    x = cp.Variable(chunks, nonneg=True)
    order = np.arange(1, chunks + 1)
    program = cp.Problem(cp.Minimize(cp.sum_squares(x) / 2 + order @ x), [cp.sum(x) == work])
    for mu in (0.0, 1.5, 10.0):
        least = program.solve(solver=cp.CLARABEL) + mu * chunks
        below = level * work - float(spared(Fraction(level), Fraction(1), Fraction(mu)))
        assert least >= below - 1e-6


@pytest.mark.parametrize(
    "chunks", [Fraction(1, 50), Fraction(1), Fraction(7, 2), Fraction(6), Fraction(40), Fraction(700)]
)
def test_the_formula_is_the_least_of_its_convex_program(chunks: Fraction) -> None:
    """In units of o: X is as long as so many chunks cost."""
    number = 3 + int((2 * chunks) ** 0.5) + 2
    x = cp.Variable(number, nonneg=True)
    least = cp.Problem(
        cp.Minimize(cp.sum_squares(x) / 2 + np.arange(1, number + 1) @ x), [cp.sum(x) == float(chunks)]
    ).solve(solver=cp.CLARABEL)
    assert float(chunked(chunks, Fraction(1))) == pytest.approx(least, rel=1e-6)


@given(work=st.fractions(0, 1000, max_denominator=1000), o=st.fractions(0, 10, max_denominator=1000))
def test_the_formula_is_attained_and_above_the_closed_form(work: Fraction, o: Fraction) -> None:
    least = chunked(work, o)
    assert least**2 >= Fraction(8, 9) * o * work**3  # (2/3) X sqrt(2 o X)
    if not work or not o:
        assert least == 0
        return
    count = next(m for m in range(1, 10**6) if work <= o * m * (m + 1) / 2) if work / o < 10**5 else 0
    if count:
        level = work / count + o * (count + 1) / 2
        x = [level - o * i for i in range(1, count + 1)]
        assert sum(x) == work
        assert min(x) > 0
        assert level <= o * (count + 1)  # no further chunk would lower the sum
        assert least == sum(x_i**2 / 2 + o * i * x_i for i, x_i in enumerate(x, 1))


def test_the_identities_of_the_proof() -> None:
    o, level, m, i, work = sp.symbols("o L m i X", positive=True)
    x_i = level - o * i
    formula = (m * level**2 - o**2 * m * (m + 1) * (2 * m + 1) / 6) / 2
    assert sp.simplify(sp.summation(x_i**2 / 2 + o * i * x_i, (i, 1, m)) - formula) == 0
    assert sp.simplify(sp.summation(x_i, (i, 1, m)).subs(level, work / m + o * (m + 1) / 2) - work) == 0
    dual = level * work - sp.integrate((level - o * i) ** 2, (i, 0, level / o)) / 2
    assert sp.simplify(dual.subs(level, sp.sqrt(2 * o * work)) - sp.Rational(2, 3) * work * sp.sqrt(2 * o * work)) == 0
    for count in range(1, 7):
        x = sp.symbols(f"x1:{count + 1}", positive=True)
        ends = [sum(o + x_j for x_j in x[: k + 1]) for k in range(count)]
        ended = sum(x_k * end for x_k, end in zip(x, ends, strict=True))
        squares, ranked = sum(x_k**2 for x_k in x), sum(k * x_k for k, x_k in enumerate(x, 1))
        assert sp.expand(ended - (sum(x) ** 2 + squares) / 2 - o * ranked) == 0
        begun = sum(x_k * (end - o - x_k) for x_k, end in zip(x, ends, strict=True))
        assert sp.expand(begun - (sum(x) ** 2 - squares) / 2 - o * (ranked - sum(x))) == 0


# What direct elements cost


def fewest_ends(ranks: int) -> dict[tuple[bool, bool], int]:
    """(carried from 0 to 1, from 1 to 0) -> how often an AllReduce of one element must leave or enter 0 or 1, at least.

    All schedules are tried. Bit ranks * r + c of what is known says that r knows the contribution of c.
    """
    start = (sum(1 << (ranks * r + r) for r in range(ranks)), False, False)
    least, heap, found = {start: 0}, [(0, start)], dict[tuple[bool, bool], int]()
    while heap:
        spent, state = heapq.heappop(heap)
        known, to, fro = state
        if spent > least[state]:
            continue
        if known == (1 << ranks * ranks) - 1:
            found.setdefault((to, fro), spent)
        for u, v in permutations(range(ranks), 2):
            learnt = known | (known >> (ranks * u) & (1 << ranks) - 1) << (ranks * v)
            after = learnt, to or (u, v) == (0, 1), fro or (u, v) == (1, 0)
            price = spent + (u < 2) + (v < 2)
            if price < least.get(after, 99):
                least[after] = price
                heapq.heappush(heap, (price, after))
    return found


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_direct_element_takes_one_more(ranks: int) -> None:
    fewest = fewest_ends(ranks)
    assert fewest == {(False, False): 4, (True, False): 5, (False, True): 5, (True, True): 6}
    for way in (False, True):  # one byte, four ports of a byte per second
        assert ports_s((Fraction(1), Fraction(1)), 1, Fraction(way)) == Fraction(fewest[way, way], 4)


def test_between_two_alone_it_does_not() -> None:
    assert fewest_ends(2) == {(True, True): 4}


# The bound


def recipes(cluster: Cluster, nbytes: int, alpha: Fraction, per_chunk: Fraction, segments: int) -> Iterator[Any]:
    """Every family that the planner has for the cluster, at one depth."""
    for offer in candidate_families(cluster, lower_bound(cluster, nbytes), alpha=alpha, per_chunk=per_chunk):
        with suppress(InputError, InfeasibleError):  # the family does not fit
            yield offer.make(segments)


def bound(cluster: Cluster, nbytes: int, alpha: Fraction, per_chunk: Fraction) -> Fraction:
    """The bound in seconds, where there is one."""
    least = starving_pair_s(cluster, nbytes, alpha, per_chunk)
    assert least is not None
    return least


def check(schedule: Schedule, least: Fraction, alpha: Fraction, per_chunk: Fraction) -> None:
    """No less time than `least`, in either kind of receivers."""
    kinds: tuple[Receivers, ...] = ("stripes", "packets")
    for receivers in kinds:
        made = optcc.simulate(schedule, alpha=alpha, per_chunk=per_chunk, receivers=receivers)
        assert made.time_s >= float(least) * (1 - 1e-12)


COSTS = [(0, 0), (0, 1), (5, 1), (50, 0), (1, 20), (1000, 300)]


@pytest.mark.long
@pytest.mark.parametrize(("lost", "segments"), [((3, 2, 1, 1), 32), ((4, 4, 3, 2), 8), ((6, 2, 1, 1), 1)])
def test_no_family_is_faster(lost: tuple[int, ...], segments: int) -> None:
    cluster, nbytes, seen = lacking(*lost), 2**20, set()
    for recipe in recipes(cluster, nbytes, 5 * US, US, segments):
        seen.add(recipe.family)
        schedule = recipe.lower(cluster, nbytes)
        for alpha, per_chunk in COSTS:
            costs = alpha * US, per_chunk * US
            check(schedule, bound(cluster, nbytes, *costs), *costs)
    assert seen >= FAMILIES - ({"direct-exchange"} if lost[0] == 3 else set())


@examples(40)
@given(
    servers=st.integers(3, 7),
    dead=st.integers(2, 4).flatmap(lambda nics: st.tuples(st.just(nics), *[st.integers(nics // 2, nics - 1)] * 2)),
    nbytes=st.integers(1, 2**22),
    costs=st.tuples(st.integers(0, 400), st.integers(0, 400)),
    segments=st.integers(1, 24),
)
def test_no_schedule_is_faster_on_random_clusters(
    servers: int, dead: tuple[int, int, int], nbytes: int, costs: tuple[int, int], segments: int
) -> None:
    cluster, (alpha, per_chunk) = lacking(servers, *dead), (cost * US for cost in costs)
    for recipe in recipes(cluster, nbytes, alpha, per_chunk, segments):
        check(recipe.lower(cluster, nbytes), bound(cluster, nbytes, alpha, per_chunk), alpha, per_chunk)


def test_no_schedule_is_faster_on_rails() -> None:
    cluster = lacking(4, 2, 1, 1, rails=True)
    least = bound(cluster, 2**20, 5 * US, US)
    for segments in (1, 6):
        for recipe in recipes(cluster, 2**20, 5 * US, US, segments):
            check(recipe.lower(cluster, 2**20), least, 5 * US, US)


def star(nbytes: int, segments: int) -> tuple[Cluster, Schedule]:
    """Two servers of one NIC send equal segments to the two NICs of a third, which sends each of them the sum."""
    cluster = lacking(3, 2, 1, 1)
    way, port = Routes(cluster), {"A": "server0/nic1", "B": "server1/nic1", "hub A": "server2/nic0"}
    port["hub B"] = "server2/nic1"

    def pinned(src: int, dst: int, out: str, into: str) -> int:
        return way.pinned(src, dst, [(way.port_index[port[out]], way.port_index[port[into]], Fraction(1))])

    rows = [
        TemplateRow(0, pinned(0, 2, "A", "hub A"), 0, True, Stage.REDUCE_SCATTER, ()),
        TemplateRow(0, pinned(1, 2, "B", "hub B"), 0, True, Stage.REDUCE_SCATTER, ()),
        TemplateRow(0, pinned(2, 0, "hub A", "A"), 1, False, Stage.ALLGATHER, (0, 1)),
        TemplateRow(0, pinned(2, 1, "hub B", "B"), 1, False, Stage.ALLGATHER, (0, 1)),
    ]
    cuts = even_cuts(0, nbytes, segments)
    bounds = np.stack([cuts[:-1], cuts[1:]], axis=1)
    schedule = assemble(cluster, nbytes, way, [(rows, np.arange(segments, dtype=np.int64), bounds)])
    optcc.verify(schedule)
    return cluster, schedule


@pytest.mark.parametrize(
    ("segments", "alpha", "per_chunk", "near"),
    [
        (1000, 0, Fraction(1), Fraction(108, 100)),
        (100, 10, Fraction(100), Fraction(12, 10)),
        (10000, 10000, Fraction(1, 100), Fraction(103, 100)),  # alpha is nearly all
        (50, 0, Fraction(400), Fraction(13, 10)),
    ],
)
def test_a_star_comes_close(segments: int, alpha: int, per_chunk: Fraction, near: Fraction) -> None:
    """What the star loses is at most `near` times what the bound adds to the fluid one."""
    nbytes = 10**9  # a second
    cluster, schedule = star(nbytes, segments)
    costs = alpha * US, per_chunk * US
    fluid, least = lower_bound(cluster, nbytes).seconds, bound(cluster, nbytes, *costs)
    assert fluid == 1 < least
    check(schedule, least, *costs)
    time_s = optcc.simulate(schedule, alpha=costs[0], per_chunk=costs[1]).time_s
    assert time_s <= fluid + near * (least - fluid)
    with pytest.raises(AssertionError):  # a bound that adds half as much again is noticed
        check(schedule, fluid + Fraction(3, 2) * (least - fluid), *costs)


@pytest.mark.parametrize(("alpha", "per_chunk"), [(Fraction(0), Fraction(1)), (Fraction(1, 7), Fraction(5, 2))])
def test_a_star_of_one_chunk_waits_as_long_as_without_direct_elements(alpha: Fraction, per_chunk: Fraction) -> None:
    """The term for waiting is met where a chunk costs as much as all bytes: two of them, one after the other."""
    _, schedule = star(10**9, 1)
    waits = waiting_s((Fraction(RATE), Fraction(RATE)), 10**9, Fraction(0), alpha, per_chunk)
    assert waits == 2 * (1 + per_chunk + alpha)
    assert optcc.simulate(schedule, alpha=alpha, per_chunk=per_chunk).time_s == pytest.approx(float(waits), rel=1e-11)


@given(direct=st.fractions(0, 1, max_denominator=10**6), costs=st.tuples(*[st.integers(0, 1000)] * 2))
def test_it_is_no_less_than_either_term_without_chunks_at_ports(direct: Fraction, costs: tuple[int, int]) -> None:
    """Whatever the direct fraction, the smaller term is a bound; the one returned counts chunks at ports, too."""
    alpha, per_chunk = (cost * US for cost in costs)
    rates, nbytes = (Fraction(RATE), Fraction(2 * RATE)), 2**22
    least = bound(lacking(4, 4, 2, 3), nbytes, alpha, per_chunk)
    one = min(ports_s(rates, nbytes, direct), waiting_s(rates, nbytes, direct, alpha, per_chunk))
    assert one <= least * (1 + Fraction(1, 10**9))


@given(
    weight=st.fractions(0, Fraction(9, 10), max_denominator=1000),
    levels=st.tuples(*[st.integers(0, 3000)] * 2),
    costs=st.tuples(st.integers(0, 1000), st.integers(1, 1000)),
)
def test_no_prices_give_a_better_bound(weight: Fraction, levels: tuple[int, int], costs: tuple[int, int]) -> None:
    alpha, per_chunk = (cost * US for cost in costs)
    rates, nbytes = (Fraction(RATE), Fraction(2 * RATE)), 2**22
    one, two = (level * US for level in levels)
    most = bound(lacking(4, 4, 2, 3), nbytes, alpha, per_chunk)
    assert pair_s(rates, nbytes, (weight, (one, two)), alpha, per_chunk) <= most * (1 + Fraction(1, 10**6))


def least_by_program(x: float, o: float, alpha: float, chunks: tuple[int, int]) -> float:
    """The least time, by (a) and (b) alone, of two equal servers of cut time `x` whose ports send and receive so many
    chunks: a convex program in the part of direct elements and the sizes of chunks."""
    sizes, direct, time = [cp.Variable(count, nonneg=True) for count in chunks], cp.Variable(), cp.Variable()
    waits = sum(cp.sum_squares(each) / 2 + o * np.arange(1, each.size + 1) @ each for each in sizes)
    limits = [direct >= 0, direct <= 1, *(cp.sum(each) == (1 - direct) * x for each in sizes)]
    limits += [time >= alpha + x * (1 + direct / 2) + o * sum(chunks) / 2]
    limits += [time >= x + waits / x + (2 - direct) * alpha]
    return float(cp.Problem(cp.Minimize(time), limits).solve(solver=cp.CLARABEL))


@pytest.mark.parametrize(("x", "alpha"), [(30.0, 0.0), (30.0, 2.0), (100.0, 5.0)])
def test_it_is_near_the_least_of_both_terms_together(x: float, alpha: float) -> None:
    """In units of o; over all numbers of chunks, which the bound may take to be no whole numbers."""
    rates, nbytes = (Fraction(1), Fraction(1)), int(x)
    prices = pair_prices(rates, nbytes, Fraction(alpha), Fraction(1))
    found = float(pair_s(rates, nbytes, prices, Fraction(alpha), Fraction(1)))
    alike = min(least_by_program(x, 1, alpha, (count, count)) for count in range(2, 16))
    mixed = min(least_by_program(x, 1, alpha, (count, count + 1)) for count in range(2, 16))
    assert 0.99 * min(alike, mixed) <= found <= min(alike, mixed) + 1e-5


def test_the_terms_of_unequal_servers_by_hand() -> None:
    """Cut times of 1 s and 1/2 s, chunks of 2 s: one each."""
    rates, alpha = (Fraction(RATE), Fraction(2 * RATE)), Fraction(1, 10)
    waits = Fraction(3, 4) + (Fraction(1, 2) + 2) + 2 * (Fraction(1, 8) + 1) + 2 * alpha
    assert waiting_s(rates, RATE, Fraction(0), alpha, Fraction(2)) == waits
    half = Fraction(3, 4) + (Fraction(1, 8) + 1) + 2 * (Fraction(1, 32) + Fraction(1, 2)) + Fraction(3, 2) * alpha
    assert waiting_s(rates, RATE, Fraction(1, 2), alpha, Fraction(2)) == half


def test_without_costs_it_says_no_more_than_the_fluid_bound() -> None:
    cluster = lacking(5, 4, 2, 2)
    assert starving_pair_s(cluster, 10**9, 0, 0) == lower_bound(cluster, 10**9).seconds
    assert starving_pair_s(cluster, 0, US, US) == 0


def test_it_takes_the_slowest_two_of_one_nic_rate() -> None:
    cluster = lacking(5, 4, 1, 3, 2)
    pair = starving_pair_s(cluster, 10**9, 5 * US, US)
    assert pair == starving_pair_s(lacking(5, 4, 0, 3, 2), 10**9, 5 * US, US)
    assert pair != starving_pair_s(lacking(5, 4, 0, 3, 1), 10**9, 5 * US, US)
    slowed = cluster.degrade("server1/nic3", Fraction(1, 2))  # its only live NIC: a rate of its own
    assert starving_pair_s(slowed, 10**9, 5 * US, US) == starving_pair_s(lacking(5, 4, 1, 0, 2), 10**9, 5 * US, US)
    mixed = lacking(3, 2).degrade("server0/nic0", Fraction(1, 2)).degrade("server1/nic0", Fraction(1, 2))
    assert starving_pair_s(mixed, 10**9, 5 * US, US) is None


def test_where_there_is_no_pair() -> None:
    assert starving_pair_s(lacking(2, 2, 1, 1), 10**9, US, US) is None
    assert starving_pair_s(replace(lacking(3, 2, 1, 1), gpu_ranks=True), 10**9, US, US) is None
    for values in ((-1, 0, 0), (1, -1, 0), (1, 0, -1)):
        with pytest.raises(InputError, match="out of range"):
            starving_pair_s(lacking(3, 2, 1, 1), *values)
