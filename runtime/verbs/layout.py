"""Where things lie in the one block of memory that a rank registers for its wires; its peers compute the same.

records    of incoming flows: what a sender may read when it has lost the flow's wire
landings   of outgoing flows: where such a record arrives
headers    of outgoing wires: one for each write that may be under way
slots      of incoming flows: ``window`` each
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from optcc.runtime.wires.contract import ECHOES, HEADER_BYTES, FlowSpec, Wire

LINE = 64
"""Everything starts on a cache line of its own."""

_RECORD = struct.Struct("=QQQL")
RECORD_BYTES = _RECORD.size


@dataclass(frozen=True)
class RegionLayout:
    """Offsets in bytes: records, landings and slots by flow, headers by wire; `size` of the whole."""

    records: dict[int, int]
    landings: dict[int, int]
    headers: dict[int, int]
    slots: dict[int, int]
    size: int


def depth(wire: int, flows: Sequence[FlowSpec]) -> int:
    """The most chunks that may be in slots, or on their way, by this wire: all windows of the flows that may use it."""
    return sum(flow.window for flow in flows if wire in flow.wires)


def receives(wire: int, flows: Sequence[FlowSpec]) -> int:
    """The most immediate values that may come by this wire unseen, at either end: chunks; or credits, which are no more
    than the chunks that they are for, and echoes. Each takes a receive, and one that finds none is an error."""
    return sum(flow.window + ECHOES for flow in flows if wire in flow.wires)


def slot_stride(flow: FlowSpec) -> int:
    """Bytes from slot to slot."""
    return _lines(HEADER_BYTES + flow.slot_bytes)


def lay_out(rank: int, wires: Sequence[Wire], flows: Sequence[FlowSpec]) -> RegionLayout:
    """The layout of `rank`'s memory."""
    at = 0

    def place(keys: Iterable[int], size: dict[int, int]) -> dict[int, int]:
        nonlocal at
        offsets = {}
        for key in keys:
            offsets[key] = at
            at += _lines(size[key])
        return offsets

    incoming = {f: slot_stride(flow) * flow.window for f, flow in enumerate(flows) if flow.dst == rank}
    outgoing = {f: RECORD_BYTES for f, flow in enumerate(flows) if flow.src == rank}
    headers = {w: HEADER_BYTES * 2 * depth(w, flows) for w, wire in enumerate(wires) if wire.src == rank}
    return RegionLayout(
        records=place(incoming, dict.fromkeys(incoming, RECORD_BYTES)),
        landings=place(outgoing, outgoing),
        headers=place(headers, headers),
        slots=place(incoming, incoming),
        size=max(at, LINE),
    )


def pack_record(epoch: int, landed: int, folded: int) -> bytes:
    """A record as it lies in memory. Its sum tells a reader that caught it half written."""
    body = struct.pack("=QQQ", epoch, landed, folded)
    return body + struct.pack("=L", zlib.crc32(body))


def unpack_record(data: bytes | memoryview) -> tuple[int, int, int] | None:
    """Epoch, landed, folded; None when it was caught half written."""
    epoch, landed, folded, total = _RECORD.unpack(data)
    return (epoch, landed, folded) if pack_record(epoch, landed, folded)[-4:] == struct.pack("=L", total) else None


def address_of(memory: memoryview) -> int:
    """Where it lies, in this process."""
    if not memory.nbytes:
        return 0
    if memory.readonly:
        return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))  # a tenth of the time of numpy's way


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE
