"""The metrics that optcc gives to Prometheus, and its text format. Every dashboard and alert rule uses these alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcc.errors import InputError

if TYPE_CHECKING:
    from prometheus_client import Metric as Family


@dataclass(frozen=True)
class Metric:
    """A gauge. `text` : what it is, with its unit where the name has none; labels : names of its own labels."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


NIC_LEFT = Metric(
    "optcc_nic_suspected_fraction", "What is left of a degraded NIC's rate in its worse way, and how sure that is",
    ("server", "nic", "sure"),
)  # fmt: skip
SERVER_LEFT = Metric(
    "optcc_server_suspected_fraction",
    "Of a slow server whose NICs cannot be told apart, what is left of the slowest, and how sure that is",
    ("server", "sure"),
)
ALIKE = Metric(
    "optcc_slow_alike_ratio", "What a kind of measurement reaches of nameplate where that is too little everywhere",
    ("kind",),
)  # fmt: skip
ACHIEVED = Metric(
    "optcc_achieved_ratio", "Least possible time over the time achieved, on the healthy or the suspected cluster",
    ("collective", "bound"),
)  # fmt: skip
OVERHEAD = Metric(
    "optcc_unavoidable_overhead_ratio", "By which part any AllReduce takes longer than on the healthy cluster"
)
LOST = Metric(
    "optcc_lost_seconds_per_day", "Training time lost per day by going on with a scheme, or by draining", ("choice",)
)
DRAIN = Metric("optcc_server_drain_advised", "1 where a degraded server is to be drained, 0 to be kept", ("server",))
OUTCOME = Metric("optcc_diagnosis_outcome", "1 for the outcome of the last diagnosis, else 0", ("outcome",))
MADE = Metric("optcc_diagnosis_timestamp_seconds", "When the last diagnosis was made, seconds since the epoch")
MISFIT = Metric("optcc_diagnosis_misfit_ratio", "What the verdict leaves unexplained, in units of the noise")
PATHS = Metric("optcc_slow_paths", "Measurements that are slow and that no NIC explains")
RANK_FAILED = Metric(
    "optcc_rank_failed", "1 for the rank that a job of optcc's has lost, with the verdict that all its ranks raise",
    ("server", "rank", "verdict"),
)  # fmt: skip
EVENTS = Metric("optcc_job_events", "Failures, changes of rate and repairs that were told of the job")
JOBS = Metric("optcc_serve_jobs", "Clusters that plans are kept ready for")
IN_HAND = Metric("optcc_serve_requests_in_hand", "Requests that take long and have not been answered")
CACHED = Metric("optcc_serve_cached_bytes", "Bytes of replies kept")
LOG_DROPPED = Metric("optcc_serve_log_dropped_lines", "Lines of the log that nobody read, since the start")

DIAGNOSIS = (NIC_LEFT, SERVER_LEFT, ALIKE, ACHIEVED, OVERHEAD, LOST, DRAIN, OUTCOME, MADE, MISFIT, PATHS, RANK_FAILED)
"""Those of ``optcc diagnose --prometheus``."""
JOB = (NIC_LEFT, ACHIEVED, OVERHEAD, LOST, DRAIN, EVENTS)
"""Those of ``optcc serve --metrics`` that each job has, told apart by the label `JOB_LABEL`."""
SERVICE = (JOBS, IN_HAND, CACHED, LOG_DROPPED)
"""Those of ``optcc serve --metrics`` itself."""
PLUGIN = tuple(
    Metric(f"optcc_nccl_{name}", text, ("host", "process", *labels))
    for name, text, labels in (
        ("nic_up", "1 where a NIC carries, 0 where none of its wires to other processes does", ("nic",)),
        ("nic_lost_total", "How often a NIC was lost", ("nic",)),
        ("nic_sent_bytes_total", "Bytes that a NIC has sent and peers have acknowledged", ("nic",)),
        ("nic_best_bytes_per_second", "The most that a NIC has sent in a tenth of a second, as a rate", ("nic",)),
        ("nic_nameplate_bytes_per_second", "A NIC's rate by the system, or by OPTCC_RATES", ("nic",)),
        ("nic_wires_lost", "Wires of a NIC to other processes that do not carry", ("nic",)),
        ("wire_up", "1 where a wire to another process carries, else 0", ("nic", "peer", "peer_process", "peer_nic")),
        (
            "wire_full_bytes_total",
            "Bytes by a wire in tenths of a second in which more waited than all wires between the two processes took",
            ("nic", "peer", "peer_process", "peer_nic"),
        ),
        ("resent_segments_total", "Segments that were sent more than once", ()),
        ("links", "Ways to and from other processes that are in use", ()),
        ("links_lost_total", "Such ways that were given up: an error at NCCL", ()),
        ("wires_left_out", "Wires for which the file has no room", ()),
        ("timestamp_seconds", "When this was written, seconds since the epoch", ()),
    )
)
"""Those that the plugin for NCCL writes itself (`native/nccl/report.c`); where a name ends in total, counters."""
JOB_LABEL = "optcc_job"
"""Prometheus gives every series a label ``job`` of its own."""


def need_prometheus(where: str) -> None:
    """Raise InputError, with what to install, where Prometheus' library is missing."""
    try:
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError(
            "a package is missing", where=where, expected="the extra metrics", got=error.name,
            hint="pip install prometheus-client",
        ) from None  # fmt: skip


class Gauges:
    """Values of `metrics` at one moment; `before` : names of labels that all of them have besides their own."""

    def __init__(self, metrics: tuple[Metric, ...], before: tuple[str, ...] = ()) -> None:
        self.metrics, self.before = metrics, before
        self._values: dict[Metric, dict[tuple[str, ...], float]] = {metric: {} for metric in metrics}

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """`labels` : the values of its labels, those of `before` first."""
        self._values[metric][labels] = float(value)

    def add(self, other: Gauges) -> None:
        """All that `other` has."""
        for metric, values in other._values.items():
            self._values[metric].update(values)

    def collect(self) -> Iterator[Family]:
        """As Prometheus' library takes them."""
        from prometheus_client.core import GaugeMetricFamily

        for metric, values in self._values.items():
            family = GaugeMetricFamily(metric.name, metric.text, labels=(*self.before, *metric.labels))
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family


def text_of(*all_: Gauges) -> bytes:
    """Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    for gauges in all_:
        registry.register(gauges)
    return bytes(generate_latest(registry))
