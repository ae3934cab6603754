"""Cheapest spanning trees of arcs away from a root, for all roots at once.

Chu and Liu (1965), Edmonds ("Optimum branchings", 1967): take the cheapest arc into every node. Where such arcs close a
cycle, shrink it to one node; an arc into it then costs its price minus that of the arc it would replace. Nothing in
that asks which node the root is. So a graph is shrunk once, until one node is left; then for each root the cycles
around it are opened again, outermost first. Dense graphs of n nodes: n^2 to shrink, n per root to open.

Where costs tie, trees differ in depth; `flatten` makes one shallower. `recentre` moves the root of a pair of trees.
Costs are float64 (nodes, nodes), [into, from], infinite where there is no arc. All that is compiled is in this file:
what is kept does not notice changes in another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.machine.kernels import Kernels

KERNELS = Kernels("branchings", "what packs trees", 15)


@KERNELS.compiled()
def shrink(cost: NDArray[np.float64]) -> Any:
    """Shrink a strongly connected graph to one node. Returns what `open_at` needs.

    (parent, source, target) for every node, the n given ones first: the node it was shrunk into (-1: the last one), and
    both ends of its cheapest incoming arc.
    """
    n = len(cost)
    size = 2 * n
    left = np.full((size, size), np.inf)  # cost beyond what was paid already
    source, target = np.zeros((size, size), np.int32), np.zeros((size, size), np.int32)
    for v in range(n):
        for u in range(n):
            left[v, u], source[v, u], target[v, u] = cost[v, u], u, v
    parent = np.full(size, -1, np.int32)
    best_source, best_target = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    alive, count, made = np.arange(size), n, n
    path, length = np.zeros(size, np.int32), 1  # each node's cheapest arc comes from the next one
    on_path = np.zeros(size, np.bool_)
    on_path[0] = True
    while count > 1:
        v = path[length - 1]
        u, least = -1, np.inf
        for i in range(count):
            if alive[i] != v and left[v, alive[i]] < least:
                u, least = alive[i], left[v, alive[i]]
        best_source[v], best_target[v] = source[v, u], target[v, u]
        for i in range(count):
            left[v, alive[i]] -= least
        if not on_path[u]:
            path[length] = u
            on_path[u] = True
            length += 1
            continue
        # The path has closed a cycle from u on: it becomes node `made`.
        first = length - 1
        while path[first] != u:
            first -= 1
        for i in range(first, length):
            parent[path[i]] = made
            on_path[path[i]] = False
        kept = 0
        for i in range(count):
            if parent[alive[i]] != made:
                alive[kept] = alive[i]
                kept += 1
        for i in range(first, length):
            m = path[i]
            for j in range(kept):
                w = alive[j]
                if left[m, w] < left[made, w]:
                    left[made, w], source[made, w], target[made, w] = left[m, w], source[m, w], target[m, w]
                if left[w, m] < left[w, made]:
                    left[w, made], source[w, made], target[w, made] = left[w, m], source[w, m], target[w, m]
        alive[kept] = made
        count = kept + 1
        path[first] = made
        on_path[made] = True
        length = first + 1
        made += 1
    return parent[:made], best_source[:made], best_target[:made]


@KERNELS.compiled()
def open_at(
    root: int,
    parent: NDArray[np.int32],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    tree: NDArray[np.int32],
) -> None:
    """Write the cheapest tree away from `root` to `tree` (nodes,): where each node's arc comes from; -1 at the root."""
    made = len(parent)
    opened = np.zeros(made, np.bool_)
    tree[root] = -1
    node = root
    while node >= 0:
        opened[node] = True
        node = parent[node]
    for top in range(made - 1, -1, -1):  # a node comes before those that were shrunk into it
        if opened[top]:
            continue
        tree[target[top]] = source[top]
        node = target[top]
        while node != top:
            opened[node] = True
            node = parent[node]


@KERNELS.compiled()
def depths(tree: NDArray[np.int32], depth: NDArray[np.int64]) -> int:
    """Write every node's arcs from the root to `depth`; returns the largest."""
    deepest = 0
    for v in range(len(tree)):
        depth[v], u = 0, v
        while tree[u] >= 0:
            depth[v] += 1
            u = tree[u]
        deepest = max(deepest, depth[v])
    return deepest


@KERNELS.compiled()
def flatten(tree: NDArray[np.int32], cost: NDArray[np.float64], slack: float) -> int:
    """Give nodes, the deepest first, a shallower parent whose arc costs at most `slack` more than now; then the
    cheapest of that depth. Returns the depth of the tree.
    """
    n = len(tree)
    depth, limit = np.zeros(n, np.int64), np.zeros(n)
    for v in range(n):
        if tree[v] >= 0:
            limit[v] = cost[v, tree[v]] + slack
    changed = True
    while changed:
        changed = False
        for level in range(depths(tree, depth), 1, -1):
            for v in range(n):
                if depth[v] == level:
                    best = tree[v]
                    for u in range(n):
                        # A shallower node is never below v, so that this stays a tree.
                        if cost[v, u] <= limit[v] and depth[u] < depth[best]:
                            best = u
                    changed = changed or best != tree[v]
                    tree[v] = best
            if changed:
                break
    for v in range(n):
        for u in range(n):
            if tree[v] >= 0 and depth[u] == depth[tree[v]] and cost[v, u] < cost[v, tree[v]]:
                tree[v] = u
    return depths(tree, depth)


@KERNELS.compiled()
def recentre(root: int, up: NDArray[np.int32], down: NDArray[np.int32]) -> int:
    """Move the root to where both trees together are shallowest; returns the new one.

    If one tree leads from c to the root and the other from the root to c, c can be the root instead. The two arcs
    change trees, and each resource carries the same.
    """
    depth = np.zeros(len(up), np.int64)
    least = depths(up, depth) + depths(down, depth)
    moved = True
    while moved:
        moved = False
        for c in range(len(up)):
            if up[c] == root and down[c] == root:
                up[c], up[root], down[c], down[root] = -1, c, -1, c
                now = depths(up, depth) + depths(down, depth)
                if now < least:
                    least, root, moved = now, c, True
                    break
                up[c], up[root], down[c], down[root] = root, -1, root, -1
    return root


@KERNELS.compiled()
def price_pairs(
    prices: NDArray[np.float64],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    uses: NDArray[np.int64],
    ranks: int,
    slack: float,
    only_best: bool,
) -> Any:
    """Tree pairs at resource `prices`, for every root or the cheapest alone.

    source, target : int64 (ways,), ranks; uses : int64 (ways, most), resources, -1 for none
    Returns (roots, up, down, load, hops, least): int64 (pairs,); int64 (pairs, ranks), the way up or down of every
    rank, -1 at the root; float64 (pairs, resources); int64 (pairs,), depths of both trees; the least cost of any pair.
    """
    cost = np.full((ranks, ranks), np.inf)
    way = np.full((ranks, ranks), -1, np.int64)
    for w in range(len(source)):
        paid = 0.0
        for resource in uses[w]:
            if resource >= 0:
                paid += prices[resource]
        if paid < cost[target[w], source[w]]:
            cost[target[w], source[w]] = paid
            way[target[w], source[w]] = w
    backwards = cost.T.copy()
    trees = np.empty((2, ranks, ranks), np.int32)
    total = np.zeros(ranks)
    for side, costs in ((0, backwards), (1, cost)):
        parent, arc_source, arc_target = shrink(costs)
        for r in range(ranks):
            open_at(r, parent, arc_source, arc_target, trees[side, r])
            for v in range(ranks):
                if v != r:
                    total[r] += costs[v, trees[side, r, v]]
    best = np.argmin(total)
    extra = slack * total[best] / (2 * ranks - 2)
    first, last = (best, best + 1) if only_best else (0, ranks)
    count = last - first
    roots, hops = np.zeros(count, np.int64), np.zeros(count, np.int64)
    up, down = np.full((count, ranks), -1, np.int64), np.full((count, ranks), -1, np.int64)
    load = np.zeros((count, len(prices)))
    for i in range(count):
        ups, downs = trees[0, first + i], trees[1, first + i]
        flatten(ups, backwards, extra)
        flatten(downs, cost, extra)
        r = recentre(int(first + i), ups, downs)
        roots[i] = r
        hops[i] = flatten(ups, backwards, extra) + flatten(downs, cost, extra)
        for v in range(ranks):
            if v != r:
                up[i, v], down[i, v] = way[ups[v], v], way[v, downs[v]]
                for w in (up[i, v], down[i, v]):
                    for resource in uses[w]:
                        if resource >= 0:
                            load[i, resource] += 1
    return roots, up, down, load, hops, total[best]
