"""The middle of the star: lets ranks in, hands on what they say, and never waits for one of them.

It runs in a thread of its own (asyncio's streams do the reading, writing and waiting), so that letters are relayed
whatever the process does meanwhile. Strangers are bounded in number, in time and in bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue

from optcc.runtime.codec import Json, MessageError, decode, encode
from optcc.runtime.control import Address, prepare
from optcc.runtime.greeting import (
    GREETING_LIMIT,
    GREETING_S,
    PROTOCOL,
    Challenge,
    Hello,
    Proof,
    Refused,
    nonce,
    objection,
    proof,
    proves,
)
from optcc.runtime.messages import (
    FRAME_LIMIT,
    FROM_RANK,
    PIECE,
    PIECE_BYTES,
    AskTime,
    Broken,
    FromRank,
    Letter,
    Parcel,
    Post,
    Share,
    Shared,
    Time,
    ToRank,
)

log = logging.getLogger(__name__)

STRANGERS = 64
"""How many may be introducing themselves at once, or as many as there are ranks; others are turned away for now."""

BACKLOG = 1 << 24
"""Bytes that a rank has not taken, beyond which letters to it are dropped."""

FLUSH_S = 1.0
"""At the end, for what has been said to leave."""


class Joined:
    """In the inbox: the rank has been let in."""


class Gone:
    """In the inbox: the rank's connection has ended."""


Heard = tuple[int, FromRank | Joined | Gone]


class Switchboard:
    """Listens at (host, port) for the `ranks` ranks of `job`; what they say to the hub comes into `inbox`.

    A context manager; leaves no thread, socket or task. Port 0: any that is free, see `address`.
    """

    def __init__(self, ranks: int, *, job: str, secret: bytes, host: str, port: int) -> None:
        self.inbox: SimpleQueue[Heard] = SimpleQueue()
        self._ranks, self._job, self._secret = ranks, job, secret
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._shares: dict[int, dict[int, Json]] = defaultdict(dict)
        self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, port), family=family, backlog=max(128, 2 * ranks))
        self.address: Address = self._listener.getsockname()[:2]
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="optcc hub", daemon=True)

    def __enter__(self) -> Switchboard:
        try:
            self._thread.start()
            self._ready.result()
        except BaseException:
            self._listener.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._call(lambda: self._stop.set())
        self._thread.join()

    def send(self, ranks: Iterable[int], message: ToRank) -> None:
        """Say something to some ranks; one that is gone hears nothing."""
        frame, told = _framed(encode(message)), list(ranks)

        def write() -> None:
            for rank in told:
                self._write(rank, frame)

        self._call(write)

    def ship(self, ranks: Iterable[int], data: bytes) -> None:
        """Send a parcel, to each rank as fast as it takes it."""
        announced = _framed(encode(Parcel(len(data), hashlib.sha256(data).hexdigest())))
        told = list(ranks)

        def spawn() -> None:
            for rank in told:
                task = self._loop.create_task(self._ship(rank, announced, data))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        self._call(spawn)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except OSError as error:  # no descriptors left for the loop
            self._ready.set_exception(error)

    def _call(self, what: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(what)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, sock=self._listener)
        self._ready.set_result(None)
        await self._stop.wait()
        server.close()
        await asyncio.gather(*[self._hang_up(writer) for writer in self._writers.values()])

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from its first byte to its last."""
        rank = None
        try:
            rank = await self._let_in(reader, writer)
            if rank is not None:
                await self._listen(rank, reader)
        finally:
            if rank is not None:
                self.inbox.put((rank, Gone()))
                del self._writers[rank]
            writer.close()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int | None:
        """The rank at the other end, or None for a stranger, who is told why where that helps; logged in one line."""
        peer = writer.get_extra_info("peername")
        why: int | str
        self._strangers += 1
        try:
            most = max(STRANGERS, self._ranks)
            if self._strangers > most:
                why = f"{most} others are introducing themselves"
            else:
                why = await asyncio.wait_for(self._introduction(reader, writer), GREETING_S)
        except TimeoutError:
            why = f"not introduced within {GREETING_S:.3g} s"
        except (MessageError, ConnectionError, asyncio.IncompleteReadError) as error:
            why = f"{type(error).__name__}: {error}"
        finally:
            self._strangers -= 1
        if isinstance(why, int):
            return why
        log.warning("refused a connection from %s: %s", _text(peer), why)
        return None

    async def _introduction(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int | str:
        """The rank that has been let in, or why not. The reasons are told to those who know the secret."""
        hello: Hello = decode(await _frame(reader, GREETING_LIMIT), (Hello,))
        if hello.protocol != PROTOCOL:
            why = f"protocol {PROTOCOL} is spoken here, not {hello.protocol}: run the same version of optcc everywhere"
            writer.write(_framed(encode(Refused(why))))
            return why
        challenge = Challenge(nonce())
        writer.write(_framed(encode(challenge)))
        given: Proof = decode(await _frame(reader, GREETING_LIMIT), (Proof,))
        if not proves(given, self._secret, "rank", hello, challenge):
            why = "wrong secret"
        else:
            why = objection(hello, self._job, self._ranks, self._writers) or ""
        if why:
            writer.write(_framed(encode(Refused(why))))
            return why
        prepare(writer.get_extra_info("socket"))
        writer.write(_framed(encode(proof(self._secret, "hub", hello, challenge))))
        self._writers[hello.rank] = writer  # no wait between the check that it is free and this
        self.inbox.put((hello.rank, Joined()))
        return hello.rank

    async def _listen(self, rank: int, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                self._heard(rank, decode(await _frame(reader, FRAME_LIMIT), FROM_RANK))
        except MessageError as error:
            log.warning("rank %d has sent nonsense: %s", rank, error)
            self.inbox.put((rank, Broken(f"has sent nonsense: {error}")))
        except (OSError, asyncio.IncompleteReadError):
            pass

    def _heard(self, rank: int, message: FromRank) -> None:
        match message:
            case Post(to, value):
                if not 0 <= to < self._ranks:
                    raise MessageError(f"a letter to rank {to}")
                writer = self._writers.get(to)
                if writer and writer.transport.get_write_buffer_size() < BACKLOG:
                    self._write(to, _framed(encode(Letter(rank, value))))
            case Share(turn, value):
                shares = self._shares[turn]
                if rank in shares:
                    raise MessageError(f"a second value in exchange {turn}")
                shares[rank] = value
                if len(shares) == self._ranks:
                    frame = _framed(encode(Shared(turn, [shares[each] for each in range(self._ranks)])))
                    del self._shares[turn]
                    if len(frame) > FRAME_LIMIT:
                        raise MessageError(f"{len(frame)} bytes in exchange {turn}, at most {FRAME_LIMIT} can be sent")
                    for each in range(self._ranks):
                        self._write(each, frame)
            case AskTime(turn):
                self._write(rank, _framed(encode(Time(turn, time.monotonic()))))
            case _:
                self.inbox.put((rank, message))

    def _write(self, rank: int, frame: bytes) -> None:
        writer = self._writers.get(rank)
        if writer and not writer.is_closing():
            writer.write(frame)

    async def _ship(self, rank: int, announced: bytes, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._write(rank, announced)
            for start in range(0, len(data), PIECE_BYTES):
                self._write(rank, _framed(PIECE + data[start : start + PIECE_BYTES]))
                if rank in self._writers:
                    await self._writers[rank].drain()

    async def _hang_up(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), FLUSH_S)
        writer.transport.abort()


def _framed(data: bytes) -> bytes:
    """As `multiprocessing.connection` frames it, which the ranks use."""
    return struct.pack("!i", len(data)) + data


async def _frame(reader: asyncio.StreamReader, limit: int) -> bytes:
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    if not 0 <= length <= limit:
        raise MessageError(f"a message of {length} bytes, at most {limit} are taken")
    return await reader.readexactly(length)


def _text(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
