"""C structures and constants of infiniband/verbs.h, as libibverbs.so.1 has them on 64-bit machines.

They belong to that library's ABI: fields have been added to the ends of structures, and nothing else has changed.
"""

from __future__ import annotations

from ctypes import Structure, c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from struct import Struct
from typing import NamedTuple


class QpCapacity(Structure):
    """struct ibv_qp_cap."""

    _fields_ = [
        ("max_send_wr", c_uint32),
        ("max_recv_wr", c_uint32),
        ("max_send_sge", c_uint32),
        ("max_recv_sge", c_uint32),
        ("max_inline_data", c_uint32),
    ]


class QpInit(Structure):
    """struct ibv_qp_init_attr."""

    _fields_ = [
        ("qp_context", c_void_p),
        ("send_cq", c_void_p),
        ("recv_cq", c_void_p),
        ("srq", c_void_p),
        ("cap", QpCapacity),
        ("qp_type", c_int),
        ("sq_sig_all", c_int),
    ]


class GlobalRoute(Structure):
    """struct ibv_global_route."""

    _fields_ = [
        ("dgid", c_uint64 * 2),  # 16 bytes in network order
        ("flow_label", c_uint32),
        ("sgid_index", c_uint8),
        ("hop_limit", c_uint8),
        ("traffic_class", c_uint8),
    ]


class AddressHandle(Structure):
    """struct ibv_ah_attr."""

    _fields_ = [
        ("grh", GlobalRoute),
        ("dlid", c_uint16),
        ("sl", c_uint8),
        ("src_path_bits", c_uint8),
        ("static_rate", c_uint8),
        ("is_global", c_uint8),
        ("port_num", c_uint8),
    ]


class QpAttributes(Structure):
    """struct ibv_qp_attr."""

    _fields_ = [
        ("qp_state", c_int),
        ("cur_qp_state", c_int),
        ("path_mtu", c_int),
        ("path_mig_state", c_int),
        ("qkey", c_uint32),
        ("rq_psn", c_uint32),
        ("sq_psn", c_uint32),
        ("dest_qp_num", c_uint32),
        ("qp_access_flags", c_uint32),
        ("cap", QpCapacity),
        ("ah_attr", AddressHandle),
        ("alt_ah_attr", AddressHandle),
        ("pkey_index", c_uint16),
        ("alt_pkey_index", c_uint16),
        ("en_sqd_async_notify", c_uint8),
        ("sq_draining", c_uint8),
        ("max_rd_atomic", c_uint8),
        ("max_dest_rd_atomic", c_uint8),
        ("min_rnr_timer", c_uint8),
        ("port_num", c_uint8),
        ("timeout", c_uint8),
        ("retry_cnt", c_uint8),
        ("rnr_retry", c_uint8),
        ("alt_port_num", c_uint8),
        ("alt_timeout", c_uint8),
        ("rate_limit", c_uint32),
    ]


class AsyncEvent(Structure):
    """struct ibv_async_event."""

    _fields_ = [("element", c_void_p), ("event_type", c_int)]


class PortAttributes(Structure):
    """The first fields of struct ibv_port_attr; `rest` is longer than what any version writes after them."""

    _fields_ = [
        ("state", c_int),
        ("max_mtu", c_int),
        ("active_mtu", c_int),
        ("gid_tbl_len", c_int),
        ("port_cap_flags", c_uint32),
        ("max_msg_sz", c_uint32),
        ("bad_pkey_cntr", c_uint32),
        ("qkey_viol_cntr", c_uint32),
        ("pkey_tbl_len", c_uint16),
        ("lid", c_uint16),
        ("rest", c_uint8 * 64),
    ]


class Completion(NamedTuple):
    """The fields of struct ibv_wc that are read. `immediate` is in network order."""

    request: int
    status: int
    vendor_error: int
    immediate: int
    queue_pair: int


COMPLETION = Struct("=QI4xI4xII16x")
"""struct ibv_wc, the fields of `Completion`."""

SEND_REQUEST = Struct("=QQQiIIIQI76xQIIQII")
"""struct ibv_send_wr of an RDMA operation, and after it room for two struct ibv_sge: request, next, elements, their
number, opcode, flags, immediate value (network order), remote address and key; address, bytes and key of each."""
SEND_NEXT, SEND_FLAGS, SEND_ELEMENTS = 8, 32, 128
"""Offsets in it: of the address of the next request, of the flags, and of the elements."""

RECEIVE_REQUEST = Struct("=QQQi4x")
"""struct ibv_recv_wr: request, next, elements, their number."""

QPT_RC = 2
QPS_RESET, QPS_INIT, QPS_RTR, QPS_RTS, QPS_ERR = 0, 1, 2, 3, 6
QP_STATE = 1
QP_MASKS = {
    "qp_access_flags": 1 << 3,
    "pkey_index": 1 << 4,
    "port_num": 1 << 5,
    "ah_attr": 1 << 7,
    "path_mtu": 1 << 8,
    "timeout": 1 << 9,
    "retry_cnt": 1 << 10,
    "rnr_retry": 1 << 11,
    "rq_psn": 1 << 12,
    "max_rd_atomic": 1 << 13,
    "min_rnr_timer": 1 << 15,
    "sq_psn": 1 << 16,
    "max_dest_rd_atomic": 1 << 17,
    "dest_qp_num": 1 << 20,
}
"""enum ibv_qp_attr_mask: the bit that says that a field of `QpAttributes` is given."""
WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM, WR_RDMA_READ = 0, 1, 4
SEND_SIGNALED = 2
ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE, ACCESS_REMOTE_READ = 1, 2, 4
PORT_ACTIVE = 4
EVENT_CQ_ERR, EVENT_QP_FATAL, EVENT_QP_REQ_ERR, EVENT_QP_ACCESS_ERR = 0, 1, 2, 3
EVENT_DEVICE_FATAL, EVENT_PORT_ACTIVE, EVENT_PORT_ERR = 8, 9, 10

STATUS = (
    *("SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR"),
    *("BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR"),
    *("RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR"),
    *("INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR", "TM_ERR", "TM_RNDV_INCOMPLETE"),
)
"""Names of enum ibv_wc_status, by value."""
SUCCESS = 0


def status_name(status: int) -> str:
    """`RETRY_EXC_ERR` for 12."""
    return STATUS[status] if status < len(STATUS) else f"status {status}"
