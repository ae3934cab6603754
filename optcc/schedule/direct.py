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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate, chain, pairwise, permutations
from math import ceil, log, sqrt
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule import matchings
from optcc.schedule.assemble import cuts_by, granule
from optcc.schedule.columns import GRANULE, Schedule, Stage
from optcc.schedule.matchings import assigned, cut, in_order
from optcc.schedule.nics import (
    MAX_LANES,
    applies,
    common_rails,
    differ,
    direct_uplink_s,
    fastest_nic,
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
    NEARBY,
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

# SlotColumns: the times at which a NIC of a rank sends to a peer, in whole ticks of a plan of two halves.


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


class SlotColumns(NamedTuple):
    """Times in which one NIC serves one peer, in columns, int64 (slots,), by pair.

    pair : sender * ranks + receiver
    begin, size : ticks of the half, or of the plan
    nic : place of the NIC in its server
    weight : share of a pair's bytes, relative to the pair's other slots
    """

    pair: Ints
    begin: Ints
    size: Ints
    nic: Ints
    weight: Ints

    def at(self, places: Ints | NDArray[np.bool_]) -> SlotColumns:
        """Those at places, or where True."""
        return SlotColumns(*(column[places] for column in self))

    def in_time(self) -> SlotColumns:
        """By pair, then by begin, size, NIC and weight."""
        return self.at(np.lexsort((self.weight, self.nic, self.size, self.begin, self.pair)))

    def mirrored(self, ranks: int) -> SlotColumns:
        """What the second half has for these slots of the first, which it mirrors in time: senders receive."""
        src, dst = np.divmod(self.pair, ranks)
        return self._replace(pair=dst * ranks + src, begin=2 * HALF - self.begin - self.size).in_time()

    def carried(self, ranks: int) -> Ints:
        """The weights of each pair, added up."""
        found = np.zeros(ranks * ranks, np.int64)
        np.add.at(found, self.pair, self.weight)
        return found

    def then(self, other: SlotColumns) -> SlotColumns:
        """Both, of each pair these first."""
        both = SlotColumns(*map(np.concatenate, zip(self, other, strict=True)))
        return both.at(np.argsort(both.pair, kind="stable"))

    def with_all(self, live: Sequence[Iterable[int]], begin: int) -> SlotColumns:
        """And one for each pair that has none, at `begin`, on the first rail that its ranks have in common."""
        ranks, has = len(live), np.zeros(len(live) ** 2, np.bool_)
        has[self.pair] = True
        has[:: ranks + 1] = True
        lacking = np.flatnonzero(~has)
        if not len(lacking):
            return self
        rails = [min({*live[pair // ranks]} & {*live[pair % ranks]}, default=-1) for pair in lacking.tolist()]
        one = np.ones(len(lacking), np.int64)
        more = SlotColumns(lacking, begin * one, one, np.array(rails, np.int64), one)
        return self.then(more.at(more.nic >= 0))


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


def cut_rows(
    pairs: Sequence[tuple[int, int, int]],
    pieces: Sequence[SectionPart],
    slots: SlotColumns,
    counts: Sequence[int] | Ints,
    cost: Fraction = Fraction(0),
) -> DirectRows:
    """The transfers: each pair's bytes divided by the weights of its slots. A slot's place among its pair's is their
    segment.

    pairs : (sender, receiver, number of pieces), in the order of `pieces` and `slots`; counts : of each its slots
    cost : ticks that a chunk costs. A slot is up to so much longer or shorter, a third at most, if that saves a chunk
    """
    table = np.zeros((len(pairs), 5), np.int64)
    table[:, :3], table[:, 3] = _whole_numbers(pairs, 3), counts
    return DirectRows(
        *cut(
            table,
            _whole_numbers(pieces, len(SectionPart._fields)),
            np.column_stack(slots[1:]),
            (GRANULE, NEAR, cost.numerator, cost.denominator),
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
    order: Ints,
    waits: tuple[Ints, Ints],
    ports: Sequence[Mapping[int, int]],
    routes: Routes,
    nbytes: int,
) -> Schedule:
    """The schedule of `rows`, in that order.

    waits : by place in the order the places that each waits for, CSR; ports : of each rank, `nic` of a row -> its port
    """
    ranks, nics = len(ports), 1 + max(max(mine) for mine in ports)
    ends = ((rows.src * ranks + rows.dst) * nics + rows.nic)[order]
    used = np.bincount(ends, minlength=ranks * ranks * nics) > 0
    port = np.array([[mine.get(nic, -1) for nic in range(nics)] for mine in ports])
    pair, nic = np.divmod(np.flatnonzero(used), nics)
    src, dst = np.divmod(pair, ranks)
    out, into = port[src, nic], port[dst, nic]
    # Lanes of a NIC are one port.
    _, first, same = np.unique(out * len(routes.ports) + into, return_index=True, return_inverse=True)
    place = np.argsort(first)
    made = routes.single(list(zip(*(each[first[place]].tolist() for each in (src, dst, out, into)), strict=True)))
    route = made.start + np.argsort(place)[same]
    length, (added, stage) = rows.stop - rows.start, (table[rows.kind] for table in (ADDED, STAGES))
    columns = [column[order] for column in (rows.start, length, added, stage, rows.segment)]
    which = route[(np.cumsum(used) - 1)[ends]]
    return routes.schedule(nbytes, [which, *columns], np.diff(waits[0]), waits[1])


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
        return self._fitted(replace(self.recipe, segments=segments))

    def _fitting(self, recipes: Iterable[DirectExchange]) -> list[DirectExchange]:
        return [self._fitted(each) for each in recipes if each.fits(self.laned)]

    def _fitted(self, recipe: DirectExchange) -> DirectExchange:
        return replace(recipe, last=fitted(recipe, self.laned)) if recipe.steps == OneStarves.name else recipe

    def tried(self) -> list[DirectExchange]:
        """A recipe of each number."""
        return [self.at(number) for number in self.numbers]

    def near(self) -> list[Callable[[DirectExchange], list[list[DirectExchange]]]]:
        """What else is tried beside the fastest: other growths, costs and margins, and numbers of steps near its."""

        def changed(
            recipe: DirectExchange, name: str, ways: Sequence[Sequence[Fraction]]
        ) -> list[list[DirectExchange]]:
            base = int(name == "growth")  # what is beyond 1 changes
            found = []
            for factors in ways:
                values = [base + (getattr(recipe, name) - base) * factor for factor in factors]
                if name == "chunk" and recipe.steps != NoneStarves.name:
                    values = [value for value in values if value <= MOST_LOST]
                fields: list[dict[str, Any]] = [{name: Fraction(round(value * PARTS), PARTS)} for value in values]
                found.append(self._fitting(replace(recipe, **each) for each in fields))
            return found

        def other_numbers(recipe: DirectExchange) -> list[list[DirectExchange]]:
            return [
                self._fitting(replace(recipe, segments=max(1, recipe.segments + more)) for more in way)
                for way in ((-1, -2, -4), (1, 2, 4))
            ]

        found: list[Callable[[DirectExchange], list[list[DirectExchange]]]] = [
            partial(changed, name=name, ways=ways) for name, ways in NEARBY.items()
        ]
        found.append(other_numbers)
        if len(self.numbers) <= TRIES // 3:  # each takes long
            return found[: self.recipe.steps != NoneStarves.name and len(self.numbers) > 1]
        return found


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

    def least_s(self, recipe: DirectExchange, cluster: Cluster, nbytes: int, costs: Costs) -> float:
        """The mean over all NICs of their bytes and chunks; what these wait for is not looked at."""
        _, arranged = fewest_nics_first(cluster)
        rows = self.timed(recipe, arranged, nbytes).rows
        moved, nics = int((rows.stop - rows.start).sum()), sum(map(len, self.used(arranged)))
        return float((moved / fastest_nic(cluster) + len(rows.src) * costs.per_chunk) / nics + costs.alpha)

    def timed(self, recipe: DirectExchange, cluster: Cluster, nbytes: int) -> Timed:
        """The bytes of two ranks for each other, data first, follow their slots."""
        used = self.used(cluster)
        # Alike ranks side by side, so that slots do not depend on which ranks have lost NICs.
        order = sorted(range(len(used)), key=lambda rank: (len(used[rank]), [*used[rank]], rank))
        live = tuple(tuple(used[rank]) for rank in order)
        cost = recipe.chunk * HALF
        # A pair with next to no data has no step: it uses its first common rail.
        slots = worthwhile(slots_of(live, recipe.segments).with_all(live, HALF), ceil(cost))
        section = list(pairwise(cuts_by(0, nbytes, self.shares(cluster)).tolist()))
        pairs, pieces = [], list[SectionPart]()
        for i, k in permutations(order, 2):
            pairs.append((i, k, 2))
            pieces += (SectionPart(Kind.RAW, k, *section[k]), SectionPart(Kind.RESULT, i, *section[i]))
        counts = np.bincount(slots.pair, minlength=len(order) ** 2).reshape(len(order), -1)
        counts = counts[~np.eye(len(order), dtype=np.bool_)]
        rows = cut_rows(pairs, pieces, slots, counts, cost)
        if cost and len(rows.nic):
            rows = cut_rows(pairs, pieces, evenly_late(slots, rows.nic, live, recipe.chunk / 2), counts, cost)
        return Timed(rows, {}, None)

    def form(self, cluster: Cluster, lanes: int, bound: Bound, costs: Costs) -> Form:
        """The rounds that are needed and one more, as a turn takes part of a round; fewer where so many chunks would
        cost more than waiting."""
        used = [tuple(mine) for mine in self.used(cluster)]
        chunks = min(Fraction(len(ranks) - 1, len(rails)) for ranks, rails in joined_by(used).items())  # in a round
        needed, paid = float(rounds_needed(self.shares(cluster))) + 1, _root(bound, costs) / sqrt(chunks)
        most = min(MAX_STEPS, self.most_steps(cluster))
        recipe = DirectExchange(1, lanes=lanes, chunk=_part(bound, costs.per_chunk, MAX_CHUNK))
        numbers = _near(min(needed, paid), 1, most, len(used) * (len(used) - 1))
        if len(numbers) == TRIES:  # hubs differ much, and more rounds pay while chunks cost little
            numbers += [n for n in range(2 * ceil(needed), ceil(3 * needed), 2) if n < min(paid, most)]
        return Form(recipe, numbers, cluster)

    def told(self, recipe: DirectExchange, cluster: Cluster) -> list[tuple[str, str]]:
        return [("rounds", f"{recipe.segments}; one NIC for each transfer")]


def hub_shares(nics: Sequence[int]) -> tuple[Fraction, ...] | None:
    """Each rank's part of the data as a hub by its number of NICs, sum 1; None where one is the hub of nothing."""
    ranks, every = len(nics), sum(nics)
    shares = tuple((Fraction(2 * n * (ranks - 1), every) - 1) / (ranks - 2) for n in nics)
    return shares if min(shares) > 0 else None


def worthwhile(slots: SlotColumns, cost: int) -> SlotColumns:
    """The slots that last at least as long as a chunk costs, in ticks; of a pair the two longest, one each for data and
    results, if these are fewer."""
    order = np.lexsort((slots.size, slots.pair))
    ends = np.cumsum(np.bincount(slots.pair))
    second = slots.size[order][np.maximum(ends - 2, np.concatenate(([0], ends[:-1])).clip(max=len(order) - 1))]
    return slots.at(slots.size >= np.minimum(cost, second)[slots.pair])


def evenly_late(slots: SlotColumns, chunks: Ints, live: tuple[Rails, ...], cost: Fraction) -> SlotColumns:
    """The slots, with fewer bytes on rails whose NICs have more chunks. chunks : the rail of each; cost : of one, as
    part of the plan"""
    count, mean = np.bincount(chunks), Fraction(len(chunks), sum(map(len, live)))
    nics = [max(1, sum(rail in mine for mine in live)) for rail in range(len(count))]
    kept = [1 - cost * (Fraction(int(on), of) - mean) for on, of in zip(count, nics, strict=True)]
    parts = np.array([round(PARTS * min(Fraction(2), max(Fraction(1, 2), part))) for part in kept])
    return slots._replace(weight=np.maximum(slots.weight * parts[slots.nic] // PARTS, 1))


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
def slots_of(live: tuple[Rails, ...], rounds: int) -> SlotColumns:
    """The slots of every pair, in time. Pure, and the same on every rank.

    live : the rails of each rank; rounds : of the rails that most join the same ranks; others have about as many
    chunks
    """
    joined = joined_by(live)
    chunks = rounds * min(Fraction(len(ranks) - 1, len(rails)) for ranks, rails in joined.items())  # of a NIC
    alike, before = Counter(map(len, joined)), Counter[int]()
    found = list[SlotColumns]()
    for (ranks, rails), (needs, steps) in zip(joined.items(), rail_steps(live), strict=True):
        names, own = np.array(ranks), ceil(chunks * len(rails) / (len(ranks) - 1))
        lasts = np.zeros_like(needs)
        for receivers, last in steps:
            lasts[np.arange(len(ranks)), receivers] += last
        # Rails of other ranks, as many, are at other steps: no pair has all its turns at once.
        ahead = Fraction(before[len(ranks)], alike[len(ranks)])
        before[len(ranks)] += 1
        for turn, rail in enumerate(rails):
            a, z, begin, size = _in_rounds(_portion(steps, turn, len(rails)), own, ahead)
            need, whole = needs[a, z], lasts[a, z]
            weight = size // whole * need + size % whole * need // whole
            found.append(SlotColumns(names[a] * len(live) + names[z], begin, size, np.full_like(a, rail), weight))
    return SlotColumns(*map(np.concatenate, zip(*found, strict=True))).in_time()


@lru_cache(maxsize=8)
def rail_steps(live: tuple[Rails, ...]) -> list[tuple[Ints, Steps]]:
    """Of all rails that join the same ranks, in the order of `joined_by`: the parts of each pair, and the steps."""
    parts = rail_parts(live)
    needs = [parts[rails[0]][np.ix_(ranks, ranks)] for ranks, rails in joined_by(live).items()]
    return [(each, steps_of(each)) for each in needs]


def _in_rounds(steps: Steps, rounds: int, ahead: Fraction) -> tuple[Ints, Ints, Ints, Ints]:
    """Senders, receivers, begins and sizes in ticks, for steps that recur in each round: one chunk through neighbouring
    steps that are alike for a pair. ahead : part of a round by which the first one is"""
    first = round(ahead * len(steps))
    steps = steps[first:] + steps[:first]
    receivers, count = np.array([to for to, _ in steps]), len(steps)
    done = np.concatenate(([0], np.cumsum([last for _, last in steps])))
    same = np.zeros((count + 1, receivers.shape[1]), np.bool_)
    same[1:-1] = receivers[1:] == receivers[:-1]
    until = np.full(same.shape, count)  # the step at which a chunk that begins in a step is over
    for at in range(count - 1, -1, -1):
        until[at] = np.where(same[at + 1], until[at + 1], at + 1)
    step, src = np.nonzero(~same[:-1] & (receivers != np.arange(receivers.shape[1])))
    turn = np.arange(rounds)[:, None] * int(done[-1])
    length, end = rounds * int(done[-1]), until[step, src]
    ticks = np.array([TICKS * int(now) // length for now in (turn + done).ravel()]).reshape(rounds, -1)
    begin = ticks[:, step].ravel()
    size = ticks[:, end].ravel() - begin
    return np.tile(src, rounds), np.tile(receivers[step, src], rounds), begin, size


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
    # Lengths are whole numbers of one small unit.
    rises = [growth.numerator**step * growth.denominator ** (up - step) for step in range(up + 1)]
    falls = [SHRINK.numerator**step * SHRINK.denominator ** (down - step) for step in range(down + 1)]
    lengths = [rises[min(step, up)] * falls[max(0, step - (count - 1 - down))] for step in range(count)]
    most = max(lengths)
    sizes = [2**64 * length // most for length in lengths]
    total = sum(sizes)
    return tuple(ONE * done // total for done in accumulate(sizes))


def longest_step(count: int, growth: Fraction) -> int:
    """The longest of these steps, in ticks."""
    return max(end - begin for begin, end in pairwise((0, *step_ends(count, growth)))) * (HALF // ONE)


def starving(live: Sequence[Sequence[int]], shares: Sequence[Fraction]) -> int:
    """The rank with fewest NICs of those that are hubs of nothing."""
    return min((r for r, x in enumerate(shares) if not x), key=lambda r: len(live[r]))


class _Half:
    """The data that ranks have for each other."""

    def __init__(self, shares: Sequence[Fraction], adding: Sequence[Sequence[tuple[int, Fraction]]], nic: Fraction):
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


def greedy_slots(
    live: Sequence[Sequence[int]],
    shares: Sequence[Fraction],
    adding: Sequence[Sequence[tuple[int, Fraction]]],
    ends: Sequence[int],
    margin: Fraction,
    chunk: Fraction,
) -> tuple[SlotColumns, Fraction]:
    """The slots of every pair that has something to send, weighted by how much; and for which part of the half the
    starving rank's NICs can receive less than they send. Pure, and the same on every rank.

    live : the rails of each rank, numbers from 0; shares : of each as a hub, 0 for the starving rank, and for others
    only if these have more rails; adding : for each hub's section, the ranks that add last and their parts, in order,
    the starving rank first; ends : of steps, in `ONE`; margin : part of the half from the end of a slot until its bytes
    are counted on; chunk : part of the half that a chunk costs
    """
    ranks, lone = len(live), starving(live, shares)
    # The amount that a NIC moves in the half: the starving rank's NICs are busy all the time.
    of_lone = (sum((b for r, b in parts if r == lone), Fraction(0)) for hub, parts in enumerate(adding) if hub != lone)
    nic = (1 - max(of_lone)) / len(live[lone])
    # With slots of the longest length it sends so many chunks; their cost is left free for the others.
    nic, cost = nic / (1 - chunk / LONGEST[False]), int(chunk * ONE)
    half, ids, starts = _Half(shares, adding, nic), np.arange(ranks), np.array([0, *ends])
    late = sorted({r for parts in adding for r, _ in parts} - {lone})
    found, idle, sent, received = matchings.starving_steps(
        lone=lone, gap=int(margin * ONE), cost=cost, one=ONE, tie=TIES, slack=SLACK,
        brief=int(np.diff(starts).max()) // 2 if len(ends) else 0,
        longest=np.array([int(part * ONE) for part in (LONGEST if late else LONGEST_ALONE)]),
        starts=starts, live=np.array([[rail in mine for mine in live] for rail in range(1 + max(map(max, live)))]),
        late=np.array(late, np.int64), raw=half.raw, needs=half.needs, part=half.parts, begins=half.begins,
        gaps=half.gaps, left=(left := half.needs.copy()), served=np.zeros_like(half.raw),
        ties=(ids[:, None] * 7919 + ids * 104729) % TIES,
    )  # fmt: skip
    whole = len(live[lone]) * ONE
    less = 1 - Fraction(whole - idle - received * cost, whole - sent * cost)
    rail, i, k, much, begin, size = found.T
    slots = SlotColumns(i * ranks + k, begin * (HALF // ONE), size * (HALF // ONE), rail, much)
    slots = slots.at(np.lexsort((rail, size, begin, slots.pair)))
    # What is left over at the end goes to each pair's last one.
    last = np.flatnonzero(np.diff(slots.pair, append=-1))
    slots.weight[last] += np.maximum(left.ravel()[slots.pair[last]], 0)
    return slots, less


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

        ranks, adding = len(live), {*short_of_nics(cluster)}
        slots = _slots(cluster, of, recipe)[0].with_all(live, 0)
        back = slots.mirrored(ranks)
        there, again = (np.bincount(each.pair, minlength=ranks**2) for each in (slots, back))
        firsts, seconds = dict[int, list[SectionPart]](), dict[int, list[SectionPart]]()
        pairs, pieces, counts = list[tuple[int, int, int]](), list[SectionPart](), list[int]()
        for i, k in permutations(range(ranks), 2):
            at = i * ranks + k
            if i in adding or k in adding:
                for mine, count in ((joined(gathered(i, k)), there[at]), (joined(spread(i, k)), again[at])):
                    pairs.append((i, k, len(mine)))
                    pieces += mine
                    counts.append(count)
            else:  # what is too much for one half goes on into the other; all others have as much for it, it for all
                first = firsts.get(k) or firsts.setdefault(k, joined(gathered(i, k)))
                second = seconds.get(i) or seconds.setdefault(i, joined(spread(i, k)))
                pairs.append((i, k, len(first) + len(second)))
                pieces += first
                pieces += second
                counts.append(there[at] + again[at])
        others = np.array([rank not in adding for rank in range(ranks)])
        both = (others[:, None] & others).ravel()  # both halves carry as much
        slots, back = (
            each._replace(weight=each.weight * np.where(both, other.carried(ranks), 1)[each.pair])
            for each, other in ((slots, back), (back, slots))
        )
        rows, held = cut_rows(pairs, pieces, slots.then(back), counts), None
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


def _slots(cluster: Cluster, of: Parts, recipe: DirectExchange) -> tuple[SlotColumns, Fraction]:
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
    return slots._replace(nic=np.array(rails)[slots.nic]), idle


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
) -> SlotColumns:
    """The slots of the first half, of each pair by time. Pure, and the same on every rank.

    In each step a slow server sends data to the hubs that it has sent fewest chunks; slow servers on the same rails
    take the same hubs. It is sent results by the hub that has most for it. Then each rail has a matching of the hubs.

    live : the rails of each rank; shares : each rank's part of the data as a hub, 0 of those that starve; ends : of
    steps, in `ONE`; margin : part of the half from the end of a slot to when its bytes are counted on; chunk : part of
    the half that a chunk costs
    """
    slow = [rank for rank, share in enumerate(shares) if not share]
    part = np.array([int(FULL_HUB * share / max(shares)) for share in shares], np.int64)
    pairs = part[:, None] + part  # what two have for each other
    section = np.maximum(np.broadcast_to(part * (PLACES // FULL_HUB), pairs.shape), 1)
    quiet = quiet_rails(live, slow)
    rails, ids = sorted({rail for mine in live for rail in mine}), np.arange(len(live))
    on = np.array([[rail in mine for mine in live] for rail in rails])
    # A pair's total is known once all steps are found: the first time equal totals are assumed.
    for left_alone in (frozenset[int](), quiet):
        found = matchings.steady_steps(
            gap=int(margin * ONE), cost=int(chunk * ONE), tie=TIES, slack=SLACK, places=PLACES, coarse=COARSE,
            ends=np.array([0, *ends]), rail=np.array(rails), live=on,
            quiet=np.array([rail in left_alone for rail in rails]), hub=part > 0, slow=np.array(slow), section=section,
            ties=(ids[:, None] * 7919 + ids * 104729) % TIES,
            weight=FULL_HUB * FULL_HUB // np.maximum(pairs, 1),  # what two have had counts more, as they need less
            sent=(sent := np.zeros_like(pairs)),
        )  # fmt: skip
        # A hub sends another hub results of its own section in the other half, too, where it is sent the rest.
        section = np.maximum((sent + sent.T) * part // np.maximum(pairs, 1), 1)
        if quiet:  # hubs have what slow servers have for them, and no more
            section[:] = section[slow[0]]
    src, dst, nic, begin, size, much = found.T
    slots = SlotColumns(src * len(live) + dst, begin * (HALF // ONE), size * (HALF // ONE), nic, much)
    return slots.at(np.argsort(slots.pair, kind="stable"))


def quiet_rails(live: Sequence[Sequence[int]], slow: Sequence[int]) -> frozenset[int]:
    """The rails of two slow servers that hubs leave to them, if hubs have time for each other on the other rails. Then
    nobody is in the starving ranks' way, and hubs have gathered everything before half of the half is over."""
    theirs = frozenset(rail for rank in slow for rail in live[rank])
    free = min(len({*mine} - theirs) for rank, mine in enumerate(live) if rank not in slow)
    return theirs if len(slow) == 2 and free > 2 * len(live[slow[0]]) else frozenset()


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
        section, pairs, pieces = dict(zip(hubs, pairwise(bounds), strict=True)), [], list[SectionPart]()
        for i, k in permutations(range(len(live)), 2):
            mine = [SectionPart(Kind.RAW, k, *section[k])] if k in section else []
            mine += [SectionPart(Kind.RESULT, i, *section[i])] if i in section else []
            if mine:  # slow servers have nothing for each other
                pairs.append((i, k, len(mine)))
                pieces += mine
        # With few steps and many ranks some pairs have had no turn.
        slots = slots.then(slots.mirrored(len(live))).with_all(live, HALF)
        counts = np.bincount(slots.pair, minlength=len(live) ** 2)
        served = np.zeros(len(counts), np.bool_)
        served[[i * len(live) + k for i, k, _ in pairs]] = True
        rows = cut_rows(pairs, pieces, slots.at(served[slots.pair]), counts[served])
        return Timed(rows, {}, None)

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
            floor, none = np.zeros(len(order), np.int64), np.empty(0, np.int64)
            floor[order[[*after]]] = [*after.values()]
            rows = rows._replace(
                src=order[rows.src],
                dst=order[rows.dst],
                hub=order[rows.hub],
                key=rows.key * self.lanes + rows.nic % self.lanes,  # a NIC's lanes one after the other
            )
            used = [mine for _, mine in sorted(zip(order.tolist(), finder.used(arranged), strict=True))]
            ports = nic_ports(cluster, routes, nics_of(used, self.lanes))
            nics = 1 + int(rows.nic.max(initial=0))
            columns = {name: getattr(rows, name) for name in ("src", "kind", "hub", "start", "stop", "key")}
            columns["nic"] = rows.src * nics + rows.nic
            by_time, ptr, dep = in_order(columns, floor, held or (none, none), len(order) * nics, MOST_KEPT)
            return scheduled(rows, by_time, (ptr, dep), ports, routes, nbytes)

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
                    near=form.near(),
                    by_rate=False,
                    deepest=max(form.numbers) if name == NoneStarves.name else None,
                    least_s=float(fluid_s + chunks * own.per_chunk + 2 * costs.alpha),
                    least_of=(
                        partial(finder.least_s, cluster=cluster, nbytes=bound.nbytes, costs=costs)
                        if isinstance(finder, NoneStarves) and lanes == 1
                        else None
                    ),
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
