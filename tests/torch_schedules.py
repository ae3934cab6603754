"""One schedule of every family that four ranks can have, with its order, for tests of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import optcc
from optcc.plans.plan import Plan
from optcc.schedule import Schedule
from optcc.schedule.baselines import BASELINES
from optcc.simulation.simulator import simulate
from optcc.values.cluster import Cluster

HALF = Cluster.uniform(servers=4, nics=2, rate=10**9).degrade("server1/nic0")
TWO = HALF.degrade("server3/nic1", Fraction(1, 2))
GPUS = Cluster.uniform(servers=2, nics=2, rate=10**9, nvlink_rate=10**10)
NBYTES = 10_006  # no multiple of 8: the last cut is not at a granule

OWN: dict[str, Callable[[], Plan]] = {
    "nested": lambda: optcc.plan(HALF, NBYTES, segments=3),
    "nested, two degraded": lambda: optcc.plan(TWO, NBYTES, segments=5),
    "trees": lambda: optcc.plan(HALF, NBYTES, family="trees", segments=3),
    "packed trees": lambda: optcc.plan(HALF, NBYTES, family="packed-trees", segments=3),
    "inside": lambda: optcc.plan(replace(GPUS, gpu_ranks=True), NBYTES, segments=2),
}
FAMILIES = (*BASELINES, *OWN)


@cache
def schedule_of(name: str) -> Schedule:
    """One schedule of every family that four ranks can have."""
    if name in OWN:
        return OWN[name]().schedule()
    return OWN["nested"]().baseline(name).schedule()


def turns_and_programs(schedule: Schedule) -> tuple[Any, Any]:
    from optcc.runtime.torch.script import program_of, turns_of

    programs = [program_of(schedule, rank, 1) for rank in range(schedule.ranks)]
    return turns_of(schedule, programs, simulate(schedule).finish), programs
