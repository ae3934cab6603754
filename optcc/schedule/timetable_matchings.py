"""Steps of a rail on which not all pairs have equally much: matchings that take as long as their least pair needs.

What everybody sends everybody is a matrix whose rows and columns all have the same sum, once those who have less to do
are given the rest to do with themselves. Such a matrix is a sum of permutations (Birkhoff 1946, von Neumann 1953), each
of them a step in which nobody meets another sender. That it may take is seen at once: the one is taken whose least
entry is greatest, as that leaves few steps, then the same for what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

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
