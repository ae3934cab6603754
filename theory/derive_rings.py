"""Nested rings: the closed-form shares meet every rank's load exactly, for symbolic loads.

L_i is the load of the i-th weakest rank: bytes it sends per byte of data. Pattern m is a ring of the m strongest ranks.
"""

from __future__ import annotations

from typing import Any

import sympy as sp

from optcc.theory.derivation import Result, Step, require_zero, tidy
from optcc.theory.derive_bounds import transfers_per_element
from optcc.theory.derive_straggler import ratio_terms
from optcc.theory.symbols import L_1, L, P, ell, i, j, m, x_m, x_without

ASSUMPTIONS = (
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
        assumptions=ASSUMPTIONS,
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
        assumptions=("1 <= l <= l_c = (2P-3)/(P-1)", *ASSUMPTIONS),
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


def results() -> list[Result]:
    """The shares, and their case of one straggler."""
    return [nested_rings(), two_patterns()]
