"""What a schedule between servers needs of the inside of each, byte by byte, and when.

A *cell* is a range of bytes that no transfer cuts. A server must have its own sum of it when the first transfer takes
it from there. It has the result when the last transfer that brings it has landed. This is all that matters inside; the
dependencies between servers follow from the bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.assemble import even_cuts, require_memory
from optcc.schedule.columns import GRANULE, Schedule
from optcc.schedule.striped_rows import Moves

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def ranges(start: Ints, count: Ints) -> Ints:
    """start[0], start[0] + 1, ... (count[0] of them), start[1], ..."""
    ends = np.cumsum(count)
    steps: Ints = np.repeat(start - (ends - count), count)
    steps += np.arange(len(steps))
    return steps


class Transfers(NamedTuple):
    """Transfers between servers in their order, (rows,) each: cells first..stop go from src to dst."""

    src: Ints
    dst: Ints
    first: Ints
    stop: Ints
    reduce: Bools
    stage: NDArray[np.uint8]
    segment: Ints


class Cells(NamedTuple):
    """The cells of a channel and when servers need them. A time is a transfer's place in their order, times the number
    of cells, plus the cell.

    edge : (cells + 1,) byte positions
    segment : (cells,)
    rows : the transfers
    row, cell : every cell of every transfer, in turn
    need : (servers, cells), when the server's sum is first taken
    full : (servers, cells), when the last of the result lands
    formed : (servers, cells), the result is complete with a sum that lands there, not with a copy
    leave : (servers, cells), when a result first leaves, or -1
    sends : (servers, cells), how often the server sends the cell
    """

    edge: Ints
    segment: Ints
    rows: Transfers
    row: Ints
    cell: Ints
    need: Ints
    full: Ints
    formed: Bools
    leave: Ints
    sends: Ints


def cells_of(between: Schedule | Moves, shortest: int) -> Cells:
    """Read what runs between servers. Raises InputError as `require_memory`.

    Bytes of one segment are put side by side, so that what is needed at one time lies together. Cells are cut to about
    `shortest` bytes, not below.
    """
    offset, end, nbytes = between.offset, between.offset + between.length, between.nbytes
    edge = np.unique(np.concatenate(([0, nbytes], offset, end)))
    first, count = np.searchsorted(edge, offset), np.searchsorted(edge, end) - np.searchsorted(edge, offset)
    segment = np.full(len(edge) - 1, np.iinfo(np.int64).max)
    np.minimum.at(segment, ranges(first, count), np.repeat(between.segment, count))
    moved = _by_segment(edge, segment, first, count)
    place = np.empty_like(moved)
    place[moved] = np.arange(len(moved))
    edge, segment = np.concatenate(([0], np.cumsum(np.diff(edge)[moved]))), segment[moved]
    first = place[first]
    rows = Transfers(
        between.src.astype(np.int64),
        between.dst.astype(np.int64),
        first,
        first + count,
        between.reduce,
        between.stage,
        between.segment.astype(np.int64),
    )
    whole = _timed(edge, segment, rows, between.ranks)
    parts = np.maximum(1, np.diff(edge) // shortest).tolist()
    require_memory(between.ranks * sum(parts))
    sizes = zip(edge[:-1].tolist(), edge[1:].tolist(), parts, strict=True)
    return cut(whole, np.concatenate([even_cuts(*each)[:-1] for each in sizes]))


def cut(cells: Cells, positions: Ints) -> Cells:
    """The same with cells that end at these positions, too."""
    edge = np.unique(np.concatenate((cells.edge, positions)))
    if len(edge) == len(cells.edge):
        return cells
    old = np.searchsorted(cells.edge, edge[:-1], "right") - 1
    first, stop = (np.searchsorted(edge, cells.edge[at]) for at in (cells.rows.first, cells.rows.stop))
    return _timed(edge, cells.segment[old], cells.rows._replace(first=first, stop=stop), len(cells.need))


def _by_segment(edge: Ints, segment: Ints, first: Ints, count: Ints) -> Ints:
    """The order of cells by segment; those that share a transfer stay together."""
    begins = np.ones(len(segment), np.bool_)
    begins[ranges(first[count > 1] + 1, count[count > 1] - 1)] = False
    blocks = np.flatnonzero(begins)
    lengths = np.diff(np.append(blocks, len(segment)))
    tail = (np.arange(len(blocks)) == len(blocks) - 1) & (edge[-1] % GRANULE > 0)  # only it may end within a granule
    order = np.lexsort((np.minimum.reduceat(segment, blocks), tail))
    return ranges(blocks[order], lengths[order])


def _timed(edge: Ints, segment: Ints, rows: Transfers, servers: int) -> Cells:
    cells, count = len(edge) - 1, rows.stop - rows.first
    row, cell = np.repeat(np.arange(len(count)), count), ranges(rows.first, count)
    at = row * cells + cell
    src, dst, copies = rows.src[row] * cells + cell, rows.dst[row] * cells + cell, ~rows.reduce[row]
    # A server that sends to nobody sums, and hands out, one cell after the other.
    full = np.tile(np.arange(cells) * (cells + 1) * (not len(count)), servers)
    need, leave, copied = np.full((3, servers * cells), -1)
    # Where an index occurs more than once, the last assignment stays.
    need[src[::-1]] = at[::-1]
    leave[src[copies][::-1]] = at[copies][::-1]
    full[dst] = at
    copied[dst[copies]] = at[copies]
    need, sends = np.where(need < 0, full, need), np.bincount(src, minlength=servers * cells)
    columns: Any = (need, np.maximum(full, need), full > copied, leave, sends)
    return Cells(edge, segment, rows, row, cell, *(column.reshape(servers, cells) for column in columns))
