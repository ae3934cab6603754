"""The hub's door: whoever connects is a stranger until it has proved the secret; strangers are bounded.

One connection is taken per turn of the event loop, so that ranks that are in are served between any two strangers.
Strangers are greeted all at the same time, each for GREETING_S at most. There is room for a fixed number of them;
when it is full, the one that came first is dropped for the next. A rank needs its place for one round trip only, from
connecting to its proof. A flood keeps it out only if as many others connect meanwhile. It comes again then, for as
long as it looks for the hub (`member.JOIN_S`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, field

from optcc.runtime.codec import MessageError, decode, encode
from optcc.runtime.control.connecting import (
    GREETING_LIMIT,
    GREETING_S,
    PROTOCOL,
    Challenge,
    Introduction,
    Refused,
    Seal,
    Welcome,
    framed,
    nonce,
    objection,
    proof,
    proves,
    read_frame,
    seals,
)
from optcc.runtime.forks import own

log = logging.getLogger(__name__)

STRANGERS = 64
"""How many may be introducing themselves at once, or as many as there are ranks."""

LOG_LINES = 10
"""On strangers, in LOG_S seconds; what is beyond is counted in the next line."""
LOG_S = 10.0

EXHAUSTED_S = 0.1
"""Before the next connection is taken, when the process has no descriptor left for one."""


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


class Admission:
    """Lets the ranks of a job in at `listener`, where the `door` is; closes it.

    ranks : how many there are; present : those that are there
    admit : called with a rank that is let in, its reader, its writer and the seals of its and of the hub's messages;
        what it returns is awaited, and the connection ends with it
    """

    def __init__(
        self,
        listener: socket.socket,
        door: Door,
        ranks: int,
        present: Container[int],
        admit: Callable[[int, asyncio.StreamReader, asyncio.StreamWriter, Seal, Seal], Awaitable[None]],
    ) -> None:
        self._listener, self._job, self._ranks, self._secret = listener, door.job, ranks, door.secret
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
