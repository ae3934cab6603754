"""Rows of a section that goes along a chain of ranks: what rings, nested rings and the published schemes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.assemble import TemplateRow, even_cuts
from optcc.schedule.columns import Stage

Way = Callable[[int, int], int]
"""(source rank, destination rank) -> index of the route."""
Landed = tuple[int, ...]
"""Places in the template of what a next row waits for."""


def add_row(
    rows: list[TemplateRow], section: int, route: int, hop: int, reduce: bool, stage: Stage, deps: Landed
) -> Landed:
    """Append a row to a template; returns its place, as what a next row waits for."""
    rows.append(TemplateRow(section, route, hop, reduce, stage, deps))
    return (len(rows) - 1,)


def reduce_chain(
    rows: list[TemplateRow], section: int, chain: Sequence[int], way: Way, hop: int, landed: Landed = ()
) -> Landed:
    """Append the sum of a section along `chain`, from hop `hop` on, its first transfer after `landed`."""
    for place, (src, dst) in enumerate(pairwise(chain)):
        landed = add_row(rows, section, way(src, dst), hop + place, True, Stage.REDUCE_SCATTER, landed)
    return landed


def copy_chain(
    rows: list[TemplateRow], section: int, chain: Sequence[int], way: Way, hop: int, landed: Landed
) -> Landed:
    """Append the way of a finished section from the first rank of `chain` to all others, one after the other."""
    for place, (src, dst) in enumerate(pairwise(chain)):
        landed = add_row(rows, section, way(src, dst), hop + place, False, Stage.ALLGATHER, landed)
    return landed


def chain_to(owner: int, ring: Sequence[int]) -> list[int]:
    """All ranks of a ring in its order, the one at place `owner` (modulo their number) last."""
    return [ring[(owner + 1 + i) % len(ring)] for i in range(len(ring))]


def ring_template(ring: Sequence[int], way: Way) -> list[TemplateRow]:
    """One segment of a plain ring AllReduce over `ring`: as many sections as ranks, hops 0 to 2(m-1) - 1.

    A section is summed along the ring into its owner, and goes round from there (Patarasuk and Yuan, 2009).
    """
    m, rows = len(ring), list[TemplateRow]()
    for s in range(m):
        chain = chain_to(s, ring)
        landed = reduce_chain(rows, s, chain, way, 0)
        copy_chain(rows, s, [chain[-1], *chain[:-1]], way, m - 1, landed)
    return rows


def segment_bounds(start: int, stop: int, segments: int, sections: int) -> NDArray[np.int64]:
    """Section bounds of equal segments of bytes start..stop: int64, shape (segments, sections + 1)."""
    cuts = even_cuts(start, stop, segments).tolist()
    return np.stack([even_cuts(a, b, sections) for a, b in pairwise(cuts)])
