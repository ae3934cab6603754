"""What `optcc reproduce` computes: grids as `optcc sweep` takes them, in parts by the sections of its page.

`full.yaml`, and `quick.yaml` for a check that everything works. Every entry of a part's ``where`` goes with every one
of its ``what``; together they are one grid. Tables of the page find results by `Case`.
"""

from __future__ import annotations

import re
import resource
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from importlib.resources import files
from itertools import product
from typing import Any

import msgspec

from optcc.discover.yaml_file import YamlDocument
from optcc.errors import InputError, OptccError
from optcc.study.cells import SweepCell, SweepResult
from optcc.study.grid import GridFile, Where, grid_of
from optcc.values.cluster import Cluster

ALPHA = Fraction(5, 10**6)
PER_CHUNK = Fraction(1, 10**6)
"""Seconds for every chunk on every port, but in the tables of one straggler. Public figures differ by a factor of
1,000. A write of 16 KiB at 380 Gb/s, as perftest reports it, leaves about 0.01 us; NCCL's issue 2409 speaks of 10 us a
step.
"""
NICS = 8
NIC_RATE = Fraction(50 * 10**9)
NVLINK_RATE = Fraction(450 * 10**9)
FAULT_FREE, OPTCC, PUBLISHED = "fault-free ring", "optcc", "optcc-published"
RIVALS = (PUBLISHED, "r2cc", "balance", "hot-repair")
SCHEMES = (OPTCC, *RIVALS)
TARGET = 0.01
"""Overhead over the fault-free ring above the unavoidable overhead, as a share, that a cell may have."""
TARGET_BYTES = 256 * 2**20
"""Least size for which the target stands."""


@dataclass(frozen=True)
class Case:
    """`servers` of `NICS` NICs; `dead[i]` NICs of the i-th server are dead, or at `left` of their rate; an AllReduce of
    `nbytes` per server by `scheme`, `per_chunk` seconds for every chunk on every port.

    staggered : the i-th server's dead NICs begin at its NIC i, not all at NIC 0
    """

    servers: int
    dead: tuple[int, ...]
    nbytes: int
    scheme: str
    staggered: bool = False
    per_chunk: Fraction = PER_CHUNK
    left: Fraction = Fraction(0)

    def of(self, scheme: str) -> Case:
        """The same failure, size and cost under another scheme; the fault-free ring has no failure."""
        if scheme == FAULT_FREE:
            return replace(self, scheme=scheme, dead=(), staggered=False, left=Fraction(0))
        return replace(self, scheme=scheme)


def case_of(cell: SweepCell) -> Case:
    """The case of a row about servers of `NICS` NICs. Raises InputError where others than the first ones are hit."""
    hits = [re.fullmatch(r"server(\d+)/nic(\d+)=(.+)", failure) for failure in cell.job.failures]
    found = [(int(hit[1]), int(hit[2]), Fraction(hit[3])) for hit in hits if hit]
    dead, first = Counter(server for server, _, _ in found), {server: nic for server, nic, _ in reversed(found)}
    if set(dead) != set(range(max(1, len(dead)))):
        got = " ".join(cell.job.failures) or "none"
        raise InputError("not a case of the page", where=cell.topology, expected="the first servers hit", got=got)
    return Case(
        cell.servers, tuple(dead[i] for i in range(len(dead))), cell.job.nbytes, cell.job.algorithm or "",
        any(first.values()), cell.job.per_chunk_s, found[0][2],
    )  # fmt: skip


class Planning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What it costs to plan for `servers` servers of 8 GPUs with one dead NIC, and how fast the plan is.

    gpus : GPUs as ranks over NVLink; else a server is a rank
    """

    servers: int
    gpus: bool
    nbytes: int = 2**30

    def run(self) -> PlanningResult:
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
        return PlanningResult(
            family=made.family,
            segments=made.segments,
            transfers=len(schedule),
            plan_s=planned - begin,
            lower_s=lowered - planned,
            simulate_s=simulated - lowered,
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
    lower_s: float
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
    """A file of grids. stragglers : sections 1 and 2; several : 3; messages : 4; fabrics : 5; stars : 7; rig : of
    section 1; planning : 6; fleets : jobs of section 8.
    """

    stragglers: SectionGrids
    rig: SectionGrids
    several: SectionGrids
    messages: SectionGrids
    fabrics: SectionGrids
    stars: SectionGrids
    planning: list[Planning]
    fleets: list[Fleet]


COMMON = {"alpha": "5us", "per_chunk": "1us", "receivers": "packets", "baselines": "best"}
"""Of every grid that does not say otherwise."""


@dataclass(frozen=True)
class EvaluationGrid:
    """The cells of each part, and what the page's tables run over. clusters : by the `cluster_id` of jobs."""

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
    def stragglers(self) -> tuple[Case, ...]:
        """Every scheme on one straggler, at `size` and each cost of chunks; ours at the other sizes, too."""
        return tuple(map(case_of, self.parts["stragglers"]))

    @cached_property
    def several(self) -> tuple[Case, ...]:
        """Our plan for every failure at every size, and the others at `size`."""
        return tuple(map(case_of, self.parts["several"]))

    @cached_property
    def messages(self) -> tuple[Case, ...]:
        """Half a server's NICs dead, every message size and scheme."""
        return tuple(map(case_of, self.parts["messages"]))

    servers = property(lambda self: _each(c.servers for c in self.stragglers), doc="Of the tables of one straggler.")
    dead = property(lambda self: _each(c.dead[0] for c in self.stragglers), doc="NICs of the one straggler.")
    sizes = property(lambda self: sorted(_each(c.nbytes for c in self.stragglers)), doc="Bytes, of our own plans.")
    per_chunks = property(lambda self: sorted(_each(c.per_chunk for c in self.stragglers)), doc="Seconds for a chunk.")

    @cached_property
    def size(self) -> int:
        """Bytes of tables that have one size."""
        return next(c.nbytes for c in self.stragglers if c.scheme != OPTCC)

    @cached_property
    def most_servers(self) -> int:
        """Most servers with all costs of chunks; with more the page's alone, since deep pipelines of many servers take
        long to simulate."""
        return max(c.servers for c in self.stragglers if c.per_chunk != PER_CHUNK)

    @property
    def failures(self) -> list[Case]:
        """Our plan for each failure of section 3, at `size`."""
        return [c for c in self.several if c.scheme == OPTCC and c.nbytes == self.size]

    def has(self, case: Case) -> bool:
        """Whether the tables of one straggler have its servers at its cost of a chunk."""
        return case.per_chunk == PER_CHUNK or case.servers <= self.most_servers

    def at_costs(self, servers: int, dead: int, nbytes: int, scheme: str) -> list[Case]:
        """A straggler under one scheme at each of `per_chunks`."""
        return [Case(servers, (dead,), nbytes, scheme, per_chunk=per_chunk) for per_chunk in self.per_chunks]

    def chain(self, servers: int, scheme: str) -> list[Case]:
        """1, 2, 3, ... servers with a dead NIC each, as far as section 3 has them, at `size`."""
        plain = [c for c in self.failures if c.servers == servers and not c.staggered and not c.left]
        return [c.of(scheme) for c in sorted(plain, key=lambda c: len(c.dead)) if set(c.dead) == {1}]

    def results(self, found: Mapping[str, SweepResult]) -> dict[Any, Any]:
        """Of every case, and of every job by its key. Raises OptccError where there is no plan of ours."""
        results: dict[Any, Any] = dict(found)
        for cell in self.cells:
            if cell.job.algorithm == OPTCC and (error := cell.impossible or found[cell.job.key].error):
                raise OptccError(f"{cell.topology}, {' '.join(cell.job.failures)}: {error}")
        for cell in (*self.parts["stragglers"], *self.parts["several"], *self.parts["messages"]):
            assert cell.job.reference is not None
            case = case_of(cell)
            results[case] = found[cell.job.key]
            results[case.of(FAULT_FREE)] = found[cell.job.reference.key]
        return results


def _each(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def read_parts(data: bytes, name: str) -> EvaluationGrid:
    """The grids of a file. Raises InputError, or msgspec's ValidationError, for what cannot be read."""
    content = msgspec.convert(YamlDocument(data, name, "evaluation").content, EvaluationFile, strict=False)
    cells: dict[str, tuple[SweepCell, ...]] = {}
    clusters: dict[str, Cluster] = {}
    for field in EvaluationFile.__struct_fields__[:6]:
        part: SectionGrids = getattr(content, field)
        for where, what in product(part.where, part.what):
            typed = msgspec.convert({**COMMON, **where, **what}, GridFile, strict=False)
            grid = grid_of(typed, Where(lambda place, field=field: f"{name}: {field}: {place}"))  # type: ignore[misc]
            cells[field] = (*cells.get(field, ()), *grid.cells())
            clusters |= grid.clusters()
    return EvaluationGrid(cells, clusters, tuple(content.planning), tuple(content.fleets))


@cache
def bundled(name: str) -> EvaluationGrid:
    """The grids of ``full.yaml`` or ``quick.yaml``."""
    return read_parts(files("optcc.study").joinpath(name).read_bytes(), name)
