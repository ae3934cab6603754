"""A NIC lost on purpose in the middle of a collective: what it costs then, and what the next plan makes of the rest.

Before the fault the healthy plan runs; the hit collective finishes on the NICs that are left, with its own plan; from
the next one on all ranks run the plan for the cluster as they have found it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING

from optcc import api
from optcc.errors import InputError
from optcc.plans import Plan

if TYPE_CHECKING:
    from optcc.cluster import Cluster
    from optcc.runtime import Collective
    from optcc.runtime.messages import Note, Strike
    from optcc.runtime.probing import Evidence
    from optcc.runtime.rendezvous import Membership


@dataclass(frozen=True)
class Phase:
    """Collectives of one plan.

    seconds : of each collective; bound_s : the least time on the cluster as it was then
    """

    name: str
    seconds: tuple[float, ...]
    bound_s: float
    exact: bool

    @property
    def ratio(self) -> float:
        """The median over the bound."""
        return median(self.seconds) / self.bound_s if self.bound_s else 1.0


@dataclass(frozen=True)
class Failover:
    """What became of one fault. Times in seconds from the fault; None: it did not come to that.

    cause : how it was first noticed; at_s : when it struck, from the start of the collective
    detected_s : until the first rank knew; resumed_s : until the last flow went on by other NICs
    replayed_bytes : payload that was sent again
    """

    nic: str
    kind: str
    at_s: float
    cause: str
    detected_s: float | None
    resumed_s: float | None
    replayed_bytes: int


@dataclass(frozen=True)
class Drill:
    """Before, during, after. `events` : the notes of the hit collective, which started at `started_s`.

    hit : the run proves that every fault struck while the collective ran, and that something was under way on its NIC
    lost : NICs that the next plan does without, or with less: name -> fraction left
    evidence : what probes between the collectives have shown of every NIC
    """

    plan: Plan
    after_plan: Plan
    slowdown: Fraction
    before: Phase
    during: Phase
    after: Phase
    started_s: float
    events: tuple[Note, ...]
    failovers: tuple[Failover, ...]
    lost: dict[str, Fraction]
    evidence: tuple[Evidence, ...]
    hit: bool

    @property
    def exact(self) -> bool:
        """Every element right, on every rank, in every collective."""
        return self.before.exact and self.during.exact and self.after.exact


def drill(
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
) -> Drill:
    """Run `plan` `repeat` times, then once with `strikes`, then the plan for what is left `repeat` times.

    Raises InputError for a NIC that the plan does not use, RankFailedError when a rank dies or no way is left.
    """
    from optcc.runtime.job import Job
    from optcc.runtime.launch import Session
    from optcc.runtime.probing import left_of

    scaled, slowdown = api.scaled_to(plan, local_rate) if transport == "local" else (plan, Fraction(1))
    _check(scaled, strikes)

    def job(plan: Plan) -> Job:
        return Job(
            {"optcc": api.runnable(plan)}, dtype, op, paced=transport == "local", transport=transport, device=device
        )

    def phase(name: str, of: Plan, session: Session, count: int, strikes: Sequence[Strike] = ()) -> list[Collective]:
        done = []
        for repetition in range(count):
            done.append(session.run("optcc", strikes))
            if progress:
                progress(name, repetition + 1, done[-1].seconds)
        return done

    with Session(job(scaled), membership=membership, interface=interface) as session:
        session.run("optcc")
        before = phase("before", scaled, session, repeat)
        (hit,) = phase("during", scaled, session, 1, strikes)
        evidence = session.probe(api.runnable(scaled).ports)
        lost = left_of(api.runnable(scaled).ports, evidence)
        left = degraded(scaled.cluster, lost)
        after_plan = api.plan(left, scaled.bound.nbytes, segments=scaled.recipe.segments) if lost else scaled
        session.adopt(job(after_plan))
        session.run("optcc")
        after = phase("after", after_plan, session, repeat)
    failovers = tuple(failover_of(strike, hit) for strike in strikes)
    return Drill(
        plan=scaled,
        after_plan=after_plan,
        slowdown=slowdown,
        before=_phase("before", before, scaled),
        during=_phase("during", [hit], scaled),
        after=_phase("after", after, after_plan),
        started_s=hit.start_s,
        events=tuple(hit.notes),
        failovers=failovers,
        lost=lost,
        evidence=tuple(evidence),
        hit=all(
            _proved(strike, failover, hit, before[-1], lost)
            for strike, failover in zip(strikes, failovers, strict=True)
        ),
    )


def _phase(name: str, runs: Sequence[Collective], plan: Plan) -> Phase:
    return Phase(
        name,
        tuple(run.seconds for run in runs),
        float(plan.bound.seconds),
        all(all(run.exact) for run in runs),
    )


def failover_of(strike: Strike, hit: Collective) -> Failover:
    """Put together what the ranks have noted about one fault."""
    struck = [note for note in hit.notes if note.kind == "struck" and note.nic == strike.nic]
    if not struck:
        return Failover(strike.nic, strike.kind, 0.0, "", None, None, 0)
    at = struck[0].at
    about = [note for note in hit.notes if strike.nic in (note.nic, note.far) and note.at >= at]
    seen = [note for note in about if note.kind in ("lost", "nic down")]
    moved = [note for note in about if note.kind == "moved"]
    return Failover(
        nic=strike.nic,
        kind=strike.kind,
        at_s=at - hit.start_s,
        cause=seen[0].cause if seen else "",
        detected_s=seen[0].at - at if seen else None,
        resumed_s=max(note.at for note in moved) - at if moved else None,
        replayed_bytes=sum(note.nbytes for note in moved),
    )


def _proved(
    strike: Strike, failover: Failover, hit: Collective, usual: Collective, lost: Mapping[str, Fraction]
) -> bool:
    """Whether the fault met something: bytes went again or by other NICs, or all had to wait, or it is measured."""
    if strike.kind == "slow":
        return strike.nic in lost
    if strike.kind == "flap" and failover.detected_s is None:
        return hit.seconds >= usual.seconds + strike.amount / 2
    if failover.detected_s is None:
        return False
    return failover.replayed_bytes > 0 or _sent(hit, strike.nic) < _sent(usual, strike.nic)


def _sent(run: Collective, nic: str) -> int:
    return sum(rank.sent.get(nic, 0) for rank in run.ran)


def degraded(cluster: Cluster, left: dict[str, Fraction]) -> Cluster:
    """The cluster with the fraction `left` of some NICs' rates, by name."""
    for nic, fraction in left.items():
        cluster = cluster.degrade(nic, fraction)
    return cluster


def _check(plan: Plan, strikes: Sequence[Strike]) -> None:
    names = [port.name for port in plan.schedule().ports]
    for strike in strikes:
        if strike.nic not in names:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise InputError("the plan uses no such NIC", where=f"--{strike.kind}", expected=shown, got=strike.nic)
        if not 0 <= strike.at <= 1:
            raise InputError("not a part of the collective", where=f"--{strike.kind}", expected="0 to 1", got=strike.at)
