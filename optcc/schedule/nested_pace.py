"""Due times of transfers of nested rings, if sections start one after another instead of all of a segment at once.

A segment's sections are due one by one, evenly over the time that a segment has; each hop of a section is due `pace`
sections after the one before. Ports serve what is due first. Then every rank does what its neighbour did one section
earlier, and a leaf meets the owners in turn. The steady state repeats itself, and no port starves while another has a
burst. With an order by segments only, all sections of a segment start together, and ports drift apart from segment to
segment. Each port's idle time then adds up until queues are long enough to hide it (docs/schedules.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from optcc.schedule.assemble import TemplateRow
from optcc.schedule.effort import MANY
from optcc.schedule.tuned import FEW_LEAVES, LEAF_SECTIONS

PERIOD = 2**20
"""Units of due times in a segment's time; more than any segment has sections."""
MAX_PACE = 64
"""Limit of the pace that a plan file can ask for; 2 to 4 leave the least idle time."""


class Keeping(NamedTuple):
    """The settings of a recipe of nested rings about time, as in `NestedRings`."""

    window: int
    pace: int
    sections: int | None


def two_segments_under_way(leaves: int, segments: int) -> Keeping:
    """Two segments under way at once, and the highest pace for which these have room.

    With longer windows leaves run further ahead, and urgent transfers queue behind theirs. A single leaf delays nobody,
    and a single segment needs no pace.
    """
    if leaves <= 1:
        return Keeping(0, 0, None)
    return Keeping(2, 3, None) if segments > 1 else Keeping(4, 0, None)


def keeping(ranks: int, leaves: int, segments: int) -> Keeping:
    """The window, sections and pace that lose least time (docs/schedules.md).

    Where nearly all ranks are leaves of a ring of two to four, two segments under way lose up to 4/k. Raw sections of
    many leaves queue where the few full ranks wait for partial sums; with one segment under way they are half as many.
    Its time has room for a pace of 4 if sections are fine: 2 (P-1) times the pace.
    """
    if leaves <= FEW_LEAVES or ranks > MANY or segments == 1:  # with more ranks there would be too many transfers
        return two_segments_under_way(leaves, segments)
    return Keeping(1, 4, 8 * (ranks - 1))


def sections_of(ring: int, ranks: int, asked: int | None, pace: int) -> int:
    """How many sections a segment has over a ring of `ring` of `ranks`; `asked` and `pace` as in `NestedRings`."""
    few = ranks - ring <= 1 and not pace
    least = asked or (1 if few else LEAF_SECTIONS * (ranks - 1))
    return ring * -(-least // ring)


def paced(rows: Sequence[TemplateRow], sections: int, pace: int) -> list[TemplateRow]:
    """The rows of a template of `sections` sections, with due times, in 1/`PERIOD` of a segment, in place of hops."""
    return [row._replace(hop=(row.section + pace * row.hop) * PERIOD // sections) for row in rows]


def last_hop(ring: int, ranks: int) -> int:
    """The highest hop of a section over a ring of `ring` of `ranks`."""
    return max(2 * ring, ring + 2) if ring < ranks else 2 * ring - 2


def in_time(ring: int, ranks: int, sections: int, pace: int, window: int) -> bool:
    """Whether a section's last hop is due no later than the first of the same section `window` segments on.

    The first waits for the last there, and rows wait only for earlier rows.
    """
    return pace * last_hop(ring, ranks) <= window * sections
