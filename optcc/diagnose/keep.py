"""Keep or drain: what a day costs with the degraded NICs, by scheme, against a restart without the worst servers.

A step of the healthy job is computation and, for the part `exposed` of it, AllReduce that nothing hides. With the fault
the AllReduce takes longer, by the scheme. Draining stops the job twice: to leave servers out and to take them back. In
between the other servers, or spares, do their part of the computation. Where several servers are degraded, it may be
best to drain the worst and to keep the others. All times are of the same job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from statistics import median
from typing import TYPE_CHECKING

from optcc.diagnose.evidence import NicDirections, Observation
from optcc.discover.topology import listed
from optcc.errors import InfeasibleError
from optcc.schedule.recipe import Costs
from optcc.study.training import TrainingJob
from optcc.values.cluster import Cluster, Server

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


DAY_S = 86400.0
DEFAULTS = TrainingJob()
SOURCES = {
    "step_s": "Llama 3's 405B on 16384 GPUs (Grattafiori et al. 2024, table 4)",
    "exposed": "assumed, as in the evaluation's training study",
    "restart_s": "the figure that the literature on NIC failover works with",
    "repair_s": "assumed: a working day",
    "restarts": "out of the job and back into it",
    "spares": "assumed: no server stands by",
}
MOST_DRAINED = 4
"""How many of the worst servers are left out one after the other, before all degraded ones are: each takes a plan."""


@dataclass(frozen=True)
class InterruptionCosts:
    """What the answer depends on. Defaults and their sources are those of `optcc.study.training`.

    step_s : seconds of a fault-free step; exposed : the part of it that is AllReduce not hidden behind computation
    restart_s : seconds lost by one restart, work since the checkpoint included; restarts : how many draining takes
    repair_s : seconds until the servers are whole again; spares : servers that stand by to take a drained one's place
    """

    step_s: float = DEFAULTS.step_s
    exposed: float = DEFAULTS.exposed
    restart_s: float = DEFAULTS.restart_s
    repair_s: float = DEFAULTS.repair_s
    restarts: int = 2
    spares: int = 0


@dataclass(frozen=True)
class Alternative:
    """One way to go on: `overhead` of its AllReduce over the fault-free one, seconds lost per day and until the repair.

    break_even_s : when draining would have been better, infinite where never
    """

    name: str
    overhead: float
    step_s: float
    lost_per_day_s: float
    lost_until_repair_s: float
    break_even_s: float


@dataclass(frozen=True)
class Drain:
    """The job without `servers`, the worst ones; `overhead` of the AllReduce of those that stay.

    at_once_s : seconds lost by the restarts; the others : besides that per day, and in all until the repair
    """

    servers: tuple[str, ...]
    overhead: float
    at_once_s: float
    lost_per_day_s: float
    lost_until_repair_s: float


@dataclass(frozen=True)
class KeepOrDrain:
    """Ways to go on, the best first, none where no AllReduce is possible; the best that draining does.

    keep : whether going on loses less until the repair; advice : a sentence that begins with keep or drain
    """

    choices: tuple[Alternative, ...]
    drain: Drain
    keep: bool
    advice: str


def keep_or_drain(
    suspected: Cluster,
    overheads: Mapping[str, float],
    costs: InterruptionCosts,
    overhead_of: Callable[[Cluster], float | None],
) -> KeepOrDrain | None:
    """`overheads` : scheme -> by how much its AllReduce is longer than the fault-free one; empty where there is none.

    overhead_of : the same of our plan, for a part of the cluster; None where that has no AllReduce either
    Returns None where nothing can be drained: no server is degraded, or none that stays has an AllReduce.
    """
    drains = list(_drains(suspected, costs, overhead_of))
    if not drains:
        return None
    drain = min(drains, key=lambda one: one.lost_until_repair_s)
    choices = []
    for name, overhead in overheads.items():
        step_s = costs.step_s * (1 + costs.exposed * overhead)
        lost = _lost(step_s, costs)
        gained = lost - drain.lost_per_day_s / DAY_S
        even = drain.at_once_s / gained if gained > 0 else inf
        choices.append(Alternative(name, overhead, step_s, lost * DAY_S, lost * costs.repair_s, even))
    choices.sort(key=lambda choice: choice.lost_per_day_s)
    keep = bool(choices) and choices[0].lost_until_repair_s <= drain.lost_until_repair_s
    advice = _advice(choices[0] if choices else None, drain, keep, _degraded(suspected), costs)
    return KeepOrDrain(tuple(choices), drain, keep, advice)


def _lost(step_s: float, costs: InterruptionCosts) -> float:
    """The part of the time that is lost where a step takes so long."""
    return 1 - costs.step_s / step_s


def _degraded(suspected: Cluster) -> tuple[str, ...]:
    """The degraded servers, the one with the least of its rate left first."""
    found = [
        (_left(now) / _left(before), now.name)
        for now, before in zip(suspected.servers, suspected.fault_free.servers, strict=True)
        if now.nics != before.nics
    ]
    return tuple(name for _, name in sorted(found, key=lambda one: one[0]))


def _left(server: Server) -> Fraction:
    return min(sum((nic.out_rate for nic in server.nics), Fraction(0)),
               sum((nic.in_rate for nic in server.nics), Fraction(0)))  # fmt: skip


def _drains(
    suspected: Cluster, costs: InterruptionCosts, overhead_of: Callable[[Cluster], float | None]
) -> Iterator[Drain]:
    worst, all_ = _degraded(suspected), len(suspected.servers)
    for count in sorted({*range(1, min(len(worst), MOST_DRAINED) + 1), len(worst)} - {0}):
        names = [server.name for server in suspected.servers if server.name not in worst[:count]]
        if not names:
            return
        # One server alone has no AllReduce over the network, and whole servers none that takes longer.
        simple = len(names) == 1 or count == len(worst)
        overhead = 0.0 if simple else overhead_of(part_of(suspected, names))
        if overhead is None:
            continue
        # The computation is as much as before, on fewer servers; of whole ones AllReduce takes as long as before.
        fewer = max(0, count - costs.spares)
        step_s = costs.step_s * ((1 - costs.exposed) * all_ / (all_ - fewer) + costs.exposed * (1 + overhead))
        at_once, lost = costs.restarts * costs.restart_s, _lost(step_s, costs)
        yield Drain(worst[:count], overhead, at_once, lost * DAY_S, at_once + lost * costs.repair_s)


def _advice(
    best: Alternative | None, drain: Drain, keep: bool, degraded: tuple[str, ...], costs: InterruptionCosts
) -> str:
    hours = costs.repair_s / 3600
    repair = f"the repair is expected after {hours:g} h"
    if best is not None and keep:
        even = "never pays" if best.break_even_s == inf else f"pays after {best.break_even_s / 3600:.1f} h"
        return f"keep {listed(degraded)} with {best.name}: draining {listed(drain.servers)} {even}, {repair}"
    others = [name for name in degraded if name not in drain.servers]
    who = listed(drain.servers) + (f" and keep {listed(others)} with optcc's plan" if others else "")
    if best is None:
        return f"drain {who}: no AllReduce is possible as it is"
    return f"drain {who}: going on loses more after {best.break_even_s / 3600:.1f} h, {repair}"


def overheads_of(suspected: Cluster, ours: float | None) -> dict[str, float]:
    """Of our plan, the ring, and hot repair where a NIC is dead, by fluid time over the fault-free ring's.

    ours : of our plan; None where there is none: then there is none of the others either
    """
    if ours is None:
        return {}
    healthy = _ring(suspected.fault_free)
    found = {"optcc's plan": ours, "the ring": _ring(suspected) / healthy - 1}
    if any(not (nic.out_rate and nic.in_rate) for server in suspected.servers for nic in server.nics):
        repaired = _repaired(suspected)
        if repaired is not None:
            found["hot repair"] = repaired / healthy - 1
    return found


def _ring(cluster: Cluster) -> float:
    """Seconds per byte of a ring that gives each live NIC of a server an equal part (docs/baselines.md: ring)."""
    return max(_of_equal_parts(server) for server in cluster.servers)


def _of_equal_parts(server: Server) -> float:
    live = [min(nic.out_rate, nic.in_rate) for nic in server.nics if nic.out_rate and nic.in_rate]
    return float(Fraction(1, len(live)) / min(live)) if live else inf


def _repaired(cluster: Cluster) -> float | None:
    """Seconds per byte where a dead NIC's channel moves, at both ends, to its pair (docs/baselines.md: hot-repair);
    None where servers differ in NICs, or a pair is dead as well."""
    servers = cluster.servers
    channels = len(servers[0].nics)
    if any(len(server.nics) != channels for server in servers):
        return None
    dead = [{i for i, nic in enumerate(s.nics) if not (nic.out_rate and nic.in_rate)} for s in servers]
    worst = 0.0
    for s, server in enumerate(servers):
        for other in (s - 1, (s + 1) % len(servers)):  # it receives from the one and sends to the other
            gone = dead[s] | dead[other]
            places = [channel ^ 1 if channel in gone else channel for channel in range(channels)]
            if any(place in gone or place >= channels for place in places):
                return None
            for place, count in Counter(places).items():
                rate = server.nics[place].in_rate if other == s - 1 else server.nics[place].out_rate
                worst = max(worst, float(Fraction(count, channels) / rate))
    return worst
