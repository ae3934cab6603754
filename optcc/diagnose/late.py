"""Which rank is late: the one that comes last waits least, so of all it sees the shortest time.

A collective ends on all ranks at nearly the same moment. Where a rank's time is much shorter than most others', these
were waiting for it: for its computation, its data, its processor. No NIC is to blame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_high

LEAST_LATE_S = 1e-3
"""Seconds from which a rank is late: kernels start some 0.1 ms apart where nothing is wrong."""
LEAST_PART = 0.1
"""Likewise, as a part of the time that the last rank sees."""
ALWAYS = 0.75
"""The part of collectives in which a rank that is told came last."""
ENOUGH = 5
"""Collectives from which anything is told."""
NEAR = 0.25
"""How near to the last rank, as a part of how late that is, other ranks count as late with it."""


@dataclass(frozen=True)
class LateRank:
    """A rank that came last, alone or with a few, in `times` of `of` collectives; `by_s` : after most others, seconds,
    the median."""

    rank: int
    times: int
    of: int
    by_s: float

    def __str__(self) -> str:
        return (
            f"rank {self.rank} comes late: last in {self.times} of {self.of} collectives, "
            f"{1e3 * self.by_s:.3g} ms after most others"
        )


def late_ranks(collectives: Sequence[Mapping[int, float]], least_s: float = LEAST_LATE_S) -> tuple[LateRank, ...]:
    """Ranks that mostly come last, the latest first.

    collectives : of each, rank -> seconds that it saw; least_s : seconds from which a rank is late
    """
    late: dict[int, list[float]] = defaultdict(list)
    for seconds in collectives:
        least, usual = min(seconds.values()), median_high(seconds.values())
        behind = usual - least
        if behind > max(least_s, LEAST_PART * least):
            for rank, its in seconds.items():
                if its <= least + NEAR * behind:
                    late[rank].append(usual - its)
    found = [
        LateRank(rank, len(by), len(collectives), median(by))
        for rank, by in late.items()
        if len(collectives) >= ENOUGH and len(by) >= ALWAYS * len(collectives)
    ]
    return tuple(sorted(found, key=lambda one: -one.by_s))
