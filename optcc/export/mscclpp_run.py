"""An interpreter of MSCCL++ execution plans, by the rules of the executor's kernel (execution_kernel.hpp).

* All threadblocks of all ranks run at the same time; each runs its operations in order.
* In a threadblock the first threads (*lead*) wait, signal, and hand puts to the proxy, the k-th thread for the k-th
  channel of an operation; all threads copy and add. Only a nop makes one wait for the other.
* A put on a port channel is done by the proxy some time later, in order per channel; a signal on that channel arrives
  after it, and a flush returns after it. A put on a memory channel is done by all threads, at once.
* The k-th channel of a type from A to B is joined to the k-th from B to A. Signals and requests to a proxy are counted
  without bound, and the proxy does not depend on the kernel: only waits block.
* Channel pairs and scratch outlive a launch. The program is launched again and again; in between the caller reads the
  result and writes new data, without telling other ranks. A launch may have another size than the one before, and then
  chunks of scratch lie elsewhere: who puts into another rank's scratch must know that all of it is out of use.

An access is safe when every conflicting access before it *happened before* it: a chain of waits leads from the one to
the other (Lamport, 1978; vector clocks: Fidge, Mattern, 1988). That is checked for every access, so that one replayed
order speaks for all orders. Bytes are known by where in the buffer they belong and by whose contributions they sum.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optcc.errors import VerifyError
from optcc.export.mscclpp_file import CHANNEL_TYPES, Channel, ChunkSpan, MscclppOp, MscclppProgram, joined_channels

LAUNCHES = 2
SHAPES = {  # name -> how many sources, and whether the destination is remote
    "put": (1, True),
    "pws": (1, True),
    "copy": (1, False),
    "re": (2, False),
}
Place = tuple[int, str]
"""A buffer: rank, and "i" or "s". In place, the output is the input."""
Clock = NDArray[np.int32]
"""Shape (threads,): how far each thread is known to have come."""


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
        self.joined = joined_channels(program)
        self.signals: dict[Channel, deque[Clock]] = {channel: deque() for channel in self.joined}
        self.owner: dict[Channel, int] = {}
        # Threads: lead and all threads of each block, a proxy per channel, the caller of each rank.
        lanes = [(r, kind, c) for r, gpu in enumerate(program.gpus) for kind in CHANNEL_TYPES
                 for c in range(len(gpu.channels.get(kind, ())))]  # fmt: skip
        self.proxy = {lane: 2 * len(self.blocks) + i for i, lane in enumerate(lanes)}
        self.caller = [2 * len(self.blocks) + len(lanes) + r for r in range(self.ranks)]
        self.threads = 2 * len(self.blocks) + len(lanes) + self.ranks
        self.sent = dict.fromkeys(lanes, 0)
        self.begun: list[Clock] = [self._zero() for _ in self.blocks]  # what all threads knew at the last nop
        self.all_threads: list[Clock] = [self._zero() for _ in self.blocks]
        self.lead: list[list[Clock]] = [[] for _ in self.blocks]  # of the first so many
        self.fresh: list[dict[Channel, int]] = [{} for _ in self.blocks]  # lanes put on since then: how often before
        self.memory = memories(program)
        self.scratch_of: list[set[Place]] = [set() for _ in range(self.ranks)]  # of others, that a rank puts into
        if not program.one_size:
            for (r, _), spans in _data(program):
                self.scratch_of[r] |= {place for place, _ in spans if place[0] != r and place[1] == "s"}

    def _zero(self) -> Clock:
        return np.zeros(self.threads, np.int32)

    def launch(self) -> None:
        """Run all ranks' kernels once, between a caller's write and its read."""
        start: list[Clock] = []
        for r in range(self.ranks):
            clock = self._zero()
            for i, (rank, _) in enumerate(self.blocks):
                if rank == r:
                    np.maximum(clock, self.all_threads[i], out=clock)
            self._call(r, clock)
            for place in self.scratch_of[r] & self.memory.keys():
                for piece in range(len(self.memory[place].held)):
                    self.memory[place].may_write(piece, clock, f"the next launch of rank {r}, of another size,")
            start.append(clock)
        for i, (r, _) in enumerate(self.blocks):
            self._join(i, start[r])
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
                    np.maximum(clock, self.all_threads[i], out=clock)
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
        self._join(i, reduce(np.maximum, self.lead[i], self.all_threads[i]))

    def _join(self, i: int, clock: Clock) -> None:
        """All threads of a block know this, and no more."""
        self.all_threads[i], self.begun[i], self.lead[i], self.fresh[i] = clock.copy(), clock.copy(), [], {}

    def _lead(self, i: int, thread: int) -> Clock:
        """What the first threads know, by their place: those that have done nothing since the last nop know that."""
        while len(self.lead[i]) <= thread:
            self.lead[i].append(self.begun[i].copy())
        return self.lead[i][thread]

    def _asked(self, i: int, lane: Channel, thread: int) -> int:
        """How many puts of a lane come before what a thread asks of its proxy now: the first thread makes them."""
        return self.fresh[i].get(lane, self.sent[lane]) if thread else self.sent[lane]

    def _step(self, i: int, op: MscclppOp) -> bool:
        """Do one operation; False: it has to wait."""
        r, t = self.blocks[i]
        if op.name == "nop":
            self._nop(i)
        elif op.name == "wait":
            lanes = self._lanes(i, op, op.channels)
            if any(not self.signals[lane] for lane in lanes):
                return False
            for thread, lane in enumerate(lanes):
                clock = self._lead(i, thread)
                np.maximum(clock, self.signals[lane].popleft(), out=clock)
        elif op.name == "signal":
            for thread, lane in enumerate(self._lanes(i, op, op.channels)):
                self._signal(i, lane, thread)
        elif op.name == "flush":
            # The kernel counts a flush's channels by its destinations.
            for thread, lane in enumerate(self._lanes(i, op, op.channels[: len(op.dst)])):
                self._lead(i, thread)[self.proxy[lane]] = self._asked(i, lane, thread)
        elif op.name in SHAPES:
            self._data(i, op)
        else:
            raise VerifyError(f"{op_name(r, t, op)}: an operation that this interpreter does not know")
        return True

    def _lanes(self, i: int, op: MscclppOp, channels: tuple[int, ...]) -> list[Channel]:
        """Those channels, which threads of the block serve side by side: none can be there twice."""
        lanes = [self._lane(i, op, c) for c in channels]
        if len(set(lanes)) < len(lanes):
            raise VerifyError(f"{op_name(*self.blocks[i], op)} names a channel twice")
        return lanes

    def _lane(self, i: int, op: MscclppOp, c: int) -> Channel:
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

    def _signal(self, i: int, lane: Channel, thread: int) -> None:
        clock = self._lead(i, thread).copy()
        if lane[1] == "port":
            clock[self.proxy[lane]] = self._asked(i, lane, thread)
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
            clock, thread = self._lead(i, 0).copy(), self.proxy[lane]
            clock[thread] = self.sent[lane]  # its own puts stay in order
            self.fresh[i].setdefault(lane, self.sent[lane])
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
            self._signal(i, lane, 0)

    def check_signals(self) -> None:
        """Raise VerifyError when a signal was not waited for: the next launch would take it for its own."""
        for (rank, kind, c), left in self.signals.items():
            if left:
                raise VerifyError(f"{len(left)} signals on {kind} channel {c} of rank {rank} are never waited for")


def op_name(r: int, t: int, op: MscclppOp) -> str:
    """How messages call an operation."""
    return f"{op.name} in threadblock {t} of rank {r}"


def where(program: MscclppProgram, r: int, t: int, op: MscclppOp, span: ChunkSpan) -> Place:
    """The buffer of a span of an operation. Raises VerifyError for a remote buffer that it cannot reach."""
    if span.remote is None:
        kind = span.local or ""
        return r, "i" if kind == "o" else kind
    refs = program.gpus[r].threadblocks[t].buffers.get(op.channel_type or "", ())
    if not 0 <= span.remote < len(refs) or not 0 <= refs[span.remote] < len(program.gpus[r].remotes):
        raise VerifyError(f"{op_name(r, t, op)} names a remote buffer that its threadblock does not have")
    remote = program.gpus[r].remotes[refs[span.remote]]
    if op.channel_type not in remote.types or not 0 <= remote.rank < len(program.gpus):
        raise VerifyError(f"{op_name(r, t, op)} reaches a remote buffer that it has no access to")
    return remote.rank, "i" if remote.kind == "o" else remote.kind


def memories(program: MscclppProgram) -> dict[Place, BufferPieces]:
    """All buffers, inputs with their rank's own bytes in them, cut wherever an operation needs a cut."""
    sizes: dict[Place, int] = {}
    for r, gpu in enumerate(program.gpus):
        sizes[r, "i"] = gpu.chunks
        if gpu.scratch:
            sizes[r, "s"] = gpu.scratch
    cuts = {place: {0, size} for place, size in sizes.items()}
    joined = [spans for _, spans in _data(program)]
    for spans in joined:
        for place, span in spans:
            cuts.get(place, set()).update((span.start, span.start + span.count))
    # What an operation joins is cut at the same places, counted from the start of each span.
    moved = True
    while moved:
        moved = False
        for spans in joined:
            if any(place not in cuts for place, _ in spans):
                continue  # the interpreter will say so
            inner = {c - span.start for place, span in spans for c in cuts[place] if 0 < c - span.start < span.count}
            for place, span in spans:
                wanted = {c + span.start for c in inner} - cuts[place]
                cuts[place] |= wanted
                moved = moved or bool(wanted)
    return {
        (r, kind): BufferPieces(
            f"the {'input' if kind == 'i' else 'scratch'} of rank {r}",
            (cut for cut in cuts[r, kind] if 0 <= cut <= size),
            r if kind == "i" else None,
        )
        for (r, kind), size in sizes.items()
    }


def _data(program: MscclppProgram) -> Iterator[tuple[tuple[int, int], list[tuple[Place, ChunkSpan]]]]:
    """Rank and threadblock, and the spans, of every operation that moves data."""
    for r, gpu in enumerate(program.gpus):
        for t, block in enumerate(gpu.threadblocks):
            for op in block.ops:
                if op.name in SHAPES:
                    yield (r, t), [(where(program, r, t, op, span), span) for span in (*op.src, *op.dst)]


class HeldSum(NamedTuple):
    """What a piece holds: bytes of the chunks from `home` on, summed over `ranks`, bits of an integer."""

    home: int
    ranks: int


class BufferPieces:
    """One buffer of one rank in pieces between cut points, within which all bytes fare alike.

    name : for messages; cuts : ascending, at least two; fill : the rank whose bytes it holds at first (None: nobody's)
    """

    def __init__(self, name: str, cuts: Iterable[int], fill: int | None) -> None:
        self.name = name
        self.cuts = sorted(set(cuts))
        pieces = len(self.cuts) - 1
        self.held: list[HeldSum | None] = [None if fill is None else HeldSum(cut, 1 << fill) for cut in self.cuts[:-1]]
        self._writer: list[tuple[int, int]] = [(-1, 0)] * pieces
        self._readers: list[dict[int, int]] = [{} for _ in range(pieces)]

    def pieces(self, start: int, count: int) -> range:
        """The pieces of chunks start..start+count-1; both ends must be cuts. Raises VerifyError outside the buffer."""
        if start < self.cuts[0] or count < 1 or start + count > self.cuts[-1]:
            raise VerifyError(f"chunks {start}..{start + count - 1} are outside {self.name}, which has {self.cuts[-1]}")
        return range(bisect_left(self.cuts, start), bisect_left(self.cuts, start + count))

    def read(self, piece: int, clock: Clock, who: str) -> HeldSum:
        """What a piece holds. Raises VerifyError for bytes that nobody wrote, or that may still be written."""
        self._after_writer(piece, clock, who)
        held = self.held[piece]
        if held is None:
            raise VerifyError(f"{who} reads {self._place(piece)}, which nothing was written to")
        return held

    def may_write(self, piece: int, clock: Clock, who: str) -> None:
        """Raise VerifyError when someone may still be reading or writing the piece."""
        self._after_writer(piece, clock, who)
        for thread, stamp in self._readers[piece].items():
            if clock[thread] < stamp:
                raise VerifyError(f"race: {who} writes {self._place(piece)}, which may still be read")

    def note_read(self, piece: int, thread: int, stamp: int) -> None:
        """`thread` reads the piece at its time `stamp`."""
        self._readers[piece][thread] = stamp

    def write(self, piece: int, held: HeldSum, thread: int, stamp: int) -> None:
        """`thread` writes the piece at its time `stamp`."""
        self.held[piece] = held
        self._writer[piece] = (thread, stamp)
        self._readers[piece] = {}

    def _after_writer(self, piece: int, clock: Clock, who: str) -> None:
        thread, stamp = self._writer[piece]
        if thread >= 0 and clock[thread] < stamp:
            raise VerifyError(f"race: {who} touches {self._place(piece)}, which may still be written")

    def _place(self, piece: int) -> str:
        return f"chunks {self.cuts[piece]}..{self.cuts[piece + 1] - 1} of {self.name}"


def added(one: HeldSum, other: HeldSum, where: str) -> HeldSum:
    """The sum of two pieces. Raises VerifyError when they belong to different chunks, or when a rank is in both."""
    if one.home != other.home:
        raise VerifyError(f"{where} adds chunk {one.home} to chunk {other.home}")
    twice = one.ranks & other.ranks
    if twice:
        raise VerifyError(f"{where} adds the contribution of rank {(twice & -twice).bit_length() - 1} a second time")
    return HeldSum(one.home, one.ranks | other.ranks)


def check_result(memory: BufferPieces, ranks: int) -> None:
    """Raise VerifyError unless every piece holds its own bytes, with every rank's contribution."""
    for piece, held in enumerate(memory.held):
        place = f"chunks {memory.cuts[piece]}..{memory.cuts[piece + 1] - 1} of {memory.name}"
        if held is None or held.home != memory.cuts[piece]:
            raise VerifyError(f"{place} hold chunks from {held.home if held else None} on")
        missing = ~held.ranks & ((1 << ranks) - 1)
        if missing:
            raise VerifyError(f"{place}: the contribution of rank {(missing & -missing).bit_length() - 1} is missing")
