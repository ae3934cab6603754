"""Schedules inside servers as the planner tries them: nested rings between servers, and direct exchange."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import isqrt

from optcc.schedule.candidates import CandidateFamily, Costs, default_segments
from optcc.schedule.effort import LARGE, MANY
from optcc.schedule.inside import InsideServers
from optcc.schedule.inside_groups import gpu_groups, shares_by_rate, usable, view
from optcc.schedule.inside_parts import inside_exchange, inside_servers
from optcc.schedule.recipe import MAX_SEGMENTS, Recipe
from optcc.schedule.tuned import WAYS
from optcc.values.bound import Bound
from optcc.values.cluster import Cluster


def inside_candidates(cluster: Cluster, bound: Bound, costs: Costs) -> list[CandidateFamily]:
    """Rings; where there are costs direct exchange, too, and among many servers alone: rings as long as that are
    millions of transfers."""
    direct = _direct(cluster, bound, costs) if costs else []
    return direct if direct and len(cluster.servers) > LARGE else [_rings(cluster, bound, costs), *direct]


def inside_at_once(cluster: Cluster, bound: Bound, costs: Costs) -> Recipe:
    """Direct exchange where there are costs and it applies, else rings; two segments where there are costs. Raises
    InfeasibleError where servers have no place in common."""
    from optcc.theory.inside_split import parts_at_once

    if costs and (direct := _direct(cluster, bound, costs)):
        return direct[0].make(direct[0].guess or 2)
    segments = 2 if costs else default_segments(bound.nbytes, len(cluster.ranks), gpus=True)
    return inside_servers(cluster, parts_at_once(cluster), segments, chunks=best_chunks(cluster, bound, costs))


def best_chunks(cluster: Cluster, bound: Bound, costs: Costs) -> int | None:
    """The number of runs of a channel for which their costs and the time of the last one add up to least; None where
    runs cost nothing.

    Where NVLink is the limit, n runs of a channel cost its GPU n (G-1) chunks, and those of the other channels as many.
    The last of n, half as long as others, takes 1/2n of the time. Where NICs are the limit, NVLink has time to spare,
    and twice as many are best (simulated, docs/schedules.md).
    """
    cost, many = costs.per_chunk or costs.alpha, [server for server in cluster.servers if server.gpus > 1]
    if not cost or not many:
        return None
    others = max(server.gpus for server in many) - 1
    nvlink_s = max(2 * (1 - Fraction(1, server.gpus)) * bound.nbytes / server.nvlink_rate for server in many)
    best = isqrt(int(bound.seconds / (4 * others * cost) * (1 if nvlink_s >= bound.seconds else 4)))
    return min(MAX_SEGMENTS, max(1, best))


def _rings(cluster: Cluster, bound: Bound, costs: Costs) -> CandidateFamily:
    from optcc.theory.inside_split import InsideSplit, inside_split

    @cache
    def split() -> InsideSplit:
        return inside_split(cluster)

    def make(segments: int) -> Recipe:
        return inside_servers(cluster, split().parts, segments, chunks=best_chunks(cluster, bound, costs))

    return CandidateFamily(InsideServers.family, make)


def _direct(cluster: Cluster, bound: Bound, costs: Costs) -> list[CandidateFamily]:
    """Direct exchange between servers, where all their GPUs can meet; also with growing rounds by way of slow servers
    (`StripedExchange.candidates`), among many servers only where a server is hub of nothing."""
    from optcc.theory.ring_shares import hub_split

    own = gpu_groups(cluster)
    if not cluster.fabric.flat or len(own) < 3 or not all(any(map(usable, group.gpus)) for group in own):
        return []
    shares, via = hub_split(view(cluster, own, shares_by_rate(own)))
    chunks = best_chunks(cluster, bound, costs)

    def make(segments: int) -> Recipe:
        return inside_exchange(cluster, shares, via, segments, chunks=chunks)

    def growing(ways: int) -> Recipe:
        return inside_exchange(cluster, shares, via, -(-ways // WAYS), ways=ways, chunks=chunks)

    many, large = len(own) > MANY, len(own) > LARGE
    guess, deepest = 1 if many else 2 if large else None, 1 if many else None
    found = [CandidateFamily(InsideServers.family, make, guess, deepest=deepest)]
    idle = any(not shares[r] for r, _ in via)  # hub of nothing, it waits longest in a single round
    if via and not many and (idle or not large):
        found.append(CandidateFamily(InsideServers.family, growing, WAYS if large else None))
    return found
