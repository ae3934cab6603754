"""The timetable in steps where a slow server starves: who is the hub of what, and who adds last to how much."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from optcc.cluster import Cluster
from optcc.schedule.recipe import demand
from optcc.schedule.timetable import Timetable
from optcc.schedule.timetable_nics import applies, live_nics, reduced
from optcc.schedule.timetable_ramp import UNIT

HUB, BUSY = Fraction(3, 8), Fraction(9, 10)
"""Other slow ranks are hubs of at least such a part of the mean, but not more than such a part of what they can be when
as busy as who starves (measured)."""
LEAST = Fraction(1, 4)
"""That rank adds last to; with a few steps it has nothing to receive for most of the half."""


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

    All others are equally busy: with n NICs they are hubs of x = (n t - 1)/(P-2), t = (2P-3)/(NICs of them all); who
    would be the hub of hardly anything is busier, nearly as busy as who starves if need be. Adding last to b of the
    full ones' data, F in all, slow ones have equal halves at b = (1 - (P-1) x)/(2 F). That of who starves is as in
    `growing`.
    """
    demand(applies(cluster) and one_starves(cluster), "cluster", "a slow rank that starves", "another")
    counts, slow = list(map(len, live_nics(cluster))), reduced(cluster)
    ranks, lone = len(counts), counts.index(min(counts))
    per_nic = Fraction(2 * ranks - 3, sum(counts) - counts[lone])

    def share(rank: int, busy: Fraction) -> Fraction:
        return (counts[rank] * busy - 1) / (ranks - 2)

    def other(rank: int) -> Fraction:
        return max(share(rank, per_nic), min(HUB / ranks, BUSY * share(rank, Fraction(1, counts[lone]))))

    hubs = {r: other(r) if r != lone else Fraction(0) for r in slow}
    full = 1 - sum(hubs.values(), Fraction(0))
    shares = tuple(hubs.get(r, full / (ranks - len(slow))) for r in range(ranks))
    via = {r: max(Fraction(0), (1 - (ranks - 1) * shares[r]) / (2 * full)) for r in slow} | {lone: Fraction(1, 2)}
    over = max(Fraction(1), 2 * (sum(via.values()) - via[lone]))  # of a section, beside the half of who starves
    late = tuple((r, b / over if r != lone else b) for r, b in via.items())
    recipe = Timetable(segments, shares, late, growth, margin=margin, chunk=chunk, stepped=True)
    recipe.check(cluster)
    for _ in range(2):
        idle = recipe.idle(cluster)
        part = max(LEAST, ((1 - idle) / (2 - idle)).limit_denominator(UNIT))
        recipe = replace(recipe, via=tuple((r, b if r != lone else part) for r, b in recipe.via))
    return recipe
