"""Virtual time: how long a schedule takes when ports and links serve in order and nothing else costs.

The model: a port's sender serves one stripe at a time at its out rate, lowest row first, without preemption.
(Optionally the stripe ready for longest comes first: this shows the loss in an executor that does not keep the order.)
The links that the stripe crosses and the receiving port each serve arrived bytes at their own rate (cut-through). A
stripe's head moves on as soon as a resource starts to serve it, and never gets ahead of bytes that have not come. So
several senders share a receiver or a link, and no byte lands before it was sent. They are served stripe by stripe, in
the order in which none waits for bytes still to come; or packet by packet, in order of arrival (in the limit of small
packets). `alpha` passes once between a sending port and what comes next. The fabric does not block otherwise. Times are
whole picoseconds rounded up, so that a simulated time is never below the bound. docs/simulator.md says more, also about
faults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError, SimulationError
from optcc.machine.native import NativeCode, Struct, array, call, struct
from optcc.schedule import Schedule
from optcc.schedule.columns import Stripes, chains_of
from optcc.simulation.faults import LONGEST_S, TICKS_PER_S, Fault, FaultTables, fault_tables
from optcc.values.units import Quantity, as_seconds

NEVER = 2**62
"""Ticks; beyond all times."""

MOST_JITTER = 1.0
"""Standard deviation over the mean: beyond it a stripe's time says nothing of its bytes any more."""

Receivers = Literal["stripes", "packets"]
"""What links and receiving ports serve in order: whole stripes, or packets, so that senders share them."""

Service = Literal["plan", "ready"]
"""Which ready stripe a sending port serves first: the lowest row, as the plan orders it, or what was ready first."""


@dataclass(frozen=True, eq=False)
class Services:
    """Stretches of time that resources spent on stripes; columns of one shape.

    stripe : int32; resource : int32, p: port p sending, ports + p: port p receiving, 2 ports + l: link l
    begin, end : float64, seconds
    """

    stripe: NDArray[np.int32]
    resource: NDArray[np.int32]
    begin: NDArray[np.float64]
    end: NDArray[np.float64]

    def where(self, chosen: NDArray[Any]) -> Services:
        """Those of a mask, or of indices."""
        return Services(self.stripe[chosen], self.resource[chosen], self.begin[chosen], self.end[chosen])


@dataclass(frozen=True, eq=False)
class Simulation:
    """What happened, in seconds of virtual time.

    time_s : when the last byte was at its destination
    stripes : with the lanes that they went by at last, after faults
    start, finish : float64, shape (rows,): first byte leaves the source, last byte is at the destination
    stripe_start, stripe_end : float64, shape (stripes,): when the sending port was busy with it, at last
    land_start, land_end : float64, shape (stripes,): when the receiving port was busy with it, at last
    crossings : when links were busy; lost : when ports were busy in vain with what a dying port lost
    receivers : what links and receiving ports serve. If packets, stripes overlap there: each has its time from when the
        port first works for it until its last byte has been served
    worked : float64, shape (resources,), how long links and receiving ports worked in all if they serve packets;
        resources as in `Services`
    """

    schedule: Schedule
    stripes: Stripes
    time_s: float
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    stripe_start: NDArray[np.float64]
    stripe_end: NDArray[np.float64]
    land_start: NDArray[np.float64]
    land_end: NDArray[np.float64]
    crossings: Services
    lost: Services
    receivers: Receivers
    worked: NDArray[np.float64]

    @property
    def replayed(self) -> int:
        """Bytes that were sent again because a port died, each as often as it was."""
        again = self.lost.stripe[self.lost.resource < len(self.schedule.ports)]
        return int(self.stripes.length[again].sum())


def usual_receivers(links: Collection[object]) -> Receivers:
    """Packets where a fabric has links between switches: whole stripes would take turns there, each the link for
    itself, where many senders share it. Stripes elsewhere."""
    return "packets" if links else "stripes"


def simulate(
    schedule: Schedule,
    *,
    alpha: Quantity = 0,
    per_chunk: Quantity = 0,
    faults: Sequence[Fault] = (),
    receivers: Receivers | None = None,
    service: Service = "plan",
    jitter: float = 0.0,
    seed: int = 0,
) -> Simulation:
    """Run `schedule` in virtual time.

    alpha : seconds from a sending port to a receiving port; per_chunk : seconds each port spends per stripe; numbers,
        or text such as "5us"
    faults : ports that slow down or die during the run
    receivers : "packets": links and receiving ports serve packets in the order in which they come; "stripes": whole
        stripes in the order in which they can; None: as `usual_receivers` says
    service : "plan": a sending port serves the lowest row that is ready; "ready": the row that has been ready longest,
        as queues of NICs and other libraries do (of rows ready in the same instant, the lowest)
    jitter, seed : every stripe takes as long, at all ports and links, as if it had its bytes times a factor of its own.
        Factors are lognormal, of mean 1 and standard deviation `jitter`, and follow from the seed alone
    Raises SimulationError if transfers can never start, if a rank with work left has no live NIC, and if time overflows
    the clock. Raises InputError for times below 0, faults of unknown ports, unknown `receivers` or `service`, and
    jitter below 0 or above `MOST_JITTER`.

    >>> from optcc import Cluster, plan
    >>> schedule = plan(Cluster.uniform(servers=4, rate="400Gb/s"), "1MiB").schedule()
    >>> 1 < simulate(schedule, jitter=0.1).time_s / simulate(schedule).time_s < 1.5
    True
    """
    if receivers is None:
        receivers = usual_receivers(schedule.links)
    for name, value, kinds in (("receivers", receivers, get_args(Receivers)), ("service", service, get_args(Service))):
        if value not in kinds:
            raise InputError(f"unknown kind of {name}", where=name, expected=" or ".join(kinds), got=str(value))
    alpha, per_chunk = as_seconds(alpha, "--alpha"), as_seconds(per_chunk, "--per-chunk")
    for name, seconds in (("--alpha", alpha), ("--per-chunk", per_chunk)):
        if not 0 <= seconds <= LONGEST_S:
            raise InputError("time out of range", where=name, expected=f"0 to {LONGEST_S} s", got=str(seconds))
    check_jitter(jitter)
    stripes = schedule.stripes
    tables = fault_tables(schedule, stripes.lanes, faults)
    rows, packets = len(schedule), receivers == "packets"
    work = _Work(
        rows=rows,
        stripes=len(stripes.row),
        waits=len(schedule.dep_idx),
        length=stripes.length if not jitter else _jittered(stripes.length, jitter, seed),
        **{name: getattr(stripes, name) for name in ("row", "lane", "ptr")},
        **{name: getattr(schedule, name) for name in ("dep_ptr", "dep_idx")},
    )
    fabric = _fabric(schedule, stripes, tables, round(Fraction(alpha) * TICKS_PER_S), per_chunk, packets)
    found = _times(stripes, tables, fabric.resources if packets else 0)
    sizes = {"rows": rows, "stripes": len(stripes.row), "resources": len(found["queue"])}
    how = {"packets": packets, "by_row": service == "plan"}
    times = _Times(**sizes, log_room=len(found["log_at"]), **how, **found)
    outcome = call("planning_simulate", work, fabric, times)
    if outcome is NativeCode.TOO_LONG:
        raise SimulationError(f"the transfers take over {LONGEST_S} s: check sizes and rates")
    if outcome is NativeCode.NO_WAY:
        raise SimulationError(_no_way(schedule, stripes, tables, times.about, times.ticks))
    if found["parts"].any():
        stuck = int(np.argmax(found["parts"] > 0))
        raise SimulationError(
            f"deadlock: transfer {stuck} (rank {schedule.src[stuck]} to {schedule.dst[stuck]}) never becomes ready"
        )
    log = Services(*(found[f"log_{name}"][: times.logged] for name in ("stripe", "at", "begin", "end")))
    on_link = log.resource >= 2 * len(schedule.ports)
    return Simulation(
        schedule=schedule,
        stripes=replace(stripes, lane=found["via"], lanes=tables.lanes),
        time_s=int(found["finish"].max(initial=0)) / TICKS_PER_S,
        start=np.minimum.reduceat(found["out_begin"], stripes.ptr[:-1]) if rows else found["out_begin"],
        finish=found["finish"] / TICKS_PER_S,
        stripe_start=found["out_begin"],
        stripe_end=found["out_end"],
        land_start=found["in_begin"],
        land_end=found["in_end"],
        crossings=log.where(on_link),
        lost=log.where(~on_link),
        receivers=receivers,
        worked=found["queue"][:, 3] / TICKS_PER_S,
    )


def _jittered(length: NDArray[np.int64], jitter: float, seed: int) -> NDArray[np.int64]:
    """Bytes of stripes as the simulator's loop is to count them."""
    spread = np.log1p(jitter**2)
    factors = np.random.default_rng(seed).lognormal(-spread / 2, np.sqrt(spread), len(length))
    return np.rint(length * factors).astype(np.int64)


def check_jitter(jitter: float) -> None:
    """Raise InputError unless it is one that can be simulated."""
    if not 0 <= jitter <= MOST_JITTER:
        raise InputError("jitter out of range", where="--jitter", expected=f"0 to {MOST_JITTER:.0%}", got=str(jitter))


def seconds(schedule: Schedule, alpha: float | Fraction, per_chunk: float | Fraction) -> float:
    """`time_s` of `simulate`, which is kept with the schedule. alpha, per_chunk : seconds"""
    kept: dict[object, float] = schedule.__dict__.setdefault("seconds", {})
    if (alpha, per_chunk) not in kept:
        kept[alpha, per_chunk] = simulate(schedule, alpha=alpha, per_chunk=per_chunk).time_s
    return kept[alpha, per_chunk]


# The structs of native/planning.h, which says what is in them.


_Work = struct(
    "simulated_work",
    {
        **dict.fromkeys(("rows", "stripes", "waits"), int),
        **dict.fromkeys(("row", "lane"), array(np.int32, "stripes")),
        "length": array(np.int64, "stripes"),
        **dict.fromkeys(("ptr", "dep_ptr"), array(np.int64, "rows+1")),
        "dep_idx": array(np.int64, "waits"),
    },
)


_Fabric = struct(
    "simulated_fabric",
    {
        **dict.fromkeys(("ports", "resources", "lanes", "lanes_given", "crossed", "notices", "changes", "alpha"), int),
        "chain_ptr": array(np.int64, "lanes+1"),
        "chain": array(np.int32, "crossed"),
        "rate": array(np.float64, "resources"),
        "fixed": array(np.int64, "resources"),
        "change_ptr": array(np.int64, "resources+1"),
        "change_at": array(np.int64, "changes"),
        "change_rate": array(np.float64, "changes"),
        **dict.fromkeys(("dies", "noticed"), array(np.int64, "resources")),
        "notice": array(np.int64, "notices"),
        "detour": array(np.int32, "notices+1", "lanes_given"),
        "room": array(np.int64, "ports"),
    },
)


_Times = struct(
    "simulated_times",
    {
        **dict.fromkeys(("rows", "stripes", "resources", "log_room", "packets", "by_row"), int),
        **dict.fromkeys(("finish", "parts"), array(np.int64, "rows", written=True)),
        **dict.fromkeys(("out_begin", "out_end", "in_begin", "in_end"), array(np.float64, "stripes", written=True)),
        "via": array(np.int32, "stripes", written=True),
        **dict.fromkeys(("log_stripe", "log_at"), array(np.int32, "log_room", written=True)),
        **dict.fromkeys(("log_begin", "log_end"), array(np.float64, "log_room", written=True)),
        "queue": array(np.float64, "resources", 4, written=True),
        **dict.fromkeys(("about", "ticks", "logged"), int),
    },
)


def _fabric(
    schedule: Schedule,
    stripes: Stripes,
    tables: FaultTables,
    alpha: int,
    per_chunk: float | Fraction,
    packets: bool,
) -> Struct:
    ports, links = len(schedule.ports), len(schedule.links)
    rates = [
        *(p.out_rate for p in schedule.ports),
        *(p.in_rate for p in schedule.ports),
        *(link.rate for link in schedule.links),
    ]
    changes: list[list[tuple[int, float]]] = [[] for _ in rates]
    dies, noticed = np.full((2, len(rates)), NEVER, np.int64)
    for p, steps in tables.changes.items():
        changes[p] = [(at, out) for at, out, _ in steps]
        changes[ports + p] = [(at, into) for at, _, into in steps]
    for p, (at, seen) in tables.deaths.items():
        dies[[p, ports + p]], noticed[[p, ports + p]] = at, seen
    chain_ptr, chain = stripes.chains if tables.lanes == stripes.lanes else chains_of(tables.lanes)
    chain = chain + 2 * ports  # links behind the ports, two of each
    chain[chain_ptr[:-1]] -= 2 * ports
    chain[chain_ptr[1:] - 1] -= ports
    # A heap has room for every stripe that any detour may bring to its port.
    out = chain[chain_ptr[:-1]]
    used = np.bincount(stripes.lane, minlength=len(stripes.lanes))
    room = np.bincount(out[tables.detour[0]], used, ports) if len(used) else np.zeros(ports)
    for before, after in pairwise(tables.detour):
        moved = (before != after) & (after >= 0)
        room += np.bincount(out[after[moved]], used[moved], ports)
    rate = np.array(rates, np.float64)
    if packets:  # work is bytes over rates: a resource without rate takes too long, and divides by something
        rate = np.maximum(rate, 1e-30)
    return _Fabric(
        ports=ports,
        resources=len(rates),
        lanes=len(tables.lanes),
        lanes_given=len(stripes.lanes),
        crossed=int(chain_ptr[-1]),
        notices=len(tables.notices),
        changes=sum(map(len, changes)),
        alpha=alpha,
        chain_ptr=chain_ptr,
        chain=chain.astype(np.int32),
        rate=rate,
        fixed=np.repeat(np.array([round(Fraction(per_chunk) * TICKS_PER_S), 0], np.int64), [2 * ports, links]),
        change_ptr=_ptr(changes),
        change_at=np.array([at for steps in changes for at, _ in steps], np.int64),
        change_rate=np.array([rate for steps in changes for _, rate in steps], np.float64),
        dies=dies,
        noticed=noticed,
        notice=np.array(tables.notices, np.int64),
        detour=tables.detour,
        room=room.astype(np.int64),
    )


def _ptr(lists: Sequence[Sequence[object]]) -> NDArray[np.int64]:
    return np.array(list(accumulate(map(len, lists), initial=0)), np.int64)


def _times(stripes: Stripes, tables: FaultTables, resources: int) -> dict[str, NDArray[Any]]:
    """Room for what the loop finds, the arrays of `_Times`. A stripe is lost at most once for each death.

    resources : that have a queue, which they have if they serve packets
    """
    count, deaths = len(stripes.row), len(tables.deaths)
    links = int(np.diff(stripes.chains[0]).max(initial=2)) - 2
    if deaths:
        links = max(len(lane.links) for lane in tables.lanes)
    log = count * (2 * deaths + links * (deaths + 1))
    return {
        "finish": np.zeros(len(stripes.ptr) - 1, np.int64),
        "parts": np.diff(stripes.ptr),
        **{name: np.zeros(count) for name in ("out_begin", "out_end", "in_begin", "in_end")},
        "via": tables.detour[0][stripes.lane] if deaths else stripes.lane,
        **{name: np.empty(log, np.int32) for name in ("log_stripe", "log_at")},
        **{name: np.empty(log) for name in ("log_begin", "log_end")},
        "queue": np.zeros((resources, 4)),
    }


def _no_way(schedule: Schedule, stripes: Stripes, tables: FaultTables, stripe: int, ticks: int) -> str:
    """What to say of a stripe that no live port can carry."""
    row = int(stripes.row[stripe])
    live = [p for i, p in enumerate(schedule.ports) if tables.deaths.get(i, (NEVER, NEVER))[1] > ticks and not p.nvlink]
    for rank in (int(schedule.src[row]), int(schedule.dst[row])):
        if not any(port.rank == rank for port in live):
            mine = [port for port in schedule.ports if port.rank == rank]
            name = max(mine, key=lambda port: port.nvlink).name.rpartition("/")[0]
            who = f"rank {rank} ({name}) has no live NIC left"
            break
    else:
        who = f"no live NICs of rank {schedule.src[row]} and rank {schedule.dst[row]} can reach each other"
    return f"{who} at {ticks / TICKS_PER_S} s, and transfer {row} still needs one"


@dataclass(frozen=True)
class Usage:
    """Seconds of the run of one port, one way, or of one link; the three sum to the run's time.

    A sending port serves the moment anything is ready. So until the end of its last stripe it is forced idle whenever
    it is not busy: all its later stripes wait (after a fault, perhaps for the notice). A receiving port or a link is
    forced idle while it cannot serve a stripe on its way yet: the sender is slower, or alpha has not passed. The rest
    is idle: a sender that is through, a receiver to which nothing is on its way.

    Where receivers serve packets, those of several stripes mix. A receiver or link is busy as long as it would take at
    its own rate for what it served; time in which it served, but less than it could, is forced idle, too.

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
