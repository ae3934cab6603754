"""A plan as an MSCCL++ execution plan: memory channels inside a server, port channels between servers.

A threadblock serves some groups of chunks from end to end, its operations in the order of the plan's transfers, the
same on every rank; so the earliest unfinished operation can always go on, and nothing deadlocks. What is to be added is
put into scratch of its own and added by the receiver, what is finished is put where it belongs. The first threads of a
block make waits and puts on port channels, all threads make additions and copies. A nop, which is a barrier of the
block, stands wherever one depends on the other.

What lands beside is waited for and added no sooner than a put or the result needs it, and the sum goes into scratch
again: so the input stays as puts need it, and takes the last sum when the NICs have read it. Scratch outlives a launch,
and who puts into it may be a launch ahead, of another size: where nothing else tells him that all of it is out of use,
a signal does at the end, which he waits for. (The executor's own double scratch moves where its packets go, and not
where puts go.)

How deep, how finely cut and how wide a file is: candidates are built, and the executor's clock decides. The links say
how many threadblocks are tried first: as many as move bytes as fast as the fastest port that they use. What a message
advises has been tried before: it fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

from optcc.errors import InputError, SimulationError
from optcc.export.chunks import Chunked, chunked, deeper, finer, keeps_segments
from optcc.export.mscclpp_clock import MSCCLPP, check_places, seconds
from optcc.export.mscclpp_file import (
    ALIGNMENT,
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
    refuse_above,
)
from optcc.plans.plan import Plan
from optcc.schedule.columns import LandsAs

SLACK = 1.05
"""Of candidates within so much of the fastest, the one with the fewest threadblocks: clocks are no better than that."""
PHASES = 4
"""A block sends, waits, adds and sends on: this many times the blocks that fill a link while all of them send."""
DEPTHS = 4
"""Depths that are tried where none was asked for: the plan's, a quarter and a sixteenth of it, and one segment."""


@dataclass(frozen=True)
class Chosen:
    """A file's program, the plan as rounded for it, and seconds by the executor's clock; None: a link has no rate."""

    program: MscclppProgram
    rounded: Chunked
    seconds: float | None

    @property
    def threadblocks(self) -> int:
        """Of the busiest rank."""
        return max(len(gpu.threadblocks) for gpu in self.program.gpus)


def export(
    plan: Plan, *, segments: int | None = None, chunks: int | None = None, threadblocks: int | None = None
) -> Chosen:
    """The program for `plan` that the executor's clock calls fastest, and the plan as rounded for it.

    segments, chunks, threadblocks : kept where given (threadblocks: at most so many a rank), else chosen
    Raises InputError over a limit, naming it and, where fewer segments do fit, how many.
    """
    check_places(plan.cluster)
    chosen = _choose(plan, segments, chunks, threadblocks)
    refuse_above(
        chosen.program.max_bytes, plan.bound.nbytes, "bytes per rank",
        hint="Offsets have 32 bits: plan a smaller --size and run it several times.",
    )  # fmt: skip
    return chosen


def _choose(plan: Plan, segments: int | None, chunks: int | None, threadblocks: int | None) -> Chosen:
    if threadblocks is not None and threadblocks < 1:
        raise InputError("too few threadblocks", where="--threadblocks", expected="at least 1", got=threadblocks)
    found: list[Chosen] = []
    refused: InputError | None = None
    for depth in [segments] if segments is not None else _depths(plan):
        try:
            found += _at_depth(plan, depth, chunks, threadblocks, kept=segments is not None)
        except InputError as error:
            refused = refused or error
    if found:
        best = min(one.seconds or 0.0 for one in found)
        near = [one for one in found if (one.seconds or 0.0) <= SLACK * best]
        return min(near, key=lambda one: (one.threadblocks, one.seconds or 0.0))
    assert refused is not None
    raise _advised(refused, plan, segments, chunks, threadblocks)


def _depths(plan: Plan) -> list[int]:
    depth = plan.segments
    return sorted({max(1, depth // 4**n) for n in range(DEPTHS - 1)} | {1}, reverse=True)


def _at_depth(
    plan: Plan, depth: int, chunks: int | None, threadblocks: int | None, *, kept: bool, timed: bool = True
) -> list[Chosen]:
    """The candidates of one depth; with `timed` false the first that fits."""
    made = chunked(deeper(plan, depth), chunks=chunks, unit=ALIGNMENT)
    if not made.moves:
        raise InputError("nothing to export", where="plan", expected="two ranks or more", got="no transfer")
    if kept and not keeps_segments(made):
        raise InputError(
            "chunks are too few for the segments", where="--segments", got=depth,
            expected=f"at most as many as {made.chunks} equal chunks can tell apart",
        )  # fmt: skip
    found: list[Chosen] = []
    refused: InputError | None = None
    widths = list(_widths(made, threadblocks, fixed=chunks is not None))
    for cut, blocks in widths if timed else widths[::-1]:  # the coarsest fits most often
        try:
            one = Chosen(_within_limits(cut, blocks), cut, None)
        except InputError as error:
            refused = refused or error
            continue
        count = one.threadblocks
        if threadblocks is not None and count > threadblocks:
            refused = refused or InputError(
                "the plan needs more threadblocks", where="--threadblocks", expected=f"at least {count}",
                got=threadblocks,
            )  # fmt: skip
            continue
        if not timed:
            return [one]
        with suppress(SimulationError):
            one = replace(one, seconds=seconds(one.program, plan.cluster, plan.bound.nbytes))
        found.append(one)
        if count > blocks and cut is made:  # it needs more than that: fewer would come out as the same
            break
    if not found:
        assert refused is not None
        raise refused
    return found


def _widths(made: Chunked, threadblocks: int | None, *, fixed: bool) -> Iterator[tuple[Chunked, int]]:
    """Plans cut finely enough for so many threadblocks, fewest last: from as many as fit down to as few as can be."""
    if threadblocks is not None:
        wanted = sorted({min(threadblocks, MAX_THREADBLOCKS) // n or 1 for n in (1, 2, 3, 4)}, reverse=True)
    else:
        full = max(1, min(MAX_THREADBLOCKS, PHASES * -(-int(_fastest(made.plan)) // int(MSCCLPP.put_rate))))
        halves = {max(1, full >> n) for n in range(full.bit_length())}
        wanted = sorted(halves | {min(MAX_THREADBLOCKS, 2 * full), MAX_THREADBLOCKS}, reverse=True)
    seen = set()
    for blocks in wanted:
        cut: Chunked | None = made
        parts = 1
        while not fixed and cut is not None and cut.groups < blocks:
            parts *= 2
            finer_cut = finer(made, parts, ALIGNMENT)
            if finer_cut is None:
                break
            cut = finer_cut
        assert cut is not None
        key = (cut.chunks, min(blocks, cut.groups))
        if key not in seen:
            seen.add(key)
            yield cut, key[1]


def _fastest(plan: Plan) -> float:
    """Bytes per second of the fastest port that a rank of the plan sends by."""
    servers, ranks = plan.cluster.servers, plan.cluster.ranks
    return float(max([max(rank.out_rate, servers[rank.server].nvlink_rate) for rank in ranks], default=0))


def _advised(
    error: InputError, plan: Plan, segments: int | None, chunks: int | None, threadblocks: int | None
) -> InputError:
    """The refusal, with the most segments that do fit, found by trying."""
    low, high = 0, (segments if segments is not None else _depths(plan)[-1])  # low fits (0: unknown), high does not
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _at_depth(plan, middle, chunks, threadblocks, kept=True, timed=False)
            low = middle
        except InputError:
            high = middle
    hint = (
        f"Try --segments {low}." if low else error.hint or "No number of segments fits; a plan of another --family may."
    )
    return InputError(error.what, where=error.where, expected=error.expected, got=error.got, hint=hint)


_LEAST: dict[int, int] = {LandsAs.OVERWRITES: 1, LandsAs.FOLDED: 3, LandsAs.BESIDE: 2}
"""Operations at the receiver of a move, at least."""


def _within_limits(rounded: Chunked, blocks: int) -> MscclppProgram:
    """The program with as many threadblocks, or a few more where their operations need that."""
    least = Counter[int]()  # operations of a rank: a put each; a wait, a nop and an addition, or one wait for several
    for move in rounded.moves:
        least[move.src] += 1
        least[move.dst] += _LEAST[move.reduce]
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


Lane = tuple[str, int]
"""A block's channel: its type, and the rank it leads to."""


@dataclass(frozen=True)
class _Slot:
    """Scratch that one move lands in. `name`: a bit of its own; `signals`: by `lane`, until it has landed."""

    start: int
    lane: Lane
    signals: int
    name: int


@dataclass
class _Beside:
    """Chunks of a rank that moves land beside.

    ends : how many have landed where a sum is needed, ascending: what puts carry, and all
    sums : of these, and of none, where it is
    raw : puts of the input that are to come; nic : a NIC was to read it
    """

    ends: list[int]
    sums: dict[int, ChunkSpan]
    raw: int
    nic: bool = False
    slots: list[_Slot] = field(default_factory=list)


@dataclass
class _OpenBlock:
    """A threadblock in the making.

    waited, worked, handed : whether waits, data operations, or puts that the proxy was given, since the last nop are
        unknown to the threads that need them
    """

    rank: int
    ops: list[MscclppOp] = field(default_factory=list)
    peers: dict[str, list[int]] = field(default_factory=dict)  # by type, in order of first use
    remotes: dict[str, list[Remote]] = field(default_factory=dict)
    unflushed: dict[int, ChunkSpan] = field(default_factory=dict)  # channel -> what was put last
    beside: dict[int, _Beside] = field(default_factory=dict)  # by first chunk
    signals: dict[Lane, list[int]] = field(default_factory=dict)  # that come: what their sender knows to be read
    heard: Counter[Lane] = field(default_factory=Counter)  # how many of these it has waited for
    tells: dict[Lane, None] = field(default_factory=dict)  # who at the end is told that scratch is out of use
    hears: dict[Lane, None] = field(default_factory=dict)  # who at the end tells that of its own
    read: int = 0  # slots that are known to be read, by their names
    sums: bool = False  # some are in scratch
    waited: bool = False
    worked: bool = False
    handed: bool = False

    def channel(self, lane: Lane) -> int:
        peers = self.peers.setdefault(lane[0], [])
        if lane[1] not in peers:
            peers.append(lane[1])
        return peers.index(lane[1])

    def remote(self, kind: str, peer: int, buffer: str) -> int:
        remotes, wanted = self.remotes.setdefault(kind, []), Remote(peer, buffer, (kind,))
        if wanted not in remotes:
            remotes.append(wanted)
        return remotes.index(wanted)

    def nop(self) -> None:
        self.ops.append(MscclppOp("nop"))
        self.waited = self.worked = self.handed = False

    def put(self, lane: Lane, src: ChunkSpan, buffer: str, start: int) -> None:
        kind, peer = lane
        channel = self.channel(lane)
        dst = ChunkSpan(start, src.count, remote=self.remote(kind, peer, buffer))
        if kind == "port":  # by the thread that waits
            if self.worked:
                self.nop()
            self.ops.append(MscclppOp("pws", kind, (channel,), (src,), (dst,)))
            self.unflushed[channel] = dst
            self.handed = True
            return
        if self.waited or self.worked:
            self.nop()
        # There is no put with signal on memory channels: it would put and never signal.
        self.ops.append(MscclppOp("put", kind, (channel,), (src,), (dst,)))
        self.nop()
        self.ops.append(MscclppOp("signal", kind, (channel,)))

    def wait(self, wanted: Iterable[tuple[Lane, int]]) -> None:
        """Until so many signals have come on each of these lanes."""
        need = dict(sorted(wanted, key=lambda each: each[1]))
        while lanes := [lane for lane in need if self.heard[lane] < need[lane]]:
            self._on_all("wait", lanes)
            for lane in lanes:
                self.heard[lane] += 1
                self.read |= self.signals[lane][self.heard[lane] - 1]
            self.waited = True

    def _on_all(self, name: str, lanes: Iterable[Lane]) -> None:
        """Such an operation on each of these lanes, as many at once as an operation may name."""
        by_kind: dict[str, list[int]] = {}
        for lane in lanes:
            by_kind.setdefault(lane[0], []).append(self.channel(lane))
        for kind, channels in by_kind.items():
            for i in range(0, len(channels), MAX_OP_CHANNELS):
                self.ops.append(MscclppOp(name, kind, tuple(channels[i : i + MAX_OP_CHANNELS])))

    def add(self, one: ChunkSpan, other: ChunkSpan, into: ChunkSpan) -> None:
        if self.waited or self.worked:
            self.nop()
        self.ops.append(MscclppOp("re", None, (), (one, other), (into,)))
        self.worked = True

    def copy(self, src: ChunkSpan, dst: ChunkSpan) -> None:
        if self.waited or self.worked:
            self.nop()
        self.ops.append(MscclppOp("copy", None, (), (src,), (dst,)))
        self.worked = True

    def sum_of(self, start: int, landed: int, scratch: _Scratch) -> ChunkSpan:
        """Where the sum of so many that have landed beside these chunks is; added where it is not yet.

        In the order of `optcc.schedule.columns`: those from lower ranks, the sum so far, those from higher ranks.
        """
        mine = self.beside[start]
        before = 0
        for end in mine.ends:
            if end <= landed and end not in mine.sums:
                come, total, into, count = mine.slots[before:end], mine.sums[before], mine.sums[0], mine.sums[0].count
                if end < mine.ends[-1] or mine.raw:
                    into, self.sums = ChunkSpan(scratch.take(count), count, local="s"), True
                elif mine.nic:
                    self.flush()
                self.wait((slot.lane, slot.signals) for slot in come)
                lower = [ChunkSpan(slot.start, count, local="s") for slot in come if slot.lane[1] < self.rank]
                higher = [ChunkSpan(slot.start, count, local="s") for slot in come if slot.lane[1] > self.rank]
                for other in lower[1:]:
                    self.add(lower[0], other, lower[0])
                for other in (*lower[:1], *higher):
                    self.add(total, other, into)
                    total = into
                self.read |= sum(slot.name for slot in come)
                mine.sums[end] = into
            before = end
        return mine.sums[landed]

    def flush(self) -> None:
        """Wait until the NICs have read what was put.

        A flush names what was put last as its destinations: the kernel counts them to know how many channels to flush.
        """
        flushed = list(self.unflushed.items())
        if self.handed and len(flushed) > 1:  # by a thread for each, of puts that one thread has made
            self.nop()
        for i in range(0, len(flushed), MAX_OP_CHANNELS):
            part = flushed[i : i + MAX_OP_CHANNELS]
            self.ops.append(MscclppOp("flush", "port", tuple(c for c, _ in part), (), tuple(span for _, span in part)))
            self.waited = True
        self.unflushed.clear()

    def finish(self) -> None:
        """What is left when all has been put and added: the caller may change the buffer next, and peers may put into
        scratch."""
        self.flush()
        for mine in self.beside.values():
            if mine.sums[mine.ends[-1]] != mine.sums[0]:
                self.copy(mine.sums[mine.ends[-1]], mine.sums[0])
        if self.tells and (self.waited or self.worked):
            self.nop()
        self._on_all("signal", self.tells)
        self._on_all("wait", self.hears)


@dataclass
class _Scratch:
    """Of a rank, in chunks."""

    chunks: int = 0

    def take(self, count: int) -> int:
        self.chunks += count
        return self.chunks - count


def build(rounded: Chunked, blocks: int) -> MscclppProgram:
    """The program of a rounded plan with so many threadblocks a rank, whatever the limits are."""
    cluster = rounded.plan.cluster
    server = [rank.server for rank in cluster.ranks]
    made = [[_OpenBlock(rank) for _ in range(blocks)] for rank in range(len(server))]
    scratch = [_Scratch() for _ in server]
    _expect(rounded, made)
    slots: list[tuple[int, int, _Slot]] = []  # of which rank's which block
    for move in rounded.moves:
        kind = "memory" if server[move.src] == server[move.dst] else "port"
        source, target = made[move.src][move.group % blocks], made[move.dst][move.group % blocks]
        src = here = ChunkSpan(move.start, move.count, local="i")
        if move.start in source.beside:
            src = source.sum_of(move.start, move.carries, scratch[move.src])
            source.beside[move.start].raw -= src == here
            source.beside[move.start].nic |= src == here and kind == "port"
        at = scratch[move.dst].take(move.count) if move.reduce else move.start
        source.put((kind, move.dst), src, "s" if move.reduce else "i", at)
        come = target.signals.setdefault((kind, move.src), [])
        come.append(source.read)
        slot = _Slot(at, (kind, move.src), len(come), 1 << len(slots))
        if move.reduce:
            slots.append((move.dst, move.group % blocks, slot))
        if move.reduce == LandsAs.BESIDE:
            target.beside[move.start].slots.append(slot)
            continue
        target.wait([(slot.lane, slot.signals)])
        if move.reduce:
            target.add(here, ChunkSpan(at, move.count, local="s"), here)
            target.read |= slot.name
    for rank, mine in enumerate(made):
        for block in mine:
            for start, beside in block.beside.items():
                block.sum_of(start, beside.ends[-1], scratch[rank])
    _tell(made, slots)
    for mine in made:
        for block in mine:
            block.finish()
    gpus = tuple(_gpu(rounded.chunks, scratch[rank].chunks, mine) for rank, mine in enumerate(made))
    per_chunk = MAX_BYTES // max(rounded.chunks, *(gpu.scratch for gpu in gpus)) // ALIGNMENT * ALIGNMENT
    least, most = ALIGNMENT * rounded.chunks, per_chunk * rounded.chunks
    return MscclppProgram(f"optcc-{rounded.plan.plan_id}", gpus, least, most)


def _expect(rounded: Chunked, made: list[list[_OpenBlock]]) -> None:
    """Tell blocks what will land beside chunks, and which sums of it are needed."""
    landed = Counter((move.dst, move.start) for move in rounded.moves if move.reduce == LandsAs.BESIDE)
    for move in rounded.moves:
        for rank in (move.src, move.dst):
            if all_ := landed[rank, move.start]:
                here = ChunkSpan(move.start, move.count, local="i")
                beside = made[rank][move.group % len(made[rank])].beside
                mine = beside.setdefault(move.start, _Beside([all_], {0: here}, 0))
                if rank == move.src:
                    mine.ends = sorted({*mine.ends, move.carries} - {0})
                    mine.raw += not move.carries


def _tell(made: list[list[_OpenBlock]], slots: list[tuple[int, int, _Slot]]) -> None:
    """Settle who tells whom at the end that scratch is out of use: whoever puts into scratch and does not know it."""
    known = [reduce(or_, (block.read for block in mine)) for mine in made]
    used = Counter[tuple[int, int]]()  # by rank and block, the sum of slots' names
    for rank, number, slot in slots:
        used[rank, number] += slot.name
    for rank, lane in dict.fromkeys((rank, slot.lane) for rank, _, slot in slots):
        for number, block in enumerate(made[rank]):
            if block.sums or used[rank, number] & ~known[lane[1]]:
                block.tells[lane] = None
                made[lane[1]][number].hears[lane[0], rank] = None


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
