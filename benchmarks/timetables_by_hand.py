"""Timetables, Latin squares, lockstep and steady steps by hand: far more forms than the planner has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import product
from math import sqrt
from typing import Any

from optcc.bound import Bound
from optcc.cluster import Cluster
from optcc.ladders_timetable import even_halves
from optcc.schedule.latin import LatinExchange, latin_pair
from optcc.schedule.lockstep import MAX_STEPS, LockstepExchange, applies_lockstep
from optcc.schedule.steady import MAX_CHUNK, SteadyExchange, steady_ranks
from optcc.schedule.timetable import MAX_ROUNDS, Timetable, deepest, growing
from optcc.schedule.timetable_greedy import UP
from optcc.schedule.timetable_nics import applies, evened, reduced
from optcc.schedule.timetable_one_starves import one_starves, stepped
from optcc.theory.hubs import hub_split

MATCHED, MOST_MATCHED_RANKS = ((0, False), (1, False), (1024, False), (1, True), (1024, True)), 32
PARTS = tuple(map(Fraction, ("1/4", "1/2", "3/4", "1")))
"""Of what slow servers add last to where their halves are equal."""
ROUNDS = ((8, (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)), (16, (1, 2, 3, 4, 6)), (32, (1, 2, 3)), (64, (1, 2)))
"""(most servers, numbers of rounds)"""
GROWTHS = ((32, ("5/4", "4/3", "7/5", "3/2", "8/5", "17/10", "2", "5/2", "3")), (64, ("17/10", "2")))
"""(most servers, how rounds grow),"""
GROWING_ROUNDS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20)
"""and then so many of them."""
STEP_GROWTHS, STEP_MARGINS = ("21/20", "11/10", "23/20", "6/5"), ("1/1000", "1/400", "1/100")
STEP_CHUNKS = ("0", "1/2500", "1/600")
STEP_COUNTS, STEP_RANKS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 160), 32
"""Where one of several slow servers starves: steps, and the most servers."""
CHUNKS = Fraction(1, 4)
"""More than one round is tried only where its chunks take no more than so much of the bound."""

WINDOWS = (2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192)
MARGINS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)
"""Of Latin squares: windows, and the steps to when their sums are sent on."""

VARIANTS, MOST_STEPS, ALL_STEPS = 6, 3, 8
"""Of lockstep: so many for each number of steps, up to so many times the root of the bound in chunks' costs; of twice
as many ranks as that every second number, of four times as many every eighth."""

STEPS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 80)
GROWING, LONGER, LAGS = (1, 4, 12), (Fraction(1), Fraction(9, 8), Fraction(5, 4)), (Fraction(0), Fraction(1, 2))
"""Of steady steps: how many, how many of these grow and by what, latencies from a step to when its bytes count."""


def latin_squares(cluster: Cluster) -> Iterator[list[Callable[[], LatinExchange]]]:
    """Of each margin, what makes one with ever more windows."""
    pair = latin_pair(cluster)
    for margin in MARGINS if pair else ():
        yield [partial(LatinExchange, windows, pair, margin) for windows in WINDOWS]  # type: ignore[arg-type]


def lockstep(cluster: Cluster, bound: Bound, per_chunk: Fraction) -> Iterator[list[Callable[[], LockstepExchange]]]:
    """Of each variant, what makes it with ever more steps."""
    cluster = evened(cluster)
    most = int(MOST_STEPS * sqrt(bound.seconds / per_chunk))
    apart = 2 ** max(0, 2 * (len(cluster.ranks) // ALL_STEPS).bit_length() - 3)
    for variant in range(VARIANTS) if applies_lockstep(cluster) else ():
        yield [partial(LockstepExchange, count, variant) for count in range(1, min(most, MAX_STEPS) + 1, apart)]


def steady_steps(
    cluster: Cluster, bound: Bound, alpha: Fraction, per_chunk: Fraction
) -> Iterator[list[Callable[[], SteadyExchange]]]:
    """Of each form, what makes one with ever more steps."""
    pair, half = steady_ranks(cluster), bound.seconds / 2
    for first, growth, lag in product(GROWING, LONGER, LAGS) if pair else ():
        parts = first, growth, min(lag * alpha / half, Fraction(1, 2)), min(per_chunk / half, MAX_CHUNK)
        yield [partial(SteadyExchange, count, pair, *parts) for count in STEPS]  # type: ignore[arg-type]


def timetables(cluster: Cluster, bound: Bound, per_chunk: Fraction) -> Iterator[list[Callable[[], Timetable]]]:
    """Of each form, what makes it with ever more rounds."""
    cluster = evened(cluster)
    if not applies(cluster):
        return
    ranks, shares = len(cluster.ranks), hub_split(cluster)[0]
    even = even_halves(shares, reduced(cluster))
    vias = [tuple((rank, by * part) for rank, part in even) for by in PARTS] + ([()] if min(shares) else [])
    matched = MATCHED if ranks <= MOST_MATCHED_RANKS else MATCHED[:1]
    few = [rounds for rounds in _of(ROUNDS, ranks) if rounds <= most_rounds(cluster, bound, per_chunk)]
    for via, (by, sparse) in product(vias, matched):
        yield [partial(Timetable, count, shares, via, matched=by, sparse=sparse) for count in few]
    if len(even) == 1 and not min(shares):
        most = most_rounds(cluster, bound, per_chunk / min(sum(nic.alive for nic in r.nics) for r in cluster.ranks))
        own = [rounds for rounds in GROWING_ROUNDS if rounds <= most]
        for growth in map(Fraction, _of(GROWTHS, ranks)):
            yield [partial(growing, cluster, shares, growth, rounds) for rounds in own]
    if ranks <= STEP_RANKS and one_starves(cluster):
        forms = (tuple(map(Fraction, each)) for each in (STEP_GROWTHS, STEP_MARGINS, STEP_CHUNKS))
        for growth, margin, chunk in product(*forms):
            counts = [count for count in STEP_COUNTS if count <= deepest(growth, UP)]
            yield [partial(stepped, cluster, growth, count, margin, chunk) for count in counts]


def most_rounds(cluster: Cluster, bound: Bound, per_chunk: Fraction) -> int:
    """So many are worth a try: in r rounds a NIC pays for 2r(P-1) chunks, if they do not grow."""
    if not per_chunk:
        return MAX_ROUNDS
    return max(1, int(CHUNKS * bound.seconds / (2 * (len(cluster.ranks) - 1) * per_chunk)))


def _of(table: tuple[tuple[int, Any], ...], ranks: int) -> Any:
    return next((row for most, row in table if ranks <= most), ())


def form(recipe: Timetable) -> str:
    """What tells it from other timetables with as many rounds, for people."""
    lasts = sum(part for _, part in recipe.via) if len(recipe.via) > 1 else 0
    said = {
        "growth": recipe.growth,
        "matched": recipe.matched,
        "sparse": recipe.sparse,
        "via": round(float(lasts), 2),
    }
    return "".join(f", {name} {x}" for name, x in said.items() if x)
