"""The bytes of a direct exchange between servers as cells, laid out by due time, and the transfers that take them.

A *cell* is a range that nothing cuts. `StripedExchange` puts a hub's bytes side by side. Here the bytes that hubs
exchange in one round are side by side, so data that a server needs within a short time is contiguous. Rounds that share
transfers stay together, in turn forwards and backwards, so that neighbouring hubs still touch with their like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from optcc.schedule.columns import GRANULE, Stage
from optcc.schedule.inside_channels import GpuTask, Site
from optcc.schedule.inside_spans import Ints, ranges
from optcc.schedule.striped_rows import Moves

FINE = 2**21
"""Least bytes that are worth a separate run. With a cost of 1 us a chunk, NVLink takes longer for less than a NIC
does."""
MOST_FINE = 32
"""Most cells into which a hub's bytes of one round are cut for this."""
PIECES = 4
"""Turns of a GPU in a round, where several share a channel and hubs are few."""


class CellLayout(NamedTuple):
    """edge : (cells + 1,) byte positions; hub, via, segment : (cells,), via is -1 where nobody adds last

    first, stop : (rows,), the cells of a row
    row, cell : every cell of every row, in turn
    need, full : (servers, cells), the row before which a server must have its sum, and with which it has the result
    leave : (cells,), the first row that takes the result anywhere
    task : (servers, cells), which of its site's
    """

    edge: Ints
    hub: Ints
    via: Ints
    segment: Ints
    first: Ints
    stop: Ints
    row: Ints
    cell: Ints
    need: Ints
    full: Ints
    leave: Ints
    task: Ints


def layout_of(moves: Moves, sites: Sequence[Site]) -> CellLayout:
    """Lay out the bytes of an `StripedExchange` between servers of these sites."""
    old = np.unique(np.concatenate(([0, moves.nbytes], moves.offset, moves.offset + moves.length)))
    first = np.searchsorted(old, moves.offset)
    place, sizes = _order(moves, old, first, np.searchsorted(old, moves.offset + moves.length) - first)
    edge = np.concatenate(([0], np.cumsum(sizes)))
    count = np.searchsorted(old, moves.offset + moves.length) - first
    # Cells of a row stay neighbours, maybe in reverse.
    first = np.minimum(place[first], place[first + count - 1])
    start, stop = edge[first], edge[first + count]
    whole = _filled(moves, edge, start, stop, np.zeros((moves.ranks, len(edge) - 1), np.int64))
    cuts = [edge, *(_even(low, high) for low, high in zip(edge[:-1].tolist(), edge[1:].tolist(), strict=True))]
    dealt = {s: list(_dealt(whole, s, site.tasks)) for s, site in enumerate(sites) if len(site.tasks) > 1}
    cuts += [np.array([begin for begin, _ in turns]) for turns in dealt.values()]
    fine = np.unique(np.concatenate(cuts))
    task = np.zeros((moves.ranks, len(fine) - 1), np.int64)
    for s, turns in dealt.items():
        begins, which = (np.array(column) for column in zip(*sorted(turns), strict=True))
        task[s] = which[np.searchsorted(begins, fine[:-1], "right") - 1]
    return _filled(moves, fine, start, stop, task)


def _order(moves: Moves, old: Ints, first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """(new place of each cell, sizes in the new order)."""
    cells = len(old) - 1
    hub, segment = np.zeros(cells, np.int64), np.full(cells, np.iinfo(np.int64).max)
    row, cell = np.repeat(np.arange(len(first)), count), ranges(first, count)
    raw = moves.stage[row] == Stage.REDUCE_SCATTER
    hub[cell[raw]] = moves.dst[row[raw]]
    np.minimum.at(segment, cell, moves.segment[row])
    joined = np.zeros(cells, np.bool_)
    joined[ranges(first[count > 1] + 1, count[count > 1] - 1)] = True
    begins = np.flatnonzero(~joined)
    lengths = np.diff(np.append(begins, cells))
    least = np.minimum.reduceat(segment, begins)
    tail = np.zeros(len(begins), np.bool_)
    tail[-1] = old[-1] % GRANULE > 0  # only the end of the buffer may lie between two granules
    order = np.lexsort((hub[begins], least, tail))
    back = (np.arange(len(order)) % 2 == 1) & ~tail[order]
    steps = np.where(np.repeat(back, lengths[order]), -1, 1)
    at = np.where(back, begins[order] + lengths[order] - 1, begins[order])
    within = ranges(np.zeros_like(order), lengths[order])
    moved = np.repeat(at, lengths[order]) + steps * within
    place = np.empty(cells, np.int64)
    place[moved] = np.arange(cells)
    return place, np.diff(old)[moved]


def _even(low: int, high: int) -> Ints:
    """Positions that cut a cell in about `FINE` bytes."""
    parts = min(MOST_FINE, -(-(high - low) // FINE))
    return np.array([low + (high - low) * i // parts // GRANULE * GRANULE for i in range(1, parts)], np.int64)


def _filled(moves: Moves, edge: Ints, start: Ints, stop: Ints, task: Ints) -> CellLayout:
    servers, cells, rows = moves.ranks, len(edge) - 1, len(moves)
    first, until = np.searchsorted(edge, start), np.searchsorted(edge, stop)
    row, cell = np.repeat(np.arange(rows), until - first), ranges(first, until - first)
    src, dst, stage = moves.src[row], moves.dst[row], moves.stage[row]
    raw, partial, final, result = (stage == s for s in Stage.__members__.values())
    hub, segment = np.zeros(cells, np.int64), np.full(cells, np.iinfo(np.int64).max)
    via, leaf, answer, leave = np.full((4, cells), -1)
    hub[cell[raw]] = dst[raw]
    via[cell[partial]] = dst[partial]
    leaf[cell[partial]], answer[cell[final]] = row[partial], row[final]
    leave[cell[result][::-1]] = row[result][::-1]
    np.minimum.at(segment, cell, moves.segment[row])
    need, full = np.zeros((2, servers, cells), np.int64)
    need[src[raw], cell[raw]] = row[raw]
    full[dst[result], cell[result]] = row[result]
    every, late = np.arange(cells), np.flatnonzero(via >= 0)
    need[hub, every] = np.where(via >= 0, leaf, leave)
    full[hub, every] = leave
    need[via[late], late] = full[via[late], late] = answer[late]
    return CellLayout(edge, hub, via, segment, first, until, row, cell, need, full, leave, task)


def _dealt(lay: CellLayout, server: int, tasks: Sequence[GpuTask]) -> Iterator[tuple[int, int]]:
    """(first byte, task): for the server's own hub data by parts, for all else in turns in order of time."""
    edge, sizes = lay.edge, np.diff(lay.edge)
    own = np.flatnonzero(lay.hub == server)
    for cell in own.tolist():
        before = Fraction(0)
        for which, task in enumerate(tasks):
            yield int(edge[cell]) + int(before * int(sizes[cell])) // GRANULE * GRANULE, which
            before += task.part
    others = np.flatnonzero(lay.hub != server)
    others = others[np.argsort(lay.need[server, others], kind="stable")]
    total, given = int(sizes[others].sum()), [0] * len(tasks)
    least, done, which, piece = total // (PIECES * len(tasks)), 0, 0, 0
    for cell in others.tolist():
        at, end = int(edge[cell]), int(edge[cell + 1])
        while at < end:
            if piece <= 0:  # who is behind most has the next turn, a piece or to the end of the cell
                which = max(range(len(tasks)), key=lambda d: (tasks[d].part * (done + 1) - given[d], -d))
                piece = least
            step, left = end - at, int(tasks[which].part * total) - given[which]
            if step > 2 * least or (step > piece and piece < least // 2):
                step = min(step, piece)
            # And never more than its part, but for what no other one has left to take.
            step = min(step, left if left >= GRANULE else step)
            step = end - at if end - at - step < GRANULE else max(GRANULE, step // GRANULE * GRANULE)
            yield at, which
            at, done, given[which], piece = at + step, done + step, given[which] + step, piece - step
            piece = piece if given[which] + GRANULE <= tasks[which].part * total else 0
