"""Rings and trees of a schedule with their bytes, without transfers, for a collective library's own kernels.

A *channel* is a range of the buffer with one route: round a ring of some ranks, which others join as leaves, or up and
down one tree. It is cut into segments, one after another in time, and these into sections, each with an owner that sums
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from optcc.schedule.columns import Schedule

PLAIN = "plain"
"""The ordering of a ring without leaves."""
LEAF_LAST = "leaf-last"
"""R2CC: the ring sums and shares out without its leaf, which then adds and sends the result along the ring."""


def ring(
    members: Sequence[int],
    leaves: Sequence[int],
    segments: list[tuple[int, str, Sequence[int]]],
    window: int = 0,
) -> dict[str, Any]:
    """A channel round a ring. `segments`: (segment, ordering, cuts); all have as many sections, section s belonging to
    members[s % m]."""
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


def trees(schedule: Schedule, window: int = 0) -> Iterator[dict[str, Any]]:
    """Channels from the rows alone: pieces of the buffer with the same arcs, added in the same order, are one channel.

    A hub of direct exchange is a tree of one hop; where a slow rank adds last, that is the root, the hub its child.
    """
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
