"""libibverbs, called through ctypes. Nothing else here knows how.

pyverbs, the library's own binding, makes an object for every completion and every scatter-gather element: 1.3 us each,
40 in the lab, more than all else that a chunk costs. What every chunk needs is therefore called by address and reads
and writes arrays of C structures. Where those functions are found belongs to the ABI of libibverbs.so.1: programs have
the calls of posting and polling compiled in, as inline functions of infiniband/verbs.h.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

from optcc.errors import InputError
from optcc.machine.rdma import LIBRARY, PLAYED_FABRIC
from optcc.runtime.errors import TransportError

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

if PLAYED_FABRIC in os.environ and not hasattr(_library, "played_get"):
    raise InputError(
        f"{LIBRARY} is not the played one",
        where=PLAYED_FABRIC,
        expected="the environment that `optcc fabric env` prints",
        got=f"LD_LIBRARY_PATH={os.environ.get('LD_LIBRARY_PATH', '')}",
    )


class VerbsError(TransportError):
    """A call has failed. `number` : the errno, 0 where there is none."""

    def __init__(self, what: str, number: int = 0) -> None:
        super().__init__(f"{what}: {os.strerror(number)}" if number else what)
        self.number = number


_OPS = 8
_POINTER = 8
_POLL_CQ, _REQ_NOTIFY_CQ, _POST_SEND, _POST_RECV = 11, 12, 25, 26
"""Places in struct ibv_context_ops, which begins at `_OPS` of struct ibv_context and has 32 pointers."""
_ASYNC_FD = _OPS + 32 * _POINTER + 4
_CHANNEL_FD = 8
_QP_NUM = 52
_LKEY, _RKEY = 36, 40
_PHYS_PORT_CNT, _DEVICE_ATTR_BYTES = 227, 232


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


def address_of_function(function: Any) -> int:
    """Where a function called through ctypes lies."""
    return int(ctypes.cast(function, c_void_p).value or 0)


def event_functions() -> tuple[int, int]:
    """Addresses of ibv_get_cq_event and of ibv_ack_cq_events."""
    return address_of_function(_CALLS["ibv_get_cq_event"]), address_of_function(ack_cq_events)


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
