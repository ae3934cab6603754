"""The nested-ring shares by a linear program over all ring sizes, with and without latency, and its certificate.

Variables: the share x_m of the data in the ring of the m strongest ranks, m = 1..P, and the time T. A rank's load is
linear in x; each must fit its rate within T. The closed form in shares.py has the same optimum (proof id
nested-rings); the program also takes a latency, for which there is no closed form.

A solver's numbers are only hints. Shares are rounded to rationals that sum to 1; their time, and the bound that the
dual proves, are computed from these, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError, OptccError
from optcc.theory.shares import Shares, ring_loads

_DENOMINATOR = 10**9
"""Shares are rounded to this: far finer than a granule of any buffer, far coarser than a solver's error."""


@dataclass(frozen=True)
class Split:
    """Shares, {ring size m: share}, the seconds they take per byte of data, and how far at most from the optimum.

    `gap` is seconds_per_byte less the bound that the dual variables prove, over the bound: exact and >= 0.
    """

    shares: Shares
    seconds_per_byte: Fraction
    gap: Fraction


def split_program(rates: Sequence[Fraction]) -> Split:
    """The shares that minimise the time on `rates` (bytes/s, any order, all positive) over all patterns."""
    return _best(_ascending(rates), Fraction(0), (len(rates),))


def split_with_latency(rates: Sequence[Fraction], nbytes: int, alpha: Fraction) -> Split:
    """The shares that minimise load time plus latency for `nbytes` bytes per rank and `alpha` seconds per hop.

    The patterns run side by side, so that a plan waits for the hops of its largest ring only. For each largest ring
    this is a linear program; the best of them is returned. Its seconds_per_byte contains the latency.
    """
    if nbytes < 1 or alpha < 0:
        raise InputError("no such job", where="split", expected="nbytes >= 1, alpha >= 0", got=f"{nbytes}, {alpha}")
    ascending = _ascending(rates)
    return _best(ascending, Fraction(alpha) / nbytes, range(1, len(ascending) + 1))


def hops(ring: int, ranks: int) -> int:
    """Hops in sequence of a ring of `ring` ranks: round twice, and to a leaf and back where there are leaves."""
    return 2 * (ring - 1) + (2 if ring < ranks else 0)


def _ascending(rates: Sequence[Fraction]) -> list[Fraction]:
    if len(rates) < 2 or min(rates) <= 0:
        raise InputError("rates cannot be split", where="rates", expected="two or more, all > 0", got=str(list(rates)))
    return sorted(Fraction(rate) for rate in rates)


def _best(rates: list[Fraction], hop_per_byte: Fraction, largest: Sequence[int]) -> Split:
    """The best split over the permitted sizes of the largest ring, with a gap against the best bound of any."""
    p, top = len(rates), max(rates)
    # In units of the strongest rank's rate, so that the solver sees numbers near 1.
    loads = np.array([[float(load) for load in ring_loads({m: Fraction(1)}, p)] for m in range(1, p + 1)]).T
    unit = np.array([float(rate / top) for rate in rates])
    x, time, allowed = cp.Variable(p, nonneg=True), cp.Variable(), cp.Parameter(p, nonneg=True)
    fits = loads @ x <= unit * time
    program = cp.Problem(cp.Minimize(time), [fits, cp.sum(x) == 1, x <= allowed])
    found: list[tuple[Fraction, Shares]] = []
    bounds: list[Fraction] = []
    for ring in largest:
        allowed.value = (np.arange(1, p + 1) <= ring).astype(float)
        program.solve(solver=cp.HIGHS)
        if x.value is None:
            raise OptccError(f"the linear program over the shares has no solution: {program.status}")
        latency = hop_per_byte * hops(ring, p)
        shares = _rational(x.value)
        found.append((_seconds_per_byte(shares, rates) + latency, shares))
        bounds.append(_dual_bound(fits.dual_value, rates, ring) + latency)
    seconds, shares = min(found, key=lambda pair: pair[0])
    bound = min(bounds)
    return Split(shares, seconds, seconds / bound - 1)


def _rational(values: NDArray[np.float64]) -> Shares:
    """Shares that sum to 1 exactly: rounded, and the largest takes what is missing."""
    shares = {m: Fraction(round(float(v) * _DENOMINATOR), _DENOMINATOR) for m, v in enumerate(values, 1)}
    shares = {m: share for m, share in shares.items() if share > 0}
    shares[max(shares, key=lambda m: shares[m])] += 1 - sum(shares.values())
    return shares


def _seconds_per_byte(shares: Shares, rates: Sequence[Fraction]) -> Fraction:
    return max(load / rate for load, rate in zip(ring_loads(shares, len(rates)), rates, strict=True))


def _dual_bound(prices: NDArray[np.float64], rates: Sequence[Fraction], largest: int) -> Fraction:
    """Seconds per byte that no split over rings up to `largest` beats, for any prices >= 0 per rank, exact.

    With prices y, sum_i y_i load_i <= T sum_i y_i B_i; the left side is at least the cheapest pattern's price.
    """
    y = [Fraction(max(float(price), 0.0)) for price in prices]
    cheapest = min(
        sum((price * load for price, load in zip(y, ring_loads({m: Fraction(1)}, len(y)), strict=True)), Fraction(0))
        for m in range(1, largest + 1)
    )
    return cheapest / sum((price * rate for price, rate in zip(y, rates, strict=True)), Fraction(0))
