"""Timetables, Latin squares and steady steps that the planner tries, in the few forms that were found to be enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import gcd, log, sqrt
from typing import NamedTuple

from optcc.bound import Bound
from optcc.cluster import Cluster
from optcc.ladder import LARGE, MANY, Ladder, starves
from optcc.schedule.latin import LatinExchange, latin_pair
from optcc.schedule.steady import SteadyExchange, most_steps, steady_ranks, used_nics
from optcc.schedule.steady_steps import quiet_rails
from optcc.schedule.timetable import MAX_CHUNK, MAX_ROUNDS, Timetable, deepest, growing
from optcc.schedule.timetable_greedy import UP
from optcc.schedule.timetable_nics import hardly_faster, reduced
from optcc.schedule.timetable_one_starves import one_starves, stepped


class Rounds(NamedTuple):
    """Full rounds of a timetable, as in `Timetable`."""

    matched: int = 0
    sparse: bool = False


EQUAL = Rounds()
SINGLE = (EQUAL, Rounds(1024, sparse=True))
"""Full rounds of timetables that are tried with one slow server,"""
SEVERAL = (EQUAL, Rounds(1), Rounds(1, sparse=True), Rounds(1024), Rounds(1024, sparse=True))
"""with several slow servers,"""
FEWER = 4
"""of more than `LARGE` ranks only so many of these,"""
FEWEST = (EQUAL, Rounds(1, sparse=True))
"""and of more than twice as many ranks."""
LARGE_ROUNDS = 4
"""Most sparse rounds that are tried, of more than twice `LARGE` ranks."""
MOST_VIA = Fraction(4, 5)
"""If several ranks that are hubs of nothing add last to more than that, the last sums come too late (measured)."""
CHUNKS_COST = Fraction(1, 20)
"""Of more than `MANY` ranks on one fabric, timetables are tried where chunks cost them so much of the bound."""

GROWTHS = (Fraction(4, 3), Fraction(7, 5), Fraction(3, 2), Fraction(8, 5), Fraction(17, 10), Fraction(2))
"""Of a growing timetable's rounds, one after the other; of more than `LARGE` ranks only the fastest."""
SPARE = Fraction(9, 10)
"""Of their time, in which hubs must have gathered what the slow rank is to receive."""

STEP_GROWTHS = (Fraction(21, 20), Fraction(11, 10), Fraction(23, 20))
"""Of a step over the one before, where a slow server starves, the first where another one is hardly faster; only that
one of more than twice `LARGE` ranks."""
STEP_GROWS = 0.6
"""Of more than `LARGE` ranks, up to twice as many: so much over the root of the number of steps, and 1 (measured)."""
STEPS, STEPS_GROW = 1.75, 0.42
"""Steps that are about right: so many, and how they grow with how many chunks the bound lasts (measured); of more than
`MANY` ranks no fewer than these."""
FEWEST_STEPS, MORE_STEPS = 0.8, 0.9
"""Of these the least number that is tried, and how many more the most is,"""
STEPS_TRIED, MOST_TRIES, FEWEST_TRIES = 32_000, 30, (12, 6, 3)
"""so many numbers of each growth, that all their steps times ranks are about that; the most, and the fewest, of more
than `LARGE` ranks, and of more than `MANY`."""
BETWEEN = 2
"""So many more between every two of the growth that is fastest."""
STEP_LAG, MOST_LAG, STEP_PARTS = Fraction(3, 2), Fraction(1, 10), 2**20
"""Latencies from a slot to when its bytes are counted on, with several slow servers; the most, as part of a half, and
what it is rounded to."""

MARGINS = (Fraction(3, 2), Fraction(5, 2))
"""Steps, for each NIC, from the end of a window to the one that sends its sum on, by a Latin square."""
LATIN_LAG = 5
"""So many chunks a slow server waits, about, for the first sum, and the hubs in the middle of the plan (measured)."""
MOST_LATIN = 200_000
"""Transfers of a Latin square, or of steady steps, that are tried."""

STEADY_STEPS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
"""Steady steps that are tried in each half, beside what growing takes: of the root of the bound in chunks' costs."""
STEADY_LAG, STEADY_MARGIN, STEADY_PARTS = 2, Fraction(1, 2), 64
"""Steps that a slow server waits for a result; latencies from a step to when its bytes count, where hubs have no time
to spare (measured: a hub's NIC is late by the rest); what their growth is rounded to."""
QUIET_STEPS, QUIET_WAIT = (0.5, 0.6, 0.7), 2.5
"""Where hubs have rails for themselves, so that nobody is late: fewer steps, the first ones as short as if it took hubs
so many times as long to hear from each other (measured)."""
GOLDEN = (1 + sqrt(5)) / 2
SHORT_TURN, LONG_TURN = 1 / 2, 2 / 3
"""Steps grow by that power of the golden ratio in a turn; of more than twice `LARGE` ranks, where a turn is many steps
and hubs have no rails for themselves, by the second one,"""
LONG_STEPS, LONG_PARTS = (0.8, 0.85, 0.9, 0.95, 1.0, 1.05), 256
"""and there are more of them, and finer growth (measured)."""
FEW_STEPS, ALIKE_STEPS = 16, (0.6, 0.75, 0.9, 1.1, 1.4, 1.8)
"""Up to that root also so many steps that are all alike,"""
FEW_FIRST = ((0, Fraction(1)), (1, Fraction(5, 4)))
"""or of which the first one is that much shorter, with margins and without."""


def timetable_ladders(cluster: Cluster, bound: Bound, alpha: Fraction, per_chunk: Fraction) -> list[Ladder]:
    """Full rounds, by offsets and by matchings where pairs have not equally much; where a server alone sets the bound,
    rounds that grow, if no other one is slow, and steps for who is most behind."""
    from optcc.theory.hubs import hub_split

    def full(rounds: Rounds) -> Ladder:
        return Ladder(
            Timetable.family,
            lambda segments: Timetable(segments, shares, via, matched=rounds.matched, sparse=rounds.sparse),
            3 if rounds.sparse else 1,
            by_rate=False,
            deepest=LARGE_ROUNDS if rounds.sparse and ranks > 2 * LARGE else None,
        )

    ranks, rates = len(cluster.ranks), [min(rank.out_rate, rank.in_rate) for rank in cluster.ranks]
    shares, several = hub_split(cluster)[0], len(reduced(cluster)) > 1
    via = even_halves(shares, reduced(cluster)) if not min(shares) else ()
    offered: list[Ladder] = []
    if ranks <= MANY:
        few = FEWEST if ranks > 2 * LARGE else SEVERAL[: FEWER if ranks > LARGE else None] if several else SINGLE
        offered = [full(rounds) for rounds in few]
    elif ranks <= 2 * MANY:
        # Seconds, but far nearer the bound than direct exchange; rails do not have that at all.
        cheap = several and 2 * (ranks - 1) * per_chunk <= CHUNKS_COST * bound.seconds
        offered = [replace(full(EQUAL), deepest=1)] if cheap or cluster.fabric.rails else []
    stepped = ranks <= (2 * MANY if several else MANY) and one_starves(cluster)
    steps = _stepped(cluster, bound, alpha, per_chunk) if stepped else []
    if several and steps:
        return [*steps, *(offered[:1] if ranks <= LARGE else [])]
    if several or not starves(rates) or ranks > 2 * MANY:
        return offered
    # What hubs gather at a time lasts the slow server for so many times as long; a part of that is left as slack.
    lasts = max(rates) / min(rates)
    growths = [growth for growth in GROWTHS if growth <= SPARE * lasts] or [min(GROWTHS)]

    def ladder(growth: Fraction) -> Ladder:
        return Ladder(
            Timetable.family,
            lambda segments: growing(cluster, shares, growth, segments),
            lambda: _rounds(cluster, Timetable(1, shares, via, growth), bound, per_chunk),
            sure=4 if ranks <= MANY else 2,
            by_rate=False,
            deepest=deepest(growth),
            both=ranks <= LARGE,
        )

    rounds = [ladder(growth) for growth in (growths if ranks <= LARGE else growths[-1:])]
    return [*rounds, *steps]


def even_halves(shares: tuple[Fraction, ...], slow: Sequence[int]) -> tuple[tuple[int, Fraction], ...]:
    """(slow rank, the part of the full ranks' data that it adds last to) with which each has two equal halves.

    A slow rank that is the hub of x and adds last to part b of the full ranks' data, F in all, receives (P-1) x + b F
    in the first half and sends 1 - x - b F, and the reverse in the second: equal at b = (1 - P x)/(2 F). They add last
    to `MOST_VIA` in all, if that is less, each less in proportion.
    """
    full = 1 - sum(shares[rank] for rank in slow)
    parts = [max(Fraction(0), (1 - len(shares) * shares[rank]) / (2 * full)) for rank in slow]
    over = max(Fraction(1), sum(parts) / MOST_VIA)
    return tuple((rank, part / over) for rank, part in zip(slow, parts, strict=True))


def _stepped(cluster: Cluster, bound: Bound, alpha: Fraction, per_chunk: Fraction) -> list[Ladder]:
    """Steps for who is most behind, where a server starves. What they lose scatters with their number, so that many are
    tried, and from one kind of receivers to the other."""

    ranks, several = len(cluster.ranks), len(reduced(cluster)) > 1
    hardly = hardly_faster([sum(nic.alive for nic in rank.nics) for rank in cluster.ranks])
    many = ranks > MANY
    least = ranks if many else STEPS
    steps = max(least, STEPS * float(bound.seconds / per_chunk) ** STEPS_GROW) if per_chunk else MAX_ROUNDS
    growths = STEP_GROWTHS[0 if hardly else 1 :]
    if ranks > LARGE:
        growths = STEP_GROWTHS[:1] if ranks > 2 * LARGE else (1 + Fraction(round(100 * STEP_GROWS / sqrt(steps)), 100),)
    tries = max(
        FEWEST_TRIES[(ranks > LARGE) + many], min(round(STEPS_TRIED / (ranks * steps * len(growths))), MOST_TRIES)
    )
    numbers = [round(steps * (FEWEST_STEPS + turn * MORE_STEPS / (tries - 1))) for turn in range(tries)]
    margin = _part(bound, alpha * (STEP_LAG if several else 1), MOST_LAG)
    chunk = _part(bound, per_chunk, MAX_CHUNK)

    def ladder(growth: Fraction) -> Ladder:
        only = [max(2, min(number, deepest(growth, UP))) for number in numbers]

        @cache
        def middle() -> Timetable:  # who adds last to how much depends little on the number of steps
            return stepped(cluster, growth, only[tries // 2], margin=margin, chunk=chunk)

        return Ladder(
            Timetable.family,
            lambda segments: replace(middle(), segments=segments),
            by_rate=False,
            only=only,
            between=BETWEEN,
            both=True,
        )

    return [ladder(growth) for growth in growths]


def latin_ladders(cluster: Cluster, bound: Bound, per_chunk: Fraction) -> list[Ladder]:
    """By a Latin square, where two servers set the bound: that many windows that chunks cost as much as the lag."""
    pair, hubs = latin_pair(cluster), len(cluster.ranks) - 2
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


def steady_ladders(cluster: Cluster, bound: Bound, alpha: Fraction, per_chunk: Fraction) -> list[Ladder]:
    """Steps in which servers that starve send and are sent something all the time.

    Hubs have heard from each other after a turn, for which a slow server waits at first. As hubs are twice as quick,
    what they have gathered after one more turn is what they had after the last two: steps may grow by the golden ratio
    in a turn. By its root is better, or a little more, from steps that make the first wait no longer than the later
    ones (measured).
    """
    slow = steady_ranks(cluster)
    if slow is None or len(cluster.ranks) - len(slow) > MANY:
        return []
    used = [list(mine) for mine in used_nics(cluster, slow)]
    hubs, fewer, nics = len(used) - len(slow), len(used[slow[0]]), sum(map(len, used))
    quiet, turn = bool(quiet_rails(used, slow)), (hubs - 1) / max(map(len, used))
    long = len(used) > 2 * LARGE and not quiet
    power, numbers, parts = (LONG_TURN, LONG_STEPS, LONG_PARTS) if long else (SHORT_TURN, STEADY_STEPS, STEADY_PARTS)
    growth = Fraction(round(parts * min(2.0, GOLDEN ** (power / turn))), parts)
    first = 1 / (turn * (QUIET_WAIT if quiet else 1) + STEADY_LAG)
    growing = round(log(1 / first) / log(growth))
    chunks = sqrt(bound.seconds / per_chunk) if per_chunk else float("inf")
    busy = 2 * fewer * len(used) if quiet else nics  # NICs that send in a step, on average
    most = min(MOST_LATIN // (2 * busy), MAX_ROUNDS, most_steps(cluster))
    waits = quiet or 2 * fewer == max(map(len, used))
    margin = _part(bound, alpha * STEADY_MARGIN, Fraction(1, 2)) if waits else Fraction(0)
    chunk = _part(bound, per_chunk, MAX_CHUNK)

    def ladder(parts: Sequence[float], growing: int, growth: Fraction, more: float, margin: Fraction) -> Ladder:
        """more : steps than if all were alike"""
        return Ladder(
            SteadyExchange.family,
            lambda segments: SteadyExchange(segments, slow, growing, growth, margin, chunk),
            by_rate=False,
            only=sorted({max(2, round(min(part * chunks + more, most))) for part in parts}),
            between=0 if long else 1,
            both=True,
        )

    grown = ladder(QUIET_STEPS if quiet else numbers, growing, growth, growing - (1 - first) / log(growth), margin)
    forms = [(*first, 0, lag) for first in FEW_FIRST for lag in dict.fromkeys((margin, Fraction(0)))]
    few = [ladder(ALIKE_STEPS, *form) for form in forms] if chunks <= FEW_STEPS else []
    return [grown, *few]


def _part(bound: Bound, seconds: Fraction, most: Fraction) -> Fraction:
    """Of half of the bound, at most `most`, rounded."""
    halves = min(2 * seconds / bound.seconds, most) if bound.seconds else most
    return Fraction(round(halves * STEP_PARTS), STEP_PARTS)


def _rounds(cluster: Cluster, recipe: Timetable, bound: Bound, per_chunk: Fraction) -> int:
    """The number of growing rounds that loses least to first sums and to chunks, by a formula."""
    steps = Fraction(len(cluster.ranks) - 1, min(sum(nic.alive for nic in rank.nics) for rank in cluster.ranks))
    lost: list[Fraction] = []
    while len(lost) < deepest(recipe.growth) and lost[-2:] == sorted(lost[-2:], reverse=True):
        idle = replace(recipe, segments=len(lost) + 1).idle(cluster)
        lost.append(idle * bound.seconds / 2 + 2 * (len(lost) + 2) * steps * per_chunk)
    return 1 + lost.index(min(lost))
