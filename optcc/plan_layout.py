"""A plan's rings and trees with their bytes: what a collective library's own kernels need, without single transfers.

A *channel* is a stretch of the buffer that goes one way: round a ring of some ranks, which others join as leaves, or up
and down one tree. It is cut into segments along time, and these into sections, each with an owner that sums it.
docs/consume-from-cpp.md says which transfers a section of each kind has; a test makes them from that page's rules and
finds exactly the rows of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from optcc.plans import Plan
from optcc.schedule.apart import ApartExchange
from optcc.schedule.assemble import cuts_by, even_cuts, granule
from optcc.schedule.columns import Schedule
from optcc.schedule.exchange import Exchange
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.inside import InsideServers
from optcc.schedule.latin import LatinExchange
from optcc.schedule.lockstep import LockstepExchange
from optcc.schedule.mixed import MixedExchange
from optcc.schedule.nested import NestedRings, Ordering
from optcc.schedule.nested_pace import sections_of
from optcc.schedule.optcc_paper import OptccPaper
from optcc.schedule.packed import PackedTrees
from optcc.schedule.r2cc import R2cc
from optcc.schedule.ring import Ring, segment_bounds
from optcc.schedule.steady import SteadyExchange
from optcc.schedule.timetable import Timetable
from optcc.schedule.trees import ComplementaryTrees

PLAIN = "plain"
"""The ordering of a ring without leaves."""
LEAF_LAST = "leaf-last"
"""R2CC: the ring sums and shares out without its leaf, which then adds and sends the result along the ring."""


def channels_of(plan: Plan, schedule: Schedule) -> list[dict[str, Any]]:
    """The channels of `plan`, lowered to `schedule`, as JSON values; offsets and cuts are bytes of the buffer."""
    return list(_MAKERS[plan.recipe.family](plan.recipe, schedule)) if len(schedule) else []


def _ring(
    members: Sequence[int],
    leaves: Sequence[int],
    segments: list[tuple[int, str, Sequence[int]]],
    window: int = 0,
) -> dict[str, Any]:
    """`segments`: (segment, ordering, cuts); all have as many sections, section s belonging to members[s % m]."""
    sections = range(len(segments[0][2]) - 1)
    return {
        "kind": "ring",
        "members": list(members),
        "leaves": list(leaves),
        "owners": [members[s % len(members)] for s in sections],
        "via": [leaves[s % len(leaves)] for s in sections] if leaves else [],
        "window": window,
        "segments": [
            {"segment": segment, "ordering": ordering, "cuts": [int(cut) for cut in cuts]}
            for segment, ordering, cuts in segments
        ],
    }


def _nested(recipe: NestedRings, schedule: Schedule) -> Iterator[dict[str, Any]]:
    count, order, turns = len(recipe.order), recipe.order, len(recipe.orderings)
    sizes = recipe.segment_sizes or (Fraction(1, recipe.segments),) * recipe.segments
    window = -(-recipe.window // turns) * turns
    done = Fraction(0)
    for which, (m, share) in enumerate(sorted(recipe.shares)):
        sections = sections_of(m, count, recipe.sections, recipe.pace)
        start, done = granule(done * schedule.nbytes, schedule.nbytes), done + share
        stop = schedule.nbytes if done == 1 else granule(done * schedule.nbytes, schedule.nbytes)
        cuts = cuts_by(start, stop, sizes).tolist()
        segments = []
        for g, (low, high) in enumerate(pairwise(cuts)):
            ordering = str(recipe.orderings[(g + which) % turns]) if m < count else PLAIN
            segments.append((g, ordering, even_cuts(low, high, sections).tolist()))
        yield _ring(order[count - m :], order[: count - m], segments, window)


def _plain_ring(recipe: Ring, schedule: Schedule) -> Iterator[dict[str, Any]]:
    bounds = segment_bounds(0, schedule.nbytes, recipe.segments, schedule.ranks).tolist()
    yield _ring(range(schedule.ranks), (), [(g, PLAIN, cuts) for g, cuts in enumerate(bounds)])


def _published(recipe: OptccPaper, schedule: Schedule) -> Iterator[dict[str, Any]]:
    """Patterns A and C add the degraded rank last, B and D first; four segments share a number."""
    cut = granule(recipe.nested * schedule.nbytes, schedule.nbytes)
    healthy = [r for r in range(schedule.ranks) if r != recipe.weak]
    inner = segment_bounds(0, cut, recipe.segments, len(healthy)).tolist()
    outer = segment_bounds(cut, schedule.nbytes, recipe.segments, schedule.ranks).tolist()
    turns = (str(Ordering.VIA_LEAF), str(Ordering.LEAF_FIRST))
    yield _ring(healthy, [recipe.weak], [(g // 4, turns[g % 2], cuts) for g, cuts in enumerate(inner)])
    yield _ring(range(schedule.ranks), (), [(g // 4, PLAIN, cuts) for g, cuts in enumerate(outer)])


def _r2cc(recipe: R2cc, schedule: Schedule) -> Iterator[dict[str, Any]]:
    start = granule((1 - recipe.tail) * schedule.nbytes, schedule.nbytes)
    healthy = [r for r in range(schedule.ranks) if r != recipe.weak]
    whole = segment_bounds(0, start, recipe.segments, schedule.ranks).tolist()
    tail = segment_bounds(start, schedule.nbytes, recipe.segments, len(healthy)).tolist()
    yield _ring(range(schedule.ranks), (), [(g, PLAIN, cuts) for g, cuts in enumerate(whole)])
    yield _ring(healthy, [recipe.weak], [(g, LEAF_LAST, cuts) for g, cuts in enumerate(tail)])


def _complementary(recipe: ComplementaryTrees, schedule: Schedule) -> Iterator[dict[str, Any]]:
    return _trees(schedule, 0)


def _packed(recipe: PackedTrees, schedule: Schedule) -> Iterator[dict[str, Any]]:
    return _trees(schedule, recipe.under_way)


def _fused(
    recipe: Exchange
    | Timetable
    | LockstepExchange
    | LatinExchange
    | SteadyExchange
    | GroupedExchange
    | ApartExchange
    | MixedExchange
    | InsideServers,
    schedule: Schedule,
) -> Iterator[dict[str, Any]]:
    """Their transfers join bytes that go different ways before or after: each piece between their bounds is a section.

    A hub of direct exchange is a tree of one hop; where a slow rank adds last, that is the root, the hub its child.
    """
    return _trees(schedule, 0)


def _trees(schedule: Schedule, window: int) -> Iterator[dict[str, Any]]:
    """Pieces of the buffer that go by the same arcs, added in the same order, are one channel. From the rows alone."""
    bounds = np.unique(np.concatenate((schedule.offset, schedule.offset + schedule.length)))
    low = np.searchsorted(bounds, schedule.offset)
    counts = np.searchsorted(bounds, schedule.offset + schedule.length) - low
    rows = np.repeat(np.arange(len(schedule)), counts)
    piece = np.repeat(low, counts) + np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.argsort(piece, kind="stable")
    ends = np.flatnonzero(np.diff(piece[order])) + 1
    found: dict[tuple[tuple[int, ...], frozenset[int]], dict[str, Any]] = {}
    for start, stop, mine in zip(bounds[:-1].tolist(), bounds[1:].tolist(), np.split(rows[order], ends), strict=True):
        up, down = mine[schedule.reduce[mine]], mine[~schedule.reduce[mine]]
        arcs = schedule.route[up].tolist(), schedule.route[down].tolist()
        channel = found.setdefault(
            (tuple(arcs[0]), frozenset(arcs[1])),
            {
                "kind": "tree",
                "root": int(schedule.dst[up[-1]]),
                "up": arcs[0],
                "down": arcs[1],
                "window": window,
                "segments": [],
            },
        )
        channel["segments"].append({"segment": int(schedule.segment[mine].min()), "cuts": [start, stop]})
    for channel in found.values():
        channel["segments"].sort(key=lambda segment: (segment["segment"], segment["cuts"]))
    yield from found.values()


_MAKERS: dict[str, Callable[[Any, Schedule], Iterator[dict[str, Any]]]] = {
    NestedRings.family: _nested,
    ComplementaryTrees.family: _complementary,
    PackedTrees.family: _packed,
    Exchange.family: _fused,
    Timetable.family: _fused,
    LockstepExchange.family: _fused,
    LatinExchange.family: _fused,
    SteadyExchange.family: _fused,
    GroupedExchange.family: _fused,
    ApartExchange.family: _fused,
    MixedExchange.family: _fused,
    InsideServers.family: _fused,
    Ring.family: _plain_ring,
    R2cc.family: _r2cc,
    OptccPaper.family: _published,
}
