"""Optimal times of collectives by linear programs over rates between ranks or over trees, free of our formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

from scipy.optimize import linprog

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
