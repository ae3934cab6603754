"""Schedules inside servers as the planner tries them: nested rings between servers, and direct exchange."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from optcc.schedule.candidates import LARGE, MANY, CandidateFamily, Costs, default_segments
from optcc.schedule.inside import InsideServers
from optcc.schedule.inside_groups import gpu_groups, shares_by_rate, usable, view
from optcc.schedule.inside_parts import inside_exchange, inside_servers
from optcc.schedule.recipe import Recipe
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster


def inside_candidates(cluster: Cluster, costs: Costs) -> list[CandidateFamily]:
    """Rings; where there are costs direct exchange, too, and among many servers alone: rings as long as that are
    millions of transfers."""
    direct = _direct(cluster) if costs else []
    return direct if direct and len(cluster.servers) > MANY else [_rings(cluster), *direct]


def inside_at_once(cluster: Cluster, bound: Bound, costs: Costs) -> Recipe:
    """Direct exchange where there are costs and it applies, else rings; two segments where there are costs. Raises
    InfeasibleError where servers have no place in common."""
    from optcc.theory.inside import parts_at_once

    if costs and (direct := _direct(cluster)):
        return direct[0].make(direct[0].guess or 2)
    segments = 2 if costs else default_segments(bound.nbytes, len(cluster.ranks), gpus=True)
    return inside_servers(cluster, parts_at_once(cluster), segments)


def _rings(cluster: Cluster) -> CandidateFamily:
    from optcc.theory.inside import InsideSplit, inside_split

    @cache
    def split() -> InsideSplit:
        return inside_split(cluster)

    return CandidateFamily(InsideServers.family, lambda segments: inside_servers(cluster, split().parts, segments))


def _direct(cluster: Cluster) -> list[CandidateFamily]:
    """Direct exchange between servers, where all their GPUs can meet."""
    from optcc.theory.hubs import hub_split

    own = gpu_groups(cluster)
    if not cluster.fabric.flat or len(own) < 3 or not all(any(map(usable, group.gpus)) for group in own):
        return []

    @cache
    def split() -> tuple[tuple[Fraction, ...], tuple[tuple[int, Fraction], ...]]:
        return hub_split(view(cluster, own, shares_by_rate(own)))

    def make(segments: int) -> Recipe:
        return inside_exchange(cluster, *split(), segments)

    many, large = len(own) > MANY, len(own) > LARGE
    return [
        CandidateFamily(InsideServers.family, make, 1 if many else 2 if large else None, deepest=1 if many else None)
    ]
