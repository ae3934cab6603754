"""A whole diagnosis: evidence, verdict, what was achieved, what repairs gain, keep or drain; and its JSON value."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcc.diagnose.evidence import Evidence, NicDirections, Sign
from optcc.diagnose.fit import DEGRADED
from optcc.diagnose.keep import (
    Achieved,
    InterruptionCosts,
    KeepOrDrain,
    achieved,
    keep_or_drain,
    overhead,
    overheads_of,
    plan_overhead,
    repairs,
)
from optcc.diagnose.verdict import Finding, Outcome, Verdict, judge
from optcc.files.writing import write_file
from optcc.reports.metrics import (
    ACHIEVED,
    ALIKE,
    DIAGNOSIS,
    DRAIN,
    LOST,
    MADE,
    MISFIT,
    NIC_LEFT,
    OUTCOME,
    OVERHEAD,
    PATHS,
    RANK_FAILED,
    SERVER_LEFT,
    Gauges,
    text_of,
)
from optcc.values.bound import repairs_json, together_json
from optcc.values.cluster import Cluster

if TYPE_CHECKING:
    from optcc.theory.sensitivity import JointRepair, Repair


VERSION = 1


@dataclass(frozen=True)
class Question:
    """What is asked beside the evidence. nbytes : of the AllReduce that repairs and schemes are valued by; noise : the
    spread between runs, None: as they show it; degraded : the part of its rate that a NIC lacks at least where it is
    called degraded; alpha, per_chunk : seconds, for bounds with costs."""

    nbytes: int = 2**30
    noise: float | None = None
    degraded: float = DEGRADED
    alpha: Fraction = Fraction(0)
    per_chunk: Fraction = Fraction(0)
    costs: InterruptionCosts = field(default_factory=InterruptionCosts)


@dataclass(frozen=True)
class Diagnosis:
    """All of it. `suspected` : the cluster at the rates found."""

    cluster: Cluster
    suspected: Cluster
    evidence: Evidence
    verdict: Verdict
    achieved: tuple[Achieved, ...]
    repair_first: tuple[Repair, ...]
    repair_together: tuple[JointRepair, ...]
    overhead: float | None
    keep: KeepOrDrain | None
    question: Question


def diagnose(cluster: Cluster, evidence: Evidence, question: Question | None = None) -> Diagnosis:
    """The diagnosis of `cluster`, which is at its healthy rates."""
    asked = question or Question()
    ports = NicDirections(cluster)
    verdict = judge(evidence, ports, asked.noise, asked.degraded)
    suspected = verdict.suspected(cluster)
    found = achieved(evidence.observations, ports, suspected, asked.alpha, asked.per_chunk)
    if verdict.outcome is not Outcome.DEGRADED or len(cluster.servers) < 2:
        return Diagnosis(cluster, suspected, evidence, verdict, found, (), (), None, None, asked)
    first, together = repairs(suspected, asked.nbytes)
    overheads = overheads_of(suspected, plan_overhead(suspected, asked.nbytes))
    keep = keep_or_drain(suspected, overheads, asked.costs, lambda part: plan_overhead(part, asked.nbytes))
    least = overhead(suspected, asked.nbytes)
    return Diagnosis(cluster, suspected, evidence, verdict, found, first, together, least, keep, asked)


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    """The value of ``optcc diagnose --json``, as optcc/schema/diagnosis-1.schema.json documents it."""
    verdict = found.verdict
    return {
        "version": VERSION,
        "outcome": str(verdict.outcome),
        "nics": [_finding(one) for one in verdict.findings],
        "paths": [{"where": p.where, "kind": p.kind, "left": p.left, "nics": list(p.nics)} for p in verdict.paths],
        "servers": [
            {
                "server": one.server,
                "left": one.left,
                "sure": str(one.sure),
                "more_faults_without": one.more,
                "nics": list(one.nics),
            }
            for one in verdict.servers
        ],
        "slow_alike": [{"kind": a.kind, "of_nameplate": a.reached, "alike": a.alike} for a in verdict.alike],
        "causes": list(verdict.causes),
        "beyond_nameplate": [
            {"kind": b.kind, "of_nameplate": b.reached, "where": b.where, "why": b.why} for b in verdict.beyond
        ],
        "together": list(verdict.together),
        "signs": [_sign(sign, found.cluster) for sign in verdict.signs],
        "measure": [{"why": m.why, "command": m.command} for m in verdict.measure],
        "fit": {
            "measurements": verdict.measured,
            "averages": verdict.averaged,
            "noise": verdict.noise,
            "misfit": verdict.misfit,
            "healthy": [{"kind": s.kind, "of_nameplate": s.part, "measured": s.measured} for s in verdict.standards],
            "unmeasured": list(verdict.unmeasured),
        },
        "achieved": [_achieved(one) for one in found.achieved],
        "size_bytes": found.question.nbytes,
        "unavoidable_overhead": found.overhead,
        "repair_first": repairs_json(found.repair_first),
        "repair_together": together_json(found.repair_together),
        "keep_or_drain": None if found.keep is None else _keep(found.keep, found.question.costs),
        "read": list(found.evidence.read),
        "unused": list(found.evidence.unused),
    }


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "nic": one.nic,
        "out_left": one.out,
        "in_left": one.into,
        "spread": one.spread,
        "sure": str(one.sure),
        "more_faults_without": one.more,
        "instead": list(one.instead),
        "twins": list(one.twins),
        "explains": one.explains,
        "where": list(one.where),
        "signs": [sign.what for sign in one.signs],
    }


def _sign(sign: Sign, cluster: Cluster) -> dict[str, Any]:
    nic = None if sign.nic is None else NicDirections(cluster).names[sign.nic]
    return {"server": sign.server, "nic": nic, "what": sign.what, "where": sign.where, "grave": sign.grave}


def _achieved(one: Achieved) -> dict[str, Any]:
    return {
        "collective": one.kind,
        "size_bytes": one.nbytes,
        "servers": one.servers,
        "measurements": one.repeats,
        "time_s": one.time_s,
        "healthy_bound_s": one.healthy_s,
        "healthy_bound_with_costs_s": one.healthy_costs_s,
        "suspected_bound_s": one.suspected_s,
        "suspected_bound_with_costs_s": one.suspected_costs_s,
        "of_healthy": one.over_healthy,
        "of_suspected": one.over_suspected,
    }


def _keep(keep: KeepOrDrain, costs: InterruptionCosts) -> dict[str, Any]:
    return {
        "keep": keep.keep,
        "advice": keep.advice,
        "drained": list(keep.drain.servers),
        "drain_allreduce_overhead": keep.drain.overhead,
        "drain_at_once_s": keep.drain.at_once_s,
        "drain_lost_per_day_s": keep.drain.lost_per_day_s,
        "drain_until_repair_s": keep.drain.lost_until_repair_s,
        "step_s": costs.step_s,
        "exposed": costs.exposed,
        "restart_s": costs.restart_s,
        "repair_s": costs.repair_s,
        "restarts": costs.restarts,
        "spares": costs.spares,
        "schemes": [
            {
                "scheme": c.name,
                "allreduce_overhead": _finite(c.overhead),
                "step_s": _finite(c.step_s),
                "lost_per_day_s": c.lost_per_day_s,
                "lost_until_repair_s": c.lost_until_repair_s,
                "break_even_s": _finite(c.break_even_s),
            }
            for c in keep.choices
        ],
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity: null is never, or without end."""
    return None if value == inf else value


def servers_to_drain(found: Diagnosis) -> tuple[str, ...]:
    """Those that the advice drains; none where it keeps them."""
    return () if found.keep is None or found.keep.keep else found.keep.drain.servers


def metrics_text(found: Diagnosis, at_s: float | None = None) -> bytes:
    """Prometheus' text format. `at_s` : seconds since the epoch that the diagnosis is of; None: now."""
    gauges = Gauges(DIAGNOSIS)
    for one in found.verdict.findings:
        server, _, nic = one.nic.partition("/")
        gauges.set(NIC_LEFT, one.left, server, nic, one.sure)
    for slow in found.verdict.servers:
        gauges.set(SERVER_LEFT, slow.left, slow.server, slow.sure)
    for kind in found.verdict.alike:
        gauges.set(ALIKE, kind.reached, kind.kind)
    for done in found.achieved:
        gauges.set(ACHIEVED, done.over_healthy, done.kind, "healthy")
        if done.over_suspected is not None:
            gauges.set(ACHIEVED, done.over_suspected, done.kind, "suspected")
    if found.overhead is not None:
        gauges.set(OVERHEAD, found.overhead)
    elif found.verdict.outcome is Outcome.HEALTHY:
        gauges.set(OVERHEAD, 0)
    if found.keep is not None:
        set_costs(gauges, found.keep)
        drained = servers_to_drain(found)
        for server in {one.nic.partition("/")[0]: None for one in found.verdict.findings}:
            gauges.set(DRAIN, server in drained, server)
    for outcome in Outcome:
        gauges.set(OUTCOME, outcome is found.verdict.outcome, outcome)
    gauges.set(MADE, time.time() if at_s is None else at_s)
    gauges.set(MISFIT, found.verdict.misfit)
    gauges.set(PATHS, len(found.verdict.paths))
    for sign in found.verdict.signs:
        if sign.rank is not None:
            gauges.set(RANK_FAILED, 1, sign.server, str(sign.rank), sign.what)
    return text_of(gauges)


def set_costs(gauges: Gauges, keep: KeepOrDrain, *before: str) -> None:
    """What each way to go on loses per day, and draining; `before` : values of labels before these."""
    for choice in keep.choices:
        gauges.set(LOST, choice.lost_per_day_s, *before, choice.name)
    gauges.set(LOST, keep.drain.lost_per_day_s, *before, "drain")


def write_metrics(found: Diagnosis, path: Path, at_s: float | None = None) -> None:
    """Write them whole or not at all, as the textfile collector wants it. Raises InputError where that cannot be."""
    write_file(path, metrics_text(found, at_s))
