"""The verbs that need theory or runtime, joined to the core here and nowhere else (the command line calls these)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Integral
from typing import TYPE_CHECKING

from optcc.errors import InputError
from optcc.plans.plan import Plan
from optcc.schedule.columns import Schedule
from optcc.schedule.recipe import MAX_SEGMENTS, SEGMENTS
from optcc.values.bound import Bound, BoundWithCosts
from optcc.values.cluster import Cluster
from optcc.values.units import Quantity, as_rate, as_seconds, as_size

if TYPE_CHECKING:
    from optcc.runtime import RunResult
    from optcc.runtime.control.rendezvous import Membership
    from optcc.theory.derivations import Result
    from optcc.theory.sensitivity import JointRepair, Repair

LOCAL_RATE = Fraction(125_000_000)
"""Bytes per second (1 Gb/s) of the fastest rank on the local transport: two cores keep emulated NICs on time at it."""


def lower_bound(cluster: Cluster, nbytes: Quantity, collective: str = "allreduce", root: str | None = None) -> Bound:
    """The least time of an AllReduce of `nbytes` per rank, in exact seconds, and its certificate.

    nbytes : bytes, as a number or as text such as "1GiB"; of the other collectives those of the whole buffer
    collective : "allreduce", or by the linear program "allgather", "reduce-scatter", "broadcast", "reduce", or
        "reduce-scatter+allgather": both at once, of other data, nbytes each
    root : the name of the rank that the last two have as root

    Raises InputError for values out of range and unknown names, InfeasibleError when a rank is cut off one way.
    Source: `optcc.theory.bounds` has the formula, `optcc.theory.bound_program` the linear program.
    """
    from optcc.theory import lower_bound, program_bound

    nbytes = as_size(nbytes, "nbytes")
    if collective == "allreduce" and root is None:
        return lower_bound(cluster, nbytes)
    return program_bound(cluster, nbytes, collective, root)


def lower_bound_with_costs(
    cluster: Cluster,
    nbytes: Quantity,
    *,
    alpha: Quantity,
    per_chunk: Quantity,
    collective: str = "allreduce",
    root: str | None = None,
) -> BoundWithCosts:
    """The least time of any schedule of whole chunks in `optcc.simulate`'s model, with its certificate and parts.

    nbytes : as in `lower_bound`; alpha : seconds from port to port; per_chunk : seconds of each chunk at each port; as
        numbers or as text such as "5us"
    Never below `lower_bound`, which is its `bound`. `optcc.theory.check_bound_with_costs` checks it.
    Raises InputError for values out of range.
    """
    from optcc.theory.bound_costs import bound_with_costs

    costs = as_seconds(alpha, "alpha"), as_seconds(per_chunk, "per_chunk")
    return bound_with_costs(cluster, lower_bound(cluster, nbytes, collective, root), *costs, collective)


def symbolic_bound(cluster: Cluster) -> Result:
    """The closed form of the cluster's bound as a formula, with assumptions and proof id.

    Raises InputError where there is no closed form: rails, pods, GPUs as ranks.
    """
    from optcc.theory.derivations import symbolic_bound

    if cluster.gpu_ranks or not cluster.fabric.flat:
        raise InputError(
            "no closed form",
            where="--symbolic",
            expected="servers as ranks on one non-blocking fabric",
            hint="The program's certificate (--json) is the proof here.",
        )
    return symbolic_bound(cluster)


def repair_first(cluster: Cluster, nbytes: Quantity) -> tuple[Repair, ...]:
    """The degraded NICs, the one whose repair lowers the bound most first. See `optcc.theory.sensitivity`."""
    from optcc.theory.sensitivity import repair_first

    return repair_first(cluster, as_size(nbytes, "nbytes"))


def repair_together(cluster: Cluster, nbytes: Quantity) -> tuple[JointRepair, ...]:
    """What to repair together, step by step, where a repair saves nothing alone. See `optcc.theory.sensitivity`."""
    from optcc.theory.sensitivity import repair_together

    return repair_together(cluster, as_size(nbytes, "nbytes"))


def plan(
    cluster: Cluster,
    nbytes: Quantity,
    *,
    family: str | None = None,
    segments: int | None = None,
    alpha: Quantity = 0,
    per_chunk: Quantity = 0,
    jitter: float = 0.0,
    in_place: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The plan for an AllReduce of `nbytes` per rank that comes closest to the bound. See `optcc.planner.search`.

    nbytes : bytes, as a number or as text such as "1GiB"
    alpha : latency from NIC to NIC; per_chunk : what a port spends on each chunk; seconds, as a number or as text such
        as "5us"
    jitter : by how much stripes' times differ by chance, as `simulate` takes it: the plan is the fastest with it

    With any of these, families and numbers of segments are tried in virtual time and the fastest is taken; without, the
    latency-free optimum is, 64 segments deep where the size allows. `family` and `segments` fix what is given.
    in_place : only what executors can run that fold in place, without receive buffers (`Schedule.beside`)
    `progress` is told what is tried, such as "trees, 12 segments".

    Raises InputError for a family, a depth or costs that cannot be, InfeasibleError when a rank is cut off.
    """
    from optcc.planner import search
    from optcc.simulation.simulator import check_jitter

    if segments is not None and (not isinstance(segments, Integral) or not 1 <= segments <= MAX_SEGMENTS):
        raise InputError("segments out of range", where="--segments", expected=SEGMENTS, got=segments)
    alpha, per_chunk = as_seconds(alpha, "--alpha"), as_seconds(per_chunk, "--per-chunk")
    check_jitter(jitter)
    bound = lower_bound(cluster, nbytes)
    recipe = search.choose(
        cluster,
        bound,
        family=family,
        segments=segments,
        alpha=alpha,
        per_chunk=per_chunk,
        jitter=jitter,
        progress=progress,
        in_place=in_place,
        kept=(kept := search.Kept()),
    )
    recipe.check(cluster)
    return Plan(cluster, bound, recipe).with_schedule(kept.schedule(recipe))


@dataclass(frozen=True)
class Run:
    """What `run` measured, beside the bound of what it ran.

    plan : the plan as run, its rates `slowdown` times below those of the plan asked for
    slowdown : that factor, 1 or more
    results : algorithm -> measurement
    left_out : baseline -> why it cannot run on this cluster
    transport : what carried the bytes, "local" (emulated NICs) or "verbs"
    """

    plan: Plan
    slowdown: Fraction
    results: dict[str, RunResult]
    left_out: dict[str, str] = field(default_factory=dict)
    transport: str = "local"

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
    local_rate: Quantity = LOCAL_RATE,
    transport: str = "local",
    device: str = "cpu",
    membership: Membership | None = None,
    interface: str | None = None,
    progress: Callable[[str, int, float], None] | None = None,
) -> Run:
    """Run `plan` and its baselines on this machine: one process per rank, real bytes.

    repeat : timed repetitions of each algorithm, after one that warms up; the algorithms take turns
    dtype, op : of the elements, such as "float32" or "bfloat16"; "sum", "prod", "min" or "max"
    algorithms : "optcc" is the plan, others are names of `optcc.schedule.baselines.BASELINES`
    transport : "local", emulated NICs and shared memory: one factor divides their rates so that the fastest rank sends
        at `local_rate` (bytes per second, or text such as "1Gb/s"); "tcp", interfaces of this machine that are called
        as the cluster's NICs (server1/eth2), or addresses (server1/10.0.0.3); "verbs", RDMA devices likewise
    device : "cpu", or "cuda" for buffers in GPU memory, rank r's on GPU ``r % number of GPUs``; local transport only
    membership, interface : rank 0's, where others start the other ranks; see `optcc.runtime.control.launch.Session`
    progress : called with (algorithm, repetition from 0, seconds) after each timed repetition

    Raises InputError for what cannot be run, such as devices that are not there, and RankFailedError when a rank dies.
    A wrong result raises nothing: it is in `Run.exact`.
    """
    from optcc.runtime import run_schedules

    paced = transport == "local"
    scaled, slowdown = scaled_to(plan, as_rate(local_rate, "local_rate")) if paced else (plan, Fraction(1))
    schedules: dict[str, Schedule] = {}
    left_out: dict[str, str] = {}
    for name in algorithms:
        try:
            schedules[name] = runnable(scaled.baseline(name), transport, device)
        except InputError as error:
            if name == "optcc":
                raise
            left_out[name] = str(error)  # a ring may need ways that the plan does without
    results = run_schedules(
        schedules,
        dtype=dtype,
        op=op,
        repeat=repeat,
        paced=paced,
        transport=transport,
        device=device,
        membership=membership,
        interface=interface,
        progress=progress,
    )
    return Run(scaled, slowdown, results, left_out, transport)


def scaled_to(plan: Plan, local_rate: Fraction) -> tuple[Plan, Fraction]:
    """The plan with all rates divided by one factor, so that the fastest rank sends `local_rate` bytes per second.

    Returns it and the factor, which is never less than 1.
    """
    slowdown = slowdown_of(plan.cluster, local_rate)
    return plan.scaled(1 / slowdown), slowdown


def slowdown_of(cluster: Cluster, local_rate: Fraction) -> Fraction:
    """How many times slower emulated NICs are than the cluster's, so that its fastest rank sends `local_rate`."""
    if not local_rate > 0:
        raise InputError("no rate to run at", where="--local-rate", expected="a rate above 0", got=str(local_rate))
    fastest = max(max(rank.out_rate, rank.in_rate) for rank in cluster.fault_free.ranks)
    return max(Fraction(1), fastest / local_rate)


def runnable(plan: Plan, transport: str, device: str = "cpu") -> Schedule:
    """The plan's schedule; InputError if it needs what the transport lacks: the local one emulates NICs alone. Or if it
    needs receive buffers, which there are in host memory alone, and which no RDMA NIC is given."""
    schedule = plan.schedule()
    if schedule.beside and (device != "cpu" or transport == "verbs"):
        got = f"{transport}, {device}"
        hint = "Plan with --in-place."
        raise InputError("no receive buffers here", where="plan", expected="local or tcp, cpu", got=got, hint=hint)
    if transport == "local" and schedule.shared_links:
        raise InputError(
            "spine links and pod uplinks are not emulated",
            where="fabric",
            expected="a fabric that only NICs limit, or --transport tcp or verbs, whose fabric is real",
            hint="The plan's fluid_s counts them.",
        )
    return schedule
