"""What `optcc reproduce` computes: grids as `optcc sweep` takes them, in parts by the sections of its page.

`full.yaml`, and `quick.yaml` for a check that everything works. Every entry of a part's ``where`` goes with every one
of its ``what``; together they are one grid. Tables of the page find results by `Place`.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from importlib.resources import files
from itertools import product
from typing import Any

import msgspec

from optcc.discover.yaml_file import YamlDocument
from optcc.errors import OptccError
from optcc.study.cells import SweepCell, SweepJob, SweepResult
from optcc.study.grid import GridFile, Where, grid_of
from optcc.values.cluster import Cluster

ALPHA = Fraction(5, 10**6)
PER_CHUNK = Fraction(1, 10**6)
"""Seconds for every chunk on every port, where the grid does not say otherwise. Public figures differ by a factor of
1,000. A write of 16 KiB at 380 Gb/s, as perftest reports it, leaves about 0.01 us; NCCL's issue 2409 speaks of 10 us a
step.
"""
NICS = 8
NIC_RATE = Fraction(50 * 10**9)
NVLINK_RATE = Fraction(450 * 10**9)
OPTCC, PUBLISHED, BALANCE, RING = "optcc", "optcc-published", "balance", "ring"
RIVALS = (PUBLISHED, "r2cc", BALANCE, "hot-repair", "nccl-tree")
JITTERS = (0.0, 0.03, 0.1)
"""Standard deviations of a stripe's time: none, what is taken for usual, and much."""
TARGETS = {0.0: 1.02, 0.03: 1.04}
"""Jitter -> time over the bound with costs that plans of ours are to keep."""
TARGET_SHARE = 0.8
"""Share of cells that are to keep it."""
TARGET_BYTES = 256 * 2**20
"""Least size for which the target stands."""


@dataclass(frozen=True)
class Place:
    """A cluster with failures, a size and a cost: what a row of the page is about.

    nbytes : of an AllReduce, per server; per_chunk : seconds for every chunk on every port
    """

    cluster_id: str
    failures: tuple[str, ...]
    nbytes: int
    per_chunk: Fraction = PER_CHUNK

    @property
    def whole(self) -> Place:
        """The same without failures."""
        return replace(self, failures=())


def place_of(job: SweepJob) -> Place:
    """Where a job stands."""
    return Place(job.cluster_id, job.failures, job.nbytes, job.per_chunk_s)


class Planning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What it costs to plan for `servers` servers of 8 GPUs with one dead NIC, and how fast the plan is.

    gpus : GPUs as ranks over NVLink; else a server is a rank
    """

    servers: int
    gpus: bool
    nbytes: int = 2**30

    def run(self) -> PlanningResult:
        """Measured on this machine: seconds of processor and peak memory; simulated: the time over the bound."""
        from optcc.api import lower_bound_with_costs, plan
        from optcc.simulation.simulator import simulate

        simulate(plan(Cluster.uniform(servers=2, rate=1000), 4096).schedule())  # loads what is compiled
        cluster = Cluster.uniform(servers=self.servers, nics=NICS, rate=NIC_RATE, nvlink_rate=NVLINK_RATE)
        cluster = replace(cluster, gpu_ranks=self.gpus).degrade("server1/nic0")
        begin = time.process_time()
        made = plan(cluster, self.nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
        planned = time.process_time()
        schedule = made.schedule()
        time_s = simulate(schedule, alpha=ALPHA, per_chunk=PER_CHUNK).time_s
        simulated = time.process_time()
        least = lower_bound_with_costs(cluster, self.nbytes, alpha=ALPHA, per_chunk=PER_CHUNK)
        return PlanningResult(
            family=made.family,
            segments=made.segments,
            transfers=len(schedule),
            plan_s=planned - begin,
            simulate_s=simulated - planned,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            ratio=time_s / float(made.bound.seconds),
            ratio_with_costs=time_s / float(least.seconds),
        )


@dataclass(frozen=True)
class PlanningResult:
    """See `Planning`. transfers : rows of the schedule; ratio, ratio_with_costs : simulated time over the bound."""

    family: str
    segments: int
    transfers: int
    plan_s: float
    simulate_s: float
    peak_bytes: int
    ratio: float
    ratio_with_costs: float


class Fleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job of `gpus` GPUs whose AllReduces are each among `servers` servers."""

    gpus: int
    servers: int


class SectionGrids(msgspec.Struct, forbid_unknown_fields=True):
    """Grids of one section: fields of a `GridFile`, each of `where` with each of `what`."""

    where: list[dict[str, Any]]
    what: list[dict[str, Any]]


class EvaluationFile(msgspec.Struct, forbid_unknown_fields=True):
    """A file of grids. cells : every scheme on every failure, grid by grid; rig : that somebody measured; stars :
    ForestColl's cases; planning : what planning costs; fleets : jobs of the model of training.
    """

    cells: list[SectionGrids]
    rig: SectionGrids
    stars: SectionGrids
    planning: list[Planning]
    fleets: list[Fleet]


COMMON = {"alpha": "5us", "per_chunk": "1us", "receivers": "packets", "baselines": "best"}
"""Of every grid that does not say otherwise."""
Outcomes = Mapping[Any, Any]
"""`SweepResult` by the key of a job, `PlanningResult` by what was planned."""


@dataclass(frozen=True)
class EvaluationGrid:
    """The rows of each part. clusters : by the `cluster_id` of jobs."""

    parts: Mapping[str, tuple[SweepCell, ...]]
    clusters: Mapping[str, Cluster]
    planning: tuple[Planning, ...]
    fleets: tuple[Fleet, ...]

    @property
    def cells(self) -> tuple[SweepCell, ...]:
        """All of them."""
        return tuple(cell for part in self.parts.values() for cell in part)

    @property
    def work(self) -> int:
        """How many computations the page needs."""
        return len({job.key for cell in self.cells for job in cell.jobs}) + len(self.planning)

    @cached_property
    def jobs(self) -> dict[tuple[Place, str, float], SweepJob]:
        """Of the part `cells` and of what it is compared with, by place, scheme and jitter."""
        every = [job for cell in self.parts["cells"] for job in cell.jobs]
        return {(place_of(job), job.algorithm or "", job.jitter): job for job in every}

    @cached_property
    def places(self) -> dict[Place, SweepCell]:
        """Each place with failures where there is a plan of ours, in order, and a row of it."""
        found: dict[Place, SweepCell] = {}
        for cell in self.parts["cells"]:
            if cell.job.failures and cell.job.algorithm == OPTCC:
                found.setdefault(place_of(cell.job), cell)
        return found

    def check(self, found: Mapping[str, SweepResult]) -> None:
        """Raise OptccError where there is no plan of ours."""
        for cell in self.cells:
            if cell.job.algorithm == OPTCC and (error := cell.impossible or found[cell.job.key].error):
                raise OptccError(f"{cell.topology}, {' '.join(cell.job.failures)}: {error}")


def read_parts(data: bytes, source: str) -> EvaluationGrid:
    """The grids of a file. Raises InputError, or msgspec's ValidationError, for what cannot be read."""
    content = msgspec.convert(YamlDocument(data, source, "evaluation").content, EvaluationFile, strict=False)
    cells: dict[str, tuple[SweepCell, ...]] = {}
    clusters: dict[str, Cluster] = {}
    for field in EvaluationFile.__struct_fields__[:3]:
        part: SectionGrids | list[SectionGrids] = getattr(content, field)
        typed = [
            {**COMMON, **where, **what}
            for grids in (part if isinstance(part, list) else [part])
            for where, what in product(grids.where, grids.what)
        ]
        if field == "cells":  # our own plans for the same without failures
            mine = [{**one, "algorithms": OPTCC} for one in typed if OPTCC in one["algorithms"]]
            typed += [{name: one[name] for name in one.keys() - {"failures", "jitter"}} for one in mine]
        for one in typed:
            file = msgspec.convert(one, GridFile, strict=False)
            grid = grid_of(file, Where(lambda place, field=field: f"{source}: {field}: {place}"))  # type: ignore[misc]
            cells[field] = (*cells.get(field, ()), *grid.cells())
            clusters |= grid.clusters()
    return EvaluationGrid(cells, clusters, tuple(content.planning), tuple(content.fleets))


@cache
def bundled(name: str) -> EvaluationGrid:
    """The grids of ``full.yaml`` or ``quick.yaml``."""
    return read_parts(files("optcc.study").joinpath(name).read_bytes(), name)
