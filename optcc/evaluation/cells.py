"""One cell of the evaluation: a cluster with dead NICs, a size, a scheme, and its simulated time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from optcc.cluster import Cluster
from optcc.errors import InputError
from optcc.schedule.recipe import Recipe

ALPHA = Fraction(5, 10**6)
PER_CHUNK = Fraction(1, 10**6)
NIC_RATE = Fraction(50 * 10**9)
NICS = 8
NVLINK_RATE = Fraction(450 * 10**9)
FAULT_FREE = "fault-free ring"
OPTCC = "optcc"


@dataclass(frozen=True)
class Outcome:
    """What a cell's scheme reached, simulated; `refused` says why it has no time.

    bound_s, fault_free_s : the bounds with and without the failure, alpha = 0
    """

    time_s: float
    bound_s: float
    fault_free_s: float
    family: str = ""
    segments: int = 0
    refused: str = ""


@dataclass(frozen=True)
class Cell:
    """`servers` of `NICS` NICs; `dead[i]` NICs of the i-th server are dead, or at `left` of their rate; an AllReduce of
    `nbytes` per server.

    segments : fixed; None: what suits the scheme best
    staggered : the i-th server's dead NICs begin at its NIC i, not all at NIC 0
    alpha, per_chunk : seconds from NIC to NIC, and for every chunk on every port
    """

    servers: int
    dead: tuple[int, ...]
    nbytes: int
    scheme: str
    segments: int | None = None
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

    def of(self, scheme: str) -> Cell:
        """The same failure, size and costs under another scheme, with the number of segments that suits it best."""
        if scheme == FAULT_FREE:
            return replace(self, scheme=scheme, dead=(), segments=None, staggered=False, left=Fraction(0))
        return replace(self, scheme=scheme, segments=None)

    def run(self) -> Outcome:
        """The scheme's time with its `segments`; without, the best over its numbers of segments."""
        from optcc.api import lower_bound, plan
        from optcc.planner import suited
        from optcc.schedule.baselines import BASELINES

        cluster = self.cluster
        bound = lower_bound(cluster, self.nbytes)
        bounds = float(bound.seconds), float(bound.fault_free_s)
        if self.scheme == OPTCC:
            recipe = plan(cluster, self.nbytes, alpha=self.alpha, per_chunk=self.per_chunk).recipe
            return Outcome(self._time_s(recipe), *bounds, recipe.family, recipe.segments)
        if self.scheme == FAULT_FREE and not (self.alpha or self.per_chunk):
            return Outcome(bounds[1], *bounds, "ring")  # more segments are always better: the limit is the bound
        name = "balance" if self.scheme == FAULT_FREE else self.scheme
        try:
            if self.segments:
                recipe = BASELINES[name](cluster, self.segments)
            else:
                recipe = suited(name, cluster, bound, alpha=self.alpha, per_chunk=self.per_chunk)
            return Outcome(self._time_s(recipe), *bounds, recipe.family, recipe.segments)
        except InputError as error:
            return Outcome(float("nan"), *bounds, refused=str(error))

    def least_s(self) -> Fraction:
        """See `whole_chunks_s`."""
        return whole_chunks_s(self.cluster, self.nbytes, self.alpha, self.per_chunk)

    def _time_s(self, recipe: Recipe) -> float:
        """Plans are chosen with receivers that take whole stripes, which is quicker, but for fabrics with links between
        switches; reported is what packets give."""
        from optcc.simulator import simulate

        schedule = recipe.lower(self.cluster, self.nbytes)
        return simulate(schedule, alpha=self.alpha, per_chunk=self.per_chunk, receivers="packets").time_s


def whole_chunks_s(cluster: Cluster, nbytes: int, alpha: Fraction, per_chunk: Fraction) -> Fraction:
    """Seconds that no schedule of whole chunks undercuts, by what two starving servers lose; 0 without such a pair.

    nbytes : bytes per server; alpha, per_chunk : seconds. Proof id starving-pair.
    """
    from optcc.theory.starving_pair import starving_pair_s

    return starving_pair_s(cluster, nbytes, alpha, per_chunk) or Fraction(0)
