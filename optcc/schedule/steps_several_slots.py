"""The transfers of each step when several servers starve: every NIC is busy in every step.

In each step a slow server sends data to hubs and is sent results, on all its NICs; all send to the same hubs at the
same time, on different NICs. A hub sends a result as soon as all that it adds up has landed. Then each rail has a
matching of the hubs, the pairs that have had least first. Every chunk fills its step, and nothing is left over at the
end of the half, so no rank falls behind. Data that exceeds a half continues in the other, its mirror image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.slots import HALF, ONE, SLACK, TIES, Slot

Ints = NDArray[np.int64]
UNIT = 2**20
"""Units of places in a hub's section."""
WHOLE = 2**9
"""Units of parts of the data: those of a full hub."""
COARSE = 24
"""Bits dropped from weights, whose squares an assignment must distinguish."""


def growing_ends(count: int, growing: int, growth: Fraction) -> tuple[int, ...]:
    """Ends of `count` steps, in units of which `ONE` is the half; each of the first `growing` steps is followed by one
    `growth` times as long."""
    sizes = [2**64]
    for step in range(1, count):
        sizes.append(sizes[-1] * growth.numerator // growth.denominator if step <= growing else sizes[-1])
    total = sum(sizes)
    return tuple(ONE * done // total for done in accumulate(sizes))


def steady_steps(
    live: Sequence[Sequence[int]], shares: Sequence[Fraction], ends: Sequence[int], margin: Fraction, chunk: Fraction
) -> dict[tuple[int, int], list[Slot]]:
    """(sender, receiver) -> its slots in the first half, by time. Pure, and the same on every rank.

    live : the rails of each rank; shares : each rank's part of the data as a hub, 0 of those that starve; ends : of
    steps, in `ONE`; margin : part of the half from the end of a slot to when its bytes are counted on; chunk : part of
    the half that a chunk costs
    """
    slow = [rank for rank, share in enumerate(shares) if not share]
    part = np.array([int(WHOLE * share / max(shares)) for share in shares], np.int64)
    pairs = part[:, None] + part  # what two have for each other
    section = np.maximum(np.broadcast_to(part * (UNIT // WHOLE), pairs.shape), 1)
    quiet = quiet_rails(live, slow)
    # A pair's total is known once all steps are found: the first time equal totals are assumed.
    for left_alone in (frozenset[int](), quiet):
        half = _SeveralHalf(live, slow, section, pairs, int(margin * ONE), int(chunk * ONE), left_alone)
        for turn, (begin, end) in enumerate(pairwise([0, *ends])):
            half.step(turn, begin, end)
        # A hub sends another hub results of its own section in the other half, too, where it is sent the rest.
        section = np.maximum((half.sent + half.sent.T) * part // np.maximum(pairs, 1), 1)
        if quiet:  # hubs have what slow servers have for them, and no more
            section[:] = section[slow[0]]
    return half.slots


def quiet_rails(live: Sequence[Sequence[int]], slow: Sequence[int]) -> frozenset[int]:
    """The rails of two slow servers that hubs leave to them, if hubs have time for each other on the other rails. Then
    nobody is in the starving ranks' way, and hubs have gathered everything before half of the half is over."""
    theirs = frozenset(rail for rank in slow for rail in live[rank])
    free = min(len({*mine} - theirs) for rank, mine in enumerate(live) if rank not in slow)
    return theirs if len(slow) == 2 and free > 2 * len(live[slow[0]]) else frozenset()


class _SeveralHalf:
    """The data sent so far, and the data that is ready."""

    def __init__(
        self,
        live: Sequence[Sequence[int]],
        slow: Sequence[int],
        section: Ints,
        pairs: Ints,
        gap: int,
        cost: int,
        quiet: frozenset[int],
    ) -> None:
        self.live, self.slow, self.section, self.gap, self.cost, self.quiet = live, slow, section, gap, cost, quiet
        self.rails = sorted({rail for mine in live for rail in mine})
        self.weight = WHOLE * WHOLE // np.maximum(pairs, 1)  # what two have had counts as much more as they need less
        self.hubs = [rank for rank in range(len(live)) if rank not in slow]
        self.sent, self.landed = np.zeros_like(section), np.zeros_like(section)
        self.slots: dict[tuple[int, int], list[Slot]] = {}
        self.flying: list[tuple[int, int, int, int]] = []
        ids = np.arange(len(live))
        self.ties = (ids[:, None] * 7919 + ids * 104729) % TIES

    def step(self, turn: int, begin: int, end: int) -> None:
        """One step, from `begin` to `end`."""
        for each in [each for each in self.flying if each[0] <= begin - self.gap]:
            self.landed[each[1:3]] += each[3]
        self.flying = [each for each in self.flying if each[0] > begin - self.gap]
        if end - begin <= 2 * self.cost:
            return
        rails = sorted(self.rails, key=lambda rail: (rail + turn) % (1 + max(self.rails)))
        into, out = ({rail: set[int]() for rail in rails} for _ in range(2))
        for rank in self.slow:
            mine = [rail for rail in rails if rail in self.live[rank]]
            self._data(rank, begin, end, mine, into)
            self._results(rank, begin, end, mine, out)
        for rail in rails:
            if rail not in self.quiet:
                self._rest(rail, begin, end, into[rail], out[rail])

    def _data(self, rank: int, begin: int, end: int, rails: Sequence[int], taken: dict[int, set[int]]) -> None:
        """A slow server's data: to the hubs that it has sent fewest chunks. The others, on the same rails, take the
        same hubs."""
        weight = self.weight[rank].tolist()
        chunks = {k: len(self.slots.get((rank, k), ())) * weight[k] for k in self.hubs}
        for rail in rails:
            had = (self.sent[rank] * self.weight[rank]).tolist()
            k = max(self._hubs(rail, taken), key=lambda k: (-chunks[k], -had[k], k))
            self._put(rank, k, rail, begin, end, end - begin - self.cost)
            chunks[k] += weight[k]
            taken[rail].add(k)

    def _results(self, rank: int, begin: int, end: int, rails: Sequence[int], taken: dict[int, set[int]]) -> None:
        """Results to a slow server: from the hub that has most, a full chunk at most, and of these from the one that
        has exchanged least with it."""
        room = end - begin - self.cost
        places = self.landed * UNIT // self.section
        np.fill_diagonal(places, 2**62)
        known = places.min(0)
        known = (known - known // SLACK) * self.section[rank] // UNIT
        for rail in rails:
            had = ((self.sent[rank] + self.sent[:, rank]) * self.weight[rank]).tolist()
            ready = np.minimum(known - self.sent[:, rank], room).tolist()
            k = max(self._hubs(rail, taken), key=lambda k: (ready[k], -had[k], k))
            if ready[k] > 0:
                self._put(k, rank, rail, begin, end, ready[k])
                taken[rail].add(k)

    def _rest(self, rail: int, begin: int, end: int, into: set[int], out: set[int]) -> None:
        """Among hubs, where there are quiet rails as much as they have for each other."""
        from optcc.schedule.compiled import assigned  # with numba, which other families' plans do without

        rows, cols = (self._hubs(rail, {rail: taken}) for taken in (out, into))
        had = self.sent * self.weight >> COARSE
        worth = self.ties - had * had * TIES
        much = np.full_like(worth, end - begin - self.cost)
        if self.quiet:
            much = np.minimum(much, self.section - self.sent)
        np.fill_diagonal(much, 0)
        worth[much <= 0] = -(2**62)
        for i, z in zip(rows, assigned(worth[np.ix_(rows, cols)]).tolist(), strict=True):
            if z >= 0 and much[i, cols[z]] > 0:
                self._put(i, cols[z], rail, begin, end, int(much[i, cols[z]]))

    def _hubs(self, rail: int, taken: Mapping[int, set[int]]) -> list[int]:
        return [k for k in self.hubs if rail in self.live[k] and k not in taken[rail]]

    def _put(self, i: int, k: int, rail: int, begin: int, end: int, much: int) -> None:
        slot = Slot(begin * (HALF // ONE), (end - begin) * (HALF // ONE), rail, much)
        self.slots.setdefault((i, k), []).append(slot)
        self.sent[i, k] += much
        self.flying.append((end, i, k, much))
