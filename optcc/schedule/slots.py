"""Slots: the times at which a NIC of a rank sends to a peer, in whole ticks of a plan of two halves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

TICKS = 2**40
"""Ticks of a whole plan, which has two halves. Whole numbers, as every rank finds its slots on its own."""
HALF = TICKS // 2
ONE = 2**28
"""Units that a NIC moves in a half, where steps are found: products of two such numbers fit into 64 bits."""
TIES = 2**13
"""Which of equal pairs a matching takes is settled by numbers below this, and where their sums are equal, too, by
`compiled.assigned`."""
SLACK = 2**12
"""1/SLACK of the landed data is left out, as cuts are rounded and pairs have a little more or less."""


class Slot(NamedTuple):
    """The time in which one NIC serves one peer.

    begin, size : ticks of the half, or of the plan
    nic : place of the NIC in its server
    weight : share of a pair's bytes, relative to the pair's other slots
    """

    begin: int
    size: int
    nic: int
    weight: int


def mirrored(given: Sequence[Slot]) -> list[Slot]:
    """The slots mirrored in time, seen from the end of the half."""
    return sorted(Slot(HALF - begin - size, size, nic, weight) for begin, size, nic, weight in given)


def whole(first: Sequence[Slot], second: Sequence[Slot]) -> list[Slot]:
    """The slots of both halves, in ticks of the plan; both halves carry as much."""
    parts = [sum(slot.weight for slot in half) for half in (second, first)]
    return [
        Slot(turn * HALF + slot.begin, slot.size, slot.nic, slot.weight * parts[turn])
        for turn, half in enumerate((first, second))
        for slot in half
    ]
