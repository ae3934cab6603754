"""A NIC lost on purpose in the middle of a collective: what it costs then, and what the next plan makes of the rest.

Before the fault the healthy plan runs; the hit collective finishes on the NICs that are left, with its own plan; from
the next one on all ranks run the plan for the cluster as they have found it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optcc import api
from optcc.errors import InputError, SimulationError, some
from optcc.fault_run.results import BrokenFaultRun, Failover, FaultRun, Phase, failovers_of, proved
from optcc.plans.plan import Plan
from optcc.simulation.faults import DETECT_S, Fault
from optcc.simulation.simulator import Simulation, simulate
from optcc.values.cluster import degrade_all

if TYPE_CHECKING:
    from optcc.runtime import Collective, RankFailedError
    from optcc.runtime.control.rendezvous import Membership
    from optcc.runtime.messages import Note, Strike

# Faults that cannot all happen: one leaves another nothing to hit, or two contradict each other


def check_together(strikes: Sequence[Strike]) -> None:
    """Raise InputError where one fault leaves another of the same NIC nothing to hit, or two contradict each other.

    Flaps of a NIC go together: where they overlap or touch they are one. A fault of a NIC goes before its cut or hole.
    """
    for i, one in enumerate(strikes):
        for other in strikes[i + 1 :]:
            first, second = (one, other) if one.at <= other.at else (other, one)
            clash = _clash(first, second)
            if clash:
                raise InputError(
                    clash,
                    where=f"--{second.kind}",
                    expected="faults that can all happen",
                    got=f"{_told(first)} and {_told(second)}",
                    hint="Leave one out, or run each by itself.",
                )


def _clash(first: Strike, second: Strike) -> str:
    """What is wrong with two faults, the earlier one first; empty: nothing."""
    killed = {strike.nic.partition("/")[0] for strike in (first, second) if strike.kind == "kill"}
    common = {first.nic, first.far} & {second.nic, second.far} - {""}
    if killed:
        ends = {end.partition("/")[0] for end in (second.nic, second.far)}
        if first.kind == "kill" and first.nic.partition("/")[0] in ends:
            return "the server is killed before"
        return ""
    if not common:
        return ""
    if first.kind in ("cut", "hole"):
        return "the NIC is lost already"
    if first.at == second.at and second.kind in ("cut", "hole"):
        return "two faults of a NIC at the same moment"
    if (first.kind, second.kind) == ("slow", "slow"):
        return "the NIC is slow already"
    if (first.kind, second.kind) == ("path", "path") and {first.nic, first.far} == {second.nic, second.far}:
        return "the path is broken already"
    if {first.kind, second.kind} == {"path", "flap"}:
        return "a flap of a NIC would heal its path"
    return ""


def _told(strike: Strike) -> str:
    far = f",{strike.far}" if strike.far else ""
    return f"--{strike.kind} {strike.nic}{far}@{strike.at:g}"


# The run

RETURN_S = 30.0
"""So long is waited for NICs to come back that are known to."""


def attempt(
    plan: Plan,
    strikes: Sequence[Strike],
    *,
    repeat: int = 5,
    dtype: str = "float32",
    op: str = "sum",
    local_rate: Fraction = api.LOCAL_RATE,
    transport: str = "local",
    device: str = "cpu",
    membership: Membership | None = None,
    interface: str | None = None,
    progress: Callable[[str, int, float], None] | None = None,
) -> FaultRun | BrokenFaultRun:
    """Run `plan` `repeat` times, then once with `fault_injection`, then the plan for what is left `repeat` times.

    Where a flap has cost a NIC, once more when the flap is over: with the plan for what probes find by then.
    When a rank dies or no way is left, what is known up to there. Raises InputError for a NIC that the plan does not
    use.
    """
    from optcc.runtime import RankFailedError
    from optcc.runtime.control.job import Job
    from optcc.runtime.control.launch import Session
    from optcc.runtime.evidence.probing import left_of, verdicts_of

    scaled, slowdown = api.scaled_to(plan, local_rate) if transport == "local" else (plan, Fraction(1))
    _check(scaled, strikes, transport)
    before: list[Collective] = []
    during: list[Collective] = []
    after: list[Collective] = []
    back: list[Collective] = []
    back_plan = None
    returned: tuple[str, ...] = ()
    ports = api.runnable(scaled, transport, device).ports

    def plan_for(lost: dict[str, Fraction]) -> Plan:
        cluster = degrade_all(scaled.cluster, lost.items())
        in_place = device != "cpu" or transport == "verbs"
        return api.plan(cluster, scaled.bound.nbytes, segments=scaled.segments, in_place=in_place) if lost else scaled

    def job(plan: Plan) -> Job:
        return Job(
            {"optcc": api.runnable(plan, transport, device)},
            dtype,
            op,
            paced=transport == "local",
            transport=transport,
            device=device,
        )

    def phase(name: str, done: list[Collective], session: Session, count: int, strikes: Sequence[Strike] = ()) -> None:
        for repetition in range(count):
            done.append(session.run("optcc", strikes))
            if progress:
                progress(name, repetition + 1, done[-1].seconds)

    try:
        with Session(job(scaled), membership=membership, interface=interface) as session:
            session.run("optcc")
            phase("before", before, session, repeat)
            phase("during", during, session, 1, strikes)
            evidence = session.probe(ports)
            lost = left_of(ports, evidence)
            after_plan = plan_for(lost)
            session.adopt(job(after_plan))
            session.run("optcc")
            phase("after", after, session, repeat)
            if any(strike.kind == "flap" and strike.nic in lost for strike in strikes):
                time.sleep(_until_back(strikes, during[0].notes, time.monotonic()))
                still = left_of(ports, session.probe(ports))
                returned = tuple(nic for nic in lost if nic not in still)
                if returned:
                    back_plan = plan_for(still)
                    session.adopt(job(back_plan))
                    session.run("optcc")
                    phase("back", back, session, repeat)
    except RankFailedError as error:
        return _broken(scaled, slowdown, strikes, before, during, error)
    (hit,) = during
    found = failovers_of(strikes, hit.notes, hit.start_s, 2 * hit.clock_error_s)
    return FaultRun(
        plan=scaled,
        after_plan=after_plan,
        slowdown=slowdown,
        before=_phase("before", before, scaled),
        during=_phase("during", during, scaled),
        after=_phase("after", after, after_plan),
        started_s=hit.start_s,
        events=tuple(hit.notes),
        failovers=tuple(
            replace(failover, hit=proved(strike, failover, hit, before[-1], lost))
            for strike, failover in zip(strikes, found, strict=True)
        ),
        lost=lost,
        evidence=tuple(evidence),
        clock_error_s=hit.clock_error_s,
        verdicts=tuple(verdicts_of(ports, evidence)),
        returned=returned,
        back_plan=back_plan,
        back=_phase("back", back, back_plan) if back_plan else None,
    )


def _until_back(strikes: Sequence[Strike], notes: Sequence[Note], now: float) -> float:
    """Seconds until every flap is over, but no more than RETURN_S; `now`, as the notes, by the hub's clock."""
    lasts: dict[str, list[float]] = {}  # of each NIC, in the order in which they strike
    for strike in sorted(strikes, key=lambda strike: strike.at):
        if strike.kind == "flap":
            lasts.setdefault(strike.nic, []).append(strike.amount)
    struck = [note for note in notes if (note.kind, note.cause) == ("struck", "flap")]
    ends = [note.at + lasts[note.nic].pop(0) for note in struck]
    return min(max([0.0, *(end - now for end in ends)]), RETURN_S)


def _broken(
    plan: Plan,
    slowdown: Fraction,
    strikes: Sequence[Strike],
    before: Sequence[Collective],
    during: Sequence[Collective],
    error: RankFailedError,
) -> BrokenFaultRun:
    """Of the hit collective all is known if it was over by then, else the ranks' last words."""
    if during:
        notes, start_s, slack_s = during[0].notes, during[0].start_s, 2 * during[0].clock_error_s
    else:
        words = error.journals.values()
        notes = sorted((note for said in words for note in said.notes), key=lambda note: note.at)
        starts = [said.start_s for said in words if said.start_s is not None]
        start_s, slack_s = min(starts, default=error.at_s or 0.0), 0.0
    return BrokenFaultRun(
        plan=plan,
        slowdown=slowdown,
        before=_phase("before", before, plan) if before else None,
        during=_phase("during", during, plan) if during else None,
        started_s=start_s,
        events=tuple(notes),
        failovers=tuple(
            _seen_to_die(failover, start_s, error) for failover in failovers_of(strikes, notes, start_s, slack_s)
        ),
        error=error,
    )


def _seen_to_die(failover: Failover, start_s: float, error: RankFailedError) -> Failover:
    """A process that was killed is noticed by its parent, too, at times before any rank has noted anything."""
    if failover.kind != "kill" or failover.at_s is None or error.at_s is None or failover.detected_s is not None:
        return failover
    return replace(failover, cause=error.cause, detected_s=max(0.0, error.at_s - start_s - failover.at_s))


def _phase(name: str, runs: Sequence[Collective], plan: Plan) -> Phase:
    return Phase(
        name,
        tuple(run.seconds for run in runs),
        float(plan.bound.seconds),
        all(all(run.exact) for run in runs),
    )


def _check(plan: Plan, strikes: Sequence[Strike], transport: str) -> None:
    from optcc.runtime.control.fault_injection import demand_had

    names = [port.name for port in plan.schedule().ports]
    for strike in strikes:
        demand_had(strike.kind, transport)
        if strike.kind == "path" and transport != "local":
            raise InputError("only emulated", where="--path", expected="--transport local", got=transport)
        if strike.nic not in names:
            raise InputError(
                "the plan uses no such NIC", where=f"--{strike.kind}", expected=some(names), got=strike.nic
            )
        if not 0 <= strike.at <= 1:
            raise InputError("not a part of the collective", where=f"--{strike.kind}", expected="0 to 1", got=strike.at)


# The same run in virtual time, for its picture: faults of a run on real bytes as faults of the simulator

DRAWN = ("cut", "hole", "slow")
"""Faults that the simulator knows: a NIC that dies, or has less from now on. It has none for what comes back, for a
path between NICs that work, and for a server that ends the run."""


def check_drawn(strikes: Sequence[Strike]) -> None:
    """Raise InputError for a fault of a kind that is not drawn."""
    for strike in strikes:
        if strike.kind not in DRAWN:
            raise InputError(
                f"a run with --{strike.kind} is not drawn, for the simulator has no such fault",
                where="--timeline",
                expected=" or ".join(f"--{kind}" for kind in DRAWN),
                got=f"--{strike.kind}",
                hint="Leave --timeline out: what happened is printed event by event.",
            )


def simulated_fault_run(plan: Plan, strikes: Sequence[Strike]) -> tuple[Simulation, tuple[Fault, ...]]:
    """The plan with these faults, each at the moment at which its server, without faults, has done its part.

    The sender learns of a cut after `DETECT_S`, of a hole when the runtime's longest timeout is over.
    Raises InputError where no way is left, so that there is no end to be drawn.
    """
    check_drawn(strikes)
    schedule = plan.schedule()
    whole = simulate(schedule)
    ranks = {port.name: port.rank for port in schedule.ports}
    hole_s = _hole_s(plan) if any(strike.kind == "hole" for strike in strikes) else DETECT_S
    faults = tuple(
        Fault(
            strike.nic,
            moment_of(whole, ranks[strike.nic], strike.at),
            Fraction(str(strike.amount)) if strike.kind == "slow" else Fraction(0),
            hole_s if strike.kind == "hole" else DETECT_S,
        )
        for strike in strikes
    )
    try:
        return simulate(schedule, faults=faults), faults
    except SimulationError as error:
        raise InputError("no way is left, so no end can be drawn", where="--timeline", got=str(error)) from None


def moment_of(simulation: Simulation, rank: int, part: float) -> float:
    """When the rank has done a part of its transfers, 0 to 1, in seconds.

    As the runtime counts them: sent when they leave, received when they are there; never all.
    """
    schedule = simulation.schedule
    done = np.sort(np.concatenate((simulation.start[schedule.src == rank], simulation.finish[schedule.dst == rank])))
    count = min(math.ceil(part * len(done)), len(done) - 1)
    return float(done[count - 1]) if count > 0 else 0.0


def _hole_s(plan: Plan) -> float:
    from optcc.runtime.control.links import LOCAL_WINDOW_BYTES, pace_of
    from optcc.runtime.native.layout import layout_of

    layout = layout_of({"": plan.schedule()})
    pace = pace_of(layout, LOCAL_WINDOW_BYTES, layout.segment_bytes, paced=True)
    return pace.suspect_s + pace.grace_s
