"""Small cases of what the ledger of proofs/README.md states: all schedules and all trees of few ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from optcc.theory.bounds import lower_bound
from optcc.theory.program_network import build_network
from optcc.values.bound import ProgramCertificate
from optcc.values.cluster import Cluster, Fabric
from tests.conftest import clusters
from tests.effort import examples
from tests.partition_bound import partitions
from tests.proof_scripts import script
from tests.rail_clusters import networks, on_rails, solved

Arc = tuple[int, int]


def cheapest(ranks: int, cost: Callable[[Arc], bool], goal: Callable[[int], bool]) -> int:
    """The least number of transfers with `cost` by which one element reaches a state of knowledge with `goal`.

    Bit ranks * r + c of a state says that rank r knows the contribution of rank c. All schedules are tried.
    """
    arcs = [(u, v, int(cost((u, v)))) for u, v in permutations(range(ranks), 2)]
    start = sum(1 << (ranks * r + r) for r in range(ranks))
    least, queue = {start: 0}, deque([start])
    while queue:
        state = queue.popleft()
        if goal(state):
            return least[state]
        for u, v, price in arcs:
            after = state | (state >> (ranks * u) & (1 << ranks) - 1) << (ranks * v)
            if least[state] + price < least.get(after, 99):
                least[after] = least[state] + price
                (queue.append if price else queue.appendleft)(after)
    raise AssertionError("the goal is out of reach")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_fewest_transfers_of_one_element(ranks: int) -> None:
    """All schedules on up to four ranks: traffic for one rank a block, cut for one way of one rank."""

    def complete(state: int) -> bool:
        return state == (1 << ranks * ranks) - 1

    for blocks in partitions(range(ranks)):
        block = {rank: i for i, members in enumerate(blocks) for rank in members}
        crossing = cheapest(ranks, lambda arc, of=block: of[arc[0]] != of[arc[1]], complete)  # type: ignore[misc]
        assert crossing == 2 * (len(blocks) - 1)
    for way in (0, 1):
        assert cheapest(ranks, lambda arc, w=way: arc[w] == 0, complete) == 1  # type: ignore[misc]
    # The search finds cheaper ones where the task is smaller: one rank alone gets to know everything.
    assert cheapest(ranks, lambda _: True, lambda state: state >> ranks * (ranks - 1) == (1 << ranks) - 1) == ranks - 1


def hub_arrows(ranks: int, gather: int, spread: int) -> list[Arc]:
    """One element by two hubs: everybody to `gather`, the sum to `spread`, from there to whoever lacks it."""
    up = [(r, gather) for r in range(ranks) if r != gather]
    over = [(gather, spread)] if gather != spread else []
    return up + over + [(spread, r) for r in range(ranks) if r not in (gather, spread)]


def hub_parts(rates: Sequence[Fraction], per_byte: Fraction) -> list[Fraction]:
    """Which part of the data each rank is a hub for, out or in (proofs/written/attained.md, two ranks or more)."""
    p = len(rates)
    spare = [rate * per_byte - 1 for rate in rates]
    return [part / sum(spare) for part in spare] if p > 2 else [Fraction(1), Fraction(0)]


def hub_time(rates: Sequence[Fraction], parts: Sequence[Fraction]) -> Fraction:
    """Seconds per byte of the slowest port one way."""
    return max((1 + (len(rates) - 2) * part) / rate for rate, part in zip(rates, parts, strict=True))


def times_held(ranks: int, transfers: Iterable[tuple[int, int, bool]]) -> list[list[int]]:
    """[r][c]: how often rank c's contribution is in what rank r holds of one element in the end.

    A transfer (u, v, adds) adds what u holds to what v holds, or copies it over that.
    """
    held = [[int(r == c) for c in range(ranks)] for r in range(ranks)]
    for u, v, adds in transfers:
        held[v] = [mine * adds + new for mine, new in zip(held[v], held[u], strict=True)]
    return held


def once(ranks: int) -> list[list[int]]:
    """What an AllReduce leaves: everybody holds every contribution exactly once."""
    return [[1] * ranks] * ranks


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_two_hub_schedules_are_allreduces_with_these_loads(ranks: int) -> None:
    for gather, spread in product(range(ranks), repeat=2):
        arrows = hub_arrows(ranks, gather, spread)
        assert times_held(ranks, [(u, v, v == gather) for u, v in arrows]) == once(ranks)
        assert times_held(ranks, [(u, v, True) for u, v in arrows]) != once(ranks)  # the sum must be copied
        for r in range(ranks):
            assert sum(u == r for u, _ in arrows) == 1 + (ranks - 2) * (r == spread)
            assert sum(v == r for _, v in arrows) == 1 + (ranks - 2) * (r == gather)


@given(cluster=clusters(min_ranks=2, symmetric=False))
def test_two_hubs_reach_the_closed_form_for_any_rates(cluster: Cluster) -> None:
    least = lower_bound(cluster, 1).seconds
    ways = [r.out_rate for r in cluster.ranks], [r.in_rate for r in cluster.ranks]
    parts = [hub_parts(rates, least) for rates in ways]
    for part in parts:
        assert sum(part) == 1
        assert min(part) >= 0
    assert max(map(hub_time, ways, parts)) == least


def test_equal_hubs_do_not_reach_it() -> None:
    rates = [Fraction(1), Fraction(2), Fraction(2)]
    assert hub_time(rates, hub_parts(rates, Fraction(1))) == 1
    assert hub_time(rates, [Fraction(1, 3)] * 3) == Fraction(4, 3)


def out_trees(ranks: int, root: int) -> Iterator[list[Arc]]:
    """Every spanning tree of arcs away from `root`."""
    others = [r for r in range(ranks) if r != root]
    for parents in product(range(ranks), repeat=len(others)):
        tree = dict(zip(others, parents, strict=True))
        if all(root in _ancestors(tree, r) for r in others):
            yield [(parent, r) for r, parent in tree.items()]


def _ancestors(tree: dict[int, int], rank: int) -> set[int]:
    found = set[int]()
    while rank in tree and rank not in found:
        found.add(rank)
        rank = tree[rank]
    return found | {rank}


def packing_rate(cluster: Cluster) -> float:
    """Bytes per second of the best packing of tree pairs: a linear program over pairs and ways, without cuts."""
    network = build_network(cluster, merge=False)
    ranks = len(network.rank_types)
    arcs = list(permutations(range(ranks), 2))
    pairs = []
    for root in range(ranks):
        trees = list(out_trees(ranks, root))
        pairs += [[*((v, u) for u, v in up), *down] for up, down in product(trees, repeat=2)]
    scale = float(max(r.rate for r in network.resources))
    ways = [(network.orbits[o].x, network.orbits[o].y) for o in network.way_orbit]
    fits = np.array([[float(pair.count(arc)) for pair in pairs] + [-float(way == arc) for way in ways] for arc in arcs])
    use = np.hstack([np.zeros((len(network.resources), len(pairs))), network.use.toarray().astype(float)])
    limits = [0.0] * len(arcs) + [float(r.rate) / scale for r in network.resources]
    cost = [-1.0] * len(pairs) + [0.0] * len(ways)
    best = linprog(cost, A_ub=np.vstack([fits, use]), b_ub=limits, method="highs")
    assert best.status == 0, best.message
    return float(-(best.fun or 0.0)) * scale


@examples(60)
@given(cluster=networks(max_servers=4, gpus=False))
def test_program_is_the_best_packing_of_tree_pairs(cluster: Cluster) -> None:
    certificate = solved(cluster).certificate
    assert isinstance(certificate, ProgramCertificate)
    assert packing_rate(cluster) == pytest.approx(float(certificate.rate), rel=2e-6)


def test_packing_knows_all_trees_and_the_rails() -> None:
    assert [sum(1 for _ in out_trees(ranks, 0)) for ranks in (2, 3, 4)] == [1, 3, 16]
    railed = on_rails([[0, 1], [0, 1], [1, 1]])
    assert packing_rate(railed) == pytest.approx(3 / 4)
    assert packing_rate(replace(railed, fabric=Fabric())) == pytest.approx(1)


def test_every_schedule_of_four_ranks_contains_a_tree_pair() -> None:
    tree_pairs = script("search/tree_pairs")
    assert [tree_pairs.counterexample(ranks) for ranks in (2, 3, 4)] == [None] * 3


def test_the_search_for_tree_pairs_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were rank 0 the only root allowed, some schedule would lack a pair, and the search finds it."""
    tree_pairs = script("search/tree_pairs")
    monkeypatch.setattr(tree_pairs.Ranks, "has_tree_pair", lambda self, used: self._pair(used, 0, 1))
    found = tree_pairs.counterexample(4)
    assert found is not None
    assert len(found) >= 6


@st.composite
def failures(draw: st.DrawFn) -> tuple[int, Fraction]:
    return draw(st.integers(3, 40)), Fraction(draw(st.integers(1, 99)), 100)


def r2cc_time(ranks: int, lost: Fraction, healthy_part: Fraction) -> Fraction:
    """R2CC-AllReduce over T0 for any split, chunks without end: both rings side by side, then the second stage."""
    everybody = Fraction(2 * (ranks - 1), ranks) * (1 - healthy_part) / (1 - lost)
    healthy = Fraction(2 * (ranks - 2), ranks - 1) * healthy_part / lost
    return (max(everybody, healthy) + healthy_part / (1 - lost)) / Fraction(2 * (ranks - 1), ranks)


@given(failures(), st.fractions(0, 1, max_denominator=1000))
def test_another_split_hardly_helps_r2cc(failure: tuple[int, Fraction], part: Fraction) -> None:
    ranks, lost = failure
    best = r2cc_time(ranks, lost, lost * (ranks - 1) ** 2 / (ranks * (ranks - 2) + lost))
    assert best <= r2cc_time(ranks, lost, part)
    assert best < r2cc_time(ranks, lost, lost) < best + lost / (2 * ranks * (ranks - 1))
    assert r2cc_time(ranks, lost, lost) == 1 + lost * ranks / (2 * (ranks - 1) * (1 - lost))
