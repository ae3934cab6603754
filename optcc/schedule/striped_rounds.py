"""The rounds of a direct exchange between servers: hubs and their bytes, ranks that add last, and due times. Times are
whole ticks of the plan's two halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.assemble import granule

TICKS = 2**40
"""Of a plan's whole time; keys are whole numbers, so that every rank has the same order."""
Ints = NDArray[np.int64]


class DueTimes:
    """Due times, in ticks, of transfers towards hubs; `TICKS` minus this is the due time of transfers from hubs.

    shares : each rank's part as a hub; via : slow rank -> the part that it adds last to
    """

    def __init__(self, shares: Sequence[Fraction], via: dict[int, Fraction]) -> None:
        self.ranks = len(shares)
        self.slow = np.isin(np.arange(self.ranks), list(via))
        self.head = sum(via.values(), Fraction(0)) / 2
        # The part of a slow rank's time in which it receives its share as a hub.
        self.own = {r: Fraction(self.ranks - 1) * shares[r] / (1 + (self.ranks - 2) * shares[r]) for r in via}

    def _turn(self, begin: Fraction, end: Fraction, peer: Ints, hub: Ints) -> Ints:
        """begin..end in P-1 steps: everybody sends to the next rank, then to the next but one, and so on."""
        low, high = int(begin * TICKS), int(end * TICKS)
        return low + (high - low) * ((hub - peer) % self.ranks - 1) // (self.ranks - 1)

    def by_way(self, begin: Fraction, end: Fraction, peer: Ints, hub: Ints) -> Ints:
        """Due times of raw data from peers in the round by way of slow ranks that covers begin..end."""
        return self._turn(self.head * begin, self.head * end, peer, hub)

    def plain(self, begin: Fraction, end: Fraction, peer: Ints, hub: Ints) -> Ints:
        """Raw data for full ranks as hubs. A slow sender has nothing else to send in the first half."""
        rest = Fraction(1, 2) - self.head
        full = self._turn(self.head + rest * begin, self.head + rest * end, peer, hub)
        return np.where(self.slow[peer], self._turn(begin / 2, end / 2, peer, hub), full)

    def owned(self, begin: Fraction, end: Fraction, peer: Ints, hub: Ints) -> Ints:
        """Raw data for a slow rank as a hub."""
        own = self.own[int(hub.flat[0])]
        return self._turn(own * begin, own * end, peer, hub)

    def partial(self, begin: Fraction, end: Fraction, hub: Ints, slow: Ints) -> Ints:
        """Sums from hubs for slow ranks."""
        due = np.zeros(len(hub), np.int64)
        for r, own in self.own.items():
            rest = max(Fraction(0), Fraction(1, 2) - own)
            due = np.where(slow == r, self._turn(own + rest * begin, own + rest * end, hub, slow), due)
        return due


class HubRound(NamedTuple):
    """One section for each of some hubs, int64 (hubs,).

    hub, via : ranks; via is -1 where no slow rank adds last; start, stop : the section's bytes
    raw, partial : ticks at which raw data, and sums for the slow rank, are due: (hubs, P-1) by offset, and (hubs,)
    result, final : the same for results, and for the finished sums that the slow rank sends
    """

    number: int
    hub: Ints
    via: Ints
    start: Ints
    stop: Ints
    raw: Ints
    partial: Ints
    result: Ints
    final: Ints


def _turns(parts: dict[int, Fraction], count: int) -> list[int]:
    """Slow ranks in turn, each as often as its part requires."""
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


def sizes(ways: int, slow: int) -> list[Fraction]:
    """Sizes of the rounds by way of slow ranks, as parts of 1: 1, 2, 4, ... and down again, so that little waits for
    the first round and after the last. With several slow ranks all are equal, as each would wait for the others'
    largest rounds."""
    found = [2 ** min(i, ways - 1 - i, 62) if slow == 1 else 1 for i in range(ways)]
    return [Fraction(size, sum(found)) for size in found]


def rounds(
    nbytes: int, shares: Sequence[Fraction], via: dict[int, Fraction], segments: int, ways: int
) -> list[HubRound]:
    """All rounds of `StripedExchange` that have bytes. There are `ways` rounds by way of slow ranks and `segments` of
    the other data of full ranks. Each slow rank has one for its share as a hub.

    A hub's bytes lie together, and one round by way of slow ranks lies between the first and the last of the others.
    """
    ranks, clock, by_way = len(shares), DueTimes(shares, via), sum(via.values(), Fraction(0))
    full = [r for r in range(ranks) if shares[r] and r not in via]
    none, whole = Fraction(0), Fraction(1)
    plans: list[tuple[list[int], Fraction, Fraction, Fraction, Callable[..., Ints]]] = []
    steps = list(pairwise(accumulate(sizes(ways, len(via)), initial=none))) if by_way else []
    plans += [(full, by_way, begin, end, clock.by_way) for begin, end in steps]
    first = len(plans)
    steps = list(pairwise(Fraction(step, segments) for step in range(segments + 1)))
    plans += [(full, 1 - by_way, begin, end, clock.plain) for begin, end in steps]
    after = [0, len(plans) - 1] if first == 1 and segments > 1 else [0]
    order = [first, *after, *(j for j in range(len(plans)) if j not in (first, *after))] if first else range(len(plans))
    plans += [([r], whole, none, whole, clock.owned) for r in via if shares[r]]
    pieces = [(j, h) for h in full for j in order]
    pieces += [(j, plan[0][0]) for j, plan in enumerate(plans) if j >= first + segments]
    cuts = _laid_out(nbytes, [(plans[j][3] - plans[j][2]) * plans[j][1] * shares[h] for j, h in pieces])
    where = dict(zip(pieces, pairwise(cuts), strict=True))

    turns = iter(_turns(via, len(full) * first) if first else [])
    found, offsets = list[HubRound](), np.arange(1, ranks)
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
            found.append(HubRound(len(found), *(column[kept] for column in columns)))
    return found
