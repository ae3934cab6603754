"""Even steps, where no server starves: in each, every NIC sends one chunk and receives one, all of one length.

With chunks of unequal length, an early sender meets another one at a receiver. Here every chunk fills its step, so this
cannot happen.

Let a rank have n NICs, P ranks N in all. It is the hub of x = (n t - 1)/(P-2) of the data, where t = 2 (P-1)/N is the
bound in units of n/rate (as in `optcc.theory.hubs`, proof id attained). Two ranks then have (n_i + n_k - N/(P-1))/(P-2)
chunks for each other, each way, in every step of the plan, so that all NICs are busy all the time. Where these numbers,
summed over all steps, are whole, every chunk is as long as a step. Elsewhere chunks are a little shorter than steps, as
few as fit. This count treats all NICs of a rank alike; a rail that few ranks have may have too little to carry, and the
others too much.

Steps are found one after another: on each rail a matching, the pairs furthest behind an even schedule first. A rank
sends a result when all raw data for it has landed, in the step before at the latest, better sooner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, permutations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optcc.schedule.assemble import cuts_by
from optcc.schedule.columns import GRANULE
from optcc.schedule.direct_rows import Ints, Kind, SectionPart, cut
from optcc.schedule.nics import common_rails, live_nics, of_one_pace
from optcc.schedule.slots import TICKS, TIES, Slot, in_time
from optcc.schedule.steps import Timed, Used, most_steps, rows_of
from optcc.values.cluster import Cluster

if TYPE_CHECKING:
    from optcc.schedule.direct import DirectExchange

LATER = 8 * GRANULE
"""Bytes by which cuts between data are later than cuts between results. Otherwise rounding would make a result wait for
data that comes a chunk later."""
UNIT = 2**20
"""Weight of being one chunk behind."""
FRESH = UNIT
"""Weight subtracted for data that landed just before: it is a latency late and delays others, so it counts as a chunk
less behind."""
MOST_LATE = 2
"""Limit of steps over planned steps until all is sent; the rest then goes earlier."""
ROUNDING = 1e-9


class PlacedChunks(NamedTuple):
    """(sender, receiver) -> (begin, size, rail) of each chunk, in order, in ticks; when the last step ends, `TICKS` or
    later. Of pairs with a single chunk, which is data and result at once: when the result can be sent."""

    chunks: dict[tuple[int, int], list[tuple[int, int, int]]]
    end: int
    results: dict[tuple[int, int], int]


class AlikeRails(NamedTuple):
    """Rails whose steps are alike: their number, and the number of chunks of a pair on them in all, (ranks, ranks)."""

    rails: tuple[int, ...]
    steps: int
    chunks: Ints


class Even:
    """Even steps. `segments` : steps of the whole plan, enough for every rank to serve each other rank at least once;
    `variant` : settles ties between pairs that are equally far behind, which changes plans a little."""

    name = "even"

    def applies(self, cluster: Cluster) -> bool:
        """NICs of one pace, no starving server, and any two servers with a rail in common."""
        if not of_one_pace(cluster):
            return False
        used = self.used(cluster)
        fits = hub_shares(list(map(len, used))) is not None and common_rails([tuple(mine) for mine in used])
        return fits and fewest_steps(list(map(len, used))) <= self.most_steps(cluster)

    def used(self, cluster: Cluster) -> Used:
        """Those of `live_nics`. On one fabric, where any NIC reaches any, ranks serve the first rails, so that ranks
        with fewer NICs share all their rails."""
        live = live_nics(cluster)
        return live if cluster.fabric.rails else [dict(enumerate(mine.values())) for mine in live]

    def shares(self, cluster: Cluster) -> Sequence[Fraction]:
        """Those of `hub_shares`."""
        found = hub_shares(list(map(len, self.used(cluster))))
        assert found is not None, "some rank is the hub of nothing"
        return found

    def most_steps(self, cluster: Cluster) -> int:
        """By memory."""
        return most_steps(self.used(cluster))

    def timed(self, recipe: DirectExchange, cluster: Cluster, nbytes: int) -> Timed:
        """The bytes of two ranks for each other, data first, follow their chunks of the whole plan."""
        used = self.used(cluster)
        order, steps = _steps(used, recipe.segments, recipe.each, recipe.variant)
        section = list(pairwise(cuts_by(0, nbytes, self.shares(cluster)).tolist()))
        found: list[tuple[int, ...]] = []
        for a, z in permutations(range(len(order)), 2):
            i, k = order[a], order[z]
            own = SectionPart(Kind.RAW, k, *section[k]), SectionPart(Kind.RESULT, i, *section[i])
            # With few steps some pairs may have had no turn.
            places = steps.chunks.get((a, z)) or [(steps.end // 2, 1, min({*used[i]} & {*used[k]}))]
            weights = [size for _, size, _ in places]
            if (a, z) in steps.results:  # data and result each in a chunk of its own
                places = [*places, (steps.results[a, z], *places[0][1:])]
                weights = [piece.stop - piece.start for piece in own]
            slots = [
                Slot(TICKS * at // steps.end, size, rail, weight)
                for (at, size, rail), weight in zip(places, weights, strict=True)
            ]
            found += ((i, k, *part) for part in cut(own, in_time(slots, used[k], TICKS), LATER) if sum(weights))
        return Timed(rows_of(found), {}, None)

    def growing(self, recipe: DirectExchange) -> int:
        """None."""
        return 0

    def told(self, recipe: DirectExchange, cluster: Cluster) -> list[tuple[str, str]]:
        """The number of steps."""
        used = self.used(cluster)
        longer = longer_by(used, recipe.segments, recipe.each, recipe.variant)
        kinds = sorted(
            {round(part.steps * longer) for part in parts_of(tuple(map(tuple, used)), recipe.segments, recipe.each)}
        )
        return [("steps", f"{' or '.join(map(str, kinds))}, chunks of one length; one NIC for each transfer")]


def _steps(
    used: Sequence[Mapping[int, object]], steps: int, each: bool, variant: int
) -> tuple[list[int], PlacedChunks]:
    """The ranks in order of their NICs, so that steps do not depend on which ranks have lost some; and the steps."""
    order = sorted(range(len(used)), key=lambda rank: (len(used[rank]), [*used[rank]], rank))
    return order, even_steps(tuple(tuple(used[rank]) for rank in order), steps, each, variant)


def longer_by(used: Sequence[Mapping[int, object]], steps: int, each: bool, variant: int) -> Fraction:
    """Steps over planned steps: more than 1 if data that is due has not landed."""
    return Fraction(_steps(used, steps, each, variant)[1].end, TICKS)


def hub_shares(nics: Sequence[int]) -> tuple[Fraction, ...] | None:
    """Each rank's part of the data as a hub by its number of NICs, sum 1; None where one is the hub of nothing."""
    ranks, most = len(nics), sum(nics)
    shares = tuple((Fraction(2 * n * (ranks - 1), most) - 1) / (ranks - 2) for n in nics)
    return shares if min(shares) > 0 else None


@lru_cache(maxsize=4096)
def chunks_of(nics: tuple[int, ...], steps: int) -> tuple[dict[int, int], Fraction]:
    """NICs of two ranks together -> their chunks for each other, each way; and the steps' time over the bound, without
    costs. This is the least time in which all chunks fit, whichever rails the ranks have.

    nics : of each rank, in order; steps : `fewest_steps` or more
    """
    ranks, of = len(nics), Counter(nics)
    mean = Fraction(sum(nics), ranks - 1)
    need = {a + b: (a + b - mean) / (ranks - 2) * steps for a in of for b in of if a != b or of[a] > 1}

    def fits(longer: Fraction) -> dict[int, int] | None:
        counts = {both: -(-much // longer) for both, much in need.items()}
        full = all(sum((of[b] - (a == b)) * counts.get(a + b, 0) for b in of) <= a * steps for a in of)
        return counts if full else None

    # Rounding up adds at most one chunk for each peer: slots that are longer by this have room for all.
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
    """The least number with which every rank can send every other rank a chunk."""
    return -(-(len(nics) - 1) // min(nics))


def parts_of(live: Sequence[Sequence[int]], steps: int, each: bool) -> list[AlikeRails]:
    """All rails together, with `steps` steps, at least `fewest_steps`. With `each`, a part for each set of rails that
    join the same ranks: there every pair has equally many chunks on each rail, and a rail of fewer ranks has fewer,
    longer steps."""
    nics = tuple(map(len, live))
    if not each:
        count = max(steps, fewest_steps(nics))
        counts, _ = chunks_of(tuple(sorted(nics)), count)
        pooled = np.vectorize(lambda both: counts.get(both, 0), otypes=[np.int64])(np.add.outer(nics, nics))
        np.fill_diagonal(pooled, 0)
        return [AlikeRails(tuple(sorted({rail for mine in live for rail in mine})), count, pooled)]
    joined: dict[tuple[int, ...], list[int]] = {}
    for rail in sorted({rail for mine in live for rail in mine}):
        joined.setdefault(tuple(r for r, mine in enumerate(live) if rail in mine), []).append(rail)
    rounds, found = max(1, steps // (len(live) - 1)), []
    for ranks, rails in joined.items():
        chunks = np.zeros((len(live), len(live)), np.int64)
        chunks[np.ix_(ranks, ranks)] = rounds * len(rails)
        np.fill_diagonal(chunks, 0)
        found.append(AlikeRails(tuple(rails), rounds * max(1, len(ranks) - 1), chunks))
    return found


def unfilled(used: Sequence[Mapping[int, object]]) -> float:
    """Time over the bound, without costs, of rounds in which every pair has a chunk on each of its rails. Where pairs
    have unequal chunks, steps are as long as the longest needs."""
    shares = hub_shares(list(map(len, used)))
    assert shares is not None, "some rank is the hub of nothing"
    lasts = np.zeros((len(used), len(used)))
    for part in parts_of([tuple(mine) for mine in used], 1, True):
        lasts += part.chunks / part.steps
    need = np.add.outer(*[np.array(list(map(float, shares)))] * 2)
    np.fill_diagonal(lasts, np.inf)
    return float((need / lasts).max() * sum(map(len, used)) / (2 * (len(used) - 1)))


@lru_cache(maxsize=8)
def even_steps(live: tuple[tuple[int, ...], ...], steps: int, each: bool, variant: int) -> PlacedChunks:
    """Sender, receiver and rail of each chunk in each step. Pure, and the same on every rank.

    live : the rails of each rank; steps, each : as of `parts_of`; some beyond if what is due has not landed;
    variant : what settles ties
    """
    from optcc.schedule.compiled import assigned  # with numba, which other families' plans do without

    shares, ids = hub_shares(list(map(len, live))), np.arange(len(live))
    assert shares is not None, "some rank is the hub of nothing"
    share, parts = np.array(list(map(float, shares))), parts_of(live, steps, each)
    lasts = [TICKS // part.steps for part in parts]
    whole = np.maximum(sum(part.chunks * last for part, last in zip(parts, lasts, strict=True)), 1)
    sizes = [(share[:, None] + share) * last / whole for last in lasts]  # of a chunk, as part of the data
    single = np.sum([part.chunks for part in parts], axis=0) == 1
    ties = (ids[:, None] * 7919 + ids * 104729 + variant * 31337 * ids) % TIES
    on = {rail: [r for r, mine in enumerate(live) if rail in mine] for rail in {rail for mine in live for rail in mine}}
    # A pair's data comes first; a chunk that is data and result waits for the result. A single one does not: see
    # `PlacedChunks`.
    sent = [np.zeros_like(part.chunks) for part in parts]
    done, landed, before = (np.zeros_like(whole, np.float64) for _ in range(3))  # before : a step ago
    for known in (landed, before):
        np.fill_diagonal(known, 2.0)
    flying: list[tuple[int, int, int, float]] = []
    fresh: list[tuple[int, int, int, float]] = []
    slots: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    complete, turn, end = np.full(len(live), MOST_LATE * TICKS), [0] * len(parts), 0
    while any((own < part.chunks).any() for own, part in zip(sent, parts, strict=True)):
        which = min(range(len(parts)), key=lambda p: (turn[p] * lasts[p], -len(on[parts[p].rails[0]])))
        part, last, size, own = parts[which], lasts[which], sizes[which], sent[which]
        step, now = turn[which], turn[which] * lasts[which]
        if now >= MOST_LATE * TICKS:
            break
        for ends, i, k, much in [each for each in flying if each[0] <= now]:
            landed[i, k] += much
            fresh.append((ends, i, k, much))
        for _, i, k, much in [each for each in fresh if each[0] <= now - min(lasts)]:
            before[i, k] += much
        flying = [each for each in flying if each[0] > now]
        fresh = [each for each in fresh if each[0] > now - min(lasts)]
        gathered, sure = (np.minimum(known.min(0), share) for known in (landed, before))
        complete = np.where(gathered >= share - ROUNDING, np.minimum(complete, now), complete)
        due = part.chunks * (UNIT * min(step + 1, part.steps) // part.steps)
        for rail in sorted(part.rails, key=lambda rail: (-len(on[rail]), rail)):
            rows, need = on[rail], done + size * (1 - ROUNDING)
            may = (own < part.chunks) & (single | (need <= share + gathered[:, None] + ROUNDING * size))
            worth = due - own * UNIT - FRESH * ((need > share + sure[:, None]) & ~single)
            worth = np.where(may, worth * TIES + ties, -(2**52))
            for i, z in zip(rows, assigned(worth[np.ix_(rows, rows)]).tolist(), strict=True):
                k = rows[z]
                if i != k and may[i, k]:
                    own[i, k] += 1
                    done[i, k] += size[i, k]
                    slots.setdefault((i, k), []).append((now, last, rail))
                    flying.append((now + last, i, k, size[i, k]))
                    end = max(end, now + last)
        turn[which] += 1
    late = {pair: int(complete[pair[0]]) for pair in slots if single[pair]}
    longest = max(lasts)
    return PlacedChunks(
        slots, max(end, min(lasts) * 1), {pair: min(when, end - longest) for pair, when in late.items()}
    )
