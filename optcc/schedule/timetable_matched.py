"""The slots of a timetable whose steps are matchings, each rail's by what its ranks have for each other.

Rails that join the same ranks have the same steps. Either each takes them all in a round, one rail after the other, so
that a pair has a slot on every rail; or they share them (*sparse*), so that it has one in all, as much longer, and a
round is as many times fewer chunks. A rail with others beside it has less to do in a round then than one without, which
takes fewer, longer rounds for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import fsum

from optcc.schedule.timetable_matchings import factors, matchings
from optcc.schedule.timetable_slots import Slot, Steps, in_turns, portions
from optcc.schedule.timetable_split import Kinds

WHOLE = 2**24
"""Of a round's length; MOST_MATCHED: into how many steps as short as can be it may be cut."""
MOST_MATCHED = 2**16


def matched_slots(
    shares: Sequence[Fraction],
    live: Sequence[Kinds],
    rails: Mapping[tuple[Kinds, Kinds], Mapping[int, float]],
    *,
    segments: int,
    matched: int,
    sparse: bool,
) -> Callable[[int, int], list[Slot]]:
    """The slots of each pair.

    shares : of each rank as a hub; live : the rails of each rank; rails : of two kinds of ranks, each rail's part of
    what a pair has; the rest as in `Timetable`
    """
    order = sorted(range(len(live)), key=lambda r: (shares[r], r))  # the same steps wherever the slow ranks are
    ranks_on: dict[int, tuple[int, ...]] = {
        nic: tuple(r for r in order if nic in live[r]) for nic in sorted({nic for nics in live for nic in nics})
    }
    alike: dict[tuple[int, ...], list[int]] = {}
    for nic, on in ranks_on.items():
        if len(on) > 1:
            alike.setdefault(on, []).append(nic)
    alike = dict(sorted(alike.items(), key=lambda each: len(each[0])))  # whichever rail it is that ranks have lost
    x = list(map(float, shares))
    needs = {
        on: [[(x[i] + x[k]) * rails[live[i], live[k]][nics[0]] if i != k else 0.0 for k in on] for i in on]
        for on, nics in alike.items()
    }
    busiest = max(fsum(row) for rows in needs.values() for row in rows)
    fewest = min((len(on) - 1) / len(nics) for on, nics in alike.items())
    found: dict[tuple[int, int], list[Slot]] = {}
    before = 0  # rails so far
    for on, nics in alike.items():
        needed = _whole(needs[on], busiest)
        steps = factors(needed) if matched == 1 else matchings(needed, WHOLE // matched)
        lasts = _lasts(steps, len(on))
        rounds = max(1, round(segments * fewest * len(nics) / (len(on) - 1))) if sparse else segments
        for turn, own in enumerate(portions(steps, len(nics)) if sparse else [steps] * len(nics)):
            ahead = Fraction(before if sparse else before + turn, len(ranks_on))
            for (i, k), mine in in_turns(own, rounds, ahead).items():
                found.setdefault((on[i], on[k]), []).extend(
                    Slot(begin, size, nics[turn], size * needed[i][k] // lasts[i][k]) for begin, size in mine
                )
        before += len(nics)

    def times(i: int, k: int) -> list[Slot]:
        # Who has next to nothing for another has no step: the first rail that they share, at the beginning.
        return sorted(found.get((i, k), ())) or [Slot(0, 1, min({*live[i]} & {*live[k]}), 1)]

    return times


def _whole(needs: Sequence[Sequence[float]], busiest: float) -> tuple[tuple[int, ...], ...]:
    """Of `WHOLE`, what each has for each; with itself the rest."""
    whole = [[round(need / busiest * WHOLE) for need in row] for row in needs]
    for i, row in enumerate(whole):
        row[i] = WHOLE - sum(row)
    return tuple(map(tuple, whole))


def _lasts(steps: Steps, ranks: int) -> list[list[int]]:
    """How long each has for each in all steps."""
    lasts = [[0] * ranks for _ in range(ranks)]
    for receivers, time in steps:
        for i, k in enumerate(receivers):
            lasts[i][k] += time
    return lasts
