"""How deep, how finely cut and how wide a file is: candidates are built, and the target's own clock decides.

The links say how many threadblocks are tried first: as many as move bytes as fast as the fastest port that they use.
What a message advises has been tried before: it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from optcc.errors import InputError, SimulationError
from optcc.export.chunks import Chunked, chunked, deeper, finer, keeps_segments
from optcc.plans.plan import Plan

P = TypeVar("P")
SLACK = 1.05
"""Of candidates within so much of the fastest, the one with the fewest threadblocks: clocks are no better than that."""
PHASES = 4
"""A block sends, waits, adds and sends on: this many times the blocks that fill a link while all of them send."""
DEPTHS = 4
"""Depths that are tried where none was asked for: the plan's, a quarter and a sixteenth of it, and one segment."""


@dataclass(frozen=True)
class WriterKind(Generic[P]):
    """What a target's writer brings to the choice.

    unit : bytes that a chunk must be a multiple of; longest : chunks of a transfer that the target moves in one step
    most : threadblocks, or channels, that are tried at most
    block_rate : bytes per second that one threadblock moves
    build : (rounded plan, threadblocks or channels) -> program, within the limits; raises InputError else
    blocks : threadblocks of the busiest rank; width : what `build` was told, or more where limits demand it
    seconds : the target's clock
    """

    unit: int
    longest: int | None
    most: int
    block_rate: float
    build: Callable[[Chunked, int], P]
    blocks: Callable[[P], int]
    width: Callable[[P], int]
    seconds: Callable[[P, Plan], float]


@dataclass(frozen=True)
class Chosen(Generic[P]):
    """A file's program, the plan as rounded for it, and seconds by the target's clock; None: a link has no rate."""

    program: P
    rounded: Chunked
    seconds: float | None
    threadblocks: int


def choose(
    plan: Plan,
    kind: WriterKind[P],
    *,
    segments: int | None = None,
    chunks: int | None = None,
    threadblocks: int | None = None,
) -> Chosen[P]:
    """The candidate that the target's clock calls fastest, within what was asked for.

    Raises InputError where nothing fits, naming the limit and, where fewer segments do fit, how many.
    """
    if threadblocks is not None and threadblocks < 1:
        raise InputError("too few threadblocks", where="--threadblocks", expected="at least 1", got=threadblocks)
    found: list[Chosen[P]] = []
    refused: InputError | None = None
    for depth in [segments] if segments is not None else _depths(plan):
        try:
            found += _at_depth(plan, kind, depth, chunks, threadblocks, kept=segments is not None)
        except InputError as error:
            refused = refused or error
    if found:
        best = min(one.seconds or 0.0 for one in found)
        near = [one for one in found if (one.seconds or 0.0) <= SLACK * best]
        return min(near, key=lambda one: (one.threadblocks, one.seconds or 0.0))
    assert refused is not None
    raise _advised(refused, plan, kind, segments, chunks, threadblocks)


def _depths(plan: Plan) -> list[int]:
    depth = plan.recipe.segments
    return sorted({max(1, depth // 4**n) for n in range(DEPTHS - 1)} | {1}, reverse=True)


def _at_depth(
    plan: Plan, kind: WriterKind[P], depth: int, chunks: int | None, threadblocks: int | None, *, kept: bool,
    timed: bool = True,
) -> list[Chosen[P]]:  # fmt: skip
    """The candidates of one depth; with `timed` false the first that fits."""
    made = chunked(deeper(plan, depth), chunks=chunks, unit=kind.unit, longest=kind.longest)
    if not made.moves:
        raise InputError("nothing to export", where="plan", expected="two ranks or more", got="no transfer")
    if kept and not keeps_segments(made):
        raise InputError(
            "chunks are too few for the segments", where="--segments", got=depth,
            expected=f"at most as many as {made.chunks} equal chunks can tell apart",
        )  # fmt: skip
    found: list[Chosen[P]] = []
    refused: InputError | None = None
    widths = list(_widths(made, kind, threadblocks, chunks is not None))
    for cut, blocks in widths if timed else widths[::-1]:  # the coarsest fits most often
        try:
            program = kind.build(cut, blocks)
        except InputError as error:
            refused = refused or error
            continue
        count = kind.blocks(program)
        if threadblocks is not None and count > threadblocks:
            refused = refused or InputError(
                "the plan needs more threadblocks", where="--threadblocks", expected=f"at least {count}",
                got=threadblocks,
            )  # fmt: skip
            continue
        if not timed:
            return [Chosen(program, cut, None, count)]
        try:
            found.append(Chosen(program, cut, kind.seconds(program, plan), count))
        except SimulationError:
            found.append(Chosen(program, cut, None, count))
        if kind.width(program) > blocks:  # it needs more than that: fewer would come out as the same
            break
    if not found:
        assert refused is not None
        raise refused
    return found


def _widths(made: Chunked, kind: WriterKind[P], threadblocks: int | None, fixed: bool) -> Iterator[tuple[Chunked, int]]:
    """Plans cut finely enough for so many threadblocks, fewest last: from as many as fit down to as few as can be."""
    if threadblocks is not None:
        wanted = sorted({min(threadblocks, kind.most) // n or 1 for n in (1, 2, 3, 4)}, reverse=True)
    else:
        full = max(1, min(kind.most, PHASES * -(-int(_fastest(made.plan)) // int(kind.block_rate))))
        halves = {max(1, full >> n) for n in range(full.bit_length())}
        wanted = sorted(halves | {min(kind.most, 2 * full), kind.most}, reverse=True)
    seen = set()
    for blocks in wanted:
        cut: Chunked | None = made
        parts = 1
        while not fixed and cut is not None and cut.groups < blocks:
            parts *= 2
            finer_cut = finer(made, parts, kind.unit)
            if finer_cut is None:
                break
            cut = finer_cut
        assert cut is not None
        key = (cut.chunks, min(blocks, cut.groups))
        if key not in seen:
            seen.add(key)
            yield cut, key[1]


def _fastest(plan: Plan) -> float:
    """Bytes per second of the fastest port that a rank of the plan sends by."""
    servers, ranks = plan.cluster.servers, plan.cluster.ranks
    return float(max([max(rank.out_rate, servers[rank.server].nvlink_rate) for rank in ranks], default=0))


def _advised(
    error: InputError,
    plan: Plan,
    kind: WriterKind[P],
    segments: int | None,
    chunks: int | None,
    threadblocks: int | None,
) -> InputError:
    """The refusal, with the most segments that do fit, found by trying."""
    low, high = 0, (segments if segments is not None else _depths(plan)[-1])  # low fits (0: unknown), high does not
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _at_depth(plan, kind, middle, chunks, threadblocks, kept=True, timed=False)
            low = middle
        except InputError:
            high = middle
    hint = (
        f"Try --segments {low}." if low else error.hint or "No number of segments fits; a plan of another --family may."
    )
    return InputError(error.what, where=error.where, expected=error.expected, got=error.got, hint=hint)
