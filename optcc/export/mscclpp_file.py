"""MSCCL++ execution plans as values, their JSON text, and their limits.

The fields are those that the loader reads (microsoft/mscclpp, src/core/executor/execution_plan.cc), the limits those of
execution_common.hpp beside it. The loader checks hardly any of them: a threadblock with a seventeenth channel writes
past the end of an array. They are checked here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from optcc.errors import InputError
from optcc.export.limits import refuse_above

MAX_OPS = 64  # operations of a threadblock
MAX_CHANNELS = 16  # channels of one type in a threadblock; as many remote buffers of one type
MAX_OP_CHANNELS = 8  # channels of an operation
MAX_OP_LOCAL = 2  # local buffers of an operation
MAX_THREADBLOCKS = 108
"""Threadblocks of 1024 threads that wait for each other must all be resident: the multiprocessors of an A100."""
ALIGNMENT = 16  # bytes; a chunk is a multiple of it
MAX_BYTES = 2**32 - 1  # offsets are 32-bit numbers of bytes
CHANNEL_TYPES = ("memory", "port")


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
    """A whole plan, in place on the input buffer."""

    name: str
    gpus: tuple[MscclppGpu, ...]
    max_bytes: int

    @property
    def chunks(self) -> int:
        """Equal chunks of the buffer."""
        return self.gpus[0].chunks


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
        "min_message_size": ALIGNMENT * program.chunks,
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


def load(text: str, where: str = "MSCCL++ plan") -> MscclppProgram:
    """Read a plan back. Raises InputError for what is not an in-place AllReduce of this form."""
    try:
        raw = json.loads(text)
        _demand(raw["collective"] == "allreduce" and raw["inplace"] is True, "an allreduce in place")
        _demand(raw["protocol"] == "Simple", "protocol Simple")
        _demand(not raw["reuse_resources"] and not raw["use_double_scratch_buffer"], "scratch of its own, once")
        _demand(raw["buffer_alignment"] == ALIGNMENT, f"buffer_alignment {ALIGNMENT}")
        _demand([gpu["id"] for gpu in raw["gpus"]] == list(range(len(raw["gpus"]))), "GPUs 0, 1, ... in order")
        _demand(bool(raw["gpus"]), "at least one GPU")
        gpus = tuple(_gpu_in(gpu) for gpu in raw["gpus"])
        _demand(len({gpu.chunks for gpu in gpus}) == 1 and gpus[0].chunks > 0, "equally many chunks, at least one")
        return MscclppProgram(str(raw["name"]), gpus, int(raw["max_message_size"]))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        expected = "an execution plan for MSCCL++"
        raise InputError("cannot be read", where=where, expected=expected, got=repr(error)[:200]) from None


def _gpu_in(raw: dict[str, Any]) -> MscclppGpu:
    _demand(raw["input_chunks"] == raw["output_chunks"], "as many output as input chunks")
    _demand([b["id"] for b in raw["threadblocks"]] == list(range(len(raw["threadblocks"]))), "threadblocks 0, 1, ...")
    return MscclppGpu(
        chunks=int(raw["input_chunks"]),
        scratch=int(raw["scratch_chunks"]),
        threadblocks=tuple(
            MscclppThreadblock(
                ops=tuple(_op_in(op) for op in block["ops"]),
                channels=_by_type(block["channels"], "channel_type", "channel_ids"),
                buffers=_by_type(block["remote_buffer_refs"], "access_channel_type", "remote_buffer_ids"),
            )
            for block in raw["threadblocks"]
        ),
        channels=_by_type(raw["channels"], "channel_type", "connected_to"),
        remotes=tuple(
            Remote(int(r["rank"]), str(r["type"]), tuple(r["access_channel_types"])) for r in raw["remote_buffers"]
        ),
    )


def _by_type(raw: list[dict[str, Any]], key: str, numbers: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for entry in raw:
        _demand(entry[key] in CHANNEL_TYPES, "channel type memory or port")
        found[entry[key]] = found.get(entry[key], ()) + tuple(int(n) for n in entry[numbers])
    return found


def _op_in(raw: dict[str, Any]) -> MscclppOp:
    _demand(raw.get("reduce_op", "sum") == "sum", "reduce_op sum")
    spans = {
        key: tuple(
            ChunkSpan(int(s["index"]), int(s["size"]), remote=int(s["buffer_id"]))
            if "buffer_id" in s
            else ChunkSpan(int(s["index"]), int(s["size"]), local=str(s["type"]))
            for s in raw.get(key, ())
        )
        for key in ("src_buff", "dst_buff")
    }
    channels = tuple(int(c) for c in raw.get("channel_ids", ()))
    return MscclppOp(str(raw["name"]), raw.get("channel_type"), channels, spans["src_buff"], spans["dst_buff"])


def _demand(holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"expected {expected}")


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
