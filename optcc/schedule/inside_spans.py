"""The data that a schedule between servers needs from the inside of each, and when: the chunks that move over NVLink.

A server must have a byte's sum before the first transfer that takes it from there. It can hand out the byte's result
once the last transfer that brings it has landed. Chunks are whole sections of the schedule. Fine chunks let the first
transfer start early and the last result be out soon; coarse ones are few. So a server's chunks grow with the bytes
needed before them (on the way out: still to come after them), up to an even part of the channel.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.assemble import even_cuts
from optcc.schedule.columns import Schedule

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

GROWTH = 1.2
"""Growth of chunks: a chunk is at most `GROWTH` - 1 of the bytes before it. In an H100 server NVLink brings a GPU its
chunks faster than its NIC takes them by 450/7 : 50. So chunks that grow by less never keep the NIC waiting."""


class Spans(NamedTuple):
    """Parts of the channel by server, sorted by server and start; columns of one shape."""

    server: Ints
    start: Ints
    stop: Ints
    segment: Ints


class Edges(NamedTuple):
    """Dependencies as places of rows, sorted by who waits."""

    waits: Ints
    dep: Ints


@dataclass(frozen=True, eq=False)
class ServerTransfers:
    """A channel's transfers between servers, and what matters of them inside; columns of shape (rows,).

    chunks : least number of parts into which the channel is cut inside
    src, dst, offset, end, reduce, stage, segment : as in `Schedule`, `end` after the last byte
    raw : the row is among the first to take its bytes from its source, so that the source must have their sum
    last : nothing overwrites the row's bytes at its destination later
    cells : ascending positions between which no row begins or ends
    groups : the cells of one segment, side by side, in the order of time
    up, down : the chunks in which servers sum, and hand out
    """

    chunks: int
    src: Ints
    dst: Ints
    offset: Ints
    end: Ints
    reduce: Bools
    stage: NDArray[np.uint8]
    segment: Ints
    deps: Edges
    raw: Bools
    last: Bools
    cells: Ints
    groups: Spans
    up: Spans
    down: Spans


def ranges(start: Ints, count: Ints) -> Ints:
    """start[0], start[0] + 1, ... (count[0] of them), start[1], ..."""
    ends = np.cumsum(count)
    steps: Ints = np.repeat(start - (ends - count), count)
    steps += np.arange(len(steps))
    return steps


def growth_steps(before: Ints, least: float, bend: float) -> NDArray[np.float64]:
    """Number of times by which `least` bytes must grow by `GROWTH` to reach `before`, at least 0. It is whole below
    `bend`; from `bend` on it is the number to `bend`.

    A machine's logarithm may be off by the last bit, and all ranks must cut alike. So whole numbers are counted with
    integers, and `decimal` computes the logarithm, correctly rounded.
    """
    starts, growth = list[int](), Fraction(str(GROWTH))
    exact = Fraction(least) * growth
    while exact < bend:
        starts.append(ceil(exact))
        exact *= growth
    whole = np.searchsorted(np.array(starts, np.int64), before, "right")
    with localcontext(prec=40):
        top = (Decimal(max(bend, least)) / Decimal(least)).ln() / Decimal(str(GROWTH)).ln()
    return np.where(before < bend, whole, float(top))


def network_of(schedule: Schedule, chunks: int, guests: Collection[int] = ()) -> ServerTransfers:
    """Read a schedule between servers.

    guests : servers whose sections others move inside one by one, since they wait for them
    """
    rows, servers = np.arange(len(schedule)), schedule.ranks
    src, dst, offset = schedule.src.astype(np.int64), schedule.dst.astype(np.int64), schedule.offset
    end = offset + schedule.length
    alone = not len(rows)  # no network says what is needed when
    cells = np.unique(
        np.concatenate([*([even_cuts(0, schedule.nbytes, chunks)] * alone), [0, schedule.nbytes], offset, end])
    )
    count = len(cells) - 1
    first = np.searchsorted(cells, offset)
    spans = np.searchsorted(cells, end) - first
    row, cell = np.repeat(rows, spans), ranges(first, spans)
    at_src, at_dst = src[row] * count + cell, dst[row] * count + cell
    copies = ~schedule.reduce[row]
    # Where an index occurs more than once, the last assignment stays.
    first_copy = np.full(servers * count, len(rows))
    first_copy[at_dst[copies][::-1]] = row[copies][::-1]
    last_copy = np.full(servers * count, -1)
    last_copy[at_dst[copies]] = row[copies]
    takes, brings = row < first_copy[at_src], row >= last_copy[at_dst]
    raw, last = np.zeros((2, len(rows)), np.bool_)
    raw[row[takes]], last[row[brings]] = True, True
    needed = np.tile(np.arange(count), servers) * alone
    done = needed.copy()
    needed[at_src[takes][::-1]] = row[takes][::-1]
    done[at_dst[brings]] = row[brings]
    apart = np.zeros(servers * count, np.bool_)
    for one, other in ((at_src, dst), (at_dst, src)):
        apart[one[np.isin(other[row], list(guests))]] = True

    segment = np.arange(count) * alone
    segment[cell] = schedule.segment[row]
    opens = np.append(True, np.diff(segment) != 0)
    most, shape = schedule.nbytes / chunks, (servers, count)
    group = np.cumsum(opens) - 1
    cut = [_spans(cells, group, segment, when.reshape(shape), apart.reshape(shape), most) for when in (needed, -done)]
    return ServerTransfers(
        chunks=chunks,
        src=src,
        dst=dst,
        offset=offset,
        end=end,
        reduce=schedule.reduce,
        stage=schedule.stage,
        segment=schedule.segment.astype(np.int64),
        deps=Edges(np.repeat(rows, np.diff(schedule.dep_ptr)), schedule.dep_idx),
        raw=raw,
        last=last,
        cells=cells,
        groups=_groups(cells, np.flatnonzero(opens), segment),
        up=cut[0],
        down=cut[1],
    )


def _groups(cells: Ints, opens: Ints, segment: Ints) -> Spans:
    order = np.argsort(segment[opens], kind="stable")
    start, stop = cells[opens], np.append(cells[opens[1:]], cells[-1])
    return Spans(np.zeros_like(order), start[order], stop[order], segment[opens][order])


def _spans(cells: Ints, group: Ints, segment: Ints, when: Ints, apart: Bools, most: float) -> Spans:
    """Neighbouring cells of a group in one chunk while what goes before them grows little.

    when : (servers, cells), their order in time; apart : (servers, cells), those that are chunks by themselves
    """
    servers, count = when.shape
    size, by_time = np.diff(cells), np.argsort(when, axis=1, kind="stable")
    before = np.zeros((servers, count), np.int64)
    np.put_along_axis(before, by_time, np.cumsum(size[by_time], axis=1) - size[by_time], axis=1)
    # Chunks of (GROWTH - 1) of what goes before end at even steps of its logarithm, those of `most` at even steps.
    bend = most / (GROWTH - 1)
    steps = growth_steps(before, max(1.0, float(size.min())), bend)
    steps = np.floor(steps + np.maximum(before - bend, 0) / most) + (before > 0)
    order = np.lexsort((when, np.broadcast_to(group, when.shape)), axis=1)
    step, mine, single = np.take_along_axis(steps, order, 1), group[order], np.take_along_axis(apart, order, 1)
    joined = (np.diff(step) == 0) & (np.diff(mine) == 0) & (np.abs(np.diff(order)) == 1)
    joined &= ~(single[:, 1:] | single[:, :-1])
    place = np.flatnonzero(np.concatenate((np.ones((servers, 1), np.bool_), ~joined), axis=1))
    low = np.minimum.reduceat(order.ravel(), place)
    high = np.maximum.reduceat(order.ravel(), place) + 1
    server = place // count
    sort = np.lexsort((low, server))
    low, high, server = low[sort], high[sort], server[sort]
    return Spans(server, cells[low], cells[high], segment[low])
