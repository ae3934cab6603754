"""A queue pair, and how a chunk is posted on it without making an object for it.

Work requests and scatter-gather elements of pyverbs cost more to make than to post: 1.5 us for a chunk, and 0.1 ms in
the lab. Every object of pyverbs looks up its logger under a lock, for which Python 3.11 looks at the clock, a system
call there. The extended interface of verbs takes values instead, so the elements are made once. A chunk is then two
writes posted at once: its payload, then its header with the immediate value. There are no more packets where the
payload fills whole ones. One write of two elements would do, but soft-RoCE takes it for twice the first (rdma-core,
pull request 1744). Providers without the interface get a request and its elements for every chunk.
"""

from __future__ import annotations

from contextlib import suppress
from socket import htonl
from typing import Any, Protocol

from optcc.runtime.verbs.binding import (
    QP,
    SGE,
    PyverbsError,
    QPCap,
    QPEx,
    QPInitAttr,
    QPInitAttrEx,
    SendWR,
    enums,
)
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.wires.contract import HEADER_BYTES

WRITES = 2
"""The most that one chunk takes of the send queue."""

_OPERATIONS = (
    enums.IBV_QP_EX_WITH_RDMA_WRITE | enums.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | enums.IBV_QP_EX_WITH_RDMA_READ
)
_KIND = {"qp_type": enums.IBV_QPT_RC, "sq_sig_all": 0}


class Poster(Protocol):
    """Posts RDMA writes with immediate value, each with a completion."""

    qp: Any

    def write(
        self, serial: int, key: int, to: int, immediate: int, header: int, payload: tuple[int, int], lkey: int
    ) -> None:
        """`key`, `to`: the far end's memory; `header`: where it lies; `payload`: address, bytes, registered as `lkey`.

        Raises PyverbsError.
        """
        ...

    def close(self) -> None:
        """Destroy the queue pair."""
        ...


def poster(nic: VerbsNic, cap: QPCap, extended: bool = True) -> Poster:
    """A new queue pair on `nic`, with the extended interface where its provider has it."""
    if extended:
        with suppress(PyverbsError):
            return _ByValue(nic, cap)
    return _ByRequest(nic, cap)


class _ByValue:
    def __init__(self, nic: VerbsNic, cap: QPCap) -> None:
        init = QPInitAttrEx(
            **_KIND,
            scq=nic.cq,
            rcq=nic.cq,
            cap=cap,
            pd=nic.pd,
            comp_mask=enums.IBV_QP_INIT_ATTR_PD | enums.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags=_OPERATIONS,
        )
        self.qp = QPEx(nic.context, init)
        self._header: Any = None
        self._payload: Any = None
        self._header, self._payload = SGE(0, HEADER_BYTES, nic.memory.lkey), SGE(0, 0, 0)

    def write(
        self, serial: int, key: int, to: int, immediate: int, header: int, payload: tuple[int, int], lkey: int
    ) -> None:
        qp = self.qp
        qp.wr_start()
        qp.wr_id = serial
        if payload[1]:
            part = self._payload
            part.addr, part.length = payload
            part.lkey = lkey
            qp.wr_flags = 0
            qp.wr_rdma_write(key, to + HEADER_BYTES)
            qp.wr_set_sge(part)
        self._header.addr = header
        qp.wr_flags = enums.IBV_SEND_SIGNALED
        qp.wr_rdma_write_imm(key, to, htonl(immediate))  # which turns it round, unlike a request's
        qp.wr_set_sge(self._header)
        qp.wr_complete()

    def close(self) -> None:
        self.qp.close()
        if self._header is not None:
            self._header.close()
            self._payload.close()
            self._header = self._payload = None


class _ByRequest:
    def __init__(self, nic: VerbsNic, cap: QPCap) -> None:
        self.qp = QP(nic.pd, QPInitAttr(**_KIND, scq=nic.cq, rcq=nic.cq, cap=cap))
        self._lkey = nic.memory.lkey

    def write(
        self, serial: int, key: int, to: int, immediate: int, header: int, payload: tuple[int, int], lkey: int
    ) -> None:
        parts = [SGE(header, HEADER_BYTES, self._lkey)]
        if payload[1]:
            parts.append(SGE(*payload, lkey))
        request = SendWR(
            wr_id=serial,
            opcode=enums.IBV_WR_RDMA_WRITE_WITH_IMM,
            num_sge=len(parts),
            imm_data=immediate,
            sg=parts,
            send_flags=enums.IBV_SEND_SIGNALED,
        )
        request.set_wr_rdma(key, to)
        try:
            self.qp.post_send(request)
        finally:
            request.close()
            for part in parts:
                part.close()

    def close(self) -> None:
        self.qp.close()
