"""Runs: data that one GPU gathers and one GPU carries, as a whole; and the transfers between servers, cut to fit them.

A run is a chunk, or, where several GPUs of a group share a channel, one GPU's part of one round. A GPU is known by its
group and its distance behind the group's place in the channel, so channels of one shape are made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from optcc.schedule.columns import GRANULE
from optcc.schedule.inside_channels import GpuTask, Site
from optcc.schedule.inside_spans import Bools, Edges, Ints, ServerTransfers, Spans, ranges


class ByteRuns(NamedTuple):
    """Sorted by server and start; columns of shape (runs,).

    base : the first GPU of the group, as server * width; gather, carry : GPUs, base + behind; relayed : they differ
    """

    server: Ints
    start: Ints
    stop: Ints
    segment: Ints
    gpus: Ints
    base: Ints
    gather: Ints
    carry: Ints
    relayed: Bools


def runs_of(network: ServerTransfers, spans: Spans, sites: Sequence[Site], width: int) -> ByteRuns:
    """Chunks of groups with one task as they are, and the rounds of the others."""
    shared = [s for s, site in enumerate(sites) if len(site.tasks) > 1]
    alone = ~np.isin(spans.server, shared)
    found = [Spans(*(column[alone] for column in spans))]
    task = [np.array([site.tasks[0][:2] for site in sites], np.int64)[found[0].server]]
    for s in shared:
        which, start, stop, segment = _rounds(network, sites[s].tasks)
        found.append(Spans(np.full(len(which), s), start, stop, segment))
        task.append(np.array([d[:2] for d in sites[s].tasks], np.int64)[which])
    joined, tasks = Spans(*(np.concatenate(column) for column in zip(*found, strict=True))), np.concatenate(task)
    order = np.lexsort((joined.start, joined.server))
    server, start, stop, segment = (column[order] for column in joined)
    base, (gather, carry) = server * width, tasks[order].T
    gpus = np.array([site.gpus for site in sites])[server]
    return ByteRuns(server, start, stop, segment, gpus, base, base + gather, base + carry, gather != carry)


def _rounds(network: ServerTransfers, tasks: Sequence[GpuTask]) -> tuple[Ints, Ints, Ints, Ints]:
    """(task, start, stop, segment): the channel in the order of time, in as many rounds as chunks.

    In each round every task has its part, and its NIC is busier than others meanwhile. The order changes from round to
    round, since a group sends more of some sections than of others.
    """
    groups, rounds, total = network.groups, network.chunks, int(network.cells[-1])
    which: list[int] = []
    cuts, done = [0], Fraction(0)
    for i in range(rounds):
        for turn in range(len(tasks)):
            which.append((i + turn) % len(tasks))
            done += tasks[which[-1]].part
            cuts.append(int(total * done / rounds) // GRANULE * GRANULE)
    edge = np.array([*cuts[:-1], total], np.int64)
    begins = np.cumsum(groups.stop - groups.start) - (groups.stop - groups.start)
    places = np.unique(np.concatenate((edge, begins)))
    low, high = places[:-1], places[1:]
    group = np.searchsorted(begins, low, "right") - 1
    shift = groups.start[group] - begins[group]
    task = np.array(which)[np.searchsorted(edge, low, "right") - 1]
    return task, low + shift, high + shift, groups.segment[group]


class Pieces(NamedTuple):
    """The network's rows, cut where tasks change: row, run at the source and at the destination, bytes.

    same_first, same_count : for each run on the way out, the runs on the way in with the same bytes
    """

    row: Ints
    out: Ints
    into: Ints
    start: Ints
    stop: Ints
    same_first: Ints
    same_count: Ints


def pieces_of(network: ServerTransfers, up: ByteRuns, down: ByteRuns) -> Pieces:
    """Cut the network's rows at the runs of their sources and destinations."""
    # Positions by their rank among all positions: products with servers stay small whatever the size.
    places = np.unique(np.concatenate((network.cells, up.start, down.start)))

    def within(runs: ByteRuns, server: Ints, start: Ints, stop: Ints) -> tuple[Ints, Ints]:
        """The first run of `server` that has bytes start..stop, and how many have."""
        keys, base = runs.server * len(places) + np.searchsorted(places, runs.start), server * len(places)
        low = np.searchsorted(keys, base + np.searchsorted(places, start), "right") - 1
        return low, np.searchsorted(keys, base + np.searchsorted(places, stop), "left") - low

    row, start, stop = np.arange(len(network.src)), network.offset, network.end
    at: list[Ints] = []
    for server, runs in ((network.src, up), (network.dst, down)):
        low, count = within(runs, server[row], start, stop)
        run, piece = ranges(low, count), np.repeat(np.arange(len(row)), count)
        row, at = row[piece], [*(known[piece] for known in at), run]
        start, stop = np.maximum(start[piece], runs.start[run]), np.minimum(stop[piece], runs.stop[run])
    first, many = within(up, down.server, down.start, down.stop)
    return Pieces(row, at[0], at[1], start, stop, first, many)


def piece_deps(network: ServerTransfers, pieces: Pieces) -> Edges:
    """The network's dependencies, between pieces that share bytes: others may land at another GPU of the server."""
    (waiting, others), rows = network.deps, len(network.src)
    if len(pieces.row) > rows:
        count = np.bincount(pieces.row, minlength=rows)
        first = np.cumsum(count) - count
        waiting, others = ranges(first[waiting], count[waiting]), np.repeat(others, count[waiting])
        waiting, others = np.repeat(waiting, count[others]), ranges(first[others], count[others])
    shared = (pieces.start[waiting] < pieces.stop[others]) & (pieces.start[others] < pieces.stop[waiting])
    order = np.argsort(waiting[shared], kind="stable")
    return Edges(waiting[shared][order], others[shared][order])


class Fans(NamedTuple):
    """Members of a run other than its gatherer and its carrier: run, how far behind the gatherer, GPU."""

    run: Ints
    turn: Ints
    member: Ints


def fans_of(runs: ByteRuns) -> Fans:
    """Who sends to the gatherer, or is sent to by it."""
    run, turn = np.repeat(np.arange(len(runs.gpus)), runs.gpus - 1), ranges(np.ones_like(runs.gpus), runs.gpus - 1)
    member = runs.base[run] + ((runs.gather - runs.base)[run] + turn) % runs.gpus[run]
    kept = member != runs.carry[run]
    return Fans(run[kept], turn[kept], member[kept])


class Doors(NamedTuple):
    """Where pieces leave and enter, as GPUs, and the pieces that do so by another GPU than who carries there.

    A piece that adds to what a server has may enter by any GPU, as part of what that GPU gives to the sum; a finished
    piece may leave by any GPU, once that has the result. guests_in, guests_out : such pieces; run_in, run_out : the run
    on the way in, or out, that has their bytes there
    """

    src: Ints
    dst: Ints
    guests_in: Ints
    run_in: Ints
    guests_out: Ints
    run_out: Ints


def doors_of(network: ServerTransfers, pieces: Pieces, up: ByteRuns, down: ByteRuns, straight: bool) -> Doors:
    """With `straight` a sum leaves for the same place in the next server, and a result comes from it."""
    src, dst, none = up.carry[pieces.out], down.carry[pieces.into], np.zeros(0, np.int64)
    if not straight:
        return Doors(src, dst, none, none, none, none)
    reduce, leave_base, enter_base = network.reduce[pieces.row], up.base[pieces.out], down.base[pieces.into]
    enter, leave = (
        np.where(reduce, enter_base + src - leave_base, dst),
        np.where(reduce, src, leave_base + dst - enter_base),
    )
    guests_in, guests_out = np.flatnonzero(enter != dst), np.flatnonzero(leave != src)
    # Guests' sections are runs by themselves, in and out alike.
    out_of = np.full(len(up.gpus), -1)
    out_of[pieces.same_first] = np.arange(len(down.gpus))
    run_in, run_out = pieces.same_first[pieces.into[guests_in]], out_of[pieces.out[guests_out]]
    return Doors(leave, enter, guests_in, run_in, guests_out, run_out)
