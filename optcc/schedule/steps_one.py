"""Steps of many lengths, where one server starves: it alone sets the bound, and is the hub of nothing.

It should receive results from the very beginning, before any exist. So it adds last to half of the data, or a little
less: first it receives sums of the others' data. Each of its halves is cut separately. Other servers that lack NICs are
hubs of less. They add last to a little as well, since results of data that passes the starving server come late. Among
the remaining servers, whatever exceeds one half continues in the other. The second half is the first one's mirror image
in time. `steps_one_slots` finds the times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise, permutations
from typing import TYPE_CHECKING, NamedTuple

from optcc.schedule.assemble import granule
from optcc.schedule.direct_rows import Kind, SectionPart, cut, joined, on_leash
from optcc.schedule.nics import (
    applies,
    fewest_nics_first,
    have_spare_time,
    live_nics,
    rates_nearly_equal,
    short_of_nics,
)
from optcc.schedule.slots import HALF, Slot, mirrored, whole
from optcc.schedule.steps import MAX_WAITS, Timed, Used, rows_of
from optcc.schedule.steps_one_slots import greedy_slots, longest_step, step_ends
from optcc.schedule.tuned import TURNS, UP
from optcc.values.cluster import Cluster

if TYPE_CHECKING:
    from optcc.schedule.direct import DirectExchange

UNIT = 2**22
"""Denominator of the part to which the starving rank adds last."""

Adding = list[tuple[int, Fraction]]
"""(rank, part of a hub's section to which it adds last), in order."""


class Parts(NamedTuple):
    """starving : the rank; shares : of each rank as a hub; adding : of each hub"""

    starving: int
    shares: tuple[Fraction, ...]
    adding: tuple[Adding, ...]


def parts(cluster: Cluster, last: Fraction) -> Parts:
    """The hubs' shares, and the parts to which ranks add last.

    All but the starving rank are equally busy. With n NICs a rank is hub of x = (n t - 1)/(P-2), where t = (2P-3)/(NICs
    of all these ranks), or of nothing if this is negative. A slow rank that adds last to y has equal halves at y = (1 -
    (P-1) x)/2.

    last : the part of all data to which the starving rank adds last
    """
    counts, slow = list(map(len, live_nics(cluster))), short_of_nics(cluster)
    ranks, lone = len(counts), counts.index(min(counts))
    per_nic = Fraction(2 * ranks - 3, sum(counts) - counts[lone])
    hubs = {r: max(Fraction(0), (counts[r] * per_nic - 1) / (ranks - 2)) if r != lone else Fraction(0) for r in slow}
    full = 1 - sum(hubs.values(), Fraction(0))
    shares = tuple(hubs.get(r, full / (ranks - len(slow))) for r in range(ranks))
    via = {r: max(Fraction(0), (1 - (ranks - 1) * shares[r]) / 2) / full for r in slow if r != lone}
    over = max(Fraction(1), 2 * sum(via.values(), Fraction(0)))  # of a section, beside the half of who starves
    late = {r: last if r == lone else via[r] / over for r in slow}
    turns = TURNS if rates_nearly_equal(counts) else 1

    def adding(hub: int) -> Adding:
        """The starving rank first, for every hub; then other ranks that are hubs of nothing."""
        first = {r: part for r, part in late.items() if not shares[r] and r != hub}
        own = first if hub in late else first | late
        return [(r, part / turns) for r, part in own.items()] * turns

    return Parts(lone, shares, tuple(adding(hub) for hub in range(ranks)))


class OneStarves:
    """Steps of many lengths. `segments` : steps of each half, the first ones each `growth` times as long as the step
    before; `last` : the part of the data to which the starving rank adds last."""

    name = "one-starves"

    def applies(self, cluster: Cluster) -> bool:
        """One rank has fewest NICs and alone sets the bound."""
        if not applies(cluster):
            return False
        fewest, *others = sorted(map(len, live_nics(cluster)))
        return fewest * Fraction(2 * len(others) - 1, sum(others)) <= 1 and fewest < others[0]

    def used(self, cluster: Cluster) -> Used:
        """All in use."""
        return live_nics(cluster)

    def shares(self, cluster: Cluster) -> Sequence[Fraction]:
        """See `parts`."""
        return parts(cluster, Fraction(0)).shares

    def most_steps(self, cluster: Cluster) -> int:
        """By memory: in each step of a half every NIC sends a chunk, and most chunks wait for one of every rank."""
        return max(1, MAX_WAITS // (sum(map(len, self.used(cluster))) * len(cluster.ranks)))

    def timed(self, recipe: DirectExchange, cluster: Cluster, nbytes: int) -> Timed:
        """All transfers; where others have time to spare, held back in the second half."""
        live, of = live_nics(cluster), parts(cluster, recipe.last)
        times = _slots(cluster, of, recipe)[0]()
        borders = [granule(end * nbytes, nbytes) for end in accumulate(of.shares[:-1], initial=Fraction(0))]
        section = list(pairwise([*borders, nbytes]))
        via: dict[int, list[tuple[int, tuple[int, int]]]] = {}  # hub -> (slow rank, bytes that it adds last to)
        plain: dict[int, tuple[int, int]] = {}
        for r, (low, high) in enumerate(section):
            ends = accumulate((part for _, part in of.adding[r]), initial=Fraction(0))
            cuts = [granule(low + part * (high - low), nbytes) for part in ends]
            via[r] = list(zip((rank for rank, _ in of.adding[r]), pairwise(cuts), strict=True))
            plain[r] = cuts[-1], high
        # In the second half each slow rank's parts come in the same order as in the first. The order between ranks is
        # the first half's mirror image.
        late = {r: _turned(mine) for r, mine in via.items()}

        def gathered(i: int, k: int) -> list[SectionPart]:
            """What i sends to k in the first half."""
            own = [SectionPart(Kind.RAW, k, *part) for part in (*(part for s, part in via[k] if s != i), plain[k])]
            return own + [SectionPart(Kind.PARTIAL, i, *part) for s, part in via[i] if s == k]

        def spread(i: int, k: int) -> list[SectionPart]:
            """What i sends to k in the second half."""
            own = [SectionPart(Kind.RESULT, i, *part) for part in (plain[i], *(part for s, part in late[i] if s != k))]
            return [SectionPart(Kind.FINAL, k, *part) for s, part in late[k] if s == i] + own

        found: list[tuple[int, ...]] = []
        adding = {*short_of_nics(cluster)}
        for i, k in permutations(range(len(live)), 2):
            # The second half is the first one's mirror image, in which k sends to i.
            usual = [Slot(0, 1, min({*live[i]} & {*live[k]}), 1)]
            slots, back = (times.get(pair) or usual for pair in ((i, k), (k, i)))
            back = mirrored(back)
            first, second = joined(gathered(i, k)), joined(spread(i, k))
            if i in adding or k in adding:
                found += ((i, k, *part) for part in cut(first, slots))
                found += ((i, k, begin + HALF, *rest) for begin, *rest in cut(second, back))
            else:  # what is too much for one half goes on into the other
                found += ((i, k, *part) for part in cut(first + second, whole(slots, back)))
        rows, held = rows_of(found), None
        if have_spare_time([*map(len, live)]):
            length = longest_step(recipe.segments, recipe.growth)
            if length > (recipe.margin + recipe.chunk) * HALF:  # there is time to hear of the step before
                held = on_leash(rows, of.starving, length)
        return Timed(rows, {r: low for r, (low, _) in plain.items() if via[r]}, held)

    def growing(self, recipe: DirectExchange) -> int:
        """See `step_ends`."""
        return round(UP * recipe.segments)

    def told(self, recipe: DirectExchange, cluster: Cluster) -> list[tuple[str, str]]:
        """Who starves, and the steps."""
        name = cluster.ranks[parts(cluster, recipe.last).starving].name
        grown = f"the first each {float(recipe.growth):.4g} times the one before"
        return [
            ("adds last", f"{name}, to {float(recipe.last) * 100:.4g} % of the data"),
            ("steps", f"{recipe.segments} in each half, {grown}; one NIC for each transfer"),
        ]


def fitted(recipe: DirectExchange, cluster: Cluster) -> Fraction:
    """`last` with which the starving rank is busy equally long both ways.

    While the first sums are gathered it can send but not receive. If it has nothing to receive during the part u of a
    half, it should receive sums in 1 - u of a half. It should send totals in all of the half: last = (1 - u)/(2 - u).
    In turn, u depends a little on `last`.
    """
    last, (_, cluster) = Fraction(1, 2), fewest_nics_first(cluster)  # as steps will be found
    for _ in range(2):
        _, idle = _slots(cluster, parts(cluster, last), recipe)
        last = ((1 - idle) / (2 - idle)).limit_denominator(UNIT)
    return last


def _slots(
    cluster: Cluster, of: Parts, recipe: DirectExchange
) -> tuple[Callable[[], dict[tuple[int, int], list[Slot]]], Fraction]:
    """`greedy_slots`, of rails in the order of their ranks: which NICs are dead makes no difference."""
    live = live_nics(cluster)
    ranks = Counter(rail for mine in live for rail in mine)
    rails = sorted(ranks, key=lambda rail: (ranks[rail], rail))
    number = {rail: i for i, rail in enumerate(rails)}
    slots, idle = greedy_slots(
        [sorted(map(number.__getitem__, mine)) for mine in live],
        of.shares,
        of.adding,
        step_ends(recipe.segments, recipe.growth),
        recipe.margin,
        recipe.chunk,
    )

    def named() -> dict[tuple[int, int], list[Slot]]:
        return {pair: [slot._replace(nic=rails[slot.nic]) for slot in own] for pair, own in slots().items()}

    return named, idle


def _turned(of: Sequence[tuple[int, tuple[int, int]]]) -> list[tuple[int, tuple[int, int]]]:
    """(rank, bytes) with the ranks in reverse order, but each rank's bytes in the same."""
    own = {rank: iter([part for r, part in of if r == rank]) for rank in {rank for rank, _ in of}}
    return [(rank, next(own[rank])) for rank, _ in reversed(of)]
