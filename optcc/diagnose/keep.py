"""Keep or drain: what a day costs with the degraded NICs, by scheme, against a restart with one server less.

A step of the healthy job is computation and, for the part `exposed` of it, AllReduce that nothing hides. With the fault
the AllReduce takes longer, by the scheme. Draining stops the job twice, to leave the server out and to take it back,
and in between the other servers do its part of the computation. All times are of the same job, per day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf

from optcc.cluster import Cluster, Server
from optcc.evaluation.training import Job

DAY_S = 86400.0
DEFAULTS = Job()
SOURCES = {
    "step_s": "Llama 3's 405B on 16384 GPUs (Grattafiori et al. 2024, table 4)",
    "exposed": "assumed, as in the evaluation's training study",
    "restart_s": "the figure that the literature on NIC failover works with",
    "repair_s": "assumed: a working day",
    "stops": "out of the job and back into it",
}


@dataclass(frozen=True)
class Costs:
    """What the answer depends on. Defaults and their sources are those of `optcc.evaluation.training`.

    step_s : seconds of a fault-free step; exposed : the part of it that is AllReduce not hidden behind computation
    restart_s : seconds lost by one restart, work since the checkpoint included; stops : restarts that draining takes
    repair_s : seconds until the server is whole again
    """

    step_s: float = DEFAULTS.step_s
    exposed: float = DEFAULTS.exposed
    restart_s: float = DEFAULTS.restart_s
    repair_s: float = DEFAULTS.repair_s
    stops: int = 2


@dataclass(frozen=True)
class Choice:
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
class KeepOrDrain:
    """Ways to go on, the best first, and draining; `advice` in a sentence."""

    choices: tuple[Choice, ...]
    drained: tuple[str, ...]
    drain_at_once_s: float
    drain_per_day_s: float
    drain_until_repair_s: float
    advice: str


def keep_or_drain(suspected: Cluster, overheads: Mapping[str, float], costs: Costs) -> KeepOrDrain | None:
    """`overheads` : scheme -> by how much its AllReduce is longer than the fault-free one. None where nothing can be
    drained, as all servers are degraded or none is, or where no scheme goes on."""
    drained = tuple(
        now.name
        for now, before in zip(suspected.servers, suspected.fault_free.servers, strict=True)
        if now.nics != before.nics
    )
    left = len(suspected.servers) - len(drained)
    if not drained or left < 1 or not overheads:
        return None
    # The computation is as much as before, on fewer servers; the exposed part is as long as on the healthy cluster.
    slower = costs.step_s * (1 - costs.exposed) * len(drained) / left
    per_s = slower / (costs.step_s + slower)
    at_once = costs.stops * costs.restart_s
    until = at_once + per_s * costs.repair_s
    choices = []
    for name, overhead in overheads.items():
        more = costs.step_s * costs.exposed * overhead
        lost = more / (costs.step_s + more) if more < inf else 1.0
        even = at_once / (lost - per_s) if lost > per_s else inf
        choices.append(Choice(name, overhead, costs.step_s + more, lost * DAY_S, lost * costs.repair_s, even))
    choices.sort(key=lambda choice: choice.lost_per_day_s)
    return KeepOrDrain(
        tuple(choices), drained, at_once, per_s * DAY_S, until, _advice(choices[0], drained, until, costs)
    )


def _advice(best: Choice, drained: tuple[str, ...], until: float, costs: Costs) -> str:
    who = ", ".join(drained[:4]) + (" and others" if len(drained) > 4 else "")
    hours = costs.repair_s / 3600
    if best.lost_until_repair_s <= until:
        even = "never pays" if best.break_even_s == inf else f"pays after {best.break_even_s / 3600:.1f} h"
        return f"keep {who} with {best.name}: draining {even}, the repair is expected after {hours:g} h"
    after = best.break_even_s / 3600
    return f"drain {who}: going on loses more after {after:.1f} h, the repair is expected after {hours:g} h"


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
