"""Which GPU a NIC sits beside: the nearest, and where several are as near, they are dealt out evenly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def deal(near: Sequence[Sequence[int]]) -> list[int | None]:
    """For each NIC one of its nearest GPUs, `near[i]`, the one with the fewest NICs so far; None where none is near."""
    load = Counter[int]()
    dealt: list[int | None] = [None] * len(near)
    for several in (False, True):  # those without a choice first
        for nic, gpus in enumerate(near):
            if gpus and (len(gpus) > 1) == several:
                beside = min(gpus, key=lambda g: (load[g], g))
                load[beside] += 1
                dealt[nic] = beside
    return dealt
