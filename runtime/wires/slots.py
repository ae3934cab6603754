"""Landing slots of one rank in memory that the ranks of its machine share, and rings for what is said about them.

A sender writes a chunk into its slot at the far end itself, as an RDMA NIC would do for it; then a notification into a
ring. Nothing can be written late, unlike with a NIC: the write is over when its call returns. So a sender that has
fenced its end of a wire has written its last there.

The receiver writes back how far a flow has come, as its NIC would acknowledge it: no message, nobody is woken. Credits
go back by a second ring. Who sleeps says so here, for whoever has something for it to wake it.

A chunk may also stay in its sender's buffer, which its receiver reads (`lent`): then its slot says where.

The memory is anonymous: it has no name that could be left behind, whatever becomes of the processes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from optcc.runtime.errors import TransportError
from optcc.runtime.wires.contract import ECHOES, HEADER_BYTES, FlowSpec
from optcc.runtime.wires.rings import WORD, Ring, order, ring_bytes

RECORDS = 4
"""Capacity of a ring over what windows and echoes allow in flight. A chunk may be asked for, too, and windows may be
sent again before a peer that was paused reads. One that is full nevertheless makes its writer wait."""

NOTICE = Struct("<IIqddq")
"""Flow, bytes of payload, seq, when its first NIC starts and ends with it, wire."""
BACK = Struct("<IIqq")
"""Kind, flow, number, wire: what comes back."""
LENT = Struct("<qqq")
"""Behind the payload, in a cache line of its own: seq, where the payload begins in its sender's buffer, bytes. The
second counts from 1; 0: the payload is in the slot."""
LENT_BYTES = HEADER_BYTES
_SEQ_BITS = 40
_SEQS = (1 << _SEQ_BITS) - 1


class _Place(NamedTuple):
    """Where a flow's slots are: the first, how many, and the bytes from each to the next, the last of them LENT's."""

    start: int
    window: int
    size: int


def slots_bytes(rank: int, flows: Sequence[FlowSpec]) -> int:
    """Bytes of shared memory that the slots of all flows into `rank` take, with what belongs to them."""
    return _Plan(rank, flows).end


class _Plan:
    """The layout of one rank's memory. What different processes write is never in the same cache line. In this order:

    * a word of the rank: not 0 while it sleeps;
    * for each flow into it a line of marks;
    * for each wire a word: 1 once the wire is closed;
    * for each rank that sends to it two words: not 0 while that rank sleeps; 1 once it lends nothing any more. Then two
      rings: notices to this rank, credits back;
    * the slots of all flows.
    """

    def __init__(self, rank: int, flows: Sequence[FlowSpec]) -> None:
        incoming = {flow: spec for flow, spec in enumerate(flows) if spec.dst == rank}
        wires = sorted({wire for spec in incoming.values() for wire in spec.wires})
        self.marks = {flow: i * HEADER_BYTES // WORD for i, flow in enumerate(incoming, 1)}
        end = (1 + len(incoming)) * HEADER_BYTES
        self.closed = {wire: end // WORD + i for i, wire in enumerate(wires)}
        end += _lines(len(wires) * WORD)
        self.sleeps: dict[int, int] = {}
        self.rings: dict[int, tuple[int, int, int]] = {}  # who sends -> where its notices, its credits are, how many
        for src in sorted({spec.src for spec in incoming.values()}):
            count = RECORDS * sum(spec.window + ECHOES for spec in incoming.values() if spec.src == src)
            self.sleeps[src] = end // WORD
            notices = end + HEADER_BYTES
            backs = notices + ring_bytes(count, NOTICE)
            end = backs + ring_bytes(count, BACK)
            self.rings[src] = (notices, backs, count)
        self.places: dict[int, _Place] = {}
        for flow, spec in incoming.items():
            size = _lines(HEADER_BYTES + spec.slot_bytes) + LENT_BYTES  # whole, so that no two chunks share one
            self.places[flow] = _Place(end, spec.window, size)
            end += spec.window * size
        self.end = end


def _lines(nbytes: int) -> int:
    return nbytes + -nbytes % HEADER_BYTES


class Slots:
    """The landing slots of all flows into `rank`; its own, or those of another rank, whose descriptor is `fd`.

    Closes `fd` with itself. Raises TransportError when there is too little memory.
    """

    def __init__(self, rank: int, flows: Sequence[FlowSpec], fd: int | None = None) -> None:
        plan = _Plan(rank, flows)
        self._places, self._marks_at, end = plan.places, plan.marks, plan.end
        self._closed_at, self._sleeps_at, self._rings_at = plan.closed, plan.sleeps, plan.rings
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
        self._words = self._bytes.cast("Q")  # each is written at once, so that nobody sees half of it
        self._rings: list[Ring] = []

    def __contains__(self, flow: int) -> bool:
        return flow in self._places

    def size(self, flow: int) -> int:
        """Bytes of a slot, header included."""
        return self._places[flow].size - LENT_BYTES

    def slot(self, flow: int, seq: int) -> memoryview:
        """The slot of a chunk."""
        start, window, size = self._places[flow]
        at = start + seq % window * size
        return self._bytes[at : at + size - LENT_BYTES]

    def put(self, flow: int, seq: int, header: bytes, payload: memoryview) -> None:
        """Write a chunk into its slot. That it is there comes last: of another try, it may still be lent."""
        slot = self.slot(flow, seq)
        slot[:HEADER_BYTES] = header
        slot[HEADER_BYTES : HEADER_BYTES + len(payload)] = payload
        order()
        LENT.pack_into(self._bytes, self._lent_at(flow, seq), seq, 0, len(payload))

    def _lent_at(self, flow: int, seq: int) -> int:
        start, window, size = self._places[flow]
        return start + (seq % window + 1) * size - LENT_BYTES

    def lend(self, flow: int, seq: int, header: bytes, start: int, nbytes: int) -> None:
        """Say of a chunk where in its sender's buffer it is."""
        self.slot(flow, seq)[:HEADER_BYTES] = header
        LENT.pack_into(self._bytes, self._lent_at(flow, seq), seq, start + 1, nbytes)

    def lent(self, flow: int, seq: int) -> tuple[int, int] | None:
        """Where the payload of a chunk begins in its sender's buffer, and how long it is; None: it is in the slot."""
        chunk, at, nbytes = LENT.unpack_from(self._bytes, self._lent_at(flow, seq))
        return (at - 1, nbytes) if at and chunk == seq else None

    def fill(self, flow: int, seq: int, payload: memoryview) -> None:
        """Copy the payload of a chunk that was lent into its slot."""
        self.slot(flow, seq)[HEADER_BYTES : HEADER_BYTES + len(payload)] = payload
        LENT.pack_into(self._bytes, self._lent_at(flow, seq), seq, 0, len(payload))

    def mark(self, flow: int, wire: int, seq: int) -> None:
        """For the receiver: chunk `seq` of `flow` is here, by `wire`, and all that came before it by this wire."""
        self._words[self._marks_at[flow]] = wire << _SEQ_BITS | seq + 1

    def landed(self, flow: int, wire: int) -> int:
        """For the sender: what is below has landed, of what went by this wire; 0 when the flow's last did not."""
        mark = self._words[self._marks_at[flow]]
        return mark & _SEQS if mark >> _SEQ_BITS == wire else 0

    def notices(self, src: int) -> Ring:
        """From a rank that sends to the one whose slots these are: NOTICE."""
        at, _, count = self._rings_at[src]
        return self._ring(at, count, NOTICE)

    def backs(self, src: int) -> Ring:
        """The other way: BACK."""
        _, at, count = self._rings_at[src]
        return self._ring(at, count, BACK)

    def _ring(self, at: int, count: int, record: Struct) -> Ring:
        self._rings.append(Ring(self._bytes, at, count, record))
        return self._rings[-1]

    @property
    def senders(self) -> list[int]:
        """The ranks that send to these slots."""
        return list(self._rings_at)

    def sleep(self, nth: int, src: int | None = None) -> None:
        """Say that the owner sleeps for the `nth` time, or that `src`, which sends here, does; 0: it is awake."""
        self._words[0 if src is None else self._sleeps_at[src]] = nth

    def sleeps(self, src: int | None = None) -> int:
        """What `sleep` has said."""
        return self._words[0 if src is None else self._sleeps_at[src]]

    def withdraw(self, src: int) -> None:
        """Rank `src` lends nothing any more: what is read from its buffer from now on may be anything."""
        self._words[self._withdrawn_at(src)] = 1

    def has_withdrawn(self, src: int) -> bool:
        """Whether `src` has. To be asked after its buffer was read."""
        return self._words[self._withdrawn_at(src)] != 0

    def _withdrawn_at(self, src: int) -> int:
        return self._sleeps_at[src] + 1

    def close_wire(self, wire: int) -> None:
        """Nothing that comes by this wire counts from now on."""
        self._words[self._closed_at[wire]] = 1

    def open_wire(self, wire: int) -> None:
        """It has been made anew."""
        self._words[self._closed_at[wire]] = 0

    def is_closed(self, wire: int) -> bool:
        """Whether the far end of a wire has closed: then its slots are no longer there for this wire."""
        return self._words[self._closed_at[wire]] != 0

    def let_go(self) -> None:
        """In a forked child: of the descriptor. What is mapped is, as in any process, until nobody looks at it."""
        os.close(self.fd)

    def close(self) -> None:
        """Let go of the memory; it is gone when the last process has, and the last who looks at a slot."""
        for ring in self._rings:
            ring.release()
        self._words.release()
        self._bytes.release()
        with suppress(BufferError):
            self._map.close()
        os.close(self.fd)
