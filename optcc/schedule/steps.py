"""The interface of a way to find the steps of direct exchange; there is one for each kind of cluster."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from optcc.schedule.direct_rows import DirectRows, Ints
from optcc.values.cluster import Cluster

if TYPE_CHECKING:
    from optcc.schedule.direct import DirectExchange

Used = list[dict[int, int]]
"""Of each rank the rails that it serves -> the place of its NIC there."""


class Timed(NamedTuple):
    """All transfers with their due times.

    after : hub -> end of the bytes of its section to which others add last
    held : more pairs (row that waits, row that it waits for), where a rank would run ahead otherwise
    """

    rows: DirectRows
    after: dict[int, int]
    held: tuple[Ints, Ints] | None


class Finder(Protocol):
    """A way to find steps. Pure: every rank finds the same by itself."""

    name: str

    def applies(self, cluster: Cluster) -> bool:
        """Whether the cluster is of its kind."""

    def used(self, cluster: Cluster) -> Used:
        """The NICs that take part."""

    def shares(self, cluster: Cluster) -> Sequence[Fraction]:
        """Each rank's part of the data as a hub, sum 1."""

    def timed(self, recipe: DirectExchange, cluster: Cluster, nbytes: int) -> Timed:
        """The transfers of an AllReduce of `nbytes` bytes."""

    def most_steps(self, cluster: Cluster) -> int:
        """Limit of `segments`: more take some GB of memory."""

    def growing(self, recipe: DirectExchange) -> int:
        """Number of steps that are longer than the step before."""

    def told(self, recipe: DirectExchange, cluster: Cluster) -> list[tuple[str, str]]:
        """(label, text) lines for people."""


MAX_CHUNKS = 2**19
"""Limit of steps times NICs of all servers: so many transfers take some GB and some ten seconds."""


def most_steps(used: Used) -> int:
    """Limit of a plan's steps by `MAX_CHUNKS`."""
    return max(1, MAX_CHUNKS // (2 * sum(map(len, used))))


MAX_WAITS = 2**26
"""Transfers, times the ranks that each may wait for, where one rank starves. Under half of these waits come true, each
of 80 bytes while a schedule is made (128 servers of 8 NICs, 311 steps: 1.1 GB): it takes 3 GB at most. Of
128 servers, six of 8 NICs dead, 4 GiB: 187 steps are 0.7 points slower, 450 steps 0.1."""


def rows_of(found: Sequence[tuple[int, ...]]) -> DirectRows:
    """Transfers as columns."""
    return DirectRows(*np.array(found, np.int64).reshape(-1, len(DirectRows._fields)).T)
