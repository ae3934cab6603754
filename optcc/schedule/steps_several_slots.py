"""The transfers of each step when several servers starve: every NIC is busy in every step.

In each step a slow server sends data to hubs and is sent results, on all its NICs; all send to the same hubs at the
same time, on different NICs. A hub sends a result as soon as all that it adds up has landed. Then each rail has a
matching of the hubs, the pairs that have had least first. Every chunk fills its step, and nothing is left over at the
end of the half, so no rank falls behind. Data that exceeds a half continues in the other, its mirror image. Half of the
rails are half a step behind: data that lands after a step of the one kind leaves on the other kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.slots import HALF, ONE, TIES, Slot
from optcc.schedule.tuned import FULL, LEAST, OWN, TWO_KINDS

Ints = NDArray[np.int64]
PASSES = 2
"""Passes over all steps: a pair's total is known once all steps are found. The first pass assumes equal totals."""
UNIT = 2**20
"""Units of places in a hub's section."""
SLACK = 2**12
"""1/SLACK of the landed data is left out, as cuts are rounded and pairs have a little more or less."""
WHOLE = 2**9
"""Units of parts of the data: those of a full hub."""
COARSE = 24
"""Bits dropped from weights, whose squares an assignment must distinguish."""
Place = tuple[int, int, int]
"""(Sender, receiver, place of the slot among theirs)."""


class Steps(NamedTuple):
    """(sender, receiver) -> slots in the first half, by time; and waits between slots. A slot waits if its NIC has
    nothing to send in the step before, so that it does not run ahead."""

    slots: dict[tuple[int, int], list[Slot]]
    held: list[tuple[Place, Place]]


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
) -> Steps:
    """The steps of the first half. Pure, and the same on every rank.

    live : the rails of each rank; shares : each rank's part of the data as a hub, 0 of those that starve; ends : of
    steps, in `ONE`; margin : part of the half from the end of a slot to when its bytes are counted on; chunk : part of
    the half that a chunk costs
    """
    slow = [rank for rank, share in enumerate(shares) if not share]
    part = np.array([int(WHOLE * share / max(shares)) for share in shares], np.int64)
    pairs = part[:, None] + part  # what two have for each other
    section = np.maximum(np.broadcast_to(part * (UNIT // WHOLE), pairs.shape), 1)
    quiet = quiet_rails(live, slow)
    for turn in range(PASSES):
        half = _SeveralHalf(
            live, slow, section, pairs, int(margin * ONE), int(chunk * ONE), quiet if turn else frozenset()
        )
        for begin, end, rails in _turns(live, slow, ends):
            half.step(begin, end, rails)
        # A hub sends another hub results of its own section in the other half, too, where it is sent the rest.
        section = np.maximum((half.sent + half.sent.T) * part // np.maximum(pairs, 1), 1)
        if quiet:  # hubs have what slow servers have for them, and no more
            section[:] = section[slow[0]]
    return Steps(half.slots, half.held)


def quiet_rails(live: Sequence[Sequence[int]], slow: Sequence[int]) -> frozenset[int]:
    """The rails of two slow servers that hubs leave to them, if hubs have time for each other on the other rails. Then
    nobody is in the starving ranks' way, and hubs have gathered everything before half of the half is over."""
    theirs = frozenset(rail for rank in slow for rail in live[rank])
    free = min(len({*mine} - theirs) for rank, mine in enumerate(live) if rank not in slow)
    return theirs if len(slow) == 2 and free > 2 * len(live[slow[0]]) else frozenset()


def _turns(live: Sequence[Sequence[int]], slow: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int, list[int]]]:
    """(begin, end, rails) of all steps, in order."""
    theirs = sorted({rail for rank in slow for rail in live[rank]})
    others = sorted({rail for mine in live for rail in mine} - {*theirs})
    if len(slow) > 2 or min(len(live[rank]) for rank in slow) < TWO_KINDS:
        kinds = [{*theirs, *others}]
    else:
        ahead = {*others[: len(others) // 2]}
        for rail in theirs:  # of each slow server's rails half are ahead, whichever they are
            if all(2 * len(ahead & {*live[rank]}) + 1 < len(live[rank]) for rank in slow if rail in live[rank]):
                ahead.add(rail)
        kinds = [ahead, {*theirs, *others} - ahead]
    found = []
    for kind, rails in enumerate(kinds):
        borders = sorted({0, ends[-1], *(a + (z - a) * kind // len(kinds) for a, z in pairwise([0, *ends]))})
        found += [(begin, end, sorted(rails)) for begin, end in pairwise(borders)]
    return sorted(found)


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
        self.weight = WHOLE * WHOLE // np.maximum(pairs, 1)  # what two have had counts as much more as they need less
        self.hubs = np.array([rank for rank in range(len(live)) if rank not in slow])
        self.sent, self.landed = np.zeros_like(section), np.zeros_like(section)
        self.slots: dict[tuple[int, int], list[Slot]] = {}
        self.held: list[tuple[Place, Place]] = []
        self.flying: list[tuple[int, int, int, int]] = []
        self.turns = Counter[int]()
        self.arrived: dict[tuple[int, int, int], Place] = {}  # (rank, rail, turn of the rail) -> what it gets then
        self.left = set[tuple[int, int, int]]()  # and when it sends
        ids = np.arange(len(live))
        self.ties = (ids[:, None] * 7919 + ids * 104729) % TIES

    def step(self, begin: int, end: int, rails: Sequence[int]) -> None:
        """One step of some rails."""
        for each in [each for each in self.flying if each[0] <= begin - self.gap]:
            self.landed[each[1:3]] += each[3]
        self.flying = [each for each in self.flying if each[0] > begin - self.gap]
        turn = max(self.turns.values(), default=0)
        rails = sorted(rails, key=lambda rail: (rail + turn) % (1 + max(rails)))
        into, out = ({rail: set[int]() for rail in rails} for _ in range(2))
        if end - begin > 2 * self.cost:
            for rank in self.slow:
                mine = [rail for rail in rails if rail in self.live[rank]]
                self._data(rank, begin, end, mine, into)
                self._results(rank, begin, end, mine, out)
            for rail in rails:
                if rail not in self.quiet:
                    self._rest(rail, begin, end, into[rail], out[rail])
        self.turns.update(rails)

    def _data(self, rank: int, begin: int, end: int, rails: Sequence[int], taken: dict[int, set[int]]) -> None:
        """A slow server's data: to the hubs that it has sent fewest chunks. The others, on the same rails, take the
        same hubs. The others, on the same rails, take the same."""
        weight = self.weight[rank].tolist()
        chunks = {k: len(self.slots.get((rank, k), ())) * weight[k] for k in self.hubs.tolist()}
        for rail in rails:
            had = (self.sent[rank] * self.weight[rank]).tolist()
            k = max(self._hubs(rail, taken), key=lambda k: (-chunks[k], -had[k], k))
            self._put(rank, k, rail, begin, end, end - begin - self.cost)
            chunks[k] += weight[k]
            taken[rail].add(k)

    def _results(self, rank: int, begin: int, end: int, rails: Sequence[int], taken: dict[int, set[int]]) -> None:
        """Results to a slow server: from the hub that has a full chunk and has exchanged least with it; or from the hub
        with most."""
        room = end - begin - self.cost
        places = self.landed * UNIT // self.section
        np.fill_diagonal(places, 2**62)
        known = places.min(0)
        known = (known - known // SLACK) * self.section[rank] // UNIT
        for rail in rails:
            had = ((self.sent[rank] + self.sent[:, rank]) * self.weight[rank]).tolist()
            ready = np.minimum(known - self.sent[:, rank], room).tolist()
            k = max(self._hubs(rail, taken), key=lambda k: (min(ready[k], room * FULL // 10), -had[k], k))
            if ready[k] > room // LEAST:
                self._put(k, rank, rail, begin, end, ready[k])
                taken[rail].add(k)

    def _rest(self, rail: int, begin: int, end: int, into: set[int], out: set[int]) -> None:
        """Among hubs, where there are quiet rails as much as they have for each other."""
        from optcc.schedule.compiled import assigned  # with numba, which other families' plans do without

        rows, cols = (self._hubs(rail, {rail: taken}) for taken in (out, into))
        had = (OWN * self.sent + self.sent.T) * self.weight >> COARSE
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
        return [k for k in self.hubs.tolist() if rail in self.live[k] and k not in taken[rail]]

    def _put(self, i: int, k: int, rail: int, begin: int, end: int, much: int) -> None:
        mine, turn = self.slots.setdefault((i, k), []), self.turns[rail]
        before = self.arrived.get((i, rail, turn - 1))
        if before is not None and (i, rail, turn - 1) not in self.left:
            self.held.append(((i, k, len(mine)), before))
        self.arrived[k, rail, turn] = i, k, len(mine)
        self.left.add((i, rail, turn))
        mine.append(Slot(begin * (HALF // ONE), (end - begin) * (HALF // ONE), rail, much))
        self.sent[i, k] += much
        self.flying.append((end, i, k, much))
