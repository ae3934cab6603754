"""What is known of a collective's only fault."""

from __future__ import annotations

from optcc.fault_run.results import Failover, failovers_of
from optcc.runtime import Collective
from optcc.runtime.messages import Strike


def failover_of(strike: Strike, hit: Collective) -> Failover:
    """What the ranks have noted about it."""
    return failovers_of([strike], hit.notes, hit.start_s, 2 * hit.clock_error_s)[0]
