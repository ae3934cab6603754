"""How long the MSCCL++ executor takes for a plan, told from the file.

A threadblock runs its operations in order. It stores into a peer's memory (`put` on a memory channel) and adds (`re`)
at its own rate; the blocks of a rank share its NVLink port and its memory. Puts and flushes on port channels go to the
rank's proxy, which serves one after the other and spends some time on each; the block goes on, and waits at a flush.

The file becomes threads that run steps in order, counters that they wait for, and rates that they share. A *thread* is
a threadblock, or a proxy that sends for one. A *step* waits until a counter is high enough, takes a lock (first come,
first served), and pauses. It moves bytes no faster than its own cap and its fair share of up to two resources. Then it
releases the lock and increments a counter, at once or a delay later. Resources are links, ports and memories; they are
shared max-min fairly by those who move at the moment.

The compiled clock is in this file alone: a kept compilation looks at no other file when it decides whether to compile
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from optcc.errors import InputError, SimulationError
from optcc.export.mscclpp_file import Channel, MscclppOp, MscclppProgram, MscclppThreadblock, joined_channels
from optcc.machine.kernels import Kernels
from optcc.values.cluster import Cluster

KERNELS = Kernels("clock", "the clocks of targets", 8)
NOBODY = -1
_WAIT, _LOCK, _PAUSE, _MOVE, _END = 0, 1, 2, 3, 4  # where a thread is within its step
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
                for lane in self._lanes(op, len(op.channels)):
                    self.waits[lane] += 1
                    arrived = self.shared.arrived[lane]
                    self.steps.append(TimedStep(arrived, self.waits[lane], pause=target.operation_s))
            elif op.name == "nop":
                self.steps.append(TimedStep(pause=target.operation_s))
            elif op.name in ("re", "copy"):
                cap = target.add_rate if op.name == "re" else target.put_rate
                memory = self.shared.memory[self.rank]
                self.steps.append(TimedStep(pause=target.operation_s, nbytes=self._bytes(op), cap=cap, one=memory))
            elif op.name == "signal":
                for lane in self._lanes(op, len(op.channels)):
                    post = self.shared.arrived[self.shared.far[lane]]
                    self.steps.append(TimedStep(pause=target.operation_s, post=post, delay=target.signal_s))
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
        served.append(replace(what, wait=asked, need=self.asked[lane], lock=proxy, post=sent))
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


@dataclass(frozen=True)
class TimedStep:
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
        ptr = np.cumsum([0, *map(len, self._threads)], dtype=np.int64)

        columns = [
            np.fromiter((getattr(step, one.name) for step in steps), type(one.default), len(steps))
            for one in fields(TimedStep)
        ]
        shared: list[Any] = [np.array(self._rates, np.float64), np.array(self._counters, np.int64), self._locks]
        time = _run(*[ptr, *columns, *shared])
        if time < 0:
            raise SimulationError("threads wait for ever")
        return float(time)


@KERNELS.compiled()
def _push(when: Any, what: Any, size: int, time: float, value: int) -> None:
    i = size
    while i > 0:
        up = (i - 1) // 2
        if when[up] <= time:
            break
        when[i], what[i] = when[up], what[up]
        i = up
    when[i], what[i] = time, value


@KERNELS.compiled()
def _pop(when: Any, what: Any, size: int) -> int:
    """Take the earliest away, out of `size`; returns what it is."""
    first, time, value = what[0], when[size - 1], what[size - 1]
    i = 0
    while True:
        low = 2 * i + 1
        if low >= size - 1:
            break
        if low + 1 < size - 1 and when[low + 1] < when[low]:
            low += 1
        if when[low] >= time:
            break
        when[i], what[i] = when[low], what[low]
        i = low
    when[i], what[i] = time, value
    return int(first)


@KERNELS.compiled()
def _share(active: Any, count: int, at: Any, cap: Any, one: Any, two: Any, rates: Any, left: Any, users: Any,
           speed: Any) -> None:  # fmt: skip
    """Max-min fair rates: no mover can have more without one that has less, or as little, having less."""
    for r in range(len(rates)):
        left[r], users[r] = rates[r], 0
    open_ = 0
    for i in range(count):
        s = at[active[i]]
        speed[i] = -1.0
        open_ += 1
        if one[s] >= 0:
            users[one[s]] += 1
        if two[s] >= 0:
            users[two[s]] += 1
    while open_:
        least = np.inf
        for r in range(len(rates)):
            if users[r]:
                least = min(least, left[r] / users[r])
        lowest = np.inf
        for i in range(count):
            if speed[i] < 0:
                lowest = min(lowest, cap[at[active[i]]])
        capped = lowest <= least
        bound = min(lowest, least) * (1 + 1e-9)
        # Whom the tightest of all holds is decided before anything is taken away.
        for i in range(count):
            s = at[active[i]]
            if speed[i] >= 0:
                continue
            held = cap[s] <= bound
            if not capped:
                held = held or (one[s] >= 0 and left[one[s]] <= bound * users[one[s]])
                held = held or (two[s] >= 0 and left[two[s]] <= bound * users[two[s]])
            if held:
                speed[i] = -2.0
        for i in range(count):
            if speed[i] == -2.0:
                s = at[active[i]]
                speed[i] = min(bound, cap[s])
                open_ -= 1
                if one[s] >= 0:
                    users[one[s]] -= 1
                    left[one[s]] = max(0.0, left[one[s]] - speed[i])
                if two[s] >= 0:
                    users[two[s]] -= 1
                    left[two[s]] = max(0.0, left[two[s]] - speed[i])


@KERNELS.compiled()
def _run(ptr: Any, wait: Any, need: Any, lock: Any, pause: Any, size: Any, cap: Any, one: Any, two: Any, post: Any,
        delay: Any, rates: Any, counters: Any, locks: int) -> float:  # fmt: skip
    """Seconds until all threads have run all their steps; -1: some wait for ever. Columns as `TimedStep` has them."""
    threads, steps = len(ptr) - 1, len(wait)
    at, where = ptr[:-1].copy(), np.zeros(threads, np.int8)
    waiting, behind = np.full(len(counters), NOBODY), np.full(threads, NOBODY)  # lists of threads, by counter
    holder, first, last = np.full(locks, NOBODY), np.full(locks, NOBODY), np.full(locks, NOBODY)
    after = np.full(threads, NOBODY)  # lists of threads, by lock
    when, what, events = np.empty(threads + steps + 1), np.empty(threads + steps + 1, np.int64), 0
    active, count = np.empty(threads, np.int64), 0
    remaining, speed = np.empty(threads), np.empty(threads)
    left, users = np.empty(len(rates)), np.empty(len(rates), np.int64)
    ready, ready_count = np.empty(threads + 1, np.int64), 0
    for t in range(threads - 1, -1, -1):
        ready[ready_count] = t
        ready_count += 1
    now, done = 0.0, 0
    while True:
        changed = False
        while ready_count:
            ready_count -= 1
            t = ready[ready_count]
            while True:
                s = at[t]
                if s == ptr[t + 1]:
                    done += 1
                    break
                if where[t] == _WAIT:
                    if wait[s] >= 0 and counters[wait[s]] < need[s]:
                        behind[t] = waiting[wait[s]]
                        waiting[wait[s]] = t
                        break
                    where[t] = _LOCK
                if where[t] == _LOCK:
                    k = lock[s]
                    if k >= 0 and holder[k] != t:
                        if holder[k] == NOBODY:
                            holder[k] = t
                        else:
                            after[t] = NOBODY
                            if first[k] == NOBODY:
                                first[k] = t
                            else:
                                after[last[k]] = t
                            last[k] = t
                            break
                    where[t] = _PAUSE
                    if pause[s] > 0:
                        _push(when, what, events, now + pause[s], t)
                        events += 1
                        break
                if where[t] == _PAUSE:
                    where[t] = _MOVE
                    if size[s] > 0:
                        active[count], remaining[count] = t, size[s]
                        count += 1
                        changed = True
                        break
                if where[t] == _MOVE:
                    where[t] = _END
                k = lock[s]
                if k >= 0:
                    holder[k] = first[k]
                    if first[k] != NOBODY:
                        ready[ready_count] = first[k]
                        ready_count += 1
                        first[k] = after[first[k]]
                if post[s] >= 0:
                    if delay[s] > 0:
                        _push(when, what, events, now + delay[s], threads + post[s])
                        events += 1
                    else:
                        counters[post[s]] += 1
                        other, waiting[post[s]] = waiting[post[s]], NOBODY
                        while other != NOBODY:
                            following = behind[other]
                            ready[ready_count] = other
                            ready_count += 1
                            other = following
                at[t] += 1
                where[t] = _WAIT
        if done == threads:
            return now
        if changed or count:
            _share(active, count, at, cap, one, two, rates, left, users, speed)
        soonest = np.inf
        for i in range(count):
            soonest = min(soonest, remaining[i] / speed[i])
        step = soonest
        if events:
            step = min(step, when[0] - now)
        if step == np.inf:
            return -1.0
        now += step
        kept = 0
        for i in range(count):
            rest = remaining[i] - step * speed[i]
            if rest <= 1e-9 * size[at[active[i]]]:
                ready[ready_count] = active[i]
                ready_count += 1
            else:
                active[kept], remaining[kept] = active[i], rest
                kept += 1
        count = kept
        while events and when[0] <= now * (1 + 1e-12):
            value = _pop(when, what, events)
            events -= 1
            if value < threads:
                ready[ready_count] = value
                ready_count += 1
            else:
                k = value - threads
                counters[k] += 1
                other, waiting[k] = waiting[k], NOBODY
                while other != NOBODY:
                    following = behind[other]
                    ready[ready_count] = other
                    ready_count += 1
                    other = following
