"""Steps where a slow server starves, others may be slow, too: in each step, every rail serves the pairs furthest
behind.

The starving server alone sets the bound and is the hub of nothing. Its arrivals depend on what all others send, and the
sums for other slow servers depend on what it sends. So no order of equal rounds suits all. Here a half is cut into
steps whose lengths grow, stay and shrink. For some steps at a time, the starving server sends to the rank it has most
data for. It receives from the rank with most sums for it. Then each rail has a matching of the others, the pairs
furthest behind an even schedule first. No sum is sent before its hub has gathered it. The time during which the
starving server has nothing to receive decides how much it should add last to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from optcc.schedule.slots import HALF, ONE, SLACK, TIES, Slot
from optcc.schedule.tuned import DOWN, LONGEST, LONGEST_ALONE, SHRINK, UP

Ints = NDArray[np.int64]


@lru_cache(maxsize=64)
def step_ends(count: int, growth: Fraction) -> tuple[int, ...]:
    """Ends of steps, in units of which `ONE` is the half."""
    up, down = round(UP * count), round(DOWN * count)
    lengths = [growth ** min(step, up) * SHRINK ** max(0, step - (count - 1 - down)) for step in range(count)]
    sizes = [int(2**64 * length / max(lengths)) for length in lengths]
    total = sum(sizes)
    return tuple(ONE * done // total for done in accumulate(sizes))


def longest_step(count: int, growth: Fraction) -> int:
    """The longest of these steps, in ticks."""
    return max(end - begin for begin, end in pairwise((0, *step_ends(count, growth)))) * (HALF // ONE)


def starving(live: Sequence[Sequence[int]], shares: Sequence[Fraction]) -> int:
    """The rank with fewest NICs of those that are hubs of nothing."""
    return min((r for r, x in enumerate(shares) if not x), key=lambda r: len(live[r]))


class _Half:
    """The data that ranks have for each other: what has been sent so far, and what is ready."""

    def __init__(
        self, shares: Sequence[Fraction], adding: Sequence[Sequence[tuple[int, Fraction]]], nic: Fraction, gap: int
    ) -> None:
        self.raw = np.array([[int(part / nic * ONE) for part in shares]] * len(shares), np.int64)
        np.fill_diagonal(self.raw, 0)
        # For each part of a hub's section that some rank adds last to, in order: its size at this rank; its begin, in
        # bytes of the section; its begin in the bytes that this rank sends.
        self.parts = np.zeros((max(map(len, adding)), *self.raw.shape), np.int64)
        self.begins = np.zeros_like(self.parts)
        for hub, parts in enumerate(adding):
            for place, (rank, part) in enumerate(parts):
                self.begins[place, :, hub] = self.parts[:, :, hub].sum()
                self.parts[place, rank, hub] = int(part * shares[hub] / nic * ONE)
        self.gaps = self.begins - (np.cumsum(self.parts, axis=0) - self.parts)
        self.skipped = self.parts.sum(0)
        self.raw -= self.skipped
        self.needs = self.raw + self.skipped.T
        self.left, self.served, self.landed = self.needs.copy(), np.zeros_like(self.raw), np.zeros_like(self.raw)
        self.found: list[Ints] = []  # (slots, 6): rail, sender, receiver, how much, begin, size
        self.flying: list[tuple[int, Ints, Ints, Ints]] = []  # end, senders, receivers, how much
        self.gap = gap

    def put(self, i: int, k: int, rail: int, begin: int, end: int, much: int) -> None:
        """A slot that carries so much."""
        self.left[i, k] -= much
        self.served[i, k] += much
        self.put_all(np.array([[rail, i, k, much]]), begin, end)

    def put_all(self, chunks: Ints, begin: int, end: int) -> None:
        """Slots of one step that have been counted; chunks : (slots, 4), rail, sender, receiver, and how much"""
        self.found.append(np.column_stack((chunks, np.full((len(chunks), 2), (begin, end - begin)))))
        self.flying.append((end, chunks[:, 1], chunks[:, 2], chunks[:, 3]))

    def land(self, now: int) -> None:
        for end, i, k, much in self.flying:
            if end <= now - self.gap:
                np.add.at(self.landed, (i, k), much)
        self.flying = [each for each in self.flying if each[0] > now - self.gap]

    def slots(self) -> dict[tuple[int, int], list[Slot]]:
        """Those of every pair. What is left over at the end goes to the last ones."""
        rail, i, k, much, begin, size = np.concatenate(self.found).T
        if not len(rail):
            return {}  # no step is long enough for a chunk
        order = np.lexsort((rail, size, begin, k, i))
        rail, i, k, much, begin, size = (column[order] for column in (rail, i, k, much, begin, size))
        new = np.flatnonzero(np.diff(i * len(self.raw) + k, prepend=-1))
        ends = np.append(new[1:], len(i))
        much[ends - 1] += np.maximum(self.left[i[new], k[new]], 0)
        first = zip(zip(i[new].tolist(), k[new].tolist(), strict=True), new.tolist(), ends.tolist(), strict=True)
        rows = np.column_stack((begin * (HALF // ONE), size * (HALF // ONE), rail, much)).tolist()
        return {pair: [Slot(*row) for row in rows[a:z]] for pair, a, z in first}

    def ready(self, slow: int) -> Ints:
        """The amount that each rank can send a slow one: its own data, then sums as far as all others have sent
        theirs."""
        at = self.landed + np.where(self.landed >= self.gaps, self.parts, 0).sum(0)
        np.fill_diagonal(at, 2**62)
        at[slow] = 2**62
        known = at.min(0)
        known -= known // SLACK
        sums = np.clip(known - self.begins[:, slow], 0, self.parts[:, slow]).sum(0)
        found: Ints = np.clip(self.raw[:, slow] + sums - self.served[:, slow], 0, self.left[:, slow])
        return found


def greedy_slots(
    live: Sequence[Sequence[int]],
    shares: Sequence[Fraction],
    adding: Sequence[Sequence[tuple[int, Fraction]]],
    ends: Sequence[int],
    margin: Fraction,
    chunk: Fraction,
) -> tuple[Callable[[], dict[tuple[int, int], list[Slot]]], Fraction]:
    """The slots of every pair that has something to send, weighted by how much, made when they are asked for; and for
    which part of the half the starving rank's NICs can receive less than they send. Pure, and the same on every rank.

    live : the rails of each rank; shares : of each as a hub, 0 for the starving rank, and for others only if these have
    more rails; adding : for each hub's section, the ranks that add last and their parts, in order, the starving rank
    first; ends : of steps, in `ONE`; margin : part of the half from the end of a slot until its bytes are counted on;
    chunk : part of the half that a chunk costs
    """
    from optcc.schedule.compiled import exchanged  # with numba, which other families' plans do without

    ranks, lone = len(live), starving(live, shares)
    # The amount that a NIC moves in the half: the starving rank's NICs are busy all the time.
    of_lone = (sum((b for r, b in parts if r == lone), Fraction(0)) for hub, parts in enumerate(adding) if hub != lone)
    nic = (1 - max(of_lone)) / len(live[lone])
    # With slots of the longest length it sends so many chunks; their cost is left free for the others.
    nic, cost = nic / (1 - chunk / LONGEST[False]), int(chunk * ONE)
    half = _Half(shares, adding, nic, int(margin * ONE))
    late = sorted({r for parts in adding for r, _ in parts} - {lone})
    rails = sorted({rail for mine in live for rail in mine})
    on = {rail: [r for r in range(ranks) if rail in live[r]] for rail in rails}
    others_on = {rail: np.array([r != lone and rail in live[r] for r in range(ranks)]) for rail in rails}
    ids = np.arange(ranks)
    ties = (ids[:, None] * 7919 + ids * 104729) % TIES
    sending: dict[int, tuple[int, set[int]]] = {rail: (0, set()) for rail in live[lone]}  # until when, to whom
    getting = sending.copy()
    starts, idle, counts = [0, *ends], 0, [0, 0]
    brief = max(b - a for a, b in pairwise(starts)) // 2
    longest = [int(part * ONE) for part in (LONGEST if late else LONGEST_ALONE)]

    def longer(held: dict[int, tuple[int, set[int]]], turn: int, get: bool) -> int:
        """New slots of the starving rank where the last ones are over, for the rank with most data; and the rest of
        them."""
        begin, size, remains = starts[turn], starts[turn + 1] - starts[turn], 0
        much = half.ready(lone) if get else half.left[lone].copy()
        for rail in sorted((rail for rail in held if held[rail][0] <= begin), key=lambda rail: (rail + turn) % ranks):
            busy = {k for end, peers in held.values() if end > begin for k in peers}
            end, room, own = starts[turn + 1], size, set[int]()
            while room > 2 * cost and (some := [k for k in on[rail] if k not in own and much[k]]):
                k = max(some, key=lambda k: (k not in busy, int(much[k]), k))
                most = int(much[k])
                if not own:
                    end = max(end, starts[bisect_right(starts, begin + min(longest[get], most)) - 1])
                    room = end - begin
                part = min(most, room - cost)
                half.put(*((k, lone) if get else (lone, k)), rail, begin, end, part)
                room, much[k] = room - part - cost, much[k] - part
                counts[get] += 1
                own.add(k)
            held[rail] = end, own
            remains += room
        return remains

    for turn, (begin, end) in enumerate(pairwise(starts)):
        if end - begin <= min(2 * cost, brief):  # one of the first: nobody sends, as the starving server does not
            continue
        half.land(begin)
        longer(sending, turn, False)
        remains = longer(getting, turn, True)
        idle += remains
        late_out, late_in = (
            end - half.served.sum(axis) * ONE // np.maximum(half.needs.sum(axis), 1) for axis in (1, 0)
        )
        limit = half.left.copy()
        for k in late:
            limit[:, k] = half.ready(k)
        order = sorted(rails, key=lambda rail: (rail + turn) % ranks)
        senders, receivers = (np.array([others_on[rail] for rail in order]) for _ in range(2))
        for place, rail in enumerate(order):
            senders[place, list(getting.get(rail, (0, ()))[1])] = False
            receivers[place, list(sending.get(rail, (0, ()))[1])] = False
        before = half.served.copy()
        chunks = exchanged(
            senders, receivers, begin, end, cost, ONE, TIES,
            half.needs, half.served, limit, late_out[:, None] + late_in, ties,
        )  # fmt: skip
        half.left -= half.served - before
        chunks[:, 0] = np.array(order)[chunks[:, 0]]
        half.put_all(chunks, begin, end)
    whole = len(live[lone]) * ONE
    return half.slots, 1 - Fraction(whole - idle - counts[True] * cost, whole - counts[False] * cost)
