"""Steps in which all NICs send chunks of one length, where several servers lack NICs and none starves.

With n NICs of P ranks, N in all, a rank is the hub of x = (n t - 1)/(P-2) of the data, t = 2 (P-1)/N being the bound in
units of n/rate (as in `optcc.theory.hubs`, proof id attained). Two ranks then have (n_i + n_k - N/(P-1))/(P-2) chunks
for each other, each way, in every step of the plan, so that all NICs are busy all the time. Where these are whole
numbers over all steps every chunk is as long as a step and nobody ever meets another sender; elsewhere chunks are a
little shorter than steps, as few as fit. That counts all NICs of a rank as one: a rail that few ranks have may have too
little to carry, and the others too much.

Steps are found one after the other: on each rail a matching, in which pairs come first that are behind an even course.
A rank sends results as far as all raw data for them has landed, in the step before at the latest, better sooner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.timetable_matchings import TIES

Ints = NDArray[np.int64]
UNIT = 2**20
"""What it weighs to be a chunk behind."""
FRESH = 2 * UNIT
"""So much less weighs what has landed only just before: it is a latency late, and makes others late (measured)."""
SLOW, LEAST = 3 * UNIT // 10, Fraction(1, 2)
"""So much more weigh pairs with a slow rank, which have fewer NICs in common (measured). It is slow as the hub of less
than such a part of what the largest ones are."""
MOST_LATE = 2
"""So many times as many steps as planned are taken at the most until all is sent; what is left then goes before."""
ROUNDING = 1e-9


class Steps(NamedTuple):
    """(sender, receiver) -> (step, rail) of each chunk, in order; how many steps there are; of pairs whose only
    chunk is data and result at once the step from which the result can be sent."""

    chunks: dict[tuple[int, int], list[tuple[int, int]]]
    length: int
    results: dict[tuple[int, int], int]


def hub_shares(nics: Sequence[int]) -> tuple[Fraction, ...] | None:
    """Each rank's part of the data as a hub by its number of NICs, sum 1; None where one is the hub of nothing."""
    ranks, most = len(nics), sum(nics)
    shares = tuple((Fraction(2 * n * (ranks - 1), most) - 1) / (ranks - 2) for n in nics)
    return shares if min(shares) > 0 else None


@lru_cache(maxsize=4096)
def chunks_of(nics: tuple[int, ...], steps: int) -> tuple[dict[int, int], Fraction]:
    """NICs of two ranks together -> the chunks that they have for each other, each way; and how many times as long as
    the bound the steps take, without costs: the least with which all chunks fit into them, whichever rails those have.

    nics : of each rank, in order; steps : `fewest_steps` or more
    """
    ranks, of = len(nics), Counter(nics)
    mean = Fraction(sum(nics), ranks - 1)
    need = {a + b: (a + b - mean) / (ranks - 2) * steps for a in of for b in of if a != b or of[a] > 1}

    def fits(longer: Fraction) -> dict[int, int] | None:
        counts = {both: -(-much // longer) for both, much in need.items()}
        full = all(sum((of[b] - (a == b)) * counts.get(a + b, 0) for b in of) <= a * steps for a in of)
        return counts if full else None

    # Rounding up makes at most one more for each peer: slots that are so much longer have room for all.
    spare = 1 - Fraction(ranks - 1, min(of) * steps)
    fewest = {much: max(1, int(much * spare)) if spare > 0 else 1 for much in need.values()}
    tried = sorted({much / c for much, least in fewest.items() for c in range(least, int(much) + 2)})
    low, high = 0, len(tried) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(tried[middle]) else (middle + 1, high)
    counts = fits(tried[low])
    assert counts is not None, "too few steps"
    return counts, tried[low]


def fewest_steps(nics: Sequence[int]) -> int:
    """With which every rank can send every other one a chunk."""
    return -(-(len(nics) - 1) // min(nics))


@lru_cache(maxsize=8)
def lockstep_steps(live: tuple[tuple[int, ...], ...], steps: int, variant: int) -> Steps:
    """Who sends to whom on which rail in each step. Pure, and the same on every rank.

    live : the rails of each rank; steps : so many, `fewest_steps` or more, and some beyond if what is due has not
    landed; variant : what settles ties
    """
    from scipy.optimize import linear_sum_assignment  # who only reads or runs plans of other families has no scipy

    nics, ids = tuple(map(len, live)), np.arange(len(live))
    found = hub_shares(nics)
    assert found is not None, "some rank is the hub of nothing"
    share, pairs = np.array(list(map(float, found))), np.add.outer(nics, nics)
    counts, _ = chunks_of(tuple(sorted(nics)), steps)
    chunks = np.vectorize(lambda both: counts.get(both, 0), otypes=[np.int64])(pairs)
    np.fill_diagonal(chunks, 0)
    some = np.maximum(chunks, 1)
    size = (share[:, None] + share) / some  # of a chunk, as part of the data
    ties = (ids[:, None] * 7919 + ids * 104729 + variant * 31337 * ids) % TIES
    slow = share < float(LEAST * max(found))
    urgent = SLOW * (slow[:, None] | slow)
    on = {rail: [r for r, mine in enumerate(live) if rail in mine] for rail in {rail for mine in live for rail in mine}}
    rails = sorted(on, key=lambda rail: (-len(on[rail]), rail))
    # A pair's data comes first; a chunk that is both waits for the result. A single one does not: see `Steps`.
    sent = np.zeros_like(chunks)
    landed = [sent, sent]  # by the step before, and by the one before that
    slots: dict[tuple[int, int], list[tuple[int, int]]] = {}
    complete = np.full(len(live), MOST_LATE * steps)
    step = 0
    while (sent < chunks).any() and step < MOST_LATE * steps:
        gathered = []
        for base in landed:
            at = base * size
            np.fill_diagonal(at, 2.0)
            gathered.append(np.minimum(at.min(0), share))
        complete = np.where(gathered[0] >= share - ROUNDING, np.minimum(complete, step), complete)
        ready, sure = (np.floor((share + part[:, None]) / size + ROUNDING).astype(np.int64) for part in gathered)
        ready, sure = (np.where(chunks == 1, 1, np.minimum(each, chunks)) for each in (ready, sure))
        due = chunks * (UNIT * min(step + 1, steps)) // steps + urgent
        for rail in rails:
            rows = on[rail]
            worth = due - sent * UNIT - FRESH * (sent >= sure)
            worth = np.where(sent < ready, worth * TIES + ties, -(2**52))
            np.fill_diagonal(worth, -(2**52))
            for a, z in zip(*linear_sum_assignment(worth[np.ix_(rows, rows)], maximize=True), strict=True):
                i, k = rows[a], rows[z]
                if i != k and sent[i, k] < ready[i, k]:
                    sent[i, k] += 1
                    slots.setdefault((i, k), []).append((step, rail))
        landed = [sent.copy(), landed[0]]
        step += 1
    single = {pair: int(complete[pair[0]]) for pair in slots if chunks[pair] == 1}
    return Steps(slots, step, {pair: min(when, step - 1) for pair, when in single.items()})
