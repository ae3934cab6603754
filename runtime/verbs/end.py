"""One end of a wire: a reliable-connection queue pair, and what has been posted on it.

A queue pair completes sends in the order in which they were posted, so a completion vouches for all before it. That is
why credits need not ask for one each, and why an error tells exactly how far things went. In the error state a queue
pair gives back all that was posted, as flushed; when the last has come back, nothing can enter or leave any more.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any, NamedTuple

from optcc.runtime.verbs.binding import (
    GID,
    SGE,
    AHAttr,
    GlobalRoute,
    QPAttr,
    QPCap,
    RecvWR,
    SendWR,
    enums,
)
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.posting import WRITES, poster
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.wires.contract import HEADER_BYTES

RECEIVE = 0
"""Work request id of receives; sends are numbered from 1."""


class EndState(Enum):
    """Of one end."""

    OPEN = "open"
    LOST = "lost"  # it has failed, and has not been fenced yet
    FENCING = "fencing"
    DRAINED = "drained"


OPEN, LOST, FENCING, DRAINED = EndState
"""Looked up once: in Python 3.11 `EndState.OPEN` is a call, and every chunk would make ten of them."""


class PostedWork(NamedTuple):
    """A send under way: chunk `seq` of `flow`, or a read of the record of `flow` (seq -1), or of nothing (flow -1)."""

    serial: int
    flow: int
    seq: int


class ChunkWrite(NamedTuple):
    """What `End.write` is given: `payload` is (address, bytes), `to` an address of the far end."""

    flow: int
    seq: int
    header: bytes
    payload: tuple[int, int]
    to: int
    immediate: int


class Endpoint(NamedTuple):
    """What the other end must know to connect; JSON values."""

    number: int
    first_packet: int
    gid: str
    lid: int
    mtu: int


class End:
    """The queue pair, its posted work and its state. `remote`: base and key of the far end's memory, once connected."""

    def __init__(self, wire: int, nic: VerbsNic, sends: int, receives: int, spare: int, first_packet: int) -> None:
        self.wire, self.nic, self.state = wire, nic, OPEN
        self.sends, self.remote = sends, (0, 0)
        self.work: deque[PostedWork] = deque()
        self.under_way = 0  # chunks given to `write` that are not done
        self._waiting: deque[ChunkWrite] = deque()
        self._owed: dict[int, int] = {}  # flow -> immediate value of its latest credit
        self.receives = 0  # posted, and not come back
        self._serial, self._unsignalled = 0, 0
        self._forgot = False
        self.headers, self.headers_at = memoryview(b""), 0  # `sends` places for headers, and where they lie
        # Two more than what is kept count of: the mark that ends a fence, and a probe.
        cap = QPCap(max_send_wr=WRITES * sends + 2, max_recv_wr=receives, max_send_sge=2, max_recv_sge=1)
        self._poster = poster(nic, cap)
        self.qp = self._poster.qp
        init = QPAttr(port_num=nic.address.port)
        init.qp_access_flags = enums.IBV_ACCESS_REMOTE_WRITE | enums.IBV_ACCESS_REMOTE_READ
        self.qp.to_init(init)
        self.number = self.qp.qp_num
        self._first_packet = first_packet
        # Version 44 refuses a request without memory; of this memory no byte is used.
        nothing = SGE(spare, 0, nic.memory.lkey)
        self._receive = RecvWR(wr_id=RECEIVE, num_sge=1, sg=[nothing])
        self._small = SendWR(opcode=enums.IBV_WR_RDMA_WRITE_WITH_IMM, num_sge=1, sg=[nothing])
        nothing.close()
        for _ in range(receives):
            self.receive()

    @property
    def endpoint(self) -> Endpoint:
        """For the other end."""
        return Endpoint(self.number, self._first_packet, self.nic.gid, self.nic.lid, self.nic.mtu)

    @property
    def is_open(self) -> bool:
        """Whether it works, as far as is known."""
        return self.state is OPEN

    @property
    def waits(self) -> bool:
        """Whether something waits for room."""
        return bool(self._waiting or self._owed)

    @property
    def has_room(self) -> bool:
        """Whether one more send may be posted."""
        return len(self.work) < self.sends

    def in_error(self) -> bool:
        """Whether the queue pair is in the error state, by asking."""
        return bool(self.qp.query(enums.IBV_QP_STATE)[0].qp_state == enums.IBV_QPS_ERR)

    def connect(self, peer: Endpoint, remote: tuple[int, int], settings: VerbsSettings) -> None:
        """Connect to the far end. Raises PyverbsError where there is no way to it."""
        here = self.nic.address
        if here.gid_index is None:
            to = AHAttr(dlid=peer.lid, is_global=0, port_num=here.port)
        else:
            route = GlobalRoute(dgid=GID(peer.gid), sgid_index=here.gid_index, hop_limit=settings.hops)
            to = AHAttr(gr=route, dlid=peer.lid, is_global=1, port_num=here.port)
        attr = QPAttr(port_num=here.port)
        attr.ah_attr, attr.dest_qp_num, attr.path_mtu = to, peer.number, min(self.nic.mtu, peer.mtu)
        attr.rq_psn, attr.sq_psn = peer.first_packet, self._first_packet
        attr.max_rd_atomic = attr.max_dest_rd_atomic = settings.reads
        attr.timeout, attr.retry_cnt = settings.timeout, settings.retries
        attr.min_rnr_timer, attr.rnr_retry = 12, 6  # receives are always posted, so neither should ever matter
        self.qp.to_rts(attr)
        self.remote = remote

    def receive(self) -> None:
        """Post a receive: one more immediate value may come."""
        self.qp.post_recv(self._receive)
        self.receives += 1

    def write(self, chunk: ChunkWrite) -> None:
        """Post a chunk, when there is room for it."""
        self.under_way += 1
        if len(self.work) < self.sends and not self._waiting:
            self._write(chunk)
        else:
            self._waiting.append(chunk)
            self.flush()

    def credit(self, flow: int, immediate: int) -> None:
        """Post a write of no bytes, when there is room; the latest of a flow replaces one that still waits."""
        if len(self.work) < self.sends and not self._owed:
            self._signal(immediate)
        else:
            self._owed[flow] = immediate
            self.flush()

    def flush(self) -> None:
        """Post what has waited for room."""
        while (self._waiting or self._owed) and self.is_open and self.has_room:
            if self._owed:
                self._signal(self._owed.pop(next(iter(self._owed))))
            else:
                self._write(self._waiting.popleft())

    def _write(self, chunk: ChunkWrite) -> None:
        # Numbers of work are consecutive, so of `sends` places this one is not in use.
        place = (self._serial + 1) % self.sends * HEADER_BYTES
        self.headers[place : place + HEADER_BYTES] = chunk.header
        lkey = self.nic.payload.lkey if chunk.payload[1] else 0
        self._poster.write(
            self._serial + 1, self.remote[1], chunk.to, chunk.immediate, self.headers_at + place, chunk.payload, lkey
        )
        self._serial += 1
        self.work.append(PostedWork(self._serial, chunk.flow, chunk.seq))

    def read(self, flow: int, into: int, size: int, source: int) -> None:
        """Post an RDMA READ of `size` bytes at `source` of the far end."""
        part = SGE(into, size, self.nic.memory.lkey)
        request = SendWR(wr_id=self._serial + 1, opcode=enums.IBV_WR_RDMA_READ, num_sge=1, sg=[part])
        request.set_wr_rdma(self.remote[1], source)
        try:
            self._post(request, flow, -1)
        finally:
            request.close()
            part.close()

    def _signal(self, immediate: int) -> None:
        """A write of no bytes. Only some ask for a completion."""
        self._unsignalled += 1
        ask = self._unsignalled >= self.sends // 2
        if ask:
            self._unsignalled = 0
        self._post_small(immediate, enums.IBV_SEND_SIGNALED if ask else 0)

    def fence(self) -> None:
        """Into the error state; everything posted comes back, the last thing a mark posted here."""
        self.state = FENCING
        self._waiting.clear()
        self._owed.clear()
        if self._forgot:
            return  # nothing can enter or leave any more, and from reset no way leads to the error state
        self.qp.modify(QPAttr(qp_state=enums.IBV_QPS_ERR), enums.IBV_QP_STATE)
        if self.work:
            # Sends that asked for no completion may be done already, and then never come back by themselves.
            self._post_small(0, enums.IBV_SEND_SIGNALED)

    def abandon(self) -> None:
        """Destroy the queue pair, and take everything posted for come back."""
        self.state = FENCING
        self.qp.close()
        self.work.clear()
        self.receives = 0

    def forget(self) -> None:
        """Reset the queue pair: what was posted never comes back, what arrives is not answered, nobody is told."""
        self.state, self._forgot = LOST, True
        self.qp.modify(QPAttr(qp_state=enums.IBV_QPS_RESET), enums.IBV_QP_STATE)
        self.work.clear()
        self._waiting.clear()
        self._owed.clear()
        self.under_way = self.receives = 0

    def done(self, serial: int) -> list[PostedWork]:
        """All work up to `serial`, taken off the list."""
        taken = []
        while self.work and self.work[0].serial <= serial:
            work = self.work.popleft()
            self.under_way -= work.seq >= 0
            taken.append(work)
        return taken

    @property
    def is_empty(self) -> bool:
        """Whether everything that was posted has come back."""
        return not self.work and not self.receives

    def close(self) -> None:
        """Destroy the queue pair."""
        self._poster.close()
        self._receive.close()
        self._small.close()
        self._receive = self._small = None

    def _post_small(self, immediate: int, flags: int) -> None:
        request: Any = self._small
        request.wr_id, request.imm_data, request.send_flags = self._serial + 1, immediate, flags
        request.set_wr_rdma(self.remote[1], self.remote[0])
        self._post(request, -1, -1)

    def _post(self, request: Any, flow: int, seq: int) -> None:
        self.qp.post_send(request)
        self._serial += 1
        self.work.append(PostedWork(self._serial, flow, seq))
