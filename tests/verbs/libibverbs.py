"""libibverbs through ctypes, as any program would call it: the client of the fabric's and the contract's tests.

Structures and constants are those of infiniband/verbs.h on 64-bit machines. They belong to the ABI of libibverbs.so.1:
fields have been added to the ends of structures, and nothing else has changed. Posting and polling are inline functions
there, which call through a table in the context; so does this.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import Structure, c_char_p, c_int, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

from optcc.machine.rdma import LIBRARY

_library = ctypes.CDLL(LIBRARY, use_errno=True)


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


QPT_RC = 2
QPS_RESET, QPS_INIT, QPS_RTR, QPS_RTS, QPS_ERR = 0, 1, 2, 3, 6
QP_STATE = 1
QP_MASKS = {
    "qp_access_flags": 1 << 3,
    "pkey_index": 1 << 4,
    "port_num": 1 << 5,
    "qkey": 1 << 6,
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
PORT_ACTIVE = 4
EVENT_CQ_ERR, EVENT_QP_REQ_ERR, EVENT_QP_ACCESS_ERR = 0, 2, 3
EVENT_PORT_ACTIVE, EVENT_PORT_ERR = 9, 10

_OPS, _POINTER = 8, 8
_POLL_CQ, _REQ_NOTIFY_CQ, _POST_SEND, _POST_RECV = 11, 12, 25, 26
"""Places in struct ibv_context_ops, which begins at `_OPS` of struct ibv_context and has 32 pointers."""
_ASYNC_FD = _OPS + 32 * _POINTER + 4
_CHANNEL_FD = 8
_QP_NUM = 52
_LKEY, _RKEY = 36, 40


class VerbsError(Exception):
    """A call has failed. `number` : the errno, 0 where there is none."""

    def __init__(self, what: str, number: int = 0) -> None:
        super().__init__(f"{what}: {os.strerror(number)}" if number else what)
        self.number = number


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_library, name)
    function.restype, function.argtypes = result, arguments
    return function


_MAKERS = {
    name: _function(name, c_void_p, *arguments)
    for name, arguments in {
        "ibv_open_device": (c_void_p,),
        "ibv_alloc_pd": (c_void_p,),
        "ibv_create_ah": (c_void_p, c_void_p),
        "ibv_create_comp_channel": (c_void_p,),
        "ibv_create_cq": (c_void_p, c_int, c_void_p, c_void_p, c_int),
        "ibv_reg_mr": (c_void_p, c_void_p, c_size_t, c_int),
        "ibv_create_qp": (c_void_p, c_void_p),
        "ibv_get_device_list": (c_void_p,),
    }.items()
}
_CALLS = {
    name: _function(name, c_int, *arguments)
    for name, arguments in {
        "ibv_close_device": (c_void_p,),
        "ibv_dealloc_pd": (c_void_p,),
        "ibv_destroy_ah": (c_void_p,),
        "ibv_destroy_comp_channel": (c_void_p,),
        "ibv_destroy_cq": (c_void_p,),
        "ibv_dereg_mr": (c_void_p,),
        "ibv_destroy_qp": (c_void_p,),
        "ibv_query_port": (c_void_p, c_uint8, c_void_p),
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


def async_fd(context: int) -> int:
    """The descriptor of a device's asynchronous events."""
    return c_int.from_address(context + _ASYNC_FD).value


def channel_fd(channel: int) -> int:
    """The descriptor of a completion channel."""
    return c_int.from_address(channel + _CHANNEL_FD).value


def number_of(queue_pair: int) -> int:
    """By which the network and completions know a queue pair."""
    return c_uint32.from_address(queue_pair + _QP_NUM).value


def keys(region: int) -> tuple[int, int]:
    """The local and the remote key of a memory region."""
    return c_uint32.from_address(region + _LKEY).value, c_uint32.from_address(region + _RKEY).value


class HotCalls(NamedTuple):
    """A device's own functions. They give 0 or an errno; `poll` how many."""

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
