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
"""That rank adds last to; with a few steps it has nothing to receive for most of the half."""


def one_starves(cluster: Cluster) -> bool:
    """Where `stepped` has a timetable: one rank has fewest NICs and alone sets the bound."""
    fewest, *others = sorted(map(len, live_nics(cluster)))
    per_nic = Fraction(2 * len(others) - 1, sum(others))
    return fewest * per_nic <= 1 < others[0] * per_nic


def stepped(
    cluster: Cluster,
    growth: Fraction,
    segments: int,
    margin: Fraction = Fraction(0),
    chunk: Fraction = Fraction(0),
) -> Timetable:
    """The timetable in steps where a slow rank starves. Raises InputError where none does.

    All others are equally busy: with n NICs they are hubs of x = (n t - 1)/(P-2), t = (2P-3)/(NICs of them all). Adding
    last to b of the full ones' data, F in all, slow ones have equal halves at b = (1 - (P-1) x)/(2 F). That of who
    starves is as in `growing`.
    """
    demand(applies(cluster) and one_starves(cluster), "cluster", "a slow rank that starves", "another")
    counts, slow = list(map(len, live_nics(cluster))), reduced(cluster)
    ranks, lone = len(counts), counts.index(min(counts))
    per_nic = Fraction(2 * ranks - 3, sum(counts) - counts[lone])
    shares = tuple((n * per_nic - 1) / (ranks - 2) if r != lone else Fraction(0) for r, n in enumerate(counts))
    full = 1 - sum(shares[r] for r in slow)
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
