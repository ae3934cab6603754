"""What a slow rank that alone sets the bound can be sent when: sums that a hub has by then, and no more.

Such a rank is the hub of nothing. Its NICs are to receive sums from the beginning, and a hub has a sum as far as every
full rank has sent it what it adds. A slot in which a sum is still missing is cut shorter, or left out. How much that is
in all says how much the rank should add last to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from optcc.schedule.timetable_slots import Slot

UNIT = 2**22
"""What the parts of a hub's section are counted in."""
SLACK = 2**12
"""One part in so many of what a hub has is left out, so that rounding makes no slot of a large message wait."""


def sums_in_time(
    slow: int, ranks: int, via: Fraction, times: Callable[[int, int], Sequence[Slot]]
) -> tuple[dict[int, list[Slot]], Fraction]:
    """By hub, the slots in which it sends sums to the slow rank, weighted by how much; and the part of the half in
    which the slow rank's NICs could receive but have nothing to.

    via : the part of each hub's section that the slow rank adds last to; times : of a pair, its slots in the first half
    """
    gathered: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    found: dict[int, list[Slot]] = {}
    idle = capacity = 0
    for hub in (r for r in range(ranks) if r != slow):
        mine = times(hub, slow)
        begins = np.array([slot.begin for slot in mine])
        has = np.full(len(mine), UNIT)
        for sender in (r for r in range(ranks) if r not in (hub, slow)):
            slots = times(sender, hub)
            if id(slots) not in gathered:
                weights = np.cumsum([0, *(slot.weight for slot in slots)])
                ends = np.maximum.accumulate([slot.begin + slot.size for slot in slots])
                gathered[id(slots)] = ends, weights * UNIT // weights[-1]
            ends, parts = gathered[id(slots)]
            has = np.minimum(has, parts[np.searchsorted(ends, begins, "right")])
        # What the slow rank sends a hub, the rest of the section, fills as many ticks as all these slots.
        ticks = sum(slot.size for slot in mine)
        whole, sent, own = int(via * UNIT), 0, []
        for slot, known in zip(mine, (has - has // SLACK).tolist(), strict=True):
            room = int((1 - via) * UNIT * slot.size / ticks)
            part = min(room, max(known - sent, 0), whole - sent)
            own.append(slot._replace(weight=part))
            sent += part
            idle, capacity = idle + room - part, capacity + room
        own[-1] = own[-1]._replace(weight=own[-1].weight + whole - sent)
        found[hub] = [slot for slot in own if slot.weight]
    return found, Fraction(idle, capacity)
