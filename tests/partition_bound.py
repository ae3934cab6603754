"""The partition bound, by a route of its own: no cuts, no roots, no symmetry.

Merge the ranks into q blocks: what is left is an AllReduce over q ranks, which moves 2(q-1) n between blocks. So T >=
2(q-1) n / (what can pass between blocks, both directions summed), for every partition. Proof id partition. On links of
fixed capacity, equal both ways, the best partition is the optimum (Tutte 1961, Nash-Williams; id bidirected); where
links share a NIC or a spine it may stay below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import linprog

from optcc.theory.program_network import Network, build_network
from optcc.values.cluster import Cluster


def partition_bound(cluster: Cluster, nbytes: int) -> float:
    """Seconds that no AllReduce can beat: the best bound over all partitions, of which 9 ranks have 21147."""
    network = build_network(cluster, merge=False)
    return max(
        2 * (len(blocks) - 1) * nbytes / capacity_between(network, blocks)
        for blocks in partitions(range(len(network.rank_types)))
        if len(blocks) > 1
    )


def capacity_between(network: Network, blocks: Sequence[Sequence[int]]) -> float:
    """Bytes per second that can pass between different blocks at once, over all ways together."""
    block_of = {rank: i for i, block in enumerate(blocks) for rank in block}
    orbits = [network.orbits[o] for o in network.way_orbit]
    crossing = np.array([block_of[o.x] != block_of[o.y] for o in orbits], np.float64)
    rates = np.array([float(r.rate) for r in network.resources])
    found = linprog(-crossing, A_ub=network.use.toarray().astype(np.float64), b_ub=rates / rates.max(), method="highs")
    assert found.status == 0, found.message
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
