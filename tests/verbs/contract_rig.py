"""Two ends of a queue pair, for the contract of verbs: by libibverbs alone, whatever NICs are under it."""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Sequence
from ctypes import Structure, byref, c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

from optcc.machine.rdma import NicAddress
from tests.verbs import libibverbs as verbs
from tests.verbs.libibverbs import (
    AddressHandle,
    AsyncEvent,
    PortAttributes,
    QpAttributes,
    QpCapacity,
    QpInit,
    ack_async_event,
    ack_cq_events,
    async_fd,
    call,
    channel_fd,
    hot_calls,
    keys,
    make,
    number_of,
    open_device,
)

PATIENCE_S = float(os.environ.get("CONTRACT_PATIENCE_S", "30"))
"""A test waits so long for what must come, however slow the machine."""
WRITE, WRITE_IMM, SEND, SEND_IMM, READ, SWAP, ADD = range(7)
FENCE, SIGNALED, SOLICITED, INLINE = 1, 2, 4, 8
LOCAL, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC = 1, 2, 4, 8
ALL = LOCAL | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
MEMORY = 1 << 20
SUCCESS, LOC_LEN, LOC_PROT, FLUSH, INV_REQ, ACCESS, RETRY, RNR_RETRY = 0, 1, 4, 5, 9, 10, 12, 13
RECV, RECV_IMM = 128, 129
UC, UD = 3, 4
"""enum ibv_qp_type: unreliable connections, datagrams."""


class Sge(Structure):
    """struct ibv_sge."""

    _fields_ = [("address", c_uint64), ("length", c_uint32), ("key", c_uint32)]


class SendWr(Structure):
    """struct ibv_send_wr; `a` to `d` are its union: remote address and key, or operands, or a datagram's address."""

    _fields_ = [
        *(("wr_id", c_uint64), ("next", c_void_p), ("sges", c_void_p), ("count", c_int), ("opcode", c_int)),
        *(("flags", c_uint32), ("imm", c_uint32), ("a", c_uint64), ("b", c_uint64), ("c", c_uint64), ("d", c_uint64)),
        ("rest", c_uint64 * 7),
    ]


class RecvWr(Structure):
    """struct ibv_recv_wr."""

    _fields_ = [("wr_id", c_uint64), ("next", c_void_p), ("sges", c_void_p), ("count", c_int)]


class Wc(Structure):
    """struct ibv_wc."""

    _fields_ = [
        *(("wr_id", c_uint64), ("status", c_int), ("opcode", c_int), ("vendor", c_uint32), ("length", c_uint32)),
        *(("imm", c_uint32), ("qp", c_uint32), ("src_qp", c_uint32), ("flags", c_uint32)),
        *(("pkey", c_uint16), ("slid", c_uint16), ("sl", c_uint8), ("bits", c_uint8)),
    ]


class HostBytes:
    """Memory of this process."""

    def __init__(self, size: int) -> None:
        self._memory = ctypes.create_string_buffer(size)
        self.base = ctypes.addressof(self._memory)

    def fill(self, offset: int, data: bytes) -> None:
        ctypes.memmove(self.base + offset, data, len(data))

    def at(self, offset: int, length: int) -> bytes:
        return ctypes.string_at(self.base + offset, length)

    def close(self) -> None:
        """It is the interpreter's."""


class GpuBytes:
    """Memory of the first GPU, by the driver alone."""

    def __init__(self, size: int) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        context, base, device = c_void_p(), c_uint64(), c_int()
        self._do("cuInit", 0)
        self._do("cuDeviceGet", byref(device), 0)
        self._do("cuDevicePrimaryCtxRetain", byref(context), device)
        self._do("cuCtxSetCurrent", context)
        self._do("cuMemAlloc_v2", byref(base), ctypes.c_size_t(size))
        self.base, on = base.value, ctypes.c_uint(1)
        # Else `fill` returns before a NIC would see its bytes: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
        self._do("cuPointerSetAttribute", byref(on), 6, base)
        self.fill(0, bytes(size))

    def fill(self, offset: int, data: bytes) -> None:
        self._do("cuMemcpyHtoD_v2", c_uint64(self.base + offset), data, ctypes.c_size_t(len(data)))

    def at(self, offset: int, length: int) -> bytes:
        into = ctypes.create_string_buffer(length)
        self._do("cuMemcpyDtoH_v2", into, c_uint64(self.base + offset), ctypes.c_size_t(length))
        return into.raw

    def close(self) -> None:
        self._do("cuMemFree_v2", c_uint64(self.base))

    def _do(self, name: str, *arguments: Any) -> None:
        assert getattr(self._driver, name)(*arguments) == 0, name


MEMORY_KIND = os.environ.get("CONTRACT_MEMORY", "host")
"""Where the ends' memory is: host or gpu."""


class Done(NamedTuple):
    """A completion."""

    wr_id: int
    status: int
    opcode: int
    length: int
    imm: int
    src_qp: int
    flags: int


class End:
    """One device, opened: a completion queue with its channel, memory, and a queue pair that is not connected yet."""

    def __init__(
        self, nic: NicAddress, *, sends: int = 128, receives: int = 512, entries: int = 2048, rights: int = ALL,
        kind: int = verbs.QPT_RC, inline: int = 64, signal_all: bool = False,
    ) -> None:  # fmt: skip
        self.nic, self.kind = nic, kind
        self.context = open_device(nic.device)
        self.port = PortAttributes()
        self.look()
        self.gid = ctypes.create_string_buffer(16)
        if nic.gid_index is not None:
            call("ibv_query_gid", self.context, nic.port, nic.gid_index, self.gid)
        self.domain = make("ibv_alloc_pd", self.context)
        self.channel = make("ibv_create_comp_channel", self.context)
        os.set_blocking(channel_fd(self.channel), False)
        os.set_blocking(async_fd(self.context), False)
        self.queue = make("ibv_create_cq", self.context, entries, None, self.channel, 0)
        self._memory = GpuBytes(MEMORY) if MEMORY_KIND == "gpu" else HostBytes(MEMORY)
        self.base, self.fill, self.bytes_at = self._memory.base, self._memory.fill, self._memory.at
        self.region = make("ibv_reg_mr", self.domain, self.base, MEMORY, rights)
        self.lkey, self.rkey = keys(self.region)
        self.calls = hot_calls(self.context)
        cap = QpCapacity(
            max_send_wr=sends, max_recv_wr=receives, max_send_sge=3, max_recv_sge=3, max_inline_data=inline
        )
        init = QpInit(send_cq=self.queue, recv_cq=self.queue, cap=cap, qp_type=kind, sq_sig_all=signal_all)
        self.qp = make("ibv_create_qp", self.domain, byref(init))
        self.number = number_of(self.qp)

    def look(self) -> int:
        """The port's state, by asking."""
        call("ibv_query_port", self.context, self.nic.port, byref(self.port))
        return int(self.port.state)

    def modify(self, state: int, **given: Any) -> None:
        mask = sum(verbs.QP_MASKS[name] for name in given) | verbs.QP_STATE
        call("ibv_modify_qp", self.qp, byref(QpAttributes(qp_state=state, **given)), mask)

    def state(self) -> int:
        attributes, init = QpAttributes(), QpInit()
        call("ibv_query_qp", self.qp, byref(attributes), verbs.QP_STATE, byref(init))
        return int(attributes.qp_state)

    def way_to(self, other: End) -> AddressHandle:
        to = AddressHandle(dlid=other.port.lid, port_num=self.nic.port)
        if self.nic.gid_index is not None:
            ctypes.memmove(to.grh.dgid, other.gid, 16)
            to.grh.sgid_index, to.grh.hop_limit, to.is_global = self.nic.gid_index, 64, 1
        return to

    def initialise(self, rights: int = ALL) -> None:
        self.modify(verbs.QPS_INIT, pkey_index=0, port_num=self.nic.port, qp_access_flags=rights)

    def to(
        self, other: End, *, timeout: int = 16, retries: int = 6, rnr_retries: int = 7, rnr_timer: int = 1,
        first: int = 77, expects: int = 77, reads: int = 4,
    ) -> None:  # fmt: skip
        """Connect this end, initialised, to the other. An unreliable connection has packet numbers alone."""
        way = {"ah_attr": self.way_to(other), "path_mtu": self.port.active_mtu, "dest_qp_num": other.number}
        takes, asks = {"max_dest_rd_atomic": reads, "min_rnr_timer": rnr_timer}, {"max_rd_atomic": reads}
        asks |= {"timeout": timeout, "retry_cnt": retries, "rnr_retry": rnr_retries}
        if self.kind == UC:
            takes, asks = {}, {}
        self.modify(verbs.QPS_RTR, **way, rq_psn=expects, **takes)
        self.modify(verbs.QPS_RTS, sq_psn=first, **asks)

    def handle_to(self, other: End) -> int:
        """An address handle, for datagrams."""
        return make("ibv_create_ah", self.domain, byref(self.way_to(other)))

    def sges(self, pieces: Sequence[tuple[int, int]], key: int | None = None) -> Any:
        given = (Sge * max(len(pieces), 1))()
        for sge, (offset, length) in zip(given, pieces, strict=False):
            sge.address, sge.length, sge.key = self.base + offset, length, self.lkey if key is None else key
        return given

    def post(
        self, opcode: int, wr_id: int, pieces: Sequence[tuple[int, int]], *, flags: int = SIGNALED, imm: int = 0,
        a: int = 0, b: int = 0, c: int = 0, d: int = 0, key: int | None = None,
    ) -> int:  # fmt: skip
        """A send request; the errno. `a` to `d`: see `SendWr`."""
        sges, bad = self.sges(pieces, key), c_void_p()
        request = SendWr(wr_id, None, ctypes.addressof(sges), len(pieces), opcode, flags, imm, a, b, c, d)
        return self.calls.post_send(self.qp, ctypes.addressof(request), ctypes.addressof(bad))

    def write(self, wr_id: int, pieces: Sequence[tuple[int, int]], far: End, at: int, **more: Any) -> int:
        """An RDMA WRITE to an offset of the far end's memory."""
        opcode = more.pop("opcode", WRITE)
        return self.post(opcode, wr_id, pieces, a=far.base + at, b=more.pop("rkey", far.rkey), **more)

    def read(self, wr_id: int, pieces: Sequence[tuple[int, int]], far: End, at: int, **more: Any) -> int:
        """An RDMA READ from there."""
        return self.write(wr_id, pieces, far, at, opcode=READ, **more)

    def atomic(self, opcode: int, wr_id: int, offset: int, far: End, at: int, operand: int, swap: int = 0) -> int:
        """What was there comes to `offset`."""
        return self.post(opcode, wr_id, [(offset, 8)], a=far.base + at, b=operand, c=swap, d=far.rkey)

    def receive(self, wr_id: int, pieces: Sequence[tuple[int, int]] = (), *, key: int | None = None) -> int:
        """A receive request; the errno."""
        sges, bad = self.sges(pieces, key), c_void_p()
        request = RecvWr(wr_id, None, ctypes.addressof(sges), len(pieces))
        return self.calls.post_receive(self.qp, ctypes.addressof(request), ctypes.addressof(bad))

    def poll(self, most: int = 64) -> list[Done]:
        found = (Wc * most)()
        count = self.calls.poll(self.queue, most, ctypes.addressof(found))
        assert count >= 0
        return [Done(w.wr_id, w.status, w.opcode, w.length, w.imm, w.src_qp, w.flags) for w in found[:count]]

    def wait(self, count: int, patience_s: float = PATIENCE_S) -> list[Done]:
        """So many completions, and no more of them than have come by then."""
        found: list[Done] = []
        end = time.monotonic() + patience_s
        while len(found) < count:
            more = self.poll()
            found += more
            assert more or time.monotonic() < end, f"{len(found)} of {count} completions came: {found[-4:]}"
            if not more:
                time.sleep(0.0005)
        return found

    def quiet(self, seconds: float = 0.05) -> list[Done]:
        """What comes meanwhile."""
        time.sleep(seconds)
        return self.poll()

    def arm(self, solicited_only: bool = False) -> None:
        assert self.calls.notify(self.queue, int(solicited_only)) == 0

    def told(self, patience_s: float) -> bool:
        """Whether the channel has an event, which is taken."""
        if not select.select([channel_fd(self.channel)], [], [], patience_s)[0]:
            return False
        queue, context = c_void_p(), c_void_p()
        call("ibv_get_cq_event", self.channel, byref(queue), byref(context))
        assert queue.value == self.queue
        ack_cq_events(self.queue, 1)
        return True

    def events(self, until: int | None = None, patience_s: float = PATIENCE_S) -> list[int]:
        """Asynchronous events that are there; `until`: wait for one of this type."""
        found: list[int] = []
        end = time.monotonic() + patience_s
        while until is None or until not in found:
            if not select.select([async_fd(self.context)], [], [], 0.05)[0]:
                if until is None:
                    break
                assert time.monotonic() < end, f"no event {until}, but {found}"
                continue
            event = AsyncEvent()
            call("ibv_get_async_event", self.context, byref(event))
            found.append(event.event_type)
            ack_async_event(byref(event))
        return found

    def number_at(self, offset: int) -> int:
        return int.from_bytes(self.bytes_at(offset, 8), "little")

    def close(self) -> None:
        for name, thing in (
            ("ibv_destroy_qp", self.qp), ("ibv_destroy_cq", self.queue), ("ibv_destroy_comp_channel", self.channel),
            ("ibv_dereg_mr", self.region), ("ibv_dealloc_pd", self.domain), ("ibv_close_device", self.context),
        ):  # fmt: skip
            call(name, thing)
        self._memory.close()


def payload(length: int, seed: int) -> bytes:
    """Bytes that depend on where they are and whose they are."""
    unit = bytes((i * 7 + i // 251 + seed * 13) % 256 for i in range(min(length, 251 * 256)))
    return (unit * (length // len(unit) + 1))[:length] if length else b""
