"""A diagnosis as Prometheus metrics, for node_exporter's textfile collector."""

from __future__ import annotations

from pathlib import Path

from optcc.diagnose.diagnosis import Diagnosis
from optcc.errors import InputError
from optcc.outputs import write_file

NAMES = (
    "optcc_nic_suspected_fraction",
    "optcc_nic_certain",
    "optcc_achieved_ratio",
    "optcc_unavoidable_overhead_ratio",
    "optcc_lost_seconds_per_day",
    "optcc_diagnosis_outcome",
    "optcc_diagnosis_timestamp_seconds",
    "optcc_diagnosis_misfit_ratio",
    "optcc_slow_paths",
)
"""All of them; the dashboard and the alert rules use no other."""


def metrics_text(found: Diagnosis, at_s: float | None = None) -> bytes:
    """Prometheus' text format. `at_s` : seconds since the epoch that the diagnosis is of; None: now."""
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest
    except ModuleNotFoundError as error:
        raise InputError(
            "a package is missing", where="--prometheus", expected="the extra metrics", got=error.name,
            hint="pip install prometheus-client",
        ) from None  # fmt: skip
    import time

    registry = CollectorRegistry()

    def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=registry)

    left = gauge(NAMES[0], "What is left of the NIC's rate in its worse way, by the evidence", ("server", "nic"))
    sure = gauge(NAMES[1], "1 where no other explanation is near, else 0", ("server", "nic"))
    for one in found.verdict.findings:
        server, _, nic = one.nic.partition("/")
        left.labels(server, nic).set(one.left)
        sure.labels(server, nic).set(one.sure == "certain")
    ratio = gauge(NAMES[2], "Certified least time over the time achieved", ("collective", "cluster"))
    for done in found.achieved:
        ratio.labels(done.kind, "healthy").set(done.over_healthy)
        if done.over_suspected is not None:
            ratio.labels(done.kind, "suspected").set(done.over_suspected)
    if found.overhead is not None:
        gauge(NAMES[3], "What any AllReduce must take longer on the suspected cluster").set(found.overhead)
    lost = gauge(NAMES[4], "Training time lost per day by going on, or by draining", ("choice",))
    if found.keep is not None:
        for choice in found.keep.choices:
            lost.labels(choice.name).set(choice.lost_per_day_s)
        lost.labels("drain").set(found.keep.drain.lost_per_day_s)
    outcome = gauge(NAMES[5], "1 for the outcome of the last diagnosis", ("outcome",))
    for name in ("degraded", "healthy", "cannot tell"):
        outcome.labels(name).set(name == found.verdict.outcome)
    gauge(NAMES[6], "When the last diagnosis was made").set(time.time() if at_s is None else at_s)
    gauge(NAMES[7], "What the verdict leaves unexplained, in units of the noise").set(found.verdict.misfit)
    gauge(NAMES[8], "Measurements that no NIC explains").set(len(found.verdict.paths))
    return bytes(generate_latest(registry))


def write_metrics(found: Diagnosis, path: Path, at_s: float | None = None) -> None:
    """Write them whole or not at all, as the textfile collector wants it. Raises InputError where that cannot be."""
    write_file(path, metrics_text(found, at_s))
