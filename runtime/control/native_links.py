"""What joins one rank to the others by the native engine: wires through memory that ranks share, schedules over them.

Any piece of a transfer goes by any wire between its two ranks, and a NIC that is free takes the next. So there is no
flow to be moved or cut anew when a NIC is lost, and one set of wires serves every schedule between the same ranks.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import secrets
import select
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_uint32, c_void_p
from typing import Any

import numpy as np

from optcc.runtime.control.channel import Control
from optcc.runtime.control.fault_injection import FaultInjector
from optcc.runtime.control.links import Hardware
from optcc.runtime.devices.host import Array, Op, name_of
from optcc.runtime.errors import (
    CallsDifferError,
    FlowSeveredError,
    NicsLostError,
    PeerLateError,
    TransportError,
)
from optcc.runtime.flows.timeouts import Timeouts
from optcc.runtime.forks import own
from optcc.runtime.messages import Note, Strike
from optcc.runtime.native.library import (
    MAX_LANES,
    MAX_NICS,
    NEVER,
    NONE,
    OPS,
    TYPES,
    Call,
    CauseOf,
    Config,
    Link,
    Missing,
    NativeProgram,
    Noted,
    NoteOf,
    Result,
    ShmConfig,
    Until,
    WireEnds,
    WireState,
    demand,
    engine_library,
)
from optcc.runtime.wires.contract import Cause
from optcc.runtime.wires.layout import Layout
from optcc.runtime.wires.lent import Arena
from optcc.schedule import Schedule

SEGMENT_BYTES = (8 << 10, 256 << 10)
"""The least and the most that is sent as one: of less, what a segment costs beside its bytes is a tenth of it; more
keeps a NIC busy, after it is lost or when another row should go first, for longer than it takes to notice."""

PIECES = 8
"""A row has at least so many segments for each NIC that carries it: who is free takes the next, so NICs end an eighth
of a row apart at most. Half of that leaves a sixteenth more of the time to the slowest NIC."""

WINDOW_BYTES = 512 << 10
"""Not acknowledged on a wire, at most: two of the largest segments, so that one is under way while one is folded."""

UNDER_WAY = 64 << 20
"""Payloads under way to a rank, at most, in memory."""

RING_BYTES = 2 << 20
"""Of them from one rank to one NIC, at most."""

SPIN_NS = 50_000
"""A rank looks for so long before it sleeps where every rank has a core; else it sleeps at once: another needs it."""

NAP_S = 0.001
"""The first pause between two looks at the wires while no operation runs; the later ones are longer, `LONG_NAP_S` at
most, for a peer may wait for an answer."""
LONG_NAP_S = 0.005

SUSPECT_S, GRACE_S = 0.1, 0.15
"""A wire that moves nothing for so long is doubted; it is left when other wires, and it not, have brought the peer's
answers for so long. Both are longer where NICs are so slow that payloads wait in front of them for a quarter of it.
Half of either finds a black hole sooner; a process that gets no processor for so long would be asked for nothing."""

KNOCK_S = 0.01
"""The first pause before a lost wire is tried again, up to 16 times as long later."""

TOKEN_BYTES = 64
"""In front of the shared memory: what all ranks know of it, so that none takes other memory for it; a cache line."""

CAUSES = {
    CauseOf.PORT: Cause.PORT,
    CauseOf.ERROR: Cause.ERROR,
    CauseOf.CLOSED: Cause.CLOSED,
    CauseOf.DEVICE: Cause.DEVICE,
    CauseOf.TOLD: Cause.NOTICE,
    CauseOf.SILENCE: Cause.PROGRESS,
}
OWN = (CauseOf.PORT, CauseOf.DEVICE)
"""Causes that say that it is the NIC here."""


class Lanes:
    """Which NICs of which ranks are joined, the same on all ranks.

    Attributes
    ----------
    nics : by rank, the numbers of its NICs in the layout
    between : (lower rank, higher one) -> lanes, as (NIC of the lower, NIC of the higher), numbers within their ranks
    """

    def __init__(self, layout: Layout) -> None:
        """Raises TransportError where a rank has more NICs than the engine serves."""
        self.layout = layout
        self.nics: list[list[int]] = [[] for _ in range(layout.ranks)]
        for number, port in enumerate(layout.nics):
            self.nics[port.rank].append(number)
        if max(map(len, self.nics)) > MAX_NICS:
            raise TransportError(f"a rank with {max(map(len, self.nics))} NICs: the engine serves up to {MAX_NICS}")
        self._place = {number: place for mine in self.nics for place, number in enumerate(mine)}
        self._of_name = {port.name: number for number, port in enumerate(layout.nics)}
        self.between: dict[tuple[int, int], list[tuple[int, int]]] = {}
        homes = [layout.wires[flow.wires[0]] for flow in layout.flows]
        for wire in [*homes, *layout.wires]:  # those that plans use first: there may be too many
            ends = self._ends(wire.src, wire.dst, wire.out, wire.into)
            lanes = self.between.setdefault((min(wire.src, wire.dst), max(wire.src, wire.dst)), [])
            if ends not in lanes and len(lanes) < MAX_LANES:
                lanes.append(ends)

    def _ends(self, src: int, dst: int, out: int, into: int) -> tuple[int, int]:
        ends = self._place[out], self._place[into]
        return ends if src < dst else ends[::-1]

    def of(self, rank: int) -> list[tuple[int, int, int, int]]:
        """The rank's wires, as (peer, NIC here, NIC there, lane)."""
        made = []
        for (low, high), lanes in self.between.items():
            for lane, (mine, theirs) in enumerate(lanes):
                if rank == low:
                    made.append((high, mine, theirs, lane))
                elif rank == high:
                    made.append((low, theirs, mine, lane))
        return made

    def words(self, schedule: Schedule) -> Array:
        """By route, a bit for each of its lanes; 0, which is all, where one of them was left out."""
        number = [self._of_name[port.name] for port in schedule.ports]
        words = np.zeros(len(schedule.routes), np.uint64)
        for i, route in enumerate(schedule.routes):
            lanes = self.between[min(route.src, route.dst), max(route.src, route.dst)]
            ends = [self._ends(route.src, route.dst, number[lane.out], number[lane.into]) for lane in route.lanes]
            if all(each in lanes for each in ends):
                words[i] = sum({1 << lanes.index(each) for each in ends})
        return words


def segment_bytes(schedules: Mapping[str, Schedule]) -> int:
    """The length of segments that suits these schedules, the same on all ranks."""
    pieces = [
        length / (PIECES * len(schedule.routes[route].lanes))
        for schedule in schedules.values()
        if len(schedule)
        for route, length in (_longest(schedule),)
    ]
    least, most = SEGMENT_BYTES
    return min(most, max(least, 1 << int(math.log2(max([1.0, *pieces])))))


def _longest(schedule: Schedule) -> tuple[int, int]:
    """(route, length) of the longest row."""
    row = int(schedule.length.argmax())
    return int(schedule.route[row]), int(schedule.length[row])


class PlayedNics:
    """Faults on purpose at this rank's NICs, as `FaultInjector` asks for them. A NIC is its number in the layout.

    away : NIC whose link is down -> until when
    """

    def __init__(self, shm: Any, place: Mapping[int, int], lanes: Lanes) -> None:
        self._lib, self._shm, self._place, self._lanes = engine_library(), shm, place, lanes
        self.away: dict[int, float] = {}
        self.bug = ""

    def cut(self, nic: int, cause: Cause = Cause.PORT, detail: str = "link down") -> None:
        """Its link goes down, and it says so."""
        self.away[nic] = math.inf
        self._link(nic, Link.DOWN, CauseOf.DEVICE if cause is Cause.DEVICE else CauseOf.PORT)

    def mend(self, nic: int, seconds: float) -> None:
        """Its link is back after so long."""
        self.away[nic] = time.monotonic() + seconds

    def come_back(self, now: float) -> float:
        """Links that are due are up again; returns when the next one is."""
        for nic, at in list(self.away.items()):
            if at <= now:
                del self.away[nic]
                self._link(nic, Link.UP, CauseOf.PORT)
        return min(self.away.values(), default=math.inf)

    def fail_out(self, nic: int, cause: Cause = Cause.ERROR, detail: str = "retries exceeded") -> None:
        """It does not send, and says so."""
        self._link(nic, Link.SENDS_NOT, CauseOf.DEVICE if cause is Cause.DEVICE else CauseOf.ERROR)

    def fail_in(self, nic: int) -> None:
        """It takes nothing in, which those who send to it notice."""
        self._link(nic, Link.REFUSES, CauseOf.ERROR)

    def fail_nic(self, detail: str) -> None:
        """Something happens that no lost NIC can explain."""
        self.bug = detail

    def darken(self, nic: int, data: bool = True, acks: bool = True) -> None:
        """What enters or leaves by it disappears, and nobody says so."""
        demand(self._lib.optcc_shm_dark(self._shm, self._place[nic], NONE, 0, data, acks), "a black hole")

    def break_path(self, nic: int, far: int) -> None:
        """Likewise what goes between it and one NIC of another rank; both do as well as ever with others."""
        rank = self._lanes.layout.nics[far].rank
        there = self._lanes.nics[rank].index(far)
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

    def _link(self, nic: int, link: Link, cause: CauseOf) -> None:
        demand(self._lib.optcc_shm_link(self._shm, self._place[nic], link, cause), "a NIC's link")


class SharedMemory:
    """Memory that all ranks of a job on this machine map, without a name for others; it ends with the last of them.

    Rank 0 makes it, the others open its descriptor by way of /proc, which needs the same user and the same processes
    to be seen.
    """

    def __init__(self, control: Control, nbytes: int) -> None:
        """Raises TransportError where it cannot be had, or another rank cannot see it."""
        self._map: mmap.mmap | None = None
        self._fd, size = -1, TOKEN_BYTES + nbytes
        try:
            if control.rank == 0:
                self._fd = _made(size)
            mine = [os.getpid(), self._fd, secrets.token_hex(16)] if control.rank == 0 else None
            pid, fd, token = control.exchange(mine)[0]
            if control.rank:
                self._fd = _opened(int(pid), int(fd))
            self._map, self.job = mmap.mmap(self._fd, size), int(str(token)[:16], 16)
            if control.rank == 0:
                self._map[: len(str(token))] = str(token).encode()
            control.exchange(None)
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


class LentMemory:
    """What the ranks of a machine read where it lies: each maps the others' arenas, and lends its own."""

    def __init__(self, control: Control, shm: Any, arena: Arena | None) -> None:
        """Where a rank cannot map another's, as under a limit of addresses (ulimit -v), nobody lends."""
        self._lib, self._shm, self._arena, self._lends = engine_library(), shm, arena, False
        self._maps: list[tuple[int, int]] = []
        mine = [os.getpid(), arena.fd, arena.limit] if arena else None
        reached = True
        for rank, said in enumerate(control.exchange(mine)):
            if rank != control.rank and said:
                pid, fd, limit = said
                reached = reached and self._reach(rank, int(pid), int(fd), int(limit))
        if not all(control.exchange(reached)):
            self._arena = None

    def _reach(self, rank: int, pid: int, number: int, limit: int) -> bool:
        fd = _opened(pid, number)
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

    def lend(self) -> None:
        """From the first array on."""
        if self._arena and not self._lends and len(self._arena.bytes):
            base, region = ctypes.addressof(ctypes.c_char.from_buffer(self._arena.bytes)), c_uint32()
            size = len(self._arena.bytes)
            demand(self._lib.optcc_shm_lend(self._shm, base, size, 1, byref(region)), "memory that ranks lend")
            self._lends = True

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


def _opened(pid: int, fd: int) -> int:
    try:
        return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    except OSError as error:
        what = (
            f"rank 0's memory cannot be opened: {error.strerror}; ranks of transport local are of one user and machine"
        )
        raise TransportError(what) from error


class NativeRun:
    """One operation, as whoever starts it sees it."""

    def __init__(self, links: NativeLinks, program: NativeProgram) -> None:
        self._links, self._program = links, program

    def serve(self, until: float) -> None:
        """One wait, and what peers ask."""
        self._links.poll(until)

    def landings(self) -> dict[int, float]:
        """When each transfer that this rank received has landed and been folded."""
        return self._program.landings()


class NativeLinks:
    """As `Links`, for ranks of one machine and buffers in host memory."""

    def __init__(
        self,
        transport: str,
        control: Control,
        path: Any,
        timeouts: Timeouts,
        *,
        memory: Any = None,
        hardware: Hardware | None = None,
        paced: bool = False,
        moving: bool = False,
        farewell: Callable[[], None] = lambda: None,
    ) -> None:
        self._lib, self._control, self._timeouts = engine_library(), control, timeouts
        self._rank = control.rank
        self._hardware, self._paced, self._moving, self._farewell = hardware, paced, moving, farewell
        self._shm: Any = None
        self._engine: Any = None
        self._memory: SharedMemory | None = None
        self._lent: LentMemory | None = None
        self._away: dict[str, float] = {}
        self._strikes: list[Strike] = []
        self._healing: list[tuple[float, int]] = []
        self._injector: FaultInjector | None = None
        self._journal: list[Note] = []
        self._noted = (NoteOf * 256)()
        self._down: set[int] = set()  # NICs of this rank, by place
        self._nap_s = NAP_S
        self._before: Array = np.zeros(0, np.uint64)
        self._kept: list[Any] = []

    @property
    def up(self) -> bool:
        """Whether there are any."""
        return self._engine is not None

    # --- making and ending -------------------------------------------------------------------------------------------

    def connect(self, layout: Layout, schedules: Mapping[str, Schedule], lent: Arena | None = None) -> None:
        """Wires for these schedules, of the same layout on all ranks. lent : what other ranks may read where it lies"""
        self.layout, self._lanes = layout, Lanes(layout)
        mine = self._lanes.nics[self._rank]
        self._place = {number: place for place, number in enumerate(mine)}
        self._segment = segment_bytes(schedules)
        self._wires = self._lanes.of(self._rank)
        config, self._kept = self._shm_config()
        needed = self._lib.optcc_shm_bytes(byref(config))
        self._memory = SharedMemory(self._control, needed)
        own(self, NativeLinks._let_go)
        shm, engine = c_void_p(), c_void_p()
        demand(self._lib.optcc_shm_open(byref(config), self._memory.address, byref(shm)), "wires through shared memory")
        self._shm = shm
        self._lent = LentMemory(self._control, shm, lent)
        demand(self._lib.optcc_shm_engine(shm, byref(self._config(self._memory.job)), byref(engine)), "the engine")
        self._engine = engine
        self._down.clear()
        self._nics = PlayedNics(shm, self._place, self._lanes)
        for number in mine:
            name = layout.nics[number].name
            if name in self._away:
                self._nics.cut(number)
                self._nics.mend(number, self._away[name] - time.monotonic())
        self._healing = (self._hardware or Hardware()).strike(self._nics, layout.nics)
        self._control.exchange(None)
        self._memory.seen()

    def _shm_config(self) -> tuple[Any, list[Any]]:
        lanes, ranks = self._lanes, self.layout.ranks
        nics = np.array([len(mine) for mine in lanes.nics], np.uint32)
        joined = np.zeros((ranks, ranks), np.uint8)
        for low, high in lanes.between:
            joined[low, high] = joined[high, low] = 1
        ends = (WireEnds * max(1, len(self._wires)))(*(WireEnds(*wire) for wire in self._wires))
        mine = [self.layout.nics[number] for number in lanes.nics[self._rank]]
        rates = (self._hardware or Hardware()).rates_of(mine, self._paced)
        out_rates, in_rates = np.array([rate.out for rate in rates]), np.array([rate.into for rate in rates])
        most_into = int((joined.sum(axis=0) * nics).max(initial=1)) or 1
        whole = self._segment + 4096
        ring = min(RING_BYTES, max(4 * whole, UNDER_WAY // most_into)) // 64 * 64
        kept = [nics, joined, ends, out_rates, in_rates]
        return (
            ShmConfig(
                rank=self._rank,
                ranks=ranks,
                nics=nics.ctypes.data,
                joined=joined.ctypes.data,
                ring_bytes=ring,
                wires=len(self._wires),
                wire=ctypes.addressof(ends),
                out_rates=out_rates.ctypes.data,
                in_rates=in_rates.ctypes.data,
            ),
            kept,
        )

    def _config(self, job: int) -> Any:
        second, window = 10**9, max(WINDOW_BYTES, 2 * self._segment)
        rates = [rate for port in self.layout.nics for rate in (port.out_rate, port.in_rate) if rate > 0]
        queue_s = self.layout.ranks * window / min(rates) if self._paced and rates else 0.0
        longer = max(1.0, 4 * queue_s / SUSPECT_S)
        crowded = self.layout.ranks > len(os.sched_getaffinity(0))
        return Config(
            segment_bytes=self._segment,
            window_bytes=window,
            job=job,
            suspect_ns=int(SUSPECT_S * longer * second),
            grace_ns=int(GRACE_S * longer * second),
            knock_ns=int(KNOCK_S * second),
            return_ns=NEVER // 4,  # a rank that is stopped is late, not lost: who is lost others say
            alone_ns=max(1, int(min(self._timeouts.back, 1e9) * second)),
            spin_ns=0 if crowded else SPIN_NS,
        )

    def close(self) -> None:
        """Let go of all; what others ask is answered no more."""
        if self._engine:
            self._take_notes()
            self._away = {self.layout.nics[nic].name: at for nic, at in self._nics.away.items() if math.isfinite(at)}
            self._lib.optcc_abandon(self._engine, 10**9)
            self._lib.optcc_close(self._engine)
            self._lib.optcc_shm_close(self._shm)
        for memory in (self._lent, self._memory):
            if memory:
                memory.close()
        self._engine = self._shm = self._memory = self._lent = self._injector = None

    def _let_go(self) -> None:
        """In a forked child: what is shared stays as it is."""
        self._engine = self._shm = self._injector = None

    # --- operations --------------------------------------------------------------------------------------------------

    def program(self, schedule: Schedule, itemsize: int) -> NativeProgram:
        """This rank's part of a schedule whose ranks are joined."""
        return NativeProgram.of(schedule, self._rank, self._lanes.words(schedule), self._segment)

    def learn(self, name: str, schedule: Schedule, lanes: Sequence[tuple[int, ...]]) -> None:
        """Any schedule between ranks that are joined can run."""

    def look_at_clock(self) -> float:
        """The time of the monotonic clock."""
        return time.monotonic()

    def run(
        self,
        name: str,
        program: NativeProgram,
        buffer: Array,
        op: Op,
        sign: int,
        *,
        within_s: float,
        linger: bool = True,
        parts: Array | None = None,
        start: Callable[[Any], None] | None = None,
    ) -> None:
        """The collective itself, in place on `buffer`, shape (elements,). PeerLateError when it is not done in time.

        parts : what is sent is read from here: to rank p the p-th part, as long as the transfer
        start : called once all is ready, before the first byte is sent
        """
        assert self._lent
        self._lent.lend()
        self._injector = self._injector_of()
        self._before = self._sent()
        if start:
            start(NativeRun(self, program))
        call = Call(
            buffer=buffer.ctypes.data,
            parts=None if parts is None else parts.ctypes.data,
            type=TYPES.index(name_of(buffer.dtype)),
            op=OPS.index(op),
            sign=sign,
        )
        demand(self._lib.optcc_begin(self._engine, program.pointer, byref(call)), "a collective")
        try:
            self._go_on(within_s)
        except BaseException:
            self._lib.optcc_abandon(self._engine, 10**9)
            raise
        if self._injector:
            self._injector.finish()

    def _go_on(self, within_s: float) -> None:
        end, seen = time.monotonic() + within_s, -1
        done, rows = c_uint32(), c_uint32()
        while True:
            self._lib.optcc_done(self._engine, byref(done), byref(rows))
            progress, total = done.value, max(1, rows.value)
            if self._injector and rows.value:
                self._injector.look(min(progress, total - 1) / total)
            now = time.monotonic()
            if self._moving and progress != seen:
                seen, end = progress, now + within_s
            if self._nics.bug:
                raise TransportError(self._nics.bug)
            wake = min(end, self._tend(now))
            until = Until(max(0, int((wake - now) * 1e9)), self._due(total), self._control.fileno())
            result = self._lib.optcc_wait(self._engine, byref(until))
            if result == Result.OK:
                return
            if result in (Result.LOST, Result.DIFFERS):
                self._failed(result)
            self._control.check()
            if time.monotonic() >= end:
                self._late(within_s)

    def _due(self, total: int) -> int:
        """At how many rows the next strike is due."""
        at = self._injector.due() if self._injector else math.inf
        if self._moving and not math.isfinite(at):
            return NEVER
        return NEVER if not math.isfinite(at) else min(total - 1, max(0, math.ceil(at * total)))

    def _tend(self, now: float) -> float:
        """What is due by time; when the next is."""
        wake, away = math.inf, [*self._nics.away]
        if away:
            wake = self._nics.come_back(now)
            up = [self.layout.nics[nic].name for nic in away if nic not in self._nics.away]
            self._journal += [Note(now, "nic up", name) for name in up]
        return min(wake, self._injector.wake()) if self._injector else wake

    def _failed(self, result: int) -> None:
        rank = c_uint32()
        self._lib.optcc_test(self._engine, byref(rank))
        if result == Result.DIFFERS:
            raise CallsDifferError(rank.value)
        raise self._severed(rank.value, self._timeouts.back)

    def _severed(self, peer: int, within_s: float) -> FlowSeveredError:
        """This rank is to blame when all its NICs that reach the peer are down, else the peer."""
        self._take_notes()
        reach = [nic for far, nic, _, _ in self._wires if far == peer]
        waited = f", none has come back within {within_s:.3g} s" if within_s else ""
        severed = NicsLostError if {*reach} <= self._down else FlowSeveredError
        return severed(peer, f"no wire left of {len(reach)}{waited}")

    def _late(self, within_s: float) -> None:
        alone = self._lib.optcc_alone(self._engine)
        if alone != NONE:  # a lost NIC explains more than what it makes late
            raise self._severed(alone, within_s)
        missing = Missing()
        self._lib.optcc_missing(self._engine, byref(missing))
        text = f"{missing.receives} transfers to receive, {missing.sends} to send"
        if missing.row != NONE:
            text += f", first transfer {missing.row} from rank {missing.peer}"
        what = "no progress for" if self._moving else "not done within"
        raise PeerLateError(None if missing.peer == NONE else missing.peer, f"{what} {within_s:.3g} s: {text}")

    def poll(self, until: float) -> None:
        """Between operations: one wait, no longer than `until`, and what peers ask."""
        now = time.monotonic()
        until = min(until, self._tend(now))
        self._lib.optcc_serve(self._engine, 0)
        wait = min(until - now, self._nap_s)
        self._nap_s = min(2 * self._nap_s, LONG_NAP_S)
        if select.select([self._control], [], [], max(0.0, wait))[0]:
            self._nap_s = NAP_S
            self._control.check()
        if self._injector:
            self._injector.tend()

    # --- what has happened -------------------------------------------------------------------------------------------

    def _take_notes(self) -> None:
        while count := self._lib.optcc_notes(self._engine, self._noted, len(self._noted)):
            for i in range(count):
                self._note(self._noted[i])

    def _note(self, made: Any) -> None:
        peer, nic, far_nic, _ = self._wires[made.wire]
        name = self.layout.nics[self._lanes.nics[self._rank][nic]].name
        far = self.layout.nics[self._lanes.nics[peer][far_nic]].name
        at, cause = made.at_ns / 1e9, CauseOf(made.cause)
        match Noted(made.noted):
            case Noted.LOST:
                if cause in OWN and nic not in self._down:
                    self._down.add(nic)
                    self._journal.append(Note(at, "nic down", name, "", CAUSES[cause], "link down"))
                self._journal.append(Note(at, "lost", name, far, CAUSES[cause]))
            case Noted.FENCED:
                self._journal.append(Note(at, "fenced", name, far, text="this end is drained"))
            case Noted.MOVED:
                self._journal.append(Note(at, "moved", name, far, CAUSES[cause], "to other wires", made.bytes))
            case Noted.ANEW:
                self._down.discard(nic)
                self._journal.append(Note(at, "made anew", name, far))
            case Noted.ALONE:
                self._journal.append(Note(at, "waiting", name, "", "", f"for a way to rank {peer} to come back"))

    def notes(self) -> list[Note]:
        """What has been noted since this was asked."""
        if self._engine:
            self._take_notes()
        notes, self._journal[:] = sorted(self._journal, key=lambda note: note.at), []
        return notes

    def _sent(self) -> Array:
        state, sent = WireState(), np.zeros(len(self._place), np.uint64)
        for wire, (_, nic, _, _) in enumerate(self._wires):
            self._lib.optcc_wire_look(self._engine, wire, byref(state))
            sent[nic] += np.uint64(state.sent_bytes)
        return sent

    def sent(self) -> dict[str, int]:
        """Bytes of payload that have left by each NIC of this rank in the last operation, replays counted."""
        each = (self._sent() - self._before).tolist()
        return {self.layout.nics[number].name: each[place] for number, place in self._place.items()}

    def strike(self, strike: Strike) -> None:
        """In the next operation: a fault on purpose at a NIC of this rank; nothing where that is not used any more."""
        self._strikes.append(strike)

    def _injector_of(self) -> FaultInjector | None:
        used = {nic.name for nic in self.layout.nics}
        strikes, self._strikes = [strike for strike in self._strikes if {strike.nic, strike.far} - {""} <= used], []
        if not strikes and not self._healing:
            return None
        return FaultInjector(
            self._rank,
            self.layout,
            strikes,
            self._nics,
            self._journal,
            time.monotonic,
            self._healing,
            sent=self._sent_by_number,
            farewell=self._farewell,
        )

    def _sent_by_number(self) -> dict[int, int]:
        each = (self._sent() - self._before).tolist()
        return {number: each[place] for number, place in self._place.items()}
