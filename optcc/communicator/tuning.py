"""Which plan a size class goes by: the planner's candidates, each measured by the first calls of the class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from optcc.api import plan
from optcc.errors import InputError
from optcc.plans.plan import Plan
from optcc.values.cluster import Cluster

ROUNDS = 8
"""Calls that measure a plan. The fastest counts: the first three or so touch new memory, and others may wait for a
process that the machine runs later. With 3, eight of twelve communicators kept the plan that was a third slower later;
with 8 none of 24 (4 ranks of one machine, 1 MiB)."""

DEPTHS = (4, Fraction(1, 4))
"""Segments of further candidates over the planner's choice. The best number grows with the square root of a chunk's
cost. So these suit a cost that is off by a factor of 16 either way."""


def candidates(cluster: Cluster, nbytes: int, transport: str, alpha: Fraction, per_chunk: Fraction) -> list[Plan]:
    """Plans for `nbytes` per rank, each once, the one to begin with first.

    transport, alpha, per_chunk : as of `clusters.MessageCosts`

    Processes of one machine (transport "local") are as fast as its memory, whatever NICs they are given. Each step
    waits until other processes get a processor, so there plans have one segment.
    """
    if transport == "local":
        first = plan(cluster, nbytes, segments=1)
        others: list[tuple[str, int]] = [("direct-exchange", 1)]
    else:
        first = plan(cluster, nbytes, alpha=alpha, per_chunk=per_chunk)
        recipe = first.recipe
        others = [(recipe.family, max(1, int(recipe.segments * factor))) for factor in DEPTHS]
    found = {first.plan_id: first}
    for family, segments in others:
        try:
            other = plan(cluster, nbytes, family=family, segments=segments)
        except InputError:
            continue  # not a family, or not a depth, for this cluster
        found.setdefault(other.plan_id, other)
    return list(found.values())


class Trial:
    """The plans of a size class, of which one is kept once each has been measured.

    plans : at least one; the first is used where none may be tried
    seconds : by plan, of this rank's calls so far, per byte
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans = tuple(plans)
        self.seconds: list[list[float]] = [[] for _ in plans]
        self._chosen = 0 if len(plans) == 1 else None

    @property
    def now(self) -> int:
        """Which plan the next call runs, the same on all ranks that have called alike."""
        if self._chosen is not None:
            return self._chosen
        return min(range(len(self.plans)), key=lambda i: len(self.seconds[i]))

    @property
    def plan(self) -> Plan:
        """The plan of the next call."""
        return self.plans[self.now]

    def took(self, seconds: float, nbytes: int) -> None:
        """What the call took on this rank, from when it came to when it had the result."""
        if self._chosen is None:
            self.seconds[self.now].append(seconds / nbytes)

    def choose(self, exchange: Callable[[list[list[float]]], list[list[list[float]]]]) -> bool:
        """Whether a plan is chosen by this. `exchange` : all ranks' values, by rank; called when all are measured."""
        if self._chosen is not None or len(self.seconds[-1]) < ROUNDS:
            return False
        times = fastest(exchange(self.seconds))
        self._chosen = times.index(min(times))
        return True


def fastest(seconds: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """By plan, the time of its fastest call; `seconds` : by rank, plan and call.

    A call takes as long as on the rank that came last, which has waited for nobody: the least of all ranks.
    """
    plans = zip(*seconds, strict=True)
    return [min(min(call) for call in zip(*of_ranks, strict=True)) for of_ranks in plans]
