"""Equal stragglers among healthy ranks, derived from the closed form: T*/T0, its switch point and its limits.

Rates are equal out and in. A straggler has rate B/l, l >= 1, the others B.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from optcc.theory.derivation import Result, Step, prove_nonnegative, tidy
from optcc.theory.derive_bounds import ANY_PROTOCOL, FLUID, NON_BLOCKING, star_terms
from optcc.theory.symbols import T0, B, P, T, ell, ell_c, s

ASSUMPTIONS = ("P >= 3", "l >= 1", "rates are equal out and in", NON_BLOCKING, *ANY_PROTOCOL, FLUID)


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
        assumptions=ASSUMPTIONS,
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
        assumptions=ASSUMPTIONS,
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
        assumptions=("1 <= s <= P", *ASSUMPTIONS),
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
        assumptions=("1 <= s <= P-1", *ASSUMPTIONS),
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
            assumptions=ASSUMPTIONS,
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
            assumptions=ASSUMPTIONS,
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
            assumptions=ASSUMPTIONS,
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


def results() -> list[Result]:
    """One straggler, several, and the limits."""
    return [single_straggler(), single_switch(), several_stragglers(), several_switch(), *limits()]
