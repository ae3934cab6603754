"""Landing slots of one rank in memory that the ranks of its machine share.

A sender writes a chunk into its slot at the far end itself, as an RDMA NIC would do for it; then a notification goes
over the wire. Nothing can be written late, as the write of a NIC can: it is over when the call that writes returns, so
a sender that has fenced its end of a wire has written its last there.

The receiver writes back how far a flow has come, as its NIC would acknowledge it: no message, nobody is woken.

The memory is anonymous: it has no name that could be left behind, whatever becomes of the processes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from optcc.runtime.errors import TransportError
from optcc.runtime.wires import HEADER_BYTES, FlowSpec

_WORD = 8
_SEQ_BITS = 40
_SEQS = (1 << _SEQ_BITS) - 1


class _Place(NamedTuple):
    """Where a flow's slots are: the first, how many, and the bytes of each."""

    start: int
    window: int
    size: int


def slots_bytes(rank: int, flows: Sequence[FlowSpec]) -> int:
    """Bytes of shared memory that the slots of all flows into `rank` take."""
    return _places(rank, flows)[1]


def _places(rank: int, flows: Sequence[FlowSpec]) -> tuple[dict[int, _Place], int]:
    """Where the slots of each flow into `rank` are, and where they end; before them a cache line for each flow."""
    places: dict[int, _Place] = {}
    incoming = [(flow, spec) for flow, spec in enumerate(flows) if spec.dst == rank]
    end = max(1, len(incoming)) * HEADER_BYTES
    for flow, spec in incoming:
        size = HEADER_BYTES + spec.slot_bytes
        size += -size % HEADER_BYTES  # whole cache lines, so that no two chunks share one
        places[flow] = _Place(end, spec.window, size)
        end += spec.window * size
    return places, end


class Slots:
    """The landing slots of all flows into `rank`; its own, or those of another rank, whose descriptor is `fd`.

    Closes `fd` with itself. Raises TransportError when there is too little memory.
    """

    def __init__(self, rank: int, flows: Sequence[FlowSpec], fd: int | None = None) -> None:
        # First a cache line for each flow, with its mark: one word, so that nobody sees half of it.
        self._places, end = _places(rank, flows)
        self._marks_at = {flow: i * HEADER_BYTES // _WORD for i, flow in enumerate(self._places)}
        self.fd = os.memfd_create("optcc-slots") if fd is None else fd
        try:
            if fd is None:
                # Allocated now, where it is an error that there is too little; at the first write it were a SIGBUS.
                os.posix_fallocate(self.fd, 0, end)
            self._map = mmap.mmap(self.fd, end)
        except OSError as error:
            os.close(self.fd)
            raise TransportError(
                f"too little memory for chunks under way: {end / 2**20:.1f} MiB of memory that ranks share cannot be "
                f"had: {error.strerror}"
            ) from error
        self._bytes = memoryview(self._map)
        self._marks = self._bytes.cast("Q")

    def __contains__(self, flow: int) -> bool:
        return flow in self._places

    def size(self, flow: int) -> int:
        """Bytes of a slot, header included."""
        return self._places[flow].size

    def slot(self, flow: int, seq: int) -> memoryview:
        """The slot of a chunk."""
        start, window, size = self._places[flow]
        at = start + seq % window * size
        return self._bytes[at : at + size]

    def put(self, flow: int, seq: int, header: bytes, payload: memoryview) -> None:
        """Write a chunk into its slot."""
        slot = self.slot(flow, seq)
        slot[:HEADER_BYTES] = header
        slot[HEADER_BYTES : HEADER_BYTES + len(payload)] = payload

    def mark(self, flow: int, wire: int, seq: int) -> None:
        """For the receiver: chunk `seq` of `flow` is here, by `wire`, and all that came before it by this wire."""
        self._marks[self._marks_at[flow]] = wire << _SEQ_BITS | seq + 1

    def landed(self, flow: int, wire: int) -> int:
        """For the sender: what is below has landed, of what went by this wire; 0 when the flow's last did not."""
        mark = self._marks[self._marks_at[flow]]
        return mark & _SEQS if mark >> _SEQ_BITS == wire else 0

    def close(self) -> None:
        """Let go of the memory; it is gone when the last process has, and the last who looks at a slot."""
        self._marks.release()
        self._bytes.release()
        with suppress(BufferError):
            self._map.close()
        os.close(self.fd)
