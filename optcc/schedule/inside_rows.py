"""From transfers between servers to transfers between their GPUs, for one channel of `optcc.schedule.inside`.

The GPU that *gathers* a run gets it from the group's other GPUs over NVLink, adds it up, and gives them the result. The
GPU that *carries* it takes part with its NIC in the schedule between servers. If both are the same GPU, no byte moves
twice. Otherwise the sum goes to the carrier and the result comes back, one more hop and no more load (proof id
inside-servers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.columns import Stage
from optcc.schedule.inside_channels import Site
from optcc.schedule.inside_runs import ByteRuns, Doors, Fans, Pieces, doors_of, fans_of, piece_deps, pieces_of, runs_of
from optcc.schedule.inside_spans import Bools, Edges, Ints, ServerTransfers, ranges

HEAD_START = 6
"""Results give way to sums that are needed within this part of the whole time: only sums keep NICs waiting."""


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


class Block(NamedTuple):
    """Rows of one kind; GPUs as in `ByteRuns`."""

    src: Ints
    dst: Ints
    offset: Ints
    length: Ints
    reduce: Bools
    stage: NDArray[np.uint8]
    segment: Ints
    key: Ints


def channel_rows(network: ServerTransfers, sites: Sequence[Site], *, straight: bool = False) -> GpuRows:
    """The transfers between GPUs of a channel in which group i does as sites[i].

    Five blocks: members to gatherers, gatherers to carriers, the network, and back: carriers to gatherers, gatherers to
    members. Keys put a run's sum right before the first transfer that needs it and its result behind the last one that
    completes it; members start with different gatherers, so that not all send to the same GPU.
    """
    width = max(site.gpus for site in sites)
    up, down = (runs_of(network, spans, sites, width) for spans in (network.up, network.down))
    pieces, fan_in, fan_out = pieces_of(network, up, down), fans_of(up), fans_of(down)
    doors = doors_of(network, pieces, up, down, straight)
    relay_in, relay_out, row = np.flatnonzero(up.relayed), np.flatnonzero(down.relayed), pieces.row
    opened, closed = _keys(network, pieces, up, down, doors)
    across = 8 * row + 2
    across[doors.guests_out] += 3  # behind the result, which is handed out at once

    def inside(runs: ByteRuns, src: Ints, dst: Ints, run: Ints, stage: Stage, key: Ints) -> Block:
        reduce, stages = np.full(len(run), stage == Stage.REDUCE_SCATTER), np.full(len(run), stage, np.uint8)
        return Block(src, dst, runs.start[run], (runs.stop - runs.start)[run], reduce, stages, runs.segment[run], key)

    sums, results = Stage.REDUCE_SCATTER, Stage.ALLGATHER
    come, go = opened[fan_in.run] * width + fan_in.turn, closed[fan_out.run] * width + fan_out.turn
    blocks = (
        inside(up, fan_in.member, up.gather[fan_in.run], fan_in.run, sums, come),
        inside(up, up.gather[relay_in], up.carry[relay_in], relay_in, sums, (opened[relay_in] + 1) * width),
        Block(
            src=doors.src,
            dst=doors.dst,
            offset=pieces.start,
            length=pieces.stop - pieces.start,
            reduce=network.reduce[row],
            stage=network.stage[row],
            segment=network.segment[row],
            key=across * width,
        ),
        inside(down, down.carry[relay_out], down.gather[relay_out], relay_out, results, closed[relay_out] * width),
        inside(down, down.gather[fan_out.run], fan_out.member, fan_out.run, results, go),
    )
    return rows_of(blocks, _edges(network, pieces, up, down, fan_in, fan_out, doors), len(sites), width)


def rows_of(blocks: Sequence[Block], edges: Sequence[Edges], groups: int, width: int) -> GpuRows:
    """All blocks in one order, by key. edges : what rows wait for, by their place in all blocks in turn."""
    columns: Any = zip(*blocks, strict=True)  # of arrays; mypy sees objects, the fields differ in type
    every = Block(*map(np.concatenate, columns))
    pairs, pair = np.unique(every.src * (groups * width) + every.dst, return_inverse=True)
    ends = np.stack(np.divmod(pairs, groups * width), 1)
    order = np.argsort(every.key, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    waits, dep = _csr(len(order), edges)
    return GpuRows(
        pairs=np.stack(np.divmod(ends, width), 2).reshape(-1, 4),
        pair=pair[order],
        offset=every.offset[order],
        length=every.length[order],
        reduce=every.reduce[order],
        stage=every.stage[order],
        segment=every.segment[order],
        key=every.key[order],
        waits=waits[order],
        dep=place[dep[ranges((np.cumsum(waits) - waits)[order], waits[order])]],
    )


def _keys(network: ServerTransfers, pieces: Pieces, up: ByteRuns, down: ByteRuns, doors: Doors) -> tuple[Ints, Ints]:
    """Of runs on the way in, and of runs on the way out; a row of the network has 8 times its place, and 2."""
    rows, runs = len(network.src), len(down.gpus)
    raw, last, alone = network.raw[pieces.row], network.last[pieces.row], not rows
    begins, ends = np.arange(len(up.gpus)) * alone, np.arange(runs) * alone
    delay = np.full(runs, rows // HEAD_START)
    delay[doors.run_out] = 0
    # Where an index occurs more than once, the last assignment stays.
    begins[pieces.out[raw][::-1]] = pieces.row[raw][::-1]
    ends[pieces.into[last]] = pieces.row[last]
    shared = pieces.same_count * _folded(network, pieces, runs)
    latest = np.zeros(runs, np.int64)
    np.maximum.at(latest, np.repeat(np.arange(runs), shared), begins[ranges(pieces.same_first, shared)])
    return 8 * begins, np.maximum(8 * (ends + delay) + 6, 8 * latest + 2)


def _folded(network: ServerTransfers, pieces: Pieces, runs: int) -> Bools:
    """Runs that the network only adds to, or never touches: finished once the group's own sum is there, too."""
    last = network.last[pieces.row]
    folded = np.ones(runs, np.bool_)
    folded[pieces.into[last]] = False
    folded[pieces.into[last & network.reduce[pieces.row]]] = True
    return folded


def _edges(
    network: ServerTransfers, pieces: Pieces, up: ByteRuns, down: ByteRuns, fan_in: Fans, fan_out: Fans, doors: Doors
) -> list[Edges]:
    """What the rows of the blocks wait for, by their place in all of them."""
    relay_in, relay_out = np.flatnonzero(up.relayed), np.flatnonzero(down.relayed)
    sizes = (len(fan_in.run), len(relay_in), len(pieces.row), len(relay_out))
    first_in, across, first_out, members = np.cumsum(sizes).tolist()  # where the blocks begin, the first at 0
    fan, runs = up.gpus - 1 - up.relayed, len(down.gpus)
    fan_first = np.cumsum(fan) - fan
    # What lands at the carrier and makes its sum complete.
    ready_first = np.where(up.relayed, first_in + np.cumsum(up.relayed) - 1, fan_first)
    ready_count = np.where(up.relayed, 1, fan)
    found: list[Edges] = []

    def wait(places: Ints, first: Ints, count: Ints) -> None:
        found.append(Edges(np.repeat(places, count), ranges(first, count)))

    wait(first_in + np.arange(len(relay_in)), fan_first[relay_in], fan[relay_in])
    guest_in, guest_out = np.zeros((2, len(pieces.row)), np.bool_)
    guest_in[doors.guests_in], guest_out[doors.guests_out] = True, True
    between = piece_deps(network, pieces)
    kept = ~(guest_in[between.dep] | guest_out[between.waits])
    found.append(Edges(across + between.waits[kept], across + between.dep[kept]))
    raw = np.flatnonzero(network.raw[pieces.row] & ~guest_out)
    wait(across + raw, ready_first[pieces.out[raw]], ready_count[pieces.out[raw]])
    # What guests bring is passed on with the member's own; what they get, the member must have got.
    joining = _row_of(up, doors.run_in, doors.dst[doors.guests_in], 0, first_in)
    by_row = np.argsort(joining, kind="stable")
    found.append(Edges(joining[by_row], across + doors.guests_in[by_row]))
    told = _row_of(down, doors.run_out, doors.src[doors.guests_out], members, first_out)
    found.append(Edges(across + doors.guests_out, told))

    final = np.flatnonzero(network.last[pieces.row] & ~guest_in)
    closing = final[np.argsort(pieces.into[final], kind="stable")]
    closings = np.bincount(pieces.into[final], minlength=runs)
    closing_first = np.cumsum(closings) - closings
    # Runs on the way in that share bytes are neighbours, and so are the rows that make their sums complete.
    until, sum_first = pieces.same_first + pieces.same_count - 1, ready_first[pieces.same_first]
    sum_count = (ready_first[until] + ready_count[until] - sum_first) * _folded(network, pieces, runs)
    direct, relayed = np.flatnonzero(~down.relayed[fan_out.run]), np.flatnonzero(down.relayed[fan_out.run])
    for places, run in ((first_out + np.arange(len(relay_out)), relay_out), (members + direct, fan_out.run[direct])):
        landed = across + closing[ranges(closing_first[run], closings[run])]
        found.append(Edges(np.repeat(places, closings[run]), landed))
        wait(places, sum_first[run], sum_count[run])
    found.append(Edges(members + relayed, first_out + (np.cumsum(down.relayed) - 1)[fan_out.run[relayed]]))
    return found


def _row_of(runs: ByteRuns, run: Ints, gpu: Ints, fans: int, relays: int) -> Ints:
    """Where the row is that takes a run from GPU `gpu` to its gatherer, or brings it; the gatherer's is its relay."""
    behind, carrier = ((x - runs.gather[run]) % runs.gpus[run] for x in (gpu, runs.carry[run]))
    count = runs.gpus - 1 - runs.relayed
    member = fans + (np.cumsum(count) - count)[run] + behind - 1 - ((carrier > 0) & (carrier < behind))
    return np.where(behind > 0, member, relays + (np.cumsum(runs.relayed) - 1)[run])


def _csr(rows: int, edges: Sequence[Edges]) -> tuple[Ints, Ints]:
    """Edges, sorted by who waits in each part, as (how many each row has, all in turn)."""
    counts = [np.bincount(part.waits, minlength=rows) for part in edges]
    total = np.sum(counts, axis=0)
    at, dep = np.cumsum(total) - total, np.empty(int(total.sum()), np.int64)
    for part, count in zip(edges, counts, strict=True):
        dep[ranges(at, count)] = part.dep
        at = at + count
    return total, dep
