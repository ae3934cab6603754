"""What a fault run gives: its phases before, during and after the fault, or how far it came."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING

from optcc.fault_run.proof import Failover
from optcc.plans.plan import Plan

if TYPE_CHECKING:
    from optcc.runtime import RankFailedError
    from optcc.runtime.evidence.verdicts import FaultVerdict, ProbeResult
    from optcc.runtime.messages import Note


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
class FaultRun:
    """Before, during, after. `events` : the notes of the hit collective, which started at `started_s`.

    lost : NICs that the next plan does without, or with less: name -> fraction left
    evidence : what probes between the collectives have shown of every NIC; verdicts : what follows from it
    returned : of the lost NICs those that probes, a boundary later, have found to be whole again
    back_plan, back : the plan from then on, and its collectives; None: no NIC has returned
    clock_error_s : so far may each time of the hit collective be off, on several machines; 0: on one
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
    evidence: tuple[ProbeResult, ...]
    clock_error_s: float = 0.0
    verdicts: tuple[FaultVerdict, ...] = ()
    returned: tuple[str, ...] = ()
    back_plan: Plan | None = None
    back: Phase | None = None

    @property
    def hit(self) -> bool:
        """The run proves that every fault struck while the collective ran, and met something on its NIC."""
        return all(failover.hit for failover in self.failovers)

    @property
    def exact(self) -> bool:
        """Every element right, on every rank, in every collective."""
        return all(phase.exact for phase in self.phases)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Those that there were, by time."""
        return tuple(phase for phase in (self.before, self.during, self.after, self.back) if phase)


@dataclass(frozen=True)
class BrokenFaultRun:
    """A fault run that ended with the failure of a rank, `error`, and what is known of it.

    before, during : None: it did not get that far
    events : what the ranks that could still tell have noted of the hit collective, which started at `started_s`
    """

    plan: Plan
    slowdown: Fraction
    before: Phase | None
    during: Phase | None
    started_s: float
    events: tuple[Note, ...]
    failovers: tuple[Failover, ...]
    error: RankFailedError
