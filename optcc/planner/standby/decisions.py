"""Which plan the present shape gets: from the table, in closed form, carried over from a similar one, or solved now.

What depends on which NIC failed is put in here, in closed form; nothing is simulated or lowered unless a shape has to
be solved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from threading import Lock
from typing import Any

from optcc.errors import InfeasibleError
from optcc.planner.search import NEAR, SAME
from optcc.planner.standby.answers import Basis
from optcc.planner.standby.shapes import Now
from optcc.planner.standby.solve import solve
from optcc.planner.standby.table import Entry, Table
from optcc.plans.plan import Plan
from optcc.schedule.candidates import Costs, default_segments
from optcc.schedule.families import FAMILIES
from optcc.schedule.nested_order import rings_in_order
from optcc.schedule.recipe import Recipe
from optcc.theory import lower_bound
from optcc.theory.group_counts import GroupCounts
from optcc.values.bound import Bound
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

    def plan(self, now: Now, size: int, fault_free_s: Fraction) -> tuple[Plan, Basis]:
        """The plan of state `now`. Raises InfeasibleError where a server is cut off."""
        cluster, counts = now.state.cluster, now.counts
        with self._lock:
            entry = self._table.get(now.key)
            near = self._table.nearest(counts) if entry is None and counts is not None else None
        if counts is None:
            made = self._at_once(cluster, size) if entry is None else None
            return (made, Basis.NEAREST) if made else self._whole(now, size, entry)
        bound = counts.bound(cluster, size, fault_free_s)
        found: tuple[Recipe, Basis] | None = None
        if self._at_bound(counts, bound, SAME):
            found = (
                rings_in_order(counts.order, counts.shares(), self._depth(cluster, size)),
                Basis.CLOSED_FORM,
            )
        elif entry is not None and entry.plans:
            found = _with_basis(entry.recipe(size, counts), Basis.PREPARED)
        elif self._at_bound(counts, bound, NEAR - 1):
            found = (
                rings_in_order(counts.order, counts.shares(), self._depth(cluster, size)),
                Basis.CLOSED_FORM,
            )
        elif near is not None and not self.free:
            found = _with_basis(self._nearest(near, size, cluster, counts, bound), Basis.NEAREST)
        if found is not None and not found[0].fits(cluster):
            found = None  # it is about which NICs are dead; a shape only counts them
        if found is None:
            return self._whole(now, size, None)
        found[0].check(cluster)
        return Plan(cluster, bound, found[0]), found[1]

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

    def _at_once(self, cluster: Cluster, size: int) -> Plan | None:
        """Outside the closed form: what the first family that has something at once has; None where none has."""
        bound = lower_bound(cluster, size)
        made = (family.at_once(cluster, bound, self._costs) for family in FAMILIES.values())
        found = next((recipe for recipe in made if recipe is not None and recipe.fits(cluster)), None)
        return None if found is None else Plan(cluster, bound, found)

    def _nearest(self, entry: Entry, size: int, cluster: Cluster, counts: GroupCounts, bound: Bound) -> Recipe | None:
        """What the entry's shape has, carried over, or what a family has at once; None where there is neither."""
        tried = (
            entry.plans[size].recipe.like(cluster, bound, self._costs, counts),
            *(family.at_once(cluster, bound, self._costs) for family in FAMILIES.values()),
        )
        return next((made for made in tried if made is not None and made.fits(cluster)), None)

    def _depth(self, cluster: Cluster, size: int) -> int:
        return default_segments(size, len(cluster.servers))

    def missing(self, now: Now) -> bool:
        """Whether the planner has yet to run for this shape."""
        if now.counts is not None:
            if not now.possible:
                return False
            bound = now.counts.bound(now.state.cluster, self._sizes[0], Fraction(0))
            if self._at_bound(now.counts, bound, SAME):
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


def _with_basis(recipe: Recipe | None, basis: Basis) -> tuple[Recipe, Basis] | None:
    return None if recipe is None else (recipe, basis)
