"""The symbols of every formula in this package: one place for name, unit, meaning and sign.

Import the ready-made sympy symbols by name; `TABLE` is the same list for people. Units: B is byte, s is second, 1 is
a pure number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy as sp


@dataclass(frozen=True)
class Quantity:
    """A symbol, its unit, what it stands for, and the range that the formulas assume."""

    symbol: Any
    unit: str
    meaning: str
    range: str


n, B, B_i = sp.symbols("n B B_i", positive=True)
T, T0, T_opt = sp.symbols("T T_0 T_opt", positive=True)
P, m, q, s = sp.symbols("P m q s", integer=True, positive=True)
i, j, k, K, N = sp.symbols("i j k K N", integer=True, positive=True)
ell, ell_c, k_opt = sp.symbols("l l_c k_opt", positive=True)
X, Y = sp.symbols("X Y", positive=True)
C, B_rest, B_min = sp.symbols("C B_rest B_min", positive=True)
x_m, x_without = sp.symbols("x_m x_{P-1}", nonnegative=True)
L_1, L_2, L_3 = sp.symbols("L_1:4", positive=True)
L = sp.Function("L", positive=True)
alpha, o = sp.symbols("alpha o", positive=True)
a, b, h = sp.symbols("a b h", positive=True)
min_out, min_in, sum_out, sum_in = sp.symbols("B_min^out B_min^in B_sum^out B_sum^in", positive=True)
root_out, root_in = sp.symbols("B_root^out B_root^in", positive=True)
others_out, others_in = sp.symbols("B_others^out B_others^in", positive=True)
c12, c13, c23 = sp.symbols("c_12 c_13 c_23", positive=True)

TABLE: tuple[Quantity, ...] = (
    Quantity(n, "B", "buffer of one rank", "> 0"),
    Quantity(P, "1", "ranks", "integer >= 2"),
    Quantity(B, "B/s", "rate of a healthy rank, each way", "> 0"),
    Quantity(B_i, "B/s", "rate of rank i, out or in", "> 0"),
    Quantity(B_min, "B/s", "smallest rate of a rank, out or in", "> 0"),
    Quantity(B_rest, "B/s", "sum of the rates of the ranks outside the largest block", "> 0"),
    Quantity(ell, "1", "slowdown of a straggler: its rate is B/l", ">= 1"),
    Quantity(ell_c, "1", "slowdown at which the stragglers' own links become the bottleneck", ">= 1"),
    Quantity(s, "1", "number of equal stragglers", "integer, 1 to P-1"),
    Quantity(X, "1", "share of a rank's rate that is lost, 1 - 1/l", "0 <= X < 1"),
    Quantity(Y, "1", "share of the data that the healthy ranks' own ring carries", "0 <= Y < 1"),
    Quantity(N, "1", "NICs of a rank, equal", "integer >= 2"),
    Quantity(T, "s", "time of the collective", "> 0"),
    Quantity(T0, "s", "least time of the same collective without failures", "> 0"),
    Quantity(T_opt, "s", "least time of the collective in the fluid limit", "> 0"),
    Quantity(alpha, "s", "latency of one hop", ">= 0"),
    Quantity(o, "s", "fixed cost of one chunk at a port", ">= 0"),
    Quantity(k, "1", "segments a pattern's data is cut into", "integer >= 1"),
    Quantity(k_opt, "1", "segments that take the least time", "> 0"),
    Quantity(j, "1", "place of a segment, or of a rank, in its order", "integer >= 1"),
    Quantity(i, "1", "place of a rank, weakest first", "integer, 1 to P"),
    Quantity(K, "1", "chunks of a pipelined broadcast", "integer >= 1"),
    Quantity(m, "1", "ranks in the ring of a nested-ring pattern", "integer, 1 to P"),
    Quantity(x_m, "1", "share of the data in pattern m", "0 to 1"),
    Quantity(x_without, "1", "share of the data in the pattern that leaves one rank out of its ring", "0 to 1"),
    Quantity(L, "1", "bytes a rank sends per byte of data, by its place, weakest first", ">= 1"),
    Quantity(L_1, "1", "bytes the weakest rank sends per byte of data", ">= 1"),
    Quantity(L_2, "1", "bytes the second weakest rank sends per byte of data", ">= 1"),
    Quantity(L_3, "1", "bytes the third weakest rank sends per byte of data", ">= 1"),
    Quantity(q, "1", "blocks of a partition of the ranks", "integer, 2 to P"),
    Quantity(C, "B/s", "capacity between the blocks of a partition, both directions summed", "> 0"),
    Quantity(a, "1", "segment times that the pipeline's fill and drain add", "> 0"),
    Quantity(b, "1", "chunks per segment at the busiest port", "> 0"),
    Quantity(h, "1", "hops from the first byte sent to the last one received", "> 0"),
    Quantity(min_out, "B/s", "smallest rate out of a rank", "> 0"),
    Quantity(min_in, "B/s", "smallest rate into a rank", "> 0"),
    Quantity(sum_out, "B/s", "sum over the ranks of the rates out", "> 0"),
    Quantity(sum_in, "B/s", "sum over the ranks of the rates in", "> 0"),
    Quantity(root_out, "B/s", "rate out of the root", "> 0"),
    Quantity(root_in, "B/s", "rate into the root", "> 0"),
    Quantity(others_out, "B/s", "smallest rate out of a rank that is not the root", "> 0"),
    Quantity(others_in, "B/s", "smallest rate into a rank that is not the root", "> 0"),
    Quantity(c12, "B/s", "capacity from rank 1 to rank 2, and back", "> 0"),
    Quantity(c13, "B/s", "capacity from rank 1 to rank 3, and back", "> 0"),
    Quantity(c23, "B/s", "capacity from rank 2 to rank 3, and back", "> 0"),
)


def describe(expression: Any) -> list[Quantity]:
    """The table's rows for the symbols that occur in `expression`, in the table's order."""
    return [row for row in TABLE if expression.has(row.symbol)]
