"""The timetable in steps where a slow server starves: who is the hub of what, and who adds last to how much."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from optcc.cluster import Cluster
from optcc.schedule.recipe import demand
from optcc.schedule.timetable import Timetable
from optcc.schedule.timetable_nics import applies, live_nics, reduced
from optcc.schedule.timetable_ramp import UNIT

LEAST = Fraction(1, 4)
SOONER = Fraction(1, 2)
"""Another slow rank adds last to more than it must, by that part of what would make its halves equal (measured)."""
MUCH, TURNS = Fraction(1, 4), 5
"""From such a part on it has to begin early: its parts of a section and who starves' alternate in so many turns."""


def one_starves(cluster: Cluster) -> bool:
    """Where `stepped` has a timetable: one rank has fewest NICs and alone sets the bound."""
    fewest, *others = sorted(map(len, live_nics(cluster)))
    per_nic = Fraction(2 * len(others) - 1, sum(others))
    return fewest * per_nic <= 1 and fewest < others[0]


def stepped(
    cluster: Cluster,
    growth: Fraction,
    segments: int,
    margin: Fraction = Fraction(0),
    chunk: Fraction = Fraction(0),
) -> Timetable:
    """The timetable in steps where a slow rank starves. Raises InputError where none does.

    All others are equally busy: with n NICs they are hubs of x = (n t - 1)/(P-2), t = (2P-3)/(NICs of them all), of
    nothing if that is negative. Adding last to y, slow ones send 1 - x/2 - y in the first half, at most what their NICs
    can, and have equal halves at y = (1 - (P-1) x)/2. That of who starves is as in `growing`.
    """
    demand(applies(cluster) and one_starves(cluster), "cluster", "a slow rank that starves", "another")
    counts, slow = list(map(len, live_nics(cluster))), reduced(cluster)
    ranks, lone = len(counts), counts.index(min(counts))
    per_nic = Fraction(2 * ranks - 3, sum(counts) - counts[lone])
    hubs = {r: max(Fraction(0), (counts[r] * per_nic - 1) / (ranks - 2)) if r != lone else Fraction(0) for r in slow}
    full = 1 - sum(hubs.values(), Fraction(0))
    shares = tuple(hubs.get(r, full / (ranks - len(slow))) for r in range(ranks))

    def adds_last(rank: int) -> Fraction:
        """To such a part of the full ranks' data."""
        equal = max(Fraction(0), (1 - (ranks - 1) * shares[rank]) / 2)
        least = max(Fraction(0), 1 - shares[rank] / 2 - Fraction(counts[rank], 2 * counts[lone]))
        return (min(least, equal) + SOONER * max(Fraction(0), equal - least)) / full

    via = {r: adds_last(r) for r in slow} | {lone: Fraction(1, 2)}
    over = max(Fraction(1), 2 * (sum(via.values()) - via[lone]))  # of a section, beside the half of who starves
    late = tuple((r, b / over if r != lone else b) for r, b in via.items())
    turns = TURNS if max((b for r, b in late if r != lone), default=0) >= MUCH else 1
    recipe = Timetable(segments, shares, late, growth, margin=margin, chunk=chunk, stepped=True, turns=turns)
    recipe.check(cluster)
    for _ in range(2):
        idle = recipe.idle(cluster)
        part = max(LEAST, ((1 - idle) / (2 - idle)).limit_denominator(UNIT))
        recipe = replace(recipe, via=tuple((r, b if r != lone else part) for r, b in recipe.via))
    return recipe
