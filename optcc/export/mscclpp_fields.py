"""The fields of an MSCCL++ execution plan's JSON, as far as it is read here (execution_plan.cc): records of the file.

Fields that the executor has a default for may be missing. One that is not here is refused: it might change what the
executor does, as `tbg_info` did before it was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from optcc.values.json_records import OMITTED, Least, Natural, Whole

ALIGNMENT = 16  # bytes; a chunk is a multiple of it
WARP = 32
"""Threads that a GPU runs as one: a block has whole warps, and so a thread for each channel of an operation."""
ANY_SIZE = 2**64 - 1
"""Bytes of the largest message, where a plan names none."""


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
