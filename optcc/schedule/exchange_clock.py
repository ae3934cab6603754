"""When transfers of a direct exchange are due: the plan of its two halves, in whole ticks."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

TICKS = 2**40
"""Of a plan's whole time; keys are whole numbers, so that every rank has the same order."""
Ints = NDArray[np.int64]


def swell(rounds: int, most: int) -> list[Fraction]:
    """Sizes 1, 2, 4, ... up to `most` and down again, as parts of 1: little waits for the first and after the last."""
    sizes = [min(most, 2 ** min(i, rounds - 1 - i, 62)) for i in range(rounds)]
    return [Fraction(size, sum(sizes)) for size in sizes]


class Clock:
    """When transfers towards hubs are due, in ticks; `TICKS` less that is when, from the end, those from hubs are.

    shares : each rank's part as a hub; via : slow rank -> the part that it adds last to
    """

    def __init__(self, shares: Sequence[Fraction], via: dict[int, Fraction]) -> None:
        self.ranks = len(shares)
        self.slow = np.isin(np.arange(self.ranks), list(via))
        self.head = sum(via.values(), Fraction(0)) / 2
        # The part of its time in which a slow rank receives what it is the hub of.
        self.own = {r: Fraction(self.ranks - 1) * shares[r] / (1 + (self.ranks - 2) * shares[r]) for r in via}

    def _turn(self, begin: Fraction, end: Fraction, peer: Ints, hub: Ints) -> Ints:
        """begin..end in P-1 steps, in each of which everybody sends to the next but one, two, and so on."""
        low, high = int(begin * TICKS), int(end * TICKS)
        return low + (high - low) * ((hub - peer) % self.ranks - 1) // (self.ranks - 1)

    def by_way(self, begin: Fraction, end: Fraction, peer: Ints, hub: Ints) -> Ints:
        """Raw data, from peers, of the round that covers begin..end of what goes by way of slow ranks."""
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
