"""The cluster, the size and the costs that tests of plans at failure time share."""

from __future__ import annotations

from fractions import Fraction

from optcc.values.cluster import Cluster
from tests.conftest import GBPS

ALPHA, PER_CHUNK = Fraction(5, 10**6), Fraction(1, 10**6)
COSTS = {"alpha": ALPHA, "per_chunk": PER_CHUNK}
MIB = 2**20


def uniform(servers: int = 5, nics: int = 2) -> Cluster:
    return Cluster.uniform(servers=servers, nics=nics, rate=400 * GBPS)
