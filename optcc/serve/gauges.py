"""What Prometheus is told of a job: its degraded NICs, what they cost, what was achieved over what is possible."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from optcc.diagnose.diagnosis import set_costs
from optcc.diagnose.fit import Sure
from optcc.diagnose.keep import InterruptionCosts, keep_or_drain, overhead, overheads_of
from optcc.errors import InfeasibleError
from optcc.planner.standby.planner import Planner
from optcc.plans.plan import Plan
from optcc.reports.metrics import ACHIEVED, DRAIN, EVENTS, JOB, JOB_LABEL, NIC_LEFT, OVERHEAD, Gauges
from optcc.values.cluster import Cluster


@dataclass(frozen=True)
class _Seen:
    """An AllReduce that the job has measured, and of which cluster: least possible seconds over its own."""

    cluster: Cluster
    healthy: float
    suspected: float


class JobGauges:
    """Of one job; `exposed` : the part of a fault-free step that is AllReduce and not hidden.

    What takes long is computed once for each state of the cluster, and kept: by one thread at a time.
    """

    def __init__(self, name: str, planner: Planner, exposed: float) -> None:
        self._name, self._planner, self._costs = name, planner, InterruptionCosts(exposed=exposed)
        self._made: tuple[Cluster, Gauges] | None = None
        self._seen: _Seen | None = None

    def measured(self, nbytes: int, seconds: float) -> None:
        """The job's AllReduce of `nbytes` per rank took so long on the cluster as it is. The last one counts."""
        plan = self._planner.plan(nbytes)
        bound = plan.bound
        self._seen = _Seen(plan.cluster, float(bound.fault_free_s) / seconds, float(bound.seconds) / seconds)

    def gauges(self) -> Gauges:
        """All of them as they are now."""
        cluster = self._planner.cluster
        if self._made is None or self._made[0] is not cluster:
            self._made = cluster, self._of(cluster)
        made, seen = self._made[1], self._seen
        made.set(EVENTS, self._planner.events, self._name)
        if seen is not None and seen.cluster is cluster:  # what was measured before an event is of another one
            made.set(ACHIEVED, seen.healthy, self._name, "all_reduce", "healthy")
            made.set(ACHIEVED, seen.suspected, self._name, "all_reduce", "suspected")
        return made

    def _of(self, cluster: Cluster) -> Gauges:
        gauges, nbytes = Gauges(JOB, (JOB_LABEL,)), self._planner.sizes[-1]
        hurt = []
        for server, whole in zip(cluster.servers, cluster.fault_free.servers, strict=True):
            for nic, was in zip(server.nics, whole.nics, strict=True):
                if nic != was:
                    hurt.append(server.name)
                    left = min(nic.out_rate / was.out_rate, nic.in_rate / was.in_rate)
                    gauges.set(NIC_LEFT, float(left), self._name, server.name, nic.name, Sure.CERTAIN)
        try:
            plan: Plan | None = self._planner.plan(nbytes)
        except InfeasibleError:
            plan = None
        ours = None if plan is None else max(0.0, float(plan.fluid_s / plan.bound.fault_free_s) - 1)
        gauges.set(OVERHEAD, inf if plan is None else float(plan.bound.overhead), self._name)
        # Those that stay are valued by the bound: a plan for them would be another job's work.
        keep = keep_or_drain(
            cluster, overheads_of(cluster, ours), self._costs, lambda part: overhead(part, nbytes)
        )  # fmt: skip
        if keep is not None:
            set_costs(gauges, keep, self._name)
            for name in dict.fromkeys(hurt):
                gauges.set(DRAIN, not keep.keep and name in keep.drain.servers, self._name, name)
        return gauges
