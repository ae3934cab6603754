"""What was achieved over what is possible, on the healthy and on the suspected cluster; and what repairs would gain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING

from optcc.diagnose.evidence import Observation
from optcc.diagnose.ports import NicDirections
from optcc.errors import InfeasibleError
from optcc.schedule.recipe import Costs
from optcc.values.cluster import Cluster

if TYPE_CHECKING:
    from optcc.theory.sensitivity import JointRepair, Repair

BOUNDED = {"all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reduce-scatter",
           "broadcast": "broadcast", "reduce": "reduce"}  # fmt: skip
"""Kinds of measurements for which there is a certified bound."""
MOST_BOUNDS = 5
"""Bounds of one verdict: one for each collective, of its largest size on the most servers."""


@dataclass(frozen=True)
class Achieved:
    """One collective: seconds, the median over repeats, and the least possible.

    healthy_s, suspected_s : certified bounds of the cluster without and with the faults found; None where that cluster
    cannot do it at all
    healthy_costs_s, suspected_costs_s : likewise with latency and cost per chunk; equal to these where both are 0
    """

    kind: str
    nbytes: int
    servers: int
    repeats: int
    time_s: float
    healthy_s: float
    healthy_costs_s: float
    suspected_s: float | None
    suspected_costs_s: float | None

    @property
    def over_healthy(self) -> float:
        """The least possible time of the healthy cluster over what was achieved: 1 is as good as can be."""
        return self.healthy_costs_s / self.time_s

    @property
    def over_suspected(self) -> float | None:
        """Likewise of the suspected cluster."""
        return None if self.suspected_costs_s is None else self.suspected_costs_s / self.time_s


def achieved(
    observations: Sequence[Observation], ports: NicDirections, suspected: Cluster, alpha: Fraction, per_chunk: Fraction
) -> tuple[Achieved, ...]:
    """For collectives over all NICs of their servers. Broadcast and reduce go by their roots."""
    groups: dict[tuple[str, int, tuple[str, ...], str | None], list[Observation]] = defaultdict(list)
    for seen in observations:
        if seen.kind in BOUNDED and seen.time_s and not seen.failed and _uses_all(seen, ports):
            root = seen.root if seen.kind in ("broadcast", "reduce") else None
            groups[seen.kind, seen.nbytes, seen.servers, root].append(seen)
    best: dict[str, tuple[str, int, tuple[str, ...], str | None]] = {}
    for key in groups:
        if key[0] not in best or (len(key[2]), key[1]) > (len(best[key[0]][2]), best[key[0]][1]):
            best[key[0]] = key
    found = []
    for key in list(best.values())[:MOST_BOUNDS]:
        kind, nbytes, servers, root = key
        time_s = median(seen.time_s for seen in groups[key])
        healthy = _bounds(part_of(ports.cluster, servers), kind, nbytes, root, alpha, per_chunk)
        now = _bounds(part_of(suspected, servers), kind, nbytes, root, alpha, per_chunk)
        if healthy is not None:
            found.append(
                Achieved(kind, nbytes, len(servers), len(groups[key]), time_s, *healthy, *(now or (None, None)))
            )
    return tuple(found)


def _bounds(
    cluster: Cluster, kind: str, nbytes: int, root: str | None, alpha: Fraction, per_chunk: Fraction
) -> tuple[float, float] | None:
    from optcc import api

    try:
        found = api.lower_bound_with_costs(
            cluster, nbytes, alpha=alpha, per_chunk=per_chunk, collective=BOUNDED[kind], root=root
        )
    except InfeasibleError:
        return None
    return float(found.bound.seconds), float(found.seconds)


def _uses_all(seen: Observation, ports: NicDirections) -> bool:
    used = {number // 2 for number in seen.used}
    return all(nic in used for server in seen.servers for nic in ports.nics_of(server))


def part_of(cluster: Cluster, servers: Sequence[str]) -> Cluster:
    """The cluster of these servers alone."""
    kept = tuple(server for server in cluster.servers if server.name in servers)
    before = None if cluster.pristine is None else part_of(cluster.pristine, servers)
    return cluster if len(kept) == len(cluster.servers) else replace(cluster, servers=kept, pristine=before)


def repairs(suspected: Cluster, nbytes: int) -> tuple[tuple[Repair, ...], tuple[JointRepair, ...]]:
    """As ``optcc bound --repair-first``; empty where the suspected cluster has no AllReduce at all."""
    from optcc import api

    try:
        return api.repair_first(suspected, nbytes), api.repair_together(suspected, nbytes)
    except InfeasibleError:
        return (), ()


def overhead(suspected: Cluster, nbytes: int) -> float | None:
    """By which part any AllReduce takes longer than on the healthy cluster; None where there is none."""
    from optcc import api

    try:
        return float(api.lower_bound(suspected, nbytes).overhead)
    except InfeasibleError:
        return None


def plan_overhead(suspected: Cluster, nbytes: int) -> float | None:
    """By which part our plan's AllReduce takes longer, without latency; None where there is none.

    On rails and in pods the planner takes minutes for a large cluster. There it is a plan that a family makes at once,
    if there is one. It is within some per cent of the bound, and the planner's is no slower.
    """
    from optcc import api
    from optcc.schedule.families import FAMILIES

    try:
        bound = api.lower_bound(suspected, nbytes)
    except InfeasibleError:
        return None
    if not suspected.fabric.flat:
        made = (family.at_once(suspected, bound, Costs(Fraction(0), Fraction(0))) for family in FAMILIES.values())
        found = next((recipe for recipe in made if recipe is not None and recipe.fits(suspected)), None)
        if found is not None:
            return max(0.0, float(found.fluid_s(suspected, nbytes) / bound.fault_free_s) - 1)
    return max(0.0, float(api.plan(suspected, nbytes).fluid_s / bound.fault_free_s) - 1)
