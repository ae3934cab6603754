"""Maximum flow into one node in whole numbers of up to 42 bits, by scipy's, which counts in 32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

COARSE_BITS, FINE_BITS = 30, 12
"""Flows of up to 2**(30 + 12): found in steps of 2**12 first, then what that leaves in steps of 1."""


def flow_into(capacity: NDArray[np.int64], supply: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A maximum flow from the supplies into node 0, and the nodes on node 0's side of the least cut.

    capacity : (nodes, nodes) from row to column; supply : (nodes,), at most 2**42 in all.
    Returns (flow, inside): flow (nodes + 1, nodes + 1) >= 0 with the supplies as last row; inside (nodes,), the
    smallest set with that cut.
    """
    n = len(capacity)
    room = np.zeros((n + 1, n + 1), np.int64)
    room[:n, :n] = capacity
    room[n, :n] = supply
    np.fill_diagonal(room, 0)
    net = _maximum(room >> FINE_BITS) << FINE_BITS
    while True:
        # Node 0's side is what can still reach it in the residual graph. While the source is there, more can flow.
        inside = np.zeros(n + 1, np.bool_)
        inside[breadth_first_order(csr_array((room - net).T), 0, return_predecessors=False)] = True
        if not inside[n]:
            return np.maximum(net, 0), inside[:n]
        more = _maximum(room - net)
        if not more.any():
            raise ArithmeticError("a path was found along which no flow goes")
        net += more


def _maximum(room: NDArray[np.int64]) -> NDArray[np.int64]:
    """A maximum flow from the last node to the first within min(room, 2**31 - 1), antisymmetric."""
    limited = csr_array(np.minimum(room, 2**31 - 1).astype(np.int32))
    return np.asarray(maximum_flow(limited, len(room) - 1, 0).flow.toarray(), np.int64)
