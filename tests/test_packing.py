"""Packed trees as numbers: cheapest trees against all trees, the program against another solver, what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from optcc.errors import CertificateError, InfeasibleError, InputError
from optcc.schedule.packed import PackedTrees
from optcc.theory import lower_bound, packing, program_bound
from optcc.theory.branchings import depths, flatten, open_at, recentre, shrink
from optcc.theory.packing import GAP, PackingError, cheapest_pairs, hub_trees, most_weight, pack_trees, ways_of
from optcc.theory.program_network import build_network
from optcc.values.cluster import Cluster, Fabric, Nic
from tests.conftest import clusters
from tests.effort import examples
from tests.rail_clusters import networks, on_rails, solved
from tests.test_proof_cases import out_trees

Costs = list[list[float]]


@st.composite
def graphs(draw: st.DrawFn, least: int = 2, most: int = 5) -> np.ndarray:
    """Costs [into, from] of a strongly connected graph; whole numbers, so that many trees cost the same."""
    n = draw(st.integers(least, most))
    cost = np.full((n, n), np.inf)
    for v in range(n):
        for u in range(n):
            there = u == (v - 1) % n or draw(st.booleans())
            if u != v and there:
                cost[v, u] = draw(st.integers(0, 6))
    return cost


def cheapest_tree(cost: np.ndarray, root: int) -> np.ndarray:
    tree = np.zeros(len(cost), np.int32)
    open_at(root, *shrink(cost), tree)
    return tree


def total(cost: np.ndarray, tree: np.ndarray) -> float:
    return float(sum(cost[v, u] for v, u in enumerate(tree) if u >= 0))


def leads_to_root(tree: np.ndarray, root: int) -> bool:
    """Every node but the root has a parent, and following parents ends at the root."""
    for v in range(len(tree)):
        steps = 0
        while v != root and steps < len(tree):
            v, steps = int(tree[v]), steps + 1
        if v != root or tree[root] != -1:
            return False
    return True


@examples(100)
@given(cost=graphs())
def test_one_shrunk_graph_has_the_cheapest_tree_of_every_root(cost: np.ndarray) -> None:
    for root in range(len(cost)):
        tree = cheapest_tree(cost, root)
        assert leads_to_root(tree, root)
        assert total(cost, tree) == min(sum(cost[v, u] for u, v in arcs) for arcs in out_trees(len(cost), root))


@examples(200)
@given(cost=graphs(3, 8), slack=st.integers(0, 3))
def test_flat_trees_are_trees_and_cost_no_more_than_allowed(cost: np.ndarray, slack: int) -> None:
    tree, depth = cheapest_tree(cost, 0), np.zeros(len(cost), np.int64)
    before, old = depths(tree, depth), tree.copy()
    assert flatten(tree, cost, float(slack)) == depths(tree, depth) <= before
    assert leads_to_root(tree, 0)
    assert all(cost[v, u] <= cost[v, old[v]] + slack for v, u in enumerate(tree) if u >= 0)


def test_a_chain_of_equal_arcs_becomes_a_star_and_dear_ones_stay() -> None:
    cost = np.ones((6, 6))
    chain = np.array([-1, 0, 1, 2, 3, 4], np.int32)
    assert flatten(chain.copy(), cost, 0.0) == 1
    cost[5, :4] = 3
    assert flatten(chain, cost, 0.0) == 2, "node 5 must stay below node 4"


@examples(100)
@given(cost=graphs(3, 7), data=st.data())
def test_a_moved_root_uses_every_arc_as_often(cost: np.ndarray, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, len(cost) - 1), label="root")
    up, down = cheapest_tree(cost.T.copy(), root), cheapest_tree(cost, root)

    def arcs() -> list[tuple[int, int]]:
        sent = [(v, int(u)) for v, u in enumerate(up) if u >= 0]
        return sorted(sent + [(int(u), v) for v, u in enumerate(down) if u >= 0])

    depth = np.zeros(len(cost), np.int64)
    before, hops = arcs(), depths(up, depth) + depths(down, depth)
    moved = recentre(root, up, down)
    assert leads_to_root(up, moved)
    assert leads_to_root(down, moved)
    assert arcs() == before
    assert depths(up, depth) + depths(down, depth) <= hops


def test_the_root_moves_from_a_leaf_to_its_hub() -> None:
    up = down = np.array([-1, 0, 1, 1, 1], np.int32)
    up, down = up.copy(), down.copy()
    assert recentre(0, up, down) == 1
    assert up.tolist() == down.tolist() == [1, -1, 1, 1, 1]


@examples(60)
@given(st.integers(1, 8), st.integers(1, 20), st.integers(0, 2**31))
def test_the_interior_point_method_agrees_with_simplex(rows: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = rng.integers(0, 4, (rows, count)).astype(float)
    columns[rng.integers(rows, size=count), np.arange(count)] += 1
    columns[np.arange(rows), rng.integers(count, size=rows)] += 1
    x, prices = most_weight(columns, 1e-8)
    best = -linprog(-np.ones(count), A_ub=columns, b_ub=np.ones(rows), method="highs").fun
    assert min(x.min(), prices.min()) >= 0
    assert x.sum() == pytest.approx(best, rel=1e-6)
    assert prices.sum() == pytest.approx(best, rel=1e-6)
    assert (columns @ x).max() <= 1 + 1e-7
    assert (columns.T @ prices).min() >= 1 - 1e-7


@examples(60)
@given(cluster=networks(max_servers=3))
def test_the_cheapest_pair_is_the_least_over_all_roots_and_trees(cluster: Cluster) -> None:
    solved(cluster)
    network = build_network(cluster, merge=False)
    ways = ways_of(network)
    if ways.ranks > 4:
        return
    prices = np.random.default_rng(7).integers(0, 5, len(ways.rates)).astype(float)
    pairs, least = cheapest_pairs(ways, prices)
    cost: dict[tuple[int, int], float] = {}
    for paid, u, v in zip(network.use.T @ prices, ways.source, ways.target, strict=True):
        cost[int(u), int(v)] = min(float(paid), cost.get((int(u), int(v)), np.inf))
    all_pairs = (
        sum(cost.get(arc, np.inf) for arc in down) + sum(cost.get((v, u), np.inf) for u, v in up)
        for root in range(ways.ranks)
        for down in out_trees(ways.ranks, root)
        for up in out_trees(ways.ranks, root)
    )
    assert least == pytest.approx(min(all_pairs))
    assert min(float(pair.load @ prices) for pair in pairs) == pytest.approx(least)


def test_a_packing_knows_what_it_reaches() -> None:
    cluster = on_rails([[0, 1], [0, 1], [1, 1]])
    found = pack_trees(cluster)
    assert found.rate == Fraction(3, 4), "the exact program's optimum, and not the 1 of one fabric"
    assert found.limit == pytest.approx(0.75, rel=GAP)
    found.check(cluster)
    with pytest.raises(CertificateError, match="the trees reach"):
        replace(found, rate=found.rate * Fraction(101, 100)).check(cluster)
    slower = cluster.with_nic(2, 1, replace(cluster.servers[2].nics[1], out_rate=Fraction(1, 2)))
    with pytest.raises(CertificateError, match="the trees reach"):
        found.check(slower)


@examples(20)
@given(cluster=networks(max_servers=5))
def test_no_more_trees_than_resources_and_one(cluster: Cluster) -> None:
    solved(cluster)
    found = pack_trees(cluster)
    assert len(found.trees) <= len(build_network(cluster, merge=False).resources) + 1
    assert found.rate <= found.limit * (1 + 1e-12)
    assert pack_trees(cluster) == found, "deterministic"


def test_the_gap_must_close(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = on_rails([[1, 2, 3], [3, 1, 2], [2, 2, 0], [0, 3, 1], [3, 3, 2], [1, 0, 2]])
    assert pack_trees(cluster).rounds > 1
    monkeypatch.setattr(packing, "MAX_ROUNDS", 1)
    with pytest.raises(PackingError, match="after 1 rounds"):
        pack_trees(cluster)


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="no AllReduce is possible"):
        pack_trees(on_rails([[1, 0], [1, 0], [0, 1], [0, 1]]))
    with pytest.raises(InputError, match="too large to pack trees on"):
        pack_trees(replace(Cluster.uniform(servers=128, nics=8, rate=1000), fabric=Fabric(rails=True)))
    with pytest.raises(InputError, match="too large to pack trees on"):
        pack_trees(Cluster.uniform(servers=257, rate=1000))
    with pytest.raises(InputError, match="no NVLink rate"):
        pack_trees(replace(Cluster.uniform(servers=2, nics=2, rate=1000), gpu_ranks=True))


@examples(100)
@given(cluster=clusters(min_ranks=2, max_ranks=12, symmetric=False))
def test_hubs_are_exact_and_few_on_one_fabric(cluster: Cluster) -> None:
    trees, ranks = hub_trees(cluster), len(cluster.ranks)
    recipe = PackedTrees(trees, segments=1)
    recipe.check(cluster)
    assert recipe.fluid_s(cluster, 1) == lower_bound(cluster, 1).seconds
    assert len(trees) <= 2 * ranks
    assert all(tree.hops <= 3 for tree in trees)
    if all(rank.out_rate == rank.in_rate for rank in cluster.ranks):
        assert {tree.hops for tree in trees} == {2}
    # The search over all trees, on one rail that joins the same rates, finds no better.
    one_nic = tuple(replace(s, nics=(Nic("nic0", s.out_rate, s.in_rate, rail=0),)) for s in cluster.servers)
    found = pack_trees(Cluster(one_nic, fabric=Fabric(rails=True)))
    assert found.rounds > 0
    assert float(found.rate * recipe.fluid_s(cluster, 1)) == pytest.approx(1, abs=1e-6)


def test_one_rank_has_no_trees_and_two_have_one() -> None:
    assert pack_trees(Cluster.uniform(servers=1, rate=1000)).trees == ()
    two = pack_trees(Cluster.uniform(servers=2, rate=1000).degrade("server0/nic0", Fraction(1, 2)))
    assert two.rate == 500
    assert {tree.hops for tree in two.trees} == {2}


@pytest.mark.parametrize("ratio", [10**3, 10**6])
def test_rates_may_be_far_apart(ratio: int) -> None:
    cluster = on_rails([[1, ratio], [ratio, 1], [ratio, ratio], [1, 1]])
    cluster = replace(cluster, fabric=Fabric(rails=True, spine=Fraction(4)))
    assert float(1 / pack_trees(cluster).rate / program_bound(cluster, 1).seconds) == pytest.approx(1, abs=1e-6)
