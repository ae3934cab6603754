"""An interpreter of MSCCL algorithms, by the rules of the kernel in RCCL (msccl_kernel_impl.h).

* All threadblocks of all GPUs run at the same time; each runs its steps in order, first for the first slice of every
  chunk, then for the second, and so on. There is no barrier between slices.
* A connection is the pair of a sending and a receiving threadblock on one channel; it is first in, first out, and holds
  two messages: half of NCCL's eight buffer steps for each.
* Depending on sizes a step of cnt chunks moves them in one message or in up to cnt: both ends alike.
* A step that others wait for sets its threadblock's flag when it is done, if hasdep says so, to its number; who waits
  for a step waits until the flag is at least that number. A nop adds a dependence to the step that comes after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from optcc.errors import VerifyError
from optcc.export.clocks import BufferPieces, Clock, HeldSum, added, check_result
from optcc.export.msccl_file import RECEIVES, SENDS, MscclProgram, MscclStep, MscclThreadblock

DEPTH = 2
"""Messages that a connection holds: 8 buffer steps, of which a message takes 4 (MSCCL_CHUNKSTEPS)."""
SLICES = 2
"""Slices that the test for deadlock runs: enough for the second one to meet what the first one left behind."""
Line = tuple[int, int, int]
"""A connection: sending GPU, receiving GPU, channel."""


@dataclass(frozen=True)
class MscclRun:
    """What was executed: steps of all GPUs; depth of connections."""

    operations: int
    depth: int


def run(program: MscclProgram, depth: int = DEPTH) -> MscclRun:
    """Raise VerifyError unless every GPU ends with every contribution once, in any order and with any message size."""
    _check(program)
    whole = _MscclMachine(program, depth, data=True, single=False, slices=1)
    whole.run()
    whole.check()
    _MscclMachine(program, depth, data=False, single=True, slices=SLICES).run()
    return MscclRun(sum(len(block.steps) for blocks in program.gpus for block in blocks), depth)


def _check(program: MscclProgram) -> None:
    """What parser and set-up demand: one threadblock for each end of a connection, peers for sends and receives."""
    ends: dict[tuple[bool, Line], int] = {}
    for g, blocks in enumerate(program.gpus):
        for t, block in enumerate(blocks):
            place = f"threadblock {t} of GPU {g}"
            for sends, peer, kinds in ((True, block.send, SENDS), (False, block.recv, RECEIVES)):
                if peer >= len(program.gpus) or peer == g:
                    raise VerifyError(f"{place} has GPU {peer} as a peer")
                if peer < 0:
                    if any(step.type in kinds for step in block.steps):
                        raise VerifyError(f"{place} {'sends' if sends else 'receives'} without a peer")
                    continue
                line = (sends, (g, peer, block.chan) if sends else (peer, g, block.chan))
                if line in ends:
                    raise VerifyError(f"{place} shares a connection with threadblock {ends[line]}")
                ends[line] = t
            for s, step in enumerate(block.steps):
                if step.depid >= len(blocks) or (step.depid >= 0 and step.deps >= len(blocks[step.depid].steps)):
                    raise VerifyError(f"step {s} of {place} waits for a step that is not there")
                if step.type == "nop":
                    # The parser hands a nop's dependence to the next step, which must have one, too.
                    if s == len(block.steps) - 1:
                        raise VerifyError(f"step {s} of {place} is a nop with no step behind it")
                    if step.depid < 0 or block.steps[s + 1].depid < 0 or step.hasdep:
                        raise VerifyError(f"step {s} of {place} is a nop that the parser refuses or miscounts")
                if step.type != "nop" and step.cnt < 1:
                    raise VerifyError(f"step {s} of {place} has no chunks")
    for sends, (src, dst, chan) in ends:
        if (not sends, (src, dst, chan)) not in ends:  # the set-up waits for it before anything runs
            missing = "receives" if sends else "sends"
            raise VerifyError(f"nothing {missing} at the other end of channel {chan} from GPU {src} to GPU {dst}")


class _MscclMachine:
    """data : follow contributions and clocks; single : one message per chunk instead of one per step"""

    def __init__(self, program: MscclProgram, depth: int, *, data: bool, single: bool, slices: int) -> None:
        self.program, self.depth, self.data, self.single, self.slices = program, depth, data, single, slices
        self.blocks = [(g, t) for g, blocks in enumerate(program.gpus) for t in range(len(blocks))]
        self.place = {block: i for i, block in enumerate(self.blocks)}
        self.clock: list[Clock] = [np.zeros(len(self.blocks) if data else 0, np.int32) for _ in self.blocks]
        # Of each threadblock: (slice, step) of the flag, with the clock it was set at; all that were set, in order.
        self.flags: list[list[tuple[tuple[int, int], Clock]]] = [[] for _ in self.blocks]
        self.lines: dict[Line, deque[tuple[int, list[HeldSum], Clock]]] = {}
        self.memory = self._memories() if data else {}

    def _memories(self) -> dict[tuple[int, str], BufferPieces]:
        """Buffers cut wherever any step of any GPU cuts one: messages then consist of whole pieces."""
        cuts = {0}
        for blocks in self.program.gpus:
            for block in blocks:
                for step in block.steps:
                    for off in (step.srcoff, step.dstoff):
                        cuts |= {off, off + step.cnt}
        if any(s.srcoff != s.dstoff for blocks in self.program.gpus for b in blocks for s in b.steps):
            cuts = set(range(max(self.program.chunks, *self.program.scratch) + 1))
        found = {}
        for g in range(len(self.program.gpus)):
            for kind, size in (("i", self.program.chunks), ("s", self.program.scratch[g])):
                if size:
                    name = f"the {'input' if kind == 'i' else 'scratch'} of GPU {g}"
                    mine = {c for c in cuts if 0 <= c < size} | {0, size}
                    found[g, kind] = BufferPieces(name, mine, g if kind == "i" else None)
        return found

    def run(self) -> None:
        """Run all threadblocks to their end. Raises VerifyError for a deadlock."""
        todo, at = deque(range(len(self.blocks))), [(0, 0, 0)] * len(self.blocks)  # slice, step, message
        idle = 0
        while todo and idle < len(todo):
            i = todo.popleft()
            before = at[i]
            g, t = self.blocks[i]
            block = self.program.gpus[g][t]
            while block.steps and at[i][0] < self.slices:
                if not self._message(i, block, at[i]):
                    break
                at[i] = self._next(block, at[i])
            idle = 0 if at[i] != before else idle + 1
            if block.steps and at[i][0] < self.slices:
                todo.append(i)
            else:
                idle = 0
        if todo:
            g, t = self.blocks[todo[0]]
            step = at[todo[0]][1]
            raise VerifyError(
                f"deadlock: {len(todo)} threadblocks wait for ever, the first in step {step} "
                f"({self.program.gpus[g][t].steps[step].type}) of threadblock {t} of GPU {g}"
            )
        left = [line for line, queue in self.lines.items() if queue]
        if left:
            raise VerifyError(
                f"GPU {left[0][0]} sends to GPU {left[0][1]} on channel {left[0][2]} what nobody receives"
            )

    def _next(self, block: MscclThreadblock, at: tuple[int, int, int]) -> tuple[int, int, int]:
        turn, s, message = at
        if self.single and message + 1 < block.steps[s].cnt:
            return turn, s, message + 1
        return (turn, s + 1, 0) if s + 1 < len(block.steps) else (turn + 1, 0, 0)

    def _message(self, i: int, block: MscclThreadblock, at: tuple[int, int, int]) -> bool:
        """Move one message of a step, or all of a step that moves none; False: it has to wait."""
        (g, _), (turn, s, message), step = self.blocks[i], at, block.steps[at[1]]
        if message == 0 and step.depid >= 0:
            other = self.place[g, step.depid]
            found = bisect_left(self.flags[other], (turn, step.deps), key=itemgetter(0))
            if found == len(self.flags[other]):
                return False
            if self.data:
                np.maximum(self.clock[i], self.flags[other][found][1], out=self.clock[i])
        if step.type == "nop":
            return True
        count = 1 if self.single else step.cnt
        incoming = self.lines.setdefault((block.recv, g, block.chan), deque()) if step.type in RECEIVES else None
        outgoing = self.lines.setdefault((g, block.send, block.chan), deque()) if step.type in SENDS else None
        if incoming is not None and not incoming:
            return False
        if outgoing is not None and len(outgoing) >= self.depth:
            return False
        arrived: list[HeldSum] = []
        if incoming is not None:
            size, arrived, clock = incoming.popleft()
            if size != count:
                raise VerifyError(f"{self._name(i, step)} receives {size} chunks and expects {count}")
            if self.data:
                np.maximum(self.clock[i], clock, out=self.clock[i])
        values = self._data(i, step, arrived) if self.data else []
        if outgoing is not None:
            outgoing.append((count, values, self.clock[i].copy() if self.data else self.clock[i]))
        if step.hasdep and (not self.single or message + 1 == step.cnt):
            self.flags[i].append(((turn, s), self.clock[i].copy() if self.data else self.clock[i]))
        return True

    def _name(self, i: int, step: MscclStep) -> str:
        return f"{step.type} in threadblock {self.blocks[i][1]} of GPU {self.blocks[i][0]}"

    def _data(self, i: int, step: MscclStep, arrived: list[HeldSum]) -> list[HeldSum]:
        """Read, add and write what a step does; returns what it sends, piece by piece."""
        name, me = self._name(i, step), i
        self.clock[i][me] += 1
        clock, stamp = self.clock[i], int(self.clock[i][me])
        values = arrived
        if step.type in ("s", "cpy", "rrc", "rrs", "rrcs", "re"):
            memory, pieces = self._span(i, step.srcbuf, step.srcoff, step.cnt, name)
            mine = [memory.read(p, clock, name) for p in pieces]
            for p in pieces:
                memory.note_read(p, me, stamp)
            if step.type in RECEIVES:
                if len(mine) != len(arrived):
                    raise VerifyError(f"{name} receives other chunks than it adds to")
                values = [added(a, b, name) for a, b in zip(arrived, mine, strict=True)]
            else:
                values = mine
        if step.type == "re":
            memory, pieces = self._span(i, step.dstbuf, step.dstoff, step.cnt, name)
            values = [added(memory.read(p, clock, name), v, name) for p, v in zip(pieces, values, strict=True)]
        if step.type not in ("s", "rrs"):
            memory, pieces = self._span(i, step.dstbuf, step.dstoff, step.cnt, name)
            if len(pieces) != len(values):
                raise VerifyError(f"{name} receives other chunks than it writes to")
            for p, value in zip(pieces, values, strict=True):
                memory.may_write(p, clock, name)
                memory.write(p, value, me, stamp)
        return values

    def _span(self, i: int, kind: str, start: int, count: int, name: str) -> tuple[BufferPieces, range]:
        where = (self.blocks[i][0], "i" if kind == "o" else kind)  # in place: the output is the input
        if where not in self.memory:
            raise VerifyError(f"{name} uses scratch that its GPU does not have")
        return self.memory[where], self.memory[where].pieces(start, count)

    def check(self) -> None:
        """Raise VerifyError unless every GPU holds every contribution once its own threadblocks are done."""
        for g in range(len(self.program.gpus)):
            clock = np.zeros(len(self.blocks), np.int32)
            for i, (gpu, _) in enumerate(self.blocks):
                if gpu == g:
                    np.maximum(clock, self.clock[i], out=clock)
            memory = self.memory[g, "i"]
            for piece in range(len(memory.held)):
                memory.read(piece, clock, f"the caller of GPU {g}")
            check_result(memory, len(self.program.gpus))
