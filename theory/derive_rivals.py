"""What other schemes take after the same failure, as multiples of the fault-free optimum, against the optimum.

One rank of P keeps the share 1-X of its rate. Each scheme is modelled here in the fluid limit from its description.
R2CC-AllReduce, Balance and hot repair are those of Wang et al., "Reliable and Resilient Collective Communication
Library for LLM Training and Serving" (arXiv:2512.25059).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from optcc.theory.derivation import Result, Step, prove_nonnegative, tidy
from optcc.theory.derive_bounds import FLUID, NON_BLOCKING, least_time, transfers_per_element
from optcc.theory.derive_straggler import fault_free, ratio_terms
from optcc.theory.symbols import T0, B, K, N, P, T, X, Y, ell, n

ASSUMPTIONS = ("P >= 3", "0 <= X < 1", "one rank keeps 1-X of its rate, out and in", NON_BLOCKING, FLUID)
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
        assumptions=ASSUMPTIONS,
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
        assumptions=ASSUMPTIONS,
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
        assumptions=("one of N >= 2 equal NICs of a rank is lost, X = 1/N", *ASSUMPTIONS),
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
        assumptions=("stage 2 sends Y n bytes over the degraded rank's link as a pipeline of K chunks", *ASSUMPTIONS),
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


def results() -> list[Result]:
    """The optimum and its rivals."""
    return [optimum(), r2cc(), balance(), hot_repair()]
