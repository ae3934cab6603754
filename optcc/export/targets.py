"""What the executors of exported files do in a second: one table per target, each figure with its source.

"Two H100s" is two H100 SXM of one host, joined by 18 NVLinks (450 GB/s each way), November 2026, MSCCL++ 0.9.0 and
NCCL 2.28.9 with CUDA 13, msccl-executor-nccl with NCCL 2.23.4; docs/exports.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optcc.errors import InputError
from optcc.export.timed import TimedThreads
from optcc.values.cluster import Cluster


@dataclass(frozen=True)
class Mscclpp:
    """MSCCL++'s executor. Rates in bytes per second, times in seconds.

    put_rate, add_rate : what one threadblock of 1024 threads stores into a peer's memory; what it sums into
    memory_rate : what a GPU's memory reads and writes in all
    nvlink_payload, network_payload : the part of a port's nominal rate that is left for data
    launch_s : of a kernel, beside what it does; operation_s : of an operation, beside its bytes
    signal_s : from a signal to the end of the wait
    port_message_s, port_flush_s : that the proxy spends on a put beside its bytes, and on a flush
    """

    put_rate: float
    add_rate: float
    memory_rate: float
    nvlink_payload: float
    network_payload: float
    launch_s: float
    operation_s: float
    signal_s: float
    port_message_s: float
    port_flush_s: float


MSCCLPP = Mscclpp(
    put_rate=38e9,  # with add_rate, from 256 MiB by 4, 8 and 64 threadblocks of two H100s
    add_rate=26e9,  # and from the same by port channels, which no block's puts slow down
    memory_rate=3.35e12,  # the data sheet of the H100 SXM
    nvlink_payload=0.88,  # 64 threadblocks
    network_payload=1.0,  # not measured
    launch_s=5e-6,  # with operation_s and signal_s, 1 MiB by memory channels
    operation_s=0.3e-6,
    signal_s=1.0e-6,
    port_message_s=7.3e-6,  # 1 MiB by 2, 16 and 128 puts a rank
    port_flush_s=2.5e-6,  # the same, with 2, 8 and 9 flushes
)


@dataclass(frozen=True)
class Msccl:
    """msccl-executor-nccl's kernel, protocol Simple.

    block_rate : what one threadblock sends, receives, or receives and adds; the rest as in `Mscclpp`
    message_bytes : most that a message carries; depth : messages that a connection holds
    """

    block_rate: float
    nvlink_payload: float
    network_payload: float
    launch_s: float
    operation_s: float
    message_bytes: int
    depth: int
    network_s: float


MSCCL = Msccl(
    block_rate=41e9,  # with operation_s, 256 MiB by 1 to 16 channels of two H100s or H200s
    nvlink_payload=0.74,  # 32 channels
    network_payload=0.95,  # headers of TCP and IP in frames of 1500 bytes
    launch_s=5e-6,  # 1 MiB by 16 channels
    operation_s=8e-6,
    message_bytes=2 * 2**20,  # MSCCL_CHUNKSTEPS, 4, of NCCL's 8 buffer steps of 512 KiB
    depth=2,  # 8 buffer steps over 4
    network_s=50e-6,  # of TCP between processes of one machine; does not show in times of a second
)


def wires(
    machine: TimedThreads,
    cluster: Cluster,
    nvlink: float,
    network: float,
    nic: Callable[[Cluster, int], tuple[float, float]] | None = None,
) -> Callable[[int, int], tuple[int, int]]:
    """A function (source, destination) -> the two resources that bytes pass, made of each rank's ports.

    nic : a rank's network rates out and in, where the executor does not use all of its NICs
    """
    ports: dict[tuple[int, bool, bool], int] = {}
    ranks = cluster.ranks

    def port(rank: int, inside: bool, out: bool) -> int:
        key = (rank, inside, out)
        if key not in ports:
            if inside:
                rate = float(cluster.servers[ranks[rank].server].nvlink_rate) * nvlink
            else:
                both = nic(cluster, rank) if nic else (float(ranks[rank].out_rate), float(ranks[rank].in_rate))
                rate = both[not out] * network
            ports[key] = machine.resource(rate)
        return ports[key]

    def between(src: int, dst: int) -> tuple[int, int]:
        inside = ranks[src].server == ranks[dst].server
        return port(src, inside, True), port(dst, inside, False)

    return between


def one_nic(cluster: Cluster, rank: int) -> tuple[float, float]:
    """Rates of the NIC that MSCCL++ takes for a rank: that of its place among the ranks of its server."""
    mine = cluster.ranks[rank]
    place = rank % sum(other.server == mine.server for other in cluster.ranks)
    nics = cluster.servers[mine.server].nics
    nic = nics[place % len(nics)]
    return float(nic.out_rate), float(nic.in_rate)


def check_places(cluster: Cluster) -> None:
    """Raise InputError where MSCCL++ would send by a NIC that is not beside the rank: servers of several sizes.

    It takes NIC (rank mod ranks of its own server); that is the rank's place only where the ranks before its server are
    a multiple of that.
    """
    sizes = [sum(rank.server == number for rank in cluster.ranks) for number in range(len(cluster.servers))]
    wrong = _misplaced(sizes)
    if wrong is None or all(len(server.nics) < 2 for server in cluster.servers):
        return
    mended = _misplaced(sorted(sizes, reverse=True)) is None
    own = sizes[wrong]
    raise InputError(
        "ranks would use each other's NICs",
        where=cluster.servers[wrong].name,
        expected=f"a multiple of its own {own} ranks before it: the executor takes NIC rank mod {own}",
        got=f"{sum(sizes[:wrong])} ranks before it",
        hint="List servers with more GPUs first." if mended else "No order of these servers would do.",
    )


def _misplaced(sizes: list[int]) -> int | None:
    """The first server whose ranks before it are no multiple of its own."""
    return next((n for n, size in enumerate(sizes) if sum(sizes[:n]) % size), None)
