"""The slots of every pair of ranks: equal offsets on rails that join the same ranks, or matchings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import fsum

from optcc.schedule.timetable_matched import matched_slots
from optcc.schedule.timetable_slots import Slot, merged
from optcc.schedule.timetable_split import Kinds, Split, rail_shares

Times = Callable[[int, int], list[Slot]]
"""(sender, receiver) -> its slots in the first half."""


def by_offsets(
    shares: Sequence[Fraction], live: Sequence[Kinds], slots: Callable[[Sequence[int], int], list[list[Slot]]]
) -> Times:
    """In each step everybody sends to the rank an offset further.

    shares : of each rank as a hub; live : the rails of each rank; slots : (rails that join the same ranks, how many
    others a rank meets there) -> of each offset its slots
    """
    split, counts = _split(shares, live), dict(enumerate(map(len, live)))
    groups: dict[tuple[int, ...], list[int]] = {}  # the ranks on a rail -> all rails of just these
    for nic in sorted({nic for nics in live for nic in nics}):
        groups.setdefault(tuple(r for r, nics in enumerate(live) if nic in nics), []).append(nic)
    groups = {ranks: nics for ranks, nics in groups.items() if len(ranks) > 1}
    tables = [(nics, len(ranks), slots(nics, len(ranks) - 1)) for ranks, nics in groups.items()]
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


def by_matchings(
    shares: Sequence[Fraction], live: Sequence[Kinds], *, segments: int, matched: int, sparse: bool
) -> Times:
    """Steps are matchings of those who have something left. See `Timetable`."""
    return matched_slots(shares, live, _split(shares, live), segments=segments, matched=matched, sparse=sparse)


def _split(shares: Sequence[Fraction], live: Sequence[Kinds]) -> Split:
    return rail_shares(Counter(live), {nics: float(x) for nics, x in zip(live, shares, strict=True)})
