"""Ranks of the native engine over TCP, for tests and benchmarks: each a thread with an address of loopback for every
NIC, at will behind a relay that breaks connections.

``python -m tests.tcp_ranks CUTS ...`` breaks connections from seeds 0, 1, ... and says what came of it; ``--sanitize``
does so, and plays hostile peers, with AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import hmac
import os
import random
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_uint8, c_uint32, c_void_p
from dataclasses import dataclass, field
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import optcc
from optcc.runtime.devices.host import Array, Op
from optcc.runtime.native.library import NEVER, TCP_COUNTERS, TcpConfig, TcpCounters, Until, WireEnds, WireState
from optcc.runtime.native.library import TcpAddress as Address
from optcc.schedule import Schedule
from optcc.values.cluster import Cluster
from tests import native_build
from tests import native_replay as native
from tests.namespaces import Namespaces, entered
from tests.native_replay import (
    AGAIN,
    COUNTERS,
    LATE,
    LOST,
    OK,
    RESULTS,
    SECOND_NS,
    Config,
    Counters,
    Ground,
    call,
)

MAX_NICS, SECRET_BYTES, MAX_HANDLE = 16, 32, 384
HELLO_MAGIC, HANDLE_MAGIC, VERSION = 0x0CC70A12, 0x0CC70A13, 1
OPENING, LIVE, GONE = range(3)
UP, DOUBTED, FENCING, DOWN = range(4)
"""enum optcc_wire_is."""
MILLISECOND_NS = 10**6


def load(library: Any) -> Any:
    """The library, with the types of what it returns and takes."""
    return native.load(library)


def address(text: str, port: int = 0, scope: int = 0) -> Any:
    """A NIC's, from 127.0.0.2 or ::1."""
    ip = ip_address(text)
    return Address(ip.version, scope, port, (c_uint8 * 16)(*ip.packed))


SECRET = bytes(range(7, 7 + SECRET_BYTES))


def handle_of(rank: int, addresses: Sequence[tuple[str, int]], segment: int, secret: bytes = SECRET) -> bytes:
    """What `optcc_tcp_handle` makes for NICs at these addresses and ports."""
    made = struct.pack("<IBBHI", HANDLE_MAGIC, VERSION, len(addresses), rank, segment)
    for text, port in addresses:
        ip = ip_address(text)
        made += struct.pack("<BH", ip.version, port) + ip.packed
    return made + code(secret, "handle", made)[:16]


def code(secret: bytes, who: str, *said: bytes) -> bytes:
    """What proves that `who` knows the secret."""
    return hmac.digest(secret, who.encode().ljust(16, b"\0") + b"".join(said), "sha256")


class Rank:
    """One rank: `join` all others, `start` the engine, `call` collectives, `close`."""

    def __init__(
        self, lib: Any, rank: int, addresses: Sequence[str], *, ranks: int, segment: int = 8192, **config: Any
    ) -> None:
        self.lib, self.rank, self.ranks, self.segment = lib, rank, ranks, segment
        self.nics, self.tcp, self.engine = len(addresses), c_void_p(), c_void_p()
        self.secret = config.pop("secret", SECRET)
        given = TcpConfig(rank=rank, ranks=ranks, nics=self.nics, segment_bytes=segment, **config)
        for nic, text in enumerate(addresses):
            given.address[nic] = address(text)
        given.secret[:] = self.secret
        result = lib.optcc_tcp_open(byref(given), byref(self.tcp))
        assert result == OK, RESULTS[result]
        self.programs: dict[tuple[int, str], tuple[Any, Schedule]] = {}
        self.closed = False

    @property
    def handle(self) -> bytes:
        room, length = ctypes.create_string_buffer(MAX_HANDLE), c_uint32(MAX_HANDLE)
        assert self.lib.optcc_tcp_handle(self.tcp, room, byref(length)) == OK
        return room.raw[: length.value]

    @property
    def ports(self) -> list[int]:
        """On which its NICs listen; of IPv4."""
        handle, found = self.handle, []
        for nic in range(self.nics):
            found.append(int.from_bytes(handle[13 + 7 * nic : 15 + 7 * nic], "little"))
        return found

    def join(self, rank: int, handle: bytes, lanes: Sequence[tuple[int, int]] | None = None) -> int:
        """lanes : NICs of the lower and of the higher rank"""
        if lanes is None:
            return int(self.lib.optcc_tcp_join(self.tcp, rank, handle, len(handle), None, 0))
        ends = [pair if self.rank < rank else pair[::-1] for pair in lanes]
        table = (WireEnds * len(ends))(*(WireEnds(rank, here, there, lane) for lane, (here, there) in enumerate(ends)))
        return int(self.lib.optcc_tcp_join(self.tcp, rank, handle, len(handle), table, len(ends)))

    def ready(self, limit_s: float = 60) -> int:
        """Open wires until none is opening any more."""
        until = time.monotonic() + limit_s
        while (result := int(self.lib.optcc_tcp_ready(self.tcp))) == AGAIN:
            assert time.monotonic() < until, "wires do not open"
            time.sleep(0.001)
        return result

    def start(self, *, window: int = 32768, suspect_ns: int = SECOND_NS, knock_ns: int = 5 * MILLISECOND_NS) -> None:
        config = Config(
            segment_bytes=self.segment,
            window_bytes=window,
            job=5,
            suspect_ns=suspect_ns,
            grace_ns=suspect_ns // 2,
            knock_ns=knock_ns,
            return_ns=120 * SECOND_NS,
            spin_ns=20_000,
        )
        result = self.lib.optcc_tcp_engine(self.tcp, byref(config), byref(self.engine))
        assert result == OK, RESULTS[result]

    def call(self, schedule: Schedule, dtype: str, op: Op, buffer: Array, lanes: Array, limit_s: float = 100) -> int:
        """A collective, in place. lanes : by route"""
        key = id(schedule)
        if key not in self.programs:
            made = native.program(self.lib, schedule, self.rank, self.segment, lanes)
            self.programs[key] = made, schedule  # which must live on, or its id would be another's
        result = self.lib.optcc_begin(self.engine, self.programs[key][0], call(buffer, dtype, op))
        if result == OK:
            result = self.lib.optcc_wait(self.engine, byref(Until(int(limit_s * SECOND_NS), NEVER, -1)))
        return int(result)

    def call_asleep(
        self, schedule: Schedule, dtype: str, op: Op, buffer: Array, lanes: Array, limit_s: float = 30
    ) -> int:
        """`call` for who sleeps on the descriptor, and looks at nothing before that tells him."""
        fd, until = self.lib.optcc_tcp_fd(self.tcp), time.monotonic() + limit_s
        made = native.program(self.lib, schedule, self.rank, self.segment, lanes)
        result = self.lib.optcc_begin(self.engine, made, call(buffer, dtype, op))
        assert result == OK, RESULTS[result]
        while True:
            wakes_ns = self.lib.optcc_progress(self.engine)
            if (result := self.lib.optcc_test(self.engine, None)) != AGAIN:
                break
            if self.lib.optcc_tcp_arm(self.tcp) != OK and time.monotonic() < until:
                continue
            limit = min(until, wakes_ns / SECOND_NS) - time.monotonic()
            if not select.select([fd], [], [], max(0, limit))[0] and time.monotonic() >= until:
                return LATE
        for _ in range(200):  # the last acknowledgement may have to be said again
            self.progress()
            time.sleep(0.001)
        self.lib.optcc_program_close(made)
        return int(result)

    def progress(self) -> None:
        self.lib.optcc_progress(self.engine)

    def counters(self) -> dict[str, int]:
        of_engine, of_tcp = Counters(), TcpCounters()
        if self.engine:
            self.lib.optcc_count(self.engine, byref(of_engine))
        self.lib.optcc_tcp_count(self.tcp, byref(of_tcp))
        found = {name: getattr(of_engine, name) for name in COUNTERS}
        return found | {f"tcp_{name}": getattr(of_tcp, name) for name in TCP_COUNTERS}

    def states(self) -> list[Any]:
        """Of its wires, as the engine sees them."""
        found = []
        for wire in range(self.lib.optcc_tcp_wires(self.tcp)):
            found.append(WireState())
            assert self.lib.optcc_wire_look(self.engine, wire, byref(found[-1])) == OK
        return found

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.lib.optcc_close(self.engine)
        self.lib.optcc_tcp_close(self.tcp)
        for program, _ in self.programs.values():
            self.lib.optcc_program_close(program)


# --- whole jobs ----------------------------------------------------------------------------------------------------


def addresses(rank: int, nics: int) -> list[str]:
    """Of a rank's NICs, on loopback."""
    return [f"127.0.{rank + 1}.{nic + 1}" for nic in range(nics)]


class Job:
    """All ranks of a ground, as threads. Between calls, too, they answer each other.

    places : where they are, each in a network namespace of its own; None: on loopback
    """

    def __init__(self, lib: Any, ground: Ground, *, places: Namespaces | None = None, **config: Any) -> None:
        self.ground, self.places = ground, places
        self.ranks = []
        for rank, mine in enumerate(ground.nics):
            with self._in_place(rank):
                nics = [places.address(rank, nic) for nic in range(len(mine))] if places else addresses(rank, len(mine))
                self.ranks.append(Rank(lib, rank, nics, ranks=ground.ranks, **config))
        self.handles = [rank.handle for rank in self.ranks]
        """What the others are told; a relay puts its own here."""
        self.faults: list[str] = []
        self.lossy = False
        """Some wires may be lost before the first call."""
        self.segments = self.calls = 0
        self._done = [0] * ground.ranks
        self.going = True

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.close()

    def _in_place(self, rank: int) -> contextlib.AbstractContextManager[None]:
        return entered(self.places.names[rank]) if self.places else contextlib.nullcontext()

    def join(self, rank: Rank) -> None:
        for other in range(self.ground.ranks):
            lanes = self.ground.wires.get((min(rank.rank, other), max(rank.rank, other)))
            if other != rank.rank and lanes:
                assert rank.join(other, self.handles[other], lanes) == OK

    def run(
        self,
        calls: Iterable[tuple[Schedule, str, Op]],
        goes_on: Callable[[], bool],
        *,
        limit_s: float = 100,
        **config: Any,
    ) -> str:
        """The calls in turn, and again, while `goes_on`; what is wrong, or nothing. limit_s : of a call; config : of
        `Rank.start`"""
        script = list(calls)
        right = native.Right()
        for one in script:
            right.of(*one)

        def in_place(rank: Rank) -> None:
            with self._in_place(rank.rank):
                rank_of(rank)

        def rank_of(rank: Rank) -> None:
            try:
                self.join(rank)
                assert rank.ready() == OK or self.lossy, "not all wires open"
                rank.start(**config)
                self._meet(rank, goes_on)
                while self.going:
                    schedule, dtype, op = script[(self._done[rank.rank] - 1) % len(script)]
                    given, wanted = right.of(schedule, dtype, op)
                    buffer = given[rank.rank].copy()
                    result = rank.call(schedule, dtype, op, buffer, self.ground.lanes(schedule), limit_s)
                    assert result == OK, RESULTS[result]
                    same = buffer.tobytes() == wanted[rank.rank].tobytes()
                    assert same, f"wrong bits, call {self._done[rank.rank]}"
                    if rank.rank == 0:
                        self.calls += 1
                        self.segments += native.segments(schedule, self.ground.lanes(schedule), rank.segment)
                    self._meet(rank, goes_on)
            except AssertionError as error:
                self.faults.append(f"rank {rank.rank}: {error} {rank.counters()}")
                self.going = False

        threads = [threading.Thread(target=in_place, args=(rank,)) for rank in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        landed, refused = self.total("landed_segments"), self.total("refused")
        if not self.faults and landed != self.segments:
            self.faults.append(f"{landed} segments landed of {self.segments}")
        if refused:
            self.faults.append(f"{refused} frames refused")
        return "; ".join(self.faults)

    def _meet(self, rank: Rank, goes_on: Callable[[], bool]) -> None:
        """Wait for the others, and answer them. The last one asks whether to go on."""
        mine = self._done[rank.rank] + 1
        if rank.rank == 0:
            while min(self._done[1:]) < mine and not self.faults:
                rank.progress()
                time.sleep(0.0002)
            self.going = self.going and goes_on()
        self._done[rank.rank] = mine
        while (self._done[0] < mine or min(self._done) < mine) and not self.faults:
            rank.progress()
            time.sleep(0.0002)

    def total(self, counter: str) -> int:
        return sum(rank.counters()[counter] for rank in self.ranks)


# --- connections that break ----------------------------------------------------------------------------------------

HANDSHAKE_BYTES = 64 + 64 + 32 + 32
BREAKS = ("reset", "end", "silent", "half silent", "away")


class Relay(threading.Thread):
    """Between the ranks of a job: connections go through it, and break when they have carried as many bytes as chance
    says, in the middle of frames and of handshakes.

    reset, end : at once; silent, half silent : nothing goes on, both ways or one way, for a while, then goes on or is
    reset; away : reset, and so is what comes to that NIC for a while
    """

    def __init__(self, job: Job, seed: int, mean_bytes: int) -> None:
        super().__init__(daemon=True)
        self.draw, self.mean = random.Random(seed), mean_bytes
        self.cuts = dict.fromkeys(BREAKS, 0)
        """How many connections that carried frames broke, by how."""
        self.again_bytes = 0
        """What wires have carried by connections after their first."""
        self.in_handshake = 0
        """How many broke before that."""
        self.breaking = True
        self._ended = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._targets: list[tuple[str, str, int]] = []
        self._away: dict[str, float] = {}
        ports: dict[int, list[tuple[str, int]]] = {}
        self._sockets = []
        for rank in job.ranks:
            for nic, port in enumerate(rank.ports):
                here = socket.create_server((f"127.1.{rank.rank + 1}.{nic + 1}", 0))
                self._sockets.append((here, addresses(rank.rank, nic + 1)[nic], port))
                ports.setdefault(rank.rank, []).append(here.getsockname())
        job.handles = [handle_of(rank.rank, ports[rank.rank], rank.segment) for rank in job.ranks]

    def run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        servers = []
        for here, host, port in self._sockets:

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str = host, port: int = port
            ) -> None:
                await self._relay(host, port, reader, writer)

            servers.append(await asyncio.start_server(serve, sock=here))
        await self._ended.wait()
        for server in servers:
            server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self.join()

    async def _relay(self, host: str, port: int, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        if self._away.get(host, 0) > time.monotonic():
            return _reset(back)
        try:
            far, on = await asyncio.open_connection(host, port)
        except OSError:
            return _reset(back)
        for writer in (back, on):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            early = self.draw.random() < 0.1
            fuse = self.draw.randrange(HANDSHAKE_BYTES) if early else int(self.draw.expovariate(1 / self.mean))
            wire = Carried(self, host, fuse)
            ways = [asyncio.create_task(wire.carry(near, on, 0)), asyncio.create_task(wire.carry(far, back, 1))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if wire.way == "end":
                await asyncio.sleep(0.01)
            for way in ways:
                way.cancel()
        finally:
            (_close if wire.way == "end" else _reset)(back)
            (_close if wire.way == "end" else _reset)(on)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()


class Carried:
    """A connection through a relay, which breaks after `fuse` bytes."""

    def __init__(self, relay: Relay, host: str, fuse: int) -> None:
        self.relay, self.host, self.fuse = relay, host, fuse
        self.way, self.bytes, self.life = "", 0, 0
        self.silent = [asyncio.Event(), asyncio.Event()]
        for one in self.silent:
            one.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int) -> None:
        while data := await reader.read(4096):
            await self.silent[way].wait()
            if not self.life and not way and len(data) >= 24:
                (self.life,) = struct.unpack_from("<I", data, 20)
            burns = self.relay.breaking and self.bytes + len(data) > self.fuse
            before = max(0, self.fuse - self.bytes) if burns else len(data)
            try:
                await self._pass(writer, data[:before])
                if burns:
                    if not await self._break():
                        return
                    await self._pass(writer, data[before:])
            except OSError:
                return

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        self.bytes += len(data)
        if self.life > 1 and self.bytes > HANDSHAKE_BYTES:
            self.relay.again_bytes += len(data)
        writer.write(data)
        await writer.drain()

    async def _break(self) -> bool:
        """Whether it goes on after that."""
        draw = self.relay.draw
        how = draw.choice(BREAKS)
        if self.bytes > HANDSHAKE_BYTES:
            self.relay.cuts[how] += 1
        else:
            self.relay.in_handshake += 1
        self.fuse = sys.maxsize  # meanwhile, of the other way
        if "silent" in how:
            quiet = self.silent if how == "silent" else [draw.choice(self.silent)]
            for one in quiet:
                one.clear()
            await asyncio.sleep(draw.choice((0.01, 0.2, 0.5)))
            for one in quiet:
                one.set()
            self.fuse = self.bytes + int(draw.expovariate(1 / self.relay.mean))
            return draw.random() < 0.5
        if how == "away":
            self.relay._away[self.host] = time.monotonic() + draw.choice((0.01, 0.2))
        self.way = how
        return False


@cache
def small() -> Ground:
    """Three ranks with two NICs, and buffers that take many segments."""
    return native.ground("3 x 2", Cluster.uniform(servers=3, nics=2, rate=native.RATE_OF_A_NIC), 1 << 18, 2)


@dataclass
class Broken:
    """What came of `break_wires`; fault : what is wrong, or nothing"""

    fault: str
    cuts: dict[str, int] = field(default_factory=dict)
    in_handshake: int = 0
    again_bytes: int = 0
    calls: int = 0
    counters: dict[str, int] = field(default_factory=dict)


@cache
def large() -> Ground:
    """Two ranks with two NICs, and a buffer of an odd length that takes few segments of 1 MiB."""
    cluster = Cluster.uniform(servers=2, nics=2, rate=native.RATE_OF_A_NIC)
    return Ground("2 x 2, large", [("ring", optcc.plan(cluster, 9_000_003, segments=2).schedule())])


def break_wires(lib: Any, cuts: int, seed: int, *, limit_s: float = 500, place: Ground | None = None) -> Broken:
    """Collectives one after another until so many wires were broken, and some more. place : `small` or `large`"""
    until = time.monotonic() + limit_s
    if place is large():
        config, window, mean = {"segment": 1 << 20, "unsent_bytes": 16384}, 4 << 20, 4_000_000
    else:
        place, config, window, mean = small(), {}, 32768, 300_000
    calls = [(schedule, "int32" if place is small() else "uint8", Op.SUM) for _, schedule in place.schedules]
    with Job(lib, place, handshake_ns=SECOND_NS, **config) as job:
        job.lossy = True
        relay = Relay(job, seed, mean)
        relay.start()
        more = 5

        def goes_on() -> bool:
            nonlocal more
            assert time.monotonic() < until, f"only {sum(relay.cuts.values())} cuts in {limit_s} s"
            relay.breaking = sum(relay.cuts.values()) < cuts
            more -= not relay.breaking
            return more > 0

        fault = job.run(calls, goes_on, suspect_ns=100 * MILLISECOND_NS, window=window, limit_s=limit_s)
        counters = {name: job.total(name) for name in job.ranks[0].counters()}
        relay.stop()
        return Broken(fault, relay.cuts, relay.in_handshake, relay.again_bytes, job.calls, counters)


def in_parts(lib: Any) -> str:
    """Segments that the kernel takes in parts, with other frames between them: what is wrong, or nothing."""
    turns = iter(range(6))
    with Job(lib, large(), segment=1 << 20, unsent_bytes=16384) as job:
        calls = [(large().schedules[0][1], "uint8", Op.MAX)]
        fault = job.run(calls, lambda: next(turns, None) is not None, window=4 << 20, limit_s=20)
        return fault or ("a wire died" if job.total("tcp_died") else "")


def asleep(lib: Any) -> str:
    """Ranks that begin before their wires are open, and sleep until the descriptor wakes them, since silence would be
    looked at after minutes: what is wrong, or nothing."""
    place = small()
    schedule = place.schedules[0][1]
    given = native.inputs(schedule, "int32", Op.SUM, 1)
    right, results = native.expected(schedule, given, Op.SUM), list[int]()
    with Job(lib, place) as job:

        def rank_of(rank: Rank) -> None:
            time.sleep(0.05 * rank.rank)
            job.join(rank)
            rank.start(suspect_ns=3600 * SECOND_NS)
            results.append(rank.call_asleep(schedule, "int32", Op.SUM, given[rank.rank], place.lanes(schedule)))

        threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in job.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if results != [OK] * 3:
        return f"not woken: {[RESULTS[result] for result in results]}"
    same = [one.tobytes() for one in given] == [one.tobytes() for one in right]
    return "" if same else "wrong bits"


def armed(lib: Any) -> str:
    """A rank's progress sends a payload, which leaves at once: who wants to sleep then must hear of that before, for
    nothing comes that would wake it. What is wrong, or nothing."""
    place = two()
    schedule = place.schedules[0][1]
    with Job(lib, place, segment=65536) as job:
        for rank in job.ranks:
            job.join(rank)
        until = time.monotonic() + 20
        while {lib.optcc_tcp_ready(rank.tcp) for rank in job.ranks} != {OK} and time.monotonic() < until:
            time.sleep(0.001)
        buffers = native.inputs(schedule, "int32", Op.SUM, 1)
        for rank, buffer in zip(job.ranks, buffers, strict=True):
            rank.start(suspect_ns=3600 * SECOND_NS, window=1 << 20)
            made = native.program(lib, schedule, rank.rank, rank.segment, place.lanes(schedule))
            rank.programs[0, str(rank.rank)] = made, schedule
            assert lib.optcc_begin(rank.engine, made, call(buffer, "int32", Op.SUM)) == OK
        first = job.ranks[0]
        while not first.counters()["sent_bytes"] and time.monotonic() < until:
            first.progress()
        found = [lib.optcc_tcp_arm(first.tcp)]
        first.progress()
        found.append(lib.optcc_tcp_arm(first.tcp))
    return "" if found == [AGAIN, OK] else f"armed though something has left, and after that: {found}"


# --- peers that are not who they say -------------------------------------------------------------------------------


class Stranger:
    """A connection to a NIC's port, by whom the test says: what a rank would say, and what it would not."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=20)
        self.nonce = os.urandom(32)
        self.said = b""

    def hello(self, *, segment: int = 8192, **other: int) -> None:
        """That of rank 0 for lane 0 to rank 1, but for what is other."""
        told = {"magic": HELLO_MAGIC, "version": VERSION, "nic": 0, "far_nic": 0, "from_": 0, "to": 1, "lane": 0}
        told |= {"life": 1000} | other
        whole = (*list(told.values())[:4], 0, *list(told.values())[4:], segment, 0)
        self.said = struct.pack("<IBBBBIIIIII", *whole) + self.nonce
        self.send(self.said)

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(data)

    def receive(self, length: int) -> bytes:
        """What comes, at most so much; nothing: the connection is over."""
        found = b""
        while len(found) < length:
            try:
                more = self.socket.recv(length - len(found))
            except TimeoutError:
                raise
            except OSError:
                more = b""
            if not more:
                break
            found += more
        return found

    def proof(self, answer: bytes, secret: bytes) -> bytes:
        return code(secret, "connects", self.said, answer[:32])

    def shake(self, secret: bytes = SECRET, proof: bytes | None = None, **hello: int) -> bool:
        """The whole handshake; whether this side is believed."""
        self.hello(**hello)
        answer = self.receive(64)
        if len(answer) < 64:
            return False
        self.send(self.proof(answer, secret) if proof is None else proof)
        ready = self.receive(32)
        assert ready in (b"", code(SECRET, "ready", self.said, answer[:32])), "ready, but without the secret"
        return len(ready) == 32


def frame(length: int = 0, **other: int) -> bytes:
    """A frame from rank 0 to rank 1."""
    told = {
        "magic": native.MAGIC,
        "version": native.VERSION,
        "kind": native.HELLO,
        "job": 5,
        "epoch": 1,
        "to": 1,
        "length": length,
    }
    return bytes(native.Frame(**(told | other)))


@cache
def two() -> Ground:
    """Two ranks with two NICs."""
    return native.ground("2 x 2", Cluster.uniform(servers=2, nics=2, rate=native.RATE_OF_A_NIC), 1 << 16, 2)


@dataclass
class Victim:
    """Rank 1 of a running job, which an attack has a go at."""

    host: str
    port: int
    rank: Rank

    def stranger(self) -> Stranger:
        return Stranger(self.host, self.port)


def _shaken(**hello: Any) -> Callable[[Victim], str]:
    return lambda victim: "is believed" if victim.stranger().shake(**hello) else ""


def _told(*data: bytes) -> Callable[[Victim], str]:
    def attack(victim: Victim) -> str:
        for each in data:
            stranger = victim.stranger()
            stranger.send(each)
            if stranger.receive(1):
                return "is answered"
        return ""

    return attack


def _reflected(victim: Victim) -> str:
    stranger = victim.stranger()
    stranger.hello()
    answer = stranger.receive(64)
    stranger.send(answer[32:])
    return "is believed" if stranger.receive(32) else ""


def _repeated(victim: Victim) -> str:
    """All that somebody else has said in a handshake that went well, but for the answer, which is another one."""
    first = victim.stranger()
    first.hello(life=500)
    recorded = first.proof(first.receive(64), SECRET)
    first.socket.close()
    again = victim.stranger()
    again.nonce = first.nonce
    return "is believed" if again.shake(proof=recorded, life=500) else ""


def _half(victim: Victim) -> str:
    """Nothing, and parts of a handshake, and then silence: the connection must end."""
    for length in (0, 1, 63):
        stranger = victim.stranger()
        stranger.send(bytes(length))
        if stranger.receive(1):
            return "is answered"
    stranger = victim.stranger()
    stranger.hello()
    stranger.receive(64)
    stranger.send(bytes(31))
    return "is believed" if stranger.receive(1) else ""


ATTACKS: dict[str, Callable[[Victim], str]] = {
    "another secret": _shaken(secret=bytes(32)),
    "no proof": _shaken(proof=bytes(32)),
    "the answer's own code": _reflected,
    "a handshake said again": _repeated,
    "half a handshake": _half,
    "garbage": _told(os.urandom(64), b"GET / HTTP/1.1\r\nHost: optcc\r\n\r\n" + bytes(64), bytes(100_000)),
    "another version": _shaken(version=VERSION + 1),
    "a wire that is not there": _shaken(lane=2),
    "a wire far beyond all": _shaken(lane=2**32 - 1),
    "NICs crosswise": _shaken(nic=1),
    "another NIC's wire": _shaken(lane=1, nic=1, far_nic=1),
    "the rank itself": _shaken(from_=1),
    "a rank that is not there": _shaken(from_=2**31),
    "to another rank": _shaken(to=2),
    "other segments": _shaken(segment=16384),
    "an older connection": _shaken(life=1),
    "no connection": _shaken(life=0),
}


def attack(lib: Any, names: Iterable[str] = ATTACKS, crowd: int = 0) -> str:
    """Strangers have a go at a job of two while it runs: what was believed, or harmed the job, or nothing.

    crowd : so many connections, opened before the job's own, say a byte now and then, and come again when sent away
    """
    place, faults = two(), []
    calls = [(schedule, "int32", Op.SUM) for _, schedule in place.schedules]
    strangers = 16
    with Job(lib, place, handshake_ns=SECOND_NS // 2, strangers=strangers) as job:
        victim = Victim("127.0.2.1", job.ranks[1].ports[0], job.ranks[1])
        over, ended, crowded = threading.Event(), threading.Event(), threading.Event()
        waiting: list[int] = []

        def attacks() -> None:
            try:
                while not job.calls:
                    time.sleep(0.001)
                for name in names:
                    try:
                        fault = ATTACKS[name](victim)
                    except ConnectionError:
                        fault = "" if crowd else "cannot connect"  # in a crowd it may be sent away at once
                    if fault:
                        faults.append(f"{name}: {fault}")
            except (AssertionError, OSError) as error:
                faults.append(f"an attack failed: {error!r}")
            finally:
                over.set()

        def come() -> Stranger | None:
            try:
                return victim.stranger()
            except OSError:  # sent away already
                return None

        def crowds() -> None:
            held = [come() for _ in range(crowd)]
            crowded.set()
            while not ended.wait(0.02):
                for i, one in enumerate(held):
                    try:
                        if one:
                            one.socket.send(b"\x12")
                    except OSError:
                        one = None
                    held[i] = one or come()
                counted = job.ranks[1].counters()
                settled = sum(counted[f"tcp_{name}"] for name in ("refused", "late", "proved"))
                waiting.append(counted["tcp_accepted"] - settled)

        threads = [threading.Thread(target=work) for work in ((attacks, crowds) if crowd else (attacks,))]
        for thread in threads:
            thread.start()
        if crowd:
            crowded.wait(20)
        least = time.monotonic() + (2 if crowd else 0)
        fault = job.run(calls, lambda: not over.is_set() or time.monotonic() < least)
        ended.set()
        for thread in threads:
            thread.join()
        if fault:
            faults.append(fault)
        if crowd and not strangers // 2 < max(waiting) <= strangers + 1:  # read while it changes
            faults.append(f"{max(waiting)} strangers at a time")
        if job.total("tcp_died"):
            faults.append("a wire of the job died")
        if job.total("tcp_tried") > 2 * len(job.ranks[0].states()):
            faults.append(f"{job.total('tcp_tried')} connections were tried until the job's wires were open")
    return "; ".join(faults)


def talk(lib: Any, seed: int, connections: int = 40) -> str:
    """Somebody who knows the secret proves to be rank 0, and says anything: what is wrong, or nothing.

    What cannot be a frame ends the connection, and nothing is read beyond the longest; the next one is taken.
    """
    draw = random.Random(seed)
    victim = Rank(lib, 1, addresses(1, 1), ranks=2)
    (port,) = victim.ports
    assert victim.join(0, handle_of(0, [("127.0.1.1", 1)], victim.segment)) == OK
    victim.start()
    over = threading.Event()

    def answer() -> None:
        while not over.is_set():
            victim.progress()
            time.sleep(0.0002)

    def ended(stranger: Stranger) -> bool:
        """Whether the rank ends the connection; frames of its come before that."""
        until = time.monotonic() + 10
        stranger.socket.settimeout(0.5)
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                if not stranger.receive(1):
                    return True
        return False

    thread = threading.Thread(target=answer)
    thread.start()
    faults = []
    try:
        for life in range(1, connections + 1):
            stranger = Stranger("127.0.2.1", port)
            if not stranger.shake(life=life):
                return f"connection {life} is refused"
            for _ in range(draw.choice((0, 1, 20, 200))):
                length = draw.choice((0, 0, 1, 8, 8191, 8192))
                kind = draw.randrange(1, 12)
                whole = frame(length, kind=kind, seq=draw.randrange(300), epoch=draw.choice((1, 1, life, life + 1)))
                stranger.send(whole + draw.randbytes(length) + bytes(-length % 8))
            length = draw.choice((8193, 8200))
            bad = draw.choice(
                (
                    frame(length) + bytes(8200) + 20 * frame(),  # which would be right if it were a frame
                    frame(2**32 - 1) + bytes(20_000),
                    frame(magic=0) + 20 * frame(),
                    frame(version=native.VERSION + 1) + 20 * frame(),
                    draw.randbytes(20_000),
                )
            )
            stranger.send(bad)
            if not ended(stranger):
                faults.append(f"connection {life} goes on after what is no frame")
                break
            stranger.socket.close()
    finally:
        over.set()
        thread.join()
        counted = victim.counters()
        victim.close()
    if not faults and counted["tcp_malformed"] < connections // 2:  # others ended by a knock for the next life
        faults.append(f"{counted['tcp_malformed']} connections of {connections} ended for that")
    return "; ".join(faults)


def deceive(lib: Any) -> str:
    """Somebody listens where rank 1 should, without the secret: what rank 0 believed, or nothing."""
    faults = []

    def nothing(heard: socket.socket) -> None:
        heard.recv(64)

    def without_secret(heard: socket.socket) -> None:
        said = heard.recv(64)
        heard.sendall(bytes(32) + code(bytes(32), "accepts", said, bytes(32)))
        if heard.recv(32):
            faults.append("a proof for whoever asks")

    def own_words(heard: socket.socket) -> None:
        while data := heard.recv(64):
            heard.sendall(data)

    def ready_at_once(heard: socket.socket) -> None:
        heard.recv(64)
        heard.sendall(os.urandom(96) + frame(from_=1, to=0))

    def right_until_ready(heard: socket.socket) -> None:
        said = heard.recv(64)
        heard.sendall(bytes(32) + code(SECRET, "accepts", said, bytes(32)))
        heard.sendall(heard.recv(32))

    for lie in (nothing, without_secret, own_words, ready_at_once, right_until_ready):
        fault = _deceived(lib, lie)
        if fault:
            faults.append(f"{lie.__name__}: {fault}")
    return "; ".join(faults)


def _deceived(lib: Any, lie: Callable[[socket.socket], None]) -> str:
    over, heard = threading.Event(), list[socket.socket]()
    with socket.create_server(("127.0.2.1", 0)) as server:
        server.settimeout(0.1)

        def listen() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError):
                    heard.append(server.accept()[0])
                    heard[-1].settimeout(0.5)
                    lie(heard[-1])

        rank = Rank(lib, 0, addresses(0, 1), ranks=2, open_ns=SECOND_NS // 2, handshake_ns=SECOND_NS // 5)
        assert rank.join(1, handle_of(1, [server.getsockname()], rank.segment)) == OK
        thread = threading.Thread(target=listen)
        thread.start()
        result = rank.ready()
        over.set()
        thread.join()
        proved = rank.counters()["tcp_proved"]
        rank.close()
    for one in heard:
        one.close()
    if not heard:
        return "nobody came"
    return "is believed" if result != LOST or proved else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cuts", nargs="*", type=int)
    parser.add_argument("--hostile", action="store_true", help="peers that are not who they say")
    parser.add_argument("--sanitize", action="store_true", help="compile with sanitizers (needs libasan)")
    parser.add_argument("--library", type=Path, help="a library that is compiled already")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        library = given.library or native_build.build(
            Path(folder), flags=native.SANITIZERS if given.sanitize else ("-O2",)
        )
        if given.sanitize and "libasan" not in os.environ.get("LD_PRELOAD", ""):
            command = [sys.executable, "-m", "tests.tcp_ranks", "--library", str(library), *map(str, given.cuts)]
            command += ["--hostile"] * given.hostile
            return subprocess.run(command, cwd=native.ROOT, env=native.sanitized(), check=False).returncode
        lib, faults = load(library), []
        for seed, cuts in enumerate(given.cuts):
            broken = break_wires(lib, cuts, seed)
            print(f"{cuts} cuts, seed {seed}: {broken.fault or 'right'}; {broken}")
            faults.append(broken.fault)
        if given.hostile:
            for found in (attack(lib), attack(lib, ["another secret"], crowd=100), talk(lib, 1), deceive(lib)):
                print(f"strangers: {found or 'none was believed'}")
                faults.append(found)
    return any(faults)


if __name__ == "__main__":
    sys.exit(main())
