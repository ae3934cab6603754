"""Nested rings with the order of ranks, the orderings and the pace that suit the cluster."""

from __future__ import annotations

from fractions import Fraction

from optcc.schedule.nested import NestedRings, Ordering
from optcc.schedule.nested_pace import keeping
from optcc.values.cluster import Cluster


def nested_rings(cluster: Cluster, shares: dict[int, Fraction], segments: int) -> NestedRings:
    """Nested rings over the ranks of `cluster` by strength, with the orderings that suit the number of leaves."""
    ranks = cluster.ranks
    order = sorted(range(len(ranks)), key=lambda r: (min(ranks[r].out_rate, ranks[r].in_rate), r))
    return rings_in_order(tuple(order), shares, segments)


def rings_in_order(order: tuple[int, ...], shares: dict[int, Fraction], segments: int) -> NestedRings:
    """`nested_rings` where the `order` of the ranks, weakest first, is known."""
    window, pace, sections = keeping(len(order), len(order) - min(shares, default=len(order)), segments)
    rings, orderings = tuple(sorted(shares.items())), _orderings(shares, len(order), segments)
    return NestedRings(rings, order, segments, orderings, sections=sections, window=window, pace=pace)


def _orderings(shares: dict[int, Fraction], ranks: int, segments: int) -> tuple[Ordering, ...]:
    """One degraded rank: the orderings alternate, so that its link is busy both ways from the start. The last adds
    last: a leaf that gets a whole segment at the end does so alone. Several: the leaves take turns at adding last,
    which the simulator shows to be smoother (docs/schedules.md)."""
    if ranks - min(shares, default=ranks) != 1:
        return (Ordering.VIA_LEAF,)
    odd = segments > 1 and segments % 2 == 1
    return (Ordering.VIA_LEAF, Ordering.LEAF_FIRST) if odd else (Ordering.LEAF_FIRST, Ordering.VIA_LEAF)
