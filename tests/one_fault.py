"""Runs with faults to their end, and what is known of a collective's only one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optcc.fault_run.results import BrokenFaultRun, Failover, FaultRun, failovers_of
from optcc.fault_run.run import attempt
from optcc.plans.plan import Plan
from optcc.runtime import Collective
from optcc.runtime.messages import Strike


def survived(plan: Plan, strikes: Sequence[Strike], **options: Any) -> FaultRun:
    """As `attempt`; raises what a broken run has ended with."""
    done = attempt(plan, strikes, **options)
    if isinstance(done, BrokenFaultRun):
        raise done.error
    return done


def failover_of(strike: Strike, hit: Collective) -> Failover:
    """What the ranks have noted about it."""
    return failovers_of([strike], hit.notes, hit.start_s, 2 * hit.clock_error_s)[0]


def check_survived(told: FaultRun, kind: str, nic: str) -> None:
    """The collective whose NIC was struck went on, and the next one does without it where nothing of it works."""
    assert told.exact
    assert told.hit
    assert told.failovers[0].resumed_s is not None
    if kind in ("cut", "hole"):
        assert told.lost == {nic: 0}
        assert told.after_plan.plan_id != told.plan.plan_id
