"""Rounds, where no server starves: in each round, every pair is served until its data is sent.

On one rail, the data of all pairs is a matrix of equal row and column sums, as all NICs are equally busy. Such a matrix
is a sum of permutations (Birkhoff 1946, von Neumann 1953). Each is a step without two senders for one receiver, as long
as its smallest pair needs. So no time is lost, whatever the lengths of chunks; a wait is as long as a step, and steps
are few.

In the first half pairs send data; the second half is its mirror image in time, with results. A rank with more data than
results for another continues with data in the second half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, permutations
from math import fsum, sqrt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.assemble import cuts_by
from optcc.schedule.direct_rows import Ints, Kind, SectionPart, cut
from optcc.schedule.nics import common_rails, live_nics, of_one_pace
from optcc.schedule.slots import HALF, Slot, in_time, mirrored, whole
from optcc.schedule.steps import MOST_CHUNKS, Timed, Used, rows_of
from optcc.schedule.steps_even import Even, hub_shares
from optcc.values.cluster import Cluster

if TYPE_CHECKING:
    from optcc.schedule.direct import DirectExchange

WHOLE = 2**24
"""Units of a round's length."""
SHORTEST = WHOLE // 1024
"""Steps that would be shorter are left out; their data goes in the pairs' other steps."""
FITTINGS, CLOSE = 200, 1e-9
"""Steps and tolerance of the fitting: rails are equally busy up to the second number, for which the first suffices."""

Rails = tuple[int, ...]
Steps = list[tuple[Ints, int]]
"""(By sender its receiver, itself if it sends nothing; length), in order."""


class EvenRounds(Even):
    """`segments` rounds in each half. Rails that join the same ranks share the steps of a round: each is on one."""

    name = "rounds"

    def applies(self, cluster: Cluster) -> bool:
        """NICs of one pace, no starving server, and any two servers with a rail in common."""
        if not of_one_pace(cluster):
            return False
        used = self.used(cluster)
        return hub_shares(list(map(len, used))) is not None and common_rails([tuple(mine) for mine in used])

    def used(self, cluster: Cluster) -> Used:
        """Those of `live_nics`. On one fabric, where any NIC reaches any, ranks lack different rails as far as
        possible, so that all rails are equally loaded."""
        live = live_nics(cluster)
        if cluster.fabric.rails:
            return live
        rails, lacking, found = max(map(len, live)), 0, []
        for mine in live:
            lacks = {(lacking + n) % rails for n in range(rails - len(mine))}
            lacking += len(lacks)
            found.append(dict(zip((rail for rail in range(rails) if rail not in lacks), mine.values(), strict=True)))
        return found

    def most_steps(self, cluster: Cluster) -> int:
        """By memory: in a round every rank sends every other rank a chunk, or a few."""
        ranks = len(cluster.ranks)
        return max(1, MOST_CHUNKS // (4 * ranks * (ranks - 1)))

    def timed(self, recipe: DirectExchange, cluster: Cluster, nbytes: int) -> Timed:
        """The bytes of two ranks for each other, data first, follow their slots of the whole plan."""
        used = self.used(cluster)
        order = sorted(range(len(used)), key=lambda rank: (len(used[rank]), [*used[rank]], rank))
        slots = half_of(tuple(tuple(used[rank]) for rank in order), recipe.segments)
        section = list(pairwise(cuts_by(0, nbytes, self.shares(cluster)).tolist()))
        found: list[tuple[int, ...]] = []
        for a, z in permutations(range(len(order)), 2):
            i, k = order[a], order[z]
            own = SectionPart(Kind.RAW, k, *section[k]), SectionPart(Kind.RESULT, i, *section[i])
            # A pair with next to no data has no step: it uses its first common rail, at the beginning.
            none = [Slot(0, 1, min({*used[i]} & {*used[k]}), 1)]
            first, back = slots.get((a, z)) or none, slots.get((z, a)) or none
            both = whole(first, in_time(mirrored(back), used[k]))
            found += ((i, k, *part) for part in cut(own, both))
        return Timed(rows_of(found), {}, None)

    def told(self, recipe: DirectExchange, cluster: Cluster) -> list[tuple[str, str]]:
        """The number of rounds."""
        return [("rounds", f"{recipe.segments} in each half; one NIC for each transfer")]


@lru_cache(maxsize=8)
def half_of(live: tuple[Rails, ...], rounds: int) -> dict[tuple[int, int], list[Slot]]:
    """(sender, receiver) -> its slots in the first half. Pure, and the same on every rank.

    live : the rails of each rank, alike ranks side by side
    """
    joined: dict[Rails, list[int]] = {}  # the ranks on a rail -> all rails of just these
    for rail in sorted({rail for mine in live for rail in mine}):
        joined.setdefault(tuple(r for r, mine in enumerate(live) if rail in mine), []).append(rail)
    joined = {on: rails for on, rails in sorted(joined.items(), key=lambda one: len(one[0])) if len(on) > 1}
    fewest = min(Fraction(len(on) - 1, len(rails)) for on, rails in joined.items())
    found: dict[tuple[int, int], list[Slot]] = {}
    before = 0
    for on, rails in joined.items():
        steps, needs, lasts = steps_of(live, on, rails[0])
        # Where few rails join the same ranks there are fewer rounds, so that all rails have about as many chunks.
        own_rounds = max(1, round(rounds * fewest * len(rails) / (len(on) - 1)))
        ahead = Fraction(before, len({rail for mine in live for rail in mine}))
        for turn, rail in enumerate(rails):
            for (a, z), mine in _in_turns(_portion(steps, turn, len(rails)), own_rounds, ahead).items():
                need, last = int(needs[a, z]), int(lasts[a, z])
                slots = [Slot(begin, size, rail, size * need // last) for begin, size in mine]
                found.setdefault((on[a], on[z]), []).extend(slots)
        before += len(rails)
    return {pair: sorted(mine) for pair, mine in found.items()}


def steps_of(live: Sequence[Rails], on: Rails, rail: int) -> tuple[Steps, Ints, Ints]:
    """The steps of a rail; and for every two of its ranks the time needed and the time available, (ranks, ranks), in
    units of which `WHOLE` is the round."""
    shares = hub_shares(list(map(len, live)))
    assert shares is not None, "some rank is the hub of nothing"
    split = rail_shares(tuple(sorted((kind, many) for kind, many in Counter(live).items())))
    needs = [[float(shares[i] + shares[k]) * split[live[i], live[k]][rail] if i != k else 0.0 for k in on] for i in on]
    busiest = max(map(fsum, needs))
    parts = np.array([[int(need / busiest * WHOLE) for need in row] for row in needs])
    np.fill_diagonal(parts, WHOLE - parts.sum(1))  # with itself a rank has the rest
    steps, lasts = matchings(parts), np.zeros_like(parts)
    for receivers, last in steps:
        lasts[np.arange(len(on)), receivers] += last
    return steps, parts, lasts


def matchings(parts: Ints) -> Steps:
    """Permutations whose sum, each times its length, is `parts`, except for less than `SHORTEST` in each entry. The
    permutation whose least entry is greatest comes first, which leaves few. Neighbours in the list are as alike as
    possible.

    parts : (ranks, ranks), all row and column sums equal
    """
    left, senders = parts.copy(), np.arange(len(parts))
    found: Steps = []
    while left.any():
        levels = np.unique(left[left > 0])
        low, high = 0, len(levels) - 1
        while low < high:  # the highest level at which there still is one
            middle = (low + high + 1) // 2
            low, high = (middle, high) if _perfect(left >= levels[middle]) else (low, middle - 1)
        best = np.array(_greatest_first(left.tolist(), int(levels[low])))
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


def _perfect(there: NDArray[np.bool_]) -> bool:
    """Whether there is a perfect matching."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return bool((maximum_bipartite_matching(csr_array(there)) >= 0).all())


def _greatest_first(parts: list[list[int]], least: int) -> list[int]:
    """For each row its column in a perfect matching among entries of `least` or more, greatest first (Kuhn 1955)."""
    wants = [[k for part, k in sorted((-part, k) for k, part in enumerate(row)) if -part >= least] for row in parts]
    row_of, column_of = [-1] * len(parts), [-1] * len(parts)

    def placed(row: int, seen: set[int]) -> bool:
        for column in wants[row]:
            if column not in seen:
                seen.add(column)
                if row_of[column] < 0 or placed(row_of[column], seen):
                    row_of[column], column_of[row] = row, column
                    return True
        return False

    assert all(placed(row, set()) for row in range(len(parts))), "there is none"
    return column_of


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


def _in_turns(steps: Steps, rounds: int, ahead: Fraction) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(sender, receiver) -> (begin, size) in ticks of the half, for steps that recur in each round.

    ahead : part of a round that has gone by at first
    """
    one = sum(last for _, last in steps)
    now, found = -int(ahead * one), dict[tuple[int, int], list[tuple[int, int]]]()
    for receivers, last in steps * (rounds + 1):
        begin, end = (HALF * min(max(at, 0), rounds * one) // (rounds * one) for at in (now, now + last))
        now += last
        for pair in enumerate(receivers.tolist()) if end > begin else ():
            slots = found.setdefault(pair, [])
            if slots and sum(slots[-1]) == begin and len(steps) > 1:  # a single step is cut by the rounds
                slots[-1] = slots[-1][0], end - slots[-1][0]
            else:
                slots.append((begin, end - begin))
    return {pair: slots for pair, slots in found.items() if pair[0] != pair[1]}


@lru_cache(maxsize=64)
def rail_shares(kinds: tuple[tuple[Rails, int], ...]) -> Mapping[tuple[Rails, Rails], Mapping[int, float]]:
    """By the rails of sender and receiver, rail -> its part of their exchange, sum 1, with which all NICs of a rank are
    equally busy.

    kinds : (rails of a rank, number of ranks with just these)

    Two ranks exchange the sum of their shares as hubs. A rail of m ranks has 1/(m - 1) of each NIC's time for each
    pair. From there each rank's use of each rail is scaled until all its NICs are equally busy (iterative proportional
    fitting). Only exactly rounded operations in a fixed order, so that every rank has the same result.
    """
    members = dict(kinds)
    each = hub_shares([len(kind) for kind, many in kinds for _ in range(many)])
    assert each is not None, "some rank is the hub of nothing"
    of_each = (kind for kind, many in kinds for _ in range(many))
    shares = {kind: float(share) for kind, share in zip(of_each, each, strict=True)}
    peers = {rail: sum(members[kind] for kind in members if rail in kind) - 1 for kind in members for rail in kind}
    scale = {(kind, rail): 1.0 for kind in members for rail in kind}

    def split(a: Rails, b: Rails) -> dict[int, float]:
        parts = {rail: scale[a, rail] * scale[b, rail] / peers[rail] for rail in a if rail in b}
        total = fsum(parts.values())
        return {rail: part / total for rail, part in parts.items()}

    for _ in range(FITTINGS):
        found = {(a, b): split(a, b) for a in members for b in members if a != b or members[a] > 1}
        worst = 0.0
        for a in members:
            loads = {rail: 0.0 for rail in a if peers[rail]}
            for b in members:
                for rail, part in found.get((a, b), {}).items():
                    loads[rail] += (members[b] - (a == b)) * (shares[a] + shares[b]) * part
            mean = fsum(loads.values()) / max(1, len(loads))
            for rail, load in loads.items() if mean else ():
                worst = max(worst, abs(load / mean - 1))
                scale[a, rail] *= sqrt(mean / load) if load else 1.0
        if worst < CLOSE:
            break
    return found
