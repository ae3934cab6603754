"""Packed trees as schedules: verified, at the optimum, refused when they do not fit, the same after a file."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from optcc.errors import CertificateError, InfeasibleError, InputError, VerifyError
from optcc.machine.native import NativeCode, call
from optcc.plans.plan import Plan
from optcc.schedule.packed import Arc, Arcs, PackedTrees, TreePair
from optcc.schedule.routes import fluid_seconds
from optcc.simulation.simulator import simulate
from optcc.simulation.verifier import verify
from optcc.theory import lower_bound, packing, program_bound
from optcc.theory.packing import GAP, PackingError, cheapest_pairs, hub_trees, most_weight, pack_trees, ways_of
from optcc.theory.program_network import build_network
from optcc.values.cluster import Cluster, Fabric, Nic, Server
from optcc.values.json_records import FieldError, read_json, write_json
from tests.conftest import clusters
from tests.effort import examples
from tests.rail_clusters import networks, on_rails, solved
from tests.test_proof_cases import out_trees

N = 2**30
NEAR = Fraction(1, 10**6)
"""What the bound's certificate and the packing may be apart, each of them being within 2e-7 of the optimum."""


def optimal_and_right(cluster: Cluster, optimum_s: Fraction, data: st.DataObject) -> None:
    """The family reaches the optimum in the fluid limit, and its schedule is an AllReduce, whatever its size."""
    recipe = PackedTrees(
        pack_trees(cluster).trees,
        segments=data.draw(st.integers(1, 6), label="segments"),
        window=data.draw(st.integers(0, 4), label="window"),
    )
    recipe.check(cluster)
    fluid = recipe.fluid_s(cluster, N)
    assert optimum_s * (1 - NEAR) <= fluid <= optimum_s * (1 + NEAR)
    verify(recipe.lower(cluster, data.draw(st.sampled_from([0, 8, 1000, 2**16]), label="bytes")))
    # In bytes, each tree's part is rounded to 8: that is all that sets the two apart.
    assert fluid_seconds(recipe.lower(cluster, N), cluster) == pytest.approx(float(fluid), rel=1e-4)


@examples(150)
@given(cluster=clusters(min_ranks=2, max_ranks=7, symmetric=False), data=st.data())
def test_reaches_the_closed_form_on_one_fabric(cluster: Cluster, data: st.DataObject) -> None:
    optimal_and_right(cluster, lower_bound(cluster, N).seconds, data)


@examples(150)
@given(cluster=networks(), data=st.data())
def test_reaches_the_program_on_rails_pods_and_between_gpus(cluster: Cluster, data: st.DataObject) -> None:
    optimal_and_right(cluster, solved(cluster).seconds, data)


@examples(20)
@given(cluster=networks(), data=st.data())
def test_a_schedule_that_lacks_a_transfer_is_noticed(cluster: Cluster, data: st.DataObject) -> None:
    solved(cluster)
    schedule = PackedTrees(pack_trees(cluster).trees, segments=2).lower(cluster, 2**12)
    copies = schedule.reduce.copy()
    row = data.draw(st.sampled_from(copies.nonzero()[0].tolist()), label="row")
    copies[row] = False
    with pytest.raises(VerifyError):
        verify(schedule.replace(reduce=copies))


def slow_star(ranks: int, where: int, left: Fraction = Fraction(1, 2)) -> Cluster:
    return Cluster.uniform(servers=ranks, rate=50 * 10**9).degrade(f"server{where}/nic0", left)


@pytest.mark.parametrize("ranks", [4, 8, 16])
@pytest.mark.parametrize("where", [0, 1])
def test_the_star_with_a_slow_node_takes_two_hops_and_simulates_at_the_bound(ranks: int, where: int) -> None:
    """Simulated, alpha 0: within 2 % of the optimum at 128 segments, wherever the slow node stands."""
    cluster = slow_star(ranks, where * ranks // 2)
    recipe = PackedTrees(pack_trees(cluster).trees, segments=128)
    bound = lower_bound(cluster, N).seconds
    assert recipe.fluid_s(cluster, N) == bound
    assert {tree.hops for tree in recipe.trees} == {2}
    assert float(bound) <= simulate(recipe.lower(cluster, N)).time_s <= 1.02 * float(bound)


def unequal_ways() -> Cluster:
    """Rates that differ in and out, where reducing and broadcasting keep different ports busy."""
    rates = [(3, 6), (7, 2), (5, 4), (6, 7), (2, 8), (8, 3)]
    servers = tuple(
        Server(f"server{i}", (Nic("nic0", Fraction(o * 10**9), Fraction(r * 10**9)),)) for i, (o, r) in enumerate(rates)
    )
    return Cluster(servers)


def test_a_window_keeps_both_halves_at_work() -> None:
    """Simulated: without it the in-ports fill with segments that nobody needs yet, and 128 segments are no help."""
    cluster = unequal_ways()
    trees, bound = pack_trees(cluster).trees, float(lower_bound(cluster, N).seconds)
    windowed, loose = (
        simulate(PackedTrees(trees, 128, window).lower(cluster, N)).time_s / bound for window in (0, 65536)
    )
    assert windowed < 1.02
    assert loose > 1.1


def test_a_leaf_waits_for_results_of_one_window_before() -> None:
    """Its own tree's and the next one's, unless it is the root of that."""
    cluster = slow_star(4, 0)
    recipe = PackedTrees(pack_trees(cluster).trees, segments=5, window=2)
    schedule = recipe.lower(cluster, 2**16)
    root_of = {rank: [tree.root for tree in recipe.trees].index(rank) for rank in (1, 2, 3)}
    seen = set()
    for row in range(len(schedule)):
        deps = schedule.deps(row).tolist()
        if schedule.reduce[row]:  # two hops: everybody who sends up is a leaf
            mine = root_of[int(schedule.dst[row])]
            trees = {mine, (mine + 1) % 3} if schedule.segment[row] >= 2 else set()
            waits = {tree for tree in trees if recipe.trees[tree].root != schedule.src[row]}
            assert {root_of[int(schedule.src[dep])] for dep in deps} == waits
            seen.add(len(waits))
            for dep in deps:
                assert not schedule.reduce[dep]
                assert schedule.dst[dep] == schedule.src[row]
                assert schedule.segment[dep] == schedule.segment[row] - 2
    assert seen == {0, 1, 2}


@cache
def railed() -> tuple[Cluster, PackedTrees]:
    cluster = on_rails([[10, 20], [20, 20], [20, 10], [0, 20]], spine=Fraction(2))
    return cluster, PackedTrees(pack_trees(cluster).trees, segments=4)


@pytest.mark.parametrize("where", ["flat", "rails", "gpus"])
def test_a_plan_of_packed_trees_travels(where: str) -> None:
    cluster, recipe = railed()
    if where == "flat":
        cluster = slow_star(5, 2)
    elif where == "gpus":
        cluster = replace(Cluster.uniform(servers=2, nics=2, rate=1000, nvlink_rate=3000), gpu_ranks=True)
        cluster = replace(cluster, fabric=Fabric(rails=True)).degrade("server1/nic0")
    if where != "rails":
        recipe = PackedTrees(pack_trees(cluster).trees, segments=4)
    plan = Plan(cluster, program_bound(cluster, 4096), recipe)
    again = Plan.from_bytes(plan.to_bytes())
    assert again == plan
    assert (again.schedule().route == plan.schedule().route).all()
    lines = dict(recipe.describe(cluster))
    assert lines["trees"].startswith(f"{len(recipe.trees)} pairs")
    assert "%" in lines["roots"]


def edited(recipe: PackedTrees, **changes: object) -> PackedTrees:
    """The recipe with its first tree changed."""
    return replace(recipe, trees=(replace(recipe.trees[0], **changes), *recipe.trees[1:]))  # type: ignore[arg-type]


def _cycle(tree: TreePair) -> tuple[Arc, ...]:
    """Arcs into every rank but the root, two of which come from each other."""
    a, b = (arc.dst for arc in tree.down[:2])
    return tuple(arc._replace(src={a: b, b: a}.get(arc.dst, arc.src)) for arc in tree.down)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (lambda r: replace(r, segments=0), "segments"),
        (lambda r: replace(r, segments=True), "segments"),
        (lambda r: replace(r, window=-1), "window"),
        (lambda r: replace(r, window=1.5), "window"),
        (lambda r: replace(r, trees=()), "shares of sum 1"),
        (lambda r: replace(r, trees=r.trees[1:]), "shares of sum 1"),
        (lambda r: edited(r, share=-r.trees[0].share), r"trees\[0\]\.share: .*0 or more"),
        (lambda r: edited(r, share=Fraction(0)), "above 0"),
        (lambda r: edited(r, share=r.trees[0].share / 2), "shares of sum 1"),
        (lambda r: edited(r, root=4), "0 to 3"),
        (lambda r: edited(r, root=(r.trees[0].root + 1) % 4), "one arc for every rank but the root"),
        (lambda r: edited(r, up=r.trees[0].up[1:]), "tree 0, up.*one arc for every rank but the root"),
        (lambda r: edited(r, down=r.trees[0].down[1:]), "tree 0, down.*one arc for every rank but the root"),
        (lambda r: edited(r, down=_cycle(r.trees[0])), "tree 0, down.*every rank joined to the root"),
        (lambda r: edited(r, up=tuple(a._replace(dst=99) for a in r.trees[0].up)), "every rank joined to the root"),
    ],
)
def test_what_does_not_fit_is_refused(fault: Callable[[PackedTrees], PackedTrees], complaint: str) -> None:
    cluster, recipe = railed()
    recipe.check(cluster)
    with pytest.raises(InputError, match=complaint):
        fault(recipe).check(cluster)


def test_ways_that_the_fabric_lacks_are_refused() -> None:
    """The same trees on a cluster with a NIC less, without a spine, and with another number of ranks."""
    cluster, recipe = railed()
    arc = next(arc for tree in recipe.trees for arc in tree.up)
    assert arc.out is not None
    with pytest.raises(InfeasibleError, match="no such lane"):
        recipe.check(cluster.degrade(f"server{arc.src}/nic{arc.out}"))
    crossed = edited(recipe, up=tuple(a._replace(out=1, into=0) for a in recipe.trees[0].up))
    with pytest.raises(InfeasibleError, match="no such lane"):
        crossed.check(replace(cluster, fabric=Fabric(rails=True)))
    with pytest.raises(InputError, match="does not fit its cluster"):
        recipe.check(slow_star(5, 0))
    with pytest.raises(InputError, match="none, since one rank has nothing to send"):
        recipe.check(Cluster.uniform(servers=1, rate=1000))


@pytest.mark.parametrize("text", ["1", "1>", "1>2@3", "1>-2", "1>2@:", "1>2,3>4", "one>two", "1>2@3:4:5", "٣>1"])
def test_arcs_are_read_only_as_they_are_written(text: str) -> None:
    with pytest.raises(FieldError, match="SRC>DST"):
        read_json(Arcs, text)
    for arcs in ((), (Arc(1, 2),), (Arc(1, 2), Arc(0, 12, 3, 4))):
        assert read_json(Arcs, write_json(Arcs, arcs)) == arcs


def test_a_single_rank_has_nothing_to_do() -> None:
    alone, recipe = Cluster.uniform(servers=1, rate=1000), PackedTrees((), segments=3)
    recipe.check(alone)
    assert len(recipe.lower(alone, 4096)) == 0
    assert recipe.fluid_s(alone, 4096) == 0
    assert recipe.describe(alone) == [("trees", "none: a single rank has nothing to send")]


# Packed trees as numbers: cheapest trees against all trees, the program against another solver, what is refused.


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
    n, made = len(cost), ctypes.c_int64()
    shrunk, tree = [np.empty(2 * n, np.int32) for _ in range(3)], np.empty(n, np.int32)
    assert call("planning_shrink", n, cost, *shrunk, made) is NativeCode.DONE
    assert call("planning_open", n, root, made.value, *shrunk, tree) is NativeCode.DONE
    return tree


def flatten(tree: np.ndarray, cost: np.ndarray, slack: float) -> int:
    deepest = ctypes.c_int64()
    assert call("planning_flatten", len(tree), tree, cost, slack, deepest) is NativeCode.DONE
    return deepest.value


def recentre(root: int, up: np.ndarray, down: np.ndarray) -> int:
    found = ctypes.c_int64(root)
    assert call("planning_recentre", len(up), found, up, down) is NativeCode.DONE
    return found.value


def depth(tree: np.ndarray) -> int:
    """Of the deepest node, arcs from the root."""
    return max(0 if u < 0 else 1 + depth_of(tree, int(u)) for u in tree)


def depth_of(tree: np.ndarray, v: int) -> int:
    return 0 if tree[v] < 0 else 1 + depth_of(tree, int(tree[v]))


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
    tree = cheapest_tree(cost, 0)
    before, old = depth(tree), tree.copy()
    assert flatten(tree, cost, float(slack)) == depth(tree) <= before
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

    before, hops = arcs(), depth(up) + depth(down)
    moved = recentre(root, up, down)
    assert leads_to_root(up, moved)
    assert leads_to_root(down, moved)
    assert arcs() == before
    assert depth(up) + depth(down) <= hops


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
