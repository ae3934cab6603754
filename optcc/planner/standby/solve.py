"""One shape, decided by the whole planner; a function of values, so that another process can run it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from optcc.errors import InfeasibleError
from optcc.plans.plan import Plan
from optcc.values.cluster import Cluster


def solve(cluster: Cluster, sizes: Sequence[int], alpha: Fraction, per_chunk: Fraction) -> dict[int, Plan]:
    """The best plan for each size in bytes; nothing where no AllReduce is possible."""
    from optcc.planner.search import choose
    from optcc.theory import lower_bound

    found = dict[int, Plan]()
    for size in sizes:
        try:
            bound = lower_bound(cluster, size)
        except InfeasibleError:
            return {}
        recipe = choose(cluster, bound, alpha=alpha, per_chunk=per_chunk)
        recipe.check(cluster)
        found[size] = Plan(cluster, bound, recipe)
    return found
