"""Inside servers: GPUs as ranks. A schedule between servers runs between their GPUs' NICs, and NVLink does the rest.

Every server sums each piece of the buffer in one of its GPUs over NVLink. The sum takes part in a schedule between
servers, and the result is handed out over NVLink; different pieces do this at the same time. Which GPU sums a piece (it
*gathers*) and whose NIC takes it to other servers (this GPU *carries*) are separate questions:

* gathering shared out evenly loads every NVLink port by 2(G-1)/G of the buffer, the least there is;
* carrying in proportion to live NIC rates loads all NICs of a server alike.

So each GPU carries what it gathers, as far as its NIC allows. The rest, left over by a dead or slow NIC, goes by the
neighbours' NICs, which NCCL calls PXN. This makes no NVLink port busier (proof id inside-servers). GPUs of equal place
gather the same bytes on every server, so a channel stays on its rail. Where NVLink is the limit, part of the buffer
goes between teams of fewer GPUs. `optcc.theory.inside_split` finds the parts, `inside_servers` makes bundles of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from fractions import Fraction
from functools import cache
from itertools import accumulate, pairwise, product
from math import isqrt
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InfeasibleError
from optcc.schedule.assemble import even_cuts, granule, require_memory
from optcc.schedule.columns import GRANULE, Lane, Route, Schedule, Stage
from optcc.schedule.nested import NestedRings, Ordering, nested_rings, two_segments_under_way
from optcc.schedule.recipe import (
    MAX_SEGMENTS,
    CandidateFamily,
    Costs,
    Recipe,
    Segments,
    default_segments,
    require,
)
from optcc.schedule.routes import Routes, no_collection
from optcc.schedule.striped import Moves, StripedExchange
from optcc.schedule.tuned import FREE_RUNS, LARGE, MANY, WAYS
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster, Fabric, Nic, Rank, Server
from optcc.values.json_records import LAST, As, Codec, FieldError, Index, Json, Least, Natural

# The GPU groups that take part in the schedule between servers, and the shares with which their GPUs gather and
# carry.
#
# A *group* (`groups` in plan files) is the GPUs of a server. Where NVLink is too slow to join all of them, it is one
# of several equal teams of them. Teams share the live NICs as evenly as they can.


Shares = tuple[tuple[Fraction, ...], ...]
"""For each group the shares of its GPUs, of sum 1."""


@dataclass(frozen=True)
class RowsOfShares:
    """Shares as plan files have them, each different row once.

    rows : the shares of a group's GPUs; crews : the row of each group
    """

    rows: tuple[tuple[Fraction, ...], ...]
    crews: tuple[Index, ...]

    @classmethod
    def of(cls, shares: Shares) -> RowsOfShares:
        """The same, by rows."""
        rows = tuple(dict.fromkeys(shares))
        return cls(rows, tuple(rows.index(row) for row in shares))


SharesInRows = Annotated[Shares, As(RowsOfShares, RowsOfShares.of)]


@dataclass(frozen=True)
class GpuGroup:
    """GPUs, as ranks, of one server (by number), in places 0, 1, ..."""

    name: str
    server: int
    gpus: tuple[Rank, ...]


def usable(rank: Rank) -> Fraction:
    """Bytes per second that a GPU's NICs can take both in and out."""
    return min(rank.out_rate, rank.in_rate)


def gpu_groups(cluster: Cluster, teams: int = 1) -> tuple[GpuGroup, ...]:
    """Every server's GPUs as `teams` groups, which divides their number: the first of every server, then the second...

    In this order neighbours in a ring over the groups are on different servers.
    """
    own: list[list[Rank]] = [[] for _ in cluster.servers]
    for rank in cluster.ranks:
        own[rank.server].append(rank)
    if teams > 1:  # deal from the slowest on, so that no team is left without a NIC while another has two
        own = [sorted(gpus, key=usable) for gpus in own]
    return tuple(
        GpuGroup(server.name if teams == 1 else f"{server.name}.{team}", s, tuple(gpus[team::teams]))
        for team in range(teams)
        for s, (server, gpus) in enumerate(zip(cluster.servers, own, strict=True))
    )


def even_shares(groups: Sequence[GpuGroup]) -> Shares:
    """All GPUs of a group alike."""
    return tuple((Fraction(1, len(group.gpus)),) * len(group.gpus) for group in groups)


def shares_by_rate(groups: Sequence[GpuGroup]) -> Shares:
    """GPUs in proportion to the rates of their live NICs. Raises InfeasibleError for a group without any."""
    shares = []
    for group in groups:
        rates = [usable(gpu) for gpu in group.gpus]
        if not any(rates):
            raise InfeasibleError(
                "no GPU can both send to other servers and receive from them",
                where=group.name,
                expected="a GPU with live NICs each way",
                got="none",
                hint="Repair a NIC of this server, or take packed trees, which may send and receive by different GPUs.",
            )
        shares.append(tuple(rate / sum(rates, Fraction(0)) for rate in rates))
    return tuple(shares)


def shares_of_slot(groups: Sequence[GpuGroup], slot: int, guests: Collection[int]) -> Shares:
    """Shares of the GPU in place `slot` of each group. Guests (by number) use all GPUs with NICs, by rate, in places
    where all others have a live NIC.

    Raises InfeasibleError where a group is left without.
    """
    hosts = [group for i, group in enumerate(groups) if i not in guests]
    width = min(len(group.gpus) for group in groups)
    met = [all(usable(group.gpus[place]) for group in hosts) for place in range(width)]
    shares = []
    for i, group in enumerate(groups):
        serves = met if i in guests else [place == slot for place in range(width)]
        rates = [usable(gpu) * (place < width and serves[place]) for place, gpu in enumerate(group.gpus)]
        if not any(rates):
            raise InfeasibleError(
                "no rail by which a server meets all others",
                where=group.name,
                expected=f"a live NIC in place {slot}, or in one where all others have one",
                got="none",
                hint="Join the rails by a spine, or take packed trees, which may use a different rail for each pair.",
            )
        shares.append(tuple(rate / sum(rates, Fraction(0)) for rate in rates))
    return tuple(shares)


def view(cluster: Cluster, groups: Sequence[GpuGroup], carry: Shares) -> Cluster:
    """The cluster on which the groups schedule: each is a server with one NIC, as fast as `carry` allows for its GPUs'
    NICs."""
    servers = []
    for group, shares in zip(groups, carry, strict=True):
        limits = [usable(gpu) / share for gpu, share in zip(group.gpus, shares, strict=True) if share]
        rate = min(limits, default=Fraction(0))
        servers.append(Server(group.name, (Nic("all", rate, rate),), pod=cluster.servers[group.server].pod))
    return Cluster(tuple(servers), fabric=Fabric(pod_oversubscription=cluster.fabric.pod_oversubscription))


# The channels of a bundle: the GPUs that gather and carry, by place in the group.


Band = tuple[Fraction, Fraction]


class GpuTask(NamedTuple):
    """One GPU gathers, one carries `part` of a group's bytes in a channel; both by how far behind the group's place."""

    gather: int
    carry: int
    part: Fraction


@dataclass(frozen=True)
class Site:
    """A group in a channel: how many GPUs, and their tasks."""

    gpus: int
    tasks: tuple[GpuTask, ...]


@dataclass(frozen=True)
class Channel:
    """Part `low` to `high` of a bundle. sites : the work of each group; places : the GPU of each group whose channel it
    is."""

    low: Fraction
    high: Fraction
    sites: tuple[Site, ...]
    places: tuple[int, ...]


def channels(gather: Shares, carry: Shares) -> list[Channel]:
    """One channel for each GPU that gathers in most groups.

    In a group with other shares, the GPU does in its channel what its shares allow, and others do the rest. Those that
    can both gather and carry come first.
    """
    usual: dict[int, tuple[Fraction, ...]] = {}
    for row, _ in Counter(gather).most_common():
        usual.setdefault(len(row), row)
    ends = {end for row in usual.values() for end in (Fraction(0), *accumulate(row))}
    bands = list(pairwise(sorted(ends)))
    places = {size: [_place(row, low) for low, _ in bands] for size, row in usual.items()}

    @cache
    def dealt(gather: tuple[Fraction, ...], carry: tuple[Fraction, ...]) -> list[Site]:
        return _deal(bands, places[len(gather)], gather, carry)

    groups = [dealt(*shares) for shares in zip(gather, carry, strict=True)]
    return [
        Channel(*band, tuple(group[i] for group in groups), tuple(places[len(row)][i] for row in gather))
        for i, band in enumerate(bands)
    ]


def _place(shares: Sequence[Fraction], low: Fraction) -> int:
    """The GPU whose share contains position `low`."""
    return next(place for place, end in enumerate(accumulate(shares)) if low < end)


def _deal(
    bands: Sequence[Band], places: Sequence[int], gather: Sequence[Fraction], carry: Sequence[Fraction]
) -> list[Site]:
    """Deal the bands to pairs of a gathering and a carrying GPU, within the shares of both."""
    gpus, gathers, carries = len(gather), list(gather), list(carry)
    rest = [high - low for low, high in bands]
    taken: list[dict[tuple[int, int], Fraction]] = [{} for _ in bands]

    def take(band: int, gatherer: int, carrier: int) -> None:
        pair = (gatherer % gpus, carrier % gpus)
        part = min(rest[band], gathers[pair[0]], carries[pair[1]])
        if part:
            taken[band][pair] = taken[band].get(pair, Fraction(0)) + part
            rest[band] -= part
            gathers[pair[0]] -= part
            carries[pair[1]] -= part

    for other, turn in product(range(gpus), repeat=2):  # first GPUs that carry what they gather
        for band, place in enumerate(places):
            take(band, place + turn, place + turn + other)
    return [
        Site(
            gpus, tuple(GpuTask((g - place) % gpus, (c - place) % gpus, x / (high - low)) for (g, c), x in mine.items())
        )
        for (low, high), place, mine in zip(bands, places, taken, strict=True)
    ]


# What a schedule between servers needs of the inside of each, byte by byte, and when.
#
# A *cell* is a range of bytes that no transfer cuts. A server must have its own sum of it when the first transfer
# takes it from there. It has the result when the last transfer that brings it has landed. This is all that matters
# inside; the dependencies between servers follow from the bytes.


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


# Which earlier transfers a transfer waits for: those that bring its source GPU the bytes that it sends.


def waits_by_bytes(src: Ints, dst: Ints, first: Ints, stop: Ints, reduce: Bools, cells: int) -> tuple[Ints, Ints]:
    """(rows,), how many rows each row waits for; and the numbers of these rows, row after row.

    src, dst, first, stop, reduce : (rows,) in the order of time. Row i moves cells first to stop - 1 of `cells` from
    GPU src to GPU dst, where they are added (`reduce`) or copied

    A row that sends a cell waits for the last copy into that cell and for what was added since. It need not wait for
    what landed there before the copy: the copy is a result made of it, so the copy has waited for it.
    """
    row, cell = np.repeat(np.arange(len(src)), stop - first), ranges(first, stop - first)
    place = dst[row] * cells + cell
    order = np.argsort(place, kind="stable")
    place, lander = place[order], row[order]
    opens = np.ones(len(order), np.bool_)
    opens[1:] = place[1:] != place[:-1]
    since = np.maximum.accumulate(np.where(opens | ~reduce[lander], np.arange(len(order)), 0))
    # In front of (GPU and cell that row i takes, i), among all (GPU and cell where a row lands, row), is what landed.
    takes, times = src[row] * cells + cell, len(src) + 1
    end = np.searchsorted(place * times + lander, takes * times + row)
    last = np.maximum(end - 1, 0)
    landed = (end > 0) & (np.append(place, -1)[last] == takes)
    begin = np.where(landed, since[last], end) if len(place) else end
    taker, giver = np.repeat(np.arange(len(row)), end - begin), lander[ranges(begin, end - begin)]
    # What was there at the cell before, too, has been counted.
    earliest = np.append(np.where(landed, lander[begin * landed], len(src)), len(src))[taker - 1]
    again = (cell[taker] > first[row[taker]]) & (first[giver] < cell[taker]) & (giver >= earliest)
    taker, giver = row[taker[~again]], giver[~again]
    return np.bincount(taker, minlength=len(src)), giver


# Runs: the bytes that one GPU sums, or hands out, as a whole over NVLink.
#
# Short runs let the first transfer start early and the last result be out soon; long ones are few. So all are equally
# long, but for the first two on the way in and the last two on the way out. These are half as long.


class Runs(NamedTuple):
    """Sorted by server and cell; columns of shape (runs,), but `of`.

    first, stop : cells; hub : the GPU that gathers, or hands out; door : the GPU from which the sum leaves, or which
    the result enters; of : (servers, cells), the run of each
    """

    server: Ints
    first: Ints
    stop: Ints
    hub: Ints
    door: Ints
    of: Ints


def runs_of(cells: Cells, when: Ints, hub: Ints, door: Ints, apart: Ints, longest: int) -> Runs:
    """Neighbouring cells in one run. What one transfer moves stays together, unless it is longer than a run may be.

    when : (servers, cells), times, or less than 0: seen from the end; apart : (servers, cells), ends runs where it
    changes
    """
    servers, count = when.shape
    order = np.argsort(when, axis=1)
    size, timed = np.diff(cells.edge)[order], np.abs(np.take_along_axis(when, order, 1)) // count
    before = np.cumsum(size, axis=1) - size
    opens = np.ones((servers, count), np.bool_)
    opens[:, 1:] = timed[:, 1:] != timed[:, :-1]
    unit = np.cumsum(opens) - 1
    unit_before, unit_size = before[opens], np.bincount(unit, size.ravel())
    small = unit_size <= np.where(unit_before < longest, longest // 2, longest)
    level = np.where(small[unit], unit_before[unit], before.ravel())
    step = np.empty((servers, count), np.int64)
    np.put_along_axis(step, order, np.where(level < longest // 2, -1, level // longest).reshape(servers, count), 1)
    starts = np.ones((servers, count), np.bool_)
    starts[:, 1:] = False
    for label in (step, hub, door, apart):
        starts[:, 1:] |= label[:, 1:] != label[:, :-1]
    begin = np.flatnonzero(starts)
    server, first = np.divmod(begin, count)
    stop = np.append(begin[1:], servers * count) - server * count
    of = (np.cumsum(starts) - 1).reshape(servers, count)
    return Runs(server, first, stop, hub.ravel()[begin], door.ravel()[begin], of)


def shared_out(cells: Cells, sites: Sequence[Site], turn: int) -> tuple[Cells, Ints]:
    """Cells cut where the tasks of a site change, and (servers, cells) which of its site's tasks has each.

    In the order of time all tasks have a turn of about `turn` bytes, each in proportion to its part, then again, and so
    on. What a server sends more often, as a hub, is shared out by itself, so that all NICs send as much. The first of a
    round changes, since a NIC is busier during its turn.
    """
    turns: dict[int, tuple[Ints, Ints]] = {}
    for s, site in enumerate(sites):
        if len(site.tasks) > 1:
            turns[s] = _turns(cells, s, [task.part for task in site.tasks], turn)
    fine = cut(cells, np.concatenate([np.zeros(0, np.int64), *(begin for begin, _ in turns.values())]))
    which = np.zeros(fine.need.shape, np.int64)
    for s, (begin, task) in turns.items():
        which[s] = task[np.searchsorted(begin, fine.edge[:-1], "right") - 1]
    return fine, which


def _turns(cells: Cells, server: int, parts: Sequence[Fraction], length: int) -> tuple[Ints, Ints]:
    """(positions at which turns begin, in order; the task of each)."""
    begins, tasks = list[Ints](), list[Ints]()
    for often in np.unique(cells.sends[server]):
        mine = np.flatnonzero(cells.sends[server] == often)
        mine = mine[np.argsort(cells.need[server, mine], kind="stable")]
        size = np.diff(cells.edge)[mine]
        total, start = int(size.sum()), np.cumsum(size) - size
        rounds, turn = max(1, round(total / len(parts) / length)), list[int]()
        ends, done = [0], Fraction(0)
        for i in range(rounds * len(parts)):
            turn.append((i + i // len(parts)) % len(parts))
            done += parts[turn[-1]]
            ends.append(int(total * done / rounds) // GRANULE * GRANULE)
        places = np.unique(np.concatenate((np.array(ends[:-1]), start)))
        which = np.searchsorted(start, places, "right") - 1
        begins.append(cells.edge[mine[which]] + (places - start[which]) // GRANULE * GRANULE)
        tasks.append(np.array(turn)[np.searchsorted(np.array(ends[:-1]), places, "right") - 1])
    begin, task = np.concatenate(begins), np.concatenate(tasks)
    order = np.argsort(begin, kind="stable")
    return begin[order], task[order]


# From transfers between servers to transfers between their GPUs, for one channel.
#
# The GPU that *gathers* a run gets it from the group's other GPUs over NVLink, adds it up, and gives them the result.
# The GPU that *carries* it takes part with its NIC in the schedule between servers. If both are the same GPU, no byte
# moves twice. Otherwise the sum goes to the carrier and the result comes back, one more hop and no more load (proof
# id inside-servers).
#
# Rows are put in the order of time. What each waits for then follows from the bytes (`waits_by_bytes`).


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


# The channels put together: ranks for places in groups, routes, one order of all rows.


@dataclass(frozen=True, eq=False)
class Placed:
    """A channel's rows: from byte `start` of the buffer on, among `groups`, whose channel it is by their `places`."""

    start: int
    groups: Sequence[GpuGroup]
    places: Sequence[int]
    rows: GpuRows


def join(cluster: Cluster, nbytes: int, parts: Sequence[Placed]) -> Schedule:
    """All rows in one order: by key, where every channel's keys are stretched to the same range of time."""
    routes, base = Routes(cluster), 0
    parts = [part for part in parts if len(part.rows.key)]
    ends = [_ranks(part)[part.rows.pairs[:, ::2], part.rows.pairs[:, 1::2]] for part in parts]
    table, route_of = _table(cluster, routes, np.concatenate([np.zeros((0, 2), np.int64), *ends]))
    found: list[tuple[NDArray[Any], ...]] = [tuple(np.zeros(0, np.int64) for _ in range(9))]
    longest = max((int(part.rows.key[-1]) for part in parts), default=0)
    pairs = 0
    for part, mine in zip(parts, ends, strict=True):
        rows = part.rows
        route = route_of[pairs + rows.pair]
        pairs += len(mine)
        key = rows.key * (longest // max(1, int(rows.key[-1])))
        columns = (rows.offset + part.start, rows.length, rows.reduce, rows.stage, rows.segment)
        found.append((route, *columns, key, rows.waits, rows.dep + base))
        base += len(route)
    route, offset, length, reduce, stage, segment, key, waits, dep = map(np.concatenate, zip(*found, strict=True))
    order = np.argsort(key, kind="stable")
    place = np.empty(base, np.int64)
    place[order] = np.arange(base)
    own = (column[order] for column in (route, offset, length, reduce, stage, segment))
    dep = place[dep[ranges((np.cumsum(waits) - waits)[order], waits[order])]]
    return routes.schedule(nbytes, own, waits[order], dep).replace(routes=table)


def _table(cluster: Cluster, routes: Routes, ends: Ints) -> tuple[tuple[Route, ...], Ints]:
    """The routes between these (source, destination), in the order in which they come, and which is whose.

    Where both ends have a single port that can take part there is one lane, which `routes` need not work out.
    """
    ranks = len(cluster.ranks)
    pairs, first, which = np.unique(ends[:, 0] * ranks + ends[:, 1], return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    src, dst = np.divmod(pairs[order], ranks)
    server = np.array([rank.server for rank in cluster.ranks], np.int64)
    beside = server[src] == server[dst]
    nic, nvlink = _only_ports(cluster, routes)
    out, into = (np.where(beside, nvlink[rank], nic[rank]) for rank in (src, dst))
    whole = Fraction(1)
    with no_collection():
        table = tuple(
            Route(a, b, (Lane(leaves, enters, whole),)) if leaves >= 0 and enters >= 0 else routes.table[routes(a, b)]
            for a, b, leaves, enters in zip(*(column.tolist() for column in (src, dst, out, into)), strict=True)
        )
    return table, place[which]


def _only_ports(cluster: Cluster, routes: Routes) -> tuple[Ints, Ints]:
    """Each rank's only live NIC, if it works both ways and one fabric joins all, and its NVLink port; -1: no such."""
    nic, nvlink = np.full((2, len(cluster.ranks)), -1)
    for rank in cluster.ranks if cluster.fabric.flat else ():
        live = [each for each in rank.nics if each.alive]
        if len(live) == 1 and live[0].out_rate and live[0].in_rate:
            nic[rank.index] = routes.port_index[f"{cluster.servers[rank.server].name}/{live[0].name}"]
    for index, port in enumerate(routes.ports):
        if port.nvlink:
            nvlink[port.rank] = index
    return nic, nvlink


def _ranks(part: Placed) -> Ints:
    """int64 (groups, places): the rank so far behind the place."""
    width = max(len(group.gpus) for group in part.groups)
    table = [
        [group.gpus[(place + behind) % len(group.gpus)].index for behind in range(width)]
        for group, place in zip(part.groups, part.places, strict=True)
    ]
    return np.array(table, np.int64)


class _Inner(Codec):
    """A recipe as members "family" and "inner" of the object that it is in; only written."""

    flat = True

    def read(self, raw: Json) -> Recipe:
        raise FieldError("nothing", raw)

    def check(self, value: Recipe) -> None:
        """Nothing: it is checked against its cluster."""

    def write(self, value: Recipe) -> Json:
        return {"family": value.family, "inner": value.content()}


@dataclass(frozen=True)
class Bundle:
    """A part of the buffer, its GPU groups, and the recipe between them.

    share : of the buffer
    teams : into how many groups each server is divided
    gather, carry : for each group the shares of its GPUs
    inner : the recipe of what runs between the groups, on `view` of them
    hand_on : results leave, and are handed out, by the GPU after the one that they are summed in. One hop more for sums
        of many servers, but then results wait for this hop alone. In groups that gather and carry evenly
    straight : between servers only GPUs of equal place meet, so no byte leaves its rail. A group in which this GPU does
        not carry is a guest of the others. Its neighbours' NICs reach theirs, which pass on what they get with their
        own data. A guest can be a leaf of nested rings, not part of a ring
    """

    share: Fraction
    teams: Natural
    gather: SharesInRows
    carry: SharesInRows
    inner: Annotated[Recipe, _Inner(), LAST]
    hand_on: bool = False
    straight: bool = False


@dataclass(frozen=True)
class InsideServers(Recipe):
    """Bundles side by side in the buffer, all at once in time.

    bundles : parts of the buffer, shares of sum 1
    chunks : number of runs in which a GPU's part moves over NVLink
    """

    family: ClassVar[str] = "inside-servers"
    bundles: Annotated[tuple[Bundle, ...], Least(1), LAST]
    chunks: Segments
    segments: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", max((bundle.inner.segments for bundle in self.bundles), default=1))

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """Raises InfeasibleError where the fabric does not join two GPUs that would have to meet."""
        done, parts = Fraction(0), list[Placed]()

        @cache  # channels of one shape are lowered once
        def cells(inner: Recipe, between: Cluster, size: int, longest: int) -> Cells:
            made = inner.moves(size) if isinstance(inner, StripedExchange) else inner.lower(between, size)
            return cells_of(made, longest // 2)

        @cache
        def rows(
            inner: Recipe, between: Cluster, size: int, sites: tuple[Site, ...], hands: tuple[bool, ...], straight: bool
        ) -> GpuRows:
            longest = max(2 * GRANULE, size // self.chunks)
            return channel_rows(cells(inner, between, size, longest), sites, longest, hands, straight)

        for bundle in self.bundles:
            start, done = granule(done * nbytes, nbytes), done + bundle.share
            whole = (nbytes if done == 1 else granule(done * nbytes, nbytes)) - start
            own = gpu_groups(cluster, bundle.teams)
            between = view(cluster, own, bundle.carry)
            shares = zip(bundle.gather, bundle.carry, strict=True)
            hands = tuple(bundle.hand_on and len({*gather, *carry}) == 1 for gather, carry in shares)
            for channel in channels(bundle.gather, bundle.carry):
                low, high = (whole if at == 1 else _down(whole * at) for at in (channel.low, channel.high))
                if low < high:
                    made = rows(bundle.inner, between, high - low, channel.sites, hands, bundle.straight)
                    parts.append(Placed(start + low, own, channel.places, made))
        try:
            return join(cluster, nbytes, parts)
        except InfeasibleError as error:
            hint = "Join the rails by a spine, or use what all servers have alike; packed trees take any topology."
            raise InfeasibleError(
                error.what, where=error.where, expected=error.expected, got=error.got, hint=hint
            ) from None

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """Seconds, in closed form for one bundle of whole servers on one fabric; else from the bytes of the lowered
        schedule."""
        bundle = self.bundles[0]
        if not cluster.fabric.flat or len(self.bundles) > 1 or bundle.teams > 1:
            return super().fluid_s(cluster, nbytes)
        own = gpu_groups(cluster)
        worst = bundle.inner.fluid_s(view(cluster, own, bundle.carry), nbytes) if len(own) > 1 else Fraction(0)
        for server, shares in zip(cluster.servers, bundle.gather, strict=True):
            if server.gpus > 1:
                worst = max(worst, nbytes * nvlink_load(shares) / server.nvlink_rate)
        return worst

    def check(self, cluster: Cluster) -> None:
        """Raise InputError unless shares, inner recipes and chunks fit each other and `cluster`."""
        require(cluster.gpu_ranks, "cluster", "GPUs as ranks", "servers as ranks")
        super().check(cluster)
        total = sum((bundle.share for bundle in self.bundles), Fraction(0))
        require(total == 1 and all(bundle.share > 0 for bundle in self.bundles), "share", "above 0, of sum 1", total)
        for server in cluster.servers:
            require(server.gpus == 1 or server.nvlink_rate > 0, f"nvlink of {server.name}", "a rate above 0", 0)
        for bundle in self.bundles:
            fits = all(server.gpus % bundle.teams == 0 for server in cluster.servers)
            require(fits, "teams", "a divisor of every server's GPUs", bundle.teams)
            require(bundle.teams == 1 or len(cluster.servers) > 1, "teams", "1, for a single server", bundle.teams)
            apart = bundle.straight and isinstance(bundle.inner, StripedExchange)
            require(not apart, "straight", "false, for direct exchange", bundle.straight)
            rings = bundle.hand_on and isinstance(bundle.inner, NestedRings)
            require(not rings, "hand_on", "false, for nested rings, most of whose sums are not sent on", bundle.hand_on)
            own = gpu_groups(cluster, bundle.teams)
            sizes = sorted({len(group.gpus) for group in own})
            require(not bundle.straight or len(sizes) == 1, "straight", "crews of equal size, since places meet", sizes)
            for name, shares in (("gather", bundle.gather), ("carry", bundle.carry)):
                fits = [len(row) for row in shares] == [len(group.gpus) for group in own]
                require(fits, name, "a share for every GPU of every crew", [len(row) for row in shares])
                for group, row in zip(own, shares, strict=True):
                    fine = min(row) >= 0 and sum(row, Fraction(0)) == 1
                    require(fine, f"{name} of {group.name}", "shares of 0 or more, of sum 1", [str(x) for x in row])
            for group, row in zip(own, bundle.carry, strict=True):
                for gpu, share in zip(group.gpus, row, strict=True):
                    alive = not share or len(own) == 1 or usable(gpu) > 0
                    require(alive, f"carry of {gpu.name}", "0, since its NICs are dead one way", share)
            bundle.inner.check(view(cluster, own, bundle.carry))

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        for bundle in self.bundles:
            own = gpu_groups(cluster, bundle.teams)
            teams = f" of {bundle.teams} teams each" if bundle.teams > 1 else ""
            part = f"{float(bundle.share) * 100:.4g} % by {bundle.inner.family} between servers{teams}"
            lines += [("part", part), *bundle.inner.describe(view(cluster, own, bundle.carry))]
            helped = [
                (group, [gpu.name for gpu, share in zip(group.gpus, carry, strict=True) if not share])
                for group, carry, gather in zip(own, bundle.carry, bundle.gather, strict=True)
                if carry != gather
            ]
            for group, silent in helped[:4]:
                what = f"{', '.join(silent)} send" if silent else "slow NICs leave part"
                lines.append(("neighbours", f"{group.name}: {what} by the others' NICs"))
            lines += [("neighbours", f"and {len(helped) - 4} more")] * (len(helped) > 4)
        return [*lines, ("inside servers", f"over NVLink, each GPU's part in {self.chunks} runs or more")]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """Rings; where there are costs direct exchange, too, and among many servers alone: rings as long as that are
        millions of transfers."""
        if not cluster.gpu_ranks:
            return []
        direct = _direct(cluster, bound, costs) if costs else []
        return direct if direct and len(cluster.servers) > LARGE else [_rings(cluster, bound, costs), *direct]

    @classmethod
    def at_once(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Recipe | None:
        """Direct exchange where there are costs and it applies, else rings; two segments where there are costs. None
        where servers have no place in common."""
        from optcc.theory.inside_split import parts_at_once

        if not cluster.gpu_ranks:
            return None
        with suppress(InfeasibleError):
            if costs and (direct := _direct(cluster, bound, costs)):
                return direct[0].make(direct[0].guess or 2)
            segments = 2 if costs else default_segments(bound.nbytes, len(cluster.ranks), gpus=True)
            return inside_servers(cluster, parts_at_once(cluster), segments, chunks=best_chunks(cluster, bound, costs))
        return None


def nvlink_load(gather: Sequence[Fraction]) -> Fraction:
    """Bytes in (and out) of a group's busiest NVLink port per byte of the buffer; 2(G-1)/G when all gather alike.

    Every GPU sends what it does not gather, and is sent the sum of it. A gathering GPU also receives the data of G-2
    others and sends them results.
    """
    return 1 + (len(gather) - 2) * max(gather) if len(gather) > 1 else Fraction(0)


def _down(position: Fraction) -> int:
    return int(position) // GRANULE * GRANULE


# Bundles from parts: gathering and carrying GPUs, and nested rings between the groups.


@dataclass(frozen=True)
class BufferPart:
    """A part of the buffer as the theory deals it out.

    share : of the buffer; teams : number of groups into which each server is divided
    rings : {ring size: share of the part} of nested rings between the groups
    slots : places among which the part is shared; only the GPUs there gather and carry, and only GPUs of equal place
        meet. None: all gather, and carry in proportion to NIC rates
    guests : groups that use all their NICs nevertheless
    """

    share: Fraction
    teams: int
    rings: Mapping[int, Fraction]
    slots: tuple[int, ...] | None = None
    guests: tuple[int, ...] = ()


def inside_servers(
    cluster: Cluster, parts: Sequence[BufferPart], segments: int, chunks: int | None = None
) -> InsideServers:
    """The recipe with nested rings between groups, about `segments` deep in all parts together.

    chunks : None: `FREE_RUNS` a segment, for runs that cost nothing
    Raises InfeasibleError for parts that `cluster` has no NICs for.
    """
    bundles: list[Bundle] = []
    for part in parts:
        bundles += _slots(cluster, part, segments) if part.slots else [_whole(cluster, part, segments)]
    return InsideServers(tuple(bundles), chunks or min(MAX_SEGMENTS, FREE_RUNS * segments))


def inside_exchange(
    cluster: Cluster,
    shares: Sequence[Fraction],
    via: Sequence[tuple[int, Fraction]],
    segments: int,
    ways: int = 1,
    chunks: int | None = None,
) -> InsideServers:
    """The recipe with direct exchange between servers; among many their results are handed on.

    shares, via, ways : as in `StripedExchange`, of the servers; chunks : as in `inside_servers`
    Raises InfeasibleError for a server without NICs.
    """
    own = gpu_groups(cluster)
    inner = StripedExchange(segments, tuple(shares), tuple(via), ways)
    bundle = Bundle(Fraction(1), 1, even_shares(own), shares_by_rate(own), inner, len(own) > MANY)
    return InsideServers((bundle,), chunks or min(MAX_SEGMENTS, FREE_RUNS * segments))


def _whole(cluster: Cluster, part: BufferPart, segments: int) -> Bundle:
    """A part of all GPUs; with others beside it, which share its NICs, it is less deep."""
    own = gpu_groups(cluster, part.teams)
    carry = even_shares(own) if len(own) == 1 else shares_by_rate(own)
    inner = part_rings(cluster, part, carry, max(1, round(segments * part.share)))
    return Bundle(part.share, part.teams, even_shares(own), carry, inner)


def _slots(cluster: Cluster, part: BufferPart, segments: int) -> list[Bundle]:
    """A bundle for each slot of the part."""
    own, slots, found = gpu_groups(cluster, part.teams), part.slots or (), list[Bundle]()
    for slot in slots:
        carry = shares_of_slot(own, slot, part.guests)
        gather = tuple(tuple(Fraction(place == slot) for place in range(len(group.gpus))) for group in own)
        inner = part_rings(cluster, part, carry, segments)
        found.append(Bundle(part.share / len(slots), part.teams, gather, carry, inner, straight=True))
    return found


def slot_strength(group: GpuGroup, carry: Sequence[Fraction]) -> tuple[Fraction, Fraction]:
    """Sort key of groups for the rings of a slot: the rate of their carrying GPUs, then of all."""
    carriers = [usable(gpu) for gpu, share in zip(group.gpus, carry, strict=True) if share]
    return sum(carriers, Fraction(0)), sum(map(usable, group.gpus), Fraction(0))


def part_rings(cluster: Cluster, part: BufferPart, carry: Shares, segments: int) -> NestedRings:
    """Nested rings of `part`. On a slot, guests count as the weakest, then the groups with the least total rate. These
    add first: only a group that has not sent yet can pass on their data. Sections are no finer for many leaves: each is
    many transfers inside servers.
    """
    own = gpu_groups(cluster, part.teams)
    inner = nested_rings(view(cluster, own, carry), dict(part.rings), segments)
    leaves = len(own) - min(part.rings, default=len(own))
    inner = replace(inner, **two_segments_under_way(leaves, segments)._asdict())
    if part.slots is None:
        return inner
    strength = [(group not in part.guests, *slot_strength(own[group], carry[group])) for group in range(len(own))]
    order = sorted(range(len(own)), key=lambda group: strength[group])
    return replace(inner, order=tuple(order), orderings=(Ordering.LEAF_FIRST,))


def best_chunks(cluster: Cluster, bound: Bound, costs: Costs) -> int | None:
    """The number of runs of a channel for which their costs and the time of the last one add up to least; None where
    runs cost nothing.

    Where NVLink is the limit, n runs of a channel cost its GPU n (G-1) chunks, and those of the other channels as many.
    The last of n, half as long as others, takes 1/2n of the time. Where NICs are the limit, NVLink has time to spare,
    and twice as many are best (simulated, docs/schedules.md).
    """
    cost, many = costs.per_chunk or costs.alpha, [server for server in cluster.servers if server.gpus > 1]
    if not cost or not many:
        return None
    others = max(server.gpus for server in many) - 1
    nvlink_s = max(2 * (1 - Fraction(1, server.gpus)) * bound.nbytes / server.nvlink_rate for server in many)
    best = isqrt(int(bound.seconds / (4 * others * cost) * (1 if nvlink_s >= bound.seconds else 4)))
    return min(MAX_SEGMENTS, max(1, best))


def _rings(cluster: Cluster, bound: Bound, costs: Costs) -> CandidateFamily:
    from optcc.theory.inside_split import InsideSplit, inside_split

    @cache
    def split() -> InsideSplit:
        return inside_split(cluster)

    def make(segments: int) -> Recipe:
        return inside_servers(cluster, split().parts, segments, chunks=best_chunks(cluster, bound, costs))

    return CandidateFamily(InsideServers.family, make)


def _direct(cluster: Cluster, bound: Bound, costs: Costs) -> list[CandidateFamily]:
    """Direct exchange between servers, where all their GPUs can meet; also with growing rounds by way of slow servers
    (`StripedExchange.candidates`), among many servers only where a server is hub of nothing."""
    from optcc.theory.ring_shares import hub_split

    own = gpu_groups(cluster)
    if not cluster.fabric.flat or len(own) < 3 or not all(any(map(usable, group.gpus)) for group in own):
        return []
    shares, via = hub_split(view(cluster, own, shares_by_rate(own)))
    chunks = best_chunks(cluster, bound, costs)

    def make(segments: int) -> Recipe:
        return inside_exchange(cluster, shares, via, segments, chunks=chunks)

    def growing(ways: int) -> Recipe:
        return inside_exchange(cluster, shares, via, -(-ways // WAYS), ways=ways, chunks=chunks)

    many, large = len(own) > MANY, len(own) > LARGE
    guess, deepest = 1 if many else 2 if large else None, 1 if many else None
    found = [CandidateFamily(InsideServers.family, make, guess, deepest=deepest)]
    idle = any(not shares[r] for r, _ in via)  # hub of nothing, it waits longest in a single round
    if via and not many and (idle or not large):
        found.append(CandidateFamily(InsideServers.family, growing, WAYS if large else None))
    return found
