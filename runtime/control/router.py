"""The middle of the star: hands on what ranks say, and never waits for one of them.

It runs in its own thread (asyncio's streams do the reading, writing and waiting), so messages are relayed whatever the
process does meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple

from optcc.runtime.codec import Json, MessageError, decode, encode
from optcc.runtime.control.connecting import (
    GREETING_LIMIT,
    GREETING_S,
    PROTOCOL,
    TAG_BYTES,
    TAMPERED,
    Address,
    Challenge,
    Introduction,
    Refused,
    Seal,
    TamperedError,
    Welcome,
    framed,
    nonce,
    objection,
    prepare,
    proof,
    proves,
    read_frame,
    seals,
)
from optcc.runtime.forks import own
from optcc.runtime.messages import (
    FRAME_LIMIT,
    FROM_RANK,
    PIECE,
    PIECE_BYTES,
    AskTime,
    Broken,
    FromRank,
    Gone,
    Joined,
    Payload,
    Share,
    SharedValues,
    Time,
    ToRank,
)

# The hub's door: whoever connects is a stranger until it has proved the secret; strangers are bounded.
#
# One connection is taken per turn of the event loop, so that ranks that are in are served between any two strangers.
# Strangers are greeted all at the same time, each for GREETING_S at most. There is room for a fixed number of them;
# when it is full, the one that came first is dropped for the next. A rank needs its place for one round trip only, from
# connecting to its proof. A flood keeps it out only if as many others connect meanwhile. It comes again then, for as
# long as it looks for the hub (`member.JOIN_S`).

log = logging.getLogger(__name__)

STRANGERS = 64
"""How many may be introducing themselves at once, or as many as there are ranks."""

LOG_LINES = 10
"""On strangers, in LOG_S seconds; what is beyond is counted in the next line."""
LOG_S = 10.0

EXHAUSTED_S = 0.1
"""Before the next connection is taken, when the process has no descriptor left for one."""


class Admission:
    """Lets the ranks of `job` in at `listener`, which it closes.

    present : the ranks that are there
    admit : called with a rank that is let in, its reader, its writer and the seals of its and of the hub's messages;
        what it returns is awaited, and the connection ends with it
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        job: str,
        ranks: int,
        secret: bytes,
        present: Container[int],
        admit: Callable[[int, asyncio.StreamReader, asyncio.StreamWriter, Seal, Seal], Awaitable[None]],
    ) -> None:
        self._listener, self._job, self._ranks, self._secret = listener, job, ranks, secret
        self._present, self._admit = present, admit
        self._most = max(STRANGERS, ranks)
        self._strangers: dict[asyncio.Task[None], None] = {}  # in the order in which they came
        self._dropped: dict[asyncio.Task[None], str] = {}  # why, until they have noticed
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged: list[float] = []
        self._unlogged = 0

    async def run(self) -> None:
        """Take connections until it is cancelled."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        with self._listener:
            while True:
                try:
                    sock, peer = await loop.sock_accept(self._listener)
                except OSError as error:  # no descriptor left, or who came has gone
                    self._note(f"cannot take a connection: {error}")
                    self._drop_one("to free a descriptor")
                    await asyncio.sleep(EXHAUSTED_S)
                    continue
                if len(self._strangers) >= self._most:
                    self._drop_one(f"{self._most} others that have come since are introducing themselves")
                task = loop.create_task(self._connected(sock, peer))
                self._strangers[task] = None
                self._tasks.add(task)
                task.add_done_callback(self._forget)
                await asyncio.sleep(0)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        self._dropped.pop(task, None)
        self._tasks.discard(task)

    def _drop_one(self, why: str) -> None:
        oldest = next(iter(self._strangers), None)
        if oldest:
            del self._strangers[oldest]
            self._dropped[oldest] = why
            oldest.cancel()

    async def _connected(self, sock: socket.socket, peer: object) -> None:
        """One connection from its first byte to its last."""
        task = asyncio.current_task()
        assert task
        try:
            reader, writer = await asyncio.open_connection(sock=own(sock))
        except BaseException:
            sock.close()
            raise
        with contextlib.closing(writer):
            try:
                async with asyncio.timeout(GREETING_S):
                    found = await self._introduction(reader, writer)
            except asyncio.CancelledError:
                if task not in self._dropped:
                    raise
                found = self._dropped.pop(task)
            except TimeoutError:
                found = f"not introduced within {GREETING_S:.3g} s"
            except (MessageError, OSError, asyncio.IncompleteReadError) as error:
                found = f"{type(error).__name__}: {error}"
            if isinstance(found, str):
                self._note(f"refused a connection from {_text(peer)}: {found}")
                return
            del self._strangers[task]
            rank, of_rank, of_hub = found
            await self._admit(rank, reader, writer, of_rank, of_hub)  # it is present before anybody else is heard

    async def _introduction(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, Seal, Seal] | str:
        """The rank that is let in and the seals of its and the hub's messages, or why not, which it is told."""
        challenge = Challenge(PROTOCOL, nonce())
        writer.write(framed(encode(challenge)))
        introduced: Introduction = decode(await read_frame(reader, GREETING_LIMIT), (Introduction,))
        hello = introduced.hello
        if proves(introduced.mac, self._secret, "rank", hello, challenge):
            why = objection(hello, self._job, self._ranks, self._present)
        else:
            why = "wrong secret"
        if why:
            writer.write(framed(encode(Refused(why))))
            return why
        writer.write(framed(encode(Welcome(proof(self._secret, "hub", hello, challenge)))))
        return hello.rank, *seals(self._secret, hello, challenge)

    def _note(self, text: str) -> None:
        """One line of the log, if there were not too many of late."""
        now = time.monotonic()
        self._logged = [at for at in self._logged if now - at < LOG_S]
        if len(self._logged) >= LOG_LINES:
            self._unlogged += 1
            return
        self._logged.append(now)
        more = f" (and {self._unlogged} more that were not logged)" if self._unlogged else ""
        self._unlogged = 0
        log.warning("%s%s", text, more)


def _text(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)


# The middle of the star

FLUSH_S = 1.0
"""At the end, for what has been said to leave."""

QUEUE = 4096
"""Connections that wait in the kernel, so that strangers who come at once keep out nobody; Linux' own limit."""


@dataclass(frozen=True)
class Door:
    """Where ranks that others start are let in: those of `job` that know `secret`, at (host, port).

    listener : listens there already; None: one is made
    """

    job: str
    secret: bytes = field(repr=False)
    host: str
    port: int
    listener: socket.socket | None = field(default=None, repr=False, compare=False)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there, which a forked child does not have. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    made = socket.create_server((host, port), family=family, backlog=QUEUE)
    own(made)
    return made


Heard = tuple[int, FromRank | Joined | Gone]


class _Line(NamedTuple):
    """What is written to a rank by, and sealed with."""

    writer: asyncio.StreamWriter
    seal: Seal


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody has waited for. That a rank's connection was reset is not news: it is `Gone`."""
    if not isinstance(context.get("exception"), ConnectionError):
        loop.default_exception_handler(context)


class Router:
    """Connects the hub of `ranks` ranks with them; what they say to the hub comes into `inbox`.

    Ranks come through `door`, where there is one, or are connected by `attach`. A context manager; leaves no thread,
    socket or task. Port 0 of the door: any that is free, see `address`.

    group : who exchanges values, in their order; None: all
    """

    def __init__(self, ranks: int, door: Door | None, group: Sequence[int] | None = None) -> None:
        self.inbox: SimpleQueue[Heard] = SimpleQueue()
        self.address: Address | None = None
        self._ranks, self._door = ranks, door
        self._group = [*(range(ranks) if group is None else group)]
        self._lines: dict[int, _Line] = {}
        self._shares: dict[int, dict[int, Json]] = defaultdict(dict)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        if door:
            self._listener = door.listener or listening(door.host, door.port)
            self.address = self._listener.getsockname()[:2]
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="optcc hub", daemon=True)

    def __enter__(self) -> Router:
        try:
            self._thread.start()
            self._ready.result()
        except BaseException:
            if self._listener:
                self._listener.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._call(lambda: self._stop.set())
        self._thread.join()
        if self._listener:
            self._listener.close()

    def attach(self, rank: int) -> socket.socket:
        """The rank's end of a connection of its own, for its process to inherit. It has joined once it says a word."""
        ours, theirs = socket.socketpair()  # theirs is what a child is to keep
        own(ours)

        async def start() -> None:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            self._spawn(self._serve(rank, reader, writer, Seal(), Seal()))

        try:
            asyncio.run_coroutine_threadsafe(start(), self._loop).result()
        except BaseException:
            ours.close()
            theirs.close()
            raise
        return theirs

    def send(self, ranks: Iterable[int], message: ToRank) -> None:
        """Say something to some ranks; one that is gone hears nothing."""
        data, told = encode(message), list(ranks)

        def write() -> None:
            for rank in told:
                self._write(rank, data)

        self._call(write)

    def begin(self, group: Sequence[int]) -> None:
        """From the next message on these exchange values, in this order, and from their first one on."""

        def begin() -> None:
            self._group = [*group]
            self._shares.clear()

        self._call(begin)

    def ship(self, ranks: Iterable[int], data: bytes) -> None:
        """Send a payload, to each rank as fast as it takes it."""
        told = list(ranks)

        def spawn() -> None:
            for rank in told:
                self._spawn(self._ship(rank, data))

        self._call(spawn)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except OSError as error:  # no descriptors left for the loop
            self._ready.set_exception(error)

    def _call(self, what: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(what)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(_unheard)
        if self._door and self._listener:
            admission = Admission(
                self._listener,
                job=self._door.job,
                ranks=self._ranks,
                secret=self._door.secret,
                present=self._lines,
                admit=self._admit,
            )
            self._spawn(admission.run())
        self._ready.set_result(None)
        await self._stop.wait()
        await asyncio.gather(*[self._hang_up(line.writer) for line in self._lines.values()])

    async def _admit(
        self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, of_rank: Seal, of_hub: Seal
    ) -> None:
        """A rank that others have started."""
        prepare(writer.get_extra_info("socket"))
        self.inbox.put((rank, Joined()))
        await self._serve(rank, reader, writer, of_rank, of_hub)

    async def _serve(
        self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, of_rank: Seal, of_hub: Seal
    ) -> None:
        """A rank's connection up to its end."""
        self._lines[rank] = _Line(writer, of_hub)
        try:
            while True:
                data = await read_frame(reader, FRAME_LIMIT + TAG_BYTES)
                self._heard(rank, decode(of_rank.unseal(data), FROM_RANK))
        except MessageError as error:
            log.warning("rank %d has sent nonsense: %s", rank, error)
            cause = TAMPERED if isinstance(error, TamperedError) else f"has sent nonsense: {error}"
            self.inbox.put((rank, Broken(cause)))
            self.inbox.put((rank, Gone()))
            with contextlib.suppress(OSError):
                while await reader.read(PIECE_BYTES):
                    pass  # it is believed no more, and still told the verdict
        except (OSError, asyncio.IncompleteReadError):
            self.inbox.put((rank, Gone()))
        finally:
            del self._lines[rank]
            writer.close()

    def _heard(self, rank: int, message: FromRank) -> None:
        match message:
            case Share(turn, value):
                if rank not in self._group:
                    return  # it was left behind
                shares = self._shares[turn]
                if rank in shares:
                    raise MessageError(f"a second value in exchange {turn}")
                shares[rank] = value
                if len(shares) == len(self._group):
                    data = encode(SharedValues(turn, [shares[each] for each in self._group]))
                    del self._shares[turn]
                    if len(data) > FRAME_LIMIT:
                        raise MessageError(f"{len(data)} bytes in exchange {turn}, at most {FRAME_LIMIT} can be sent")
                    for each in self._group:
                        self._write(each, data)
            case AskTime(turn):
                self._write(rank, encode(Time(turn, time.monotonic())))
            case _:
                self.inbox.put((rank, message))

    def _write(self, rank: int, data: bytes) -> None:
        line = self._lines.get(rank)
        if line and not line.writer.is_closing():
            line.writer.write(framed(line.seal.seal(data)))

    def owing(self) -> set[int]:
        """Places in the group of those that have not given a value that others wait for in an exchange."""
        waiting = list(self._shares.values())
        return {place for place, rank in enumerate(self._group) if any(rank not in shares for shares in waiting)}

    async def _ship(self, rank: int, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._write(rank, encode(Payload(len(data))))
            for start in range(0, len(data), PIECE_BYTES):
                self._write(rank, PIECE + data[start : start + PIECE_BYTES])
                if rank in self._lines:
                    await self._lines[rank].writer.drain()

    async def _hang_up(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), FLUSH_S)
        writer.transport.abort()
