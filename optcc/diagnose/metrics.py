"""A diagnosis as Prometheus metrics, for node_exporter's textfile collector."""

from __future__ import annotations

import time
from pathlib import Path

from optcc.diagnose.diagnosis import Diagnosis, servers_to_drain
from optcc.diagnose.keep import KeepOrDrain
from optcc.diagnose.verdict import Outcome
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
    SERVER_LEFT,
    Gauges,
    text_of,
)


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
    return text_of(gauges)


def set_costs(gauges: Gauges, keep: KeepOrDrain, *before: str) -> None:
    """What each way to go on loses per day, and draining; `before` : values of labels before these."""
    for choice in keep.choices:
        gauges.set(LOST, choice.lost_per_day_s, *before, choice.name)
    gauges.set(LOST, keep.drain.lost_per_day_s, *before, "drain")


def write_metrics(found: Diagnosis, path: Path, at_s: float | None = None) -> None:
    """Write them whole or not at all, as the textfile collector wants it. Raises InputError where that cannot be."""
    write_file(path, metrics_text(found, at_s))
