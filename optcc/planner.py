"""Which family and how many segments: candidates are run in virtual time, and the fastest is the plan.

A model per family would have to be right about fill, latency and chunk costs of every family on every cluster; the
simulator already is. A *ladder* is one family with its number of segments left open. Its times fall and then rise with
the segments, so from a first guess a ladder is climbed by doubling, up and down, until it gets slower, and then tried
between the best three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from math import gcd, sqrt
from typing import NamedTuple

from optcc.bound import Bound
from optcc.cluster import Cluster, Nic
from optcc.errors import InputError
from optcc.plans import DEFAULT_SEGMENTS, MIN_CHUNK, nested_rings
from optcc.schedule.exchange import Exchange
from optcc.schedule.inside import InsideServers
from optcc.schedule.inside_parts import inside_servers
from optcc.schedule.latin import LatinExchange, starving_pair
from optcc.schedule.nested import NestedRings
from optcc.schedule.nested_pace import FEW_LEAVES, MOST_RANKS, keeping_two
from optcc.schedule.packed import PackedTrees
from optcc.schedule.recipe import MAX_SEGMENTS, Recipe
from optcc.schedule.timetable import (
    MAX_ROUNDS,
    MOST_VIA,
    Timetable,
    applies,
    deepest,
    even_halves,
    growing,
    reduced,
)
from optcc.schedule.timetable_one_starves import one_starves, stepped
from optcc.schedule.trees import ComplementaryTrees
from optcc.simulator import simulate

MAX_STRIPES = 1_000_000
"""Longest simulation that is tried, about a second: pipelines that deep pay for chunks."""
LARGE = 16
"""Above so many ranks a server's NICs are simulated as one, which is eight times less work for eight NICs."""
FINALISTS = 5
CLOSE_SECOND = 1.05
"""The second best number of segments that was tried is looked around, too, if it is so close to the best."""
TIE = 1.005
"""Times that differ by less are taken for equal."""
MAX_FINAL_STRIPES = 200_000
"""Of so many that were simulated with merged NICs, those that are no larger are simulated again without merging."""
MIN_GPU_CHUNK = 256 * 1024
"""Of 1024 GPUs, 1 GiB is then 4 segments deep and 3 million transfers; every further segment is as many again."""
SHAPES = 2
"""Shapes of trees that are tried."""
NEAR = Fraction(51, 50)
"""Costly families are not tried where the fluid time of another is within 2 % of the bound."""

MANY = 64
"""Above so many ranks only one form of direct exchange is tried: transfers grow with the square of the ranks."""
CLOSE, CLOSER = Fraction(23, 20), Fraction(51, 50)
"""Of many ranks nothing more is tried after what is within 15 % of the bound, 2 % where there are timetables."""
EXCHANGE_WAYS = Fraction(3, 2)
"""Rounds by way of slow ranks, for each other round and for the part of the data that goes by way of them."""


class Rounds(NamedTuple):
    """Full rounds of a timetable, as in `Timetable`; `most` as in `even_halves`."""

    matched: int = 0
    shrink: Fraction = Fraction(1)
    sparse: bool = False
    most: Fraction = MOST_VIA


EQUAL = Rounds()
SINGLE = (EQUAL, Rounds(1024, sparse=True), Rounds(1024, Fraction(1, 4), sparse=True))
"""Full rounds of timetables that are tried with one slow server,"""
SEVERAL = (
    EQUAL,
    Rounds(1, Fraction(1, 4), sparse=True),
    Rounds(1, Fraction(1, 2), sparse=True),
    Rounds(1),
    Rounds(1024, sparse=True),
    Rounds(1024, Fraction(1, 2), sparse=True),
    Rounds(1024, Fraction(1, 4), sparse=True),
    Rounds(1024),
)
"""with several slow servers,"""
HALF_SLOW = (
    EQUAL,
    Rounds(1, Fraction(1, 4), sparse=True, most=Fraction(1, 2)),
    Rounds(1, Fraction(1, 4), most=Fraction(11, 12)),
    Rounds(1, Fraction(1, 2), sparse=True, most=Fraction(1, 2)),
    Rounds(1),
    Rounds(1024, Fraction(2, 5), sparse=True, most=Fraction(99, 100)),
    Rounds(1024, Fraction(1, 4), sparse=True, most=Fraction(2, 5)),
    Rounds(1, Fraction(2, 5), sparse=True, most=Fraction(1)),
)
"""with so many that they add last to more than `MOST_VIA` if their halves are equal,"""
FEWER = 5
"""of more than `LARGE` ranks only so many of these,"""
FEWEST = (EQUAL, Rounds(1, sparse=True), Rounds(1, Fraction(1, 4), sparse=True))
"""and of more than twice as many ranks."""
LARGE_ROUNDS = 4
"""Most rounds that shrink, of more than `LARGE` ranks; of sparse ones, of more than twice as many."""
CHUNKS_COST = Fraction(1, 20)
"""Of more than `MANY` ranks, timetables are tried where chunks cost them so much of the bound."""

GROWTHS = (Fraction(4, 3), Fraction(7, 5), Fraction(3, 2), Fraction(8, 5), Fraction(17, 10), Fraction(2))
"""Of a growing timetable's rounds, one after the other; of more than `LARGE` ranks only the fastest."""
SPARE = Fraction(9, 10)
"""Of their time, in which hubs must have gathered what the slow rank is to receive."""

STEP_GROWTHS = (Fraction(11, 10), Fraction(23, 20))
"""Of a step over the one before, where one of several slow servers starves; of more than `LARGE` ranks the first."""
STEPS = 0.7
"""So many of them are about best, times the square root of how many chunks the bound lasts (measured)."""
STEP_LAG, MOST_LAG, STEP_PARTS = Fraction(3, 2), Fraction(1, 10), 2**20
"""Latencies from a slot to when its bytes are counted on; the most, as part of a half, and what it is rounded to."""

MARGINS = (Fraction(3, 2), Fraction(5, 2))
"""Steps, for each NIC, from the end of a window to the one that sends its sum on, by a Latin square."""
LATIN_LAG = 5
"""So many chunks a slow server waits, about, for the first sum, and the hubs in the middle of the plan (measured)."""
MOST_LATIN = 150_000
"""Transfers of a Latin square that are tried."""

SAME = Fraction(1, 10**6)
"""The exact program's certificates have this gap: closer to the bound than that is as good as on it."""


@dataclass(frozen=True)
class Ladder:
    """One family on one cluster: `make(segments)` is its recipe; `name` says which, for people.

    guess : segments to begin with, where a formula knows about how many are best
    sure : the formula is good: only so many numbers are tried, the first one less than the guess
    by_rate : transfers are striped over NICs by their rates, so that a server's NICs may be simulated as one
    costly : finding the recipe may take long
    deepest : most segments that are tried, where more would be too many transfers
    """

    name: str
    make: Callable[[int], Recipe]
    guess: int | Callable[[], int] | None = None
    sure: int = 0
    by_rate: bool = True
    costly: bool = False
    deepest: int | None = None


def ladders(
    cluster: Cluster, bound: Bound, *, alpha: Fraction = Fraction(0), per_chunk: Fraction = Fraction(0)
) -> list[Ladder]:
    """The families that `cluster` may want, the default one first. Making a recipe may find that there is none."""
    if cluster.gpu_ranks:
        direct = _inside_exchange(cluster) if alpha or per_chunk else []
        if direct and len(cluster.servers) > MANY:  # rings as long as that are millions of transfers
            return [*direct, _packed(cluster)]
        return [_inside(cluster), *direct, _packed(cluster)]
    offered = _nested(cluster, chunks_cost=bool(alpha or per_chunk))
    if cluster.fabric.flat and len(cluster.ranks) > 2:
        offered += _exchange(cluster)
    if applies(cluster):
        offered += _timetable(cluster, bound, alpha, per_chunk)
    offered += _latin(cluster, bound, per_chunk)
    if cluster.fabric.flat:
        offered += _trees(cluster, bound.nbytes, alpha, per_chunk)
    return [*offered, _packed(cluster)]


def _nested(cluster: Cluster, *, chunks_cost: bool) -> list[Ladder]:
    """With many leaves also sections as coarse as with few: chunks cost, so either may be faster."""
    from optcc.theory import nested_shares

    rates = [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]

    @cache
    def shares() -> dict[int, Fraction]:
        return nested_shares(rates)

    def fine(segments: int) -> NestedRings:
        return nested_rings(cluster, shares(), segments)

    def coarse(segments: int) -> NestedRings:
        leaves = len(rates) - min(shares(), default=len(rates))
        return replace(fine(segments), **keeping_two(leaves, segments)._asdict())

    many = len(rates) <= MOST_RANKS and sum(rate < max(rates) for rate in rates) > FEW_LEAVES
    return [Ladder(NestedRings.family, make) for make in ((fine, coarse) if many and chunks_cost else (fine,))]


def _exchange(cluster: Cluster) -> list[Ladder]:
    """Direct exchange. Ranks that are hubs of nothing starve unless the rounds by way of them begin small and grow."""
    from optcc.theory.hubs import hub_split

    @cache
    def split() -> tuple[tuple[Fraction, ...], tuple[tuple[int, Fraction], ...]]:
        return hub_split(cluster)

    def own(segments: int) -> int:
        return 1 + segments // 2 if len(rates) <= LARGE else max(1, segments // 2)

    def even(segments: int) -> Exchange:
        return Exchange(segments, *split(), own=own(segments))

    def swelling(segments: int) -> Recipe:
        return replace(even(segments), most=4)

    def spread(segments: int) -> Recipe:
        ways = round(EXCHANGE_WAYS * segments * sum(part for _, part in split()[1]))
        return replace(even(segments), ways=max(min(2, segments), ways))

    def most() -> int:
        """Where two starve, each waits for the largest rounds of the other: there these should be hardly larger."""
        return 16 if split()[0].count(Fraction(0)) == 1 else 2

    def growing(segments: int) -> Recipe:
        return Exchange(segments, *split(), ways=segments, most=most(), thin=4)

    def narrow(segments: int) -> Recipe:
        return Exchange(segments, *split(), ways=segments, most=most(), thin=segments, narrow=segments)

    rates = [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]
    if not min(rates):
        return []
    starving, many = starves(rates), len(rates) > MANY
    makes: list[Callable[[int], Recipe]] = [growing, narrow] if starving else [even, swelling, spread]
    if many:
        makes = [narrow] if starving else [even]
    guess = (8 if starving else 1) if many else None
    # Narrow rounds are about single NICs, so nothing is gained by merging these.
    return [Ladder(Exchange.family, make, guess, by_rate=make is not narrow) for make in makes]


def _timetable(cluster: Cluster, bound: Bound, alpha: Fraction, per_chunk: Fraction) -> list[Ladder]:
    """Full rounds, by offsets and by matchings where pairs have not equally much; where a server alone sets the bound,
    rounds that grow, if it is the only one that adds last, or else steps for who is most behind."""
    from optcc.theory.hubs import hub_split

    @cache
    def split() -> tuple[tuple[Fraction, ...], tuple[tuple[int, Fraction], ...]]:
        return hub_split(cluster)

    def halved(most: Fraction = MOST_VIA) -> tuple[tuple[Fraction, ...], tuple[tuple[int, Fraction], ...]]:
        shares, via = split()
        return shares, even_halves(shares, [rank for rank, _ in via], most)

    def full(rounds: Rounds) -> Ladder:
        def make(segments: int) -> Recipe:
            return Timetable(
                segments,
                *halved(rounds.most),
                matched=rounds.matched,
                shrink=rounds.shrink,
                sparse=rounds.sparse,
            )

        guess = 1 if rounds.shrink == 1 and not rounds.sparse else 2 if ranks > LARGE else 3
        few = ranks > 2 * LARGE if rounds.sparse else ranks > LARGE and rounds.shrink < 1
        return Ladder(Timetable.family, make, guess, by_rate=False, deepest=LARGE_ROUNDS if few else None)

    ranks, rates = len(cluster.ranks), [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]
    several = len(split()[1]) > 1
    if ranks > 2 * LARGE:
        tried: Sequence[Rounds] = FEWEST
    elif not several:
        tried = SINGLE
    else:
        tried = (SEVERAL if halved() == halved(Fraction(1)) else HALF_SLOW)[: FEWER if ranks > LARGE else None]
    offered = [full(rounds) for rounds in tried] if ranks <= MANY else []
    if several and MANY < ranks <= 2 * MANY and 2 * (ranks - 1) * per_chunk <= CHUNKS_COST * bound.seconds:
        offered = [replace(full(EQUAL), deepest=1)]  # seconds, but far nearer the bound than direct exchange
    if several and ranks <= 2 * LARGE and one_starves(cluster):
        return [*_stepped(cluster, bound, alpha, per_chunk), *(offered[:1] if ranks <= LARGE else [])]
    if not starves(rates) or ranks > 2 * MANY or [split()[0][rank] for rank, _ in split()[1]] != [0]:
        return offered
    # What hubs gather at a time lasts the slow server for so many times as long; a part of that is left as slack.
    lasts = max(rates) / min(rates)
    growths = [growth for growth in GROWTHS if growth <= SPARE * lasts] or [min(GROWTHS)]

    def ladder(growth: Fraction) -> Ladder:
        return Ladder(
            Timetable.family,
            lambda segments: growing(cluster, *halved(), growth, segments),
            lambda: _rounds(cluster, Timetable(1, *halved(), growth), bound, per_chunk),
            sure=4 if ranks <= MANY else 2,
            by_rate=False,
            deepest=deepest(growth),
        )

    alone = len(reduced(cluster)) == 1  # full rounds are far from the bound then
    return [*([] if alone else offered), *map(ladder, growths if ranks <= LARGE else growths[-1:])]


def _stepped(cluster: Cluster, bound: Bound, alpha: Fraction, per_chunk: Fraction) -> list[Ladder]:
    """Steps for who is most behind, where one of several slow servers starves."""
    lag = min(2 * STEP_LAG * alpha / bound.seconds, MOST_LAG) if bound.seconds else 0
    margin = Fraction(round(lag * STEP_PARTS), STEP_PARTS)
    guess = round(STEPS * sqrt(bound.seconds / per_chunk)) if per_chunk else MAX_ROUNDS
    return [
        Ladder(
            Timetable.family,
            lambda segments, growth=growth: stepped(cluster, growth, segments, margin),  # type: ignore[misc]
            max(2, min(guess, deepest(growth))),
            by_rate=False,
            deepest=deepest(growth),
        )
        for growth in STEP_GROWTHS[: 1 if len(cluster.ranks) > LARGE else None]
    ]


def _latin(cluster: Cluster, bound: Bound, per_chunk: Fraction) -> list[Ladder]:
    """By a Latin square, where two servers set the bound: that many windows that chunks cost as much as the lag."""
    pair, hubs = starving_pair(cluster), len(cluster.ranks) - 2
    deepest = MOST_LATIN // (2 * hubs * (hubs + 1)) if hubs > 0 else 0
    if pair is None or not deepest:
        return []
    alive = [sum(nic.alive for nic in rank.nics) for rank in cluster.ranks]
    nics, fewer = max(alive), min(alive)
    # A slow server's NIC has windows * hubs / fewer chunks each way; with units of windows all NICs have as many.
    unit = 2 * fewer // gcd(hubs, 2 * fewer)
    chunks = sqrt(LATIN_LAG * bound.seconds / per_chunk) if per_chunk else float("inf")
    guess = min(unit * max(1, round(min(chunks, MOST_LATIN) * fewer / hubs / unit)), deepest)
    return [
        Ladder(
            LatinExchange.family,
            lambda segments, margin=margin: LatinExchange(segments, pair, round(margin * nics)),  # type: ignore[misc]
            guess,
            by_rate=False,
            deepest=deepest,
        )
        for margin in MARGINS
    ]


def _rounds(cluster: Cluster, recipe: Timetable, bound: Bound, per_chunk: Fraction) -> int:
    """The number of growing rounds that loses least to first sums and to chunks, by a formula."""
    steps = Fraction(len(cluster.ranks) - 1, min(sum(nic.alive for nic in rank.nics) for rank in cluster.ranks))
    lost: list[Fraction] = []
    while len(lost) < deepest(recipe.growth) and lost[-2:] == sorted(lost[-2:], reverse=True):
        idle = replace(recipe, segments=len(lost) + 1).idle(cluster)
        lost.append(idle * bound.seconds / 2 + 2 * (len(lost) + 2) * steps * per_chunk)
    return 1 + lost.index(min(lost))


def starves(rates: list[Fraction]) -> bool:
    """The slowest rank alone sets the bound: it is a hub of nothing."""
    return max(rates) > min(rates) and sum(rates) >= min(rates) * 2 * (len(rates) - 1)


def _trees(cluster: Cluster, nbytes: int, alpha: Fraction, per_chunk: Fraction) -> Iterator[Ladder]:
    """The shapes of trees that the closed form puts first; it tells shapes apart better than depths."""
    from optcc.theory.trees import best_segments, seconds, shapes

    rates = [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]
    found: list[tuple[Fraction, int, Ladder]] = []
    for fan, trees in shapes(rates) if min(rates) else ():
        fitted = partial(
            ComplementaryTrees.fitted, cluster, nbytes, fan=fan, trees=trees, alpha=alpha, per_chunk=per_chunk
        )
        best = best_segments(cluster, nbytes, fan=fan, trees=trees, alpha=alpha, per_chunk=per_chunk)
        time_s = seconds(best, cluster, nbytes, alpha=alpha, per_chunk=per_chunk)
        found.append((time_s, len(found), Ladder(ComplementaryTrees.family, _by_segments(fitted), best.segments)))
    return (ladder for _, _, ladder in sorted(found)[:SHAPES])


def _by_segments(make: Callable[..., Recipe]) -> Callable[[int], Recipe]:
    return lambda segments: make(segments=segments)


def _inside(cluster: Cluster) -> Ladder:
    from optcc.theory.inside import InsideSplit, inside_split

    @cache
    def split() -> InsideSplit:
        return inside_split(cluster)

    return Ladder(InsideServers.family, lambda segments: inside_servers(cluster, split().parts, segments))


def _inside_exchange(cluster: Cluster) -> list[Ladder]:
    """Direct exchange between servers, where all their GPUs can meet, with NVLink inside."""
    from optcc.schedule.inside_crews import crews, shares_by_rate, usable, view
    from optcc.schedule.inside_parts import inside_exchange
    from optcc.theory.hubs import hub_split

    own = crews(cluster)
    if not cluster.fabric.flat or len(own) < 3 or not all(any(map(usable, crew.gpus)) for crew in own):
        return []

    @cache
    def split() -> tuple[tuple[Fraction, ...], tuple[tuple[int, Fraction], ...]]:
        return hub_split(view(cluster, own, shares_by_rate(own)))

    def make(segments: int) -> Recipe:
        return inside_exchange(cluster, *split(), segments)

    many, large = len(own) > MANY, len(own) > LARGE
    return [Ladder(InsideServers.family, make, 1 if many else 2 if large else None, deepest=1 if many else None)]


def _packed(cluster: Cluster) -> Ladder:
    from optcc.theory.packing import Packing, pack_trees

    @cache
    def packing() -> Packing:
        return pack_trees(cluster)

    def make(segments: int) -> Recipe:
        return PackedTrees(packing().trees, segments)

    return Ladder(PackedTrees.family, make, by_rate=False, costly=True)


def default_segments(nbytes: int, ranks: int, *, gpus: bool = False) -> int:
    """64 (the pipeline's fill costs about 1/64), fewer when sections would fall under 16 KiB (256 KiB between GPUs)."""
    return max(1, min(DEFAULT_SEGMENTS, nbytes // ((MIN_GPU_CHUNK if gpus else MIN_CHUNK) * ranks)))


@dataclass(frozen=True)
class Candidate:
    """A recipe that was tried, its simulated time (of merged NICs above `LARGE` ranks), and its number of transfers."""

    ladder: Ladder
    recipe: Recipe
    time_s: float
    transfers: int


def merged_nics(cluster: Cluster) -> Cluster:
    """The cluster with each server's live NICs as one of their total rate; striped by rate they act as one."""
    servers = tuple(
        replace(server, nics=(Nic("all", server.out_rate, server.in_rate, rail=0),)) for server in cluster.servers
    )
    return replace(cluster, servers=servers, pristine=None)


def climb(ladder: Ladder, cluster: Cluster, nbytes: int, *, alpha: Fraction, per_chunk: Fraction) -> list[Candidate]:
    """Try a ladder's numbers of segments. Raises InputError where the family has no recipe for the cluster."""
    on = merged_nics(cluster) if ladder.by_rate and _merges(cluster) else cluster
    tried: dict[int, Candidate] = {}

    def attempt(segments: int) -> float:
        """Its time; infinite when it is not worth a try."""
        recipe = ladder.make(segments)
        schedule = recipe.lower(on, nbytes)
        lanes = max((len(route.lanes) for route in schedule.routes), default=1)
        if tried and len(schedule) * lanes > MAX_STRIPES:
            return float("inf")
        time_s = simulate(schedule, alpha=alpha, per_chunk=per_chunk).time_s
        tried[segments] = Candidate(ladder, recipe, time_s, len(schedule))
        return time_s

    most = max(1, min(ladder.deepest or MAX_SEGMENTS, nbytes // (MIN_CHUNK * len(cluster.ranks))))
    # Without a formula times may rise once before they fall: one segment fills no pipeline.
    known = ladder.guess() if callable(ladder.guess) else ladder.guess
    guess, patience = min(known or 1, most), 1 if known else 2
    if ladder.sure:
        for segments in range(max(1, guess - 1), min(guess - 2 + ladder.sure, most) + 1):
            attempt(segments)
        return list(tried.values())
    start = attempt(guess)
    for up in (True, False):
        segments, best, worse = guess, start, 0
        while worse < patience:
            segments = min(2 * segments, most) if up else segments // 2
            if not segments or segments in tried:
                break
            time_s = attempt(segments)
            worse = 0 if time_s < best else worse + 1
            best = min(best, time_s)
    # Times may have a second valley: between the best two, too, if they are close, and what they were doubled from.
    first, *others = sorted(tried, key=lambda k: tried[k].time_s)
    close = [k for k in others[:1] if tried[k].time_s <= CLOSE_SECOND * tried[first].time_s]
    for top in (first, *close):
        for low, high in pairwise(sorted({max(1, top // 2), top, min(2 * top, most)})):
            if (low + high) // 2 not in tried:
                attempt((low + high) // 2)
    return list(tried.values())


def candidates(
    offered: list[Ladder], cluster: Cluster, bound: Bound, *, alpha: Fraction, per_chunk: Fraction
) -> list[Candidate]:
    """Everything that was tried, the fastest first, or in its place what ties with it and is faster where receivers
    take packets.

    Raises InputError when no family has a schedule here.
    """
    found: list[Candidate] = []
    refused: InputError | None = None
    near = False
    many = len(cluster.ranks) > MANY
    timed = any(ladder.name == Timetable.family for ladder in offered)
    enough = CLOSER if timed or starves([min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]) else CLOSE
    first = (Exchange.family, Timetable.family)
    for ladder in sorted(offered, key=lambda ladder: many and ladder.name not in first):
        if ladder.costly and near:
            continue
        try:
            tried = climb(ladder, cluster, bound.nbytes, alpha=alpha, per_chunk=per_chunk)
        except InputError as error:
            refused = refused or error
            continue
        if many and min(c.time_s for c in tried) <= enough * bound.seconds:
            found += tried
            break
        near = near or tried[0].recipe.fluid_s(cluster, bound.nbytes) <= NEAR * bound.seconds
        found += tried
    if not found:
        raise refused or InputError("no family has a schedule", where="cluster", expected="one that has")
    found.sort(key=lambda candidate: candidate.time_s)
    if _merges(cluster):
        # Unequal numbers of NICs cost more chunks than merged ones: the best are run once more as they are.
        finals = [_as_is(c, cluster, bound.nbytes, alpha, per_chunk) for c in found[:FINALISTS]]
        found[:FINALISTS] = sorted(finals, key=lambda candidate: candidate.time_s)
    ties = sum(candidate.time_s <= TIE * found[0].time_s for candidate in found[:FINALISTS])
    if ties > 1 and not cluster.gpu_ranks:
        times = [_by_packets(c, cluster, bound.nbytes, alpha, per_chunk) for c in found[:ties]]
        found.insert(0, found.pop(times.index(min(times))))
    return found


def _merges(cluster: Cluster) -> bool:
    return cluster.fabric.flat and not cluster.gpu_ranks and len(cluster.ranks) > LARGE


def _as_is(candidate: Candidate, cluster: Cluster, nbytes: int, alpha: Fraction, per_chunk: Fraction) -> Candidate:
    if candidate.transfers * max(len(rank.nics) for rank in cluster.ranks) > MAX_FINAL_STRIPES:
        return candidate
    schedule = candidate.recipe.lower(cluster, nbytes)
    return replace(candidate, time_s=simulate(schedule, alpha=alpha, per_chunk=per_chunk).time_s)


def _by_packets(candidate: Candidate, cluster: Cluster, nbytes: int, alpha: Fraction, per_chunk: Fraction) -> float:
    """Its time where receivers take packets as they come, infinite where that takes long to simulate."""
    if candidate.transfers > MAX_FINAL_STRIPES:
        return float("inf")
    schedule = candidate.recipe.lower(cluster, nbytes)
    if len(schedule) * max(len(route.lanes) for route in schedule.routes) > MAX_FINAL_STRIPES:
        return float("inf")
    return simulate(schedule, alpha=alpha, per_chunk=per_chunk, receivers="packets").time_s


def choose(
    cluster: Cluster,
    bound: Bound,
    *,
    family: str | None = None,
    segments: int | None = None,
    alpha: Fraction = Fraction(0),
    per_chunk: Fraction = Fraction(0),
) -> Recipe:
    """The recipe for an AllReduce of `bound.nbytes` bytes. Raises InputError where there is none.

    Without latency and chunk costs deeper is never slower, and the family with the least fluid time wins.
    """
    offered = ladders(cluster, bound, alpha=alpha, per_chunk=per_chunk)
    if family is not None:
        names = ", ".join(dict.fromkeys(ladder.name for ladder in offered))
        offered = [ladder for ladder in offered if ladder.name == family]
        if not offered:
            raise InputError("no such family here", where="--family", expected=f"one of {names}", got=family)
    if segments is None and (alpha or per_chunk) and len(cluster.ranks) > 1 and bound.nbytes:
        return candidates(offered, cluster, bound, alpha=alpha, per_chunk=per_chunk)[0].recipe
    default = default_segments(bound.nbytes, len(cluster.ranks), gpus=cluster.gpu_ranks)
    best: tuple[Fraction, Recipe] | None = None
    refused: InputError | None = None
    for ladder in offered:
        try:
            recipe = ladder.make(segments or min(default, ladder.deepest or MAX_SEGMENTS))
            fluid_s = recipe.fluid_s(cluster, bound.nbytes)
        except InputError as error:
            refused = refused or error
            continue
        if best is None or fluid_s < best[0]:
            best = (fluid_s, recipe)
        if best[0] <= (1 + SAME) * bound.seconds:
            break
    if best is None:
        raise refused or InputError("no family has a schedule", where="cluster", expected="one that has")
    return best[1]
