"""The rows of a sweep, and what each needs computed.

A *job* is one computation: a bound, or one algorithm's simulated time. A *cell* is one row of the table: a job with the
names under which it was asked for. Cells may share a job (two draws of the same failures), and then share its result.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from optcc import __version__
from optcc.simulation.simulator import Receivers
from optcc.values.cluster import Cluster

REFERENCE = "ring"
"""The algorithm that the fault-free cluster runs for comparison, as the field does."""

STRIPES: Receivers = "stripes"
JITTER_SEEDS = (0, 1, 2)
"""A time with jitter is the mean of these draws, since one alone is luck."""


@dataclass(frozen=True)
class SweepJob:
    """One computation. alpha_s, per_chunk_s : seconds; segments : None lets the planner choose.

    receivers : as `optcc.simulate` takes it; the first one for a bound
    cluster_id : fingerprint of the cluster before the failures
    failures : ``SERVER/NIC=FRACTION_LEFT`` each
    algorithm : as `Plan.baseline` takes it; None for the bound alone
    best : a baseline without `segments` is run as `optcc.study.rivals.best` chooses it
    jitter : as `optcc.simulate` takes it; the time is the mean over `JITTER_SEEDS`
    """

    cluster_id: str
    failures: tuple[str, ...]
    nbytes: int
    alpha_s: Fraction = Fraction(0)
    per_chunk_s: Fraction = Fraction(0)
    segments: int | None = None
    algorithm: str | None = None
    receivers: Receivers = STRIPES
    best: bool = False
    jitter: float = 0.0

    @cached_property
    def key(self) -> str:
        """Names the job and the version of optcc that does it: a result under this key may stand for it."""
        content = json.dumps([__version__, asdict(self)], default=str, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    @property
    def reference(self) -> SweepJob | None:
        """The same collective on the fault-free cluster by a ring; None for a bound."""
        return replace(self, failures=(), algorithm=REFERENCE) if self.algorithm else None


@dataclass(frozen=True)
class SweepResult:
    """What a job gave; None for what could not be computed, and `error` says why. Seconds; times are simulated.

    with_costs_s : the bound at the job's costs, where receivers serve packets
    fluid_s : of our own plans: the schedule's busiest resource, without costs; busy_s : its busiest port, with chunks
    way : of a baseline at its best: channels or stripes
    """

    bound_s: float | None = None
    fault_free_s: float | None = None
    unavoidable_overhead: float | None = None
    simulated_s: float | None = None
    family: str | None = None
    segments: int | None = None
    error: str | None = None
    with_costs_s: float | None = None
    fluid_s: float | None = None
    busy_s: float | None = None
    way: str = ""

    @property
    def time_s(self) -> float:
        """Simulated seconds; nan where the scheme has none."""
        return math.nan if self.simulated_s is None else self.simulated_s

    @property
    def over_bound(self) -> float:
        """Simulated time over the bound with costs; nan where either is missing."""
        return self.time_s / (self.with_costs_s or math.nan)


@dataclass(frozen=True)
class SweepCell:
    """One row: the names of its inputs, and its job (None: `impossible` says why there is none)."""

    topology: str
    servers: int
    ranks: int
    entry: int
    place: str
    failed: int
    left: Fraction | None
    draw: int | None
    seed: int
    job: SweepJob
    impossible: str | None = None

    @property
    def jobs(self) -> tuple[SweepJob, ...]:
        """What must be computed for this row: its own job and the fault-free reference."""
        if self.impossible:
            return ()
        return (self.job, self.job.reference) if self.job.reference else (self.job,)

    def weight(self, job: SweepJob) -> float:
        """About how long one of its jobs takes beside others: what does not fit the end of a run begins first."""
        depth = math.sqrt(job.nbytes) / (1 + float(job.per_chunk_s) / 1e-7)
        return self.servers**2 * depth * (1 if job.algorithm in ("optcc", "optcc-published", "r2cc") else 0.1)

    def done(self, results: Mapping[str, SweepResult]) -> bool:
        """Whether `results`, by `SweepJob.key`, hold all that the row needs."""
        return all(job.key in results for job in self.jobs)


def fingerprint(cluster: Cluster) -> str:
    """A name for everything about `cluster` that a result may depend on: their reprs show every field."""
    everything = (cluster.servers, cluster.fault_free.servers, cluster.fabric, cluster.gpu_ranks)
    return hashlib.sha256(repr(everything).encode()).hexdigest()[:32]


COLUMNS: dict[str, type] = {
    "topology": str, "servers": int, "ranks": int, "size": int, "alpha_s": float, "per_chunk_s": float, "jitter": float,
    "failure_entry": int, "place": str, "failed": int, "left": float, "draw": int, "seed": int, "failures": str,
    "quantity": str, "algorithm": str, "receivers": str, "bound_s": float, "fault_free_s": float,
    "unavoidable_overhead": float, "simulated_s": float, "ratio": float, "reference_s": float, "overhead": float,
    "family": str, "segments": int, "optcc_version": str, "error": str,
}  # fmt: skip
"""Name and type of every column; any may be empty. docs/sweeps.md says what they mean."""

Row = dict[str, Any]


def row(cell: SweepCell, results: Mapping[str, SweepResult]) -> Row:
    """The row of `cell`. `results` are by `SweepJob.key`; KeyError when one of the cell's jobs is not done."""
    job = cell.job
    own, reference = SweepResult(error=cell.impossible), SweepResult()
    if not cell.impossible:
        own = results[job.key]
        reference = results[job.reference.key] if job.reference else reference
    values = {
        "topology": cell.topology, "servers": cell.servers, "ranks": cell.ranks, "size": job.nbytes,
        "alpha_s": float(job.alpha_s), "per_chunk_s": float(job.per_chunk_s), "jitter": job.jitter,
        "failure_entry": cell.entry, "place": cell.place, "failed": cell.failed,
        "left": None if cell.left is None else float(cell.left), "draw": cell.draw, "seed": cell.seed,
        "failures": " ".join(job.failures), "quantity": "simulate" if job.algorithm else "bound",
        "algorithm": job.algorithm, "receivers": job.receivers if job.algorithm else None, **asdict(own),
        "ratio": _over(own.simulated_s, own.bound_s), "reference_s": reference.simulated_s,
        "overhead": _less_one(_over(own.simulated_s, reference.simulated_s)), "optcc_version": __version__,
    }  # fmt: skip
    values["segments"] = own.segments or job.segments
    return {name: values[name] for name in COLUMNS}


def _over(time_s: float | None, than_s: float | None) -> float | None:
    if time_s is None or than_s is None:
        return None
    return time_s / than_s if than_s else 1.0  # a single rank: nothing to send, nothing lost


def _less_one(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1


def _same_plan(job: SweepJob) -> SweepJob:
    return replace(job, algorithm=None, jitter=0.0)


def groups(cells: Iterable[SweepCell], done: Mapping[str, SweepResult]) -> list[tuple[SweepJob, ...]]:
    """The jobs that are not `done`, those that take longest first; those that differ in algorithm and jitter only share
    a plan and stand together. Of baselines at their best, which need none, those that differ in jitter only do."""
    found: dict[SweepJob, dict[SweepJob, float]] = {}
    for cell in cells:
        for job in cell.jobs:
            if job.key not in done:
                found.setdefault(replace(job, jitter=0.0) if job.best else _same_plan(job), {})[job] = cell.weight(job)
    return [tuple(jobs) for jobs in sorted(found.values(), key=lambda jobs: -max(jobs.values()))]
