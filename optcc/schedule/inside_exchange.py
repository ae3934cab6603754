"""Direct exchange between servers with GPUs as ranks: what `optcc.schedule.inside` does with `StripedExchange` inside.

The shares of gathering and carrying are as in any bundle. Three things are different from rings:

* Every byte has a hub, so a server's sums are needed in the order in which it meets the hubs. They are made in *runs*
  of neighbouring bytes that grow (`runs_by_time`). Where a run is less than the data for one hub, the transfer to this
  hub is cut, too. NVLink is hardly faster than the NICs, and a NIC that waits for all data of its first hub loses this
  time.
* All results of a hub wait for everything that it gathers: P^2 dependencies for each hub. With `hand_on` the complete
  sum moves on to the next GPU, and results leave by its NIC. Sums then cost a hop more, every NIC has as many bytes as
  before, and results wait for one transfer.
* Bytes are laid out so that data due at one time lies side by side (`optcc.schedule.inside_exchange_layout`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optcc.schedule.columns import Stage
from optcc.schedule.inside_channels import Site
from optcc.schedule.inside_exchange_layout import CellLayout, layout_of
from optcc.schedule.inside_exchange_runs import CellRuns, runs_by_time
from optcc.schedule.inside_rows import HEAD_START, Block, GpuRows, rows_of
from optcc.schedule.inside_spans import Bools, Edges, Ints, ranges
from optcc.schedule.striped_rows import Moves

SUBKEYS = 4096
"""Places in time between two rows of the exchange: equally many in all channels, whose keys are compared."""


class ServerCells(NamedTuple):
    """Data that rows bring to servers or need there: cells first..stop, and the row. Columns of one shape. Columns of
    one shape."""

    server: Ints
    first: Ints
    stop: Ints
    row: Ints

    def at(self, chosen: Bools | Ints) -> ServerCells:
        """Those of a mask, or of indices."""
        return ServerCells(*(column[chosen] for column in self))


class _Pieces(NamedTuple):
    """Transfers between servers, cut where GPUs or runs change: the row, its ends as servers and as GPUs, its cells."""

    row: Ints
    from_server: Ints
    to_server: Ints
    src: Ints
    dst: Ints
    first: Ints
    stop: Ints


class _Fans(NamedTuple):
    """Members that give to a run, or are given it: the run, how far behind the gatherer, the GPU."""

    run: Ints
    turn: Ints
    gpu: Ints


def exchange_rows(moves: Moves, sites: Sequence[Site], hands: Sequence[bool], chunks: int) -> GpuRows:
    """The transfers between GPUs of a channel in which group i does as sites[i].

    moves : the exchange between servers; hands : groups whose next GPU sends results on (they have one task, and NICs
    everywhere); chunks : no run is longer than the channel over this
    """
    lay = layout_of(moves, sites)
    gpus, width = np.array([site.gpus for site in sites]), max(site.gpus for site in sites)
    gather, carry = (_gpus(lay, sites, width, which) for which in (0, 1))
    group, cells = np.arange(len(sites))[:, None], len(lay.hub)
    on = (np.array(hands, np.bool_) & (gpus > 1))[:, None] & (lay.via != group)
    # The place of the result: beside the sum, or at the next GPU.
    result = np.where(on, group * width + (carry - group * width + 1) % gpus[:, None], carry)
    handed = on & (lay.hub == group) & (lay.via < 0)
    alone = np.where(handed, lay.leave, -1)  # a hub's results of one round do not wait for sums of the next
    up = runs_by_time(lay, lay.need, (gather, carry, alone), chunks)
    down = runs_by_time(lay, -lay.full, (np.where(on, result, gather), result, alone), chunks)
    pieces = _pieces(moves, lay, carry, result, up, down)

    at = np.flatnonzero(handed.ravel()[up.begin])
    hand = ServerCells(up.server[at], up.first[at], up.stop[at], lay.leave[up.first[at]])
    fan_in = _fans(up, gpus, width, np.full(len(up.server), -1))
    given = np.where(handed.ravel()[down.begin], carry.ravel()[down.begin], -1)  # who has it already
    fan_out = _fans(down, gpus, width, given)
    relay_in, relay_out = np.flatnonzero(up.gather != up.carry), np.flatnonzero(down.gather != down.carry)
    # Keys are places in time: a row of the exchange, before or after it, and within it the cells in turn.
    opened = 8 * np.minimum.reduceat(lay.need.ravel(), up.begin)
    closed = 8 * (np.maximum.reduceat(lay.full.ravel(), down.begin) + len(moves) // HEAD_START) + 6

    def keys(time: Ints, first: Ints, turn: Ints | int) -> Ints:
        return (time * SUBKEYS + first * SUBKEYS // cells) * width + turn

    def inside(runs: CellRuns, src: Ints, dst: Ints, run: Ints, stage: Stage, key: Ints) -> Block:
        first, stop = runs.first[run], runs.stop[run]
        reduce = np.full(len(run), stage == Stage.REDUCE_SCATTER)
        stages, segment = np.full(len(run), stage, np.uint8), lay.segment[first]
        return Block(src, dst, lay.edge[first], lay.edge[stop] - lay.edge[first], reduce, stages, segment, key)

    sums, results, row = Stage.REDUCE_SCATTER, Stage.ALLGATHER, pieces.row
    here = hand.server * cells + hand.first
    come = keys(opened[fan_in.run], up.first[fan_in.run], fan_in.turn)
    go = keys(closed[fan_out.run], down.first[fan_out.run], fan_out.turn)
    pass_in = keys(opened[relay_in] + 1, up.first[relay_in], 0)
    pass_out = keys(closed[relay_out], down.first[relay_out], 0)
    blocks = (
        inside(up, fan_in.gpu, up.gather[fan_in.run], fan_in.run, sums, come),
        inside(up, up.gather[relay_in], up.carry[relay_in], relay_in, sums, pass_in),
        Block(
            src=pieces.src,
            dst=pieces.dst,
            offset=lay.edge[pieces.first],
            length=lay.edge[pieces.stop] - lay.edge[pieces.first],
            reduce=moves.reduce[row],
            stage=moves.stage[row],
            segment=moves.segment[row].astype(np.int64),
            key=keys(8 * row + 2, pieces.first, 0),
        ),
        inside(up, carry.ravel()[here], result.ravel()[here], at, results, keys(8 * hand.row + 1, hand.first, 1)),
        inside(down, down.carry[relay_out], down.gather[relay_out], relay_out, results, pass_out),
        inside(down, down.gather[fan_out.run], fan_out.gpu, fan_out.run, results, go),
    )
    begins = np.cumsum([0, *(len(block.src) for block in blocks)]).tolist()
    edges = _edges(moves, lay, up, down, fan_in, fan_out, pieces, hand, handed, begins)
    return rows_of(blocks, edges, len(sites), width)


def _gpus(lay: CellLayout, sites: Sequence[Site], width: int, which: int) -> Ints:
    """(servers, cells): who gathers (0) or carries (1), as group * width + behind."""
    found = np.empty_like(lay.task)
    for s, site in enumerate(sites):
        found[s] = s * width + np.array([task[which] for task in site.tasks], np.int64)[lay.task[s]]
    return found


def _pieces(moves: Moves, lay: CellLayout, carry: Ints, result: Ints, up: CellRuns, down: CellRuns) -> _Pieces:
    """Sums are cut at the runs of their source, results at those of their destination."""
    row, cell = lay.row, lay.cell
    src, dst, stage = moves.src[row], moves.dst[row], moves.stage[row]
    # Sums meet at the hub's; a slow rank that adds last keeps sum and result in one place; results go where due.
    away, arrives = np.isin(stage, (Stage.FROM_LEAF, Stage.ALLGATHER)), stage == Stage.ALLGATHER
    out = np.where(away, result[src, cell], carry[src, cell])
    into = np.where(away, result[dst, cell], carry[dst, cell])
    run = np.where(stage == Stage.REDUCE_SCATTER, up.of[src, cell], np.where(arrives, down.of[dst, cell], -1))
    opens = np.ones(len(row), np.bool_)
    opens[1:] = row[1:] != row[:-1]
    for label in (out, into, run):
        opens[1:] |= label[1:] != label[:-1]
    begin = np.flatnonzero(opens)
    last = np.append(begin[1:], len(row)) - 1
    return _Pieces(row[begin], src[begin], dst[begin], out[begin], into[begin], cell[begin], cell[last] + 1)


def _fans(runs: CellRuns, gpus: Ints, width: int, without: Ints) -> _Fans:
    """Members but the gatherer, the carrier, and GPU `without` of each run."""
    count = gpus[runs.server] - 1
    run, turn = np.repeat(np.arange(len(count)), count), ranges(np.ones_like(count), count)
    base = runs.server[run] * width
    gpu = base + (runs.gather[run] - base + turn) % gpus[runs.server[run]]
    kept = (gpu != runs.carry[run]) & (gpu != without[run])
    return _Fans(run[kept], turn[kept], gpu[kept])


def _edges(
    moves: Moves,
    lay: CellLayout,
    up: CellRuns,
    down: CellRuns,
    fan_in: _Fans,
    fan_out: _Fans,
    pieces: _Pieces,
    hand: ServerCells,
    handed: Bools,
    begins: Sequence[int],
) -> list[Edges]:
    """What rows wait for, by their place in all blocks.

    A server's own sum comes from its members, or by the relay from its gatherer. A hub's sum is its own and what others
    send it; who adds last has the result with its own sum and the hub's. Whatever takes something waits for all that.
    """
    first_in, first_across, first_hand, first_out, first_go = begins[1:6]
    stage = moves.stage[pieces.row]
    raw, partial, final, result = (stage == s for s in Stage.__members__.values())

    def of_runs(runs: CellRuns, run: Ints, begin: int) -> ServerCells:
        return ServerCells(runs.server[run], runs.first[run], runs.stop[run], begin + np.arange(len(run)))

    leaves = ServerCells(pieces.from_server, pieces.first, pieces.stop, first_across + np.arange(len(pieces.row)))
    lands = leaves._replace(server=pieces.to_server)
    hands = hand._replace(row=first_hand + np.arange(len(hand.row)))
    members, relays = of_runs(up, fan_in.run, 0), of_runs(up, np.flatnonzero(up.gather != up.carry), first_in)
    relayed = (up.gather != up.carry)[fan_in.run]
    own = _joined(members.at(~relayed), relays)

    relay_out = np.flatnonzero(down.gather != down.carry)
    back, goes = of_runs(down, relay_out, first_out), of_runs(down, fan_out.run, first_go)
    direct = ~(down.gather != down.carry)[fan_out.run]
    takers = _joined(leaves.at(result | final), back, goes.at(direct))
    to_sum = _joined(hands, leaves.at(partial))
    group, cells = np.arange(len(lay.need))[:, None], len(lay.hub)
    at_hub = (lay.hub == group) & (lay.via < 0) & ~handed  # where all that is gathered gives the result
    return [
        _waits(relays, members.at(relayed), cells),
        _waits(_joined(leaves.at(raw), to_sum), own, cells),
        _waits(to_sum, lands.at(raw), cells),
        _waits(takers, _joined(lands.at(~raw), hands), cells),
        _waits(takers, own, cells, at_hub | (lay.via == group)),
        _waits(takers, lands.at(raw), cells, at_hub),
        _waits(goes.at(~direct), back, cells),
    ]


def _joined(*parts: ServerCells) -> ServerCells:
    return ServerCells(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _waits(takers: ServerCells, givers: ServerCells, cells: int, where: Bools | None = None) -> Edges:
    """Every taker waits for every giver with a cell at the same server in common; of givers only those in `where`."""

    def spread(parts: ServerCells) -> tuple[Ints, Ints]:
        count = parts.stop - parts.first
        return np.repeat(np.arange(len(count)), count), ranges(parts.server * cells + parts.first, count)

    takers = takers.at(np.argsort(takers.row, kind="stable"))
    (taker, wanted), (giver, had) = spread(takers), spread(givers)
    at = wanted - takers.server[taker] * cells
    if where is not None:
        kept = where.ravel()[had]
        giver, had = giver[kept], had[kept]
    order = np.argsort(had, kind="stable")
    giver, had = giver[order], had[order]
    low = np.searchsorted(had, wanted)
    count = np.searchsorted(had, wanted, "right") - low
    taker, giver = np.repeat(taker, count), giver[ranges(low, count)]
    if where is None:  # a pair counts at the first cell that it has in common
        once = np.repeat(at, count) == np.maximum(takers.first[taker], givers.first[giver])
        return Edges(takers.row[taker[once]], givers.row[giver[once]])
    most = len(givers.row) + 1
    taker, giver = np.divmod(np.unique(taker * most + giver), most)
    return Edges(takers.row[taker], givers.row[giver])
