"""Segments of unequal sizes for one straggler: small ones first and last, by a linear program.

The straggler's link idles until the first segment's first section has been round the ring, and again while the last one
is; both waits are proportional to that segment's size. In between the link must not starve: while it carries segment i,
the ring must finish reducing segment i+1 and gathering segment i-1. With sizes growing by r this is, per byte of
segment i, `rho r + rho / r + rest <= B T_opt/n`. Here rho is what a strongest rank sends in either half of the ring,
and rest what it sends to leaves. In a steady state r = 1 the left side is the rank's load L, hence

    r + 1/r <= 2 + (B T_opt/n - L) / rho,

so that ramps come from the slack of the strong ranks: none below the switch point, where equal segments are best.
A unit of two segments grows at a time, because the two orderings of nested rings take turns. With several stragglers
of one rate the model is too simple (their links wait for each other): simulate, and keep equal sizes where they win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import cvxpy as cp
import numpy as np

from optcc.errors import InputError, OptccError
from optcc.theory.shares import nested_shares, ring_loads

BODY = Fraction(1, 20)
"""Weight of the largest unit over the first and last ones together. From simulations of 8 to 32 ranks with one
straggler at l = 15/8 to 4: 0.02 to 0.2 did equally well within the spread between buffer sizes."""

UNITS = (1, 2, 4)

SHALLOW_BODY, SHALLOW_GROWTHS = Fraction(2), (Fraction(8, 5), Fraction(5, 2))
"""Ramps of one or two small segments at either end. Growth below the switch point. The model above allows no lasting
growth there, but a step or two can be caught up with. Simulated, they save a tenth to a third of the loss of equal
segments."""

_DENOMINATOR = 10**9

Sizes = tuple[Fraction, ...]


@dataclass(frozen=True)
class Ramp:
    """Sizes of the segments (sum 1), their cost in the program, and how far at most from the program's optimum."""

    sizes: Sizes
    cost: Fraction
    gap: Fraction


def equal_sizes(segments: int) -> Sizes:
    """`segments` equal parts of 1."""
    return (Fraction(1, segments),) * segments


def growth_ratio(rates: Sequence[Fraction]) -> Fraction:
    """r >= 1: how much larger than its neighbour a unit may be without starving the weakest rank's link.

    `rates` in bytes/s, any order, three or more. Rounded down, so that the inequality above holds for the result.
    """
    ascending = sorted(Fraction(rate) for rate in rates)
    p = len(ascending)
    if p < 3 or ascending[0] <= 0:
        raise InputError("no ring with a leaf", where="rates", expected="three or more, all > 0", got=str(list(rates)))
    shares = nested_shares(ascending)
    busiest = max(1 / ascending[0], 2 * (p - 1) / sum(ascending, Fraction(0)))
    slack = ascending[-1] * busiest - ring_loads(shares, p)[-1]
    half = sum((share * Fraction(ring - 1, ring) for ring, share in shares.items()), Fraction(0))
    if not half:
        return Fraction(1)
    mean = 1 + slack / half / 2
    return Fraction(math.floor(float(mean + Fraction(math.sqrt(mean**2 - 1))) * 2**20), 2**20)


def ramp_program(segments: int, growth: Fraction, *, unit: int = 2, body: Fraction = BODY) -> Ramp:
    """Sizes that minimise (first + last)/2 + `body` times the largest unit, neighbours within a factor `growth`.

    Segments are grouped in units of `unit` equal ones, the last unit shorter where it must be.
    """
    if segments < 1 or growth < 1 or unit < 1:
        raise InputError(
            "no ramp", where="segments", expected="segments, growth, unit >= 1", got=f"{segments}, {growth}, {unit}"
        )
    members = [min(unit, segments - start) for start in range(0, segments, unit)]
    size, largest = cp.Variable(len(members), nonneg=True), cp.Variable(nonneg=True)
    fits, up, down = size <= largest, size[1:] <= float(growth) * size[:-1], size[:-1] <= float(growth) * size[1:]
    cost = (size[0] + size[-1]) / 2 + float(body) * largest
    limits = [fits, up, down] if len(members) > 1 else [fits]
    program = cp.Problem(cp.Minimize(cost), [np.array(members, float) @ size == 1, *limits])
    program.solve(solver=cp.HIGHS)
    if size.value is None:
        raise OptccError(f"the linear program over the segments' sizes has no solution: {program.status}")
    units = _repaired([float(value) for value in size.value], members, growth)
    exact = (units[0] + units[-1]) / 2 + body * max(units)
    prices = [_prices(limit) for limit in limits]
    bound = _dual_bound(members, growth, body, prices)
    sizes = tuple(value for value, count in zip(units, members, strict=True) for _ in range(count))
    return Ramp(sizes, exact, exact / bound - 1)


def starts(rates: Sequence[Fraction], segments: int) -> list[Sizes]:
    """Sizes worth trying: equal ones, ramps of every unit, shallow ramps, and a first segment 1.4 times the others.

    The last is the simulated optimum of four and of eight segments. The first segment can leave the straggler at once,
    so its outgoing link has work while the second one is reduced.
    """
    growth = growth_ratio(rates)
    heavy = (Fraction(14), *(Fraction(10),) * (segments - 1))
    ramps = [ramp_program(segments, growth, unit=unit).sizes for unit in UNITS]
    ramps += [ramp_program(segments, steep, unit=1, body=SHALLOW_BODY).sizes for steep in SHALLOW_GROWTHS]
    return list(dict.fromkeys([equal_sizes(segments), *ramps, tuple(size / sum(heavy) for size in heavy)]))


def best_start(rates: Sequence[Fraction], segments: int, seconds: Callable[[Sizes], float]) -> tuple[Sizes, float]:
    """Of `starts` the sizes that take the fewest `seconds` (a simulation, say), and what they take."""
    return min(((sizes, seconds(sizes)) for sizes in starts(rates, segments)), key=lambda pair: pair[1])


def _repaired(values: Iterable[float], members: Sequence[int], growth: Fraction) -> list[Fraction]:
    """The solver's sizes as Fractions that obey the growth limit and sum to 1, exactly."""
    units = [Fraction(max(value, 0.0)).limit_denominator(_DENOMINATOR) for value in values]
    for i in range(1, len(units)):
        units[i] = min(units[i], growth * units[i - 1])
    for i in reversed(range(1, len(units))):
        units[i - 1] = min(units[i - 1], growth * units[i])
    total = sum((count * value for count, value in zip(members, units, strict=True)), Fraction(0))
    return [value / total for value in units]


def _prices(limit: cp.Constraint) -> list[Fraction]:
    return [Fraction(max(float(price), 0.0)) for price in np.atleast_1d(limit.dual_value)]


def _dual_bound(
    members: Sequence[int], growth: Fraction, body: Fraction, prices: Sequence[Sequence[Fraction]]
) -> Fraction:
    """A cost that no sizes undercut, for any prices >= 0 on the three kinds of limit, exact.

    The limits are homogeneous, so that cost >= sum_i w_i u_i with w the cost's coefficients plus the priced limits';
    since sum_i members_i u_i = 1 and u >= 0, that is at least the smallest w_i / members_i.
    """
    fits, up, down = (*prices, [], [])[:3]
    # The prices of `fits` may not exceed `body` in all, or the largest unit would have a negative coefficient.
    scale = min(Fraction(1), body / sum(fits)) if sum(fits) else Fraction(1)
    weight = [price * scale for price in fits]
    weight[0] += Fraction(1, 2)
    weight[-1] += Fraction(1, 2)
    for i, (rising, falling) in enumerate(zip(up, down, strict=True)):
        weight[i + 1] += rising - growth * falling
        weight[i] += falling - growth * rising
    return min(w / count for w, count in zip(weight, members, strict=True))
