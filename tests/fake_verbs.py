"""A libibverbs without hardware, for what happens around chunks: NICs open, queue pairs connect, everything closes.

It stands where `optcc.runtime.verbs.binding` calls C. Nothing is sent: what is posted stays posted. As a real device,
it closes nothing that something open still needs.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int, c_void_p
from typing import Any, NamedTuple
from unittest import mock

import pytest

from optcc.machine.rdma import LIBRARY
from optcc.runtime.verbs.structs import PORT_ACTIVE, QPS_ERR

ROOM = 512
"""Bytes of every C structure: more than all that is read of one."""
_OPS, _POINTER, _ASYNC_FD, _CHANNEL_FD = 8, 8, 268, 8
_POLL_CQ, _REQ_NOTIFY_CQ, _POST_SEND, _POST_RECV = 11, 12, 25, 26
_QP_NUM, _PHYS_PORT_CNT, _MTU_4096 = 52, 227, 5
_DONE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)(lambda *_: 0)
"""Of the device's own functions: nothing to poll, and all others succeed."""


class _Open(NamedTuple):
    """What is open: of which device, the addresses of what it needs, its memory, its descriptors."""

    device: str
    needs: tuple[int, ...]
    memory: Any
    fds: tuple[int, ...] = ()


class FakeVerbs:
    """Devices of these names.

    Attributes
    ----------
    fails : (name of a call, device) -> the errno that it gives, from now on
    calls : of all calls that were made, in order, (name, device)
    events : asynchronous ones that will come, from whichever device is asked first; queue pairs are in error then
    masks : of the states that queue pairs were put into, which attributes were given
    """

    def __init__(self, *devices: str) -> None:
        self._names = [ctypes.create_string_buffer(name.encode()) for name in devices]
        self._devices = (c_void_p * len(devices))(*map(ctypes.addressof, self._names))
        self._open: dict[int, _Open] = {}
        self._closed: list[_Open] = []  # whose memory nothing else may get, as long as somebody may have its address
        self.fails: dict[tuple[str, str], int] = {}
        self.calls: list[tuple[str, str]] = []
        self.events: list[int] = []
        self.masks: dict[int, set[int]] = {}

    @property
    def open(self) -> list[str]:
        """The device of everything that is open."""
        return [it.device for it in self._open.values()]

    def __getattr__(self, name: str) -> Any:
        """One of the library's functions, as ctypes gives it."""

        def function(*given: Any) -> Any:
            first = given[0] if given and isinstance(given[0], int) else 0
            device = self._open[first].device if first in self._open else ""
            self.calls.append((name, device))
            number = self.fails.get((name, device))
            if number is None:
                own = getattr(type(self), f"_{name}", None)
                return own(self, *given) if own else 0
            ctypes.set_errno(number)
            return None if name.startswith(("ibv_create", "ibv_alloc", "ibv_reg")) else number

        return function

    # --- what makes something gives its address -----------------------------------------------------------------------

    def _make(self, device: str, needs: tuple[int, ...], fds: tuple[int, ...] = ()) -> int:
        memory = ctypes.create_string_buffer(ROOM)
        self._open[ctypes.addressof(memory)] = _Open(device, needs, memory, fds)
        return ctypes.addressof(memory)

    def _child(self, *needs: int, fds: tuple[int, ...] = ()) -> int:
        return self._make(self._open[needs[0]].device, needs, fds)

    def _ibv_get_device_list(self, count: Any) -> int:
        count._obj.value = len(self._devices)
        return ctypes.addressof(self._devices)

    def _ibv_get_device_name(self, device: int) -> bytes:
        return ctypes.string_at(device)

    def _ibv_open_device(self, device: int) -> int:
        fds = os.pipe()
        context = self._make(ctypes.string_at(device).decode(), (), fds)
        c_int.from_address(context + _ASYNC_FD).value = fds[0]
        for place in (_POLL_CQ, _REQ_NOTIFY_CQ, _POST_SEND, _POST_RECV):
            c_void_p.from_address(context + _OPS + place * _POINTER).value = ctypes.cast(_DONE, c_void_p).value
        return context

    def _ibv_alloc_pd(self, context: int) -> int:
        return self._child(context)

    def _ibv_create_comp_channel(self, context: int) -> int:
        fds = os.pipe()
        channel = self._child(context, fds=fds)
        c_int.from_address(channel + _CHANNEL_FD).value = fds[0]
        return channel

    def _ibv_create_cq(self, context: int, _count: int, _data: None, channel: int, _vector: int) -> int:
        return self._child(context, channel)

    def _ibv_reg_mr(self, domain: int, *_: Any) -> int:
        return self._child(domain)

    def _ibv_create_qp(self, domain: int, init: Any) -> int:
        pair = self._child(domain, init._obj.send_cq)
        c_int.from_address(pair + _QP_NUM).value = len(self.calls)  # no other one's
        return pair

    def _ibv_modify_qp(self, _pair: int, attributes: Any, mask: int) -> int:
        self.masks.setdefault(attributes._obj.qp_state, set()).add(mask)
        return 0

    # --- what asks ----------------------------------------------------------------------------------------------------

    def _ibv_query_port(self, _context: int, _port: int, attributes: Any) -> int:
        attributes._obj.state, attributes._obj.active_mtu = PORT_ACTIVE, _MTU_4096
        return 0

    def _ibv_query_device(self, _context: int, attributes: Any) -> int:
        attributes[_PHYS_PORT_CNT] = 1
        return 0

    def _ibv_query_qp(self, _pair: int, attributes: Any, *_: Any) -> int:
        attributes._obj.qp_state = QPS_ERR
        return 0

    def _ibv_get_async_event(self, _context: int, event: Any) -> int:
        if self.events:
            event._obj.event_type = self.events.pop()
            return 0
        ctypes.set_errno(errno.EAGAIN)
        return -1

    # --- what closes something gives 0 or an errno --------------------------------------------------------------------

    def _close(self, address: int) -> int:
        if any(address in it.needs for it in list(self._open.values())):
            return errno.EBUSY
        closed = self._open.pop(address)
        self._closed.append(closed)
        for fd in closed.fds:
            os.close(fd)
        return 0

    _ibv_dealloc_pd = _ibv_destroy_comp_channel = _ibv_destroy_cq = _ibv_dereg_mr = _ibv_destroy_qp = _close

    def _ibv_close_device(self, context: int) -> int:
        """A device goes whatever is open of it."""
        for address, it in list(self._open.items()):
            if context in it.needs or address == context:
                self._open.pop(address)
                self._closed.append(it)
                for fd in it.fds:
                    os.close(fd)
        return 0


@pytest.fixture
def library() -> Iterator[FakeVerbs]:
    """In place of libibverbs, with devices nic0 and nic1."""
    with in_place(FakeVerbs("nic0", "nic1")) as fake:
        yield fake


@contextmanager
def in_place(fake: FakeVerbs) -> Iterator[FakeVerbs]:
    """In the block this is libibverbs; whether the real one is here or not makes no difference."""
    load = ctypes.CDLL
    package = importlib.import_module("optcc.runtime.verbs")
    known, names = _modules(), dict(vars(package))
    _forget()
    try:
        with mock.patch.object(ctypes, "CDLL", lambda name, **more: fake if name == LIBRARY else load(name, **more)):
            yield fake
    finally:  # who imports the room next gets what was there before
        _forget()
        sys.modules.update(known)
        vars(package).clear()
        vars(package).update(names)


def _modules() -> dict[str, Any]:
    """Those that have the library, or what has."""
    rooms = ("optcc.runtime.verbs.", "optcc.runtime.compiled.verbs_tables")
    return {name: module for name, module in sys.modules.items() if name.startswith(rooms)}


def _forget() -> None:
    for name in _modules():
        del sys.modules[name]
