"""The formulas behind a bound, derived by sympy: symbols, steps, and every result with its assumptions and proof.

Sources: for schedules that forward and add, traffic is the one-way gossip bound, taken per element (Harary and Schwenk,
"The communication problem on graphs and digraphs", 1974); for any protocol it is proof id coding. Equality with
partitions on symmetric capacities goes back to Tutte and to Nash-Williams (1961). R2CC-AllReduce, Balance and hot
repair are those of Wang et al., "Reliable and Resilient Collective Communication Library for LLM Training and Serving"
(arXiv:2512.25059), each modelled in the fluid limit from its description.

Units: B is byte, s is second, 1 is a pure number. Ready-made symbols are imported by name; `TABLE` is the same list for
people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Literal, NamedTuple

import sympy as sp

from optcc.errors import InfeasibleError, OptccError
from optcc.values.cluster import Cluster, Rank
from optcc.values.units import format_rate


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


# A derived formula as a value


Relation = Literal["=", "<=", ">="]
_INSIDE = {P: 97, X: sp.Rational(1, 3)}  # with 2 for the rest, a point inside the range of every symbol
_LATEX_RELATION = {"=": "=", "<=": r"\le", ">=": r"\ge"}


class DerivationError(OptccError):
    """A step of a derivation does not hold; the message names the step and the expression."""


class Step(NamedTuple):
    """One line of a derivation: what is done, and the expression it gives."""

    claim: str
    expression: Any


@dataclass(frozen=True)
class Result:
    """`left` `relation` `expression`, derived by `steps` under `assumptions`.

    `proof_id` names the entry of proofs/README.md that holds the written proof; `left` and `expression` are sympy.
    """

    id: str
    statement: str
    assumptions: tuple[str, ...]
    proof_id: str
    left: Any
    relation: Relation
    expression: Any
    steps: tuple[Step, ...]

    def text(self) -> str:
        """The derivation for a terminal."""
        lines = [f"{self.id}: {self.statement}", f"  {self.left} {self.relation} {self.expression}", "  where"]
        lines += [f"    {row.symbol}  {row.meaning} [{row.unit}], {row.range}" for row in self._quantities()]
        lines += ["  assuming", *(f"    {text}" for text in self.assumptions), "  derived by"]
        for number, (claim, expression) in enumerate(self.steps, 1):
            lines += [f"    {number}. {claim}", f"         {expression}"]
        return "\n".join([*lines, f"  proof: proofs/README.md, id {self.proof_id}"])

    def latex(self) -> str:
        """The derivation as a LaTeX fragment (amsmath)."""
        lines = [
            rf"\paragraph{{{_escape(self.id)}}} {_escape(self.statement)}",
            rf"\[ {sp.latex(self.left)} {_LATEX_RELATION[self.relation]} {sp.latex(self.expression)} \]",
            "Assuming: " + _escape("; ".join(self.assumptions)) + ".",
            r"\begin{enumerate}",
            *(rf"\item {_escape(claim)} \[ {sp.latex(expression)} \]" for claim, expression in self.steps),
            r"\end{enumerate}",
            f"Proof: proofs/README.md, id {_escape(self.proof_id)}.",
        ]
        return "\n".join(lines)

    def _quantities(self) -> Iterable[Any]:
        return describe(sp.Tuple(self.left, self.expression, *(step.expression for step in self.steps)))


def prove_nonnegative(expression: Any, ranges: dict[Any, tuple[Any, Any]]) -> Any:
    """Prove that a rational `expression` is >= 0 on a box, or raise DerivationError.

    `ranges` maps each symbol to (low, high), high may be oo; a bound may use symbols that come later in the mapping.
    A symbol becomes low + t, or (low + high t) / (1 + t), with t >= 0; when then every coefficient of numerator
    and denominator is nonnegative, so is the expression; the end t = oo is reached by continuity. Returns the
    expression, tidied.
    """
    given = expression
    slack = {symbol: sp.Dummy(f"t_{symbol}", nonnegative=True) for symbol in ranges}
    for symbol, (low, high) in ranges.items():
        t = slack[symbol]
        expression = expression.subs(symbol, low + t if high is sp.oo else (low + high * t) / (1 + t))
    top, bottom = sp.fraction(sp.cancel(sp.together(expression)))
    signs = [[bool(c >= 0) for c in sp.Poly(part, *slack.values()).coeffs()] for part in (top, bottom)]
    flipped = [[bool(c <= 0) for c in sp.Poly(part, *slack.values()).coeffs()] for part in (top, bottom)]
    if all(map(all, signs)) or all(map(all, flipped)):
        return tidy(given)
    raise DerivationError(f"cannot show that {given} >= 0: the numerator is {sp.expand(top)}")


def require_zero(expression: Any, step: str) -> Any:
    """Return 0 if sympy simplifies `expression` to it, else raise DerivationError naming `step`."""
    if sp.simplify(expression) != 0:
        raise DerivationError(f"{step}: {expression} is not zero")
    return sp.S.Zero


def tidy(expression: Any) -> Any:
    """The same rational expression, factored, with a denominator whose factors are positive and ordered by l."""
    top, bottom = sp.fraction(sp.factor(expression))
    parts = []
    for part in sp.Mul.make_args(bottom):
        flip = part.subs({symbol: _INSIDE.get(symbol, 2) for symbol in part.free_symbols}) < 0
        top = -top if flip else top
        parts.append(sp.collect(sp.expand(-part) if flip else part, ell))
    return sp.factor(top) / sp.Mul(*parts)


def exact(value: Fraction) -> Any:
    """A Fraction as a sympy Rational."""
    return sp.Rational(value.numerator, value.denominator)


def _escape(text: str) -> str:
    for char in "&%#_":
        text = text.replace(char, "\\" + char)
    return text.replace(">=", r"$\ge$").replace("<=", r"$\le$").replace("->", r"$\to$")


# What no AllReduce can beat: cut, traffic, partition, and the closed form on one non-blocking fabric


FLUID = "fluid limit: no latency, no cost per message"
OPERATION = (
    "sums in a finite abelian group, by any protocol, coded or not; other operations if transfers forward and combine"
)
CONTENTS = "messages inform by their contents, not by their timing; switches neither add nor copy"
ANY_PROTOCOL = (OPERATION, CONTENTS)
FULL_DUPLEX = "ports are full duplex and have fixed rates"
NON_BLOCKING = "the fabric between the ports does not block"


def least_time(demand: Any, rate: Any) -> Any:
    """Seconds after which ports of `rate` B/s in all can have passed `demand` bytes: solves rate T = demand."""
    (solution,) = sp.solve(sp.Eq(rate * T, demand), T)
    return solution


def transfers_per_element(ranks: Any) -> Any:
    """How often an element must be transferred in all: once per rank but one to be complete anywhere, and again."""
    return sp.factor((ranks - 1) + (ranks - 1))


def star_terms(least_out: Any, least_in: Any, all_out: Any, all_in: Any, ranks: Any = P) -> list[Any]:
    """The four bounds on one fabric, seconds: both cuts of the weakest rank, both traffic sums."""
    work = transfers_per_element(ranks) * n
    return [least_time(n, least_out), least_time(n, least_in), least_time(work, all_out), least_time(work, all_in)]


def cut() -> Result:
    """T >= n / B_i for every rank, out and in."""
    return Result(
        id="cut",
        statement="Every rank's contribution must leave it, and the result must enter it.",
        assumptions=("P >= 2", "contributions are independent and incompressible", FULL_DUPLEX),
        proof_id="cut",
        left=T,
        relation=">=",
        expression=least_time(n, B_i),
        steps=(
            Step("Bytes that must pass the out port of rank i, and likewise its in port", n),
            Step("Bytes the port can pass in T seconds", B_i * T),
            Step("Solve for the least T", least_time(n, B_i)),
        ),
    )


def traffic() -> Result:
    """T >= 2(P-1) n / sum of the rates, out and in."""
    work = transfers_per_element(P)
    return Result(
        id="traffic",
        statement="Every element needs 2(P-1) transfers, and no protocol sends less.",
        assumptions=("P >= 2", *ANY_PROTOCOL, FULL_DUPLEX),
        proof_id="traffic",
        left=T,
        relation=">=",
        expression=least_time(work * n, sum_out),
        steps=(
            Step("Until the first rank holds the finished element every other rank has sent at least once", P - 1),
            Step("From then on every other rank must still receive at least once", P - 1),
            Step("Transfers per element, each of which uses one out port and one in port", work),
            Step("Bytes that all out ports together must pass; coding saves nothing (proof id coding)", work * n),
            Step("Solve for the least T; the same holds for the in ports", least_time(work * n, sum_out)),
        ),
    )


def partition() -> Result:
    """T >= 2(q-1) n / C for every partition; on one fabric cut and traffic are its strongest cases."""
    bound = least_time(transfers_per_element(q) * n, C)
    blocks = prove_nonnegative(bound.subs({q: P, C: sum_out}) - bound.subs(C, sum_out), {P: (q, sp.oo), q: (2, sp.oo)})
    hub = prove_nonnegative(n / B_min - bound.subs(C, 2 * B_rest), {B_rest: ((q - 1) * B_min, sp.oo), q: (2, sp.oo)})
    return Result(
        id="partition",
        statement="Merge the ranks into q blocks: what passes between them is an AllReduce over q ranks.",
        assumptions=("2 <= q <= P", *ANY_PROTOCOL, FULL_DUPLEX),
        proof_id="partition",
        left=T,
        relation=">=",
        expression=bound,
        steps=(
            Step("Transfers per element between blocks", transfers_per_element(q)),
            Step("Solve for the least T", bound),
            Step("One rank of rate B_i each way against the rest: the cut bound", bound.subs({q: 2, C: 2 * B_i})),
            Step("All singletons on one fabric: the traffic bound", bound.subs({q: P, C: sum_out})),
            Step("On one fabric at most the sum of the rates crosses, and then singletons lead q blocks by", blocks),
            Step(
                "If the ranks outside the largest block have less, B_rest, then 2 B_rest crosses; as B_rest >= "
                "(q-1) B_min, the weakest rank's cut leads by",
                hub,
            ),
        ),
    )


def closed_form() -> Result:
    """T* on one non-blocking fabric, for any rates: the largest of two cuts and two sums."""
    terms = star_terms(min_out, min_in, sum_out, sum_in)
    symmetric = star_terms(min_out, min_out, sum_out, sum_out)
    return Result(
        id="closed-form",
        statement="No AllReduce on one non-blocking fabric is faster, and some schedule is as fast.",
        assumptions=("P >= 2", NON_BLOCKING, *ANY_PROTOCOL, FULL_DUPLEX, FLUID),
        proof_id="attained",
        left=T,
        relation=">=",
        expression=sp.Max(*terms),
        steps=(
            Step("Cut: the weakest rank's own bytes out", terms[0]),
            Step("Cut: the result into the weakest rank", terms[1]),
            Step("Traffic out of all ranks", terms[2]),
            Step("Traffic into all ranks", terms[3]),
            Step("Where each rank's rates out and in are equal, nested rings take no longer", sp.Max(*symmetric)),
        ),
    )


def three_ranks() -> Result:
    """The partition bound of three ranks with symmetric link capacities, written out."""
    links = {frozenset((1, 2)): c12, frozenset((1, 3)): c13, frozenset((2, 3)): c23}
    pairs = [2 * sum(c for pair, c in links.items() if rank in pair) for rank in (1, 2, 3)]
    bounds = [least_time(transfers_per_element(sp.Integer(2)) * n, capacity) for capacity in pairs]
    bounds.append(least_time(transfers_per_element(sp.Integer(3)) * n, 2 * sum(links.values())))
    return Result(
        id="bidirected-three",
        statement="Three ranks joined by links of equal capacity both ways: the best partition bound is the optimum.",
        assumptions=("each link carries its capacity in both directions", *ANY_PROTOCOL, FLUID),
        proof_id="bidirected",
        left=T,
        relation="=",
        expression=sp.Max(*map(sp.cancel, bounds)),
        steps=(
            *(Step(f"Partition {{{rank}}} | rest", bounds[rank - 1]) for rank in (1, 2, 3)),
            Step("Partition into three singletons", sp.cancel(bounds[3])),
        ),
    )


# Equal stragglers of rate B/l, l >= 1, among ranks of rate B, out and in: T*/T0, its switch point and its limits


STRAGGLERS = ("P >= 3", "l >= 1", "rates are equal out and in", NON_BLOCKING, *ANY_PROTOCOL, FLUID)


@cache  # these terms are what every derivation about stragglers begins with
def fault_free() -> Any:
    """T0 in seconds: P ranks of rate B. The traffic term, which is at least the cut term for P >= 2."""
    cut, _, traffic, _ = star_terms(B, B, P * B, P * B)
    prove_nonnegative(traffic - cut, {P: (2, sp.oo)})
    return traffic


def straggler_terms(count: Any) -> tuple[Any, Any]:
    """(cut, traffic), seconds, of `count` stragglers at B/l among P ranks."""
    rates = (P - count) * B + count * B / ell
    cut, _, traffic, _ = star_terms(B / ell, B / ell, rates, rates)
    return cut, traffic


@cache
def ratio_terms(count: Any = sp.S.One) -> tuple[Any, Any]:
    """(cut, traffic) over T0: pure numbers in P and l; the larger is T*/T0."""
    cut, traffic = straggler_terms(count)
    return tidy(cut / fault_free()), tidy(traffic / fault_free())


@cache
def switch_point(count: Any = sp.S.One) -> Any:
    """The slowdown at which cut and traffic are equal; above it the stragglers' own links decide."""
    cut, traffic = ratio_terms(count)
    (point,) = sp.solve(sp.Eq(cut, traffic), ell)
    return tidy(point)


def single_straggler() -> Result:
    """T*/T0 with one straggler."""
    cut, traffic = straggler_terms(sp.S.One)
    least = fault_free()
    return Result(
        id="single-straggler",
        statement="One rank at 1/l of the others' rate: the least time over the fault-free one.",
        assumptions=STRAGGLERS,
        proof_id="single-straggler",
        left=T / T0,
        relation="=",
        expression=sp.Max(*ratio_terms()),
        steps=(
            Step("Fault-free: P B in all, and the traffic term is the larger", least),
            Step("Straggler's cut", cut),
            Step("Traffic: the rates sum to (P-1) B + B/l", tidy(traffic)),
            Step("Divide both by T0 and cancel", sp.Tuple(*ratio_terms())),
        ),
    )


def single_switch() -> Result:
    """l_c, where the single straggler's own link becomes the bottleneck."""
    cut, traffic = ratio_terms()
    point = switch_point()
    below = prove_nonnegative(traffic - cut, {ell: (1, point), P: (3, sp.oo)})
    above = prove_nonnegative(cut - traffic, {ell: (point, sp.oo), P: (3, sp.oo)})
    return Result(
        id="single-straggler-switch",
        statement="Below l_c the sum of all rates decides, above it the straggler's link.",
        assumptions=STRAGGLERS,
        proof_id="single-straggler",
        left=ell_c,
        relation="=",
        expression=point,
        steps=(
            Step("Cut and traffic over T0", sp.Tuple(cut, traffic)),
            Step("Solve cut = traffic for l", point),
            Step("It lies below 2 by", sp.factor(2 - point)),
            Step("For 1 <= l <= l_c traffic is the larger, by", below),
            Step("For l >= l_c the cut is the larger, by", above),
        ),
    )


def several_stragglers() -> Result:
    """T*/T0 with s equal stragglers."""
    cut, traffic = ratio_terms(s)
    return Result(
        id="several-stragglers",
        statement="s ranks at 1/l of the others' rate: the least time over the fault-free one.",
        assumptions=("1 <= s <= P", *STRAGGLERS),
        proof_id="nested-rings",
        left=T / T0,
        relation="=",
        expression=sp.Max(cut, traffic),
        steps=(
            Step("Cut of a straggler and traffic, seconds", sp.Tuple(*map(tidy, straggler_terms(s)))),
            Step("Divide both by T0 and cancel", sp.Tuple(cut, traffic)),
            Step("One straggler again", sp.Max(*(tidy(t.subs(s, 1)) for t in (cut, traffic)))),
            Step("All stragglers: every rate falls alike", sp.Max(*(sp.cancel(t.subs(s, P)) for t in (cut, traffic)))),
        ),
    )


def several_switch() -> Result:
    """The slowdown at which s equal stragglers' own links become the bottleneck."""
    cut, traffic = ratio_terms(s)
    point = switch_point(s)
    box = {P: (s + 1, sp.oo), s: (1, sp.oo)}
    below = prove_nonnegative(traffic - cut, {ell: (1, point)} | box)
    above = prove_nonnegative(cut - traffic, {ell: (point, sp.oo)} | box)
    return Result(
        id="several-stragglers-switch",
        statement="s equal stragglers: below this slowdown the sum of all rates decides, above it their links.",
        assumptions=("1 <= s <= P-1", *STRAGGLERS),
        proof_id="nested-rings",
        left=ell_c,
        relation="=",
        expression=point,
        steps=(
            Step("Cut and traffic over T0", sp.Tuple(cut, traffic)),
            Step("Solve cut = traffic for l", point),
            Step("With s >= 2 it exceeds 2 by", prove_nonnegative(point - 2, {P: (s + 1, sp.oo), s: (2, sp.oo)})),
            Step("For 1 <= l <= l_c traffic is the larger, by", below),
            Step("For l >= l_c the cut is the larger, by", above),
        ),
    )


def limits() -> list[Result]:
    """T*/T0 of one straggler for many ranks, for a mild failure, and for a hard one."""
    cut, traffic = ratio_terms()
    many = sp.Max(sp.limit(cut, P, sp.oo), sp.limit(traffic, P, sp.oo))
    mild = sp.limit(traffic, ell, 1)
    hard = sp.limit(cut / ell, ell, sp.oo)
    return [
        Result(
            id="limit-many-ranks",
            statement="Many ranks: one straggler costs nothing up to l = 2, and l/2 beyond.",
            assumptions=STRAGGLERS,
            proof_id="single-straggler",
            left=sp.Limit(T / T0, P, sp.oo, "-"),
            relation="=",
            expression=many,
            steps=(
                Step("Limits of cut and traffic over T0", sp.Tuple(*(sp.limit(t, P, sp.oo) for t in (cut, traffic)))),
                Step("Limit of the switch point", sp.limit(switch_point(), P, sp.oo)),
            ),
        ),
        Result(
            id="limit-mild",
            statement="A failure that takes nothing costs nothing.",
            assumptions=STRAGGLERS,
            proof_id="single-straggler",
            left=sp.Limit(T / T0, ell, 1, "+"),
            relation="=",
            expression=mild,
            steps=(
                Step("l = 1 lies below the switch point, by", prove_nonnegative(switch_point() - 1, {P: (3, sp.oo)})),
                Step("Slope of T*/T0 in l there", sp.factor(sp.diff(traffic, ell).subs(ell, 1))),
            ),
        ),
        Result(
            id="limit-hard",
            statement="A hard failure costs in proportion to l.",
            assumptions=STRAGGLERS,
            proof_id="single-straggler",
            left=sp.Limit(T / T0 / ell, ell, sp.oo, "-"),
            relation="=",
            expression=hard,
            steps=(
                Step("Above the switch point T*/T0 is the cut", cut),
                Step(
                    "Times the fault-free time, that is the straggler's n bytes at B/l", sp.cancel(cut * fault_free())
                ),
            ),
        ),
    ]


# The O(1/p) statement with its constants: what one straggler costs beyond the fault-free optimum, T*/T0 - 1
#
# Up to l_c it is an expansion in 1/P whose remainder is bounded by the sign of a rational function; above l_c, exact.


MILD = ("1 <= l <= l_c = (2P-3)/(P-1)", *STRAGGLERS)


@cache
def overhead_below() -> Any:
    """T*/T0 - 1 for l <= l_c: the traffic term's."""
    return tidy(ratio_terms()[1] - 1)


def overhead_above() -> Any:
    """T*/T0 - 1 for l >= l_c: the cut term's."""
    return tidy(ratio_terms()[0] - 1)


@cache
def leading_term() -> Any:
    """The coefficient of 1/P in the overhead below l_c, over P: lim P (T*/T0 - 1), over P."""
    return sp.limit(P * overhead_below(), P, sp.oo) / P


def remainder() -> tuple[Any, Any]:
    """(remainder after the 1/P term, upper bound on it), for l <= l_c."""
    rest = tidy(overhead_below() - leading_term())
    return rest, leading_term() ** 2 * P / (P - 1)


def one_over_p() -> Result:
    """Overhead <= (1-1/l)/P + (1-1/l)^2 / (P(P-1)) for l <= l_c."""
    overhead, first, (rest, bound) = overhead_below(), leading_term(), remainder()
    box = {ell: (1, switch_point()), P: (3, sp.oo)}
    return Result(
        id="one-over-p",
        statement="A mild straggler costs (1-1/l)/P, and at most (1-1/l)^2 / (P(P-1)) more.",
        assumptions=MILD,
        proof_id="one-over-p",
        left=T / T0 - 1,
        relation="<=",
        expression=first + bound,
        steps=(
            Step("Traffic term over T0, minus 1", overhead),
            Step("Its limit times P, over P: the leading term", first),
            Step("Remainder, exactly", rest),
            Step("The remainder is not negative", prove_nonnegative(rest, box)),
            Step("The bound leads it by", prove_nonnegative(bound - rest, box)),
        ),
    )


def one_over_p_order() -> Result:
    """Lower side of the same: the leading term is never too large, so that the overhead is of order 1/P exactly."""
    box = {ell: (1, switch_point()), P: (3, sp.oo)}
    return Result(
        id="one-over-p-lower",
        statement="A mild straggler costs at least (1-1/l)/P: the order 1/P cannot be improved.",
        assumptions=MILD,
        proof_id="one-over-p",
        left=T / T0 - 1,
        relation=">=",
        expression=leading_term(),
        steps=(
            Step("Overhead", overhead_below()),
            Step("It leads the leading term by", prove_nonnegative(overhead_below() - leading_term(), box)),
        ),
    )


def half_rate() -> Result:
    """At l = 2 the overhead is 1/(P-1), and no milder failure costs more."""
    cut, traffic = overhead_above(), overhead_below()
    value = tidy(cut.subs(ell, 2))
    mild = prove_nonnegative(sp.diff(traffic, ell), {ell: (1, sp.oo), P: (3, sp.oo)})
    return Result(
        id="half-rate",
        statement="A straggler that keeps half its rate costs exactly 1/(P-1); one that keeps more costs no more.",
        assumptions=("l = 2", *STRAGGLERS),
        proof_id="one-over-p",
        left=T / T0 - 1,
        relation="=",
        expression=value,
        steps=(
            Step("l = 2 lies above the switch point, by", tidy(2 - switch_point())),
            Step("There the overhead is", cut),
            Step("At l = 2", value),
            Step("Below the switch point it grows with l, at the rate", mild),
            Step("Above, at the rate", sp.diff(cut, ell)),
        ),
    )


def hard_failure() -> Result:
    """For l >= l_c: l/2 - 1 + l/(2(P-1)) exactly, linear in l."""
    overhead = overhead_above()
    limit = sp.limit(overhead, P, sp.oo)
    rest = tidy(overhead - limit)
    require_zero(sp.diff(overhead, ell, 2), "linear in l")
    return Result(
        id="hard-failure",
        statement="Above the switch point the overhead is linear in l: l/2 - 1 and a correction of order 1/P.",
        assumptions=("l >= l_c = (2P-3)/(P-1)", *STRAGGLERS),
        proof_id="one-over-p",
        left=T / T0 - 1,
        relation="=",
        expression=limit + rest,
        steps=(
            Step("Cut term over T0, minus 1", overhead),
            Step("Its limit for many ranks, positive beyond l = 2", limit),
            Step("What is left, exactly", rest),
            Step("Second derivative in l", sp.diff(overhead, ell, 2)),
        ),
    )


# Nested rings: the closed-form shares meet every rank's load exactly. L_i: bytes that the i-th weakest rank sends per
# byte of data; pattern m: a ring of the m strongest ranks.


RINGS = (
    "P >= 3",
    "ranks sorted by rate, L(1) <= ... <= L(P), L(1) >= 1, and the loads sum to 2(P-1)",
    "L(0) stands for 1, the load of a leaf",
    "pattern m is a ring of the m strongest ranks, the others send and receive each byte once",
)


def share(ring: Any, ranks: Any = P, load: Any = L) -> Any:
    """x_m: the share of the data in pattern `ring`, from the jump of the load at the ring's weakest rank."""
    return (load(ranks - ring + 1) - load(ranks - ring)) * ring / (ranks - 2)


def member_load(ring: Any, ranks: Any = P) -> Any:
    """Bytes a ring rank sends per byte of the pattern's data: what the leaves leave of 2(P-1), equally."""
    return (transfers_per_element(ranks) - (ranks - ring)) / ring


def finite_shares(ranks: int) -> tuple[list[Any], list[Any]]:
    """(loads L_1..L_P, shares x_1..x_P) with free symbols L_1..L_{P-1}; L_P takes the rest of 2(P-1)."""
    loads = list(sp.symbols(f"L_1:{ranks}", positive=True))
    loads.append(transfers_per_element(ranks) - sum(loads))
    padded = [sp.S.One, *loads]
    return loads, [share(ring, ranks, padded.__getitem__) for ring in range(1, ranks + 1)]


def check_finite(ranks: int) -> list[Any]:
    """The shares of `ranks` ranks; DerivationError unless they sum to 1 and give every rank its load."""
    loads, shares = finite_shares(ranks)
    require_zero(sum(shares) - 1, f"shares of {ranks} ranks sum to 1")
    for place, load in enumerate(loads, 1):
        sent = sum(x * (member_load(ring, ranks) if place > ranks - ring else 1) for ring, x in enumerate(shares, 1))
        require_zero(sp.expand(sent - load), f"load of rank {place} of {ranks}")
    return [sp.factor(x) for x in shares]


def nested_rings() -> Result:
    """x_m, and why the shares meet every load: two telescoping sums."""
    excess = sp.cancel(member_load(m) - 1)
    jump = share(P - j + 1) * excess.subs(m, P - j + 1)
    sent = 1 + sp.Sum(sp.cancel(jump), (j, 1, i)).doit().subs(L(0), 1)
    require_zero(sent - L(i), "load of the i-th weakest rank")
    step = sp.Sum(L(j) - L(j - 1), (j, 1, P + 1)).doit().subs(L(0), 1)
    total = sp.cancel((transfers_per_element(P) - P) / (P - 2))
    require_zero(total - 1, "shares sum to 1")
    return Result(
        id="nested-ring-shares",
        statement="The share of each ring size, in closed form: every rank's load is met exactly.",
        assumptions=RINGS,
        proof_id="nested-rings",
        left=x_m,
        relation="=",
        expression=share(m),
        steps=(
            Step(
                "Load of a ring rank in pattern m: 2(P-1) less the leaves' sends, over m",
                sp.factor(member_load(m)),
            ),
            Step("More than a leaf's by", excess),
            Step("Rank i is in the rings m >= P-i+1; with j = P-m+1 each adds to its load of 1", sp.cancel(jump)),
            Step("Summed over j = 1..i this telescopes, and the rank sends", sent),
            Step("(P-2) sum x_m is a sum over j of (P-j+1)(L(j) - L(j-1)); one more rank adds to it", step),
            Step("so that by induction it is sum L - P, and the shares sum to", total),
            *(Step(f"P = {ranks}: shares checked for free loads", sp.Tuple(*check_finite(ranks))) for ranks in (3, 4)),
        ),
    )


def two_patterns() -> Result:
    """One straggler: the shares of the rings with and without it, from the general formula."""
    strong = (transfers_per_element(P) - L_1) / (P - 1)
    without = sp.cancel((strong - L_1) * (P - 1) / (P - 2))
    full = sp.cancel((L_1 - 1) * P / (P - 2))
    require_zero(without + full - 1, "two shares sum to 1")
    traffic = ratio_terms()[1]
    load = sp.cancel(traffic * transfers_per_element(P) / (P * ell))
    return Result(
        id="two-patterns",
        statement="One straggler, l <= l_c: the share of the ring that leaves it out.",
        assumptions=("1 <= l <= l_c = (2P-3)/(P-1)", *RINGS),
        proof_id="nested-rings",
        left=x_without,
        relation="=",
        expression=tidy(without.subs(L_1, load)),
        steps=(
            Step("Straggler's load B T*/(l n)", tidy(load)),
            Step("Healthy ranks share the rest of 2(P-1)", strong),
            Step("Share of the ring of P-1", tidy(without)),
            Step("Share of the ring of P", tidy(full)),
            Step("The ring of P gets", tidy(full.subs(L_1, load))),
        ),
    )


# What other schemes take when one rank of P keeps the share 1-X of its rate, as multiples of the fault-free optimum


ONE_LOST = ("P >= 3", "0 <= X < 1", "one rank keeps 1-X of its rate, out and in", NON_BLOCKING, FLUID)
_FAILURES = {X: (0, 1), P: (3, sp.oo)}


def ring_time(data: Any, rate: Any, ranks: Any = P) -> Any:
    """Seconds of a plain ring AllReduce of `data` bytes at `rate` B/s per rank (Patarasuk and Yuan, 2009)."""
    return least_time(transfers_per_element(ranks) * data / ranks, rate)


@cache
def optimum_terms() -> tuple[Any, Any]:
    """(cut, traffic) over T0 in P and X, with l = 1/(1-X)."""
    cut, traffic = (tidy(term.subs(ell, 1 / (1 - X))) for term in ratio_terms())
    return cut, traffic


def optimum() -> Result:
    """The optimum in terms of the lost share."""
    return Result(
        id="optimum-lost-share",
        statement="The least time when one rank has lost the share X of its rate.",
        assumptions=ONE_LOST,
        proof_id="single-straggler",
        left=T / T0,
        relation="=",
        expression=sp.Max(*optimum_terms()),
        steps=(
            Step("What is left in terms of l", sp.Eq(1 / ell, 1 - X)),
            Step("Cut and traffic over T0", sp.Tuple(*optimum_terms())),
        ),
    )


def _against_optimum(ratio: Any) -> tuple[Step, ...]:
    cut, traffic = optimum_terms()
    return (
        Step("It exceeds the optimum's cut term by", prove_nonnegative(ratio - cut, _FAILURES)),
        Step("and its traffic term by", prove_nonnegative(ratio - traffic, _FAILURES)),
    )


def balance() -> Result:
    """One ring over all ranks, the degraded rank's traffic spread over its live NICs."""
    time = ring_time(n, (1 - X) * B)
    ratio = tidy(time / fault_free())
    return Result(
        id="balance",
        statement="Balance: the plain ring at the degraded rank's pace.",
        assumptions=ONE_LOST,
        proof_id="rivals",
        left=T / T0,
        relation="=",
        expression=ratio,
        steps=(
            Step("Ring at rate (1-X) B", tidy(time)),
            Step("Over T0", ratio),
            *_against_optimum(ratio),
        ),
    )


def hot_repair() -> Result:
    """The lost NIC's traffic moves to one other NIC, which then carries two shares."""
    time = ring_time(2 * n / N, B / N)
    ratio = tidy(time / fault_free())
    return Result(
        id="hot-repair",
        statement="Hot repair alone: one backup NIC carries its own share and the lost one's.",
        assumptions=("one of N >= 2 equal NICs of a rank is lost, X = 1/N", *ONE_LOST),
        proof_id="rivals",
        left=T / T0,
        relation="=",
        expression=ratio,
        steps=(
            Step("Bytes of the buffer that pass through the backup NIC's ring", 2 * n / N),
            Step("Ring at one NIC's rate B/N", time),
            Step("Over T0", ratio),
            Step(
                "The optimum never exceeds it: for X <= 1/2 its cut is less by",
                prove_nonnegative(ratio - optimum_terms()[0], {X: (0, sp.Rational(1, 2)), P: (3, sp.oo)}),
            ),
            Step("and its traffic term by", prove_nonnegative(ratio - optimum_terms()[1], _FAILURES)),
        ),
    )


def r2cc() -> Result:
    """R2CC-AllReduce: a ring over all for 1-Y of the data beside a healthy ring for Y, then Y over the weak link."""
    all_ring = ring_time((1 - Y) * n, (1 - X) * B)
    healthy = ring_time(Y * n, X * B, P - 1)
    hidden = prove_nonnegative(sp.cancel((all_ring - healthy).subs(Y, X) / (n / B)), {P: (3, sp.oo)})
    second = least_time(Y * n * (1 + 1 / K), (1 - X) * B).subs(Y, X)
    ratio = 1 + tidy(second / fault_free())
    return Result(
        id="r2cc-allreduce",
        statement="R2CC-AllReduce with Y = X and K chunks in its second stage.",
        assumptions=("stage 2 sends Y n bytes over the degraded rank's link as a pipeline of K chunks", *ONE_LOST),
        proof_id="rivals",
        left=T / T0,
        relation="=",
        expression=ratio,
        steps=(
            Step("Stage 1, ring over all ranks with 1-Y of the data at (1-X) B", tidy(all_ring)),
            Step("Stage 1 beside it, ring of the healthy ranks with Y of the data at X B", healthy),
            Step("With Y = X stage 1 takes T0", tidy(all_ring.subs(Y, X))),
            Step("and the healthy ring is hidden: its lead, times n/B, is", hidden),
            Step("Stage 2: Y n bytes and one chunk more over the weak link", tidy(second)),
            Step("Over T0", ratio),
            *_against_optimum(sp.limit(ratio, K, sp.oo)),
        ),
    )


def rivals() -> tuple[Result, ...]:
    """The optimum and its rivals."""
    return optimum(), r2cc(), balance(), hot_repair()


# What finite pipelines cost: equal segments, and how many to take; the count is real where it is optimised


def k_segments() -> Result:
    """(k+1)/k of the bound with k equal segments, each of which crosses the straggler's link in two slots."""
    slot = T_opt / k
    back = j + 1
    end = back.subs(j, k)
    return Result(
        id="k-segments",
        statement="k equal segments: one slot more than the k that the straggler's link works.",
        assumptions=(
            "the straggler's link is the bottleneck (l >= l_c)",
            "a segment fills the link out of the straggler in one slot and the link into it in the next",
            "the other ranks' work is hidden in these slots; no latency, no cost per message",
        ),
        proof_id="k-segments",
        left=T / T_opt,
        relation="=",
        expression=sp.expand(sp.cancel(end * slot / T_opt)),
        steps=(
            Step("A slot: one segment at the bottleneck", slot),
            Step("Segment j leaves the straggler in slot", j),
            Step("and comes back in slot", back),
            Step("The last one ends with slot", end),
            Step("Seconds in all", sp.factor(end * slot)),
        ),
    )


def segment_count() -> Result:
    """T(k) = T*(1 + a/k) + h alpha + b o k and its least value, with the certificate that it is the least."""
    time = T_opt * (1 + a / k) + h * alpha + b * o * k
    (best,) = sp.solve(sp.diff(time, k), k)
    least = sp.simplify(time.subs(k, best))
    square = (sp.sqrt(T_opt * a / k) - sp.sqrt(b * o * k)) ** 2
    require_zero(sp.expand(time - least - sp.expand(square)), "the lead is a square")
    return Result(
        id="segment-count",
        statement="How many equal segments: filling the pipeline against the cost per chunk.",
        assumptions=(
            "fill and drain add a segment times",
            "each segment costs b chunks of fixed cost o at the busiest port",
        ),
        proof_id="k-segments",
        left=k_opt,
        relation="=",
        expression=best,
        steps=(
            Step("T(k), a posynomial in k: convex in log k", time),
            Step("Derivative", sp.diff(time, k)),
            Step("Its zero", best),
            Step("T(k_opt)", least),
            Step("T(k) leads it by a square (Boyd et al., A tutorial on geometric programming, 2007)", square),
        ),
    )


# Allgather, reduce-scatter, broadcast and reduce
#
# n is the full vector: an allgather's result, a reduce-scatter's input, a broadcast's or reduce's buffer. Shards are
# n/P, equal. Turning every transfer around turns allgather into reduce-scatter and broadcast into reduce, so each bound
# is its partner's with out and in exchanged. All count what must leave or enter a rank, so that they hold for schedules
# that code across elements too.


_FABRIC = ("P >= 2", "contributions are independent and incompressible", NON_BLOCKING, FULL_DUPLEX, FLUID)
_REVERSED = {
    min_out: min_in,
    min_in: min_out,
    sum_out: sum_in,
    sum_in: sum_out,
    root_out: root_in,
    root_in: root_out,
    others_out: others_in,
    others_in: others_out,
}


def reverse(expression: Any) -> Any:
    """The same expression with out and in exchanged."""
    return expression.subs(_REVERSED, simultaneous=True)


def allgather_terms() -> dict[str, Any]:
    """Bounds on allgather in seconds, by reason."""
    return {
        "Every rank must receive the P-1 shards that it does not own": least_time((P - 1) * n / P, min_in),
        "Every rank's own shard must leave it": least_time(n / P, min_out),
        "Each of n bytes must be received by P-1 ranks, and each reception is somebody's send": least_time(
            (P - 1) * n, sum_out
        ),
    }


def reduce_scatter_terms() -> dict[str, Any]:
    """Bounds on reduce-scatter in seconds, by reason: allgather's, reversed."""
    reasons = (
        "Every rank's contribution to the P-1 shards of others must leave it",
        "The others' part of every rank's own shard must enter it",
        "Each of n bytes must be sent by the P-1 ranks that do not own it, and each send is somebody's reception",
    )
    return dict(zip(reasons, map(reverse, allgather_terms().values()), strict=True))


def broadcast_terms() -> dict[str, Any]:
    """Bounds on broadcast in seconds, by reason."""
    return {
        "The buffer must leave the root": least_time(n, root_out),
        "The buffer must enter every other rank": least_time(n, others_in),
        "Each of n bytes must be received by P-1 ranks, and each reception is somebody's send": least_time(
            (P - 1) * n, sum_out
        ),
    }


def reduce_terms() -> dict[str, Any]:
    """Bounds on reduce to one root in seconds, by reason: broadcast's, reversed."""
    reasons = (
        "The others' contributions must enter the root",
        "Every other rank's contribution must leave it",
        "Each of n bytes must be sent by the P-1 ranks that are not the root, and each send is somebody's reception",
    )
    return dict(zip(reasons, map(reverse, broadcast_terms().values()), strict=True))


def _result(name: str, terms: dict[str, Any]) -> Result:
    return Result(
        id=f"{name}-bound",
        statement=f"No {name} on one non-blocking fabric is faster.",
        assumptions=_FABRIC,
        proof_id="collectives",
        left=T,
        relation=">=",
        expression=sp.Max(*terms.values()),
        steps=tuple(Step(reason, term) for reason, term in terms.items()),
    )


def two_phases() -> Result:
    """Reduce-scatter then allgather with equal shards: what that habit costs with one straggler."""
    rate = B / ell
    rates = {min_out: rate, min_in: rate, sum_out: (P - 1) * B + rate, sum_in: (P - 1) * B + rate}
    phase = [term.subs(rates) for term in allgather_terms().values()]
    slowest = phase[0]
    box = {ell: (1, sp.oo), P: (3, sp.oo)}
    for other in phase[1:]:
        prove_nonnegative((slowest - other) * B / n, box)
    ratio = sp.cancel(2 * slowest / fault_free())
    cut, traffic = ratio_terms()
    return Result(
        id="equal-shards",
        statement="Reduce-scatter, then allgather, with equal shards cannot do better than l T0 with one straggler.",
        assumptions=("P >= 3", "l >= 1", "shards are equal and the two phases do not overlap", *_FABRIC[2:]),
        proof_id="collectives",
        left=T / T0,
        relation=">=",
        expression=ratio,
        steps=(
            Step("Either phase: the straggler passes P-1 shards at B/l, the largest of the three bounds", slowest),
            Step("Twice that over T0", ratio),
            Step("AllReduce's own bound is lower: its cut term by", prove_nonnegative(tidy(ratio - cut), box)),
            Step("and its traffic term by", prove_nonnegative(tidy(ratio - traffic), box)),
        ),
    )


# Everything, and the bound of one cluster as a formula


@cache
def results() -> tuple[Result, ...]:
    """Every derivation, in reading order. Takes seconds the first time: each is derived, none is stored."""
    return (
        *(cut(), traffic(), partition(), closed_form(), three_ranks()),
        *(single_straggler(), single_switch(), several_stragglers(), several_switch(), *limits()),
        *(one_over_p(), one_over_p_order(), half_rate(), hard_failure()),
        *(nested_rings(), two_patterns()),
        *rivals(),
        *(k_segments(), segment_count()),
        _result("allgather", allgather_terms()),
        _result("reduce-scatter", reduce_scatter_terms()),
        _result("broadcast", broadcast_terms()),
        _result("reduce", reduce_terms()),
        two_phases(),
    )


def symbolic_bound(cluster: Cluster) -> Result:
    """The bound of `cluster` as a formula in n (bytes) and B (bytes/s), B the commonest rate of a healthy rank.

    `unit_rate(cluster)` is the number that B stands for; with it and n in place the formula equals lower_bound's
    seconds exactly. Raises InfeasibleError when a rank has no live NIC one way.
    """
    ranks, unit = cluster.ranks, unit_rate(cluster)
    terms, healthy = _terms(cluster, unit), _largest(_terms(cluster.fault_free, unit))
    worst = _largest(terms)
    proof_id = "traffic" if worst in terms[2:] else "cut"
    weak_out, weak_in = min(ranks, key=lambda r: r.out_rate), min(ranks, key=lambda r: r.in_rate)
    reasons = (
        f"Cut: what {weak_out.name} must send",
        f"Cut: what {weak_in.name} must receive",
        "Traffic that all ranks must send",
        "Traffic that all ranks must receive",
    )
    steps = [Step(reason, term) for reason, term in zip(reasons, terms, strict=True)]
    steps += [Step("The largest", worst), Step("Without failures", healthy)]
    if worst != 0:
        steps.append(Step("T/T_0", worst / healthy))
    return Result(
        id="bound",
        statement=f"AllReduce over {len(ranks)} ranks, B = {format_rate(unit)}.",
        assumptions=(NON_BLOCKING, FULL_DUPLEX, FLUID, *(ANY_PROTOCOL if proof_id == "traffic" else ())),
        proof_id=proof_id,
        left=T,
        relation=">=",
        expression=worst,
        steps=(*steps, *_one_straggler(ranks)),
    )


def unit_rate(cluster: Cluster) -> Fraction:
    """The rate that B stands for in `symbolic_bound`: the commonest rate out of a rank before any failure, bytes/s."""
    return Counter(rank.out_rate for rank in cluster.fault_free.ranks).most_common(1)[0][0]


def _terms(cluster: Cluster, unit: Fraction) -> list[Any]:
    """The four bounds, seconds, each a rational multiple of n/B; a single rank has nothing to pass."""
    if len(cluster.ranks) == 1:
        return [sp.S.Zero] * 4
    weakest_and_sum = []
    for way in ("out", "in"):
        rates = [rank.out_rate if way == "out" else rank.in_rate for rank in cluster.ranks]
        if not min(rates):
            raise InfeasibleError(
                "no AllReduce is possible",
                where=cluster.ranks[rates.index(Fraction(0))].name,
                expected=f"at least one live NIC {'out of' if way == 'out' else 'into'} every server",
                got="none",
            )
        weakest_and_sum.append((exact(min(rates) / unit) * B, exact(sum(rates, Fraction(0)) / unit) * B))
    (least_out, sum_out), (least_in, sum_in) = weakest_and_sum
    return star_terms(least_out, least_in, sum_out, sum_in, sp.Integer(len(cluster.ranks)))


def _one_straggler(ranks: tuple[Rank, ...]) -> tuple[Step, ...]:
    """Where exactly one rank is slower and all else is equal: its l and l_c."""
    weak, *others = sorted(ranks, key=lambda r: r.out_rate)
    rates = {r.out_rate for r in others} | {r.in_rate for r in others}
    if len(others) < 2 or len(rates) > 1 or weak.out_rate != weak.in_rate or weak.out_rate in rates:
        return ()
    slowdown, switch = exact(rates.pop() / weak.out_rate), switch_point().subs(P, len(ranks))
    return (Step(f"One straggler, {weak.name}: l and the switch point l_c", sp.Tuple(slowdown, switch)),)


def _largest(terms: list[Any]) -> Any:
    return max(terms, key=lambda term: term * B / n)
