"""What ports and links did with their time: busy, forced idle, idle.

* A sending port serves the moment anything is ready. So until the end of its last stripe it is *forced idle* whenever
  it is not busy: all its later stripes wait (after a fault, perhaps for the notice).
* A receiving port or a link is *forced idle* while it cannot serve a stripe on its way yet: the sender is slower, or
  alpha has not passed.
* The rest is *idle*: a sender that is through, a receiver to which nothing is on its way.

Where receivers serve packets, those of several stripes mix. A receiver or link is busy as long as it would take at its
own rate for what it served; time in which it served, but less than it could, is forced idle, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optcc.simulation.simulator import Services, Simulation


@dataclass(frozen=True)
class Usage:
    """Seconds of the run of one port, one way, or of one link; the three sum to the run's time.

    way : "out", "in", or "link"
    """

    name: str
    way: str
    busy_s: float
    forced_idle_s: float
    idle_s: float


def services(simulation: Simulation) -> Services:
    """All that ports and links did; what was in vain (`Simulation.lost`) stands at the end."""
    s, stripes = simulation, simulation.stripes
    number = np.arange(len(stripes.row), dtype=np.int32)
    parts = (
        Services(number, stripes.out, s.stripe_start, s.stripe_end),
        Services(number, stripes.into + np.int32(len(s.schedule.ports)), s.land_start, s.land_end),
        s.crossings,
        s.lost,
    )
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Services(*(np.concatenate(column) for column in columns))


def forced_idle(simulation: Simulation) -> Iterator[tuple[int, NDArray[np.float64], NDArray[np.float64]]]:
    """(resource, begin, end) of the stretches in which it is forced to do nothing at all, in order, seconds.

    Resources as in `Services`.
    """
    every, senders = services(simulation), len(simulation.schedule.ports)
    order = np.lexsort((every.begin, every.resource))
    every = every.where(order)
    edges = np.flatnonzero(np.diff(every.resource)) + 1
    for first, stop in zip([0, *edges], [*edges, len(order)], strict=True) if len(order) else ():
        resource, begin, end = int(every.resource[first]), every.begin[first:stop], every.end[first:stop]
        since = np.concatenate(([0.0], np.maximum.accumulate(end)[:-1]))
        if resource >= senders:
            # What is on its way stays so until it is served: of all still to be served the first one sent counts.
            sent = simulation.stripe_start[every.stripe[first:stop]]
            since = np.maximum(since, np.minimum.accumulate(sent[::-1])[::-1])
        gap = since < begin
        yield resource, since[gap], begin[gap]


def usage(simulation: Simulation) -> tuple[Usage, ...]:
    """Every port, out and in, then every link that the schedule may cross."""
    ports, links = simulation.schedule.ports, simulation.schedule.links
    count = 2 * len(ports) + len(links)
    every = services(simulation)
    busy = np.bincount(every.resource, every.end - every.begin, count)
    forced = np.zeros(count)
    for resource, begin, end in forced_idle(simulation):
        forced[resource] = (end - begin).sum()
    if simulation.receivers == "packets":
        shared = slice(len(ports), None)
        forced[shared] += np.maximum(0, _covered(every, count) - simulation.worked)[shared]
        busy[shared] = simulation.worked[shared]
    names = [(p.name, way) for way in ("out", "in") for p in ports] + [(link.name, "link") for link in links]
    rows = [
        Usage(name, way, float(b), float(f), max(0.0, simulation.time_s - float(b) - float(f)))
        for (name, way), b, f in zip(names, busy, forced, strict=True)
    ]
    order = [i for p in range(len(ports)) for i in (p, len(ports) + p)]
    return tuple(rows[i] for i in [*order, *range(2 * len(ports), count)])


def _covered(every: Services, resources: int) -> NDArray[np.float64]:
    """float64, shape (resources,): seconds in which at least one of its services was under way."""
    found = np.zeros(resources)
    order = np.lexsort((every.begin, every.resource))
    resource, begin, end = every.resource[order], every.begin[order], every.end[order]
    edges = np.flatnonzero(np.diff(resource)) + 1
    for first, stop in zip([0, *edges], [*edges, len(order)], strict=True) if len(order) else ():
        until = np.maximum.accumulate(end[first:stop])
        since = np.maximum(begin[first:stop], np.concatenate(([0.0], until[:-1])))
        found[resource[first]] = np.maximum(0, until - since).sum()
    return found


def usage_json(simulation: Simulation) -> list[dict[str, Any]]:
    """The JSON value of `usage`."""
    return [asdict(row) for row in usage(simulation)]
