"""Striped exchange: direct exchange among servers of any rates, each transfer over all NICs of both ends by rate.

Every part of the data has a hub that gathers it from all and sends it to all, as in `direct`. The steps of `direct`,
which need NICs of one rate, are not used. It also runs between servers where GPUs are ranks (`inside`).

Two hops instead of a ring's 2(P-1). The hubs' shares load ranks by their rates (proof id attained). A rank that is too
slow is hub of nothing, and sends and receives every byte once. Nobody starves if the first half of the time is for raw
data, the second for results, on every port. A slow rank breaks that: it sends raw data for longer than it receives any.
So for a part of the data it adds last (VIA_LEAF in `nested`). The hub sends it the sum of the others in the first half
and gets the finished sum back in the second. With the part of `optcc.theory.ring_shares.hub_split` both directions
of every port have as much to do in the first half as in the second.

The data of all hubs is cut into rounds. In a round offset d follows offset d - 1: rank i sends to i + d, so no two
ranks send to the same rank. Rounds by way of slow ranks come first with their raw data and last with their results, the
others between them. The order follows time: each transfer is as urgent as its place in the plan above, whose second
half mirrors the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise, takewhile
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.assemble import granule, require_memory
from optcc.schedule.columns import GRANULE, Schedule, Stage
from optcc.schedule.recipe import CandidateFamily, Costs, Recipe, Segments, require
from optcc.schedule.routes import Routes, no_collection
from optcc.schedule.tuned import DEFAULT_SEGMENTS, MANY, MIN_CHUNK, WAYS
from optcc.values.cluster import Cluster
from optcc.values.json_records import Index

if TYPE_CHECKING:
    from optcc.theory.ring_shares import GroupCounts
    from optcc.values.bound import Bound

# The rounds of a direct exchange between servers: hubs and their bytes, ranks that add last, and due times. Times are
# whole ticks of the plan's two halves.


TICKS = 2**40
"""Of a plan's whole time; keys are whole numbers, so that every rank has the same order."""
Ints = NDArray[np.int64]


class DueTimes:
    """Due times, in ticks, of transfers towards hubs; `TICKS` minus this is the due time of transfers from hubs.

    shares : each rank's part as a hub; via : slow rank -> the part that it adds last to
    """

    def __init__(self, shares: Sequence[Fraction], via: dict[int, Fraction]) -> None:
        self.ranks = len(shares)
        self.slow = np.isin(np.arange(self.ranks), list(via))
        self.head = sum(via.values(), Fraction(0)) / 2
        # The part of a slow rank's time in which it receives its share as a hub.
        self.own = {r: Fraction(self.ranks - 1) * shares[r] / (1 + (self.ranks - 2) * shares[r]) for r in via}

    def _turn(self, begin: Fraction, end: Fraction, peer: Ints, hub: Ints) -> Ints:
        """begin..end in P-1 steps: everybody sends to the next rank, then to the next but one, and so on."""
        low, high = int(begin * TICKS), int(end * TICKS)
        return low + (high - low) * ((hub - peer) % self.ranks - 1) // (self.ranks - 1)

    def by_way(self, begin: Fraction, end: Fraction, peer: Ints, hub: Ints) -> Ints:
        """Due times of raw data from peers in the round by way of slow ranks that covers begin..end."""
        return self._turn(self.head * begin, self.head * end, peer, hub)

    def plain(self, begin: Fraction, end: Fraction, peer: Ints, hub: Ints) -> Ints:
        """Raw data for full ranks as hubs. A slow sender has nothing else to send in the first half."""
        rest = Fraction(1, 2) - self.head
        full = self._turn(self.head + rest * begin, self.head + rest * end, peer, hub)
        return np.where(self.slow[peer], self._turn(begin / 2, end / 2, peer, hub), full)

    def owned(self, begin: Fraction, end: Fraction, peer: Ints, hub: Ints) -> Ints:
        """Raw data for a slow rank as a hub."""
        own = self.own[int(hub.flat[0])]
        return self._turn(own * begin, own * end, peer, hub)

    def partial(self, begin: Fraction, end: Fraction, hub: Ints, slow: Ints) -> Ints:
        """Sums from hubs for slow ranks."""
        due = np.zeros(len(hub), np.int64)
        for r, own in self.own.items():
            rest = max(Fraction(0), Fraction(1, 2) - own)
            due = np.where(slow == r, self._turn(own + rest * begin, own + rest * end, hub, slow), due)
        return due


class HubRound(NamedTuple):
    """One section for each of some hubs, int64 (hubs,).

    hub, via : ranks; via is -1 where no slow rank adds last; start, stop : the section's bytes
    raw, partial : ticks at which raw data, and sums for the slow rank, are due: (hubs, P-1) by offset, and (hubs,)
    result, final : the same for results, and for the finished sums that the slow rank sends
    """

    number: int
    hub: Ints
    via: Ints
    start: Ints
    stop: Ints
    raw: Ints
    partial: Ints
    result: Ints
    final: Ints


def _turns(parts: dict[int, Fraction], count: int) -> list[int]:
    """Slow ranks in turn, each as often as its part requires."""
    given, turns = dict.fromkeys(parts, 0), []
    for _ in range(count):
        turn = max(parts, key=lambda r: (parts[r] / (given[r] + 1), -r))
        given[turn] += 1
        turns.append(turn)
    return turns


def _laid_out(nbytes: int, sizes: Sequence[Fraction]) -> list[int]:
    """Positions that cut the buffer in parts of these sizes, of sum 1."""
    ends = list(accumulate(sizes, initial=Fraction(0)))
    return [nbytes if end == 1 else granule(end * nbytes, nbytes) for end in ends]


def sizes(ways: int, slow: int) -> list[Fraction]:
    """Sizes of the rounds by way of slow ranks, as parts of 1: 1, 2, 4, ... and down again, so that little waits for
    the first round and after the last. With several slow ranks all are equal, as each would wait for the others'
    largest rounds."""
    found = [2 ** min(i, ways - 1 - i, 62) if slow == 1 else 1 for i in range(ways)]
    return [Fraction(size, sum(found)) for size in found]


def rounds(
    nbytes: int, shares: Sequence[Fraction], via: dict[int, Fraction], segments: int, ways: int
) -> list[HubRound]:
    """All rounds of `StripedExchange` that have bytes. There are `ways` rounds by way of slow ranks and `segments` of
    the other data of full ranks. Each slow rank has one for its share as a hub.

    A hub's bytes lie together, and one round by way of slow ranks lies between the first and the last of the others.
    """
    ranks, clock, by_way = len(shares), DueTimes(shares, via), sum(via.values(), Fraction(0))
    full = [r for r in range(ranks) if shares[r] and r not in via]
    none, whole = Fraction(0), Fraction(1)
    plans: list[tuple[list[int], Fraction, Fraction, Fraction, Callable[..., Ints]]] = []
    steps = list(pairwise(accumulate(sizes(ways, len(via)), initial=none))) if by_way else []
    plans += [(full, by_way, begin, end, clock.by_way) for begin, end in steps]
    first = len(plans)
    steps = list(pairwise(Fraction(step, segments) for step in range(segments + 1)))
    plans += [(full, 1 - by_way, begin, end, clock.plain) for begin, end in steps]
    after = [0, len(plans) - 1] if first == 1 and segments > 1 else [0]
    order = [first, *after, *(j for j in range(len(plans)) if j not in (first, *after))] if first else range(len(plans))
    plans += [([r], whole, none, whole, clock.owned) for r in via if shares[r]]
    pieces = [(j, h) for h in full for j in order]
    pieces += [(j, plan[0][0]) for j, plan in enumerate(plans) if j >= first + segments]
    cuts = _laid_out(nbytes, [(plans[j][3] - plans[j][2]) * plans[j][1] * shares[h] for j, h in pieces])
    where = dict(zip(pieces, pairwise(cuts), strict=True))

    turns = iter(_turns(via, len(full) * first) if first else [])
    found, offsets = list[HubRound](), np.arange(1, ranks)
    for j, (hubs, _, begin, end, due) in enumerate(plans):
        hub, slow = np.array(hubs), np.array([next(turns) if j < first else -1 for _ in hubs])
        start, stop = (np.array(ends) for ends in zip(*(where[j, h] for h in hubs), strict=True))
        h, mirrored = hub[:, None], (1 - end, 1 - begin)
        # Seen from the end, results come from peers as raw data goes to hubs.
        raw, result = due(begin, end, (h - offsets) % ranks, h), TICKS - due(*mirrored, (h + offsets) % ranks, h)
        partial, final = clock.partial(begin, end, hub, slow), TICKS - clock.partial(*mirrored, hub, slow)
        kept = stop > start
        if kept.any():
            columns = (hub, slow, start, stop, raw, partial, result, final)
            found.append(HubRound(len(found), *(column[kept] for column in columns)))
    return found


# From the rounds of a direct exchange to its transfers, in columns.


@dataclass(frozen=True, eq=False)
class Moves:
    """All transfers in order of priority, without dependencies; columns (rows,).

    ranks, nbytes, reduce, stage, segment, offset, length : as in `Schedule`; src, dst : int64
    """

    ranks: int
    nbytes: int
    src: Ints
    dst: Ints
    offset: Ints
    length: Ints
    reduce: NDArray[np.bool_]
    stage: NDArray[np.uint8]
    segment: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.src)


class Columns(NamedTuple):
    """Transfers of some rounds in order, int64 (rows,) each."""

    src: Ints
    dst: Ints
    start: Ints
    stop: Ints
    reduce: Ints
    stage: Ints
    key: Ints


class _Places(NamedTuple):
    """Of a round, (hubs, P-1) by offset: the hub, its sender, its receiver, whether these are the slow rank, and the
    rows of both. A slow rank's row holds its two transfers."""

    hub: Ints
    before: Ints
    after: Ints
    partial: NDArray[np.bool_]
    final: NDArray[np.bool_]
    to_hub: Ints
    from_hub: Ints


def _places(r: HubRound, ranks: int) -> _Places:
    offsets = np.arange(1, ranks)
    hub = np.repeat(r.hub[:, None], ranks - 1, axis=1)
    before, after = (hub - offsets) % ranks, (hub + offsets) % ranks
    to_hub = np.arange(len(hub))[:, None] * 2 * (ranks - 1) + offsets - 1
    via = r.via[:, None]
    return _Places(hub, before, after, before == via, after == via, to_hub, to_hub + ranks - 1)


def columns_of(r: HubRound, ranks: int) -> Columns:
    """Rows of hub k: P-1 towards it, by offset, then P-1 from it."""
    at = _places(r, ranks)
    raw = np.where(at.partial, 0, r.raw)
    due = np.maximum(r.partial, raw.max(axis=1) + 1)
    late = np.maximum(r.final, due + 1)
    ready = np.where(r.via >= 0, late, raw.max(axis=1))
    result = np.maximum(r.result, ready[:, None] + 1)

    def both(towards: NDArray[Any], away: NDArray[Any]) -> Ints:
        return np.concatenate((towards, away), axis=1).ravel().astype(np.int64)

    sections = np.repeat(np.stack((r.start, r.stop)), 2 * (ranks - 1), axis=1)
    sums = np.where(at.partial, Stage.TO_LEAF, Stage.REDUCE_SCATTER)
    results = np.where(at.final, Stage.FROM_LEAF, Stage.ALLGATHER)
    return Columns(
        both(np.where(at.partial, at.hub, at.before), np.where(at.final, at.after, at.hub)),
        both(np.where(at.partial, at.before, at.hub), np.where(at.final, at.hub, at.after)),
        sections[0],
        sections[1],
        both(np.ones_like(at.hub), np.zeros_like(at.hub)),
        both(sums, results),
        both(np.where(at.partial, due[:, None], raw), np.where(at.final, late[:, None], result)),
    )


def edges_of(r: HubRound, ranks: int) -> tuple[Ints, Ints]:
    """(dependency, dependent) as places within the round. Results wait for all raw data. With a slow rank the sums to
    it do, its answer waits for them, and the results for its answer."""
    at = _places(r, ranks)
    pairs: list[tuple[Ints, Ints]] = []
    for k in np.flatnonzero(r.via >= 0):
        p, f = at.to_hub[k][at.partial[k]], at.from_hub[k][at.final[k]]
        raws, results = at.to_hub[k][~at.partial[k]], at.from_hub[k][~at.final[k]]
        pairs += [(raws, np.repeat(p, len(raws))), (p, f), (np.repeat(f, len(results)), results)]
    plain = np.flatnonzero(r.via < 0)
    pairs.append((np.repeat(at.to_hub[plain], ranks - 1, axis=0).ravel(), np.repeat(at.from_hub[plain], ranks - 1)))
    return np.concatenate([dep for dep, _ in pairs]), np.concatenate([waits for _, waits in pairs])


def edges(made: Sequence[HubRound], ranks: int) -> tuple[Ints, Ints]:
    """`edges_of` all rounds, in order."""
    begins = accumulate((len(r.hub) * 2 * (ranks - 1) for r in made), initial=0)
    parts = [np.stack(edges_of(r, ranks)) + at for r, at in zip(made, begins, strict=False)]
    dep, waits = np.concatenate([np.zeros((2, 0), np.int64), *parts], axis=1)
    return dep, waits


def in_order(made: Sequence[HubRound], ranks: int, nbytes: int, head: int) -> tuple[Moves, Ints]:
    """All rounds' transfers by urgency, and the place there of each row in order of rounds. head : ticks of a single"""
    nothing = Columns(*[np.zeros(0, np.int64)] * len(Columns._fields))
    parts = [columns_of(r, ranks) for r in made] or [nothing]
    c, into = fused(Columns(*(np.concatenate(columns) for columns in zip(*parts, strict=True))), made, ranks, head)
    kept = np.flatnonzero(into == np.arange(len(into)))
    order = kept[np.argsort(c.key[kept], kind="stable")]
    place = np.empty(len(into), np.int64)
    place[order] = np.arange(len(order))
    number = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part.src) for part in parts])
    moves = Moves(
        ranks=ranks,
        nbytes=nbytes,
        src=c.src[order],
        dst=c.dst[order],
        offset=c.start[order],
        length=c.stop[order] - c.start[order],
        reduce=c.reduce[order].astype(np.bool_),
        stage=c.stage[order].astype(np.uint8),
        segment=number[order],
    )
    return moves, place[into]


def fused(c: Columns, made: Sequence[HubRound], ranks: int, head: int) -> tuple[Columns, Ints]:
    """Merge the transfers of the only round by way of slow ranks with their neighbours' in the buffer. Raw data joins
    that of the first of the other rounds, results those of the last. Also returns the new row of each row.

    head : ticks that the round takes
    """
    rows = np.arange(len(c.src))
    ways = [r for r in made if r.via[0] >= 0]
    if len(ways) != 1:
        return c, rows
    plain = list(takewhile(lambda r: np.array_equal(r.hub, ways[0].hub), made[1:]))
    # A single round would wait for everything; where rounds were left out, the neighbours are not the same bytes.
    if len(plain) < 2 or (plain[0].stop != ways[0].start).any() or (plain[-1].start != ways[0].stop).any():
        return c, rows
    size = len(ways[0].hub) * 2 * (ranks - 1)
    block, final = rows[:size], size * len(plain)
    raw, result = (block[c.stage[:size] == stage] for stage in (Stage.REDUCE_SCATTER, Stage.ALLGATHER))
    into, start, stop, key = rows.copy(), c.start.copy(), c.stop.copy(), c.key.copy()
    for mine, other, overlap in ((raw, raw + size, head), (result, result + final, TICKS - head)):
        into[other] = mine
        start[mine], stop[mine] = np.minimum(start[mine], start[other]), np.maximum(stop[mine], stop[other])
        key[mine] += key[other] - overlap  # as long as both together
    (dep, waits), (more, late) = edges_of(ways[0], ranks), edges_of(plain[-1], ranks)
    dep, waits = into[np.concatenate((dep, more + final))], into[np.concatenate((waits, late + final))]
    inner = waits < size
    for _ in range(3):  # sums, answers, results
        np.maximum.at(key, waits[inner], key[dep[inner]] + 1)
    return c._replace(start=start, stop=stop, key=key), into


def least_seconds(recipe: StripedExchange, cluster: Cluster, nbytes: int, costs: Costs) -> float:
    """The recipe takes no less: what a rank that is the hub of nothing must wait for, and receive. 0: there is none.

    Nobody sends it anything until a hub has gathered a section, from all others but the two of them. Then it receives
    all of the data, from each full hub a chunk a round on each NIC; rounds that are cut to next to nothing do not
    count, nor does the only one by way of slow ranks, which is `fused` with others.
    """
    shares, via, ranks = recipe.shares, dict(recipe.via), cluster.ranks
    waiting = [rank for rank in via if not shares[rank]]
    by_way, full = sum(via.values(), Fraction(0)), [rank for rank in range(len(ranks)) if rank not in via]
    least = 4 * GRANULE * max(len(rank.nics) for rank in ranks)  # every lane has some bytes of so many
    way = [float(by_way * shares[full[0]] * size * nbytes) for size in sizes(recipe.ways, len(via))] if by_way else []
    other = [float((1 - by_way) * shares[full[0]] * nbytes / recipe.segments)] * (by_way < 1)
    if not waiting or min(other or way) < least:
        return 0.0
    first = min([*way, *other, *(float(shares[rank] * nbytes) for rank in via if shares[rank])])
    rounds = len(other) * recipe.segments + sum(size >= least for size in way) * (len(way) > 1 or not other)
    gathered = (len(ranks) - 2) * max(0.0, first - GRANULE) / float(max(rank.in_rate for rank in ranks))
    slowest = float(min(ranks[rank].in_rate for rank in waiting))
    return gathered + nbytes / slowest + float(len(full) * rounds * costs.per_chunk + 2 * costs.alpha)


def _least_s(make: Callable[[int], StripedExchange], most: int, cluster: Cluster, nbytes: int, costs: Costs) -> float:
    """`least_seconds` of 1 to `most` segments: with more chunks cost more, so that few are asked. 0: nothing is known,
    as chunks cost so little that many segments are fast."""
    via, found = make(1).via, least_seconds(make(1), cluster, nbytes, costs)
    chunks, others = float((len(cluster.ranks) - len(via)) * costs.per_chunk), sum(part for _, part in via) < 1
    bytes_s = nbytes / float(min(rank.in_rate for rank in cluster.ranks))
    if not others and make(2).ways == make(1).ways:
        return found  # segments of nothing
    for segments in range(2, most + 1):
        recipe = make(segments)
        # At least so many rounds: those by way of several slow ranks are alike, and none is cut to nothing.
        rounds = recipe.segments * others + recipe.ways * (len(via) > 1)
        if not found or bytes_s + rounds * chunks >= found:
            break
        if segments > DEFAULT_SEGMENTS:  # where chunks cost next to nothing it would go on, and leave none out
            return 0.0
        found = min(found, least_seconds(recipe, cluster, nbytes, costs))
    return found


@dataclass(frozen=True)
class StripedExchange(Recipe):
    """Direct exchange between servers.

    Attributes
    ----------
    segments : rounds of the data that does not pass slow ranks
    shares : each rank's part of the data as a hub, sum 1
    via : (slow rank, the part of the full ranks' data that it adds last to); in all at most 1
    ways : rounds of the data by way of slow ranks
    """

    family: ClassVar[str] = "striped-exchange"
    segments: Segments
    shares: tuple[Fraction, ...]
    via: tuple[tuple[Index, Fraction], ...] = ()
    ways: Segments = 1

    def lower(self, cluster: Cluster, nbytes: int) -> Schedule:
        ranks, routes = len(cluster.ranks), Routes(cluster)
        require_memory(2 * ranks * (ranks - 1) * (self.segments + self.ways))
        made = self._rounds(nbytes)
        moves, place = in_order(made, ranks, nbytes, self._head)
        dep, waits = (place[rows] for rows in edges(made, ranks))
        dep = dep[np.argsort(waits * len(moves) + dep, kind="stable")]
        pair, kinds = np.unique(moves.src * ranks + moves.dst, return_inverse=True)
        with no_collection():
            route = np.array([routes(*divmod(ends, ranks)) for ends in pair.tolist()], np.int32)
        columns = (route[kinds], moves.offset, moves.length, moves.reduce, moves.stage, moves.segment)
        return routes.schedule(nbytes, columns, np.bincount(waits, minlength=len(moves)), dep)

    def moves(self, nbytes: int) -> Moves:
        """The transfers of `lower`, in its order, without dependencies, whatever the cluster."""
        return in_order(self._rounds(nbytes), len(self.shares), nbytes, self._head)[0]

    @property
    def _head(self) -> int:
        return int(sum(part for _, part in self.via) * TICKS) // 2

    def _rounds(self, nbytes: int) -> list[HubRound]:
        return rounds(nbytes, self.shares, dict(self.via), self.segments, self.ways)

    def fluid_s(self, cluster: Cluster, nbytes: int) -> Fraction:
        """On one non-blocking fabric from the shares, exactly; elsewhere from the bytes of the lowered schedule."""
        if not cluster.fabric.flat or cluster.gpu_ranks:
            return super().fluid_s(cluster, nbytes)
        loads = zip(self.shares, cluster.ranks, strict=True)
        return max((1 + (len(self.shares) - 2) * x) / min(rank.out_rate, rank.in_rate) for x, rank in loads) * nbytes

    def check(self, cluster: Cluster) -> None:
        super().check(cluster)
        ranks = len(cluster.ranks)
        require(ranks >= 3, "ranks", "3 or more", ranks)
        require(len(self.shares) == ranks, "shares", f"{ranks} of them", len(self.shares))
        require(min(self.shares) >= 0 and sum(self.shares) == 1, "shares", "parts of sum 1", sum(self.shares))
        slow = [r for r, _ in self.via]
        fits = all(r < ranks for r in slow) and len(set(slow)) == len(slow)
        require(fits, "via", "different ranks", slow)
        parts = [part for _, part in self.via]
        require(all(part >= 0 for part in parts) and sum(parts) <= 1, "via", "parts of at most 1 in all", parts)
        full = [x for r, x in enumerate(self.shares) if r not in slow]
        require(bool(full) and full[0] > 0 and len(set(full)) == 1, "shares", "equal ones of full ranks", full)

    def describe(self, cluster: Cluster) -> list[tuple[str, str]]:
        lines = [("hubs", f"{sum(x > 0 for x in self.shares)} of {len(self.shares)}, each exchanges directly with all")]
        for r, part in self.via[:4]:
            own = f"hub of {float(self.shares[r]) * 100:.4g} %, adds last to {float(part) * 100:.4g} %"
            lines.append((cluster.ranks[r].name, own))
        if len(self.via) > 4:
            lines.append(("more slow ranks", str(len(self.via) - 4)))
        by_way = f", {self.ways} by way of slow ranks, one for each slow hub" if self.via else ""
        return [*lines, ("rounds", f"{self.segments}{by_way}")]

    @classmethod
    def candidates(cls, cluster: Cluster, bound: Bound, costs: Costs) -> Iterable[CandidateFamily]:
        """For fabrics where any NIC reaches any, up to a number of servers that limits transfers. One round by way of
        slow ranks is the fewest chunks, but leaves a rank that is hub of nothing idle at first."""
        from optcc.theory.ring_shares import hub_split

        ranks = cluster.ranks
        if cluster.gpu_ranks or not cluster.fabric.flat or not 3 <= len(ranks) <= MANY:
            return []
        if not min(min(rank.out_rate, rank.in_rate) for rank in ranks):
            return []
        shares, via = hub_split(cluster)
        chunks = 2 * (len(ranks) - 1)  # on every NIC
        least_s = float(cls(1, shares, via).fluid_s(cluster, bound.nbytes) + chunks * costs.per_chunk + 2 * costs.alpha)

        def growing(ways: int) -> StripedExchange:
            return cls(-(-ways // WAYS), shares, via, ways)

        def plain(segments: int) -> StripedExchange:
            return cls(segments, shares, via)

        most = max(1, bound.nbytes // (MIN_CHUNK * len(ranks)))  # no more are tried
        return [
            CandidateFamily(cls.family, make, least_s=max(least_s, _least_s(make, most, cluster, bound.nbytes, costs)))
            for make in ((plain, growing) if via else (plain,))
        ]

    def relabelled(self, to: Mapping[int, int], counts: GroupCounts) -> StripedExchange:
        """Every share at the rank that takes its part."""
        shares = [Fraction(0)] * len(self.shares)
        for rank, share in enumerate(self.shares):
            shares[to[rank]] = share
        via = tuple(sorted((to[rank], part) for rank, part in self.via))
        return replace(self, shares=tuple(shares), via=via)

    def like(self, cluster: Cluster, bound: Bound, costs: Costs, counts: GroupCounts) -> StripedExchange | None:
        """As many rounds, with shares of this cluster."""
        return replace(self, shares=counts.hub_split()[0], via=counts.hub_split()[1]) if counts.ranks > 2 else None
