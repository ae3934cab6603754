"""How far runs of one kind of measurement lie apart where nothing is wrong: what a slow one is held against.

Rows of one run share what differs between runs: routes, clocks, the neighbours on the fabric. However alike they are,
they are one measurement. So the spread that counts is between runs. It shows where the same ports were measured twice,
and where measurements of healthy ports differ, for most are healthy. Slow ones must not widen it. So only what lies
within `WINDOW` standard deviations counts, and the variance is put right for what a normal law has outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

NOISE = 0.03
"""The spread where nothing was measured twice: from run to run large sizes of nccl-tests differ by 1 to 3 %."""
LEAST_NOISE = 0.015
"""No spread is taken to be less: that runs of one hour repeat better does not say that those of a week do."""
WORTH = 4.0
"""Deviations from which `NOISE` counts as known before any is seen, and likewise what other kinds show for a kind."""
WINDOW = 3.0
ROUNDS = 12
_INSIDE = NormalDist().cdf(WINDOW) - NormalDist().cdf(-WINDOW)
WITHIN = 1 - 2 * WINDOW * NormalDist().pdf(WINDOW) / _INSIDE
"""The variance of what a normal law of variance 1 has within `WINDOW`."""


@dataclass(frozen=True)
class Repeated:
    """What was measured of the same ports in the same proportion: the logarithm of the pace of each run."""

    kind: str
    paces: tuple[float, ...]

    @property
    def pace(self) -> float:
        return median(self.paces)


def upper_middle(paces: Sequence[float], spread: float, alike: float) -> float:
    """The median of those within `alike` standard deviations of the upper quartile: up to three of four may be slow."""
    reached = sorted(paces, reverse=True)[len(paces) // 4]
    return median(pace for pace in paces if abs(pace - reached) <= alike * spread)


def spreads(found: Sequence[Repeated], alike: float) -> tuple[dict[str, float], float]:
    """The standard deviation of one run's logarithm for each kind, and over all kinds.

    alike : standard deviations within which measurements tell the healthy pace of their kind
    """
    kinds: dict[str, list[Repeated]] = {}
    for one in found:
        kinds.setdefault(one.kind, []).append(one)
    each: dict[str, float] = {}
    over_all, seen = NOISE, dict[str, tuple[float, float]]()
    for _ in range(ROUNDS):
        seen = {kind: _deviations(of, each.get(kind, over_all), alike) for kind, of in kinds.items()}
        over_all = _pooled(NOISE, list(seen.values()))
        each = {kind: _pooled(over_all, [one]) for kind, one in seen.items()}
    counts = {kind: count for kind, (_, count) in seen.items()}
    sure = {kind: _at_most(spread, counts[kind]) for kind, spread in each.items()}
    return sure, max(LEAST_NOISE, over_all)


def _pooled(before: float, seen: Sequence[tuple[float, float]]) -> float:
    """From sums of squares and how many deviations they are of, with what was believed before."""
    squares, count = sum(one[0] for one in seen), sum(one[1] for one in seen)
    return math.sqrt((WORTH * before**2 + squares) / (WORTH + count))


def _at_most(spread: float, count: float) -> float:
    """One standard error more than what `count` deviations show: of few, chance may have made a small one."""
    return max(LEAST_NOISE, spread * (1 + 1 / math.sqrt(2 * (WORTH + count))))


def _deviations(of: Sequence[Repeated], spread: float, alike: float) -> tuple[float, float]:
    """The sum of squared deviations of single runs, and of how many independent ones."""
    squares = count = 0.0
    for one in of:
        if len(one.paces) > 1:
            inside = [pace - one.pace for pace in one.paces if abs(pace - one.pace) <= WINDOW * spread]
            squares += sum(off * off for off in inside) / WITHIN
            count += max(0, len(inside) - 1)
    if len(of) > 1:
        middle = upper_middle([one.pace for one in of], max(spread, LEAST_NOISE), alike)
        off = [(one.pace - middle) * math.sqrt(len(one.paces)) for one in of]
        inside = [value for value in off if abs(value) <= WINDOW * spread]
        squares += sum(value * value for value in inside) / WITHIN
        count += max(0, len(inside) - 1)
    return squares, count
