"""An interpreter of MSCCL++ execution plans, by the rules of the executor's kernel (execution_kernel.hpp).

* All threadblocks of all ranks run at the same time; each runs its operations in order.
* In a threadblock the first threads (*lead*) wait, signal, and hand puts to the proxy; all threads copy and add. Only a
  nop makes one wait for the other, and all threads for each other.
* A put on a port channel is done by the proxy some time later, in order per channel; a signal on that channel arrives
  after it, and a flush returns after it. A put on a memory channel is done by all threads, at once.
* The k-th channel of a type from A to B is joined to the k-th from B to A. Signals and requests to a proxy are counted
  without bound, and the proxy does not depend on the kernel: only waits block.
* Channel pairs and scratch outlive a launch. The program is launched again and again; in between the caller reads the
  result and writes new data, without telling other ranks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from optcc.errors import VerifyError
from optcc.export.clocks import Clock, HeldSum, added, check_result
from optcc.export.mscclpp_file import CHANNEL_TYPES, MscclppGpu, MscclppOp, MscclppProgram
from optcc.export.mscclpp_places import SHAPES, memories, op_name, where

LAUNCHES = 2


@dataclass(frozen=True)
class MscclppRun:
    """What was executed: operations of all ranks in each launch, and how many launches."""

    operations: int
    launches: int


def run(program: MscclppProgram, launches: int = LAUNCHES) -> MscclppRun:
    """Raise VerifyError unless every launch leaves every rank with every contribution once, with nothing left over."""
    machine = _MscclppMachine(program)
    for _ in range(launches):
        machine.launch()
    machine.check_signals()
    return MscclppRun(sum(len(block.ops) for gpu in program.gpus for block in gpu.threadblocks), launches)


class _MscclppMachine:
    def __init__(self, program: MscclppProgram) -> None:
        self.program = program
        self.ranks = len(program.gpus)
        self.blocks = [(r, t) for r, gpu in enumerate(program.gpus) for t in range(len(gpu.threadblocks))]
        self.place = {block: i for i, block in enumerate(self.blocks)}
        self.joined, self.signals = _pair(program.gpus)
        self.owner: dict[tuple[int, str, int], int] = {}
        # Threads: lead and all threads of each block, a proxy per channel, the caller of each rank.
        lanes = [(r, kind, c) for r, gpu in enumerate(program.gpus) for kind in CHANNEL_TYPES
                 for c in range(len(gpu.channels.get(kind, ())))]  # fmt: skip
        self.proxy = {lane: 2 * len(self.blocks) + i for i, lane in enumerate(lanes)}
        self.caller = [2 * len(self.blocks) + len(lanes) + r for r in range(self.ranks)]
        self.threads = 2 * len(self.blocks) + len(lanes) + self.ranks
        self.sent = dict.fromkeys(lanes, 0)
        self.lead: list[Clock] = [self._zero() for _ in self.blocks]
        self.all_threads: list[Clock] = [self._zero() for _ in self.blocks]
        self.memory = memories(program)

    def _zero(self) -> Clock:
        return np.zeros(self.threads, np.int32)

    def launch(self) -> None:
        """Run all ranks' kernels once, between a caller's write and its read."""
        start: list[Clock] = []
        for r in range(self.ranks):
            clock = self._zero()
            for i, (rank, _) in enumerate(self.blocks):
                if rank == r:
                    np.maximum(clock, np.maximum(self.lead[i], self.all_threads[i]), out=clock)
            self._call(r, clock)
            start.append(clock)
        for i, (r, _) in enumerate(self.blocks):
            self.lead[i], self.all_threads[i] = start[r].copy(), start[r].copy()
        todo, at = deque(range(len(self.blocks))), [0] * len(self.blocks)
        idle = 0
        while todo and idle < len(todo):
            i = todo.popleft()
            before = at[i]
            ops = self.program.gpus[self.blocks[i][0]].threadblocks[self.blocks[i][1]].ops
            while at[i] < len(ops) and self._step(i, ops[at[i]]):
                at[i] += 1
            idle = 0 if at[i] > before else idle + 1
            if at[i] < len(ops):
                todo.append(i)
            else:
                idle = 0
        if todo:
            r, t = self.blocks[todo[0]]
            raise VerifyError(
                f"deadlock: {len(todo)} threadblocks wait for ever, the first in operation {at[todo[0]]} "
                f"of threadblock {t} of rank {r}"
            )
        for r in range(self.ranks):
            clock = self._zero()
            for i, (rank, _) in enumerate(self.blocks):
                if rank == r:
                    self._nop(i)
                    np.maximum(clock, self.lead[i], out=clock)
            memory = self.memory[r, "i"]
            for piece in range(len(memory.held)):
                memory.read(piece, clock, f"the caller of rank {r}")
            check_result(memory, self.ranks)

    def _call(self, r: int, clock: Clock) -> None:
        """The caller of rank `r` writes new data, as soon as its last launch is over."""
        memory, me = self.memory[r, "i"], self.caller[r]
        clock[me] += 1
        for piece in range(len(memory.held)):
            memory.may_write(piece, clock, f"the caller of rank {r}")
            memory.write(piece, HeldSum(memory.cuts[piece], 1 << r), me, int(clock[me]))

    def _nop(self, i: int) -> None:
        self.all_threads[i][2 * i + 1] += 1
        both = np.maximum(self.lead[i], self.all_threads[i])
        self.lead[i], self.all_threads[i] = both, both.copy()

    def _step(self, i: int, op: MscclppOp) -> bool:
        """Do one operation; False: it has to wait."""
        r, t = self.blocks[i]
        if op.name == "nop":
            self._nop(i)
        elif op.name == "wait":
            lanes = self._lanes(i, op, op.channels)
            if any(not self.signals[lane] for lane in lanes):
                return False
            for lane in lanes:
                np.maximum(self.lead[i], self.signals[lane].popleft(), out=self.lead[i])
        elif op.name == "signal":
            for lane in self._lanes(i, op, op.channels):
                self._signal(i, lane)
        elif op.name == "flush":
            # The kernel counts a flush's channels by its destinations.
            for lane in self._lanes(i, op, op.channels[: len(op.dst)]):
                self.lead[i][self.proxy[lane]] = self.sent[lane]
        elif op.name in SHAPES:
            self._data(i, op)
        else:
            raise VerifyError(f"{op_name(r, t, op)}: an operation that this interpreter does not know")
        return True

    def _lanes(self, i: int, op: MscclppOp, channels: tuple[int, ...]) -> list[tuple[int, str, int]]:
        """Those channels, which threads of the block serve side by side: none can be there twice."""
        lanes = [self._lane(i, op, c) for c in channels]
        if len(set(lanes)) < len(lanes):
            raise VerifyError(f"{op_name(*self.blocks[i], op)} names a channel twice")
        return lanes

    def _lane(self, i: int, op: MscclppOp, c: int) -> tuple[int, str, int]:
        r, t = self.blocks[i]
        ids = self.program.gpus[r].threadblocks[t].channels.get(op.channel_type or "", ())
        if not 0 <= c < len(ids):
            raise VerifyError(f"{op_name(r, t, op)} names a channel that its threadblock does not have")
        lane = (r, op.channel_type or "", ids[c])
        if lane not in self.proxy:
            raise VerifyError(f"{op_name(r, t, op)} names a channel that its rank does not have")
        if self.owner.setdefault(lane, i) != i:
            raise VerifyError(f"{op_name(r, t, op)} shares a channel with another threadblock")
        return lane

    def _signal(self, i: int, lane: tuple[int, str, int]) -> None:
        clock = self.lead[i].copy()
        if lane[1] == "port":
            clock[self.proxy[lane]] = self.sent[lane]
        self.signals[self.joined[lane]].append(clock)

    def _data(self, i: int, op: MscclppOp) -> None:
        r, t = self.blocks[i]
        name = op_name(r, t, op)
        sources, remote = SHAPES[op.name]
        right = len(op.src) == sources and len(op.dst) == 1
        if not right or any(s.remote is not None for s in op.src) or (op.dst[0].remote is not None) != remote:
            raise VerifyError(f"{name} has buffers that do not fit it")
        if len({span.count for span in (*op.src, *op.dst)}) > 1:
            raise VerifyError(f"{name} has buffers of different sizes")
        by_proxy = remote and op.channel_type == "port"
        if remote:
            if len(op.channels) != 1:
                raise VerifyError(f"{name} needs one channel")
            lane = self._lane(i, op, op.channels[0])
            peers = self.program.gpus[r].channels[lane[1]]
            if peers[lane[2]] != where(self.program, r, t, op, op.dst[0])[0]:
                raise VerifyError(f"{name} puts to another rank than its channel leads to")
        if by_proxy:
            clock, thread = self.lead[i].copy(), self.proxy[lane]
            clock[thread] = self.sent[lane]  # its own puts stay in order
            self.sent[lane] += 1
            stamp = self.sent[lane]
        else:
            clock, thread = self.all_threads[i], 2 * i + 1
            stamp = int(clock[thread]) + 1  # known from the next nop on
        spans = []
        for span in (*op.src, *op.dst):
            place = where(self.program, r, t, op, span)
            if place not in self.memory:
                raise VerifyError(f"{name} uses a buffer that rank {place[0]} does not have")
            memory = self.memory[place]
            spans.append((memory, memory.pieces(span.start, span.count)))
        target, into = spans[-1]
        for n in range(len(into)):
            values = [memory.read(pieces[n], clock, name) for memory, pieces in spans[:-1]]
            held = reduce(partial(added, where=name), values)
            target.may_write(into[n], clock, name)
            for memory, pieces in spans[:-1]:
                memory.note_read(pieces[n], thread, stamp)
            target.write(into[n], held, thread, stamp)
        if op.name == "pws" and op.channel_type == "port":  # on a memory channel the kernel puts and never signals
            self._signal(i, lane)

    def check_signals(self) -> None:
        """Raise VerifyError when a signal was not waited for: the next launch would take it for its own."""
        for (rank, kind, c), left in self.signals.items():
            if left:
                raise VerifyError(f"{len(left)} signals on {kind} channel {c} of rank {rank} are never waited for")


def _pair(
    gpus: tuple[MscclppGpu, ...],
) -> tuple[dict[tuple[int, str, int], tuple[int, str, int]], dict[tuple[int, str, int], deque[Clock]]]:
    """Channel -> the channel at the other end; and for each channel the signals that have come in."""
    ends: dict[tuple[int, int, str], list[int]] = {}
    signals: dict[tuple[int, str, int], deque[Clock]] = {}
    for r, gpu in enumerate(gpus):
        for kind, peers in gpu.channels.items():
            for c, peer in enumerate(peers):
                if peer == r or peer >= len(gpus):
                    raise VerifyError(f"{kind} channel {c} of rank {r} leads to rank {peer}")
                ends.setdefault((r, peer, kind), []).append(c)
                signals[r, kind, c] = deque()
    joined = {}
    for (r, peer, kind), mine in ends.items():
        others = ends.get((peer, r, kind), [])
        if len(others) != len(mine):  # the executor waits for the other end before it launches anything
            raise VerifyError(f"rank {r} has {len(mine)} {kind} channels to rank {peer}, which has {len(others)} back")
        for c, other in zip(mine, others, strict=True):
            joined[r, kind, c] = (peer, kind, other)
    return joined, signals
