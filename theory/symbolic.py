"""The formulas behind a bound: every derivation of this package, and the bound of one concrete cluster as a formula."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache
from typing import Any

import sympy as sp

from optcc.errors import InfeasibleError
from optcc.theory import (
    derive_bounds,
    derive_collectives,
    derive_over_p,
    derive_rings,
    derive_rivals,
    derive_segments,
    derive_straggler,
)
from optcc.theory.derivation import Result, Step, exact
from optcc.theory.derive_bounds import ANY_PROTOCOL, FLUID, FULL_DUPLEX, NON_BLOCKING, star_terms
from optcc.theory.derive_straggler import switch_point
from optcc.theory.symbols import B, P, T, n
from optcc.values.cluster import Cluster, Rank
from optcc.values.units import format_rate


@cache
def results() -> tuple[Result, ...]:
    """Every derivation, in reading order. Takes seconds the first time: each is derived, none is stored."""
    return (
        *derive_bounds.results(),
        *derive_straggler.results(),
        *derive_over_p.results(),
        *derive_rings.results(),
        *derive_rivals.results(),
        *derive_segments.results(),
        *derive_collectives.results(),
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
