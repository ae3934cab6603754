"""A plan in whole numbers of equal chunks: what executors that know no bytes can run.

Unequal shares become counts of chunks: the schedule is cut as if the buffer had one granule per chunk. The number of
chunks is then the smallest that the format and the buffer's size allow. It keeps all of the plan's transfers, and has
nearly the best time with perfect overlap. (That time alone would take one chunk, in which nothing overlaps.)
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import gcd

import numpy as np

from optcc.errors import InputError
from optcc.planner.search import choose
from optcc.plans.plan import Plan
from optcc.schedule.baselines import BASELINES
from optcc.schedule.columns import BESIDE, GRANULE, Schedule
from optcc.schedule.recipe import require_segments
from optcc.schedule.routes import fluid_seconds
from optcc.simulation.simulator import simulate

MOST_CHUNKS = 65536
"""More are refused: no executor was seen to be faster with more."""
MAX_CHUNKS = 4096
"""More are not tried: a chunk of 1 GiB is then 256 KiB, and the loss by rounding is below 1 % in all cases tried."""
TRIED = 6
"""Of many possible numbers so many are tried, spread over the whole range."""
CLOSE = 1.002
"""A smaller number of chunks is taken when its time is no more than this over the best."""


@dataclass(frozen=True)
class ChunkMove:
    """`count` chunks from `start` on go from rank `src` to rank `dst`.

    reduce : whether they are added there, and how: a `LandsAs`
    group : moves of different groups touch different chunks
    carries : how many of the moves that landed beside these chunks at `src` are in what is sent, the first ones
    """

    src: int
    dst: int
    start: int
    count: int
    reduce: int
    group: int
    carries: int


@dataclass(frozen=True)
class Chunked:
    """A plan rounded to chunks.

    plan : with the depth that was asked for; chunks : how many equal ones the buffer is cut into
    moves : in an order in which they can run; groups : how many groups of chunks do not touch each other
    fluid_s : seconds with perfect overlap and no latency, after rounding
    """

    plan: Plan
    chunks: int
    moves: tuple[ChunkMove, ...]
    groups: int
    fluid_s: Fraction
    schedule: Schedule

    @property
    def ratio(self) -> Fraction:
        """Time over the bound with perfect overlap: what rounding costs, and what the family itself lacks."""
        return self.fluid_s / self.plan.bound.seconds if self.plan.bound.seconds else Fraction(1)

    @cached_property
    def simulated_ratio(self) -> float:
        """Simulated time over the bound, without latency: also what filling and draining the pipeline costs."""
        if not self.moves or not self.plan.bound.seconds:
            return 1.0
        scale = Fraction(self.plan.bound.nbytes, self.schedule.nbytes)
        whole = self.schedule.replace(
            nbytes=self.plan.bound.nbytes,
            offset=(self.schedule.offset * scale.numerator // scale.denominator).astype(np.int64),
            length=(self.schedule.length * scale.numerator // scale.denominator).astype(np.int64),
        )
        return simulate(whole).time_s / float(self.plan.bound.seconds)


def chunked(plan: Plan, *, segments: int | None = None, chunks: int | None = None, unit: int = 1) -> Chunked:
    """Round `plan` to equal chunks.

    segments : another depth than the plan's; chunks : how many; None: chosen
    unit : bytes that a chunk must be a multiple of
    Raises InputError where the buffer cannot be cut so.
    """
    plan = deeper(plan, segments)
    units, rest = divmod(plan.bound.nbytes, unit)
    if rest or not units:
        expected = f"a multiple of {unit} bytes"
        raise InputError(
            "cannot be cut", where="plan size", expected=expected, got=plan.bound.nbytes, hint="Use --size."
        )
    if chunks is not None:
        if not 1 <= chunks <= MOST_CHUNKS or units % chunks:
            near = [n for n in _divisors(units, MOST_CHUNKS) if n <= chunks]
            hint = f"--chunks {near[-1]} would do." if near else None
            expected = f"a divisor of {plan.bound.nbytes} bytes over {unit}, at most {MOST_CHUNKS}"
            raise InputError("chunks do not fit the buffer", where="--chunks", expected=expected, got=chunks, hint=hint)
        return _round(plan, chunks)
    offered = _divisors(units, MAX_CHUNKS)
    step = max(1, -(-len(offered) // TRIED))
    tried = [_round(plan, n) for n in offered[::-1][::step]]
    whole = max(len(c.moves) for c in tried)
    fit = [c for c in tried if len(c.moves) == whole]
    best = min(c.fluid_s for c in fit)
    return min((c for c in fit if c.fluid_s <= Fraction(CLOSE) * best), key=lambda c: c.chunks)


def keeps_segments(made: Chunked) -> bool:
    """No transfer was lost to rounding: there are as many as in the plan."""
    return len(made.moves) == len(made.plan.schedule())


def finer(made: Chunked, parts: int, unit: int = 1) -> Chunked | None:
    """The same with every group of chunks cut into `parts` groups, which do not touch each other.

    unit : bytes that a chunk must be a multiple of. None: the buffer cannot be cut so finely
    """
    if parts == 1:
        return made
    span: dict[int, tuple[int, int]] = {}
    for move in made.moves:
        start, end = span.get(move.group, (move.start, move.start))
        span[move.group] = min(start, move.start), max(end, move.start + move.count)
    factor = parts // gcd(parts, *(end - start for start, end in span.values()))
    chunks = made.chunks * factor
    if chunks > MOST_CHUNKS or made.plan.bound.nbytes % (chunks * unit):
        return None
    moves = []
    for move in made.moves:
        start, end = (edge * factor for edge in span[move.group])
        size = (end - start) // parts
        first, last = move.start * factor, (move.start + move.count) * factor
        for part in range((first - start) // size, -(-(last - start) // size)):
            low, high = max(first, start + part * size), min(last, start + (part + 1) * size)
            group = move.group * parts + part
            moves.append(replace(move, start=low, count=high - low, group=group))
    return replace(made, chunks=chunks, moves=tuple(moves), groups=made.groups * parts)


def deeper(plan: Plan, segments: int | None) -> Plan:
    """The plan with another number of segments; None: as it is. Raises InputError for one out of range.

    It is planned anew, by the same family or baseline.
    """
    if segments is None or segments == plan.segments:
        return plan
    require_segments(segments)
    for make in BASELINES.values():
        with suppress(InputError):  # one that does not apply to the cluster
            if make(plan.cluster, plan.segments).content() == plan.choices:
                return replace(plan, recipe=make(plan.cluster, segments))
    return replace(plan, recipe=choose(plan.cluster, plan.bound, family=plan.family, segments=segments))


def _divisors(units: int, most: int) -> list[int]:
    return [n for n in range(1, min(units, most) + 1) if units % n == 0]


def _round(plan: Plan, chunks: int) -> Chunked:
    small = plan.schedule().resized(chunks * GRANULE)
    start, count = (small.offset // GRANULE).tolist(), (small.length // GRANULE).tolist()
    group = _groups(start, count)
    columns = zip(
        small.src.tolist(), small.dst.tolist(), start, count, small.reduce.tolist(), group, _carried(small), strict=True
    )
    scale = Fraction(plan.bound.nbytes, chunks * GRANULE)
    return Chunked(
        plan=plan,
        chunks=chunks,
        moves=tuple(ChunkMove(*column) for column in columns),
        groups=max(group, default=-1) + 1,
        fluid_s=fluid_seconds(small, plan.cluster) * scale,
        schedule=small,
    )


def _carried(schedule: Schedule) -> list[int]:
    """Of each row how many of those that landed beside its bytes at its sender it waits for: the first so many."""
    offset, beside = schedule.offset.tolist(), (schedule.reduce == BESIDE).tolist()
    return [
        len({d for d in schedule.deps(row).tolist() if beside[d] and offset[d] == offset[row]})
        for row in range(len(schedule))
    ]


def _groups(start: list[int], count: list[int]) -> list[int]:
    """Number of the stretch of chunks that each move lies in; stretches are what is left when overlaps are joined.

    They are numbered by their first move, so that neighbours in number run at the same time.
    """
    stretch, end = [0] * len(start), -1
    last = -1
    for i in sorted(range(len(start)), key=lambda i: start[i]):
        if start[i] >= end:
            last += 1
        end = max(end, start[i] + count[i])
        stretch[i] = last
    number: dict[int, int] = {}
    return [number.setdefault(s, len(number)) for s in stretch]
