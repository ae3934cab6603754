"""Direct exchange by some NICs and in two levels by the others, as the planner tries it among pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import islice

from optcc.bound import Bound
from optcc.cluster import Cluster
from optcc.ladder import LARGE, Ladder
from optcc.ladders_grouped import grouped_ladders
from optcc.schedule.columns import Schedule
from optcc.schedule.grouped import GroupedExchange
from optcc.schedule.mixed import MixedExchange, divided
from optcc.schedule.recipe import Recipe
from optcc.schedule.timetable import Timetable
from optcc.schedule.timetable_nics import applies, bound_of, evened, live_nics, nic_rate

FULL = Fraction(19, 20)
"""Uplinks are to be busy for so much of the time at most: nothing plans when they are crossed."""
NUMBERS = 2
"""So many numbers of NICs are tried for two levels, from the fewest that leave uplinks that much room; of more than
`LARGE` ranks one less, and of more than twice as many none. Where there are many, two levels are enough by themselves,
with far fewer chunks,"""
BESIDE = Fraction(501, 500)
"""unless a pod makes them so many times slower than the bound."""
NEAR = Fraction(101, 100)
"""Only where the busiest NIC needs no longer than so many times the bound: not where a server starves."""
PARTS = 2**20
ROUNDS = 3
"""Of the timetable, until `_settled` tries these (rounds, whether they are sparse)."""
FORMS = ((1, False), (2, False), (3, False), (2, True), (3, True), (4, True))


def mixed_ladders(cluster: Cluster, bound: Bound, per_chunk: Fraction) -> list[Ladder]:
    """Where uplinks have no room for direct exchange alone."""
    ranks = len(cluster.ranks)
    if ranks > LARGE:
        alone = grouped_ladders(cluster, bound, per_chunk) if ranks <= 2 * LARGE else []
        if not alone or _even_s(alone[0], cluster, bound.nbytes) <= BESIDE * bound.seconds:
            return []
    numbers = _by_numbers(cluster, bound, per_chunk)
    return [ladder for own in islice(numbers, NUMBERS - (ranks > LARGE)) for ladder in own]


def _by_numbers(cluster: Cluster, bound: Bound, per_chunk: Fraction) -> Iterator[list[Ladder]]:
    """For each number of NICs in two levels that leaves uplinks room, the fewest first."""
    from optcc.theory.hubs import hub_split

    for count in range(1, max(map(len, live_nics(cluster)))):
        nics = _widespread(cluster, count)
        direct, grouped = divided(cluster, nics)
        own = grouped_ladders(grouped, bound, per_chunk)
        if not own or not applies(direct) or not min(shares := hub_split(evened(direct))[0]):
            return
        used = [(len(mine), 1) for mine in live_nics(direct)]
        direct_s, grouped_s = bound_of(used) / nic_rate(direct), _even_s(own[0], grouped, 1)
        if direct_s * grouped_s / (direct_s + grouped_s) > NEAR * bound.seconds / bound.nbytes:
            return
        part = (direct_s / (direct_s + grouped_s)).limit_denominator(PARTS)
        make = [partial(_mixed, Timetable(ROUNDS, shares), ladder.make, nics, part) for ladder in own]
        settle = partial(_settled, cluster, bound.nbytes)
        if make[0](1).uplink_s(cluster, bound.nbytes) <= FULL * bound.seconds:
            yield [
                replace(ladder, name=MixedExchange.family, make=mixed, settle=settle)
                for ladder, mixed in zip(own, make, strict=True)
            ]


def _even_s(ladder: Ladder, cluster: Cluster, nbytes: int) -> Fraction:
    made = ladder.make(1)
    assert isinstance(made, GroupedExchange)
    return made.even_s(cluster, nbytes)


def _mixed(
    direct: Timetable, grouped: Callable[[int], Recipe], nics: tuple[int, ...], part: Fraction, segments: int
) -> MixedExchange:
    made = grouped(segments)
    assert isinstance(made, GroupedExchange)
    return MixedExchange(segments, direct, made, nics, part)


def _widespread(cluster: Cluster, count: int) -> tuple[int, ...]:
    """So many places of NICs, those that are alive in most servers; of equal ones the last."""
    alive = [0] * max(len(server.nics) for server in cluster.servers)
    for server in cluster.servers:
        for i, nic in enumerate(server.nics):
            alive[i] += nic.alive
    return tuple(sorted(sorted(range(len(alive)), key=lambda i: (alive[i], i))[-count:]))


def _settled(cluster: Cluster, nbytes: int, recipe: Recipe, time_of: Callable[[Schedule], float]) -> Recipe:
    """With the timetable that is fastest beside the other part, and data moved between the parts so that they end
    together, or half as much: chunks and waiting cost one more than the other, and what is moved saves its fluid time.
    """
    assert isinstance(recipe, MixedExchange)
    forms = [replace(recipe.direct, segments=k, sparse=own, matched=1024 if own else 0) for k, own in FORMS]
    tried = [replace(recipe, direct=form) for form in forms]
    times = [time_of(each.lower(cluster, nbytes)) for each in tried]
    best = tried[times.index(min(times))]
    (direct, on, size), (grouped, beside, rest) = best.parts(cluster, nbytes)
    if size and rest:
        later = time_of(direct.lower(on, size)) - time_of(grouped.lower(beside, rest))
        moved = later / float(best.grouped.even_s(beside, rest)) / (1 / size + 1 / rest)
        for much in (moved, moved / 2):
            part = min(max(round((rest + much) / nbytes * PARTS), 1), PARTS - 1)
            tried.append(replace(best, part=Fraction(part, PARTS)))
            times.append(time_of(tried[-1].lower(cluster, nbytes)))
    return tried[times.index(min(times))]
