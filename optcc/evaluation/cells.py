"""One cell of the evaluation: a cluster with dead NICs, a size, a scheme, and its simulated time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from optcc.errors import InputError
from optcc.schedule.recipe import Recipe
from optcc.values.cluster import Cluster

ALPHA = Fraction(5, 10**6)
PER_CHUNK = Fraction(1, 10**6)
PER_CHUNKS = (Fraction(0), Fraction(1, 10**7), Fraction(1, 2 * 10**6), PER_CHUNK)
"""Seconds for every chunk on every port in the tables of one straggler. Public figures differ by a factor of 1,000. A
write of 16 KiB at 380 Gb/s, as perftest reports it, leaves about 0.01 us; NCCL's issue 2409 speaks of 10 us a step.
"""
NIC_RATE = Fraction(50 * 10**9)
NICS = 8
NVLINK_RATE = Fraction(450 * 10**9)
FAULT_FREE = "fault-free ring"
OPTCC = "optcc"


@dataclass(frozen=True)
class CellOutcome:
    """What a cell's scheme reached, simulated; `refused` says why it has no time.

    bound_s, fault_free_s : the bounds with and without the failure, without costs
    with_costs_s : the bound with the failure at the cell's costs
    way : of a rival: channels or stripes
    """

    time_s: float
    bound_s: float
    fault_free_s: float
    with_costs_s: float
    family: str = ""
    segments: int = 0
    way: str = ""
    refused: str = ""

    @property
    def over_bound(self) -> float:
        """Simulated time over the bound with costs; nan where the scheme has no time."""
        return self.time_s / self.with_costs_s


@dataclass(frozen=True)
class EvaluationCell:
    """`servers` of `NICS` NICs; `dead[i]` NICs of the i-th server are dead, or at `left` of their rate; an AllReduce of
    `nbytes` per server.

    staggered : the i-th server's dead NICs begin at its NIC i, not all at NIC 0
    alpha, per_chunk : seconds from NIC to NIC, and for every chunk on every port
    """

    servers: int
    dead: tuple[int, ...]
    nbytes: int
    scheme: str
    staggered: bool = False
    alpha: Fraction = ALPHA
    per_chunk: Fraction = PER_CHUNK
    left: Fraction = Fraction(0)

    @cached_property
    def cluster(self) -> Cluster:
        """The degraded cluster; without failures for the fault-free ring."""
        cluster = Cluster.uniform(servers=self.servers, nics=NICS, rate=NIC_RATE)
        for server, count in enumerate(() if self.scheme == FAULT_FREE else self.dead):
            first = server if self.staggered else 0
            for nic in range(first, first + count):
                cluster = cluster.degrade(f"server{server}/nic{nic % NICS}", self.left)
        return cluster

    def of(self, scheme: str) -> EvaluationCell:
        """The same failure, size and costs under another scheme."""
        if scheme == FAULT_FREE:
            return replace(self, scheme=scheme, dead=(), staggered=False, left=Fraction(0))
        return replace(self, scheme=scheme)

    @property
    def weight(self) -> float:
        """About how long it takes beside others: what does not fit the end of a run begins first."""
        depth = math.sqrt(self.nbytes) / (1 + float(self.per_chunk) / 1e-7)
        return self.servers**2 * depth * (1 if self.scheme in (OPTCC, "optcc-published", "r2cc") else 0.1)

    def run(self) -> CellOutcome:
        """Our plan; or a rival in the way, and with the number of segments, that suit it best."""
        from optcc.api import lower_bound_with_costs, plan
        from optcc.evaluation.rivals import best, way_of

        cluster = self.cluster
        least = lower_bound_with_costs(cluster, self.nbytes, alpha=self.alpha, per_chunk=self.per_chunk)
        bound = least.bound
        bounds = float(bound.seconds), float(bound.fault_free_s), float(least.seconds)
        if self.scheme == OPTCC:
            recipe = plan(cluster, self.nbytes, alpha=self.alpha, per_chunk=self.per_chunk).recipe
            return CellOutcome(self._time_s(recipe), *bounds, recipe.family, recipe.segments)
        name = "balance" if self.scheme == FAULT_FREE else self.scheme
        try:
            recipe = best(name, cluster, self.nbytes, alpha=self.alpha, per_chunk=self.per_chunk)
            time_s = self._time_s(recipe)
        except InputError as error:
            return CellOutcome(float("nan"), *bounds, refused=str(error))
        return CellOutcome(time_s, *bounds, recipe.family, recipe.segments, way_of(recipe))

    def _time_s(self, recipe: Recipe) -> float:
        """Plans are chosen with receivers that take whole stripes, which is quicker, but for fabrics with links between
        switches; reported is what packets give."""
        from optcc.simulation.simulator import simulate

        schedule = recipe.lower(self.cluster, self.nbytes)
        return simulate(schedule, alpha=self.alpha, per_chunk=self.per_chunk, receivers="packets").time_s
