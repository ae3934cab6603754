"""What the library at hand would take without any file: NCCL's ring, for comparison."""

from __future__ import annotations

from optcc.values.cluster import Cluster

NVLINK_PAYLOAD = 0.66
"""Of NVLink's nominal rate: 299 GB/s of 450, NCCL 2.28.9 on two H100s, 256 MiB, November 2026."""
NETWORK_PAYLOAD = 0.95
"""Of a NIC's nominal rate: TCP and IP headers in frames of 1500 bytes."""
HOP_S = 1e-6
"""From a store into a peer's memory to the peer's next one: what a signal takes in MSCCL++ (`targets.MSCCLPP`)."""
LAUNCH_S = 8e-6
"""What is left of 13.5 us for 1 MiB, on the same two H100s, without two hops and 3.5 us for the bytes."""


def native_ring_s(cluster: Cluster, nbytes: int) -> float | None:
    """Seconds of NCCL's ring over all ranks, which goes at the pace of the slowest server; None: it has no live NIC.

    All of a server's live NICs carry the ring; NVLink carries it inside servers.
    """
    ranks = len(cluster.ranks)
    rates = []
    if len({rank.server for rank in cluster.ranks}) > 1:
        rates += [float(min(server.out_rate, server.in_rate)) * NETWORK_PAYLOAD for server in cluster.servers]
    if cluster.gpu_ranks:
        rates += [float(s.nvlink_rate) * NVLINK_PAYLOAD for s in cluster.servers if s.gpus > 1 and s.nvlink_rate]
    if ranks < 2 or not rates or not min(rates):
        return None
    steps = 2 * (ranks - 1)
    return LAUNCH_S + steps * HOP_S + steps / ranks * nbytes / min(rates)
