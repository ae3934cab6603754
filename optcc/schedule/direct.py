"""Direct exchange in steps: every part of the data has a hub, which gathers it from all and sends the sum to all.

There are two hops, and the hubs' shares load servers by their NICs (proof id attained). Each transfer takes one NIC at
each end: one chunk, not one on every NIC. The times of transfers are found in steps, one after another. A step is a
matching, on each rail, of ranks that have something for each other, the pairs furthest behind first; so no two senders
share a receiver. A result is sent when its contributions have landed.

There is a way to find steps for each of three kinds of clusters: no server starves (`NoneStarves`), one does
(`OneStarves`), or several do (`SeveralStarve`). A server starves if its own data takes it nearly the whole time of the
bound: then it is the hub of nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, chain, pairwise, permutations
from math import ceil, log, sqrt
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.assemble import cuts_by, granule
from optcc.schedule.columns import GRANULE, Schedule, Stage
from optcc.schedule.matchings import assigned, cut, exchanged, grouped_by, waited_for_before
from optcc.schedule.nics import (
    MAX_LANES,
    applies,
    common_rails,
    differ,
    direct_uplink_s,
    fewest_nics_first,
    have_spare_time,
    in_lanes,
    lane_lines,
    live_nics,
    nic_ports,
    nic_rate,
    nics_of,
    of_one_pace,
    pace_lines,
    rates_nearly_equal,
    short_of_nics,
)
from optcc.schedule.recipe import CandidateFamily, Costs, Recipe, require
from optcc.schedule.routes import Routes, no_collection
from optcc.schedule.tuned import (
    DEFAULT_SEGMENTS,
    DOWN,
    GROWS,
    KINDS,
    LONGEST,
    LONGEST_ALONE,
    MANY,
    MOST_KEPT,
    MOST_LOST,
    MOST_NICS,
    NEAR,
    SHRINK,
    TRIED_CHUNKS,
    TRIES,
    TURNS,
    UP,
)
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster
from optcc.values.json_records import Choice, Exact, Whole

if TYPE_CHECKING:
    from optcc.theory.ring_shares import GroupCounts

# Slots: the times at which a NIC of a rank sends to a peer, in whole ticks of a plan of two halves.


TICKS = 2**40
"""Ticks of a whole plan, which has two halves. Whole numbers, as every rank finds its slots on its own."""
HALF = TICKS // 2
ONE = 2**28
"""Units that a NIC moves in a half, where steps are found: products of two such numbers fit into 64 bits."""
TIES = 2**13
"""Which of equal pairs a matching takes is settled by numbers below this, and where their sums are equal, too, by
`matchings.assigned`."""
SLACK = 2**12
"""1/SLACK of the landed data is left out, as cuts are rounded and pairs have a little more or less."""


class Slot(NamedTuple):
    """The time in which one NIC serves one peer.

    begin, size : ticks of the half, or of the plan
    nic : place of the NIC in its server
    weight : share of a pair's bytes, relative to the pair's other slots
    """

    begin: int
    size: int
    nic: int
    weight: int


def mirrored(given: Sequence[Slot]) -> list[Slot]:
    """The slots mirrored in time, seen from the end of the half."""
    return sorted(Slot(HALF - begin - size, size, nic, weight) for begin, size, nic, weight in given)


def whole(first: Sequence[Slot], second: Sequence[Slot]) -> list[Slot]:
    """The slots of both halves, in ticks of the plan; both halves carry as much."""
    parts = [sum(slot.weight for slot in half) for half in (second, first)]
    return [
        Slot(turn * HALF + slot.begin, slot.size, slot.nic, slot.weight * parts[turn])
        for turn, half in enumerate((first, second))
        for slot in half
    ]


# From slots to transfers: each pair's bytes of a half are cut in its slots, and overlapping transfers wait for each
# other.


Ints = NDArray[np.int64]


class Kind(IntEnum):
    """Content of a transfer: RAW goes to hubs, PARTIAL to the rank that adds last, FINAL back, RESULT to everybody."""

    RAW = 0
    PARTIAL = 1
    FINAL = 2
    RESULT = 3


STAGES = np.array([Stage.REDUCE_SCATTER, Stage.TO_LEAF, Stage.FROM_LEAF, Stage.ALLGATHER])
ALL = (Fraction(1),)
"""The share of a transfer's only lane; one object."""
ADDED = np.isin(list(Kind), [Kind.RAW, Kind.PARTIAL])


class SectionPart(NamedTuple):
    """Bytes of hub `hub`'s section that a pair moves, from `start` to `stop`, upwards or downwards."""

    kind: Kind
    hub: int
    start: int
    stop: int


class DirectRows(NamedTuple):
    """Transfers in columns, int64 (rows,).

    `key` : planned time, among all a rank's transfers; `nic` : identifies the ports at both ends; `segment` : the
    slot's place among those of its pair, or of its pair and half
    """

    src: Ints
    dst: Ints
    key: Ints
    kind: Ints
    hub: Ints
    start: Ints
    stop: Ints
    nic: Ints
    segment: Ints


class Cuts:
    """Pairs of ranks, one after the other; the bytes of each are divided by the weights of its slots.

    cost : ticks that a chunk costs. A slot is up to so much longer or shorter, a third at most, if that saves a chunk
    """

    def __init__(self, cost: Fraction = Fraction(0)) -> None:
        self._cost = cost
        self._pairs: list[int] = []
        self._pieces: list[SectionPart] = []
        self._slots: list[Slot] = []

    def add(self, src: int, dst: int, pieces: Sequence[SectionPart], slots: Sequence[Slot], later: int = 0) -> None:
        """What `src` sends to `dst`, in order; a slot may end up with two pieces. later : ticks, added to slots."""
        self._pairs += (src, dst, len(pieces), len(slots), later)
        self._pieces += pieces
        self._slots += slots

    def rows(self) -> DirectRows:
        """The transfers; a slot's place among its pair's is their segment."""
        return DirectRows(
            *cut(
                np.array(self._pairs, np.int64).reshape(-1, 5),
                _whole_numbers(self._pieces, len(SectionPart._fields)),
                _whole_numbers(self._slots, len(Slot._fields)),
                (GRANULE, NEAR, self._cost.numerator, self._cost.denominator),
            )
        )


def _whole_numbers(rows: Sequence[tuple[int, ...]], columns: int) -> Ints:
    """As `np.array`, many times as fast."""
    return np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * columns).reshape(-1, columns)


def joined(pieces: Sequence[SectionPart]) -> list[SectionPart]:
    """Neighbouring pieces merged, empty ones left out."""
    found: list[SectionPart] = []
    for piece in pieces:
        if found and found[-1][:2] == piece[:2] and found[-1].stop == piece.start:
            found[-1] = found[-1]._replace(stop=piece.stop)
        elif piece.stop != piece.start:
            found.append(piece)
    return found


def overlapping(rows: DirectRows, waits: Ints, on: Ints, floor: Ints | int = 0) -> tuple[Ints, Ints]:
    """(row that waits, row that it waits for) for all of `waits` and `on` that share bytes at `floor` or above.

    on : in order of senders, and of bytes, which do not overlap within one sender
    """
    # One axis for all senders' bytes: each sender has its own stretch of it.
    stretch = 1 + max(rows.stop[waits].max(initial=0), rows.stop[on].max(initial=0))
    at = rows.src[on] * stretch
    senders = np.unique(at)[:, None]
    low, high = (senders + np.maximum(rows.start[waits], floor)).ravel(), (senders + rows.stop[waits]).ravel()
    first = np.searchsorted(at + rows.stop[on], low, "right")
    counts = np.where(high > low, np.searchsorted(at + rows.start[on], high, "left") - first, 0).clip(0)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(np.tile(waits, len(senders)), counts), on[np.repeat(first, counts) + place]


def dependencies(rows: DirectRows, via_end: dict[int, int]) -> list[tuple[Ints, Ints]]:
    """Pairs (row that waits, row that it waits for); later kinds come after the kinds that they may wait for.

    via_end : full hub -> end of the bytes of its section to which slow ranks add last
    """
    if not len(rows.src):
        return []
    order = np.lexsort((rows.start, rows.src, rows.kind, rows.hub))
    group = (rows.hub * len(Kind) + rows.kind)[order]
    ends = np.concatenate(([0], np.flatnonzero(np.diff(group)) + 1, [len(order)]))
    of = {int(group[a]): order[a:z] for a, z in pairwise(ends.tolist())}
    none = np.empty(0, np.int64)

    found: list[tuple[Ints, Ints]] = []
    for waiting, on in (
        (Kind.PARTIAL, Kind.RAW),
        (Kind.FINAL, Kind.PARTIAL),
        (Kind.RESULT, Kind.FINAL),
        (Kind.RESULT, Kind.RAW),
    ):
        for hub in np.unique(rows.hub).tolist():
            waits = of.get(hub * len(Kind) + waiting, none)
            # Data that the slow rank adds last to comes back finished: no second wait for the raw data is needed.
            floor = via_end.get(hub, 0) if (waiting, on) == (Kind.RESULT, Kind.RAW) else 0
            found.append(overlapping(rows, waits, of.get(hub * len(Kind) + on, none), floor))
    return found


def in_order(rows: DirectRows, waits: Ints, on: Ints) -> tuple[Ints, Ints]:
    """More pairs: a transfer also waits for the latest that those before it on its NIC wait for. Otherwise it would be
    sent before them when they are late, and they would be later still. Sums that a slow rank hands back do not: a late
    one would hold up all others."""
    if not len(rows.src):
        return waits, on
    ptr, places = grouped_by(waits, len(rows.src))
    nics = rows.src * (1 + rows.nic.max()) + rows.nic
    order = np.argsort(rows.key, kind="stable")
    found = waited_for_before(order, nics, rows.key, rows.kind == Kind.FINAL, ptr, on[places], MOST_KEPT)
    return found[:, 0], found[:, 1]


def on_leash(rows: DirectRows, starving: int, length: int) -> tuple[Ints, Ints]:
    """More pairs, for transfers among the other ranks in the second half. They wait for the latest data that the
    starving rank was to have sent them `length` ticks before. The others have time to spare in the middle of the plan
    and would run ahead; sums from the starving rank's always busy NICs would then collide with their transfers at
    receivers."""
    late = rows.key >= HALF
    sums = np.flatnonzero(late & (rows.src == starving))
    sums = sums[np.lexsort((rows.key[sums], rows.nic[sums]))]
    # A slot ends where the next one of its NIC begins.
    span = 2 * HALF + 1
    at = rows.nic[sums] * span + rows.key[sums]
    following = np.append(at, 2**62)[np.searchsorted(at, at, "right")]
    ends = np.minimum(following - rows.nic[sums] * span, 2 * HALF)
    waits, on = [], []
    for rank in np.unique(rows.dst[sums]).tolist():
        own = rows.dst[sums] == rank
        order = np.argsort(ends[own], kind="stable")
        sent = np.flatnonzero(late & (rows.src == rank) & (rows.dst != starving))
        latest = np.searchsorted(ends[own][order], rows.key[sent] - length, "right") - 1
        waits.append(sent[latest >= 0])
        on.append(sums[own][order][latest[latest >= 0]])
    return np.concatenate([*waits, rows.src[:0]]), np.concatenate([*on, rows.src[:0]])


def scheduled(
    rows: DirectRows,
    pairs: Sequence[tuple[Ints, Ints]],
    ports: Sequence[Mapping[int, int]],
    routes: Routes,
    nbytes: int,
    *,
    ordered: bool = False,
    held: tuple[Ints, Ints] | None = None,
) -> Schedule:
    """The schedule of `rows`, in the order of their keys.

    pairs : as of `dependencies`; ports : of each rank, `nic` of a row -> the port used; ordered : whether ready
    transfers wait for earlier ones on their NIC, as in `in_order`; held : more pairs (row that waits, row that it waits
    for), which count if the second comes first
    """
    key, pairs = rows.key.copy(), list(pairs)
    for waits, on in pairs:  # after what it waits for, also where their due times are too near
        np.maximum.at(key, waits, key[on] + 1)
    if held is not None:
        before = key[held[1]] < key[held[0]]
        pairs.append((held[0][before], held[1][before]))
    waits, on = (np.concatenate([pair[end] for pair in pairs] or [key[:0]]) for end in (0, 1))
    if ordered:
        more, then = in_order(rows._replace(key=key), waits, on)
        waits, on = np.concatenate((waits, more)), np.concatenate((on, then))
    order = np.argsort(key, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    waits, on = place[waits], place[on]
    _, by_on = grouped_by(on, len(order))
    ptr, by_waits = grouped_by(waits[by_on], len(order))
    ranks, nics = len(ports), 1 + max(max(mine) for mine in ports)
    ends = ((rows.src * ranks + rows.dst) * nics + rows.nic)[order]
    used = np.bincount(ends, minlength=ranks * ranks * nics) > 0
    route = []
    for end in np.flatnonzero(used).tolist():
        (src, dst), nic = divmod(end // nics, ranks), end % nics
        route.append(routes.alike(src, dst, [(ports[src][nic], ports[dst][nic])], ALL))
    length, (added, stage) = rows.stop - rows.start, (table[rows.kind] for table in (ADDED, STAGES))
    columns = [column[order] for column in (rows.start, length, added, stage, rows.segment)]
    which = np.array(route, np.int32)[(np.cumsum(used) - 1)[ends]]
    return routes.schedule(nbytes, [which, *columns], np.diff(ptr), on[by_on][by_waits])


Used = list[dict[int, int]]
"""Of each rank the rails that it serves -> the place of its NIC there."""


class Timed(NamedTuple):
    """All transfers with their due times.

    after : hub -> end of the bytes of its section to which others add last
    held : more pairs (row that waits, row that it waits for), where a rank would run ahead otherwise
    """

    rows: DirectRows
    after: dict[int, int]
    held: tuple[Ints, Ints] | None


@dataclass(frozen=True)
class Form:
    """recipe : one kind of steps, their number open; numbers : candidates, nearest to the formula's first; laned : the
    cluster in the recipe's lanes"""

    recipe: DirectExchange
    numbers: Sequence[int]
    laned: Cluster

    def at(self, segments: int) -> DirectExchange:
        """The recipe with so many steps."""
        made = replace(self.recipe, segments=segments)
        return replace(made, last=fitted(made, self.laned)) if made.steps == OneStarves.name else made

    def tried(self) -> list[DirectExchange]:
        """A recipe of each number."""
        return [self.at(number) for number in self.numbers]


class Finder(ABC):
    """A way to find steps, for one kind of cluster. Pure: every rank finds the same by itself."""

    name: str

    @abstractmethod
    def applies(self, cluster: Cluster) -> bool:
        """Whether the cluster is of its kind."""

    @abstractmethod
    def used(self, cluster: Cluster) -> Used:
        """The NICs that take part."""

    @abstractmethod
    def shares(self, cluster: Cluster) -> Sequence[Fraction]:
        """Each rank's part of the data as a hub, sum 1."""

    @abstractmethod
    def timed(self, recipe: DirectExchange, cluster: Cluster, nbytes: int) -> Timed:
        """The transfers of an AllReduce of `nbytes` bytes."""

    @abstractmethod
    def most_steps(self, cluster: Cluster) -> int:
        """Limit of `segments`: more take some GB of memory."""

    @abstractmethod
    def form(self, cluster: Cluster, lanes: int, bound: Bound, costs: Costs) -> Form:
        """What the formula puts first, on a cluster in so many lanes. `costs` : of all lanes of a NIC together

        Let o be a chunk's cost on a NIC and X the bound, in seconds. Then s steps cost s o for chunks, and lose about
        one step, X/s, to data under way; the sum is least near s = sqrt(X/o), the *root*. What else a way to find steps
        loses is added before the least is taken. The loss varies by a point or two with the number, so several around
        it are simulated. Where no server starves, nothing is lost from a certain number of rounds on (`rounds_needed`);
        fewer would lose about a round.
        """

    def growing(self, recipe: DirectExchange) -> int:
        """Number of steps that are longer than the step before."""
        return 0

    @abstractmethod
    def told(self, recipe: DirectExchange, cluster: Cluster) -> list[tuple[str, str]]:
        """(label, text) lines for people."""


PARTS, MAX_PARTS = 2**20, 2**23
"""Denominator of parts of a half and of growths, so that plan files hold short numbers; of a chunk's cost at most."""
GOLDEN = (1 + sqrt(5)) / 2


def _root(bound: Bound, costs: Costs) -> float:
    """Number of steps whose chunks cost as much as one step lasts."""
    return max(1.0, sqrt(bound.seconds / costs.per_chunk)) if costs.per_chunk else DEFAULT_SEGMENTS


def _near(about: float, least: int, most: int, chunks: float) -> list[int]:
    """Numbers of steps from half to double of `about`, the nearest first, from `least` to `most`: so many that they
    have `TRIED_CHUNKS` in all, at most `TRIES`, at least one. Rounded up: to wait for a step is more than a chunk.
    chunks : of one step, about"""
    tries = max(1, min(TRIES, int(TRIED_CHUNKS / (chunks * about))))
    places = sorted(range(-tries, tries + 1), key=lambda place: (abs(place), -place))
    numbers = dict.fromkeys(max(least, min(most, ceil(about * 4 ** (place / tries)))) for place in places)
    return list(numbers)[:tries]


def _part(bound: Bound, seconds: Fraction, most: Fraction) -> Fraction:
    """`seconds` as part of half of the bound, at most `most`, rounded."""
    halves = min(2 * seconds / bound.seconds, most) if bound.seconds else most
    return Fraction(round(halves * PARTS), PARTS)


MAX_CHUNKS = 2**19
"""Limit of steps times NICs of all servers: so many transfers take some GB and some ten seconds."""


MAX_WAITS = 2**26
"""Transfers, times the ranks that each may wait for, where one rank starves. Under half of these waits come true, each
of 80 bytes while a schedule is made (128 servers of 8 NICs, 311 steps: 1.1 GB): it takes 3 GB at most. Of
128 servers, six of 8 NICs dead, 4 GiB: 187 steps are 0.7 points slower, 450 steps 0.1."""


def rows_of(found: Sequence[tuple[int, ...]]) -> DirectRows:
    """Transfers as columns."""
    return DirectRows(*np.array(found, np.int64).reshape(-1, len(DirectRows._fields)).T)


# Rounds, where no server starves: in each round, on each rail, every server has a turn with every other.
#
# All NICs are busy for the whole of the bound, so no time may be lost. Let a rank have n NICs, P ranks N in all. It
# is the hub of x = (n t - 1)/(P-2) of the data, where t = 2 (P-1)/N is the bound in units of n/rate (as in
# `optcc.theory.ring_shares`, proof id attained). Two ranks i and k have x_i + x_k for each other, each way. On one
# rail, the data of all pairs is a matrix of equal row and column sums. Such a matrix is a sum of permutations (Birkhoff
# 1946, von Neumann 1953). Each is a step without two senders for one receiver, as long as its smallest pair needs. So
# all NICs are busy in every step, and chunks fill their steps. With nothing or one NIC dead the steps are those of a
# round robin.
#
# The steps recur in every round. A pair's data comes first, then its results. Rank i begins with results for k when
# the part x_k/(x_i + x_k) of the time has gone. By then a hub must have had a turn with everybody. So a plan needs 1
# + max x/min x rounds (`rounds_needed`); more rounds are more chunks.


ROUND = 2**24
"""Units of a round's length."""
SHORTEST = ROUND // 1024
"""Steps that would be shorter are left out; their data goes in the pairs' other steps."""
MAX_FITTINGS, CLOSE = 200, 1e-9
"""Steps and tolerance of the fitting: NICs are equally busy up to the second number, for which the first suffices."""

Rails = tuple[int, ...]
Steps = list[tuple[Ints, int]]
"""(By sender its receiver, itself if it sends nothing; length), in order."""


class NoneStarves(Finder):
    """`segments` rounds. Rails that join the same ranks share the steps of a round: each is on one."""

    name = "none-starves"

    def applies(self, cluster: Cluster) -> bool:
        """NICs of one pace, no starving server, and any two servers with a rail in common."""
        if not of_one_pace(cluster):
            return False
        used = self.used(cluster)
        return hub_shares(list(map(len, used))) is not None and common_rails([tuple(mine) for mine in used])

    def used(self, cluster: Cluster) -> Used:
        """Those of `live_nics`. On one fabric, where any NIC reaches any, ranks lack different rails as far as
        possible, so that all rails are equally loaded; or the last ones, if two ranks would have none in common."""
        live = live_nics(cluster)
        if cluster.fabric.rails:
            return live
        rails, lacking, found = max(map(len, live)), 0, []
        for mine in live:
            lacks = {(lacking + n) % rails for n in range(rails - len(mine))}
            lacking += len(lacks)
            found.append(dict(zip((rail for rail in range(rails) if rail not in lacks), mine.values(), strict=True)))
        fits = common_rails([tuple(mine) for mine in found])
        return found if fits else [dict(enumerate(mine.values())) for mine in live]

    def shares(self, cluster: Cluster) -> Sequence[Fraction]:
        found = hub_shares(list(map(len, self.used(cluster))))
        assert found is not None, "some rank is the hub of nothing"
        return found

    def most_steps(self, cluster: Cluster) -> int:
        """By memory: in a round every rank sends every other rank a chunk, or a few."""
        ranks = len(cluster.ranks)
        return max(1, MAX_CHUNKS // (2 * ranks * (ranks - 1)))

    def timed(self, recipe: DirectExchange, cluster: Cluster, nbytes: int) -> Timed:
        """The bytes of two ranks for each other, data first, follow their slots."""
        used = self.used(cluster)
        # Alike ranks side by side, so that slots do not depend on which ranks have lost NICs.
        order = sorted(range(len(used)), key=lambda rank: (len(used[rank]), [*used[rank]], rank))
        slots = slots_of(tuple(tuple(used[rank]) for rank in order), recipe.segments)
        cost = recipe.chunk * HALF
        section = list(pairwise(cuts_by(0, nbytes, self.shares(cluster)).tolist()))
        cuts = Cuts(cost)
        for a, z in permutations(range(len(order)), 2):
            i, k = order[a], order[z]
            own = SectionPart(Kind.RAW, k, *section[k]), SectionPart(Kind.RESULT, i, *section[i])
            # A pair with next to no data has no step: it uses its first common rail.
            mine = slots.get((a, z)) or [Slot(TICKS // 2, 1, min({*used[i]} & {*used[k]}), 1)]
            cuts.add(i, k, own, worthwhile(mine, ceil(cost)))
        return Timed(cuts.rows(), {}, None)

    def form(self, cluster: Cluster, lanes: int, bound: Bound, costs: Costs) -> Form:
        """The rounds that are needed and one more, as a turn takes part of a round; fewer where so many chunks would
        cost more than waiting."""
        used = [tuple(mine) for mine in self.used(cluster)]
        chunks = min(Fraction(len(ranks) - 1, len(rails)) for ranks, rails in joined_by(used).items())  # in a round
        about = min(float(rounds_needed(self.shares(cluster))) + 1, _root(bound, costs) / sqrt(chunks))
        most = min(MAX_STEPS, self.most_steps(cluster))
        recipe = DirectExchange(1, lanes=lanes, chunk=_part(bound, costs.per_chunk, MAX_CHUNK))
        return Form(recipe, _near(about, 1, most, len(used) * (len(used) - 1)), cluster)

    def told(self, recipe: DirectExchange, cluster: Cluster) -> list[tuple[str, str]]:
        return [("rounds", f"{recipe.segments}; one NIC for each transfer")]


def hub_shares(nics: Sequence[int]) -> tuple[Fraction, ...] | None:
    """Each rank's part of the data as a hub by its number of NICs, sum 1; None where one is the hub of nothing."""
    ranks, every = len(nics), sum(nics)
    shares = tuple((Fraction(2 * n * (ranks - 1), every) - 1) / (ranks - 2) for n in nics)
    return shares if min(shares) > 0 else None


def worthwhile(slots: list[Slot], cost: int) -> list[Slot]:
    """The slots of a pair that last at least as long as a chunk costs, in ticks; the two longest, one each for data and
    results, if these are fewer."""
    least = min(cost, sorted(slot.size for slot in slots)[-2:][0])
    return [slot for slot in slots if slot.size >= least]


def rounds_needed(shares: Sequence[Fraction]) -> Fraction:
    """Rounds of which one is over before any result is due. shares : of `hub_shares`"""
    return 1 + max(shares) / min(shares)


def joined_by(live: Sequence[Rails]) -> dict[tuple[int, ...], list[int]]:
    """Two or more ranks -> the rails that these and no others are on. live : the rails of each rank"""
    found: dict[tuple[int, ...], list[int]] = {}
    for rail in sorted({rail for mine in live for rail in mine}):
        found.setdefault(tuple(r for r, mine in enumerate(live) if rail in mine), []).append(rail)
    return {ranks: rails for ranks, rails in found.items() if len(ranks) > 1}


@lru_cache(maxsize=8)
def slots_of(live: tuple[Rails, ...], rounds: int) -> dict[tuple[int, int], list[Slot]]:
    """(sender, receiver) -> its slots, in time. Pure, and the same on every rank.

    live : the rails of each rank; rounds : of the rails that most join the same ranks; others have about as many
    chunks
    """
    joined, parts = joined_by(live), rail_parts(live)
    chunks = rounds * min(Fraction(len(ranks) - 1, len(rails)) for ranks, rails in joined.items())  # of a NIC
    alike, before = Counter(map(len, joined)), Counter[int]()
    found: dict[tuple[int, int], list[Slot]] = {}
    for ranks, rails in joined.items():
        needs = parts[rails[0]][np.ix_(ranks, ranks)]
        steps, own = steps_of(needs), ceil(chunks * len(rails) / (len(ranks) - 1))
        lasts = np.zeros_like(needs)
        for receivers, last in steps:
            lasts[np.arange(len(ranks)), receivers] += last
        # Rails of other ranks, as many, are at other steps: no pair has all its turns at once.
        ahead = Fraction(before[len(ranks)], alike[len(ranks)])
        before[len(ranks)] += 1
        for turn, rail in enumerate(rails):
            for a, z, begin, size in _in_rounds(_portion(steps, turn, len(rails)), own, ahead):
                weight = size * int(needs[a, z]) // int(lasts[a, z])
                found.setdefault((ranks[a], ranks[z]), []).append(Slot(begin, size, rail, weight))
    return {pair: sorted(mine) for pair, mine in found.items()}


def _in_rounds(steps: Steps, rounds: int, ahead: Fraction) -> list[tuple[int, int, int, int]]:
    """(sender, receiver, begin, size) in ticks, for steps that recur in each round. ahead : part of a round by which
    the first one is"""
    first, length, now = round(ahead * len(steps)), rounds * sum(last for _, last in steps), 0
    found: list[tuple[int, int, int, int]] = []
    for _ in range(rounds):
        latest: dict[tuple[int, int], int] = {}  # of this round: pair -> the place of its last slot
        for receivers, last in steps[first:] + steps[:first]:
            begin, now = TICKS * now // length, now + last
            end = TICKS * now // length
            for pair in enumerate(receivers.tolist()):
                place = latest.get(pair, len(found))
                if place < len(found) and sum(found[place][2:]) == begin:  # one chunk through alike steps
                    found[place] = *pair, found[place][2], end - found[place][2]
                elif pair[0] != pair[1]:
                    latest[pair] = len(found)
                    found.append((*pair, begin, end - begin))
    return found


def _portion(steps: Steps, turn: int, count: int) -> Steps:
    """The `turn`-th of `count` portions of the steps, all equally long; some steps are cut in two."""
    every = sum(last for _, last in steps)
    begin, end, now = every * turn // count, every * (turn + 1) // count, 0
    found: Steps = []
    for receivers, last in steps:
        part = min(end, now + last) - max(begin, now)
        if part > 0:
            found.append((receivers, part))
        now += last
    return found


@lru_cache(maxsize=64)
def rail_parts(live: tuple[Rails, ...]) -> dict[int, Ints]:
    """Rail -> the part of a round that each pair needs on it, (ranks, ranks), in units of which `ROUND` is the round.
    The diagonal is what remains of the rank's time.

    A rail of m ranks has 1/(m - 1) of each NIC's time for each pair. From there each NIC's use is scaled until all NICs
    of a rank are equally busy (iterative proportional fitting). Sums go along an axis that is not the last one: numpy
    adds these in a fixed order, so that every rank has the same result.
    """
    shares = hub_shares(list(map(len, live)))
    assert shares is not None, "some rank is the hub of nothing"
    rails = sorted({rail for mine in live for rail in mine})
    on = np.array([[rail in mine for mine in live] for rail in rails])
    parts = (on[:, :, None] & on[:, None, :]) / np.maximum(on.sum(1) - 1, 1)[:, None, None]
    needs = np.add.outer(*[np.array(list(map(float, shares)))] * 2)
    for rail in parts:
        np.fill_diagonal(rail, 0.0)
    np.fill_diagonal(needs, 0.0)
    for _ in range(MAX_FITTINGS):
        total = parts.sum(0)
        parts *= np.divide(needs, total, out=np.zeros_like(needs), where=total > 0)
        loads = parts.sum(1)  # of each NIC, (rails, ranks): pairs need as much both ways
        mean = loads.sum(0) / np.maximum((loads > 0).sum(0), 1)
        off = np.divide(mean, loads, out=np.ones_like(loads), where=loads > 0)
        if np.abs(off - 1).max() < CLOSE:
            break
        parts *= np.sqrt(off)[:, :, None] * np.sqrt(off)[:, None, :]
    found = {}
    for rail, part in zip(rails, parts, strict=True):
        busiest = part.sum(0).max()
        found[rail] = (part * (ROUND / busiest if busiest else 0.0)).astype(np.int64)
        np.fill_diagonal(found[rail], ROUND - found[rail].sum(1))
    return found


def steps_of(parts: Ints) -> Steps:
    """Permutations whose sum, each times its length, is `parts`, except for less than `SHORTEST` in each entry. The
    permutation whose least entry is greatest comes first, which leaves few. Neighbours in the list are as alike as
    possible.

    parts : (ranks, ranks), all row and column sums equal
    """
    left, senders = parts.copy(), np.arange(len(parts))

    def matching(least: int) -> Ints:
        """The greatest one that uses as few entries below `least` as it can."""
        receivers: Ints = assigned(np.where(left >= least, left, -ROUND * len(left)))
        return receivers

    found: Steps = []
    while left.any():
        levels = np.unique(left[left > 0])
        low, high = 0, len(levels) - 1
        while low < high:  # the highest level at which there still is one
            middle = (low + high + 1) // 2
            enough = (left[senders, matching(int(levels[middle]))] >= levels[middle]).all()
            low, high = (middle, high) if enough else (low, middle - 1)
        best = matching(int(levels[low]))
        last = int(left[senders, best].min())
        if last < SHORTEST and found:
            break
        left[senders, best] -= last
        found.append((best, last))
    alike = [found.pop(0)]
    while found:
        shared = [int((alike[-1][0] == receivers).sum()) for receivers, _ in found]
        alike.append(found.pop(shared.index(max(shared))))
    return alike


# Steps where a slow server starves, others may be slow, too: in each step, every rail serves the pairs furthest
# behind.
#
# The starving server alone sets the bound and is the hub of nothing. Its arrivals depend on what all others send, and
# the sums for other slow servers depend on what it sends. So no order of equal rounds suits all. Here a half is cut
# into steps whose lengths grow, stay and shrink. For some steps at a time, the starving server sends to the rank it
# has most data for. It receives from the rank with most sums for it. Then each rail has a matching of the others, the
# pairs furthest behind an even schedule first. No sum is sent before its hub has gathered it. The time during which
# the starving server has nothing to receive decides how much it should add last to.


@lru_cache(maxsize=64)
def step_ends(count: int, growth: Fraction) -> tuple[int, ...]:
    """Ends of steps, in units of which `ONE` is the half."""
    up, down = round(UP * count), round(DOWN * count)
    lengths = [growth ** min(step, up) * SHRINK ** max(0, step - (count - 1 - down)) for step in range(count)]
    sizes = [int(2**64 * length / max(lengths)) for length in lengths]
    total = sum(sizes)
    return tuple(ONE * done // total for done in accumulate(sizes))


def longest_step(count: int, growth: Fraction) -> int:
    """The longest of these steps, in ticks."""
    return max(end - begin for begin, end in pairwise((0, *step_ends(count, growth)))) * (HALF // ONE)


def starving(live: Sequence[Sequence[int]], shares: Sequence[Fraction]) -> int:
    """The rank with fewest NICs of those that are hubs of nothing."""
    return min((r for r, x in enumerate(shares) if not x), key=lambda r: len(live[r]))


class _Half:
    """The data that ranks have for each other: what has been sent so far, and what is ready."""

    def __init__(
        self, shares: Sequence[Fraction], adding: Sequence[Sequence[tuple[int, Fraction]]], nic: Fraction, gap: int
    ) -> None:
        self.raw = np.array([[int(part / nic * ONE) for part in shares]] * len(shares), np.int64)
        np.fill_diagonal(self.raw, 0)
        # For each part of a hub's section that some rank adds last to, in order: its size at this rank; its begin, in
        # bytes of the section; its begin in the bytes that this rank sends.
        self.parts = np.zeros((max(map(len, adding)), *self.raw.shape), np.int64)
        self.begins = np.zeros_like(self.parts)
        for hub, parts in enumerate(adding):
            for place, (rank, part) in enumerate(parts):
                self.begins[place, :, hub] = self.parts[:, :, hub].sum()
                self.parts[place, rank, hub] = int(part * shares[hub] / nic * ONE)
        self.gaps = self.begins - (np.cumsum(self.parts, axis=0) - self.parts)
        self.skipped = self.parts.sum(0)
        self.raw -= self.skipped
        self.needs = self.raw + self.skipped.T
        self.left, self.served, self.landed = self.needs.copy(), np.zeros_like(self.raw), np.zeros_like(self.raw)
        self.found: list[Ints] = []  # (slots, 6): rail, sender, receiver, how much, begin, size
        self.flying: list[tuple[int, Ints, Ints, Ints]] = []  # end, senders, receivers, how much
        self.gap = gap

    def put(self, i: int, k: int, rail: int, begin: int, end: int, much: int) -> None:
        """A slot that carries so much."""
        self.left[i, k] -= much
        self.served[i, k] += much
        self.put_all(np.array([[rail, i, k, much]]), begin, end)

    def put_all(self, chunks: Ints, begin: int, end: int) -> None:
        """Slots of one step that have been counted; chunks : (slots, 4), rail, sender, receiver, and how much"""
        self.found.append(np.column_stack((chunks, np.full((len(chunks), 2), (begin, end - begin)))))
        self.flying.append((end, chunks[:, 1], chunks[:, 2], chunks[:, 3]))

    def land(self, now: int) -> None:
        for end, i, k, much in self.flying:
            if end <= now - self.gap:
                np.add.at(self.landed, (i, k), much)
        self.flying = [each for each in self.flying if each[0] > now - self.gap]

    def slots(self) -> dict[tuple[int, int], list[Slot]]:
        """Those of every pair. What is left over at the end goes to the last ones."""
        rail, i, k, much, begin, size = np.concatenate(self.found).T
        if not len(rail):
            return {}  # no step is long enough for a chunk
        order = np.lexsort((rail, size, begin, k, i))
        rail, i, k, much, begin, size = (column[order] for column in (rail, i, k, much, begin, size))
        new = np.flatnonzero(np.diff(i * len(self.raw) + k, prepend=-1))
        ends = np.append(new[1:], len(i))
        much[ends - 1] += np.maximum(self.left[i[new], k[new]], 0)
        first = zip(zip(i[new].tolist(), k[new].tolist(), strict=True), new.tolist(), ends.tolist(), strict=True)
        rows = np.column_stack((begin * (HALF // ONE), size * (HALF // ONE), rail, much)).tolist()
        return {pair: [Slot(*row) for row in rows[a:z]] for pair, a, z in first}

    def ready(self, slow: int) -> Ints:
        """The amount that each rank can send a slow one: its own data, then sums as far as all others have sent
        theirs."""
        at = self.landed + np.where(self.landed >= self.gaps, self.parts, 0).sum(0)
        np.fill_diagonal(at, 2**62)
        at[slow] = 2**62
        known = at.min(0)
        known -= known // SLACK
        sums = np.clip(known - self.begins[:, slow], 0, self.parts[:, slow]).sum(0)
        found: Ints = np.clip(self.raw[:, slow] + sums - self.served[:, slow], 0, self.left[:, slow])
        return found


def greedy_slots(
    live: Sequence[Sequence[int]],
    shares: Sequence[Fraction],
    adding: Sequence[Sequence[tuple[int, Fraction]]],
    ends: Sequence[int],
    margin: Fraction,
    chunk: Fraction,
) -> tuple[Callable[[], dict[tuple[int, int], list[Slot]]], Fraction]:
    """The slots of every pair that has something to send, weighted by how much, made when they are asked for; and for
    which part of the half the starving rank's NICs can receive less than they send. Pure, and the same on every rank.

    live : the rails of each rank; shares : of each as a hub, 0 for the starving rank, and for others only if these have
    more rails; adding : for each hub's section, the ranks that add last and their parts, in order, the starving rank
    first; ends : of steps, in `ONE`; margin : part of the half from the end of a slot until its bytes are counted on;
    chunk : part of the half that a chunk costs
    """
    ranks, lone = len(live), starving(live, shares)
    # The amount that a NIC moves in the half: the starving rank's NICs are busy all the time.
    of_lone = (sum((b for r, b in parts if r == lone), Fraction(0)) for hub, parts in enumerate(adding) if hub != lone)
    nic = (1 - max(of_lone)) / len(live[lone])
    # With slots of the longest length it sends so many chunks; their cost is left free for the others.
    nic, cost = nic / (1 - chunk / LONGEST[False]), int(chunk * ONE)
    half = _Half(shares, adding, nic, int(margin * ONE))
    late = sorted({r for parts in adding for r, _ in parts} - {lone})
    rails = sorted({rail for mine in live for rail in mine})
    on = {rail: [r for r in range(ranks) if rail in live[r]] for rail in rails}
    others_on = {rail: np.array([r != lone and rail in live[r] for r in range(ranks)]) for rail in rails}
    ids = np.arange(ranks)
    ties = (ids[:, None] * 7919 + ids * 104729) % TIES
    sending: dict[int, tuple[int, set[int]]] = {rail: (0, set()) for rail in live[lone]}  # until when, to whom
    getting = sending.copy()
    starts, idle, counts = [0, *ends], 0, [0, 0]
    brief = max(b - a for a, b in pairwise(starts)) // 2
    longest = [int(part * ONE) for part in (LONGEST if late else LONGEST_ALONE)]

    def longer(held: dict[int, tuple[int, set[int]]], turn: int, get: bool) -> int:
        """New slots of the starving rank where the last ones are over, for the rank with most data; and the rest of
        them."""
        begin, size, remains = starts[turn], starts[turn + 1] - starts[turn], 0
        much = half.ready(lone) if get else half.left[lone].copy()
        for rail in sorted((rail for rail in held if held[rail][0] <= begin), key=lambda rail: (rail + turn) % ranks):
            busy = {k for end, peers in held.values() if end > begin for k in peers}
            end, room, own = starts[turn + 1], size, set[int]()
            while room > 2 * cost and (some := [k for k in on[rail] if k not in own and much[k]]):
                k = max(some, key=lambda k: (k not in busy, int(much[k]), k))
                most = int(much[k])
                if not own:
                    end = max(end, starts[bisect_right(starts, begin + min(longest[get], most)) - 1])
                    room = end - begin
                part = min(most, room - cost)
                half.put(*((k, lone) if get else (lone, k)), rail, begin, end, part)
                room, much[k] = room - part - cost, much[k] - part
                counts[get] += 1
                own.add(k)
            held[rail] = end, own
            remains += room
        return remains

    for turn, (begin, end) in enumerate(pairwise(starts)):
        if end - begin <= min(2 * cost, brief):  # one of the first: nobody sends, as the starving server does not
            continue
        half.land(begin)
        longer(sending, turn, False)
        remains = longer(getting, turn, True)
        idle += remains
        late_out, late_in = (
            end - half.served.sum(axis) * ONE // np.maximum(half.needs.sum(axis), 1) for axis in (1, 0)
        )
        limit = half.left.copy()
        for k in late:
            limit[:, k] = half.ready(k)
        order = sorted(rails, key=lambda rail: (rail + turn) % ranks)
        senders, receivers = (np.array([others_on[rail] for rail in order]) for _ in range(2))
        for place, rail in enumerate(order):
            senders[place, list(getting.get(rail, (0, ()))[1])] = False
            receivers[place, list(sending.get(rail, (0, ()))[1])] = False
        before = half.served.copy()
        chunks = exchanged(
            senders, receivers, begin, end, cost, ONE, TIES,
            half.needs, half.served, limit, late_out[:, None] + late_in, ties,
        )  # fmt: skip
        half.left -= half.served - before
        chunks[:, 0] = np.array(order)[chunks[:, 0]]
        half.put_all(chunks, begin, end)
    whole = len(live[lone]) * ONE
    return half.slots, 1 - Fraction(whole - idle - counts[True] * cost, whole - counts[False] * cost)


# Steps of many lengths, where one server starves: it alone sets the bound, and is the hub of nothing.
#
# It should receive results from the very beginning, before any exist. So it adds last to half of the data, or a
# little less: first it receives sums of the others' data. Each of its halves is cut separately. Other servers that
# lack NICs are hubs of less. They add last to a little as well, since results of data that passes the starving server
# come late. Among the remaining servers, whatever exceeds one half continues in the other. The second half is the
# first one's mirror image in time.


LAST_UNIT = 2**22
"""Denominator of the part to which the starving rank adds last."""

Adding = list[tuple[int, Fraction]]
"""(rank, part of a hub's section to which it adds last), in order."""


class Parts(NamedTuple):
    """starving : the rank; shares : of each rank as a hub; adding : of each hub"""

    starving: int
    shares: tuple[Fraction, ...]
    adding: tuple[Adding, ...]


def hub_parts(cluster: Cluster, last: Fraction) -> Parts:
    """The hubs' shares, and the parts to which ranks add last.

    All but the starving rank are equally busy. With n NICs a rank is hub of x = (n t - 1)/(P-2), where t = (2P-3)/(NICs
    of all these ranks), or of nothing if this is negative. A slow rank that adds last to y has equal halves at y = (1 -
    (P-1) x)/2.

    last : the part of all data to which the starving rank adds last
    """
    counts, slow = list(map(len, live_nics(cluster))), short_of_nics(cluster)
    ranks, lone = len(counts), counts.index(min(counts))
    per_nic = Fraction(2 * ranks - 3, sum(counts) - counts[lone])
    hubs = {r: max(Fraction(0), (counts[r] * per_nic - 1) / (ranks - 2)) if r != lone else Fraction(0) for r in slow}
    full = 1 - sum(hubs.values(), Fraction(0))
    shares = tuple(hubs.get(r, full / (ranks - len(slow))) for r in range(ranks))
    via = {r: max(Fraction(0), (1 - (ranks - 1) * shares[r]) / 2) / full for r in slow if r != lone}
    over = max(Fraction(1), 2 * sum(via.values(), Fraction(0)))  # of a section, beside the half of who starves
    late = {r: last if r == lone else via[r] / over for r in slow}
    turns = TURNS if rates_nearly_equal(counts) else 1

    def adding(hub: int) -> Adding:
        """The starving rank first, for every hub; then other ranks that are hubs of nothing."""
        first = {r: part for r, part in late.items() if not shares[r] and r != hub}
        own = first if hub in late else first | late
        return [(r, part / turns) for r, part in own.items()] * turns

    return Parts(lone, shares, tuple(adding(hub) for hub in range(ranks)))


class OneStarves(Finder):
    """Steps of many lengths. `segments` : steps of each half, the first ones each `growth` times as long as the step
    before; `last` : the part of the data to which the starving rank adds last."""

    name = "one-starves"

    def applies(self, cluster: Cluster) -> bool:
        """One rank has fewest NICs and alone sets the bound."""
        if not applies(cluster):
            return False
        fewest, *others = sorted(map(len, live_nics(cluster)))
        return fewest * Fraction(2 * len(others) - 1, sum(others)) <= 1 and fewest < others[0]

    def used(self, cluster: Cluster) -> Used:
        return live_nics(cluster)

    def shares(self, cluster: Cluster) -> Sequence[Fraction]:
        return hub_parts(cluster, Fraction(0)).shares

    def most_steps(self, cluster: Cluster) -> int:
        """By memory: in each step of a half every NIC sends a chunk, and most chunks wait for one of every rank."""
        return max(1, MAX_WAITS // (sum(map(len, self.used(cluster))) * len(cluster.ranks)))

    def timed(self, recipe: DirectExchange, cluster: Cluster, nbytes: int) -> Timed:
        """All transfers; where others have time to spare, held back in the second half."""
        live, of = live_nics(cluster), hub_parts(cluster, recipe.last)
        times = _slots(cluster, of, recipe)[0]()
        borders = [granule(end * nbytes, nbytes) for end in accumulate(of.shares[:-1], initial=Fraction(0))]
        section = list(pairwise([*borders, nbytes]))
        via: dict[int, list[tuple[int, tuple[int, int]]]] = {}  # hub -> (slow rank, bytes that it adds last to)
        plain: dict[int, tuple[int, int]] = {}
        for r, (low, high) in enumerate(section):
            ends = accumulate((part for _, part in of.adding[r]), initial=Fraction(0))
            until = [granule(low + part * (high - low), nbytes) for part in ends]
            via[r] = list(zip((rank for rank, _ in of.adding[r]), pairwise(until), strict=True))
            plain[r] = until[-1], high
        # In the second half each slow rank's parts come in the same order as in the first. The order between ranks is
        # the first half's mirror image.
        late = {r: _turned(mine) for r, mine in via.items()}

        def gathered(i: int, k: int) -> list[SectionPart]:
            """What i sends to k in the first half."""
            own = [SectionPart(Kind.RAW, k, *part) for part in (*(part for s, part in via[k] if s != i), plain[k])]
            return own + [SectionPart(Kind.PARTIAL, i, *part) for s, part in via[i] if s == k]

        def spread(i: int, k: int) -> list[SectionPart]:
            """What i sends to k in the second half."""
            own = [SectionPart(Kind.RESULT, i, *part) for part in (plain[i], *(part for s, part in late[i] if s != k))]
            return [SectionPart(Kind.FINAL, k, *part) for s, part in late[k] if s == i] + own

        cuts, adding = Cuts(), {*short_of_nics(cluster)}
        for i, k in permutations(range(len(live)), 2):
            # The second half is the first one's mirror image, in which k sends to i.
            usual = [Slot(0, 1, min({*live[i]} & {*live[k]}), 1)]
            slots, back = (times.get(pair) or usual for pair in ((i, k), (k, i)))
            back = mirrored(back)
            first, second = joined(gathered(i, k)), joined(spread(i, k))
            if i in adding or k in adding:
                cuts.add(i, k, first, slots)
                cuts.add(i, k, second, back, HALF)
            else:  # what is too much for one half goes on into the other
                cuts.add(i, k, first + second, whole(slots, back))
        rows, held = cuts.rows(), None
        if have_spare_time([*map(len, live)]):
            length = longest_step(recipe.segments, recipe.growth)
            if length > (recipe.margin + recipe.chunk) * HALF:  # there is time to hear of the step before
                held = on_leash(rows, of.starving, length)
        return Timed(rows, {r: low for r, (low, _) in plain.items() if via[r]}, held)

    def growing(self, recipe: DirectExchange) -> int:
        return round(UP * recipe.segments)

    def form(self, cluster: Cluster, lanes: int, bound: Bound, costs: Costs) -> Form:
        """The starving server has nothing to receive during the first turn of the others: half of that part of a half
        is lost, beside a step and the cost of chunks."""
        used, root = self.used(cluster), _root(bound, costs)
        chunks, most = 2 * sum(map(len, used)), min(MAX_STEPS, self.most_steps(cluster))

        steps = np.arange(2, most + 1)
        growth, turn = 1 + GROWS / np.sqrt(steps), (len(used) - 1) / max(map(len, used))
        longest = growth ** (float(UP) * steps)
        first = (growth**turn - 1) / (longest - 1 + longest * (growth - 1) * (1 - float(UP)) * steps)
        about = float(steps[np.argmin(steps / root**2 + 1 / steps + first / 2)])
        margin, chunk = _part(bound, costs.alpha, Fraction(1, 10)), _part(bound, costs.per_chunk, MOST_LOST)
        grows = 1 + Fraction(round(100 * GROWS / sqrt(about)), 100)
        recipe = DirectExchange(1, self.name, growth=grows, margin=margin, chunk=chunk, lanes=lanes)
        return Form(recipe, _near(about, 2, most, chunks), cluster)

    def told(self, recipe: DirectExchange, cluster: Cluster) -> list[tuple[str, str]]:
        name = cluster.ranks[hub_parts(cluster, recipe.last).starving].name
        grown = f"the first each {float(recipe.growth):.4g} times the one before"
        return [
            ("adds last", f"{name}, to {float(recipe.last) * 100:.4g} % of the data"),
            ("steps", f"{recipe.segments} in each half, {grown}; one NIC for each transfer"),
        ]


def fitted(recipe: DirectExchange, cluster: Cluster) -> Fraction:
    """`last` with which the starving rank is busy equally long both ways.

    While the first sums are gathered it can send but not receive. If it has nothing to receive during the part u of a
    half, it should receive sums in 1 - u of a half. It should send totals in all of the half: last = (1 - u)/(2 - u).
    In turn, u depends a little on `last`.
    """
    last, (_, cluster) = Fraction(1, 2), fewest_nics_first(cluster)  # as steps will be found
    for _ in range(2):
        _, idle = _slots(cluster, hub_parts(cluster, last), recipe)
        last = ((1 - idle) / (2 - idle)).limit_denominator(LAST_UNIT)
    return last


def _slots(
    cluster: Cluster, of: Parts, recipe: DirectExchange
) -> tuple[Callable[[], dict[tuple[int, int], list[Slot]]], Fraction]:
    """`greedy_slots`, of rails in the order of their ranks: which NICs are dead makes no difference."""
    live = live_nics(cluster)
    ranks = Counter(rail for mine in live for rail in mine)
    rails = sorted(ranks, key=lambda rail: (ranks[rail], rail))
    number = {rail: i for i, rail in enumerate(rails)}
    slots, idle = greedy_slots(
        [sorted(map(number.__getitem__, mine)) for mine in live],
        of.shares,
        of.adding,
        step_ends(recipe.segments, recipe.growth),
        recipe.margin,
        recipe.chunk,
    )

    def named() -> dict[tuple[int, int], list[Slot]]:
        return {pair: [slot._replace(nic=rails[slot.nic]) for slot in own] for pair, own in slots().items()}

    return named, idle


def _turned(of: Sequence[tuple[int, tuple[int, int]]]) -> list[tuple[int, tuple[int, int]]]:
    """(rank, bytes) with the ranks in reverse order, but each rank's bytes in the same."""
    own = {rank: iter([part for r, part in of if r == rank]) for rank in {rank for rank, _ in of}}
    return [(rank, next(own[rank])) for rank, _ in reversed(of)]


# The transfers of each step when several servers starve: every NIC is busy in every step.
#
# In each step a slow server sends data to hubs and is sent results, on all its NICs; all send to the same hubs at the
# same time, on different NICs. A hub sends a result as soon as all that it adds up has landed. Then each rail has a
# matching of the hubs, the pairs that have had least first. Every chunk fills its step, and nothing is left over at
# the end of the half, so no rank falls behind. Data that exceeds a half continues in the other, its mirror image.


PLACES = 2**20
"""Units of places in a hub's section."""
FULL_HUB = 2**9
"""Units of parts of the data: those of a full hub."""
COARSE = 24
"""Bits dropped from weights, whose squares an assignment must distinguish."""


def growing_ends(count: int, growing: int, growth: Fraction) -> tuple[int, ...]:
    """Ends of `count` steps, in units of which `ONE` is the half; each of the first `growing` steps is followed by one
    `growth` times as long."""
    sizes = [2**64]
    for step in range(1, count):
        sizes.append(sizes[-1] * growth.numerator // growth.denominator if step <= growing else sizes[-1])
    total = sum(sizes)
    return tuple(ONE * done // total for done in accumulate(sizes))


def steady_steps(
    live: Sequence[Sequence[int]], shares: Sequence[Fraction], ends: Sequence[int], margin: Fraction, chunk: Fraction
) -> dict[tuple[int, int], list[Slot]]:
    """(sender, receiver) -> its slots in the first half, by time. Pure, and the same on every rank.

    live : the rails of each rank; shares : each rank's part of the data as a hub, 0 of those that starve; ends : of
    steps, in `ONE`; margin : part of the half from the end of a slot to when its bytes are counted on; chunk : part of
    the half that a chunk costs
    """
    slow = [rank for rank, share in enumerate(shares) if not share]
    part = np.array([int(FULL_HUB * share / max(shares)) for share in shares], np.int64)
    pairs = part[:, None] + part  # what two have for each other
    section = np.maximum(np.broadcast_to(part * (PLACES // FULL_HUB), pairs.shape), 1)
    quiet = quiet_rails(live, slow)
    # A pair's total is known once all steps are found: the first time equal totals are assumed.
    for left_alone in (frozenset[int](), quiet):
        half = _SeveralHalf(live, slow, section, pairs, int(margin * ONE), int(chunk * ONE), left_alone)
        for turn, (begin, end) in enumerate(pairwise([0, *ends])):
            half.step(turn, begin, end)
        # A hub sends another hub results of its own section in the other half, too, where it is sent the rest.
        section = np.maximum((half.sent + half.sent.T) * part // np.maximum(pairs, 1), 1)
        if quiet:  # hubs have what slow servers have for them, and no more
            section[:] = section[slow[0]]
    return half.slots


def quiet_rails(live: Sequence[Sequence[int]], slow: Sequence[int]) -> frozenset[int]:
    """The rails of two slow servers that hubs leave to them, if hubs have time for each other on the other rails. Then
    nobody is in the starving ranks' way, and hubs have gathered everything before half of the half is over."""
    theirs = frozenset(rail for rank in slow for rail in live[rank])
    free = min(len({*mine} - theirs) for rank, mine in enumerate(live) if rank not in slow)
    return theirs if len(slow) == 2 and free > 2 * len(live[slow[0]]) else frozenset()


class _SeveralHalf:
    """The data sent so far, and the data that is ready."""

    def __init__(
        self,
        live: Sequence[Sequence[int]],
        slow: Sequence[int],
        section: Ints,
        pairs: Ints,
        gap: int,
        cost: int,
        quiet: frozenset[int],
    ) -> None:
        self.live, self.slow, self.section, self.gap, self.cost, self.quiet = live, slow, section, gap, cost, quiet
        self.rails = sorted({rail for mine in live for rail in mine})
        self.weight = FULL_HUB * FULL_HUB // np.maximum(pairs, 1)  # what two have had counts more, as they need less
        self.hubs = [rank for rank in range(len(live)) if rank not in slow]
        self.sent, self.landed = np.zeros_like(section), np.zeros_like(section)
        self.slots: dict[tuple[int, int], list[Slot]] = {}
        self.flying: list[tuple[int, int | Ints, int | Ints, int | Ints]] = []  # end, from, to, amounts
        ids = np.arange(len(live))
        self.ties = (ids[:, None] * 7919 + ids * 104729) % TIES

    def step(self, turn: int, begin: int, end: int) -> None:
        """One step, from `begin` to `end`."""
        for _, i, k, amounts in [each for each in self.flying if each[0] <= begin - self.gap]:
            self.landed[i, k] += amounts
        self.flying = [each for each in self.flying if each[0] > begin - self.gap]
        if end - begin <= 2 * self.cost:
            return
        rails = sorted(self.rails, key=lambda rail: (rail + turn) % (1 + max(self.rails)))
        into, out = ({rail: set[int]() for rail in rails} for _ in range(2))
        for rank in self.slow:
            mine = [rail for rail in rails if rail in self.live[rank]]
            self._data(rank, begin, end, mine, into)
            self._results(rank, begin, end, mine, out)
        for rail in rails:
            if rail not in self.quiet:
                self._rest(rail, begin, end, into[rail], out[rail])

    def _data(self, rank: int, begin: int, end: int, rails: Sequence[int], taken: dict[int, set[int]]) -> None:
        """A slow server's data: to the hubs that it has sent fewest chunks. The others, on the same rails, take the
        same hubs."""
        weight = self.weight[rank].tolist()
        chunks = {k: len(self.slots.get((rank, k), ())) * weight[k] for k in self.hubs}
        for rail in rails:
            had = (self.sent[rank] * self.weight[rank]).tolist()
            k = max(self._hubs(rail, taken), key=lambda k: (-chunks[k], -had[k], k))
            self._put(rank, k, rail, begin, end, end - begin - self.cost)
            chunks[k] += weight[k]
            taken[rail].add(k)

    def _results(self, rank: int, begin: int, end: int, rails: Sequence[int], taken: dict[int, set[int]]) -> None:
        """Results to a slow server: from the hub that has most, a full chunk at most, and of these from the one that
        has exchanged least with it."""
        room = end - begin - self.cost
        places = self.landed * PLACES // self.section
        np.fill_diagonal(places, 2**62)
        known = places.min(0)
        known = (known - known // SLACK) * self.section[rank] // PLACES
        for rail in rails:
            had = ((self.sent[rank] + self.sent[:, rank]) * self.weight[rank]).tolist()
            ready = np.minimum(known - self.sent[:, rank], room).tolist()
            k = max(self._hubs(rail, taken), key=lambda k: (ready[k], -had[k], k))
            if ready[k] > 0:
                self._put(k, rank, rail, begin, end, ready[k])
                taken[rail].add(k)

    def _rest(self, rail: int, begin: int, end: int, into: set[int], out: set[int]) -> None:
        """Among hubs, where there are quiet rails as much as they have for each other."""
        rows, cols = (self._hubs(rail, {rail: taken}) for taken in (out, into))
        had = self.sent * self.weight >> COARSE
        worth = self.ties - had * had * TIES
        much = np.full_like(worth, end - begin - self.cost)
        if self.quiet:
            much = np.minimum(much, self.section - self.sent)
        np.fill_diagonal(much, 0)
        worth[much <= 0] = -(2**62)
        taken = assigned(worth[np.ix_(rows, cols)])
        i, k = np.array(rows, np.int64)[taken >= 0], np.array(cols, np.int64)[taken[taken >= 0]]
        goes = much[i, k] > 0
        i, k = i[goes], k[goes]
        amounts = much[i, k]
        self.sent[i, k] += amounts
        self.flying.append((end, i, k, amounts))
        for pair, amount in zip(zip(i.tolist(), k.tolist(), strict=True), amounts.tolist(), strict=True):
            self._slot(pair, rail, begin, end, amount)

    def _hubs(self, rail: int, taken: Mapping[int, set[int]]) -> list[int]:
        return [k for k in self.hubs if rail in self.live[k] and k not in taken[rail]]

    def _slot(self, pair: tuple[int, int], rail: int, begin: int, end: int, much: int) -> None:
        slot = Slot(begin * (HALF // ONE), (end - begin) * (HALF // ONE), rail, much)
        self.slots.setdefault(pair, []).append(slot)

    def _put(self, i: int, k: int, rail: int, begin: int, end: int, much: int) -> None:
        self._slot((i, k), rail, begin, end, much)
        self.sent[i, k] += much
        self.flying.append((end, i, k, much))


# Steady steps, where two servers or more starve: all of them send and are sent results all the time.
#
# One has half of its NICs or fewer, the others hardly more; they all use as many. The rest are hubs; a hub that lacks
# few NICs has a smaller share. Hubs gather from each other in the first half and spread in the second, about twice as
# fast as the slow servers send. So, except at the very beginning, hubs have the sums of all others before the slow
# servers have sent theirs for the same bytes. Results go back to these at once, through both halves. The loss is one
# and a half steps, from sending a slow server's chunk to the return of its result, and the cost of chunks.


class SeveralStarve(Finder):
    """Steady steps. `segments` : steps of each half; each of the first `growing` is followed by one `growth` times as
    long."""

    name = "several-starve"

    def applies(self, cluster: Cluster) -> bool:
        return slow_ranks(cluster) is not None

    def used(self, cluster: Cluster) -> Used:
        return used_nics(cluster, _slow(cluster))

    def shares(self, cluster: Cluster) -> Sequence[Fraction]:
        return shares_beside(cluster, _slow(cluster))

    def most_steps(self, cluster: Cluster) -> int:
        return max(1, MAX_CHUNKS // (2 * sum(map(len, self.used(cluster))))) // 2

    def timed(self, recipe: DirectExchange, cluster: Cluster, nbytes: int) -> Timed:
        """A pair's bytes, data first, follow its slots of the whole plan; the second half is the first one's mirror
        image. No pair has to finish anything at the end of a half."""
        slow, used, shares = _slow(cluster), self.used(cluster), self.shares(cluster)
        live = [list(mine) for mine in used]
        hubs = [rank for rank in range(len(live)) if rank not in slow]
        ends = growing_ends(recipe.segments, recipe.growing, recipe.growth)
        slots = steady_steps(live, shares, ends, recipe.margin, recipe.chunk)
        bounds = cuts_by(0, nbytes, [shares[rank] for rank in hubs]).tolist()
        section, cuts = dict(zip(hubs, pairwise(bounds), strict=True)), Cuts()
        for i, k in permutations(range(len(live)), 2):
            pieces = [SectionPart(Kind.RAW, k, *section[k])] if k in section else []
            pieces += [SectionPart(Kind.RESULT, i, *section[i])] if i in section else []
            if not pieces:  # slow servers, which need not have a rail in common
                continue
            back = (slot._replace(begin=slot.begin + HALF) for slot in mirrored(slots.get((k, i), [])))
            # With few steps and many ranks some pairs have had no turn.
            mine = [*slots.get((i, k), []), *back] or [Slot(HALF, 1, min({*live[i]} & {*live[k]}), 1)]
            cuts.add(i, k, pieces, mine)
        return Timed(cuts.rows(), {}, None)

    def growing(self, recipe: DirectExchange) -> int:
        return min(recipe.growing, recipe.segments)

    def form(self, cluster: Cluster, lanes: int, bound: Bound, costs: Costs) -> Form:
        """Hubs have heard from each other after a turn, while the slow servers wait. Hubs are twice as fast, so after
        one more turn they have gathered as much as after the last two. So steps may grow by the golden ratio in a
        turn."""
        used, shares = [list(mine) for mine in self.used(cluster)], self.shares(cluster)
        slow = [rank for rank, share in enumerate(shares) if not share]
        hubs, fewer, full = len(used) - len(slow), len(used[slow[0]]), max(map(len, used))
        quiet, turn = bool(quiet_rails(used, slow)), (hubs - 1) / full
        growth = Fraction(round(PARTS * min(2.0, GOLDEN ** (0.5 / turn))), PARTS)
        first = 1 / (turn * (2.5 if quiet else 1) + 2)
        growing = round(log(1 / first) / log(growth))
        more = growing - (1 - first) / log(growth)  # steps than if all were alike
        margin = _part(bound, costs.alpha / 2, Fraction(1, 2)) if quiet or 2 * fewer == full else Fraction(0)
        chunk = _part(bound, costs.per_chunk, MOST_LOST)
        recipe = DirectExchange(1, self.name, growth=growth, growing=growing, margin=margin, chunk=chunk, lanes=lanes)
        most = min(MAX_STEPS, self.most_steps(cluster))
        return Form(recipe, _near(_root(bound, costs) + more, 2, most, 2 * sum(map(len, used))), cluster)

    def told(self, recipe: DirectExchange, cluster: Cluster) -> list[tuple[str, str]]:
        names = " and ".join(cluster.ranks[rank].name for rank in _slow(cluster))
        grown = ""
        if recipe.growing:
            grown = f", the first {recipe.growing} each {float(recipe.growth):.4g} times the one before"
        return [
            ("send and are sent results all the time", names),
            ("steps", f"{recipe.segments} in each half{grown}; one NIC for each transfer"),
        ]


def _slow(cluster: Cluster) -> tuple[int, ...]:
    slow = slow_ranks(cluster)
    assert slow is not None, "another cluster"
    return slow


def slow_ranks(cluster: Cluster) -> tuple[int, ...] | None:
    """The slow ranks: those with fewer than `MOST_NICS` of the others' NICs, which are no hubs. None if there are not
    two or more of them, one with at most half, or if hubs are too few. To keep each other busy, rails of slow ranks
    need two hubs more than slow ranks, or as many if there are two; every hub needs some of these rails.
    """
    if not of_one_pace(cluster):
        return None
    counts = list(map(len, live_nics(cluster)))
    slow = tuple(rank for rank, count in enumerate(counts) if count < MOST_NICS * max(counts))
    if len(slow) < 2 or 2 * min(counts) > max(counts):
        return None
    used = used_nics(cluster, slow)
    hubs = [mine.keys() for rank, mine in enumerate(used) if rank not in slow]
    if not all(used[rank].keys() & hub for rank in slow for hub in hubs):
        return None
    on = Counter((rail, rank in slow) for rank, mine in enumerate(used) for rail in mine)
    more = {on[rail, False] - count for (rail, no_hub), count in on.items() if no_hub}
    return slow if min(more) >= 2 or (more == {0} and len(slow) == 2) else None


def shares_beside(cluster: Cluster, slow: tuple[int, ...]) -> list[Fraction]:
    """Each rank's part of the data as a hub, sum 1, so that all hubs are equally busy.

    A hub of x sends 1 - x to other hubs and x to each of the P-1 others: with n NICs it is busy for 1 + (P-2) x = n t.
    """
    counts = list(map(len, live_nics(cluster)))
    hubs = [rank for rank in range(len(counts)) if rank not in slow]
    per_nic = Fraction(len(hubs) + len(counts) - 2, sum(counts[rank] for rank in hubs))
    return [(n * per_nic - 1) / (len(counts) - 2) if r in hubs else Fraction(0) for r, n in enumerate(counts)]


def used_nics(cluster: Cluster, slow: tuple[int, ...]) -> Used:
    """Of each rank the rails that it serves -> its NICs, as in `live_nics`. All slow ranks use as many as the one with
    fewest: the others could send more, but their results wait for that one. On one fabric, where any NIC reaches any,
    slow ranks are assigned the first rails, and hubs do not lack these. Two slow ranks with one NIC each use the first
    two rails: on one they could not send to the same hub together. With two hubs, which then could not exchange on it,
    they use one rail nevertheless."""
    live = live_nics(cluster)
    if not cluster.fabric.rails:
        live = [dict(enumerate(mine.values())) for mine in live]
    fewest = min((live[rank] for rank in slow), key=len)
    for rank in slow:
        rails = sorted(live[rank], key=lambda rail: (rail not in fewest, rail))[: len(fewest)]
        live[rank] = {rail: live[rank][rail] for rail in sorted(rails)}
    if len(fewest) == 1 and len(slow) == 2 and len(live) > 4 and not cluster.fabric.rails:
        live[slow[1]] = {1: next(iter(live[slow[1]].values()))}
    return live


FINDERS: dict[str, Finder] = {finder.name: finder for finder in (NoneStarves(), OneStarves(), SeveralStarve())}
MAX_STEPS = 1024
MAX_GROWTH, MAX_LONGER, MAX_CHUNK = 4, 2**24, Fraction(1)
"""Limits: one step over the one before; the longest step over the first; a chunk's cost, as part of a half."""


@dataclass(frozen=True)
class DirectExchange(Recipe):
    """Direct exchange in steps. Who does what follows from the cluster: ranks are not named.

    Attributes
    ----------
    segments : number of rounds of the plan where no rank starves, else of steps of each half
    steps : the kind of cluster: "none-starves", "one-starves" or "several-starve"
    growth : where some rank starves, the length of a step over the one before, at first
    growing : with several starving ranks, the number of steps that grow
    margin : the part of a half from the end of a step until its bytes are counted on
    chunk : the part of a half that a chunk costs
    last : the part of the data to which the starving rank adds last
    lanes : number of lanes of a NIC; slow NICs have fewer
    """

    family: ClassVar[str] = "direct-exchange"
    segments: Annotated[int, Whole(1, MAX_STEPS)]
    steps: Annotated[str, Choice(tuple(FINDERS))] = NoneStarves.name
    growth: Annotated[Fraction, Exact(1, MAX_GROWTH)] = Fraction(1)
    growing: int = 0
    margin: Fraction = Fraction(0)
    chunk: Annotated[Fraction, Exact(most=MAX_CHUNK)] = Fraction(0)
    last: Fraction = Fraction(0)
    lanes: Annotated[int, Whole(1, MAX_LANES)] = 1

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        """Steps are found for the ranks in an order of their NICs: which server lacks some makes no difference.

        So few bytes that steps would be cut to a granule or none are cut like more: else fewer bytes take longer.
        """
        fine = GRANULE * len(cluster.ranks) ** 2 * max(len(rank.nics) for rank in cluster.ranks)
        if 0 < nbytes < fine:
            return self.lower(cluster, fine).resized(nbytes)
        finder = FINDERS[self.steps]
        with no_collection():
            order, arranged = fewest_nics_first(in_lanes(cluster, self.lanes))
            routes, (rows, after, held) = Routes(cluster), finder.timed(self, arranged, nbytes)
            rows = rows._replace(
                src=order[rows.src],
                dst=order[rows.dst],
                hub=order[rows.hub],
                key=rows.key * self.lanes + rows.nic % self.lanes,  # a NIC's lanes one after the other
            )
            after = {int(order[hub]): end for hub, end in after.items()}
            used = [mine for _, mine in sorted(zip(order.tolist(), finder.used(arranged), strict=True))]
            ports = nic_ports(cluster, routes, nics_of(used, self.lanes))
            return scheduled(rows, dependencies(rows, after), ports, routes, nbytes, ordered=True, held=held)

    def check(self, cluster: Cluster) -> None:
        super().check(cluster)
        cluster = in_lanes(cluster, self.lanes)
        finder = FINDERS[self.steps]
        kind = {OneStarves.name: "where one starves", SeveralStarve.name: "where several starve"}
        fits = f"servers of NICs of one pace, {kind.get(self.steps, 'where none starves')}"
        require(finder.applies(cluster), "cluster", fits, f"{len(cluster.ranks)} ranks, other ones")
        most = finder.most_steps(cluster)
        require(self.segments <= most, "segments", f"1 to {most}", self.segments)
        longer = self.growth ** finder.growing(self)
        require(longer <= MAX_LONGER, "growth", f"steps at most {MAX_LONGER} times as long as the first", self.growth)
        require(self.margin < 1, "margin", "less than 1", self.margin)
        require(self.chunk.denominator <= MAX_PARTS, "chunk", f"a denominator of at most {MAX_PARTS}", self.chunk)
        most_last = Fraction(self.steps == OneStarves.name, 2)
        require(0 <= self.last <= most_last, "last", "0 to 1/2 where one starves, else 0", self.last)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """Seconds of the busiest server, all its NICs equally busy, or of the busiest uplink of a pod. A hub of the
        part x sends 1 - x to the others and x to each of them."""
        _, cluster = fewest_nics_first(in_lanes(cluster, self.lanes))
        finder, rate = FINDERS[self.steps], nic_rate(cluster)
        shares = finder.shares(cluster)
        works = [
            (1 + (len(shares) - 2) * x) / (len(mine) * rate)
            for x, mine in zip(shares, finder.used(cluster), strict=True)
        ]
        return max(max(works) * nbytes, direct_uplink_s(cluster, shares, nbytes))

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        finder, laned = FINDERS[self.steps], in_lanes(cluster, self.lanes)
        kinds = sorted(Counter(finder.shares(laned)).items(), reverse=True)
        parts = ", ".join(f"{count} of {100 * float(share):.4g} %" for share, count in kinds if share)
        hubs = ("hubs", f"{parts}, each exchanges directly with all")
        told = pace_lines(cluster) if self.lanes == 1 else lane_lines(cluster, self.lanes)
        return [hubs, *finder.told(self, laned), *told]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """One for each suitable way to find steps and, where NICs differ, each number of lanes; the first `KINDS` by
        the formula."""
        found = list[tuple[float, int, CandidateFamily]]()
        for lanes in range(1, MAX_LANES + 1 if differ(cluster) else 2):
            laned, own = in_lanes(cluster, lanes), Costs(costs.alpha, lanes * costs.per_chunk)
            for name, finder in FINDERS.items():
                if not finder.applies(laned):
                    continue
                form, used = finder.form(laned, lanes, bound, own), finder.used(laned)
                fluid_s = form.recipe.fluid_s(cluster, bound.nbytes)
                # Every NIC's bytes, a chunk for each peer, and the two hops of the first and the last chunk. For rounds
                # of many servers, where one try takes ten seconds, an estimate: the chunks of the rounds.
                chunks = Fraction(len(used) - 1, max(map(len, used)))
                if name == NoneStarves.name and len(used) > MANY:
                    chunks *= form.numbers[0]
                offer = CandidateFamily(
                    cls.family,
                    form.at,
                    shortlist=form.tried,
                    by_rate=False,
                    deepest=max(form.numbers) if name == NoneStarves.name else None,
                    least_s=float(fluid_s + chunks * own.per_chunk + 2 * costs.alpha),
                )
                found.append((float(fluid_s) + 2 * float(bound.seconds) / _root(bound, own), len(found), offer))
        return [offer for _, _, offer in sorted(found, key=itemgetter(0, 1))[:KINDS]]

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> DirectExchange:
        return self

    @classmethod
    def at_once(cls, cluster: Cluster, bound: Bound, costs: Costs) -> DirectExchange | None:
        """The number of steps that the formula puts first.

        The starving server has nothing to receive until hubs have heard from each other, a turn of the first steps.
        """
        for name, finder in FINDERS.items():
            if not finder.applies(cluster):
                continue
            form = finder.form(cluster, 1, bound, costs)
            recipe = replace(form.recipe, segments=form.numbers[0])
            if name != OneStarves.name:
                return recipe
            turn = -(-(len(cluster.ranks) - 1) // max(map(len, finder.used(cluster))))
            end = step_ends(recipe.segments, recipe.growth)[min(turn, recipe.segments) - 1]
            idle = Fraction(end, ONE) + recipe.margin
            last = max(Fraction(0), (1 - idle) / (2 - idle))
            return replace(recipe, last=last.limit_denominator(PARTS))
        return None

    def like(self, cluster: Cluster, bound: Bound, costs: Costs, counts: GroupCounts) -> DirectExchange | None:
        return self.at_once(cluster, bound, costs)
