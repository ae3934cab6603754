"""Studies that are not one cell of a grid: the star of other planners, fabrics with rails, and what size costs."""

from __future__ import annotations

import math
import resource
import time
from dataclasses import dataclass, replace
from fractions import Fraction

from optcc.evaluation.cells import ALPHA, NIC_RATE, NICS, NVLINK_RATE, PER_CHUNK
from optcc.schedule.columns import Schedule
from optcc.values.cluster import Cluster, Fabric, degrade_all

STAR_SEGMENTS = 128


@dataclass(frozen=True)
class Star:
    """`servers` nodes with one NIC each, the first ones at `left` of the others' rate; no latency."""

    servers: int
    left: tuple[Fraction, ...]
    nbytes: int = 2**30

    @property
    def weight(self) -> float:
        """See `Cell.weight`."""
        return self.servers**2 * math.sqrt(self.nbytes)

    def run(self) -> StarResult:
        """Our plan."""
        from optcc.api import plan
        from optcc.simulation.simulator import simulate

        cluster = Cluster.uniform(servers=self.servers, rate=NIC_RATE)
        for i, left in enumerate(self.left):
            cluster = cluster.degrade(f"server{i}/nic0", left)
        made = plan(cluster, self.nbytes, segments=STAR_SEGMENTS)
        bound_s = float(made.bound.seconds)
        return StarResult(
            simulate(made.schedule(), receivers="stripes").time_s / bound_s, bound_s * float(NIC_RATE) / self.nbytes
        )


@dataclass(frozen=True)
class StarResult:
    """See `Star`. ratio : simulated time of our plan over the optimum; optimum : in units of n over a healthy node's
    rate.
    """

    ratio: float
    optimum: float


@dataclass(frozen=True)
class Rails:
    """`servers` of `rails` NICs, each on its own rail; `dead` are (server, rail). `spine`: oversubscription or None.
    left : of the rate of those NICs, where they are not dead but slow; pod : no rails, but pods of so many servers,
    whose uplinks carry 1/spine of their NICs' rates
    """

    servers: int
    rails: int
    dead: tuple[tuple[int, int], ...]
    spine: int | None
    nbytes: int
    left: Fraction = Fraction(0)
    pod: int = 0

    @property
    def whole(self) -> Cluster:
        """The cluster before the failure."""
        spine = None if self.spine is None else Fraction(self.spine)
        made = Cluster.uniform(servers=self.servers, nics=self.rails, rate=NIC_RATE)
        if not self.pod:
            return replace(made, fabric=Fabric(rails=True, spine=spine))
        servers = tuple(replace(server, pod=f"pod{s // self.pod}") for s, server in enumerate(made.servers))
        return replace(made, servers=servers, fabric=Fabric(pod_oversubscription=spine))

    @property
    def fabric(self) -> str:
        """Rails or pods, in words."""
        if self.pod:
            return f"pods of {self.pod}, {self.spine} to 1"
        spine = "no spine" if self.spine is None else f"spine {self.spine} to 1"
        return f"{self.rails} rails, {spine}"

    @property
    def cluster(self) -> Cluster:
        """The degraded cluster."""
        return degrade_all(self.whole, ((f"server{server}/nic{rail}", self.left) for server, rail in self.dead))

    @property
    def failure(self) -> str:
        """Which NICs are dead or slow, in words."""
        place = "nic" if self.pod else "rail "
        names = ", ".join(f"server{server} {place}{rail}" for server, rail in self.dead)
        return f"{names} at {self.left}" if self.left else names

    @property
    def weight(self) -> float:
        """See `Cell.weight`."""
        return self.servers**2 * math.sqrt(self.nbytes)

    def run(self) -> RailsResult:
        """Our plan, and the fault-free ring on the same fabric, at the page's costs."""
        from optcc.api import lower_bound, lower_bound_with_costs, plan
        from optcc.planner.search import candidates
        from optcc.schedule.baselines import balance
        from optcc.schedule.recipe import CandidateFamily
        from optcc.simulation.simulator import simulate

        whole = self.whole
        made = plan(self.cluster, self.nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
        with_costs = lower_bound_with_costs(self.cluster, self.nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
        rings = CandidateFamily("ring", lambda segments: balance(whole, segments))
        least = lower_bound(whole, self.nbytes)
        ring = candidates([rings], whole, least, alpha=ALPHA, per_chunk=PER_CHUNK)[0].recipe

        def time_s(schedule: Schedule) -> float:
            return simulate(schedule, alpha=ALPHA, per_chunk=PER_CHUNK, receivers="packets").time_s

        return RailsResult(
            bound_s=float(made.bound.seconds),
            with_costs_s=float(with_costs.seconds),
            unavoidable=float(made.bound.overhead),
            fluid_s=float(made.fluid_s),
            time_s=time_s(made.schedule()),
            fault_free_s=time_s(ring.lower(whole, self.nbytes)),
            family=made.recipe.family,
            segments=made.recipe.segments,
        )


@dataclass(frozen=True)
class RailsResult:
    """See `Rails`. with_costs_s : the bound at the page's costs; unavoidable : bound over the fault-free bound, less 1;
    time_s, fault_free_s : simulated seconds of our plan and of the fault-free ring.
    """

    bound_s: float
    with_costs_s: float
    unavoidable: float
    fluid_s: float
    time_s: float
    fault_free_s: float
    family: str
    segments: int

    @property
    def overhead(self) -> float:
        """Our plan's simulated time over the fault-free ring's, less 1."""
        return self.time_s / self.fault_free_s - 1


@dataclass(frozen=True)
class Cost:
    """What it costs to plan for `servers` servers of 8 GPUs with one dead NIC, and how fast the plan is.

    gpus : GPUs as ranks over NVLink; else a server is a rank
    """

    servers: int
    gpus: bool
    nbytes: int = 2**30

    @property
    def weight(self) -> float:
        """All the same: they are not run beside each other."""
        return 1

    def run(self) -> CostResult:
        """Measured on this machine: seconds of wall clock and peak memory; simulated: the time over the bound."""
        from optcc.api import lower_bound_with_costs, plan
        from optcc.simulation.simulator import simulate

        simulate(plan(Cluster.uniform(servers=2, rate=1000), 4096).schedule())  # loads what is compiled
        cluster = Cluster.uniform(servers=self.servers, nics=NICS, rate=NIC_RATE, nvlink_rate=NVLINK_RATE)
        cluster = replace(cluster, gpu_ranks=self.gpus).degrade("server1/nic0")
        begin = time.perf_counter()
        made = plan(cluster, self.nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
        planned = time.perf_counter()
        schedule = made.schedule()
        lowered = time.perf_counter()
        time_s = simulate(schedule, alpha=ALPHA, per_chunk=PER_CHUNK).time_s
        simulated = time.perf_counter()
        least = lower_bound_with_costs(cluster, self.nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
        return CostResult(
            family=made.recipe.family,
            segments=made.recipe.segments,
            transfers=len(schedule),
            plan_s=planned - begin,
            lower_s=lowered - planned,
            simulate_s=simulated - lowered,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            ratio=time_s / float(made.bound.seconds),
            ratio_with_costs=time_s / float(least.seconds),
        )


@dataclass(frozen=True)
class CostResult:
    """See `Cost`. transfers : rows of the schedule; ratio, ratio_with_costs : simulated time over the bound."""

    family: str
    segments: int
    transfers: int
    plan_s: float
    lower_s: float
    simulate_s: float
    peak_bytes: int
    ratio: float
    ratio_with_costs: float
