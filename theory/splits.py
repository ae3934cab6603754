"""Convex programs for pipelines of nested rings: shares by ring size, how many segments, and segments of unequal sizes.

A solver's numbers are only hints. They are rounded to rationals; what these take, and the bound that the dual proves,
are computed from them, exactly.

**Shares** (`split_program`). Variables: the share x_m of the data in the ring of the m strongest ranks, m = 1..P, and
the time T. A rank's load is linear in x; each must fit its rate within T. The closed form (ring_shares.py) has the same
optimum (proof id nested-rings); the program also takes a latency, for which there is no closed form.

**How many equal segments** (`segment_count`), a geometric program in one variable. Model (seconds):
T(k) = T_opt (1 + a/k) + h alpha + b o k. More segments shorten the fill and the drain of the pipeline, one segment's
time in all. Each adds b chunks of fixed cost o at the busiest port. A posynomial in k, so convex in log k (Boyd, Kim,
Vandenberghe and Hassibi, "A tutorial on geometric programming", 2007); proof id k-segments.

**Segments of unequal sizes for one straggler** (`ramp_program`): small ones first and last.
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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError, OptccError
from optcc.theory.ring_shares import Shares, nested_shares, ring_loads

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
        shares = _rational_shares(x.value)
        found.append((_seconds_per_byte(shares, rates) + latency, shares))
        bounds.append(_split_bound(fits.dual_value, rates, ring) + latency)
    seconds, shares = min(found, key=lambda pair: pair[0])
    bound = min(bounds)
    return Split(shares, seconds, seconds / bound - 1)


def _rational_shares(values: NDArray[np.float64]) -> Shares:
    """Shares that sum to 1 exactly: rounded, and the largest takes what is missing."""
    shares = {m: Fraction(round(float(v) * _DENOMINATOR), _DENOMINATOR) for m, v in enumerate(values, 1)}
    shares = {m: share for m, share in shares.items() if share > 0}
    shares[max(shares, key=lambda m: shares[m])] += 1 - sum(shares.values())
    return shares


def _seconds_per_byte(shares: Shares, rates: Sequence[Fraction]) -> Fraction:
    return max(load / rate for load, rate in zip(ring_loads(shares, len(rates)), rates, strict=True))


def _split_bound(prices: NDArray[np.float64], rates: Sequence[Fraction], largest: int) -> Fraction:
    """Seconds per byte that no split over rings up to `largest` beats, for any prices >= 0 per rank, exact.

    With prices y, sum_i y_i load_i <= T sum_i y_i B_i; the left side is at least the cheapest pattern's price.
    """
    y = [Fraction(max(float(price), 0.0)) for price in prices]
    cheapest = min(
        sum((price * load for price, load in zip(y, ring_loads({m: Fraction(1)}, len(y)), strict=True)), Fraction(0))
        for m in range(1, largest + 1)
    )
    return cheapest / sum((price * rate for price, rate in zip(y, rates, strict=True)), Fraction(0))


@dataclass(frozen=True)
class Pipeline:
    """What the model needs to know of a schedule.

    work_s : T_opt, seconds of the busiest port without any chunk cost
    fill : a, segment times that fill and drain take together
    hops, alpha_s : hops in sequence, and seconds each
    chunks, chunk_s : b, chunks per segment at the busiest port, and o, seconds that each costs beside its bytes
    """

    work_s: Fraction
    fill: Fraction
    hops: int = 0
    alpha_s: Fraction = Fraction(0)
    chunks: int = 1
    chunk_s: Fraction = Fraction(0)

    def seconds(self, segments: Fraction | int) -> Fraction:
        """T(k), exact."""
        k = Fraction(segments)
        return self.work_s * (1 + self.fill / k) + self.hops * self.alpha_s + self.chunks * self.chunk_s * k

    def slope(self, segments: Fraction) -> Fraction:
        """dT/dk, seconds per segment, exact."""
        return self.chunks * self.chunk_s - self.work_s * self.fill / segments**2


@dataclass(frozen=True)
class SegmentCount:
    """`segments` and the seconds they take; no real number of segments takes less than seconds / (1 + gap)."""

    segments: int
    seconds: Fraction
    gap: Fraction


def chunks_per_segment(rings: Iterable[int], ranks: int, place: int) -> int:
    """b of nested rings with these ring sizes for the rank at `place` (0 the weakest): chunks it sends per segment.

    A pattern's segment has m sections, one chunk each: a leaf sends every one once, a ring rank m + P - 2 in all.
    """
    return sum(ring + ranks - 2 if place >= ranks - ring else ring for ring in rings)


def segment_count(pipeline: Pipeline, *, most: int) -> SegmentCount:
    """The best whole number of equal segments, from 1 to `most`.

    The program's k is only a hint. Two bounds hold for every value, exactly. T is convex, so its tangent there lies
    below it; and a sum of two positive terms is at least twice the root of their product.
    """
    if most < 1 or pipeline.work_s <= 0:
        raise InputError(
            "no pipeline to cut",
            where="segments",
            expected="most >= 1 and work_s > 0",
            got=f"{most}, {pipeline.work_s}",
        )
    hint = _geometric_program(pipeline, most)
    tangent = pipeline.seconds(hint) + min(pipeline.slope(hint) * (end - hint) for end in (1, most))
    product = pipeline.work_s * pipeline.fill * pipeline.chunks * pipeline.chunk_s
    least = max(tangent, pipeline.work_s + pipeline.hops * pipeline.alpha_s + 2 * _root(product))
    segments = min({math.floor(hint), math.ceil(hint)}, key=pipeline.seconds)
    seconds = pipeline.seconds(segments)
    return SegmentCount(segments, seconds, seconds / least - 1)


def _root(value: Fraction) -> Fraction:
    """The square root, rounded down."""
    return Fraction(math.isqrt(math.floor(value * 2**160)), 2**80)


def _geometric_program(pipeline: Pipeline, most: int) -> Fraction:
    k = cp.Variable(pos=True)
    # In units of the work, so that the solver sees numbers near 1.
    terms = [float(pipeline.fill) / k, float(pipeline.chunks * pipeline.chunk_s / pipeline.work_s) * k]
    objective = sum((term for term in terms if not term.is_zero()), cp.Constant(1.0))
    program = cp.Problem(cp.Minimize(objective), [k >= 1, k <= most])
    program.solve(gp=True, solver=cp.CLARABEL)
    if k.value is None:
        raise OptccError(f"the geometric program over the number of segments has no solution: {program.status}")
    return min(max(Fraction(float(k.value)), Fraction(1)), Fraction(most))


BODY = Fraction(1, 20)
"""Weight of the largest unit over the first and last ones together. From simulations of 8 to 32 ranks with one
straggler at l = 15/8 to 4: 0.02 to 0.2 did equally well within the spread between buffer sizes."""

UNITS = (1, 2, 4)

SHALLOW_BODY, SHALLOW_GROWTHS = Fraction(2), (Fraction(8, 5), Fraction(5, 2))
"""Ramps of one or two small segments at either end. Growth below the switch point. The model above allows no lasting
growth there, but a step or two can be caught up with. Simulated, they save a tenth to a third of the loss of equal
segments."""


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
    bound = _ramp_bound(members, growth, body, prices)
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


def _ramp_bound(
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
