"""The partition bound, by a route of its own: no cuts, no roots, no symmetry.

Merge the ranks into q blocks: what is left is an AllReduce over q ranks, which moves 2(q-1) n between blocks. So T >=
2(q-1) n / (what can pass between blocks, both directions summed), for every partition. Proof id partition. On links of
fixed capacity, equal both ways, the best partition is the optimum (Tutte 1961, Nash-Williams; id bidirected); where
links share a NIC or a spine it may stay below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from optcc.errors import InputError, OptccError
from optcc.theory.network import Network
from optcc.theory.ways import build_network
from optcc.values.cluster import Cluster

MOST_RANKS = 9  # 21147 partitions, a small linear program each


@dataclass(frozen=True)
class PartitionBound:
    """`seconds` no AllReduce can beat, because of the blocks (tuples of rank numbers) of one partition."""

    seconds: float
    blocks: tuple[tuple[int, ...], ...]


def partition_bound(cluster: Cluster, nbytes: int) -> PartitionBound:
    """The best bound over all partitions of a small cluster. Raises InputError beyond `MOST_RANKS` ranks."""
    network = build_network(cluster, merge=False)
    ranks = len(network.rank_types)
    if not 2 <= ranks <= MOST_RANKS:
        raise InputError("too many partitions to try", where="ranks", expected=f"2 to {MOST_RANKS}", got=ranks)
    best = PartitionBound(0.0, ())
    for blocks in partitions(range(ranks)):
        if len(blocks) > 1:
            capacity = capacity_between(network, blocks)
            seconds = 2 * (len(blocks) - 1) * nbytes / capacity if capacity > 0 else float("inf")
            if seconds > best.seconds:
                best = PartitionBound(seconds, blocks)
    return best


def capacity_between(network: Network, blocks: Sequence[Sequence[int]]) -> float:
    """Bytes per second that can pass between different blocks at once, over all ways together."""
    block_of = {rank: i for i, block in enumerate(blocks) for rank in block}
    orbits = [network.orbits[o] for o in network.way_orbit]
    crossing = np.array([block_of[o.x] != block_of[o.y] for o in orbits], np.float64)
    rates = np.array([float(r.rate) for r in network.resources])
    found = linprog(-crossing, A_ub=network.use.toarray().astype(np.float64), b_ub=rates / rates.max(), method="highs")
    if found.status != 0:
        raise OptccError(f"the capacity between blocks was not found: {found.message}")
    return float(-float(found.fun or 0.0) * rates.max())


def partitions(items: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to split `items` into blocks, each once."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for blocks in partitions(rest):
        yield ((first,), *blocks)
        for i, block in enumerate(blocks):
            yield (*blocks[:i], (first, *block), *blocks[i + 1 :])
