"""Which plan the present shape gets: from the table, in closed form, carried over from the one before, or solved now.

What depends on which NIC failed is put in here, in closed form; nothing is simulated or lowered unless a shape has to
be solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from threading import Lock
from typing import Any

from optcc.errors import InfeasibleError
from optcc.planner import search
from optcc.planner.standby.answers import Basis
from optcc.planner.standby.shapes import Now
from optcc.planner.standby.table import Entry, Table
from optcc.plans.plan import Plan
from optcc.schedule.candidates import Costs, default_segments
from optcc.schedule.effort import NEARLY
from optcc.schedule.families import FAMILIES
from optcc.schedule.nested_order import rings_in_order
from optcc.schedule.recipe import Recipe
from optcc.theory import lower_bound
from optcc.theory.ring_shares import GroupCounts
from optcc.values.bound import LARGEST_GAP, Bound
from optcc.values.cluster import Cluster


class Decisions:
    """Plans of states, and the table of what was decided.

    sizes : bytes per rank; lock : held around every use of the table
    compute : runs the whole planner, such as `Background.compute`
    """

    def __init__(
        self, sizes: tuple[int, ...], costs: Costs, table: Table, lock: Lock, compute: Callable[..., Any]
    ) -> None:
        self._sizes, self._costs, self._table, self._lock, self._compute = sizes, costs, table, lock, compute

    def plan(self, now: Now, size: int, fault_free_s: Fraction, before: Recipe | None) -> tuple[Plan, Basis]:
        """The plan of state `now`; `before` is what the last state had. Raises InfeasibleError where a server is cut
        off."""
        cluster, counts = now.state.cluster, now.counts
        with self._lock:
            entry = self._table.get(now.key)
        if counts is None and entry is not None:
            return self._whole(now, size, entry)
        bound = lower_bound(cluster, size) if counts is None else counts.bound(cluster, size, fault_free_s)
        for recipe, basis in self._offers(now, bound, entry, before):
            # Whether it fits is about which NICs are dead; a shape only counts them.
            if recipe is not None and recipe.fits(cluster):
                return Plan(cluster, bound, recipe), basis
        return self._whole(now, size, None)

    def _offers(
        self, now: Now, bound: Bound, entry: Entry | None, before: Recipe | None
    ) -> Iterator[tuple[Recipe | None, Basis]]:
        """What needs no planning now, the best first."""
        cluster, counts = now.state.cluster, now.counts
        if counts is not None and self._at_bound(counts, bound, NEARLY - 1 if entry is None else LARGEST_GAP):
            depth = default_segments(bound.nbytes, counts.ranks)
            yield rings_in_order(counts.order, counts.shares(), depth), Basis.CLOSED_FORM
        if entry is not None:
            yield entry.recipe(bound.nbytes, counts) if entry.plans else None, Basis.PREPARED
        elif counts is None or not self.free:
            if before is not None and counts is not None:
                yield before.like(cluster, bound, self._costs, counts), Basis.NEAREST
            for family in FAMILIES.values():
                yield family.at_once(cluster, bound, self._costs), Basis.NEAREST

    def _whole(self, now: Now, size: int, entry: Entry | None) -> tuple[Plan, Basis]:
        """By the table, or by the whole planner."""
        basis = Basis.PREPARED if entry is not None else Basis.SOLVED
        if entry is None:
            entry = self.decide(now, urgent=True)
        if size not in entry.plans:
            lower_bound(now.state.cluster, size)  # which says who is cut off
            raise InfeasibleError("no AllReduce is possible", where="cluster", expected="one that has a schedule")
        # The key tells rates, not the way they came about: `pristine` is the planner's own.
        return replace(entry.plans[size], cluster=now.state.cluster), basis

    @property
    def free(self) -> bool:
        """Neither latency nor chunk costs: fluid times decide, and deeper is never slower."""
        return not self._costs.alpha and not self._costs.per_chunk

    def _at_bound(self, counts: GroupCounts, bound: Bound, gap: Fraction) -> bool:
        """Whether nested rings are what the planner takes without trying anything (`optcc.planner.search.choose`)."""
        return self.free and counts.rings_s * bound.nbytes <= (1 + gap) * bound.seconds

    def missing(self, now: Now) -> bool:
        """Whether the planner has yet to run for this shape."""
        if now.counts is not None:
            if not now.possible:
                return False
            bound = now.counts.bound(now.state.cluster, self._sizes[0], Fraction(0))
            if self._at_bound(now.counts, bound, LARGEST_GAP):
                return False
        with self._lock:
            return now.key not in self._table

    def decide(self, now: Now, *, urgent: bool = False) -> Entry:
        """Run the whole planner for this shape, and keep what it gives."""
        task = (now.state.cluster, self._sizes, self._costs.alpha, self._costs.per_chunk)
        entry = Entry(self._compute(solve, *task, urgent=urgent), now.counts)
        with self._lock:
            self._table.put(now.key, entry)
        return entry


def solve(cluster: Cluster, sizes: Sequence[int], alpha: Fraction, per_chunk: Fraction) -> dict[int, Plan]:
    """The best plan for each size in bytes; nothing where no AllReduce is possible. Another process can run it."""
    found = dict[int, Plan]()
    for size in sizes:
        try:
            bound = lower_bound(cluster, size)
        except InfeasibleError:
            return {}
        recipe = search.choose(cluster, bound, alpha=alpha, per_chunk=per_chunk)
        recipe.check(cluster)
        found[size] = Plan(cluster, bound, recipe)
    return found
