"""One shape, decided by the whole planner; a function of values, so that another process can run it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from optcc.cluster import Cluster
from optcc.errors import InfeasibleError
from optcc.plans import Plan


def solve(cluster: Cluster, sizes: Sequence[int], alpha: Fraction, per_chunk: Fraction) -> dict[int, Plan]:
    """`optcc.plan` for each size in bytes; nothing where no AllReduce is possible."""
    from optcc.api import plan

    try:
        return {size: plan(cluster, size, alpha=alpha, per_chunk=per_chunk) for size in sizes}
    except InfeasibleError:
        return {}
