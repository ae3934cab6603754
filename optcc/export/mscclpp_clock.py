"""How long the MSCCL++ executor takes for a plan, told from the file.

A threadblock runs its operations in order. It stores into a peer's memory (`put` on a memory channel) and adds (`re`)
at its own rate; the blocks of a rank share its NVLink port and its memory. Puts and flushes on port channels go to the
rank's proxy, which serves one after the other and spends some time on each; the block goes on, and waits at a flush.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from optcc.export.mscclpp_file import MscclppOp, MscclppProgram, MscclppThreadblock
from optcc.export.targets import MSCCLPP, Mscclpp, one_nic, wires
from optcc.export.timed import TimedStep, TimedThreads
from optcc.values.cluster import Cluster

Lane = tuple[int, str, int]
"""A channel: rank, type, number."""


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
        self.links = wires(self.machine, cluster, target.nvlink_payload, target.network_payload, nic=one_nic)
        self.chunk = nbytes / program.chunks
        self.peers = [gpu.channels for gpu in program.gpus]
        self.far = _far_ends(program)
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
        self.waits: Counter[Lane] = Counter()
        self.asked: Counter[Lane] = Counter()
        self.proxies: dict[Lane, tuple[int, list[TimedStep]]] = {}

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

    def _lanes(self, op: MscclppOp, count: int) -> list[Lane]:
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

    def _ask(self, lane: Lane, what: TimedStep) -> list[TimedStep]:
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


def _far_ends(program: MscclppProgram) -> dict[Lane, Lane]:
    """Channel -> the channel at its other end: the k-th of a type from A to B and the k-th from B to A."""
    ends: dict[tuple[int, int, str], list[int]] = {}
    for r, gpu in enumerate(program.gpus):
        for kind, peers in gpu.channels.items():
            for c, peer in enumerate(peers):
                ends.setdefault((r, peer, kind), []).append(c)
    return {
        (r, kind, c): (peer, kind, other)
        for (r, peer, kind), mine in ends.items()
        for c, other in zip(mine, ends.get((peer, r, kind), ()), strict=False)
    }
