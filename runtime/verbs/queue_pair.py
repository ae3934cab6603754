"""A reliable-connection queue pair: made, connected, put into error, destroyed."""

from __future__ import annotations

import ctypes
import ipaddress
from typing import Any, NamedTuple

from optcc.runtime.verbs import structs
from optcc.runtime.verbs.binding import call, make, queue_pair_number
from optcc.runtime.verbs.closing import closed_if_it_fails
from optcc.runtime.verbs.nic import VerbsNic
from optcc.runtime.verbs.settings import VerbsSettings
from optcc.runtime.verbs.structs import AddressHandle, QpAttributes, QpCapacity, QpInit

_RNR_TIMER, _RNR_RETRIES = 12, 6
"""Receives are always posted, so neither should ever matter."""


class Endpoint(NamedTuple):
    """What the other end must know to connect; JSON values."""

    number: int
    first_packet: int
    gid: str
    lid: int
    mtu: int


class QueuePair:
    """On a NIC, whose completion queue it uses both ways. Raises VerbsError, and so does every method.

    Parameters
    ----------
    sends, receives : work requests that it holds at most; a send has two elements, a receive none
    first_packet : the number of the first packet that it sends

    Attributes
    ----------
    address : of the C structure; number : by which completions know it
    """

    def __init__(self, nic: VerbsNic, sends: int, receives: int, first_packet: int) -> None:
        self._nic, self._first_packet = nic, first_packet
        capacity = QpCapacity(max_send_wr=sends, max_recv_wr=receives, max_send_sge=2, max_recv_sge=1)
        init = QpInit(send_cq=nic.queue, recv_cq=nic.queue, cap=capacity, qp_type=structs.QPT_RC, sq_sig_all=0)
        self.address = make("ibv_create_qp", nic.domain, ctypes.byref(init))
        self.number = queue_pair_number(self.address)
        remote = structs.ACCESS_REMOTE_WRITE | structs.ACCESS_REMOTE_READ
        with closed_if_it_fails(self.close):  # nobody else can, and its NIC does not close before
            self._modify(structs.QPS_INIT, pkey_index=0, port_num=nic.address.port, qp_access_flags=remote)

    @property
    def endpoint(self) -> Endpoint:
        """For the other end."""
        return Endpoint(self.number, self._first_packet, self._nic.gid, self._nic.lid, self._nic.mtu)

    def connect(self, peer: Endpoint, settings: VerbsSettings) -> None:
        """To the far end."""
        here = self._nic.address
        to = AddressHandle(dlid=peer.lid, port_num=here.port)
        if here.gid_index is not None:
            ctypes.memmove(to.grh.dgid, ipaddress.IPv6Address(peer.gid).packed, 16)
            to.grh.sgid_index, to.grh.hop_limit, to.is_global = here.gid_index, settings.hops, 1
        self._modify(
            structs.QPS_RTR,
            ah_attr=to,
            path_mtu=min(self._nic.mtu, peer.mtu),
            dest_qp_num=peer.number,
            rq_psn=peer.first_packet,
            max_dest_rd_atomic=settings.reads,
            min_rnr_timer=_RNR_TIMER,
        )
        self._modify(
            structs.QPS_RTS,
            sq_psn=self._first_packet,
            max_rd_atomic=settings.reads,
            timeout=settings.timeout,
            retry_cnt=settings.retries,
            rnr_retry=_RNR_RETRIES,
        )

    def fail(self) -> None:
        """Into the error state: what was posted comes back as flushed, and the other end gets no answers any more."""
        self._modify(structs.QPS_ERR)

    def reset(self) -> None:
        """What was posted never comes back, what arrives is not answered, nobody is told."""
        self._modify(structs.QPS_RESET)

    def in_error(self) -> bool:
        """Whether it is in the error state, by asking."""
        attributes, init = QpAttributes(), QpInit()
        call("ibv_query_qp", self.address, ctypes.byref(attributes), structs.QP_STATE, ctypes.byref(init))
        return bool(attributes.qp_state == structs.QPS_ERR)

    def close(self) -> None:
        """Destroy it."""
        if self.address:
            address, self.address = self.address, 0
            call("ibv_destroy_qp", address)

    def _modify(self, state: int, **given: Any) -> None:
        """Into a state, with the attributes that this takes, by their names in `QpAttributes`."""
        mask = sum(structs.QP_MASKS[name] for name in given) | structs.QP_STATE
        call("ibv_modify_qp", self.address, ctypes.byref(QpAttributes(qp_state=state, **given)), mask)
