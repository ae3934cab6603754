"""Virtual time: how long a schedule takes when ports serve in priority order and nothing else costs.

The model: a port's sender serves one stripe at a time at its out rate, lowest row first, without preemption. A
stripe's head reaches the receiving port `alpha` later (cut-through); that port serves stripes at its in rate in the
order in which they can be served without waiting for bytes still to come, so several senders share it without
ever receiving a byte before it was sent. The fabric between ports does not block. Times are whole picoseconds
rounded up, so that a simulated time is never below the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from optcc._event_loop import run_events
from optcc.errors import InputError, SimulationError
from optcc.schedule import Schedule

TICKS_PER_S = 10**12
_LONGEST_S = 10**6  # sums of this many seconds stay far inside 64-bit ticks


@dataclass(frozen=True, eq=False)
class Stripes:
    """The lanes' pieces of every transfer, in row order.

    row, out, into : int32, shape (stripes,): transfer, port it leaves, port it enters; length : int64 bytes
    ptr : int64, shape (rows + 1,): stripes of row i are ptr[i]:ptr[i + 1]
    """

    row: NDArray[np.int64]
    out: NDArray[np.int32]
    into: NDArray[np.int32]
    length: NDArray[np.int64]
    ptr: NDArray[np.int64]


def stripes_of(schedule: Schedule) -> Stripes:
    """Cut every transfer at its route's lanes; empty stripes are left out. Bytes are conserved, row by row."""
    rows, outs, intos, lengths = [], [], [], []
    for index, route in enumerate(schedule.routes):
        mine = np.flatnonzero(schedule.route == index)
        if not len(mine):
            continue
        sizes, inverse = np.unique(schedule.length[mine], return_inverse=True)
        cuts = np.array([np.diff(route.cuts(int(size))) for size in sizes], np.int64).reshape(len(sizes), -1)
        rows.append(np.repeat(mine, len(route.lanes)))
        outs.append(np.tile(np.array([lane.out for lane in route.lanes], np.int32), len(mine)))
        intos.append(np.tile(np.array([lane.into for lane in route.lanes], np.int32), len(mine)))
        lengths.append(cuts[inverse].ravel())
    row = np.concatenate(rows or [np.zeros(0, np.int64)])
    length = np.concatenate(lengths or [np.zeros(0, np.int64)])
    order = np.argsort(row, kind="stable")
    order = order[length[order] > 0]
    out = np.concatenate(outs or [np.zeros(0, np.int32)])[order]
    into = np.concatenate(intos or [np.zeros(0, np.int32)])[order]
    counts = np.bincount(row[order], minlength=len(schedule))
    ptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return Stripes(row[order], out, into, length[order], ptr)


@dataclass(frozen=True, eq=False)
class Simulation:
    """What happened, in seconds of virtual time.

    start, finish : float64, shape (rows,): first byte leaves the source, last byte is at the destination
    stripe_start, stripe_end : float64, shape (stripes,): when the sending port was busy with it
    land_start, land_end : float64, shape (stripes,): when the receiving port was busy with it
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


def simulate(schedule: Schedule, *, alpha: float | Fraction = 0, per_chunk: float | Fraction = 0) -> Simulation:
    """Run `schedule` in virtual time.

    alpha : seconds from a sending port to a receiving port; per_chunk : seconds each port spends per stripe.
    Raises SimulationError when transfers are left that nothing will ever let start, or time overflows the clock, and
    InputError for a schedule over spine links or pod uplinks, which this model does not have.
    """
    if schedule.shared_links:
        raise InputError(
            "spine links and pod uplinks are not simulated",
            where="fabric",
            expected="a fabric that only NICs limit",
            hint="The plan's fluid_s counts them; its latency-free time is known without a simulation.",
        )
    for name, seconds in (("--alpha", alpha), ("--per-chunk", per_chunk)):
        if not 0 <= seconds <= _LONGEST_S:
            raise InputError("time out of range", where=name, expected=f"0 to {_LONGEST_S} s", got=str(seconds))
    stripes = stripes_of(schedule)
    out_work = _ticks(stripes.length, np.array([p.out_rate for p in schedule.ports])[stripes.out], per_chunk)
    in_work = _ticks(stripes.length, np.array([p.in_rate for p in schedule.ports])[stripes.into], per_chunk)
    if float(out_work.sum()) > _LONGEST_S * TICKS_PER_S:
        raise SimulationError(f"the transfers take over {_LONGEST_S} s: check sizes and rates")
    ptr, idx = schedule.dependents()
    finished, sent, landed = run_events(
        len(schedule.ports),
        stripes.ptr,
        stripes.row,
        stripes.out,
        stripes.into,
        out_work,
        in_work,
        round(Fraction(alpha) * TICKS_PER_S),
        np.diff(schedule.dep_ptr),
        ptr,
        idx,
    )
    if len(finished) and finished.min() < 0:
        stuck = int(np.argmax(finished < 0))
        raise SimulationError(
            f"deadlock: transfer {stuck} (rank {schedule.src[stuck]} to {schedule.dst[stuck]}) never becomes ready"
        )
    start = np.full(len(schedule), np.inf)
    np.minimum.at(start, stripes.row, _seconds(sent))
    return Simulation(
        schedule=schedule,
        stripes=stripes,
        time_s=int(finished.max(initial=0)) / TICKS_PER_S,
        start=start,
        finish=_seconds(finished),
        stripe_start=_seconds(sent),
        stripe_end=_seconds(sent + out_work),
        land_start=_seconds(landed - in_work),
        land_end=_seconds(landed),
    )


def _seconds(ticks: NDArray[np.int64]) -> NDArray[np.float64]:
    return ticks.astype(np.float64) / TICKS_PER_S


def _ticks(length: NDArray[np.int64], rate: NDArray[np.float64], per_chunk: float | Fraction) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):
        ticks = np.ceil(length / rate * TICKS_PER_S)
    if len(ticks) and not ticks.max() < _LONGEST_S * TICKS_PER_S:
        raise SimulationError(f"a transfer takes over {_LONGEST_S} s: check sizes and rates")
    return ticks.astype(np.int64) + round(Fraction(per_chunk) * TICKS_PER_S)
