"""The rounds of a direct exchange: who is the hub of which bytes in each, who adds last, and when all that is due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from optcc.schedule.assemble import granule
from optcc.schedule.exchange_clock import TICKS, Clock, Ints, swell


class Round(NamedTuple):
    """One section for each of some hubs, int64 (hubs,).

    hub, via : ranks; via is -1 where no slow rank adds last; start, stop : the section's bytes
    raw, partial : ticks at which raw data, and sums for the slow rank, are due: (hubs, P-1) by offset, and (hubs,)
    result, final : the same for results, and for the finished sums that the slow rank sends
    narrow : every transfer takes one NIC
    """

    number: int
    narrow: bool
    hub: Ints
    via: Ints
    start: Ints
    stop: Ints
    raw: Ints
    partial: Ints
    result: Ints
    final: Ints


def _turns(parts: dict[int, Fraction], count: int) -> list[int]:
    """Slow ranks in turn, each as often as its part says."""
    given, turns = dict.fromkeys(parts, 0), []
    for _ in range(count):
        turn = max(parts, key=lambda r: (parts[r] / (given[r] + 1), -r))
        given[turn] += 1
        turns.append(turn)
    return turns


def _laid_out(nbytes: int, sizes: Sequence[Fraction]) -> list[int]:
    """Positions that cut the buffer in parts of these sizes, of sum 1."""
    ends = list(accumulate(sizes, initial=Fraction(0)))
    return [nbytes if end == 1 else granule(end * nbytes, nbytes) for end in ends]


def rounds(
    nbytes: int,
    shares: Sequence[Fraction],
    via: dict[int, Fraction],
    *,
    ways: int,
    segments: int,
    most: int,
    own: int,
    narrow: int,
) -> list[Round]:
    """All rounds of `Exchange`, those without bytes left out; rounds by way of slow ranks come first.

    A hub's bytes lie together, and one round by way of slow ranks lies between the first and the last of the others.
    """
    ranks, clock, by_way = len(shares), Clock(shares, via), sum(via.values(), Fraction(0))
    full = [r for r in range(ranks) if shares[r] and r not in via]
    plans: list[tuple[list[int], Fraction, Fraction, Fraction, Callable[..., Ints]]] = []
    steps = list(pairwise(accumulate(swell(ways, most), initial=Fraction(0)))) if by_way else []
    plans += [(full, by_way, begin, end, clock.by_way) for begin, end in steps]
    first = len(plans)
    steps = list(pairwise(accumulate(swell(segments, most), initial=Fraction(0))))
    plans += [(full, 1 - by_way, begin, end, clock.plain) for begin, end in steps]
    after = [0, len(plans) - 1] if first == 1 and segments > 1 else [0]
    order = [first, *after, *(j for j in range(len(plans)) if j not in (first, *after))] if first else range(len(plans))
    for r in (r for r in via if shares[r]):
        plans += [([r], Fraction(1), Fraction(j, own), Fraction(j + 1, own), clock.owned) for j in range(own)]
    pieces = [(j, h) for h in full for j in order]
    pieces += [(j, plan[0][0]) for j, plan in enumerate(plans) if j >= first + segments]
    cuts = _laid_out(nbytes, [(plans[j][3] - plans[j][2]) * plans[j][1] * shares[h] for j, h in pieces])
    where = dict(zip(pieces, pairwise(cuts), strict=True))

    turns = iter(_turns(via, len(full) * first) if first else [])
    found, offsets = list[Round](), np.arange(1, ranks)
    for j, (hubs, _, begin, end, due) in enumerate(plans):
        hub, slow = np.array(hubs), np.array([next(turns) if j < first else -1 for _ in hubs])
        start, stop = (np.array(ends) for ends in zip(*(where[j, h] for h in hubs), strict=True))
        h, mirrored = hub[:, None], (1 - end, 1 - begin)
        # Seen from the end, results come from peers as raw data goes to hubs.
        raw, result = due(begin, end, (h - offsets) % ranks, h), TICKS - due(*mirrored, (h + offsets) % ranks, h)
        partial, final = clock.partial(begin, end, hub, slow), TICKS - clock.partial(*mirrored, hub, slow)
        kept = stop > start
        if kept.any():
            columns = (hub, slow, start, stop, raw, partial, result, final)
            one_nic = j < first and (j < narrow or j >= first - narrow)
            found.append(Round(len(found), one_nic, *(column[kept] for column in columns)))
    return found
