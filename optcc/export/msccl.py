"""A plan as an MSCCL algorithm.

Every transfer is one step at its sender and one at its receiver; a pair of ranks is joined on one or more channels, and
a threadblock has one channel and at most one peer each way. Steps of a threadblock are in the order of the plan's
transfers, the same on every rank. So the earliest unfinished step can always go on, however few chunks a connection
holds. What one threadblock reads and another one wrote before is a dependence; a step has room for one, each further
one is a nop in front of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from optcc.errors import InputError
from optcc.export.choice import Chosen, WriterKind, choose
from optcc.export.chunks import Chunked, ChunkMove, in_pieces
from optcc.export.limits import refuse_above
from optcc.export.msccl_clock import seconds
from optcc.export.msccl_file import (
    MAX_CHANNELS,
    MAX_COUNT,
    MAX_STEPS,
    MAX_THREADBLOCKS,
    MscclProgram,
    MscclStep,
    MscclThreadblock,
    check_limits,
)
from optcc.export.targets import MSCCL
from optcc.plans.plan import Plan

UNIT = 16
"""A chunk is a multiple of so many bytes: whole elements of any type, and whole 128-bit words for the kernel."""


def export(
    plan: Plan, *, segments: int | None = None, chunks: int | None = None, threadblocks: int | None = None
) -> Chosen[MscclProgram]:
    """The program for `plan` that the executor's clock calls fastest, and the plan as rounded for it.

    segments, chunks, threadblocks : kept where given (threadblocks: at most so many a GPU), else chosen
    Raises InputError over a limit, naming what would help.
    """
    kind = WriterKind(
        unit=UNIT,
        longest=MAX_COUNT,
        most=MAX_CHANNELS,
        block_rate=MSCCL.block_rate,
        build=_within_limits,
        blocks=lambda program: max(map(len, program.gpus)),
        width=lambda program: program.channels,
        seconds=lambda program, plan: seconds(program, plan.cluster, plan.bound.nbytes),
    )
    return choose(plan, kind, segments=segments, chunks=chunks, threadblocks=threadblocks)


def _within_limits(rounded: Chunked, channels: int) -> MscclProgram:
    """The program with as many channels, or a few more where the transfers of a pair of ranks need that."""
    rounded = in_pieces(rounded, MAX_COUNT)
    counts = Counter((move.src, move.dst) for move in rounded.moves)
    most = min(rounded.groups, MAX_CHANNELS)
    refuse_above(most * MAX_STEPS, max(counts.values()), "steps between two GPUs")
    busiest = Counter(rank for move in rounded.moves for rank in (move.src, move.dst))
    refuse_above(MAX_THREADBLOCKS * MAX_STEPS, max(busiest.values()), "steps of a GPU")
    channels = min(most, max(channels, -(-max(counts.values()) // MAX_STEPS)))
    while True:
        program = build(rounded, channels)
        try:
            check_limits(program)
            return program
        except InputError:
            if channels >= most or max(map(len, program.gpus)) > MAX_THREADBLOCKS:  # more channels, more threadblocks
                raise
            channels += 1


@dataclass
class _Work:
    """A step in the making: `after` are the steps of the same GPU whose bytes it needs."""

    move: int
    sends: bool
    after: list[_Work] = field(default_factory=list)
    block: int = -1
    step: int = -1
    awaited: bool = False


def build(rounded: Chunked, channels: int) -> MscclProgram:
    """The program of a rounded plan on so many channels, whatever the limits are."""
    ranks = len(rounded.plan.cluster.ranks)
    work: list[list[_Work]] = [[] for _ in range(ranks)]
    written: list[dict[int, _Work]] = [{} for _ in range(ranks)]  # chunk -> the step that wrote it last
    for i, move in enumerate(rounded.moves):
        span = range(move.start, move.start + move.count)
        for rank, sends in ((move.src, True), (move.dst, False)):
            one = _Work(i, sends)
            one.after = list({id(w): w for c in span if (w := written[rank].get(c))}.values())
            work[rank].append(one)
            if not sends:
                written[rank].update(dict.fromkeys(span, one))
    gpus = tuple(_gpu(rounded.moves, work[rank], channels) for rank in range(ranks))
    used = max(block.chan for blocks in gpus for block in blocks) + 1
    return MscclProgram(f"optcc-{rounded.plan.plan_id}", rounded.chunks, used, (0,) * ranks, gpus)


def _gpu(moves: tuple[ChunkMove, ...], work: list[_Work], channels: int) -> tuple[MscclThreadblock, ...]:
    lines: dict[tuple[int, bool, int], list[_Work]] = {}
    for one in work:
        move = moves[one.move]
        key = (move.group % channels, one.sends, move.dst if one.sends else move.src)
        lines.setdefault(key, []).append(one)
    blocks: list[tuple[int, int, int, list[_Work]]] = []  # channel, send peer, receive peer, steps in order
    for chan in range(channels):
        sending = _largest(lines, chan, True)
        receiving = _largest(lines, chan, False)
        # A line each way shares a threadblock where there is room: half as many threadblocks, fewer dependences.
        while sending or receiving:
            to, out = sending.pop(0) if sending else (-1, [])
            come, into = receiving.pop(0) if receiving else (-1, [])
            if out and into and _size(out) + _size(into) > MAX_STEPS:
                blocks.append((chan, to, -1, out))
                blocks.append((chan, -1, come, into))
            else:
                blocks.append((chan, to, come, sorted([*out, *into], key=lambda one: (one.move, not one.sends))))
    for number, (_, _, _, ordered) in enumerate(blocks):
        for one in ordered:
            one.block = number
    for one in work:
        for other in one.after:
            other.awaited = other.awaited or other.block != one.block
    for _, _, _, ordered in blocks:  # where each step will stand, behind its nops
        at = 0
        for one in ordered:
            one.step = at + max(0, len(_outside(one)) - 1)
            at = one.step + 1
    return tuple(
        MscclThreadblock(to, come, chan, tuple(step for one in ordered for step in _steps(moves[one.move], one)))
        for chan, to, come, ordered in blocks
    )


def _largest(lines: dict[tuple[int, bool, int], list[_Work]], chan: int, sends: bool) -> list[tuple[int, list[_Work]]]:
    found = [(peer, line) for (c, s, peer), line in lines.items() if (c, s) == (chan, sends)]
    return sorted(found, key=lambda entry: (-len(entry[1]), entry[0]))


def _size(line: Iterable[_Work]) -> int:
    """Steps of a line, with as many nops as it may need."""
    return sum(max(1, len(one.after)) for one in line)


def _outside(one: _Work) -> list[_Work]:
    return [other for other in one.after if other.block != one.block]


def _steps(move: ChunkMove, one: _Work) -> list[MscclStep]:
    kind = "s" if one.sends else "rrc" if move.reduce else "r"
    plain = MscclStep(kind, "i", move.start, "i", move.start, move.count, hasdep=one.awaited)
    waits = [(other.block, other.step) for other in _outside(one)]
    if not waits:
        return [plain]
    nops = [MscclStep("nop", "i", 0, "i", 0, 0, depid=block, deps=step) for block, step in waits[:-1]]
    return [*nops, replace(plain, depid=waits[-1][0], deps=waits[-1][1])]
