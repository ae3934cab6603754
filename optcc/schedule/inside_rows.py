"""From transfers between servers to transfers between their GPUs, for one channel of `optcc.schedule.inside`.

The GPU that *gathers* a run gets it from the group's other GPUs over NVLink, adds it up, and gives them the result. The
GPU that *carries* it takes part with its NIC in the schedule between servers. If both are the same GPU, no byte moves
twice. Otherwise the sum goes to the carrier and the result comes back, one more hop and no more load (proof id
inside-servers).

Rows are put in the order of time. What each waits for then follows from the bytes (`inside_waits`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.columns import Stage
from optcc.schedule.inside_cells import Bools, Cells, Ints, ranges
from optcc.schedule.inside_channels import Site
from optcc.schedule.inside_runs import Runs, runs_of, shared_out
from optcc.schedule.inside_waits import waits_by_bytes

PLACES = 4096
"""Places in time of a transfer's bytes: equally many in all channels, whose keys are compared."""


class GpuRows(NamedTuple):
    """Transfers in columns as in `Schedule`, sorted by `key`.

    pairs : int64 (pairs, 4), source and destination as (group, behind the place); pair : row -> index into it
    offset : from the channel's start
    waits, dep : how many rows each row waits for, and which, in turn
    """

    pairs: Ints
    pair: Ints
    offset: Ints
    length: Ints
    reduce: Bools
    stage: NDArray[np.uint8]
    segment: Ints
    key: Ints
    waits: Ints
    dep: Ints


class RowKind(IntEnum):
    """Kinds of rows, in the order in which rows of one time are put."""

    GATHER = 0
    TO_CARRIER = 1
    HAND_ON = 2
    BETWEEN = 3
    FROM_CARRIER = 4
    HAND_OUT = 5
    FOR_GUEST = 6


class Block(NamedTuple):
    """Rows: GPUs as group * width + behind; cells first..stop; time as that of a transfer between servers; kind, and
    place among rows of one kind and time. (rows,) each."""

    src: Ints
    dst: Ints
    first: Ints
    stop: Ints
    reduce: Bools
    stage: NDArray[np.uint8]
    time: Ints
    kind: Ints
    turn: Ints


def channel_rows(cells: Cells, sites: Sequence[Site], longest: int, hands: Sequence[bool], straight: bool) -> GpuRows:
    """The transfers between GPUs of a channel in which group i does as sites[i].

    longest : bytes of the longest runs
    hands : groups whose next GPU sends results on, and hands them out
    straight : a sum leaves for the same place in the next server, and a result comes from it
    """
    cells, task = shared_out(cells, sites, longest // 2)
    gpus, width, count = np.array([site.gpus for site in sites]), max(site.gpus for site in sites), len(cells.segment)
    base = np.arange(len(sites))[:, None] * width
    gather, carry = (
        base + np.stack([np.array([t[which] for t in site.tasks])[row] for site, row in zip(sites, task, strict=True)])
        for which in (0, 1)
    )
    on = np.array(hands, np.bool_)[:, None] & (gpus[:, None] > 1) & ~(cells.formed & (cells.leave < 0))
    back = np.where(on, base + (carry - base + 1) % gpus[:, None], carry)
    handed = on & cells.formed  # complete at the carrier, a result goes to the next GPU
    ends = _ends(cells, base, carry, back, straight)
    guests = _guests(cells, ends)
    # What is handed on at one time waits for nothing else, nor does a guest's data.
    apart = np.where(handed, cells.leave // count, np.where(guests, -2 - np.arange(count), -1))
    up = runs_of(cells, cells.need, gather, carry, apart, longest)
    down = runs_of(cells, -cells.full, np.where(on, back, gather), back, apart, longest)
    given = np.where(handed, carry, -1).ravel()[down.server * count + down.first]  # who has it already
    blocks = (
        *_inwards(cells, up, gpus, width),
        _between(cells, ends, up, down),
        *_outwards(cells, down, gpus, width, given, guests),
    )
    columns: Any = zip(*blocks, strict=True)  # of arrays; mypy sees objects, the fields differ in type
    return _in_order(cells, Block(*map(np.concatenate, columns)), len(sites), width)


class _Ends(NamedTuple):
    """The GPUs at both ends of the transfers between servers. Arrays with an entry for every cell of every transfer.

    src, dst : the GPU that sends the cell; the GPU that receives it
    out, into : the GPU that carries the cell at the sending server; at the receiving server. Not `src` or `dst` for a
    guest, see `_guests`
    """

    src: Ints
    dst: Ints
    out: Ints
    into: Ints


def _ends(cells: Cells, base: Ints, carry: Ints, back: Ints, straight: bool) -> _Ends:
    row, cell, rows = cells.row, cells.cell, cells.rows
    a, b, reduce = rows.src[row], rows.dst[row], rows.reduce[row]
    out, into = (np.where(reduce, carry[s, cell], back[s, cell]) for s in (a, b))
    if not straight:
        return _Ends(out, into, out, into)
    apart = (base[b] - base[a])[:, 0]
    return _Ends(np.where(reduce, out, into - apart), np.where(reduce, out + apart, into), out, into)


def _guests(cells: Cells, ends: _Ends) -> Bools:
    """(servers, cells), whether the cell enters, or leaves, by another GPU than who carries. It enters as part of that
    GPU's own data, and leaves once this GPU has the result."""
    found, rows = np.zeros(cells.need.shape, np.bool_), cells.rows
    for server, at in ((rows.src, ends.src != ends.out), (rows.dst, ends.dst != ends.into)):
        found[server[cells.row[at]], cells.cell[at]] = True
    return found


def _between(cells: Cells, ends: _Ends, up: Runs, down: Runs) -> Block:
    """The transfers between servers; sums are cut at the runs of their source, results at those of their
    destination."""
    row, rows = cells.row, cells.rows
    run = np.where(rows.reduce[row], up.of[rows.src[row], cells.cell], down.of[rows.dst[row], cells.cell])
    opens = np.ones(len(row), np.bool_)
    opens[1:] = False
    for label in (row, ends.src, ends.dst, run):
        opens[1:] |= label[1:] != label[:-1]
    begin = np.flatnonzero(opens)
    last, row = np.append(begin[1:], len(opens))[: len(begin)] - 1, row[begin]
    src, first, stop = ends.src[begin], cells.cell[begin], cells.cell[last] + 1
    kind = np.where(src != ends.out[begin], RowKind.FOR_GUEST, RowKind.BETWEEN)
    return Block(src, ends.dst[begin], first, stop, rows.reduce[row], rows.stage[row], row, kind, np.zeros_like(row))


def _inwards(cells: Cells, runs: Runs, gpus: Ints, width: int) -> tuple[Block, Block]:
    """Members to gatherers, gatherers to carriers, right before the first transfer that takes the sum."""
    count = len(cells.segment)
    time = np.minimum.reduceat(cells.need.ravel(), runs.server * count + runs.first) // count
    (run, member, turn), relay = _fans(runs, gpus, width), np.flatnonzero(runs.hub != runs.door)
    return (
        _inside(runs, run, member, runs.hub[run], time, RowKind.GATHER, turn),
        _inside(runs, relay, runs.hub[relay], runs.door[relay], time, RowKind.TO_CARRIER),
    )


def _outwards(
    cells: Cells, runs: Runs, gpus: Ints, width: int, given: Ints, guests: Bools
) -> tuple[Block, Block, Block]:
    """Results to the next GPU, before the first transfer that takes them; carriers to gatherers, gatherers to members,
    behind the last transfer that completes the result."""
    count = len(cells.segment)
    first = runs.server * count + runs.first
    # Results give way to sums that are needed within half of the whole time: only sums keep NICs waiting.
    late = np.where(guests.ravel()[first], 0, 1 + len(cells.rows.src) // 2)
    time = np.maximum.reduceat(cells.full.ravel(), first) // count + late
    leaves = cells.leave.ravel()[first] // count
    on, relay = np.flatnonzero(given >= 0), np.flatnonzero(runs.hub != runs.door)
    run, member, turn = _fans(runs, gpus, width)
    kept = member != given[run]
    run, member, turn = run[kept], member[kept], turn[kept]
    return (
        _inside(runs, on, given[on], runs.door[on], leaves, RowKind.HAND_ON),
        _inside(runs, relay, runs.door[relay], runs.hub[relay], time, RowKind.FROM_CARRIER),
        _inside(runs, run, runs.hub[run], member, time, RowKind.HAND_OUT, turn),
    )


def _inside(runs: Runs, run: Ints, src: Ints, dst: Ints, time: Ints, kind: RowKind, turn: Ints | None = None) -> Block:
    """Rows over NVLink that move these runs; `time` is that of every run."""
    zero = np.zeros_like(run)
    sums = kind < RowKind.HAND_ON
    stage = zero.astype(np.uint8) + np.uint8(Stage.REDUCE_SCATTER if sums else Stage.ALLGATHER)
    first, stop, turn = runs.first[run], runs.stop[run], zero if turn is None else turn
    return Block(src, dst, first, stop, zero == (0 if sums else 1), stage, time[run], zero + kind, turn)


def _fans(runs: Runs, gpus: Ints, width: int) -> tuple[Ints, Ints, Ints]:
    """Members of a run other than its hub and its door: (run, GPU, how far behind the hub)."""
    count = gpus[runs.server] - 1
    run, turn = np.repeat(np.arange(len(count)), count), ranges(np.ones_like(count), count)
    base = runs.server[run] * width
    gpu = base + (runs.hub[run] - base + turn) % gpus[runs.server[run]]
    kept = gpu != runs.door[run]
    return run[kept], gpu[kept], turn[kept]


def _in_order(cells: Cells, every: Block, groups: int, width: int) -> GpuRows:
    """All rows by time, kind, place in the channel and turn."""
    place = cells.edge[every.first] // max(1, -(-int(cells.edge[-1]) // PLACES))
    key = ((every.time * len(RowKind) + every.kind) * PLACES + place) * width + every.turn
    order = np.argsort(key, kind="stable")
    columns: Any = every
    every = Block(*(column[order] for column in columns))
    pairs, pair = np.unique(every.src * (groups * width) + every.dst, return_inverse=True)
    ends = np.stack(np.divmod(pairs, groups * width), 1)
    waits, dep = waits_by_bytes(every.src, every.dst, every.first, every.stop, every.reduce, len(cells.segment))
    return GpuRows(
        pairs=np.stack(np.divmod(ends, width), 2).reshape(-1, 4),
        pair=pair,
        offset=cells.edge[every.first],
        length=cells.edge[every.stop] - cells.edge[every.first],
        reduce=every.reduce,
        stage=every.stage,
        segment=cells.segment[every.first],
        key=key[order],
        waits=waits,
        dep=dep,
    )
