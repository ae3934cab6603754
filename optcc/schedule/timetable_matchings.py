"""Steps of a rail on which not all pairs have equally much: matchings that take as long as their least pair needs.

What everybody sends everybody is a matrix whose rows and columns all have the same sum, once those who have less to do
are given the rest to do with themselves. Such a matrix is a sum of permutations (Birkhoff 1946, von Neumann 1953), each
of them a step in which nobody meets another sender. That it may take is seen at once: the one is taken whose least
entry is greatest, as that leaves few steps, then the same for what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

TIES = 2**13
"""Which of equal needs are taken is settled by numbers below this, and where their sums are equal, too, by the solver,
which is scipy's on every rank."""

Matching = tuple[int, ...]
"""By sender, the receiver; itself: it sends nothing."""


@lru_cache(maxsize=64)
def matchings(needs: tuple[tuple[int, ...], ...], least: int) -> tuple[tuple[Matching, int], ...]:
    """(matching, how long it lasts), neighbours as alike as they come. Pure, and the same on every rank.

    needs : (m, m) whole numbers of 0 or more, rows and columns all of the same sum
    least : what would last less is left out
    """
    left = [list(row) for row in needs]
    found: list[tuple[Matching, int]] = []
    while any(map(any, left)):
        levels = sorted({need for row in left for need in row if need})
        low, high, best = 0, len(levels) - 1, _perfect(left, levels[0])
        while low < high:  # the highest level at which there still is one
            middle = (low + high + 1) // 2
            tried = _perfect(left, levels[middle])
            low, high, best = (middle, high, tried) if tried else (low, middle - 1, best)
        assert best is not None, "rows or columns of other sums"
        lasts = min(left[sender][receiver] for sender, receiver in enumerate(best))
        if lasts < least:
            break
        for sender, receiver in enumerate(best):
            left[sender][receiver] -= lasts
        found.append((tuple(best), lasts))
    return tuple(_alike(found))


@lru_cache(maxsize=64)
def factors(needs: tuple[tuple[int, ...], ...]) -> tuple[tuple[Matching, int], ...]:
    """(matching, how long it lasts), in which every pair comes exactly once: as many as ranks less one. Pure.

    Each step is the assignment of the most that is left, so that what is in one step is as alike as can be; it lasts as
    long as its pairs need on average. So every rank has exactly its time in all, and a pair a little more or less.
    """
    from scipy.optimize import linear_sum_assignment  # who only reads or runs plans of other families has no scipy

    count, whole = len(needs), np.array(needs)
    ranks = np.arange(count)
    ties = (ranks[:, None] * 7919 + ranks * 104729) % TIES
    left = ~np.eye(count, dtype=bool)
    found: list[tuple[Matching, int]] = []
    for _ in range(count - 1):
        # Of pairs that need as much those of ranks that have most such pairs left, else these remain for the end.
        alike = (whole[:, :, None] == whole[:, None, :]) & left[:, None, :]
        others = (whole[:, :, None] == whole.T[None, :, :]) & left.T[None, :, :]
        most = alike.sum(2) + others.sum(2)
        _, receivers = linear_sum_assignment(np.where(left, (whole * TIES + most) * TIES + ties, -1.0), maximize=True)
        found.append((tuple(receivers.tolist()), int(whole[ranks, receivers].sum()) // count))
        left[ranks, receivers] = False
    return tuple(found)


def _perfect(needs: Sequence[Sequence[int]], least: int) -> list[int] | None:
    """A perfect matching among entries of `least` or more, greatest first; None where there is none (Kuhn 1955)."""
    count = len(needs)
    wants = [[k for need, k in sorted((-need, k) for k, need in enumerate(row)) if -need >= least] for row in needs]
    sender_of, receiver_of = [-1] * count, [-1] * count

    def placed(sender: int, seen: set[int]) -> bool:
        for receiver in wants[sender]:
            if receiver not in seen:
                seen.add(receiver)
                if sender_of[receiver] < 0 or placed(sender_of[receiver], seen):
                    sender_of[receiver], receiver_of[sender] = sender, receiver
                    return True
        return False

    return receiver_of if all(placed(sender, set()) for sender in range(count)) else None


def _alike(given: Sequence[tuple[Matching, int]]) -> list[tuple[Matching, int]]:
    """The same in an order in which neighbours share many pairs, whose slots then are one."""
    rest, found = list(given[1:]), list(given[:1])
    while rest:
        last = found[-1][0]
        shared = [sum(a == b != i for i, (a, b) in enumerate(zip(last, each, strict=True))) for each, _ in rest]
        found.append(rest.pop(shared.index(max(shared))))
    return found
