"""The timetable in steps where a slow server starves: who is the hub of what, and who adds last to how much."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from optcc.cluster import Cluster
from optcc.schedule.recipe import demand
from optcc.schedule.timetable import Timetable
from optcc.schedule.timetable_nics import applies, hardly_faster, live_nics, reduced
from optcc.schedule.timetable_ramp import UNIT

LEAST = Fraction(1, 4)
SOON = Fraction(3, 8)
"""A rank that is hardly faster adds last to such a part if it can, and that leaves it no more than equal halves
(measured),"""
TURNS, LONG = 5, 80
"""and begins early: the parts of a section that it and who starves add last to alternate in so many turns, or fewer
that last as long as so many chunks cost (measured)."""


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
    nothing if that is negative. Adding last to y, slow ones have equal halves at y = (1 - (P-1) x)/2. One that is
    hardly faster adds last to less, but must not have more to send in the first half than it can: 1 - x/2 - y. Who
    starves adds last to as much as in `growing`.
    """
    demand(applies(cluster) and one_starves(cluster), "cluster", "a slow rank that starves", "another")
    counts, slow = list(map(len, live_nics(cluster))), reduced(cluster)
    ranks, lone = len(counts), counts.index(min(counts))
    per_nic = Fraction(2 * ranks - 3, sum(counts) - counts[lone])
    hubs = {r: max(Fraction(0), (counts[r] * per_nic - 1) / (ranks - 2)) if r != lone else Fraction(0) for r in slow}
    full = 1 - sum(hubs.values(), Fraction(0))
    shares = tuple(hubs.get(r, full / (ranks - len(slow))) for r in range(ranks))
    hardly = hardly_faster(counts)

    def adds_last(rank: int) -> Fraction:
        """To such a part of the full ranks' data."""
        equal = max(Fraction(0), (1 - (ranks - 1) * shares[rank]) / 2)
        least = max(Fraction(0), 1 - shares[rank] / 2 - Fraction(counts[rank], 2 * counts[lone]))
        return (min(max(SOON, least), equal) if rank in hardly else equal) / full

    via = {r: adds_last(r) for r in slow} | {lone: Fraction(1, 2)}
    over = max(Fraction(1), 2 * (sum(via.values()) - via[lone]))  # of a section, beside the half of who starves
    late = tuple((r, b / over if r != lone else b) for r, b in via.items())
    longest = counts[lone] / ((ranks - 2) * LONG * chunk) if chunk else TURNS
    turns = max(1, min(TURNS, round(longest))) if hardly else 1
    recipe = Timetable(segments, shares, late, growth, margin=margin, chunk=chunk, stepped=True, turns=turns)
    recipe.check(cluster)
    for _ in range(2):
        idle = recipe.idle(cluster)
        part = max(LEAST, ((1 - idle) / (2 - idle)).limit_denominator(UNIT))
        recipe = replace(recipe, via=tuple((r, b if r != lone else part) for r, b in recipe.via))
    return recipe
