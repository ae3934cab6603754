"""The verbs that need theory or runtime, joined to the core here and nowhere else (the command line calls these)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from optcc.bound import Bound
from optcc.cluster import Cluster
from optcc.errors import InputError
from optcc.plans import Plan, make_plan
from optcc.schedule.columns import GRANULE, Schedule
from optcc.schedule.recipe import MAX_SEGMENTS

if TYPE_CHECKING:
    from optcc.runtime import RunResult
    from optcc.theory.derivation import Result
    from optcc.theory.sensitivity import Repair

LOCAL_RATE = Fraction(125_000_000)
"""Bytes per second (1 Gb/s) of the fastest rank on the local transport: two cores keep emulated NICs on time at it."""


def lower_bound(cluster: Cluster, nbytes: int, collective: str = "allreduce", root: str | None = None) -> Bound:
    """The least time of an AllReduce of `nbytes` bytes per rank, and its certificate. See `optcc.theory.bounds`.

    Other collectives (allgather, reduce-scatter, broadcast, reduce) by the program; `nbytes` is their whole buffer, and
    `root` names the rank of the last two.
    """
    from optcc.theory import lower_bound, program_bound

    if collective == "allreduce" and root is None:
        return lower_bound(cluster, nbytes)
    return program_bound(cluster, nbytes, collective, root)


def symbolic_bound(cluster: Cluster) -> Result:
    """The closed form of the cluster's bound as a formula, with assumptions and proof id. See `optcc.theory.symbolic`.

    Raises InputError where there is no closed form: rails, pods, GPUs as ranks.
    """
    from optcc.theory.symbolic import symbolic_bound

    if cluster.gpu_ranks or not cluster.fabric.flat:
        raise InputError(
            "no closed form",
            where="--symbolic",
            expected="servers as ranks on one non-blocking fabric",
            hint="The program's certificate (--json) is the proof here.",
        )
    return symbolic_bound(cluster)


def repair_first(cluster: Cluster, nbytes: int) -> tuple[Repair, ...]:
    """The degraded NICs, the one whose repair lowers the bound most first. See `optcc.theory.sensitivity`."""
    from optcc.theory.sensitivity import repair_first

    return repair_first(cluster, nbytes)


def plan(
    cluster: Cluster,
    nbytes: int,
    *,
    segments: int | None = None,
    per_chunk: Fraction = Fraction(0),
) -> Plan:
    """The plan that reaches the bound: nested rings with closed-form shares. See `optcc.plans.make_plan`.

    `per_chunk` (seconds a port spends on each chunk) chooses the number of segments by a geometric program
    (`optcc.theory.segments`); latency does not change the best number in its model. With neither it nor `segments`
    the size alone chooses.
    """
    if segments is not None and per_chunk:
        raise InputError("the number of segments is given", where="--per-chunk", expected="--segments or --per-chunk")
    from optcc.theory import nested_shares

    if cluster.gpu_ranks:
        raise InputError(
            "no plan for GPUs as ranks",
            where="--ranks",
            expected="server",
            got="gpu",
            hint="Bounds take either; schedules are made between servers, whose GPUs join over NVLink.",
        )
    bound = lower_bound(cluster, nbytes)
    shares = nested_shares([min(rank.out_rate, rank.in_rate) for rank in cluster.ranks])
    if segments is None and per_chunk and len(cluster.ranks) > 1:
        segments = _segments(len(cluster.ranks), bound, shares, per_chunk)
    made = make_plan(cluster, bound, shares, segments=segments)
    if not cluster.fabric.flat:
        made.schedule()  # rails may keep neighbours apart: say so now, not when the plan is used
    return made


FILL = {0: Fraction(0), 1: Fraction(1, 2)}
"""Segment times that fill and drain of equal segments take, by the number of leaves; 2 with several. Simulated:
docs/bench-segments.md."""


def _segments(ranks: int, bound: Bound, shares: dict[int, Fraction], per_chunk: Fraction) -> int:
    from optcc.theory.segments import Pipeline, chunks_per_segment, segment_count

    pipeline = Pipeline(
        work_s=bound.seconds,
        fill=FILL.get(ranks - min(shares), Fraction(2)),
        chunks=max(chunks_per_segment(shares, ranks, place) for place in (0, ranks - 1)),
        chunk_s=per_chunk,
    )
    return segment_count(pipeline, most=max(1, min(MAX_SEGMENTS, bound.nbytes // (GRANULE * ranks)))).segments


@dataclass(frozen=True)
class Run:
    """What `run` measured, beside the bound of what it ran.

    plan : the plan as run, its rates `slowdown` times below those of the plan asked for
    results : algorithm -> measurement
    left_out : baseline -> why it cannot run on this cluster
    """

    plan: Plan
    slowdown: Fraction
    results: dict[str, RunResult]
    left_out: dict[str, str] = field(default_factory=dict)

    def ratio(self, algorithm: str = "optcc") -> float:
        """Achieved time over bound; 1 when there is nothing to send."""
        bound = float(self.plan.bound.seconds)
        return self.results[algorithm].median_s / bound if bound else 1.0

    @property
    def exact(self) -> bool:
        """Every element right, on every rank, in every repetition of every algorithm."""
        return all(all(result.exact) for result in self.results.values())


def run(
    plan: Plan,
    *,
    repeat: int = 5,
    dtype: str = "float32",
    op: str = "sum",
    algorithms: tuple[str, ...] = ("optcc", "ring"),
    local_rate: Fraction = LOCAL_RATE,
    progress: Callable[[str, int, float], None] | None = None,
) -> Run:
    """Run `plan` and its baselines on this machine: one process per rank, real bytes, emulated NIC rates.

    Rates are divided by one factor so that the fastest rank sends `local_rate` bytes per second. Raises
    RankFailedError when a rank dies.
    """
    from optcc.runtime import run_schedules

    if not local_rate > 0:
        raise InputError("no rate to run at", where="--local-rate", expected="a rate above 0", got=str(local_rate))
    fastest = max(max(rank.out_rate, rank.in_rate) for rank in plan.cluster.fault_free.ranks)
    slowdown = max(Fraction(1), fastest / local_rate)
    scaled = plan.scaled(1 / slowdown)
    schedules: dict[str, Schedule] = {}
    left_out: dict[str, str] = {}
    for name in algorithms:
        try:
            schedules[name] = _runnable(scaled.baseline(name))
        except InputError as error:
            if name == "optcc":
                raise
            left_out[name] = str(error)  # a ring may need ways that the plan does without
    results = run_schedules(schedules, dtype=dtype, op=op, repeat=repeat, progress=progress)
    return Run(scaled, slowdown, results, left_out)


def _runnable(plan: Plan) -> Schedule:
    schedule = plan.schedule()
    if schedule.shared_links:
        raise InputError(
            "spine links and pod uplinks are not emulated",
            where="fabric",
            expected="a fabric that only NICs limit",
            hint="The plan's fluid_s counts them.",
        )
    return schedule
