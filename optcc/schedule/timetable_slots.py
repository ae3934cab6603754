"""Which NIC of a rank sends to which peer when: a permutation on every rail at every step.

All NICs of a rail send at the same rate. If in every step the i-th rank sends to the one d further, as much as all
others do, then nobody waits and nobody meets another sender. Rails are staggered: at any time different rails serve
different offsets d, so that in rounds/rails of the time every rank has been served by every other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

TICKS = 2**40
"""Of a whole plan; two halves."""


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


def step_sizes(peers: int, rounds: int, doublings: int, steps: int) -> list[int]:
    """Relative sizes: `steps` small ones, as many twice as large, and so on, then `rounds` full rounds of `peers`."""
    return [2 ** (i // steps) for i in range(doublings * steps)] + [2**doublings] * (rounds * peers)


def slots(nics: Sequence[int], peers: int, sizes: Sequence[int]) -> list[list[Slot]]:
    """Of each offset 1..peers, in order of time, the slots that make up its half of the plan."""
    half, total, done = TICKS // 2, sum(sizes), 0
    found: list[list[Slot]] = [[] for _ in range(peers)]
    for step, size in enumerate(sizes):
        begin, end = half * done // total, half * (done + size) // total
        for i, nic in enumerate(nics):
            found[(step + i * peers // len(nics)) % peers].append(Slot(begin, end - begin, nic, size))
        done += size
    return found


def mirrored(given: Sequence[Slot]) -> list[Slot]:
    """The same slots seen from the end of the half."""
    return sorted(slot._replace(begin=TICKS // 2 - slot.begin - slot.size) for slot in given)


def merged(given: Sequence[tuple[Sequence[Slot], float]]) -> list[Slot]:
    """All in order of time, weighted so that each of the sequences carries its part of the whole."""
    found: list[Slot] = []
    for mine, part in given:
        whole, total = int(part * TICKS), sum(slot.weight for slot in mine)
        found += (slot._replace(weight=whole * slot.weight // total) for slot in mine)
    return sorted(found)
