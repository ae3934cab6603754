"""What carries the native engine's frames: memory that ranks of a machine share, TCP, RDMA; and which NICs it joins.

All ranks open wires at the same time. Each gives what others need to reach it, and is given theirs.
"""

from __future__ import annotations

import ctypes
import errno
import hmac
import math
import mmap
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

import numpy as np

from optcc.errors import InputError
from optcc.machine.rdma import NicAddress
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Array
from optcc.runtime.devices.resident import BLOCKS, PART_BYTES, LentGpuMemory
from optcc.runtime.errors import PeerLostError, TransportError
from optcc.runtime.messages import Cause
from optcc.runtime.native.layout import Layout, Rates
from optcc.runtime.native.lent import Arena
from optcc.runtime.native.library import (
    NONE,
    TCP_HANDLE_BYTES,
    TCP_SECRET_BYTES,
    VERBS_HANDLE_BYTES,
    CauseOf,
    LinkOf,
    ResultOf,
    ShmConfig,
    TcpConfig,
    VerbsConfig,
    VerbsNic,
    WireEnds,
    demand,
    engine_library,
)


class GpuTuning(NamedTuple):
    """Of the engine between GPUs.

    segment : what is sent as one: each is some rounds between the host and the GPU
    window : what is not acknowledged on a wire, at most: GPUs fold many segments side by side, and say late that they
        have
    blocks, part : as of `ResidentFolder`
    """

    segment: int = 256 << 10
    window: int = 4 << 20
    blocks: int = BLOCKS
    part: int = PART_BYTES


SHARED_GPU = GpuTuning()
"""Where ranks may share a GPU, whose kernels all run at once. With segments of 64 KiB, a run of 4 ranks at 400 Gb/s
took nearly twice as long on an H200. With windows of 2 MiB a direct exchange of 49 steps with a lost NIC took 1.21 of
the bound on two, with 4 MiB 1.10, with 8 MiB 1.07; but nested rings, which take 1.045 with the first two, 1.064."""

UNDER_WAY = 64 << 20
"""Payloads under way to a rank, at most, in memory."""

RING_BYTES = 5 << 20
"""Of them from one rank to one NIC, at most."""

HEAD_BYTES = 4096
"""More than what a segment takes beside its payload."""

TOKEN_BYTES = 64
"""In front of the shared memory: what all ranks know of it, so that none takes other memory for it; a cache line."""

PATIENCE_S = 60.0
"""For all wires to be there, from when all ranks have come."""


@dataclass(frozen=True)
class Opening:
    """What wires are opened with.

    config : of the engine, without the job's number, which wires agree on
    exchange : an all-gather of JSON values over the ranks
    secret : what all ranks of the job know, and nobody else; empty: they are children of one process
    rates : of this rank's NICs, where they are played; lent : what other ranks of the machine may read where it lies
    """

    rank: int
    layout: Layout
    config: Any
    exchange: Callable[[Any], list[Any]]
    secret: bytes
    rates: Sequence[Rates]
    lent: Arena | None

    @property
    def ends(self) -> list[tuple[int, int, int, int]]:
        """This rank's wires, as (peer, NIC here, NIC there, lane)."""
        return self.layout.ends(self.rank)

    def of_job(self, job: int) -> Any:
        """The engine's configuration, of a job of this number."""
        self.config.job = job
        return byref(self.config)


def table_of(ends: Sequence[tuple[int, int, int, int]]) -> Any:
    """Wires as a C array."""
    return (WireEnds * max(1, len(ends)))(*(WireEnds(*end) for end in ends))


class NativeWires:
    """An engine over wires; closed by `close`. `ends` : of each wire, in the engine's order, as `Layout.ends` has them.

    nics : faults on purpose at this rank's NICs, as `FaultInjector` asks for them
    """

    engine: Any
    ends: list[tuple[int, int, int, int]]
    nics: Any

    def begin(self, memory: Array) -> Callable[[], object] | None:
        """A collective sends what is in this memory. Returns what to call once none runs. Raises TransportError for a
        bug."""
        return None

    def lend(self, gpu: Any, array: DeviceArray) -> None:
        """Until `close` the others read this rank's GPU memory where it lies. All ranks call it at the same time.

        The memory must stay until all ranks have closed. InputError where these wires cannot have it.
        """
        raise InputError("no NIC is given GPU memory yet", where="--device cuda", expected="--transport local")

    def lends(self, array: DeviceArray) -> bool:
        """Whether it has been lent."""
        return False

    def bug(self) -> str:
        """What no lost NIC explains; empty: nothing."""
        return ""

    def close(self) -> None:
        """Let go of all."""


class PlayedNics:
    """Faults on purpose at this rank's NICs, as `FaultInjector` asks for them. A NIC is its number in the layout.

    away : NIC whose link is down -> until when
    """

    def __init__(self, shm: Any, layout: Layout, rank: int) -> None:
        self._lib, self._shm, self._layout = engine_library(), shm, layout
        self._place = {number: place for place, number in enumerate(layout.of_rank[rank])}
        self.away: dict[int, float] = {}
        self.bug = ""

    def cut(self, nic: int, cause: Cause = Cause.PORT, detail: str = "link down") -> None:
        """Its link goes down, and it says so."""
        self.away[nic] = math.inf
        self._link(nic, LinkOf.DOWN, CauseOf.DEVICE if cause is Cause.DEVICE else CauseOf.PORT)

    def mend(self, nic: int, seconds: float) -> None:
        """Its link is back after so long."""
        self.away[nic] = time.monotonic() + seconds

    def come_back(self, now: float) -> float:
        """Links that are due are up again; returns when the next one is."""
        for nic, at in list(self.away.items()):
            if at <= now:
                del self.away[nic]
                self._link(nic, LinkOf.UP, CauseOf.PORT)
        return min(self.away.values(), default=math.inf)

    def fail_out(self, nic: int, cause: Cause = Cause.ERROR, detail: str = "retries exceeded") -> None:
        """It does not send, and says so."""
        self._link(nic, LinkOf.SENDS_NOT, CauseOf.DEVICE if cause is Cause.DEVICE else CauseOf.ERROR)

    def fail_in(self, nic: int) -> None:
        """It takes nothing in, which those who send to it notice."""
        self._link(nic, LinkOf.REFUSES, CauseOf.ERROR)

    def fail_nic(self, detail: str) -> None:
        """Something happens that no lost NIC can explain."""
        self.bug = detail

    def darken(self, nic: int, data: bool = True, acks: bool = True) -> None:
        """What enters or leaves by it disappears, and nobody says so."""
        demand(self._lib.optcc_shm_dark(self._shm, self._place[nic], NONE, 0, data, acks), "a black hole")

    def break_path(self, nic: int, far: int) -> None:
        """Likewise what goes between it and one NIC of another rank; both do as well as ever with others."""
        rank = self._layout.nics[far].rank
        there = self._layout.of_rank[rank].index(far)
        demand(self._lib.optcc_shm_dark(self._shm, self._place[nic], rank, there, 1, 1), "a broken path")

    def heal(self, nic: int) -> None:
        """The end of a black hole."""
        demand(self._lib.optcc_shm_dark(self._shm, self._place[nic], NONE, 0, 0, 0), "the end of a black hole")

    def held(self, nic: int) -> dict[int, int]:
        """How many frames have disappeared at it."""
        return {nic: self._lib.optcc_shm_dropped(self._shm, self._place[nic])}

    def slow(self, nic: int, part: float) -> None:
        """It goes on at a part of its rate."""
        demand(self._lib.optcc_shm_slow(self._shm, self._place[nic], part), "a slow NIC")

    def _link(self, nic: int, link: LinkOf, cause: CauseOf) -> None:
        demand(self._lib.optcc_shm_link(self._shm, self._place[nic], link, cause), "a NIC's link")


class SharedMemory:
    """Memory that all ranks of a job on this machine map, without a name for others; it ends with the last of them.

    Rank 0 makes it, the others open its descriptor by way of /proc, which needs the same user and the same processes
    to be seen.
    """

    def __init__(self, opening: Opening, nbytes: int) -> None:
        """Raises TransportError where it cannot be had, or another rank cannot see it."""
        self._map: mmap.mmap | None = None
        self._fd, size = -1, TOKEN_BYTES + nbytes
        try:
            if opening.rank == 0:
                self._fd = _made(size)
            mine = [os.getpid(), self._fd, secrets.token_hex(16)] if opening.rank == 0 else None
            pid, fd, token = opening.exchange(mine)[0]
            if opening.rank:
                self._fd = _opened(0, int(pid), int(fd))
            self._map, self.job = mmap.mmap(self._fd, size), int(str(token)[:16], 16)
            if opening.rank == 0:
                self._map[: len(str(token))] = str(token).encode()
            opening.exchange(None)
            if self._map[: len(str(token))] != str(token).encode():
                raise TransportError("the memory that ranks share is not that of this job: are all on one machine?")
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> int:
        """Of what the wires use."""
        assert self._map
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + TOKEN_BYTES

    def seen(self) -> None:
        """All ranks have mapped it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Let go of it."""
        self.seen()
        if self._map:
            self._map.close()
            self._map = None


class LentArenas:
    """What the ranks of a machine read where it lies: each maps the others' arenas, and lends its own."""

    def __init__(self, opening: Opening, shm: Any) -> None:
        """Where a rank cannot map another's, as under a limit of addresses (ulimit -v), nobody lends."""
        arena = opening.lent
        self._lib, self._shm = engine_library(), shm
        self.waits = arena
        """What is to be lent once there is an array in it; None: nothing is."""
        self._maps: list[tuple[int, int]] = []
        mine = [os.getpid(), arena.fd, arena.limit] if arena else None
        reached = True
        for rank, said in enumerate(opening.exchange(mine)):
            if rank != opening.rank and said:
                pid, fd, limit = said
                reached = reached and self._reach(rank, int(pid), int(fd), int(limit))
        if not all(opening.exchange(reached)):
            self.waits = None

    def _reach(self, rank: int, pid: int, number: int, limit: int) -> bool:
        fd = _opened(rank, pid, number)
        try:
            # By the C library: the module mmap maps no more than a file has now, and an arena grows.
            address = LIBC.mmap(None, limit, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        finally:
            os.close(fd)
        if address == MAP_FAILED:
            return False
        self._maps.append((address, limit))
        demand(self._lib.optcc_shm_reach(self._shm, rank, 0, address, limit), "memory that ranks lend")
        return True

    def lend(self, arena: Arena) -> None:
        """Lend it."""
        base, region = ctypes.addressof(ctypes.c_char.from_buffer(arena.bytes)), c_uint32()
        size = len(arena.bytes)
        demand(self._lib.optcc_shm_lend(self._shm, base, size, 1, byref(region)), "memory that ranks lend")
        self.waits = None

    def close(self) -> None:
        """Let go of the others'."""
        for address, size in self._maps:
            LIBC.munmap(address, size)
        self._maps.clear()


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype, LIBC.munmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
LIBC.mmap.argtypes = (*(ctypes.c_void_p, ctypes.c_size_t), *([ctypes.c_int] * 3), ctypes.c_long)
MAP_FAILED = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1


def _made(size: int) -> int:
    fd = os.memfd_create("optcc-wires")
    try:
        os.posix_fallocate(fd, 0, size)  # now, where it is an error that there is too little; later it were a SIGBUS
    except OSError as error:
        os.close(fd)
        what = f"too little memory: {size / 2**20:.3g} MiB that ranks share cannot be had: {error.strerror}"
        raise TransportError(what) from error
    return fd


def _opened(rank: int, pid: int, fd: int) -> int:
    """What rank `rank` has open. PeerLostError where its process is not there."""
    try:
        return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    except FileNotFoundError as error:
        why = "its process has ended, or cannot be seen from here, as from another container"
        raise PeerLostError(rank, why) from error
    except OSError as error:
        what = f"rank {rank}'s memory cannot be opened: {error.strerror}"
        raise TransportError(f"{what}; ranks of transport local are of one user and machine") from error


def _joined(layout: Layout) -> tuple[Array, Array]:
    """How many NICs each rank has, shape (ranks,); which ranks are joined, shape (ranks, ranks)."""
    joined = np.zeros((layout.ranks, layout.ranks), np.uint8)
    for low, high in layout.between:
        joined[low, high] = joined[high, low] = 1
    return np.array([len(mine) for mine in layout.of_rank], np.uint32), joined


def _ring_bytes(layout: Layout, segment_bytes: int) -> int:
    """Of a ring from one rank to one NIC: of all that lead to a rank, `UNDER_WAY` in sum."""
    nics, joined = _joined(layout)
    most_into = max(1, int((joined.sum(axis=0) * nics).max(initial=1)))
    return min(RING_BYTES, max(4 * (segment_bytes + HEAD_BYTES), UNDER_WAY // most_into)) // 64 * 64


def shared_bytes(layout: Layout) -> int:
    """What all ranks of a machine share, for what is under way between them."""
    nics, joined = _joined(layout)
    ring_bytes = _ring_bytes(layout, layout.segment_bytes)
    config = ShmConfig(ranks=layout.ranks, nics=nics.ctypes.data, joined=joined.ctypes.data, ring_bytes=ring_bytes)
    return int(engine_library().optcc_shm_bytes(byref(config)))


class ShmWires(NativeWires):
    """Between ranks of one machine, over NICs that are played."""

    def __init__(self, opening: Opening) -> None:
        """Raises TransportError where memory cannot be shared."""
        self._lib, self.ends = engine_library(), opening.ends
        config = self._config(opening)
        self._memory = SharedMemory(opening, self._lib.optcc_shm_bytes(byref(config)))
        self._shm: Any = c_void_p()
        self.engine = c_void_p()
        self._lent: LentArenas | None = None
        self._on_gpu: LentGpuMemory | None = None
        self._rank, self._exchange = opening.rank, opening.exchange
        try:
            opened = self._lib.optcc_shm_open(byref(config), self._memory.address, byref(self._shm))
            demand(opened, "wires through shared memory")
            self._lent = LentArenas(opening, self._shm)
            engine = opening.of_job(self._memory.job)
            demand(self._lib.optcc_shm_engine(self._shm, engine, byref(self.engine)), "the engine")
            self.nics = PlayedNics(self._shm, opening.layout, opening.rank)
            opening.exchange(None)
            self._memory.seen()
            demand(self._lib.optcc_shm_peek(self._shm), "memory for what is read of other ranks")
        except BaseException:
            self.close()
            raise

    def _config(self, opening: Opening) -> Any:
        layout = opening.layout
        nics, joined = _joined(layout)
        table = table_of(self.ends)
        out_rates = np.array([rate.out for rate in opening.rates])
        in_rates = np.array([rate.into for rate in opening.rates])
        self._kept = nics, joined, table, out_rates, in_rates
        return ShmConfig(
            rank=opening.rank,
            ranks=layout.ranks,
            nics=nics.ctypes.data,
            joined=joined.ctypes.data,
            ring_bytes=_ring_bytes(layout, opening.config.segment_bytes),
            wires=len(self.ends),
            wire=ctypes.addressof(table),
            out_rates=out_rates.ctypes.data,
            in_rates=in_rates.ctypes.data,
        )

    def begin(self, memory: Array) -> Callable[[], object] | None:
        """See NativeWires."""
        if self.nics.bug:
            raise TransportError(self.nics.bug)
        assert self._lent
        arena = self._lent.waits
        if arena and len(arena.bytes):
            self._lent.lend(arena)
        return None

    def lend(self, gpu: Any, array: DeviceArray) -> None:
        """See NativeWires."""
        if not self._on_gpu:
            self._on_gpu = LentGpuMemory(self._lib, gpu, self._shm, self._rank, self._exchange)
        self._on_gpu.lend(array)

    def lends(self, array: DeviceArray) -> bool:
        """See NativeWires."""
        return self._on_gpu is not None and self._on_gpu.lends(array)

    @property
    def lent(self) -> int:
        """How many payloads have been read where they lie, so far."""
        return int(self._lib.optcc_shm_lent(self._shm))

    @property
    def peeked(self) -> int:
        """The same in memory that was not lent, which the kernel reads."""
        return int(self._lib.optcc_shm_peeked(self._shm))

    def bug(self) -> str:
        """See NativeWires."""
        return str(self.nics.bug)

    def close(self) -> None:
        """See NativeWires."""
        if self.engine:
            self._lib.optcc_close(self.engine)
        if self._on_gpu:
            self._on_gpu.let_go()
        if self._shm:
            self._lib.optcc_shm_close(self._shm)
        self.engine = self._shm = self._on_gpu = None
        for memory in (self._lent, self._memory):
            if memory:
                memory.close()


class RealNics:
    """Faults on purpose that can be had of NICs that are not played: none."""

    away: Mapping[int, float] = {}

    def come_back(self, now: float) -> float:
        """None is away."""
        return math.inf

    def held(self, nic: int) -> dict[int, int]:
        """Nobody counts what disappears."""
        return {}

    def __getattr__(self, name: str) -> Any:
        if name not in ("cut", "mend", "darken", "heal", "slow", "fail_out", "fail_in", "fail_nic"):
            raise AttributeError(name)
        raise InputError(
            "this cannot be done to these NICs from here",
            where="fault",
            expected="--kill or --pause, which can; or --transport local, whose NICs are played",
            got=name,
        )


class QueuePairNics(RealNics):
    """Faults that any machine can do to its own RDMA NICs: a NIC is cut off by putting its queue pairs into error."""

    def __init__(self) -> None:
        self.wires: QueuePairWires | None = None

    def cut(self, nic: int, cause: Cause = Cause.PORT, detail: str = "link down") -> None:
        """All its queue pairs fail, for good; this end says so."""
        assert self.wires
        self.wires.cut(nic, cause)


class NetworkNics(RealNics):
    """Faults of the lab's NICs, or a played fabric's: their links and packets can be spoilt.

    numbers : NIC in the layout -> its number among its host's; bits : its rate
    """

    def __init__(self, network: Any, numbers: Mapping[int, int], bits: Mapping[int, float]) -> None:
        self._network, self._numbers, self._bits = network, numbers, bits

    def cut(self, nic: int, cause: Cause = Cause.PORT, detail: str = "link down") -> None:
        """Its link goes down."""
        if cause is not Cause.PORT:
            raise InputError("a link can be cut here, no device", where="fault", got=detail)
        self._network.cut(self._numbers[nic])

    def mend(self, nic: int, seconds: float) -> None:
        """Its link is back after so long."""
        threading.Timer(seconds, self._network.restore, (self._numbers[nic],)).start()

    def darken(self, nic: int, data: bool = True, acks: bool = True) -> None:
        """What enters or leaves by it disappears, and nobody says so; or one kind of packets alone."""
        self._network.lose(self._numbers[nic], "both", "all" if data and acks else "data" if data else "acks")

    def heal(self, nic: int) -> None:
        """The end of a black hole."""
        self._network.heal(self._numbers[nic])

    def slow(self, nic: int, part: float) -> None:
        """It goes on at a part of its rate."""
        self._network.rate(self._numbers[nic], self._bits[nic] * part)


class TcpWires(NativeWires):
    """Between machines, a connection for each pair of NICs, from the address of the one to that of the other."""

    def __init__(self, opening: Opening, addresses: Sequence[tuple[IPv4Address | IPv6Address, int]]) -> None:
        """addresses : of this rank's NICs, with the number of the interface for one of its link.

        Raises TransportError where a NIC cannot listen, or a peer is not reached by any of its NICs in time.
        """
        self._lib, self.nics = engine_library(), RealNics()
        self._tcp: Any = c_void_p()
        self.engine = c_void_p()
        config = TcpConfig(
            rank=opening.rank,
            ranks=opening.layout.ranks,
            nics=len(addresses),
            segment_bytes=opening.config.segment_bytes,
        )
        for place, (address, scope) in enumerate(addresses):
            config.address[place].family, config.address[place].scope = address.version, scope
            config.address[place].bytes[: len(address.packed)] = address.packed
        nonce = secrets.token_bytes(TCP_SECRET_BYTES) if opening.rank == 0 else b""
        nonce = bytes.fromhex(opening.exchange(nonce.hex())[0])
        config.secret[:] = _secret(opening.secret, nonce)
        opened = self._lib.optcc_tcp_open(byref(config), byref(self._tcp))
        if opened != ResultOf.OK:
            where = ", ".join(str(address) for address, _ in addresses)
            why = os.strerror(ctypes.get_errno() or errno.EADDRNOTAVAIL)
            raise TransportError(f"this rank's NICs cannot listen at {where}: {why}")
        try:
            self._join(opening)
            engine = opening.of_job(int.from_bytes(nonce[:8], "little"))
            demand(self._lib.optcc_tcp_engine(self._tcp, engine, byref(self.engine)), "the engine")
            opening.exchange(None)
        except BaseException:
            self.close()
            raise

    def _join(self, opening: Opening) -> None:
        room, length = ctypes.create_string_buffer(TCP_HANDLE_BYTES), c_uint32(TCP_HANDLE_BYTES)
        demand(self._lib.optcc_tcp_handle(self._tcp, room, byref(length)), "how others reach this rank")
        handles = [bytes.fromhex(said) for said in opening.exchange(room.raw[: length.value].hex())]
        self.ends = []
        for peer in sorted({end[0] for end in opening.ends}):
            mine = [end for end in opening.ends if end[0] == peer]
            joined = self._lib.optcc_tcp_join(
                self._tcp, peer, handles[peer], len(handles[peer]), table_of(mine), len(mine)
            )
            demand(joined, f"wires to rank {peer}")
            self.ends += mine
        end = time.monotonic() + PATIENCE_S
        while self._lib.optcc_tcp_ready(self._tcp) == ResultOf.AGAIN and time.monotonic() < end:
            select.select([self._lib.optcc_tcp_fd(self._tcp)], [], [], 0.01)

    def close(self) -> None:
        """See NativeWires."""
        if self.engine:
            end = time.monotonic() + 1
            while self._lib.optcc_tcp_sent(self._tcp) == ResultOf.AGAIN and time.monotonic() < end:
                self._lib.optcc_progress(self.engine)
            self._lib.optcc_close(self.engine)
        if self._tcp:
            self._lib.optcc_tcp_close(self._tcp)
        self.engine = self._tcp = None


def _secret(secret: bytes, nonce: bytes) -> bytes:
    """Of these wires alone. Children of one process talk to it over pairs of sockets, where a number is a secret."""
    return hmac.digest(secret, nonce, "sha256") if secret else nonce


class QueuePairWires(NativeWires):
    """RDMA: a queue pair for each pair of NICs; payloads are read by NICs where they lie."""

    AHEAD = 64
    """Payloads that a NIC may have, unacknowledged; what lies in front of it is limited by its rate. With 16, NICs of
    10 Gb/s were idle while what they had sent waited in front of another one (1.09 of a bound in the lab where 64 took
    1.06); half or twice as many were not tried."""
    TIMEOUT, RETRIES = 16, 6
    """A packet is sent again when no acknowledgement has come for 4.096 us x 2^TIMEOUT, a
    quarter of a second, more than all that was posted takes; so often, then the wire is lost."""

    def __init__(self, opening: Opening, devices: Mapping[int, NicAddress], nics: Any) -> None:
        """devices : by place of a NIC in this rank; those that are missing are lost; nics : see NativeWires."""
        self._lib, self.ends, self.nics = engine_library(), opening.ends, nics
        self._place = {number: place for place, number in enumerate(opening.layout.of_rank[opening.rank])}
        if isinstance(nics, QueuePairNics):
            nics.wires = self
        self._verbs: Any = c_void_p()
        self.engine = c_void_p()
        count, table = len(opening.layout.of_rank[opening.rank]), table_of(self.ends)
        rates = [opening.layout.nics[number].out_rate for number in opening.layout.of_rank[opening.rank]]
        nic = (VerbsNic * max(1, count))()
        for place, rate in enumerate(rates):
            a = devices.get(place, NicAddress("missing"))
            gid = -1 if a.gid_index is None else a.gid_index
            nic[place] = VerbsNic(a.device.encode(), a.port, gid, int(rate) if math.isfinite(rate) else 0)
        config = VerbsConfig(
            rank=opening.rank,
            ranks=opening.layout.ranks,
            nics=count,
            wires=len(self.ends),
            nic=ctypes.addressof(nic),
            wire=ctypes.addressof(table),
            segment_bytes=opening.config.segment_bytes,
            window_bytes=opening.config.window_bytes,
            ahead=self.AHEAD,
            timeout=self.TIMEOUT,
            retries=self.RETRIES,
        )
        try:
            self._done(self._lib.optcc_verbs_open(byref(config), byref(self._verbs)))
            peers = sorted({end[0] for end in self.ends})
            told = opening.exchange([secrets.token_hex(8), {str(peer): self._handle(peer) for peer in peers}])
            for peer in peers:
                handle = bytes.fromhex(told[peer][1][str(opening.rank)])
                self._done(self._lib.optcc_verbs_join(self._verbs, peer, handle, len(handle)))
            engine = opening.of_job(int(told[0][0], 16))
            self._done(self._lib.optcc_verbs_engine(self._verbs, engine, byref(self.engine)))
            opening.exchange(None)
        except BaseException:
            self.close()
            raise

    def _handle(self, peer: int) -> str:
        room, length = ctypes.create_string_buffer(VERBS_HANDLE_BYTES), c_uint64(VERBS_HANDLE_BYTES)
        self._done(self._lib.optcc_verbs_handle(self._verbs, peer, room, byref(length)))
        return room.raw[: length.value].hex()

    def _done(self, result: int) -> None:
        if result == ResultOf.MEMORY:
            raise MemoryError("wires over queue pairs")
        if result != ResultOf.OK:
            raise TransportError(self._lib.optcc_verbs_why().decode())

    def begin(self, memory: Array) -> Callable[[], object] | None:
        """See NativeWires."""
        if bug := self.bug():
            raise TransportError(bug)
        if not memory.nbytes:
            return None
        at = memory.ctypes.data
        self._done(self._lib.optcc_verbs_register(self._verbs, at, memory.nbytes))
        return partial(self._lib.optcc_verbs_unregister, self._verbs, at)

    def cut(self, nic: int, cause: Cause) -> None:
        """The queue pairs of a NIC, a number of the layout, fail, for good; cause DEVICE: the device with them."""
        demand(self._lib.optcc_verbs_cut(self._verbs, self._place[nic], cause is Cause.DEVICE), "a cut NIC")

    def bug(self) -> str:
        """See NativeWires."""
        said = self._lib.optcc_verbs_fault(self._verbs)
        return said.decode() if said else ""

    def close(self) -> None:
        """See NativeWires."""
        if self.engine:
            self._lib.optcc_close(self.engine)
        if self._verbs:
            self._lib.optcc_verbs_close(self._verbs)
        self.engine = self._verbs = None
