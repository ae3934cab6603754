"""How many equal segments a pipeline should have: a geometric program in one variable, with its closed form beside it.

Model (seconds): T(k) = T_opt (1 + a/k) + h alpha + b o k. More segments shorten the fill and the drain of the pipeline,
one segment's time in all. Each adds b chunks of fixed cost o at the busiest port. A posynomial in k, so convex in log k
(Boyd, Kim, Vandenberghe and Hassibi, "A tutorial on geometric programming", 2007); proof id k-segments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import cvxpy as cp

from optcc.errors import InputError, OptccError


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
