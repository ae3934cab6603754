"""What runs under faults share: a schedule, and what says that a run proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache

from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from tests.fabrics import ring

MB = 1_000_000


class InconclusiveError(AssertionError):
    """The fault did not hit at its moment: the run says nothing."""


TRIES = 8
"""Runs, at most, until a fault has hit at its moment: on a busy machine a rank may come late."""


def conclusive(run: Callable[[], str]) -> str:
    """What a run has proved; one that says nothing is made anew. Any other error is the run's."""
    for _ in range(TRIES - 1):
        with suppress(InconclusiveError):
            return run()
    return run()


@cache
def rings(servers: int = 3, nics: int = 2, nbytes: int = 1 << 17, rate: int = 8 * MB) -> Schedule:
    return ring(Cluster.uniform(servers=servers, nics=nics, rate=rate), nbytes, segments=2)
