"""Schedules with a planted fault, for the tests of what runs them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import optcc
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster

COLUMNS = ("route", "offset", "length", "reduce", "stage", "segment")


def nested(ranks: int = 4, nbytes: int = 4096, segments: int = 4, rate: int = 10**8, weak: int = 1) -> Schedule:
    """Nested rings on `ranks` servers of `rate` bytes per second, `weak` of them with half their NICs left."""
    cluster = Cluster.uniform(servers=ranks, nics=2, rate=rate // 2)
    for server in range(weak):
        cluster = cluster.degrade(f"server{server}/nic0")
    return optcc.plan(cluster, nbytes, segments=segments).schedule()


def with_rows(schedule: Schedule, rows: list[int]) -> Schedule:
    """The schedule with only these rows, in this order; a row may occur twice. Who waited for a row waits for every
    occurrence of it, and no longer for one that does not occur."""
    places: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row, []).append(place)
    deps = [[place for dep in schedule.deps(row).tolist() for place in places.get(dep, ())] for row in rows]
    return schedule.replace(
        **{name: getattr(schedule, name)[rows] for name in COLUMNS},
        dep_ptr=np.cumsum([0, *map(len, deps)]).astype(np.int64),
        dep_idx=np.array([dep for waits in deps for dep in waits], np.int64),
    )


def without(schedule: Schedule, *lost: int) -> Schedule:
    """The schedule without these rows."""
    return with_rows(schedule, [row for row in range(len(schedule)) if row not in lost])


def hasty(schedule: Schedule, row: int, which: int = 0) -> Schedule:
    """The schedule in which `row` does not wait for one of its dependencies, the first one unless told."""
    later = np.arange(len(schedule.dep_ptr)) > row
    kept = np.delete(schedule.dep_idx, schedule.dep_ptr[row] + which)
    return schedule.replace(dep_ptr=schedule.dep_ptr - later, dep_idx=kept)


def without_waits(schedule: Schedule, rows: NDArray[np.int64]) -> Schedule:
    """The schedule in which `rows` wait for nothing."""
    waits = np.repeat(np.arange(len(schedule)), np.diff(schedule.dep_ptr))
    kept = ~np.isin(waits, rows)
    counts = np.bincount(waits[kept], minlength=len(schedule))
    return schedule.replace(dep_ptr=np.concatenate(([0], np.cumsum(counts))), dep_idx=schedule.dep_idx[kept])


def waiting_also(schedule: Schedule, row: int, dep: int) -> Schedule:
    """The schedule with one more dependency: `row` waits for `dep`."""
    at = int(schedule.dep_ptr[row + 1])
    later = np.arange(len(schedule.dep_ptr)) > row
    return schedule.replace(dep_ptr=schedule.dep_ptr + later, dep_idx=np.insert(schedule.dep_idx, at, dep))


def in_a_circle(schedule: Schedule) -> Schedule:
    """The first transfer waits for the last one of its section, which cannot happen before it."""
    same = (schedule.offset == schedule.offset[0]) & (schedule.dst == schedule.src[0])
    return waiting_also(schedule, 0, int(np.flatnonzero(same)[-1]))
