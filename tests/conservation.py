"""What must hold of every simulation, checked from its columns by code that knows nothing of the event loop."""

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


def check_conservation(schedule: Schedule, simulation: Simulation) -> None:
    """Every byte of every transfer is in one stripe, which goes through its whole lane, in order; nothing serves two
    stripes at once or faster than its rate; nothing is sent before it is there."""
    stripes, ports = simulation.stripes, schedule.ports
    slack = 1e-12 * max(1.0, simulation.time_s)  # ticks are exact, seconds are rounded
    assert np.array_equal(np.bincount(stripes.row, stripes.length, len(schedule)).astype(np.int64), schedule.length)
    assert abs(simulation.time_s - simulation.finish.max(initial=0)) <= slack
    late = np.abs(simulation.finish - last(schedule, simulation)) > slack
    assert not late.any(), "a transfer ends with its last stripe"

    rates = np.array([*(p.out_rate for p in ports), *(p.in_rate for p in ports), *(x.rate for x in schedule.links)])
    steps = chains(simulation)
    for step in steps:
        least = stripes.length[step.stripe] / rates[step.resource]
        assert (step.end - step.begin >= least - slack).all(), "something went faster than its rate"
    every = [*steps[:1], *steps[-1:], simulation.crossings, simulation.lost]
    resource, begin, end = (np.concatenate([getattr(x, n) for x in every]) for n in ("resource", "begin", "end"))
    assert (end >= begin).all(), "something ended before it began"
    order = np.lexsort((begin, resource))
    same = resource[order][1:] == resource[order][:-1]
    assert (begin[order][1:] >= end[order][:-1] - slack)[same].all(), "something did two things at once"

    until, links = simulation.stripe_end.copy(), simulation.crossings
    for step in steps[1:]:
        assert (step.begin >= simulation.stripe_start[step.stripe] - slack).all(), "served before it was there"
        assert (step.end >= until[step.stripe] - slack).all(), "received before it was sent"
        until[step.stripe] = step.end
    # What a link has yet to start on, because it serves others, nothing beyond it can have.
    order = np.lexsort((links.begin, links.resource))
    after, before = order[1:], order[:-1]
    same = links.resource[after] == links.resource[before]
    landing = simulation.land_start[links.stripe[after]]
    assert (landing >= links.end[before] - slack)[same].all(), "served before a link was free"
    waits = np.repeat(np.arange(len(schedule)), np.diff(schedule.dep_ptr))
    assert (simulation.start[waits] >= simulation.finish[schedule.dep_idx] - slack).all(), "sent before it was there"


def last(schedule: Schedule, simulation: Simulation) -> NDArray[np.float64]:
    """float64, shape (rows,): when the last stripe of each transfer landed."""
    found = np.zeros(len(schedule))
    np.maximum.at(found, simulation.stripes.row, simulation.land_end)
    return found
