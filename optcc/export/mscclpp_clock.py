"""How long the MSCCL++ executor takes for a plan, told from the file.

A threadblock runs its operations in order. It stores into a peer's memory (`put` on a memory channel) and adds (`re`)
at its own rate; the blocks of a rank share its NVLink port and its memory. Puts and flushes on port channels go to the
rank's proxy, as signals there do, which serves one after the other and spends some time on each; the block goes on, and
waits at a flush.

The file becomes threads that run steps in order, counters that they wait for, and rates that they share. A *thread* is
a threadblock, or a proxy that sends for one. A *step* waits until a counter is high enough, takes a lock (first come,
first served), and pauses. It moves bytes no faster than its own cap and its fair share of up to two resources. Then it
releases the lock and increments a counter, at once or a delay later. Resources are links, ports and memories; they are
shared max-min fairly by those who move at the moment.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optcc.errors import InputError, SimulationError
from optcc.export.mscclpp_file import Channel, MscclppOp, MscclppProgram, MscclppThreadblock, joined_channels
from optcc.machine.native import NativeCode, array, call, struct
from optcc.values.cluster import Cluster

NONE = -1
RING_NVLINK_PAYLOAD = 0.66
"""Of NVLink's nominal rate: 299 GB/s of 450, NCCL 2.28.9 on two H100s, 256 MiB, November 2026."""
RING_NETWORK_PAYLOAD = 0.95
"""Of a NIC's nominal rate: TCP and IP headers in frames of 1500 bytes."""
RING_HOP_S = 1e-6
"""From a store into a peer's memory to the peer's next one: what a signal takes in MSCCL++ (`MSCCLPP`)."""
RING_LAUNCH_S = 8e-6
"""What is left of 13.5 us for 1 MiB, on the same two H100s, without two hops and 3.5 us for the bytes."""


@dataclass(frozen=True)
class Mscclpp:
    """MSCCL++'s executor. Rates in bytes per second, times in seconds, each figure with its source.

    "Two H100s" is two H100 SXM of one host, joined by 18 NVLinks (450 GB/s each way), November 2026, MSCCL++ 0.9.0 and
    CUDA 13; docs/exports.md has the measurements.

    put_rate, add_rate : what one threadblock of 1024 threads stores into a peer's memory; what it sums into
    memory_rate : what a GPU's memory reads and writes in all
    nvlink_payload, network_payload : the part of a port's nominal rate that is left for data
    launch_s : of a kernel, beside what it does; operation_s : of an operation, beside its bytes
    signal_s : from a signal to the end of the wait
    port_message_s, port_flush_s : that the proxy spends on a put beside its bytes, and on a flush; a signal by itself,
        which was not measured, is taken for a put of no bytes
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


def seconds(program: MscclppProgram, cluster: Cluster, nbytes: int, target: Mscclpp = MSCCLPP) -> float:
    """Seconds for one launch of `program` on buffers of `nbytes`, on `cluster`.

    Raises SimulationError where a NIC that the executor would take has no rate.
    """
    shared = _Shared(program, cluster, nbytes, target)
    for rank, gpu in enumerate(program.gpus):
        for block in gpu.threadblocks:
            _TimedBlock(shared, rank, block).run()
    return shared.machine.seconds()


class _Shared:
    """What threadblocks have in common: counters of signals and of puts that are done, proxies, memories, links."""

    def __init__(self, program: MscclppProgram, cluster: Cluster, nbytes: int, target: Mscclpp) -> None:
        self.target, self.machine = target, TimedThreads()
        self.links = _links(self.machine, cluster, target)
        self.chunk = nbytes / program.chunks
        self.peers = [gpu.channels for gpu in program.gpus]
        self.far = joined_channels(program)
        self.arrived = {lane: self.machine.counter() for lane in self.far}
        self.sent = {lane: self.machine.counter() for lane in self.far}
        self.proxy = [self.machine.lock() for _ in program.gpus]
        # A sum reads twice and writes once.
        self.memory = [self.machine.resource(target.memory_rate / 3) for _ in program.gpus]


class _TimedBlock:
    """A threadblock's operations as steps of a thread, and its puts on port channels as those of a thread each."""

    def __init__(self, shared: _Shared, rank: int, block: MscclppThreadblock) -> None:
        self.shared, self.rank, self.block = shared, rank, block
        self.steps = shared.machine.thread()
        self.waits: Counter[Channel] = Counter()
        self.asked: Counter[Channel] = Counter()
        self.proxies: dict[Channel, tuple[int, list[TimedStep]]] = {}

    def run(self) -> None:
        target = self.shared.target
        self.steps.append(TimedStep(pause=target.launch_s))
        for op in self.block.ops:
            if op.name == "wait":
                for place, lane in enumerate(self._lanes(op, len(op.channels))):  # by a thread each
                    self.waits[lane] += 1
                    pause = 0.0 if place else target.operation_s
                    self.steps.append(TimedStep(self.shared.arrived[lane], self.waits[lane], pause=pause))
            elif op.name == "nop":
                self.steps.append(TimedStep(pause=target.operation_s))
            elif op.name in ("re", "copy"):
                cap = target.add_rate if op.name == "re" else target.put_rate
                memory = self.shared.memory[self.rank]
                self.steps.append(TimedStep(pause=target.operation_s, nbytes=self._bytes(op), cap=cap, one=memory))
            elif op.name == "signal":
                for lane in self._lanes(op, len(op.channels)):
                    told = TimedStep(post=self.shared.arrived[self.shared.far[lane]], delay=target.signal_s)
                    if lane[1] == "port":
                        self._ask(lane, TimedStep(pause=target.port_message_s)).append(told)
                    else:
                        self.steps.append(told._replace(pause=target.operation_s))
            elif op.name in ("put", "pws"):
                self._put(op)
            elif op.name == "flush":
                for lane in self._lanes(op, len(op.dst)):
                    if lane[1] == "port":
                        self._ask(lane, TimedStep(pause=target.port_flush_s))
                    self.steps.append(TimedStep(self.shared.sent[lane], self.asked[lane]))

    def _lanes(self, op: MscclppOp, count: int) -> list[Channel]:
        kind = op.channel_type or ""
        return [(self.rank, kind, self.block.channels[kind][c]) for c in op.channels[:count]]

    def _bytes(self, op: MscclppOp) -> float:
        return op.dst[0].count * self.shared.chunk

    def _put(self, op: MscclppOp) -> None:
        shared, target, nbytes = self.shared, self.shared.target, self._bytes(op)
        (lane,) = self._lanes(op, 1)
        one, two = shared.links(self.rank, shared.peers[self.rank][lane[1]][lane[2]])
        if lane[1] == "memory":
            self.steps.append(TimedStep(pause=target.operation_s, nbytes=nbytes, cap=target.put_rate, one=one, two=two))
            return
        served = self._ask(lane, TimedStep(pause=target.port_message_s, nbytes=nbytes, one=one, two=two))
        if op.name == "pws":
            served.append(TimedStep(post=shared.arrived[shared.far[lane]], delay=target.signal_s))

    def _ask(self, lane: Channel, what: TimedStep) -> list[TimedStep]:
        """Hand `what` to the rank's proxy, which does it after what it was asked before; the lane's steps there."""
        machine = self.shared.machine
        if lane not in self.proxies:
            self.proxies[lane] = machine.counter(), machine.thread()
        asked, served = self.proxies[lane]
        self.asked[lane] += 1
        self.steps.append(TimedStep(pause=self.shared.target.operation_s, post=asked))
        proxy, sent = self.shared.proxy[self.rank], self.shared.sent[lane]
        served.append(what._replace(wait=asked, need=self.asked[lane], lock=proxy, post=sent))
        return served


def _links(machine: TimedThreads, cluster: Cluster, target: Mscclpp) -> Callable[[int, int], tuple[int, int]]:
    """A function (source, destination) -> the two resources that bytes pass, made of each rank's ports."""
    ports: dict[tuple[int, bool, bool], int] = {}
    ranks = cluster.ranks

    def port(rank: int, inside: bool, out: bool) -> int:
        key = (rank, inside, out)
        if key not in ports:
            if inside:
                rate = float(cluster.servers[ranks[rank].server].nvlink_rate) * target.nvlink_payload
            else:
                rate = one_nic(cluster, rank)[not out] * target.network_payload
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


def native_ring_s(cluster: Cluster, nbytes: int) -> float | None:
    """Seconds of NCCL's ring over all ranks, which goes at the pace of the slowest server; None: no live NIC.

    All of a server's live NICs carry the ring; NVLink carries it inside servers.
    """
    ranks = len(cluster.ranks)
    rates = []
    if len({rank.server for rank in cluster.ranks}) > 1:
        rates += [float(min(server.out_rate, server.in_rate)) * RING_NETWORK_PAYLOAD for server in cluster.servers]
    if cluster.gpu_ranks:
        rates += [float(s.nvlink_rate) * RING_NVLINK_PAYLOAD for s in cluster.servers if s.gpus > 1 and s.nvlink_rate]
    if ranks < 2 or not rates or not min(rates):
        return None
    steps = 2 * (ranks - 1)
    return RING_LAUNCH_S + steps * RING_HOP_S + steps / ranks * nbytes / min(rates)


class TimedStep(NamedTuple):
    """One step, in this order: wait, lock, pause, move, unlock, post. Seconds, bytes, bytes per second; NONE: without.

    wait, need : a counter, and what it must have come to; post, delay : a counter, and how much later it is counted up
    one, two : resources that the bytes pass
    """

    wait: int = NONE
    need: int = 0
    lock: int = NONE
    pause: float = 0.0
    nbytes: float = 0.0
    cap: float = np.inf
    one: int = NONE
    two: int = NONE
    post: int = NONE
    delay: float = 0.0


class TimedThreads:
    """Threads in the making. Counters, locks and resources are numbers that these methods give out."""

    def __init__(self) -> None:
        self._threads: list[list[TimedStep]] = []
        self._counters: list[int] = []
        self._rates: list[float] = []
        self._locks = 0

    def thread(self) -> list[TimedStep]:
        """A new thread: its steps, to be added to."""
        self._threads.append([])
        return self._threads[-1]

    def counter(self, start: int = 0) -> int:
        self._counters.append(start)
        return len(self._counters) - 1

    def lock(self) -> int:
        self._locks += 1
        return self._locks - 1

    def resource(self, rate: float) -> int:
        """Something that passes `rate` bytes per second in all. Raises SimulationError for one without a rate."""
        if not rate > 0:
            raise SimulationError("a link without a rate: nothing ever passes it")
        self._rates.append(float(rate))
        return len(self._rates) - 1

    def seconds(self) -> float:
        """When the last thread is done. Raises SimulationError when some wait for ever."""
        steps = [step for thread in self._threads for step in thread]
        threads, time = (
            _Threads(
                threads=len(self._threads),
                steps=len(steps),
                counters=len(self._counters),
                locks=self._locks,
                resources=len(self._rates),
                ptr=np.cumsum([0, *map(len, self._threads)], dtype=np.int64),
                step=np.array(steps, _STEP),
                rates=np.array(self._rates, np.float64),
                count=np.array(self._counters, np.int64),
            ),
            ctypes.c_double(),
        )
        if call("planning_clock", threads, time) is NativeCode.STUCK:
            raise SimulationError("threads wait for ever")
        return time.value


_STEP = np.dtype([(name, type(default)) for name, default in TimedStep._field_defaults.items()])


_Threads = struct(
    "timed_threads",
    {
        **dict.fromkeys(("threads", "steps", "counters", "locks", "resources"), int),
        "ptr": array(np.int64, "threads+1"),
        "step": array(_STEP, "steps"),
        "rates": array(np.float64, "resources"),
        "count": array(np.int64, "counters", written=True),
    },
)
