"""What the program has for each collective: which of its two halves, and where results may start from.

AllReduce has both halves and may choose its root weights. Allgather is the broadcast half with an equal shard on every
rank, reduce-scatter the reduce half; broadcast and reduce are one half with all weight on one root. n is the size of
the whole buffer: an allgather's result, a reduce-scatter's input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from optcc.errors import InputError
from optcc.theory.network import Network

BROADCAST_SIDE, REDUCE_SIDE = False, True


@dataclass(frozen=True)
class CollectiveKind:
    """sides : the halves it has; roots : where its data starts (or ends): free to choose, even shards, or one rank."""

    name: str
    sides: tuple[bool, ...]
    roots: Literal["free", "even", "one"]

    def weights(self, network: Network, root: int) -> NDArray[np.int64] | None:
        """int64 (types,): relative root weight of every rank of each type; None when the program chooses."""
        if self.roots == "free":
            return None
        if self.roots == "even":
            return np.ones(len(network.rank_types), np.int64)
        one = np.zeros(len(network.rank_types), np.int64)
        one[root] = 1
        return one


ALLREDUCE = CollectiveKind("allreduce", (BROADCAST_SIDE, REDUCE_SIDE), "free")
COLLECTIVES = {
    c.name: c
    for c in (
        ALLREDUCE,
        CollectiveKind("allgather", (BROADCAST_SIDE,), "even"),
        CollectiveKind("reduce-scatter", (REDUCE_SIDE,), "even"),
        CollectiveKind("broadcast", (BROADCAST_SIDE,), "one"),
        CollectiveKind("reduce", (REDUCE_SIDE,), "one"),
    )
}


def collective_named(name: str) -> CollectiveKind:
    """The collective of that name. Raises InputError for any other."""
    if name not in COLLECTIVES:
        raise InputError(
            "unknown collective", where="collective", expected=f"one of {', '.join(COLLECTIVES)}", got=name
        )
    return COLLECTIVES[name]
