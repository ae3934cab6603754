"""libibverbs, called through ctypes: its functions, structures and constants. Nothing else here knows them.

pyverbs, the library's own binding, makes an object for every completion and every scatter-gather element: 1.3 us each,
40 in the lab, more than all else that a chunk costs. What every chunk needs is therefore called by address and reads
and writes arrays of C structures. Layouts are those of infiniband/verbs.h on 64-bit machines. They belong to the ABI of
libibverbs.so.1: applications have the calls of posting and polling compiled in, as inline functions of that header.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import Structure, c_char_p, c_int, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from struct import Struct
from typing import Any, NamedTuple

from optcc.errors import InputError
from optcc.machine.rdma import LIBRARY

try:
    _library = ctypes.CDLL(LIBRARY, use_errno=True)
except OSError as missing:
    raise InputError(
        f"{LIBRARY} cannot be loaded",
        where="transport verbs",
        expected="rdma-core's library and the provider of the NICs",
        got=str(missing),
        hint="On Debian and Ubuntu: apt install libibverbs1 ibverbs-providers.",
    ) from missing


class VerbsError(Exception):
    """A call has failed. `number` : the errno, 0 where there is none."""

    def __init__(self, what: str, number: int = 0) -> None:
        super().__init__(f"{what}: {os.strerror(number)}" if number else what)
        self.number = number


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

_OPS = 8
_POINTER = 8
_POLL_CQ, _REQ_NOTIFY_CQ, _POST_SEND, _POST_RECV = 11, 12, 25, 26
"""Places in struct ibv_context_ops, which begins at `_OPS` of struct ibv_context and has 32 pointers."""
_ASYNC_FD = _OPS + 32 * _POINTER + 4
_CHANNEL_FD = 8
_QP_NUM = 52
_LKEY, _RKEY = 36, 40
_PHYS_PORT_CNT, _DEVICE_ATTR_BYTES = 227, 232

QPT_RC = 2
QPS_RESET, QPS_INIT, QPS_RTR, QPS_RTS, QPS_ERR = 0, 1, 2, 3, 6
QP_STATE, QP_ACCESS_FLAGS, QP_PKEY_INDEX, QP_PORT, QP_AV, QP_PATH_MTU = 1, 1 << 3, 1 << 4, 1 << 5, 1 << 7, 1 << 8
QP_TIMEOUT, QP_RETRY_CNT, QP_RNR_RETRY, QP_RQ_PSN, QP_MAX_QP_RD_ATOMIC = 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13
QP_MIN_RNR_TIMER, QP_SQ_PSN, QP_MAX_DEST_RD_ATOMIC, QP_DEST_QPN = 1 << 15, 1 << 16, 1 << 17, 1 << 20
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


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_library, name)
    function.restype, function.argtypes = result, arguments
    return function


_MAKERS = {
    name: _function(name, c_void_p, *arguments)
    for name, arguments in {
        "ibv_open_device": (c_void_p,),
        "ibv_alloc_pd": (c_void_p,),
        "ibv_create_comp_channel": (c_void_p,),
        "ibv_create_cq": (c_void_p, c_int, c_void_p, c_void_p, c_int),
        "ibv_reg_mr": (c_void_p, c_void_p, c_size_t, c_int),
        "ibv_reg_dmabuf_mr": (c_void_p, c_uint64, c_size_t, c_uint64, c_int, c_int),
        "ibv_create_qp": (c_void_p, c_void_p),
        "ibv_get_device_list": (c_void_p,),
    }.items()
}
_CALLS = {
    name: _function(name, c_int, *arguments)
    for name, arguments in {
        "ibv_close_device": (c_void_p,),
        "ibv_dealloc_pd": (c_void_p,),
        "ibv_destroy_comp_channel": (c_void_p,),
        "ibv_destroy_cq": (c_void_p,),
        "ibv_dereg_mr": (c_void_p,),
        "ibv_destroy_qp": (c_void_p,),
        "ibv_query_port": (c_void_p, c_uint8, c_void_p),
        "ibv_query_device": (c_void_p, c_void_p),
        "ibv_query_gid": (c_void_p, c_uint8, c_int, c_void_p),
        "ibv_modify_qp": (c_void_p, c_void_p, c_int),
        "ibv_query_qp": (c_void_p, c_void_p, c_int, c_void_p),
        "ibv_get_cq_event": (c_void_p, c_void_p, c_void_p),
        "ibv_get_async_event": (c_void_p, c_void_p),
    }.items()
}
_free_device_list = _function("ibv_free_device_list", None, c_void_p)
_device_name = _function("ibv_get_device_name", c_char_p, c_void_p)
ack_cq_events = _function("ibv_ack_cq_events", None, c_void_p, ctypes.c_uint)
ack_async_event = _function("ibv_ack_async_event", None, c_void_p)


def make(name: str, *arguments: Any) -> int:
    """Call a function that makes something; its address. Raises VerbsError."""
    made = _MAKERS[name](*arguments)
    if not made:
        raise VerbsError(name, ctypes.get_errno())
    return int(made)


def call(name: str, *arguments: Any) -> None:
    """Call a function that gives 0, an errno, or -1 with errno set. Raises VerbsError."""
    result = _CALLS[name](*arguments)
    if result:
        raise VerbsError(name, result if result > 0 else ctypes.get_errno())


def open_device(name: str) -> int:
    """The context of a device, by its name. Raises VerbsError."""
    number = c_int()
    devices = make("ibv_get_device_list", ctypes.byref(number))
    try:
        for device in (c_void_p * number.value).from_address(devices):
            if _device_name(device) == name.encode():
                return make("ibv_open_device", device)
    finally:
        _free_device_list(devices)
    raise VerbsError(f"no RDMA device {name}")


def _int_at(address: int) -> int:
    return c_int.from_address(address).value


def async_fd(context: int) -> int:
    """The descriptor of a device's asynchronous events."""
    return _int_at(context + _ASYNC_FD)


def channel_fd(channel: int) -> int:
    """The descriptor of a completion channel."""
    return _int_at(channel + _CHANNEL_FD)


def queue_pair_number(queue_pair: int) -> int:
    """By which the network and completions know it."""
    return c_uint32.from_address(queue_pair + _QP_NUM).value


def keys(region: int) -> tuple[int, int]:
    """The local and the remote key of a memory region."""
    return c_uint32.from_address(region + _LKEY).value, c_uint32.from_address(region + _RKEY).value


def ports_of(context: int) -> int:
    """How many ports the device has."""
    attributes = (c_uint8 * (2 * _DEVICE_ATTR_BYTES))()
    call("ibv_query_device", context, attributes)
    return int(attributes[_PHYS_PORT_CNT])


class HotCalls(NamedTuple):
    """What every chunk calls: a device's own functions, by address. They give 0 or an errno; `poll` how many."""

    poll: Callable[[int, int, int], int]
    notify: Callable[[int, int], int]
    post_send: Callable[[int, int, int], int]
    post_receive: Callable[[int, int, int], int]


def hot_calls(context: int) -> HotCalls:
    """Those of a device. They do not block, so they keep the interpreter's lock."""

    def at(place: int, *arguments: Any) -> Any:
        address = c_uint64.from_address(context + _OPS + place * _POINTER).value
        return ctypes.PYFUNCTYPE(c_int, *arguments)(address)

    return HotCalls(
        at(_POLL_CQ, c_void_p, c_int, c_void_p),
        at(_REQ_NOTIFY_CQ, c_void_p, c_int),
        at(_POST_SEND, c_void_p, c_void_p, c_void_p),
        at(_POST_RECV, c_void_p, c_void_p, c_void_p),
    )
