"""What must hold of every simulation, from its columns alone, and an independent account of a queue. Nothing here knows
of the event loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optcc.schedule import Schedule
from optcc.simulation.simulator import Services, Simulation


def _numbers(count: int) -> NDArray[np.int32]:
    return np.arange(count, dtype=np.int32)


def chains(simulation: Simulation) -> list[Services]:
    """For every place in a lane's chain, the services of those stripes whose lane is so long."""
    ports, stripes = len(simulation.schedule.ports), simulation.stripes
    crossings, count = simulation.crossings, len(simulation.stripes.row)
    number = _numbers(count)
    steps = [Services(number, stripes.out, simulation.stripe_start, simulation.stripe_end)]
    longest = max((len(lane.links) for lane in stripes.lanes), default=0)
    for place in range(longest):
        links = np.array([lane.links[place] if place < len(lane.links) else -1 for lane in stripes.lanes])[stripes.lane]
        mine = np.flatnonzero(links >= 0).astype(np.int32)
        # Of several crossings of one link by one stripe, after faults, the last is the one that counts.
        found = {(s, r): i for i, (s, r) in enumerate(zip(crossings.stripe, crossings.resource, strict=True))}
        index = np.array([found[s, 2 * ports + links[s]] for s in mine], np.int64)
        assert (crossings.stripe[index] == mine).all()
        steps.append(crossings.where(index))
    steps.append(Services(number, stripes.into + np.int32(ports), simulation.land_start, simulation.land_end))
    return steps


def rates_of(schedule: Schedule) -> NDArray[np.float64]:
    """Of every resource: ports out, ports in, links."""
    ports = schedule.ports
    return np.array([*(p.out_rate for p in ports), *(p.in_rate for p in ports), *(x.rate for x in schedule.links)])


def _check_bytes(schedule: Schedule, simulation: Simulation, slack: float) -> None:
    """Every byte of every transfer is in one stripe, with whose last one it ends."""
    stripes = simulation.stripes
    assert np.array_equal(np.bincount(stripes.row, stripes.length, len(schedule)).astype(np.int64), schedule.length)
    assert abs(simulation.time_s - simulation.finish.max(initial=0)) <= slack
    late = np.abs(simulation.finish - last(schedule, simulation)) > slack
    assert not late.any(), "a transfer ends with its last stripe"


def _check_order(schedule: Schedule, simulation: Simulation, steps: list[Services], slack: float) -> None:
    """Stripes go through their lanes in order; nothing is sent before it is there."""
    until = simulation.stripe_end.copy()
    for step in steps[1:]:
        assert (step.begin >= simulation.stripe_start[step.stripe] - slack).all(), "served before it was there"
        assert (step.end >= until[step.stripe] - slack).all(), "received before it was sent"
        until[step.stripe] = step.end
    waits = np.repeat(np.arange(len(schedule)), np.diff(schedule.dep_ptr))
    assert (simulation.start[waits] >= simulation.finish[schedule.dep_idx] - slack).all(), "sent before it was there"


def check_conservation(schedule: Schedule, simulation: Simulation) -> None:
    """Every byte of every transfer is in one stripe, which goes through its whole lane, in order; nothing serves two
    stripes at once or faster than its rate; nothing is sent before it is there."""
    slack = 1e-12 * max(1.0, simulation.time_s)  # ticks are exact, seconds are rounded
    _check_bytes(schedule, simulation, slack)
    stripes, rates, steps = simulation.stripes, rates_of(schedule), chains(simulation)
    for step in steps:
        least = stripes.length[step.stripe] / rates[step.resource]
        assert (step.end - step.begin >= least - slack).all(), "something went faster than its rate"
    every = [*steps[:1], *steps[-1:], simulation.crossings, simulation.lost]
    resource, begin, end = (np.concatenate([getattr(x, n) for x in every]) for n in ("resource", "begin", "end"))
    assert (end >= begin).all(), "something ended before it began"
    order = np.lexsort((begin, resource))
    same = resource[order][1:] == resource[order][:-1]
    assert (begin[order][1:] >= end[order][:-1] - slack)[same].all(), "something did two things at once"

    links = simulation.crossings
    # What a link has yet to start on, because it serves others, nothing beyond it can have.
    order = np.lexsort((links.begin, links.resource))
    after, before = order[1:], order[:-1]
    same = links.resource[after] == links.resource[before]
    landing = simulation.land_start[links.stripe[after]]
    assert (landing >= links.end[before] - slack)[same].all(), "served before a link was free"
    _check_order(schedule, simulation, steps, slack)


def check_shared(schedule: Schedule, simulation: Simulation) -> None:
    """Every byte goes through its whole lane, in order; in no stretch of time does anything serve more than its rate
    allows; nothing is sent before it is there."""
    slack = 1e-11 * max(1.0, simulation.time_s)  # of ticks, some for each queue on the way
    _check_bytes(schedule, simulation, slack)
    stripes, ports, rates, steps = simulation.stripes, schedule.ports, rates_of(schedule), chains(simulation)
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
    _check_order(schedule, simulation, steps, slack)


def backlog(first: NDArray[np.float64], until: NDArray[np.float64], work: NDArray[np.float64], at: float) -> float:
    """Seconds of work that wait in a queue at `at`, which works off a second of work in each second.

    work[i] seconds of it come evenly from first[i] until until[i]. The backlog is the most by which what has come since
    any earlier moment exceeds the time since then (Reich's formula); moments where a pace changes are enough.
    """
    moments = np.append(np.concatenate([first, until]), at)
    moments = moments[moments <= at]
    come = (work * np.clip((moments[:, None] - first) / (until - first), 0, 1)).sum(axis=1)
    return float((come[-1] - come - (at - moments)).max())


def last(schedule: Schedule, simulation: Simulation) -> NDArray[np.float64]:
    """float64, shape (rows,): when the last stripe of each transfer landed."""
    found = np.zeros(len(schedule))
    np.maximum.at(found, simulation.stripes.row, simulation.land_end)
    return found
