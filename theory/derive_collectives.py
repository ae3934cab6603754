"""The same two facts for allgather, reduce-scatter, broadcast and reduce on one non-blocking fabric.

n is the full vector in every case: an allgather's result, a reduce-scatter's input, a broadcast's or reduce's buffer.
Shards are n/P, equal. Turning every transfer around turns allgather into reduce-scatter and broadcast into reduce,
so each bound is its partner's with out and in exchanged. All count what must leave or enter a rank, so that they
hold for schedules that code across elements too.
"""

from __future__ import annotations

from typing import Any

import sympy as sp

from optcc.theory.derivation import Result, Step, prove_nonnegative, tidy
from optcc.theory.derive_bounds import FLUID, FULL_DUPLEX, NON_BLOCKING, least_time
from optcc.theory.derive_straggler import fault_free, ratio_terms
from optcc.theory.symbols import (
    T0,
    B,
    P,
    T,
    ell,
    min_in,
    min_out,
    n,
    others_in,
    others_out,
    root_in,
    root_out,
    sum_in,
    sum_out,
)

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


def results() -> list[Result]:
    """Four collectives, and why AllReduce should not be made of two of them."""
    return [
        _result("allgather", allgather_terms()),
        _result("reduce-scatter", reduce_scatter_terms()),
        _result("broadcast", broadcast_terms()),
        _result("reduce", reduce_terms()),
        two_phases(),
    ]
