"""A libibverbs whose devices reach each other: ranks are threads, and what is posted is done by the call that posts it.

What `FakeVerbs` only opens and closes carries chunks here. A write is a copy of memory, as a NIC would make it, and a
record in the far end's completion queue; queues are rings that many threads write and one reads. The device's own
functions are compiled C functions, called by address as a real device's are. Of faults, one is played: a device refuses
all work. The lab has the others.
"""

# mypy: disable-error-code="untyped-decorator, misc, call-arg, no-untyped-call"
# mypy: disable-error-code="call-overload, no-any-return, attr-defined, import-untyped"
from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable
from ctypes import c_int, c_uint64, c_void_p
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from optcc.runtime.compiled.machine import (
    clock_gettime,
    load_i64,
    load_u32,
    memcpy,
    set_word,
    store_i64,
    store_u32,
    word,
)
from optcc.runtime.verbs.structs import (
    COMPLETION,
    QPS_ERR,
    QPS_RTR,
    SEND_SIGNALED,
    WR_RDMA_READ,
    WR_RDMA_WRITE_WITH_IMM,
)
from tests.fake_verbs import _OPS, _POINTER, _POLL_CQ, _POST_RECV, _POST_SEND, _QP_NUM, _REQ_NOTIFY_CQ, FakeVerbs

EIO, FLUSHED = 5, 5
"""Of refused work; the status of what comes back from a queue pair in error."""
RECORD, RECORDS, TIMED_EACH = 64, 1 << 13, 7
"""Of a completion queue: bytes of a record, and how many there are, more than any test has under way. Each so-manyth
call that sends is timed."""
RING, HEAD, TAIL, ARMED, WAKES = 256, 320, 328, 336, 344
"""In a completion queue: address of its records; how many were written, were read; whether to wake; by which file."""
FAR, QUEUE, RECEIVES, STARVED, CALLS, TIMED, TIMED_NS, BROKEN, REFUSES_FROM = (
    256,
    264,
    272,
    280,
    288,
    296,
    304,
    312,
    320,
)
"""In a queue pair: addresses of the far one and of its completion queue; receives that are posted, and messages that
found none; calls that sent, how many of these were timed, and their processor time; whether it is in error; the call
from which on its device refuses, 0: none."""

_I64 = ir.IntType(64)
_write = types.ExternalFunction("write", types.int64(types.int32, types.int64, types.int64))
_read = types.ExternalFunction("read", types.int64(types.int32, types.int64, types.int64))
_THREAD_CPU = np.int32(3)


def _atomic(operation: str) -> Any:
    @intrinsic  # type: ignore[misc, unused-ignore]
    def change(typing: Any, address: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.atomic_rmw(operation, builder.inttoptr(args[0], _I64.as_pointer()), args[1], "seq_cst")

        return types.int64(types.int64, types.int64), code

    return change


_add, _exchange = _atomic("add"), _atomic("xchg")
"""Change a word of memory; what it was."""


def _own(function: Any) -> Any:
    return cfunc("int32(int64, int64, int64)", nopython=True)(function)


@_own
def _poll(queue: int, count: int, into: int) -> int:
    count &= 0xFFFFFFFF
    read, found = load_i64(queue + TAIL), 0
    while found < count:
        record = load_i64(queue + RING) + (read & (RECORDS - 1)) * RECORD
        if word(record) != read + 1:
            break
        memcpy(into + found * 48, record + 8, 48)
        read += 1
        found += 1
    store_i64(queue + TAIL, read)
    return np.int32(found)


@_own
def _notify(queue: int, _solicited: int, _none: int) -> int:
    _exchange(queue + ARMED, 1)
    return np.int32(0)


@_own
def _event(channel: int, _queue: int, _context: int) -> int:
    return np.int32(0 if _read(np.int32(load_u32(channel + 8)), channel + 400, 1) == 1 else -1)


@_own
def _acknowledge(_queue: int, _events: int, _none: int) -> int:
    return np.int32(0)


@_own
def _post_receive(pair: int, request: int, _bad: int) -> int:
    while request != 0:
        _add(pair + RECEIVES, 1)
        request = load_i64(request + 8)
    return np.int32(0)


@njit(nogil=True)
def _tell(pair: int, request: int, status: int, immediate: int) -> None:
    """A completion, in the queue of a queue pair."""
    queue = load_i64(pair + QUEUE)
    number = _add(queue + HEAD, 1)
    record = load_i64(queue + RING) + (number & (RECORDS - 1)) * RECORD
    store_i64(record + 8, request)
    store_u32(record + 16, status)
    store_u32(record + 32, immediate)
    store_u32(record + 36, load_u32(pair + _QP_NUM))
    set_word(record, number + 1)
    if _exchange(queue + ARMED, 0) == 1:
        _write(np.int32(load_i64(queue + WAKES)), record, 1)


@_own
def _fail(pair: int, _request: int, _bad: int) -> int:
    """Into error: what was posted comes back."""
    if _exchange(pair + BROKEN, 1) == 0:
        for _ in range(_exchange(pair + RECEIVES, 0)):
            _tell(pair, 0, FLUSHED, 0)
    return np.int32(0)


@_own
def _post_send(pair: int, request: int, _bad: int) -> int:
    far, clock = load_i64(pair + FAR), pair + 400
    calls, refuses = load_i64(pair + CALLS) + 1, load_i64(pair + REFUSES_FROM)
    if refuses and calls >= refuses:
        return np.int32(EIO)
    store_i64(pair + CALLS, calls)
    if load_i64(pair + BROKEN) or load_i64(far + BROKEN):
        while request != 0:
            if load_i64(pair + BROKEN):
                _tell(pair, load_i64(request), FLUSHED, 0)
            request = load_i64(request + 8)
        return np.int32(0)
    timed, began = calls % TIMED_EACH == 0, 0
    if timed:
        clock_gettime(_THREAD_CPU, clock)
        began = load_i64(clock) * 1_000_000_000 + load_i64(clock + 8)
    while request != 0:
        elements, to, operation = load_i64(request + 16), load_i64(request + 40), load_u32(request + 28)
        for i in range(load_u32(request + 24)):
            at, nbytes = load_i64(elements + 16 * i), load_u32(elements + 16 * i + 8)
            if operation == WR_RDMA_READ:
                memcpy(at, to, nbytes)
            else:
                memcpy(to, at, nbytes)
            to += nbytes
        if operation == WR_RDMA_WRITE_WITH_IMM:
            if _add(far + RECEIVES, -1) <= 0:
                _add(far + STARVED, 1)
            _tell(far, 0, 0, load_u32(request + 36))
        if load_u32(request + 32) & SEND_SIGNALED:
            _tell(pair, load_i64(request), 0, 0)
        request = load_i64(request + 8)
    if timed:
        clock_gettime(_THREAD_CPU, clock)
        store_i64(pair + TIMED, load_i64(pair + TIMED) + 1)
        store_i64(
            pair + TIMED_NS, load_i64(pair + TIMED_NS) + load_i64(clock) * 1_000_000_000 + load_i64(clock + 8) - began
        )
    return np.int32(0)


assert COMPLETION.size == 48
_C = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)


class LoopVerbs(FakeVerbs):
    """Devices of these names, on one network. Queue pairs that are open: their addresses in `pairs`, by number."""

    def __init__(self, *devices: str) -> None:
        super().__init__(*devices)
        self.pairs: dict[int, int] = {}
        self._rings: list[Any] = []
        self._lock = threading.Lock()
        self.ibv_get_cq_event, self.ibv_ack_cq_events = _C(_event.address), _C(_acknowledge.address)

    def starved(self) -> int:
        """Messages that found no receive, which on a real device are errors."""
        return sum(_at(pair + STARVED) for pair in self.pairs.values())

    def refuse(self, pairs: Iterable[int], calls: int) -> None:
        """The device of these queue pairs, by number, does so many calls more that send by each, and then no work."""
        for number in pairs:
            _put(self.pairs[number] + REFUSES_FROM, _at(self.pairs[number] + CALLS) + calls + 1)

    def device_s(self) -> float:
        """Seconds of processor that the devices' calls that send have taken so far, by those that were timed."""
        timed = [(_at(p + CALLS), _at(p + TIMED), _at(p + TIMED_NS)) for p in self.pairs.values()]
        return sum(ns * calls / count for calls, count, ns in timed if count) / 1e9

    def _ibv_open_device(self, device: int) -> int:
        context = super()._ibv_open_device(device)
        does = {_POLL_CQ: _poll, _REQ_NOTIFY_CQ: _notify, _POST_SEND: _post_send, _POST_RECV: _post_receive}
        for place, function in does.items():
            c_void_p.from_address(context + _OPS + place * _POINTER).value = function.address
        return context

    def _ibv_create_cq(self, context: int, _count: int, _data: None, channel: int, _vector: int) -> int:
        queue = super()._ibv_create_cq(context, _count, _data, channel, _vector)
        ring = np.zeros(RECORDS * RECORD, np.uint8)
        self._rings.append(ring)
        os.set_blocking(self._open[channel].fds[0], False)
        _put(queue + RING, ring.ctypes.data)
        _put(queue + WAKES, self._open[channel].fds[1])
        return queue

    def _ibv_create_qp(self, domain: int, init: Any) -> int:
        with self._lock:
            pair = super()._ibv_create_qp(domain, init)
            number = len(self.pairs) + 1
            ctypes.c_uint32.from_address(pair + _QP_NUM).value = number
            self.pairs[number] = pair
        _put(pair + QUEUE, init._obj.send_cq)
        return pair

    def _ibv_modify_qp(self, pair: int, attributes: Any, mask: int) -> int:
        if attributes._obj.qp_state == QPS_RTR:
            _put(pair + FAR, self.pairs[attributes._obj.dest_qp_num])
        elif attributes._obj.qp_state == QPS_ERR:
            _C(_fail.address)(pair, None, None)
        return super()._ibv_modify_qp(pair, attributes, mask)


def _at(address: int) -> int:
    return c_uint64.from_address(address).value


def _put(address: int, value: int) -> None:
    c_uint64.from_address(address).value = value
