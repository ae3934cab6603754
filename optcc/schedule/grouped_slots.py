"""The timetable inside a group: rounds of equal offsets on every rail, the same in all groups at the same time.

In every step the i-th rank sends to the one d further, so that nobody meets another sender. Rails are staggered: at any
time different rails serve different offsets d, so that in (P-1)/rails steps, a *round*, every rank has been served by
every other one. Which part of what two ranks exchange goes by which of their rails is fitted so that every NIC is
equally busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import fsum, sqrt

from optcc.schedule.slots import HALF, TICKS, Slot

FITTED = 200
CLOSE = 1e-9
"""Fitting ends when NICs' times differ by no more than this part, which double precision allows, or after so many
passes: it converges by a constant factor in each."""

Kinds = tuple[int, ...]
"""Places of a rank's live NICs."""
Times = Callable[[int, int], list[Slot]]
"""(sender, receiver) -> its slots in the first half."""


Split = Mapping[tuple[Kinds, Kinds], Mapping[int, float]]
"""By the live NICs of sender and receiver, rail -> part of what they exchange, sum 1."""


def rail_shares(members: Mapping[Kinds, int], shares: Mapping[Kinds, float]) -> Split:
    """The split with which all NICs of a rank are equally busy.

    members : how many ranks have these NICs; shares : the part of the data that each of them is the hub of

    Two ranks exchange the sum of their shares. A rail of m ranks has 1/(m - 1) of each NIC's time for each pair. From
    there each rank's use of each NIC is scaled until all its NICs are equally busy (iterative proportional fitting).
    Only exactly rounded operations in a fixed order, so that every rank has the same result.
    """
    kinds = sorted(members)
    return _fitted(tuple((kind, members[kind], shares[kind]) for kind in kinds))


@lru_cache(maxsize=256)
def _fitted(given: tuple[tuple[Kinds, int, float], ...]) -> Split:
    """Kept: a cluster has one for all timetables that are tried on it, and these are many."""
    members, shares = {kind: count for kind, count, _ in given}, {kind: share for kind, _, share in given}
    kinds = list(members)
    rails = sorted({rail for kind in kinds for rail in kind})
    peers = {rail: sum(members[kind] for kind in kinds if rail in kind) - 1 for rail in rails}
    scale = {(kind, rail): 1.0 for kind in kinds for rail in kind}

    def split(a: Kinds, b: Kinds) -> dict[int, float]:
        common = [rail for rail in a if rail in b]
        parts = [scale[a, rail] * scale[b, rail] / peers[rail] for rail in common]
        total = fsum(parts)
        return {rail: part / total for rail, part in zip(common, parts, strict=True)}

    for _ in range(FITTED):
        found = {(a, b): split(a, b) for a in kinds for b in kinds if a != b or members[a] > 1}
        worst = 0.0
        for a in kinds:
            loads = {rail: 0.0 for rail in a if peers[rail]}
            for b in kinds:
                count = members[b] - (a == b)
                for rail, part in found[a, b].items() if count else ():
                    loads[rail] += count * (shares[a] + shares[b]) * part
            mean = fsum(loads.values()) / max(1, len(loads))
            for rail, load in loads.items() if mean else ():
                worst = max(worst, abs(load / mean - 1))
                scale[a, rail] *= sqrt(mean / load) if load else 1.0
        if worst < CLOSE / 2:
            break
    return found


def by_offsets(shares: Sequence[Fraction], live: Sequence[Kinds], count: int) -> Times:
    """In each step everybody sends to the rank an offset further.

    shares : of each rank as a hub; live : the rails of each rank; count : rounds
    """
    split = rail_shares(Counter(live), {nics: float(x) for nics, x in zip(live, shares, strict=True)})
    counts = dict(enumerate(map(len, live)))
    groups: dict[tuple[int, ...], list[int]] = {}  # the ranks on a rail -> all rails of just these
    for nic in sorted({nic for nics in live for nic in nics}):
        groups.setdefault(tuple(r for r, nics in enumerate(live) if nic in nics), []).append(nic)
    groups = {ranks: nics for ranks, nics in groups.items() if len(ranks) > 1}
    tables = [(nics, len(ranks), full_rounds(nics, len(ranks) - 1, count)) for ranks, nics in groups.items()]
    place = [{r: n for n, r in enumerate(spread_out(ranks, counts))} for ranks in groups]
    made: dict[object, list[Slot]] = {}

    def times(i: int, k: int) -> list[Slot]:
        where = [(g, (at[k] - at[i]) % tables[g][1]) for g, at in enumerate(place) if i in at and k in at]
        key = live[i], live[k], *where
        if key not in made:
            parts = split[live[i], live[k]]
            made[key] = merged([(tables[g][2][d - 1], fsum(parts[nic] for nic in tables[g][0])) for g, d in where])
        return made[key]

    return times


def spread_out(ranks: Sequence[int], nics: Mapping[int, int]) -> list[int]:
    """The ranks, several with fewer NICs than others in such an order that these are as far from each other as can be:
    next to each other they would serve the same ranks one right after the other, on the same NICs. nics : of each"""
    full = max(nics[rank] for rank in ranks)
    kinds = ([rank for rank in ranks if nics[rank] < full], [rank for rank in ranks if nics[rank] == full])
    if len(kinds[0]) < 2:
        return list(ranks)
    places = [(Fraction(2 * n + 1, 2 * len(kind)), rank) for kind in kinds for n, rank in enumerate(kind)]
    return [rank for _, rank in sorted(places, key=lambda place: place[0])]


def full_rounds(nics: Sequence[int], peers: int, count: int) -> list[list[Slot]]:
    """Of each offset 1..peers, in order of time, its slots in `count` rounds, in each of which it has one per rail."""
    found: list[list[Slot]] = [[] for _ in range(peers)]
    ends = [HALF * step // (count * peers) for step in range(count * peers + 1)]
    for step, (begin, end) in enumerate(pairwise(ends)):
        for i, nic in enumerate(nics):
            if end > begin:
                slot = Slot(begin, end - begin, nic, end - begin)
                found[(step + i * peers // len(nics)) % peers].append(slot)
    return found


def merged(given: Sequence[tuple[Sequence[Slot], float]]) -> list[Slot]:
    """All in order of time, weighted so that each of the sequences carries its part of the whole."""
    found: list[Slot] = []
    for mine, part in given:
        whole, total = int(part * TICKS), sum(slot.weight for slot in mine)
        found += (slot._replace(weight=whole * slot.weight // total) for slot in mine)
    return sorted(found)
