"""Rounds, where no server starves: in each round, on each rail, every server has a turn with every other.

All NICs are busy for the whole of the bound, so no time may be lost. Let a rank have n NICs, P ranks N in all. It is
the hub of x = (n t - 1)/(P-2) of the data, where t = 2 (P-1)/N is the bound in units of n/rate (as in
`optcc.theory.packing`, proof id attained). Two ranks i and k have x_i + x_k for each other, each way. On one rail, the
data of all pairs is a matrix of equal row and column sums. Such a matrix is a sum of permutations (Birkhoff 1946, von
Neumann 1953). Each is a step without two senders for one receiver, as long as its smallest pair needs. So all NICs are
busy in every step, and chunks fill their steps. With nothing or one NIC dead the steps are those of a round robin.

The steps recur in every round. A pair's data comes first, then its results. Rank i begins with results for k when the
part x_k/(x_i + x_k) of the time has gone. By then a hub must have had a turn with everybody. So a plan needs
1 + max x/min x rounds (`rounds_needed`); more rounds are more chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, permutations
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from optcc.schedule.assemble import cuts_by
from optcc.schedule.direct_rows import Ints, Kind, SectionPart, cut
from optcc.schedule.nics import common_rails, live_nics, of_one_pace
from optcc.schedule.slots import HALF, TICKS, Slot
from optcc.schedule.steps import MAX_CHUNKS, Timed, Used, rows_of
from optcc.values.cluster import Cluster

if TYPE_CHECKING:
    from optcc.schedule.direct import DirectExchange

WHOLE = 2**24
"""Units of a round's length."""
SHORTEST = WHOLE // 1024
"""Steps that would be shorter are left out; their data goes in the pairs' other steps."""
MAX_FITTINGS, CLOSE = 200, 1e-9
"""Steps and tolerance of the fitting: NICs are equally busy up to the second number, for which the first suffices."""

Rails = tuple[int, ...]
Steps = list[tuple[Ints, int]]
"""(By sender its receiver, itself if it sends nothing; length), in order."""


class NoneStarves:
    """`segments` rounds. Rails that join the same ranks share the steps of a round: each is on one."""

    name = "none-starves"

    def applies(self, cluster: Cluster) -> bool:
        """NICs of one pace, no starving server, and any two servers with a rail in common."""
        if not of_one_pace(cluster):
            return False
        used = self.used(cluster)
        return hub_shares(list(map(len, used))) is not None and common_rails([tuple(mine) for mine in used])

    def used(self, cluster: Cluster) -> Used:
        """Those of `live_nics`. On one fabric, where any NIC reaches any, ranks lack different rails as far as
        possible, so that all rails are equally loaded; or the last ones, if two ranks would have none in common."""
        live = live_nics(cluster)
        if cluster.fabric.rails:
            return live
        rails, lacking, found = max(map(len, live)), 0, []
        for mine in live:
            lacks = {(lacking + n) % rails for n in range(rails - len(mine))}
            lacking += len(lacks)
            found.append(dict(zip((rail for rail in range(rails) if rail not in lacks), mine.values(), strict=True)))
        fits = common_rails([tuple(mine) for mine in found])
        return found if fits else [dict(enumerate(mine.values())) for mine in live]

    def shares(self, cluster: Cluster) -> Sequence[Fraction]:
        """Those of `hub_shares`."""
        found = hub_shares(list(map(len, self.used(cluster))))
        assert found is not None, "some rank is the hub of nothing"
        return found

    def most_steps(self, cluster: Cluster) -> int:
        """By memory: in a round every rank sends every other rank a chunk, or a few."""
        ranks = len(cluster.ranks)
        return max(1, MAX_CHUNKS // (2 * ranks * (ranks - 1)))

    def timed(self, recipe: DirectExchange, cluster: Cluster, nbytes: int) -> Timed:
        """The bytes of two ranks for each other, data first, follow their slots."""
        used = self.used(cluster)
        # Alike ranks side by side, so that slots do not depend on which ranks have lost NICs.
        order = sorted(range(len(used)), key=lambda rank: (len(used[rank]), [*used[rank]], rank))
        slots = slots_of(tuple(tuple(used[rank]) for rank in order), recipe.segments)
        cost = recipe.chunk * HALF
        section = list(pairwise(cuts_by(0, nbytes, self.shares(cluster)).tolist()))
        found: list[tuple[int, ...]] = []
        for a, z in permutations(range(len(order)), 2):
            i, k = order[a], order[z]
            own = SectionPart(Kind.RAW, k, *section[k]), SectionPart(Kind.RESULT, i, *section[i])
            # A pair with next to no data has no step: it uses its first common rail.
            mine = slots.get((a, z)) or [Slot(TICKS // 2, 1, min({*used[i]} & {*used[k]}), 1)]
            found += ((i, k, *part) for part in cut(own, worthwhile(mine, ceil(cost)), cost=cost))
        return Timed(rows_of(found), {}, None)

    def growing(self, recipe: DirectExchange) -> int:
        """None."""
        return 0

    def told(self, recipe: DirectExchange, cluster: Cluster) -> list[tuple[str, str]]:
        """The number of rounds."""
        return [("rounds", f"{recipe.segments}; one NIC for each transfer")]


def hub_shares(nics: Sequence[int]) -> tuple[Fraction, ...] | None:
    """Each rank's part of the data as a hub by its number of NICs, sum 1; None where one is the hub of nothing."""
    ranks, every = len(nics), sum(nics)
    shares = tuple((Fraction(2 * n * (ranks - 1), every) - 1) / (ranks - 2) for n in nics)
    return shares if min(shares) > 0 else None


def worthwhile(slots: list[Slot], cost: int) -> list[Slot]:
    """The slots of a pair that last at least as long as a chunk costs, in ticks; the two longest, one each for data and
    results, if these are fewer."""
    least = min(cost, sorted(slot.size for slot in slots)[-2:][0])
    return [slot for slot in slots if slot.size >= least]


def rounds_needed(shares: Sequence[Fraction]) -> Fraction:
    """Rounds of which one is over before any result is due. shares : of `hub_shares`"""
    return 1 + max(shares) / min(shares)


def joined_by(live: Sequence[Rails]) -> dict[tuple[int, ...], list[int]]:
    """Two or more ranks -> the rails that these and no others are on. live : the rails of each rank"""
    found: dict[tuple[int, ...], list[int]] = {}
    for rail in sorted({rail for mine in live for rail in mine}):
        found.setdefault(tuple(r for r, mine in enumerate(live) if rail in mine), []).append(rail)
    return {ranks: rails for ranks, rails in found.items() if len(ranks) > 1}


@lru_cache(maxsize=8)
def slots_of(live: tuple[Rails, ...], rounds: int) -> dict[tuple[int, int], list[Slot]]:
    """(sender, receiver) -> its slots, in time. Pure, and the same on every rank.

    live : the rails of each rank; rounds : of the rails that most join the same ranks; others have about as many
    chunks
    """
    joined, parts = joined_by(live), rail_parts(live)
    chunks = rounds * min(Fraction(len(ranks) - 1, len(rails)) for ranks, rails in joined.items())  # of a NIC
    alike, before = Counter(map(len, joined)), Counter[int]()
    found: dict[tuple[int, int], list[Slot]] = {}
    for ranks, rails in joined.items():
        needs = parts[rails[0]][np.ix_(ranks, ranks)]
        steps, own = steps_of(needs), ceil(chunks * len(rails) / (len(ranks) - 1))
        lasts = np.zeros_like(needs)
        for receivers, last in steps:
            lasts[np.arange(len(ranks)), receivers] += last
        # Rails of other ranks, as many, are at other steps: no pair has all its turns at once.
        ahead = Fraction(before[len(ranks)], alike[len(ranks)])
        before[len(ranks)] += 1
        for turn, rail in enumerate(rails):
            for a, z, begin, size in _in_rounds(_portion(steps, turn, len(rails)), own, ahead):
                weight = size * int(needs[a, z]) // int(lasts[a, z])
                found.setdefault((ranks[a], ranks[z]), []).append(Slot(begin, size, rail, weight))
    return {pair: sorted(mine) for pair, mine in found.items()}


def _in_rounds(steps: Steps, rounds: int, ahead: Fraction) -> list[tuple[int, int, int, int]]:
    """(sender, receiver, begin, size) in ticks, for steps that recur in each round. ahead : part of a round by which
    the first one is"""
    first, length, now = round(ahead * len(steps)), rounds * sum(last for _, last in steps), 0
    found: list[tuple[int, int, int, int]] = []
    for _ in range(rounds):
        latest: dict[tuple[int, int], int] = {}  # of this round: pair -> the place of its last slot
        for receivers, last in steps[first:] + steps[:first]:
            begin, now = TICKS * now // length, now + last
            end = TICKS * now // length
            for pair in enumerate(receivers.tolist()):
                place = latest.get(pair, len(found))
                if place < len(found) and sum(found[place][2:]) == begin:  # one chunk through alike steps
                    found[place] = *pair, found[place][2], end - found[place][2]
                elif pair[0] != pair[1]:
                    latest[pair] = len(found)
                    found.append((*pair, begin, end - begin))
    return found


def _portion(steps: Steps, turn: int, count: int) -> Steps:
    """The `turn`-th of `count` portions of the steps, all equally long; some steps are cut in two."""
    every = sum(last for _, last in steps)
    begin, end, now = every * turn // count, every * (turn + 1) // count, 0
    found: Steps = []
    for receivers, last in steps:
        part = min(end, now + last) - max(begin, now)
        if part > 0:
            found.append((receivers, part))
        now += last
    return found


@lru_cache(maxsize=64)
def rail_parts(live: tuple[Rails, ...]) -> dict[int, Ints]:
    """Rail -> the part of a round that each pair needs on it, (ranks, ranks), in units of which `WHOLE` is the round.
    The diagonal is what remains of the rank's time.

    A rail of m ranks has 1/(m - 1) of each NIC's time for each pair. From there each NIC's use is scaled until all NICs
    of a rank are equally busy (iterative proportional fitting). Sums go along an axis that is not the last one: numpy
    adds these in a fixed order, so that every rank has the same result.
    """
    shares = hub_shares(list(map(len, live)))
    assert shares is not None, "some rank is the hub of nothing"
    rails = sorted({rail for mine in live for rail in mine})
    on = np.array([[rail in mine for mine in live] for rail in rails])
    parts = (on[:, :, None] & on[:, None, :]) / np.maximum(on.sum(1) - 1, 1)[:, None, None]
    needs = np.add.outer(*[np.array(list(map(float, shares)))] * 2)
    for rail in parts:
        np.fill_diagonal(rail, 0.0)
    np.fill_diagonal(needs, 0.0)
    for _ in range(MAX_FITTINGS):
        total = parts.sum(0)
        parts *= np.divide(needs, total, out=np.zeros_like(needs), where=total > 0)
        loads = parts.sum(1)  # of each NIC, (rails, ranks): pairs need as much both ways
        mean = loads.sum(0) / np.maximum((loads > 0).sum(0), 1)
        off = np.divide(mean, loads, out=np.ones_like(loads), where=loads > 0)
        if np.abs(off - 1).max() < CLOSE:
            break
        parts *= np.sqrt(off)[:, :, None] * np.sqrt(off)[:, None, :]
    found = {}
    for rail, part in zip(rails, parts, strict=True):
        busiest = part.sum(0).max()
        found[rail] = (part * (WHOLE / busiest if busiest else 0.0)).astype(np.int64)
        np.fill_diagonal(found[rail], WHOLE - found[rail].sum(1))
    return found


def steps_of(parts: Ints) -> Steps:
    """Permutations whose sum, each times its length, is `parts`, except for less than `SHORTEST` in each entry. The
    permutation whose least entry is greatest comes first, which leaves few. Neighbours in the list are as alike as
    possible.

    parts : (ranks, ranks), all row and column sums equal
    """
    from optcc.schedule.compiled import assigned  # with numba, which other families' plans do without

    left, senders = parts.copy(), np.arange(len(parts))

    def matching(least: int) -> Ints:
        """The greatest one that uses as few entries below `least` as it can."""
        receivers: Ints = assigned(np.where(left >= least, left, -WHOLE * len(left)))
        return receivers

    found: Steps = []
    while left.any():
        levels = np.unique(left[left > 0])
        low, high = 0, len(levels) - 1
        while low < high:  # the highest level at which there still is one
            middle = (low + high + 1) // 2
            enough = (left[senders, matching(int(levels[middle]))] >= levels[middle]).all()
            low, high = (middle, high) if enough else (low, middle - 1)
        best = matching(int(levels[low]))
        last = int(left[senders, best].min())
        if last < SHORTEST and found:
            break
        left[senders, best] -= last
        found.append((best, last))
    alike = [found.pop(0)]
    while found:
        shared = [int((alike[-1][0] == receivers).sum()) for receivers, _ in found]
        alike.append(found.pop(shared.index(max(shared))))
    return alike
