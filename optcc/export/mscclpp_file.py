"""MSCCL++ execution plans: as values, as JSON text, and the executor's limits.

The fields are those that the loader reads (microsoft/mscclpp, src/core/executor/execution_plan.cc), the limits those of
execution_common.hpp beside it. The loader checks hardly any of them: a threadblock with a seventeenth channel writes
past the end of an array. They are checked here.

Fields that the executor has a default for may be missing. One that is not here is refused: it might change what the
executor does, as `tbg_info` did before it was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm
from typing import Annotated, Any, ClassVar, Literal

from optcc.errors import InputError, VerifyError
from optcc.values.json_records import OMITTED, FieldError, Least, Natural, Whole, parse, read_json

MAX_OPS = 64  # operations of a threadblock
MAX_CHANNELS = 16  # channels of one type in a threadblock; as many remote buffers of one type
MAX_OP_CHANNELS = 8  # channels of an operation
MAX_OP_LOCAL = 2  # local buffers of an operation
MAX_THREADBLOCKS = 108
"""Threadblocks of 1024 threads that wait for each other must all be resident: the multiprocessors of an A100."""
MAX_BYTES = 2**32 - 1  # offsets are 32-bit numbers of bytes
CHANNEL_TYPES = ("memory", "port")
ALIGNMENT = 16  # bytes; a chunk is a multiple of it
WARP = 32
"""Threads that a GPU runs as one: a block has whole warps, and so a thread for each channel of an operation."""
ANY_SIZE = 2**64 - 1
"""Bytes of the largest message, where a plan names none."""


@dataclass(frozen=True)
class ChunkSpan:
    """`count` chunks from `start` on, of a local buffer ("i", "o", "s") or of remote buffer number `remote` of the
    threadblock's list."""

    start: int
    count: int
    local: str | None = None
    remote: int | None = None


@dataclass(frozen=True)
class MscclppOp:
    """One operation. `channels`: places in the threadblock's list of channels of `channel_type`."""

    name: str
    channel_type: str | None = None
    channels: tuple[int, ...] = ()
    src: tuple[ChunkSpan, ...] = ()
    dst: tuple[ChunkSpan, ...] = ()


@dataclass(frozen=True)
class MscclppThreadblock:
    """What runs one after the other. `channels`, `buffers`: by channel type, places in the GPU's lists."""

    ops: tuple[MscclppOp, ...]
    channels: dict[str, tuple[int, ...]]
    buffers: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Remote:
    """A buffer of another rank, and the channel types by which it is reached."""

    rank: int
    kind: str
    types: tuple[str, ...]


@dataclass(frozen=True)
class MscclppGpu:
    """One rank. `channels`: by type, the peers that its channels lead to."""

    chunks: int
    scratch: int
    threadblocks: tuple[MscclppThreadblock, ...]
    channels: dict[str, tuple[int, ...]]
    remotes: tuple[Remote, ...]


@dataclass(frozen=True)
class MscclppProgram:
    """A whole plan, in place on the input buffer. min_bytes, max_bytes : of a message"""

    name: str
    gpus: tuple[MscclppGpu, ...]
    min_bytes: int
    max_bytes: int

    @property
    def chunks(self) -> int:
        """Equal chunks of the buffer."""
        return self.gpus[0].chunks

    @property
    def one_size(self) -> bool:
        """All messages have as many bytes."""
        return self.max_bytes < self.min_bytes + ALIGNMENT * self.chunks


def dump(program: MscclppProgram) -> str:
    """The JSON text of a program."""
    whole = {
        "name": program.name,
        "collective": "allreduce",
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "gpus": [_gpu_out(rank, gpu) for rank, gpu in enumerate(program.gpus)],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT,
        "min_message_size": program.min_bytes,
        "max_message_size": program.max_bytes,
    }
    return json.dumps(whole, indent=1)


def _gpu_out(rank: int, gpu: MscclppGpu) -> dict[str, Any]:
    return {
        "id": rank,
        "input_chunks": gpu.chunks,
        "output_chunks": gpu.chunks,
        "scratch_chunks": gpu.scratch,
        "threadblocks": [
            {
                "id": i,
                "ops": [_op_out(op) for op in block.ops],
                "channels": [{"channel_type": t, "channel_ids": list(ids)} for t, ids in block.channels.items()],
                "remote_buffer_refs": [
                    {"access_channel_type": t, "remote_buffer_ids": list(ids)} for t, ids in block.buffers.items()
                ],
            }
            for i, block in enumerate(gpu.threadblocks)
        ],
        "channels": [{"channel_type": t, "connected_to": list(peers)} for t, peers in gpu.channels.items()],
        "remote_buffers": [
            {"rank": r.rank, "type": r.kind, "access_channel_types": list(r.types)} for r in gpu.remotes
        ],
        "semaphores": [],
    }


def _op_out(op: MscclppOp) -> dict[str, Any]:
    out: dict[str, Any] = {"name": op.name}
    for key, spans in (("src_buff", op.src), ("dst_buff", op.dst)):
        if spans:
            out[key] = [
                {
                    **({"type": s.local} if s.remote is None else {"buffer_id": s.remote}),
                    "index": s.start,
                    "size": s.count,
                }
                for s in spans
            ]
    if op.channels:
        out["channel_ids"] = list(op.channels)
    if op.channel_type:
        out["channel_type"] = op.channel_type
    if op.name == "re":
        out["reduce_op"] = "sum"
    return out


Channel = tuple[int, str, int]
"""Rank, type, place in the rank's list of that type."""


def joined_channels(program: MscclppProgram) -> dict[Channel, Channel]:
    """Channel -> the one at its other end: the k-th of a type from A to B and the k-th from B to A.

    Raises VerifyError for one that has none.
    """
    ends: dict[tuple[int, int, str], list[int]] = {}
    for r, gpu in enumerate(program.gpus):
        for kind, peers in gpu.channels.items():
            for c, peer in enumerate(peers):
                if peer == r or peer >= len(program.gpus):
                    raise VerifyError(f"{kind} channel {c} of rank {r} leads to rank {peer}")
                ends.setdefault((r, peer, kind), []).append(c)
    joined: dict[Channel, Channel] = {}
    for (r, peer, kind), mine in ends.items():
        others = ends.get((peer, r, kind), [])
        if len(others) != len(mine):  # the executor waits for the other end before it launches anything
            raise VerifyError(f"rank {r} has {len(mine)} {kind} channels to rank {peer}, which has {len(others)} back")
        joined.update(((r, kind, c), (peer, kind, other)) for c, other in zip(mine, others, strict=True))
    return joined


def refuse_above(limit: int, got: int, what: str, *, hint: str | None = None) -> None:
    """Raise InputError naming `what` when `got` is above `limit`."""
    if got > limit:
        raise InputError("over a limit of the format", where=what, expected=f"at most {limit}", got=got, hint=hint)


def check_limits(program: MscclppProgram) -> None:
    """Raise InputError naming the limit that the executor's tables are too small for."""
    for rank, gpu in enumerate(program.gpus):
        refuse_above(MAX_THREADBLOCKS, len(gpu.threadblocks), f"threadblocks of rank {rank}")
        for number, block in enumerate(gpu.threadblocks):
            place = f"threadblock {number} of rank {rank}"
            refuse_above(MAX_OPS, len(block.ops), f"operations in {place}")
            for kind in CHANNEL_TYPES:
                refuse_above(MAX_CHANNELS, len(block.channels.get(kind, ())), f"{kind} channels in {place}")
                refuse_above(
                    MAX_CHANNELS, len(block.buffers.get(kind, ())), f"remote buffers by {kind} channel in {place}"
                )
            for op in block.ops:
                refuse_above(MAX_OP_CHANNELS, len(op.channels), f"channels of a {op.name} in {place}")
                for spans in (op.src, op.dst):
                    local = sum(span.remote is None for span in spans)
                    refuse_above(MAX_OP_LOCAL, local, f"local buffers of a {op.name} in {place}")
                    refuse_above(MAX_OP_CHANNELS, len(spans) - local, f"remote buffers of a {op.name} in {place}")
        most = max(gpu.chunks, gpu.scratch) * (program.max_bytes // gpu.chunks)
        refuse_above(MAX_BYTES, most, f"bytes of a buffer of rank {rank}")


class ClosedRecord:
    """Of the file. A field that is not here is refused: it might change what the executor does."""

    CLOSED: ClassVar[bool] = True


@dataclass(frozen=True)
class GroupPart(ClosedRecord):
    """Which part of an operation a threadblock of a group does; the parts are equal."""

    tb_id: int
    tbg_size: Natural


@dataclass(frozen=True)
class FileSpan(ClosedRecord):
    """Chunks of a local buffer (`type`), or of one in the threadblock's list of remote ones."""

    index: int
    size: Natural
    type: Annotated[Literal["i", "o", "s"] | None, OMITTED] = None
    buffer_id: Annotated[int | None, OMITTED] = None


@dataclass(frozen=True)
class FileOp(ClosedRecord):
    """An operation that is read."""

    name: Literal["nop", "wait", "signal", "flush", "put", "pws", "copy", "re"]
    channel_type: Annotated[Literal["memory", "port"] | None, OMITTED] = None
    channel_ids: Annotated[tuple[int, ...], OMITTED] = ()
    src_buff: Annotated[tuple[FileSpan, ...], OMITTED] = ()
    dst_buff: Annotated[tuple[FileSpan, ...], OMITTED] = ()
    reduce_op: Annotated[Literal["sum"], OMITTED] = "sum"
    tbg_info: Annotated[GroupPart, OMITTED] = GroupPart(0, 1)


@dataclass(frozen=True)
class BlockChannels(ClosedRecord):
    """Channels of a threadblock, places in the GPU's list."""

    channel_type: Literal["memory", "port"]
    channel_ids: tuple[int, ...]


@dataclass(frozen=True)
class BlockBuffers(ClosedRecord):
    """Remote buffers of a threadblock, places in the GPU's list."""

    access_channel_type: Literal["memory", "port"]
    remote_buffer_ids: tuple[int, ...]


@dataclass(frozen=True)
class FileBlock(ClosedRecord):
    """A threadblock."""

    id: int
    ops: tuple[FileOp, ...]
    channels: tuple[BlockChannels, ...]
    remote_buffer_refs: Annotated[tuple[BlockBuffers, ...], OMITTED] = ()


@dataclass(frozen=True)
class FileChannels(ClosedRecord):
    """Channels of a GPU, by the ranks at their other ends."""

    channel_type: Literal["memory", "port"]
    connected_to: tuple[int, ...]


@dataclass(frozen=True)
class FileBuffer(ClosedRecord):
    """A buffer of another rank."""

    rank: int
    type: Literal["i", "o", "s"]
    access_channel_types: tuple[Literal["memory", "port"], ...]


@dataclass(frozen=True)
class FileGpu(ClosedRecord):
    """A rank."""

    id: int
    input_chunks: Natural
    output_chunks: Natural
    scratch_chunks: int
    threadblocks: tuple[FileBlock, ...]
    channels: tuple[FileChannels, ...]
    remote_buffers: tuple[FileBuffer, ...]
    semaphores: Annotated[tuple[Literal["none is read"], ...], OMITTED] = ()


@dataclass(frozen=True)
class PlanFile(ClosedRecord):
    """A whole plan."""

    name: str
    collective: Literal["allreduce"]
    protocol: Literal["Simple"]
    inplace: bool
    gpus: Annotated[tuple[FileGpu, ...], Least(1)]
    reuse_resources: Annotated[bool, OMITTED] = False
    num_threads_per_block: Annotated[int, Whole(WARP, 1024), OMITTED] = 1024
    use_double_scratch_buffer: Annotated[bool, OMITTED] = False
    buffer_alignment: Annotated[int, Whole(ALIGNMENT, ALIGNMENT), OMITTED] = ALIGNMENT
    min_message_size: Annotated[int, Whole(0, ANY_SIZE), OMITTED] = 0
    max_message_size: Annotated[int, Whole(0, ANY_SIZE), OMITTED] = ANY_SIZE


def load(text: str, where: str = "MSCCL++ plan") -> MscclppProgram:
    """Read a plan back. Raises InputError, with the place, for what is not an in-place AllReduce of this form.

    Where operations are divided among a group of threadblocks, chunks are divided, too, so that each has whole ones.
    """
    try:
        file: PlanFile = read_json(PlanFile, parse(text))
        demand(file.inplace, "an allreduce in place")
        demand(not file.reuse_resources and not file.use_double_scratch_buffer, "scratch of its own, once")
        demand(file.num_threads_per_block % WARP == 0, f"num_threads_per_block: a multiple of {WARP}")
        demand([gpu.id for gpu in file.gpus] == list(range(len(file.gpus))), "GPUs 0, 1, ... in order")
        sizes = {op.tbg_info.tbg_size for gpu in file.gpus for block in gpu.threadblocks for op in block.ops}
        demand(max(sizes, default=1) <= MAX_THREADBLOCKS, f"groups of at most {MAX_THREADBLOCKS} threadblocks")
        gpus = tuple(_gpu(gpu, lcm(*sizes)) for gpu in file.gpus)
        demand(len({gpu.chunks for gpu in gpus}) == 1, "equally many chunks")
        most, unit = file.max_message_size, ALIGNMENT * gpus[0].chunks
        if most == ANY_SIZE:  # as the executor takes it where none is given: what its offsets reach
            most = MAX_BYTES * gpus[0].chunks // max(max(gpu.chunks, gpu.scratch) for gpu in gpus) // unit * unit
        least = max(-(-file.min_message_size // unit), 1) * unit
        demand(least <= most, f"a multiple of {unit} bytes from min_message_size to max_message_size")
        return MscclppProgram(file.name, gpus, least, most)
    except ValueError as error:
        place, expected, got = "", "an execution plan for MSCCL++", str(error)[:200]
        if isinstance(error, FieldError):
            place, expected, got = (
                f": {error.place}".removesuffix(": "),
                f"{expected}: {error.expected}",
                str(error.got),
            )
        raise InputError("cannot be read", where=f"{where}{place}", expected=expected, got=got) from None


def _span(span: FileSpan, part: GroupPart, scale: int) -> ChunkSpan:
    """The part of one threadblock of a group, in chunks of which `scale` make one of the file."""
    count = span.size * scale // part.tbg_size
    return ChunkSpan(span.index * scale + part.tb_id * count, count, span.type, span.buffer_id)


def _op(op: FileOp, scale: int) -> MscclppOp:
    spans = (*op.src_buff, *op.dst_buff)
    demand(op.tbg_info.tb_id < op.tbg_info.tbg_size, "tb_id below tbg_size")
    demand(all((span.type is None) != (span.buffer_id is None) for span in spans), "type or buffer_id of a buffer")
    demand(op.name != "flush" or op.channel_type == "port", "a flush of port channels")
    demand(op.name != "flush" or len(op.dst_buff) <= len(op.channel_ids), "a channel for all that is flushed")
    src, dst = (tuple(_span(span, op.tbg_info, scale) for span in each) for each in (op.src_buff, op.dst_buff))
    return MscclppOp(op.name, op.channel_type, op.channel_ids, src, dst)


def _gpu(gpu: FileGpu, scale: int) -> MscclppGpu:
    demand([block.id for block in gpu.threadblocks] == [*range(len(gpu.threadblocks))], "threadblocks 0, 1, ...")
    demand(gpu.input_chunks == gpu.output_chunks, "as many output as input chunks")
    return MscclppGpu(
        gpu.input_chunks * scale,
        gpu.scratch_chunks * scale,
        tuple(
            MscclppThreadblock(
                tuple(_op(op, scale) for op in block.ops),
                _by_type((each.channel_type, each.channel_ids) for each in block.channels),
                _by_type((each.access_channel_type, each.remote_buffer_ids) for each in block.remote_buffer_refs),
            )
            for block in gpu.threadblocks
        ),
        _by_type((each.channel_type, each.connected_to) for each in gpu.channels),
        tuple(Remote(each.rank, each.type, each.access_channel_types) for each in gpu.remote_buffers),
    )


def _by_type(given: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for kind, numbers in given:
        found[kind] = found.get(kind, ()) + numbers
    return found


def demand(holds: bool, expected: str) -> None:
    """Raise ValueError for a file that is not as its reader needs it."""
    if not holds:
        raise ValueError(f"expected {expected}")
