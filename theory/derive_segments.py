"""What finite pipelines cost, derived: equal segments, and how many to take.

Units: seconds. The segment count is treated as real where it is optimised; `segments.py` rounds it.
"""

from __future__ import annotations

import sympy as sp

from optcc.theory.derivation import Result, Step, require_zero
from optcc.theory.symbols import T, T_opt, a, alpha, b, h, j, k, k_opt, o


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


def results() -> list[Result]:
    """Equal segments and their number."""
    return [k_segments(), segment_count()]
