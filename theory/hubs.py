"""Tree pairs in closed form on one non-blocking fabric: stars around hubs, for any rates out and in.

Every part of the data has a hub that gathers it from all and a hub that spreads the sum to all. A rank that gathers
receives P-2 times more than it must, one that spreads sends P-2 times more. A rank that in the bound's time can send b
times its own data can spread the part (b - 1) / (P - 2), and gather by its rate in (proof id attained). Where one rank
does both, the trees are two hops deep together; only what that leaves over goes by two hubs, in three hops, which are
paired in order of ranks. At most 2P trees; exact.
"""

from __future__ import annotations

from fractions import Fraction

from optcc.schedule.packed import Arc, TreePair
from optcc.theory.bounds import lower_bound
from optcc.theory.shares import nested_loads
from optcc.values.cluster import Cluster


def hub_trees(cluster: Cluster) -> tuple[TreePair, ...]:
    """Tree pairs that reach the bound of `cluster`, of two ranks or more, where only the rates of servers limit.

    Raises InfeasibleError where a server has no rate one way.
    """
    ranks, per_byte = len(cluster.ranks), lower_bound(cluster, 1).seconds
    if ranks == 2:
        return (_star(2, 0, 0, Fraction(1)),)  # a hub has nobody else to serve
    gather = [(rank.in_rate * per_byte - 1) / (ranks - 2) for rank in cluster.ranks]
    spread = [(rank.out_rate * per_byte - 1) / (ranks - 2) for rank in cluster.ranks]
    both = [min(parts) for parts in zip(gather, spread, strict=True)]
    # Nobody is busier than the bound allows; where that leaves room, all have some.
    total = max(Fraction(1), sum(both, Fraction(0)))
    trees = [_star(ranks, r, r, part / total) for r, part in enumerate(both) if part]
    apart = 1 - sum((tree.share for tree in trees), Fraction(0))
    gatherers, spreaders = (
        _scaled([a - b for a, b in zip(parts, both, strict=True)], apart) for parts in (gather, spread)
    )
    while gatherers:  # both lists have the same sum, and no rank is in both
        share = min(gatherers[0][1], spreaders[0][1])
        trees.append(_star(ranks, gatherers[0][0], spreaders[0][0], share))
        for hubs in (gatherers, spreaders):
            rank, part = hubs.pop(0)
            if part > share:
                hubs.insert(0, (rank, part - share))
    return tuple(trees)


def _scaled(parts: list[Fraction], total: Fraction) -> list[tuple[int, Fraction]]:
    """(rank, part) of the parts above 0, in proportion so that they add up to `total`."""
    added = sum(parts, Fraction(0))
    return [(rank, part * total / added) for rank, part in enumerate(parts) if part and total]


def _star(ranks: int, gather: int, spread: int, share: Fraction) -> TreePair:
    up = tuple(Arc(r, gather) for r in range(ranks) if r != gather)
    first = (Arc(gather, spread),) if spread != gather else ()
    return TreePair(share, gather, up, (*first, *(Arc(spread, r) for r in range(ranks) if r not in (gather, spread))))


def hub_split(cluster: Cluster) -> tuple[tuple[Fraction, ...], tuple[tuple[int, Fraction], ...]]:
    """(each rank's part of the data as a hub, (slow rank, part of the full ranks' data that it adds last to)).

    Rates are the smaller of out and in. A rank of load L (proof id nested-rings) is the hub of x = (L - 1)/(P - 2): it
    receives (P-1) x of raw data and 1 - x of results, and sends the reverse. A slow rank that adds last to part b of
    the others' data receives (P-1) x + b (1-x) before, and (1-b)(1-x) after; it sends the reverse, so that all four
    are half its load at b = 1/2 - (P-1) x / (2 (1-x)). That is exact for one slow rank. Several add last to less, for
    1 - x counts each other's data, too: halves differ, but less has to wait.
    Three ranks or more, rates above 0.
    """
    rates = [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]
    ranks, order = len(rates), sorted(range(len(rates)), key=lambda r: (rates[r], r))
    loads = dict(zip(order, nested_loads([rates[r] for r in order]), strict=True))
    shares = tuple((loads[r] - 1) / (ranks - 2) for r in range(ranks))
    slow = [r for r in range(ranks) if loads[r] < max(loads.values())]
    parts = {r: max(Fraction(0), (1 - (ranks - 1) * shares[r] / (1 - shares[r])) / 2) for r in slow}
    total = max(Fraction(1), sum(parts.values(), Fraction(0)))
    return shares, tuple((r, part / total) for r, part in parts.items())
