"""Which NIC of a rank sends to which peer when: a permutation on every rail at every step.

All NICs of a rail send at the same rate. If in every step the i-th rank sends to the one d further, as much as all
others do, then nobody waits and nobody meets another sender. Rails are staggered: at any time different rails serve
different offsets d, so that in (P-1)/rails steps, a *round*, every rank has been served by every other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from math import lcm
from typing import NamedTuple

TICKS = 2**40
"""Of a whole plan; two halves."""
HALF = TICKS // 2
SCALE = 4096
LAST = Fraction(3, 4)
"""Of a growing timetable's last round: its length in rounds of steps as large as the last growing one."""


Steps = Sequence[tuple[Sequence[int], int]]
"""(By sender its receiver, itself if none; how long), one after the other."""


class Slot(NamedTuple):
    """One step of one rail for one offset.

    begin, size : ticks of the half
    nic : place of the NIC in its server
    weight : how much of a pair's bytes it carries, beside the pair's other slots
    """

    begin: int
    size: int
    nic: int
    weight: int


def full_rounds(nics: Sequence[int], peers: int, count: int) -> list[list[Slot]]:
    """Of each offset 1..peers, in order of time, its slots in `count` rounds, in each of which it has one per rail."""
    return _in_turn(nics, peers, [HALF * step // (count * peers) for step in range(count * peers + 1)])


def growing_steps(count: int, growth: Fraction, steps: Fraction) -> list[int]:
    """Where steps begin and the last one ends, in ticks of the half: `count` rounds of so many steps, each round
    `growth` times as long as the one before, every step longer than the one before by the same factor, up to 1/4096.
    A last round as long as `LAST` rounds of the last step is to follow.
    """
    factor = _root(growth, steps)
    sizes = [2**64]  # whole numbers: fractions of so many steps would get very long
    for _ in range(max(1, round(count * steps)) - 1):
        sizes.append(sizes[-1] * factor // SCALE)
    total = sum(sizes) + int(LAST * steps * sizes[-1])
    return [HALF * done // total for done in accumulate(sizes, initial=0)]


def _root(growth: Fraction, steps: Fraction) -> int:
    """The largest number of 1/4096 whose power of `steps` is at most `growth`, which is 1 or more."""
    low, high = SCALE, int(SCALE * growth) + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = Fraction(middle, SCALE) ** steps.numerator <= growth**steps.denominator
        low, high = (middle, high) if fits else (low, middle)
    return low


def growing_rounds(nics: Sequence[int], peers: int, steps: Sequence[int], ahead: int = 0) -> list[list[Slot]]:
    """Of each offset its slots in growing steps, and in a last round.

    The last round evens out what offsets have had. It is laid from one rail to the next, so that some of its slots are
    cut in two, and no rail has more than another. steps : of `growing_steps`; ahead : offsets by which all rails are so
    """
    found = _in_turn(nics, peers, steps, ahead)
    rails, begin, length = len(nics), steps[-1], HALF - steps[-1]
    lacks = [max(0, HALF * rails - peers * sum(slot.size for slot in own)) for own in found]
    order = [(len(steps) - 1 + ahead + x) % peers for x in range(peers)]
    cuts = [length * rails * done // sum(lacks) for done in accumulate((lacks[d] for d in order), initial=0)]
    for d, (low, high) in zip(order, pairwise(cuts), strict=True):
        for rail, nic in enumerate(nics):
            a, b = (min(max(end - rail * length, 0), length) for end in (low, high))
            if b > a:
                found[d].append(Slot(begin + a, b - a, nic, b - a))
    return [sorted(own) for own in found]


def _in_turn(nics: Sequence[int], peers: int, ends: Sequence[int], ahead: int = 0) -> list[list[Slot]]:
    """Steps that end at these ticks; in each a rail serves the offset that follows the one before."""
    found: list[list[Slot]] = [[] for _ in range(peers)]
    for step, (begin, end) in enumerate(pairwise(ends)):
        for i, nic in enumerate(nics):
            if end > begin:
                found[(step + ahead + i * peers // len(nics)) % peers].append(
                    Slot(begin, end - begin, nic, end - begin)
                )
    return found


def in_turns(steps: Steps, count: int, ahead: Fraction) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(sender, receiver) -> (begin, size) in ticks of the half, of steps that come again in each of `count` rounds.

    ahead : part of a round that has gone by at first
    """
    one = sum(lasts for _, lasts in steps)

    def tick(at: int) -> int:
        return HALF * min(max(at, 0), count * one) // (count * one)

    now = -int(ahead * one)
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for receivers, lasts in [*steps] * (count + 1):
        begin, end = tick(now), tick(now + lasts)
        now += lasts
        for pair in enumerate(receivers) if end > begin else ():
            if pair[0] == pair[1]:
                continue
            slots = found.setdefault(pair, [])
            if slots and sum(slots[-1]) == begin and len(steps) > 1:  # a single step is cut by the rounds
                slots[-1] = slots[-1][0], end - slots[-1][0]
            else:
                slots.append((begin, end - begin))
    return found


def portions(steps: Steps, count: int) -> list[Steps]:
    """The steps, one after the other, cut into `count` portions that last as long; some steps are cut in two."""
    whole = sum(lasts for _, lasts in steps)
    ends, now = [whole * turn // count for turn in range(count + 1)], 0
    found: list[list[tuple[Sequence[int], int]]] = [[] for _ in range(count)]
    for receivers, lasts in steps:
        for own, begin, end in zip(found, ends, ends[1:], strict=False):
            part = min(end, now + lasts) - max(begin, now)
            if part > 0:
                own.append((receivers, part))
        now += lasts
    return list(found)


def mirrored(given: Sequence[Slot]) -> list[Slot]:
    """The same slots seen from the end of the half."""
    return sorted(Slot(HALF - begin - size, size, nic, weight) for begin, size, nic, weight in given)


def in_time(given: Sequence[Slot], live: Mapping[int, Sequence[int]]) -> list[Slot]:
    """The slots of the second half, towards a rank with these NICs. Of m that act as one each takes m times as long for
    its part of a chunk as the sender, who sends one part after the other; so that the last part of a plan is not late,
    the last slot carries that much less."""
    parts = {nic: len(lane) for nic, lane in live.items() if len(lane) > 1}
    if not parts:
        return list(given)
    every = lcm(*parts.values())
    ends = [slot.nic in parts and slot.begin + slot.size >= HALF for slot in given]
    return [
        slot._replace(weight=slot.weight * (every // parts[slot.nic] if last else every))
        for slot, last in zip(given, ends, strict=True)
    ]


def whole(first: Sequence[Slot], second: Sequence[Slot]) -> list[Slot]:
    """The slots of both halves, as ticks of the plan. Both carry as much."""
    parts = [sum(slot.weight for slot in half) for half in (second, first)]
    return [
        Slot(turn * HALF + slot.begin, slot.size, slot.nic, slot.weight * parts[turn])
        for turn, half in enumerate((first, second))
        for slot in half
    ]


def merged(given: Sequence[tuple[Sequence[Slot], float]]) -> list[Slot]:
    """All in order of time, weighted so that each of the sequences carries its part of the whole."""
    found: list[Slot] = []
    for mine, part in given:
        whole, total = int(part * TICKS), sum(slot.weight for slot in mine)
        found += (slot._replace(weight=whole * slot.weight // total) for slot in mine)
    return sorted(found)
