"""What must hold where links and receiving ports serve packets, from a simulation's columns alone, and an independent
account of a queue. Neither knows anything of the event loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optcc.schedule import Schedule
from optcc.simulation.simulator import Simulation
from tests.conservation import chains, last


def backlog(first: NDArray[np.float64], until: NDArray[np.float64], work: NDArray[np.float64], at: float) -> float:
    """Seconds of work that wait in a queue at `at`, which works off a second of work in each second.

    work[i] seconds of it come evenly from first[i] until until[i]. The backlog is the most by which what has come since
    any earlier moment exceeds the time since then (Reich's formula); moments where a pace changes are enough.
    """
    moments = np.append(np.concatenate([first, until]), at)
    moments = moments[moments <= at]
    come = (work * np.clip((moments[:, None] - first) / (until - first), 0, 1)).sum(axis=1)
    return float((come[-1] - come - (at - moments)).max())


def check_shared(schedule: Schedule, simulation: Simulation) -> None:
    """Every byte goes through its whole lane, in order; in no stretch of time does anything serve more than its rate
    allows; nothing is sent before it is there."""
    stripes, ports = simulation.stripes, schedule.ports
    slack = 1e-11 * max(1.0, simulation.time_s)  # of ticks, some for each queue on the way
    assert np.array_equal(np.bincount(stripes.row, stripes.length, len(schedule)).astype(np.int64), schedule.length)
    assert abs(simulation.time_s - simulation.finish.max(initial=0)) <= slack
    late = np.abs(simulation.finish - last(schedule, simulation)) > slack
    assert not late.any(), "a transfer ends with its last stripe"
    rates = np.array([*(p.out_rate for p in ports), *(p.in_rate for p in ports), *(x.rate for x in schedule.links)])
    steps = chains(simulation)
    resource, begin, end, stripe = (
        np.concatenate([getattr(x, n) for x in steps]) for n in ("resource", "begin", "end", "stripe")
    )
    work = stripes.length[stripe] / rates[resource]
    assert (end >= begin + work - slack).all(), "something went faster than its rate"
    for r in np.unique(resource):
        mine = np.flatnonzero(resource == r)
        by_end = mine[np.argsort(end[mine])]
        for since in np.unique(begin[mine]):
            within = by_end[begin[by_end] >= since]
            done = np.cumsum(work[within])
            assert (done <= end[within] - since + slack).all(), "something served more than its rate allows"
        idle = simulation.worked[r] - work[mine].sum() if r >= len(ports) and not simulation.lost.stripe.size else 0
        assert idle >= -slack, "something worked less than it served"
    until = simulation.stripe_end.copy()
    for step in steps[1:]:
        assert (step.begin >= simulation.stripe_start[step.stripe] - slack).all(), "served before it was there"
        assert (step.end >= until[step.stripe] - slack).all(), "received before it was sent"
        until[step.stripe] = step.end
    waits = np.repeat(np.arange(len(schedule)), np.diff(schedule.dep_ptr))
    assert (simulation.start[waits] >= simulation.finish[schedule.dep_idx] - slack).all(), "sent before it was there"
