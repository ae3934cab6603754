"""The O(1/p) statement with its constants: what one straggler costs beyond the fault-free optimum, T*/T0 - 1.

Up to l_c the overhead is an expansion in 1/P whose remainder is bounded here by the sign of a rational function;
above l_c it is exact and needs no remainder.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from optcc.theory.derivation import Result, Step, prove_nonnegative, require_zero, tidy
from optcc.theory.derive_straggler import ASSUMPTIONS, ratio_terms, switch_point
from optcc.theory.symbols import T0, P, T, ell

MILD = ("1 <= l <= l_c = (2P-3)/(P-1)", *ASSUMPTIONS)


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
        assumptions=("l = 2", *ASSUMPTIONS),
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
        assumptions=("l >= l_c = (2P-3)/(P-1)", *ASSUMPTIONS),
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


def results() -> list[Result]:
    """Both sides of the O(1/p) statement, and where it ends."""
    return [one_over_p(), one_over_p_order(), half_rate(), hard_failure()]
