"""Steady steps, where two servers or more starve: all of them send and are sent results all the time.

One has half of its NICs or fewer, the others hardly more; they all use as many. The rest are hubs; a hub that lacks few
NICs has a smaller share. Hubs gather from each other in the first half and spread in the second, about twice as fast as
the slow servers send. So, except at the very beginning, hubs have the sums of all others before the slow servers have
sent theirs for the same bytes. Results go back to these at once, through both halves. The loss is one and a half steps,
from sending a slow server's chunk to the return of its result, and the cost of chunks. `steps_several_slots` finds the
times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise, permutations
from typing import TYPE_CHECKING

from optcc.schedule.assemble import cuts_by
from optcc.schedule.direct_rows import Kind, SectionPart, cut
from optcc.schedule.nics import live_nics, of_one_pace
from optcc.schedule.slots import HALF, Slot, mirrored
from optcc.schedule.steps import Timed, Used, most_steps, rows_of
from optcc.schedule.steps_several_slots import growing_ends, steady_steps
from optcc.schedule.tuned import MOST_NICS
from optcc.values.cluster import Cluster

if TYPE_CHECKING:
    from optcc.schedule.direct import DirectExchange


class SeveralStarve:
    """Steady steps. `segments` : steps of each half; each of the first `growing` is followed by one `growth` times as
    long."""

    name = "several-starve"

    def applies(self, cluster: Cluster) -> bool:
        """See `slow_ranks`."""
        return slow_ranks(cluster) is not None

    def used(self, cluster: Cluster) -> Used:
        """See `used_nics`."""
        return used_nics(cluster, _slow(cluster))

    def shares(self, cluster: Cluster) -> Sequence[Fraction]:
        """See `hub_shares`."""
        return hub_shares(cluster, _slow(cluster))

    def most_steps(self, cluster: Cluster) -> int:
        """By memory."""
        return most_steps(self.used(cluster)) // 2

    def timed(self, recipe: DirectExchange, cluster: Cluster, nbytes: int) -> Timed:
        """A pair's bytes, data first, follow its slots of the whole plan; the second half is the first one's mirror
        image. No pair has to finish anything at the end of a half."""
        slow, used, shares = _slow(cluster), self.used(cluster), self.shares(cluster)
        live = [list(mine) for mine in used]
        hubs = [rank for rank in range(len(live)) if rank not in slow]
        ends = growing_ends(recipe.segments, recipe.growing, recipe.growth)
        slots = steady_steps(live, shares, ends, recipe.margin, recipe.chunk)
        cuts = cuts_by(0, nbytes, [shares[rank] for rank in hubs]).tolist()
        section = dict(zip(hubs, pairwise(cuts), strict=True))
        found: list[tuple[int, ...]] = []
        for i, k in permutations(range(len(live)), 2):
            pieces = [SectionPart(Kind.RAW, k, *section[k])] if k in section else []
            pieces += [SectionPart(Kind.RESULT, i, *section[i])] if i in section else []
            if not pieces:  # slow servers, which need not have a rail in common
                continue
            back = (slot._replace(begin=slot.begin + HALF) for slot in mirrored(slots.get((k, i), [])))
            # With few steps and many ranks some pairs have had no turn.
            mine = [*slots.get((i, k), []), *back] or [Slot(HALF, 1, min({*live[i]} & {*live[k]}), 1)]
            found += ((i, k, *part) for part in cut(pieces, mine))
        return Timed(rows_of(found), {}, None)

    def growing(self, recipe: DirectExchange) -> int:
        """`recipe.growing`."""
        return min(recipe.growing, recipe.segments)

    def told(self, recipe: DirectExchange, cluster: Cluster) -> list[tuple[str, str]]:
        """Who starves, and the steps."""
        names = " and ".join(cluster.ranks[rank].name for rank in _slow(cluster))
        grown = ""
        if recipe.growing:
            grown = f", the first {recipe.growing} each {float(recipe.growth):.4g} times the one before"
        return [
            ("send and are sent results all the time", names),
            ("steps", f"{recipe.segments} in each half{grown}; one NIC for each transfer"),
        ]


def _slow(cluster: Cluster) -> tuple[int, ...]:
    slow = slow_ranks(cluster)
    assert slow is not None, "another cluster"
    return slow


def slow_ranks(cluster: Cluster) -> tuple[int, ...] | None:
    """The slow ranks: those with fewer than `MOST_NICS` of the others' NICs, which are no hubs. None if there are not
    two or more of them, one with at most half, or if hubs are too few. To keep each other busy, rails of slow ranks
    need two hubs more than slow ranks, or as many if there are two; every hub needs some of these rails.
    """
    if not of_one_pace(cluster):
        return None
    counts = list(map(len, live_nics(cluster)))
    slow = tuple(rank for rank, count in enumerate(counts) if count < MOST_NICS * max(counts))
    if len(slow) < 2 or 2 * min(counts) > max(counts):
        return None
    used = used_nics(cluster, slow)
    hubs = [mine.keys() for rank, mine in enumerate(used) if rank not in slow]
    if not all(used[rank].keys() & hub for rank in slow for hub in hubs):
        return None
    on = Counter((rail, rank in slow) for rank, mine in enumerate(used) for rail in mine)
    more = {on[rail, False] - count for (rail, no_hub), count in on.items() if no_hub}
    return slow if min(more) >= 2 or (more == {0} and len(slow) == 2) else None


def hub_shares(cluster: Cluster, slow: tuple[int, ...]) -> list[Fraction]:
    """Each rank's part of the data as a hub, sum 1, so that all hubs are equally busy.

    A hub of x sends 1 - x to other hubs and x to each of the P-1 others: with n NICs it is busy for 1 + (P-2) x = n t.
    """
    counts = list(map(len, live_nics(cluster)))
    hubs = [rank for rank in range(len(counts)) if rank not in slow]
    per_nic = Fraction(len(hubs) + len(counts) - 2, sum(counts[rank] for rank in hubs))
    return [(n * per_nic - 1) / (len(counts) - 2) if r in hubs else Fraction(0) for r, n in enumerate(counts)]


def used_nics(cluster: Cluster, slow: tuple[int, ...]) -> Used:
    """Of each rank the rails that it serves -> its NICs, as in `live_nics`. All slow ranks use as many as the one with
    fewest: the others could send more, but their results wait for that one. On one fabric, where any NIC reaches any,
    slow ranks are assigned the first rails, and hubs do not lack these. Two slow ranks with one NIC each use the first
    two rails: on one they could not send to the same hub together. With two hubs, which then could not exchange on it,
    they use one rail nevertheless."""
    live = live_nics(cluster)
    if not cluster.fabric.rails:
        live = [dict(enumerate(mine.values())) for mine in live]
    fewest = min((live[rank] for rank in slow), key=len)
    for rank in slow:
        rails = sorted(live[rank], key=lambda rail: (rail not in fewest, rail))[: len(fewest)]
        live[rank] = {rail: live[rank][rail] for rail in sorted(rails)}
    if len(fewest) == 1 and len(slow) == 2 and len(live) > 4 and not cluster.fabric.rails:
        live[slow[1]] = {1: next(iter(live[slow[1]].values()))}
    return live
