"""A plan as an MSCCL++ execution plan: memory channels inside a server, port channels between servers.

A threadblock serves some groups of chunks from end to end, its operations in the order of the plan's transfers, the
same on every rank; so the earliest unfinished operation can always go on, and nothing deadlocks. What is to be added is
put into scratch of its own and added by the receiver, what is finished is put where it belongs. The first threads of a
block make waits and puts on port channels, all threads make additions and copies. A nop, which is a barrier of the
block, stands wherever one depends on the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from optcc.errors import InputError
from optcc.export.choice import Chosen, WriterKind, choose
from optcc.export.chunks import Chunked
from optcc.export.limits import refuse_above
from optcc.export.mscclpp_clock import seconds
from optcc.export.mscclpp_fields import ALIGNMENT
from optcc.export.mscclpp_file import (
    MAX_BYTES,
    MAX_OP_CHANNELS,
    MAX_OPS,
    MAX_THREADBLOCKS,
    ChunkSpan,
    MscclppGpu,
    MscclppOp,
    MscclppProgram,
    MscclppThreadblock,
    Remote,
    check_limits,
)
from optcc.export.targets import MSCCLPP, check_places
from optcc.plans.plan import Plan


def export(
    plan: Plan, *, segments: int | None = None, chunks: int | None = None, threadblocks: int | None = None
) -> Chosen[MscclppProgram]:
    """The program for `plan` that the executor's clock calls fastest, and the plan as rounded for it.

    segments, chunks, threadblocks : kept where given (threadblocks: at most so many a rank), else chosen
    Raises InputError over a limit, naming what would help.
    """
    check_places(plan.cluster)
    kind = WriterKind(
        unit=ALIGNMENT,
        longest=None,
        most=MAX_THREADBLOCKS,
        block_rate=MSCCLPP.put_rate,
        build=_within_limits,
        blocks=_threadblocks,
        width=_threadblocks,
        seconds=lambda program, plan: seconds(program, plan.cluster, plan.bound.nbytes),
    )
    chosen = choose(plan, kind, segments=segments, chunks=chunks, threadblocks=threadblocks)
    refuse_above(
        chosen.program.max_bytes, plan.bound.nbytes, "bytes per rank",
        hint="Offsets have 32 bits: plan a smaller --size and run it several times.",
    )  # fmt: skip
    return chosen


def _threadblocks(program: MscclppProgram) -> int:
    return max(len(gpu.threadblocks) for gpu in program.gpus)


def _within_limits(rounded: Chunked, blocks: int) -> MscclppProgram:
    """The program with as many threadblocks, or a few more where their operations need that."""
    least = Counter[int]()  # operations of a rank: a put each; a wait, a nop and an addition
    for move in rounded.moves:
        least[move.src] += 1
        least[move.dst] += 3 if move.reduce else 1
    busiest = max(least.values())
    refuse_above(MAX_THREADBLOCKS * MAX_OPS, busiest, "operations of a rank")
    blocks = min(rounded.groups, max(blocks, -(-busiest // MAX_OPS)))
    while True:
        program = build(rounded, blocks)
        try:
            check_limits(program)
            return program
        except InputError:
            if blocks >= min(rounded.groups, MAX_THREADBLOCKS):
                raise
            fullest = max(len(block.ops) for gpu in program.gpus for block in gpu.threadblocks)
            more = max(blocks + 1 + blocks // 8, blocks * fullest // MAX_OPS)
            blocks = min(rounded.groups, MAX_THREADBLOCKS, more)


@dataclass
class _OpenBlock:
    """A threadblock in the making. `behind`: whether waits or data operations since the last nop are unknown to the
    threads that need them."""

    rank: int
    ops: list[MscclppOp] = field(default_factory=list)
    peers: dict[str, list[int]] = field(default_factory=dict)  # by type, in order of first use
    remotes: dict[str, list[Remote]] = field(default_factory=dict)
    unflushed: dict[int, ChunkSpan] = field(default_factory=dict)  # channel -> what was put last
    waited: bool = False
    worked: bool = False

    def channel(self, kind: str, peer: int) -> int:
        peers = self.peers.setdefault(kind, [])
        if peer not in peers:
            peers.append(peer)
        return peers.index(peer)

    def remote(self, kind: str, peer: int, buffer: str) -> int:
        remotes, wanted = self.remotes.setdefault(kind, []), Remote(peer, buffer, (kind,))
        if wanted not in remotes:
            remotes.append(wanted)
        return remotes.index(wanted)

    def nop(self) -> None:
        self.ops.append(MscclppOp("nop"))
        self.waited = self.worked = False

    def put(self, kind: str, peer: int, src: ChunkSpan, buffer: str, start: int) -> None:
        channel = self.channel(kind, peer)
        dst = ChunkSpan(start, src.count, remote=self.remote(kind, peer, buffer))
        if kind == "port":  # by the thread that waits
            if self.worked:
                self.nop()
            self.ops.append(MscclppOp("pws", kind, (channel,), (src,), (dst,)))
            self.unflushed[channel] = dst
            return
        if self.waited or self.worked:
            self.nop()
        # There is no put with signal on memory channels: it would put and never signal.
        self.ops.append(MscclppOp("put", kind, (channel,), (src,), (dst,)))
        self.nop()
        self.ops.append(MscclppOp("signal", kind, (channel,)))

    def wait(self, kind: str, peer: int) -> None:
        self.ops.append(MscclppOp("wait", kind, (self.channel(kind, peer),)))
        self.waited = True

    def add(self, start: int, count: int, scratch: int) -> None:
        if self.waited or self.worked:
            self.nop()
        here = ChunkSpan(start, count, local="i")
        self.ops.append(MscclppOp("re", None, (), (here, ChunkSpan(scratch, count, local="s")), (here,)))
        self.worked = True

    def finish(self) -> None:
        """Wait until the NICs have read what was put, since the caller may change the buffer next.

        A flush names what was put last as its destinations: the kernel counts them to know how many channels to flush.
        """
        flushed = list(self.unflushed.items())
        for i in range(0, len(flushed), MAX_OP_CHANNELS):
            part = flushed[i : i + MAX_OP_CHANNELS]
            self.ops.append(MscclppOp("flush", "port", tuple(c for c, _ in part), (), tuple(span for _, span in part)))


def build(rounded: Chunked, blocks: int) -> MscclppProgram:
    """The program of a rounded plan with so many threadblocks a rank, whatever the limits are."""
    cluster = rounded.plan.cluster
    server = [rank.server for rank in cluster.ranks]
    made = [[_OpenBlock(rank) for _ in range(blocks)] for rank in range(len(server))]
    scratch = [0] * len(server)
    for move in rounded.moves:
        kind = "memory" if server[move.src] == server[move.dst] else "port"
        source, target = made[move.src][move.group % blocks], made[move.dst][move.group % blocks]
        src = ChunkSpan(move.start, move.count, local="i")
        source.put(kind, move.dst, src, *(("s", scratch[move.dst]) if move.reduce else ("i", move.start)))
        target.wait(kind, move.src)
        if move.reduce:
            target.add(move.start, move.count, scratch[move.dst])
            scratch[move.dst] += move.count
    for mine in made:
        for block in mine:
            block.finish()
    gpus = tuple(_gpu(rounded.chunks, scratch[rank], mine) for rank, mine in enumerate(made))
    per_chunk = MAX_BYTES // max(rounded.chunks, *scratch) // ALIGNMENT * ALIGNMENT
    return MscclppProgram(f"optcc-{rounded.plan.plan_id}", gpus, per_chunk * rounded.chunks)


def _gpu(chunks: int, scratch: int, made: list[_OpenBlock]) -> MscclppGpu:
    """A GPU's lists are those of its threadblocks in order. The k-th channel to a peer then pairs with the peer's k-th
    channel back, since both have one in the same threadblocks."""
    channels: dict[str, list[int]] = {}
    remotes: list[Remote] = []
    out = []
    for block in made:
        if not block.ops:
            continue
        ids: dict[str, tuple[int, ...]] = {}
        for kind, peers in sorted(block.peers.items()):
            known = channels.setdefault(kind, [])
            ids[kind] = tuple(range(len(known), len(known) + len(peers)))
            known += peers
        buffers: dict[str, tuple[int, ...]] = {}
        for kind, wanted in sorted(block.remotes.items()):
            remotes += [remote for remote in wanted if remote not in remotes]
            buffers[kind] = tuple(remotes.index(remote) for remote in wanted)
        out.append(MscclppThreadblock(tuple(block.ops), ids, buffers))
    return MscclppGpu(
        chunks, scratch, tuple(out), {kind: tuple(p) for kind, p in sorted(channels.items())}, tuple(remotes)
    )
