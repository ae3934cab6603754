"""A fault run in virtual time, for its picture: faults of a run on real bytes as faults of the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optcc.errors import InputError, SimulationError
from optcc.plans.plan import Plan
from optcc.simulation.faults import DETECT_S, Fault
from optcc.simulation.simulator import Simulation, simulate

if TYPE_CHECKING:
    from optcc.runtime.messages import Strike

DRAWN = ("cut", "hole", "slow")
"""Faults that the simulator knows: a NIC that dies, or has less from now on. It has none for what comes back, for a
path between NICs that work, and for a server that ends the run."""


def check_drawn(strikes: Sequence[Strike]) -> None:
    """Raise InputError for a fault of a kind that is not drawn."""
    for strike in strikes:
        if strike.kind not in DRAWN:
            raise InputError(
                f"a run with --{strike.kind} is not drawn, for the simulator has no such fault",
                where="--timeline",
                expected=" or ".join(f"--{kind}" for kind in DRAWN),
                got=f"--{strike.kind}",
                hint="Leave --timeline out: what happened is printed event by event.",
            )


def simulated_fault_run(plan: Plan, strikes: Sequence[Strike]) -> tuple[Simulation, tuple[Fault, ...]]:
    """The plan with these faults, each at the moment at which its server, without faults, has done its part.

    The sender learns of a cut after `DETECT_S`, of a hole when the runtime's longest timeout is over.
    Raises InputError where no way is left, so that there is no end to be drawn.
    """
    check_drawn(strikes)
    schedule = plan.schedule()
    whole = simulate(schedule)
    ranks = {port.name: port.rank for port in schedule.ports}
    hole_s = _hole_s(plan) if any(strike.kind == "hole" for strike in strikes) else DETECT_S
    faults = tuple(
        Fault(
            strike.nic,
            moment_of(whole, ranks[strike.nic], strike.at),
            Fraction(str(strike.amount)) if strike.kind == "slow" else Fraction(0),
            hole_s if strike.kind == "hole" else DETECT_S,
        )
        for strike in strikes
    )
    try:
        return simulate(schedule, faults=faults), faults
    except SimulationError as error:
        raise InputError("no way is left, so no end can be drawn", where="--timeline", got=str(error)) from None


def moment_of(simulation: Simulation, rank: int, part: float) -> float:
    """When the rank has done a part of its transfers, 0 to 1, in seconds.

    As the runtime counts them (`Engine.progress`): sent when they leave, received when they are there; never all.
    """
    schedule = simulation.schedule
    done = np.sort(np.concatenate((simulation.start[schedule.src == rank], simulation.finish[schedule.dst == rank])))
    count = min(math.ceil(part * len(done)), len(done) - 1)
    return float(done[count - 1]) if count > 0 else 0.0


def _hole_s(plan: Plan) -> float:
    from optcc.runtime.flows.timeouts import Timeouts
    from optcc.runtime.wires.layout import layout_of

    timeouts = Timeouts().for_chunks_of(layout_of({"": plan.schedule()}).slowest_chunk_s)
    return timeouts.progress + timeouts.grace
