"""Which families a cluster may want, and what each makes of a number of segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from math import inf

from optcc.bound import Bound
from optcc.cluster import Cluster, Fabric
from optcc.errors import InfeasibleError
from optcc.ladder import LARGE, MANY, Ladder, starves
from optcc.ladders_apart import apart_ladders
from optcc.ladders_grouped import grouped_ladders
from optcc.ladders_lockstep import lockstep_ladders
from optcc.ladders_mixed import mixed_ladders
from optcc.ladders_timetable import latin_ladders, steady_ladders, timetable_ladders
from optcc.plans import nested_rings
from optcc.schedule.exchange import Exchange
from optcc.schedule.inside import InsideServers
from optcc.schedule.inside_parts import inside_servers
from optcc.schedule.nested import NestedRings
from optcc.schedule.nested_pace import FEW_LEAVES, MOST_RANKS, keeping_two
from optcc.schedule.packed import PackedTrees
from optcc.schedule.pods import direct_uplink_s
from optcc.schedule.recipe import Recipe
from optcc.schedule.timetable import Timetable
from optcc.schedule.timetable_lanes import MOST_LANES, in_lanes
from optcc.schedule.timetable_nics import applies, evened
from optcc.schedule.trees import ComplementaryTrees

SHAPES = 4
"""Shapes of trees that are tried."""
EXCHANGE_WAYS = Fraction(3, 2)
"""Rounds by way of slow ranks, for each other round and for the part of the data that goes by way of them."""

LEFT_ALONE = 9 / 8
"""Timetables, for which NICs are of one pace, are tried where that takes no longer than so many times the bound."""
FULL_UPLINKS = Fraction(51, 50)
"""Direct exchange is tried among pods where their uplinks need no longer than so many times the bound."""
LANES_GAIN = 1.005
"""NICs in lanes are tried where they save so much: each lane pays for chunks of its own."""


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
    even = evened(cluster)
    loses = _by_evening(cluster, even)
    room = _room_on_uplinks(cluster, bound)
    if loses <= LEFT_ALONE and room:
        if applies(even):
            offered += timetable_ladders(even, bound, alpha, per_chunk)
        offered += lockstep_ladders(even, bound, per_chunk)
        offered += latin_ladders(even, bound, per_chunk)
        offered += steady_ladders(even, bound, alpha, per_chunk)
    if loses > LANES_GAIN and room:
        offered += _in_lanes(cluster, bound, loses, alpha, per_chunk)
    offered += apart_ladders(cluster, bound, per_chunk)
    offered += grouped_ladders(cluster, bound, per_chunk)
    offered += [] if room else mixed_ladders(cluster, bound, per_chunk)
    if cluster.fabric.flat:
        offered += _trees(cluster, bound.nbytes, alpha, per_chunk)
    return [*offered, _packed(cluster)]


def _room_on_uplinks(cluster: Cluster, bound: Bound) -> bool:
    """Whether direct exchange takes no longer on uplinks of pods than elsewhere, or hardly."""
    from optcc.theory.hubs import hub_split

    if cluster.fabric.pod_oversubscription is None or len(cluster.ranks) < 3:
        return True
    return direct_uplink_s(cluster, hub_split(cluster)[0], bound.nbytes) <= FULL_UPLINKS * bound.seconds


def _by_evening(cluster: Cluster, even: Cluster) -> float:
    """How many times as long a cluster would take as timetables use it, if any NIC reached any."""
    from optcc.theory import lower_bound

    if even is cluster or len(cluster.ranks) == 1:
        return 1.0
    try:
        slower, bound = (lower_bound(replace(each, fabric=Fabric()), 1).seconds for each in (even, cluster))
    except InfeasibleError:  # a server without NICs
        return inf
    return float(slower / bound)


def _in_lanes(cluster: Cluster, bound: Bound, loses: float, alpha: Fraction, per_chunk: Fraction) -> Iterator[Ladder]:
    """Timetables in the fewest lanes with which nearly nothing is left alone, if there are any. loses : without"""
    tried = [(count, evened(in_lanes(cluster, count))) for count in range(2, MOST_LANES + 1)]
    lost = [_by_evening(cluster, even) for _, even in tried]
    best = next((i for i, each in enumerate(lost) if each <= min(lost) * LANES_GAIN), 0)
    count, even = tried[best]
    if lost[best] * LANES_GAIN > loses or lost[best] > LEFT_ALONE or not applies(even):
        return
    for ladder in timetable_ladders(even, bound, alpha, per_chunk):
        yield replace(ladder, make=partial(_laned, ladder.make, count))


def _laned(make: Callable[[int], Recipe], count: int, segments: int) -> Recipe:
    made = make(segments)
    assert isinstance(made, Timetable)
    return replace(made, lanes=count)


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
