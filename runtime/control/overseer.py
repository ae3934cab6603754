"""The hub of a job's ranks, at work: what `judgement.Hub` decides, with sockets, a thread and a clock.

It hands on what ranks say, and never waits for one of them: its thread has an event loop (asyncio's streams do the
reading, writing and waiting), so messages are relayed whatever the process does meanwhile. For a command that wants
calls made, it also hands on what ranks are to do, and what they report.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from optcc.errors import some
from optcc.runtime.codec import Json, MessageError, decode, encode
from optcc.runtime.control.connecting import (
    TAG_BYTES,
    TAMPERED,
    Address,
    Seal,
    TamperedError,
    framed,
    prepare,
    read_frame,
)
from optcc.runtime.control.door import Admission, Door, listening
from optcc.runtime.control.judgement import GRACE_S, Hub, has_closed
from optcc.runtime.control.rendezvous import Membership, listening_address
from optcc.runtime.errors import RankFailedError, TransportError
from optcc.runtime.forks import own
from optcc.runtime.messages import (
    FRAME_LIMIT,
    FROM_RANK,
    PARCEL,
    PAYLOAD_LIMIT,
    AskTime,
    Broken,
    FromRank,
    Gone,
    Joined,
    RankJournal,
    RunFailed,
    Saw,
    Time,
    ToRank,
)

log = logging.getLogger(__name__)

FAREWELL_S = 3.0
"""For ranks to report the verdict, or to leave, before they are left alone or killed."""

FLUSH_S = 1.0
"""At the end, for what has been said to leave."""

LOOK_S = 0.1
"""Between two looks at what is due although nobody says anything."""

ASKERS = 64
"""Ranks are asked at the same time whether they live, at most."""


class _Line(NamedTuple):
    """What is written to a rank by, and sealed with."""

    writer: asyncio.StreamWriter
    seal: Seal


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody has waited for. That a rank's connection was reset is not news: it is `Gone`."""
    if not isinstance(context.get("exception"), ConnectionError):
        loop.default_exception_handler(context)


class Overseer:
    """A hub with a thread of its own, in a rank's process or a command's. It ends when all ranks have left or gone, and
    leaves no thread, socket or task.

    Ranks come through `door`, where there is one, or are connected by `attach`; they have `within_s` seconds.

    door : where it listens for ranks that others start; its port 0: any that is free, see `address`
    obituary : called with a rank that has hung up until it says how that ended, FAREWELL_S at most
    commands : it is a command's, which reads `news`, and says itself what has failed
    lives : whether the process of one that is not connected is there, as far as can be told; called from several
        threads; None: nobody can tell
    numbers, follows : of a hub that takes the place of another one: its group, and more as of `Hub`; None: all ranks
    """

    def __init__(
        self,
        ranks: int,
        door: Door | None,
        within_s: float,
        *,
        obituary: Callable[[int], str | None] = lambda rank: Gone().cause,
        commands: bool = False,
        lives: Callable[[int], bool] | None = None,
        numbers: Sequence[int] | None = None,
        **follows: Any,
    ) -> None:
        try:
            self._listener = (door.listener or listening(door.host, door.port)) if door else None
        except OSError as error:
            where = f"{door.host}:{door.port}" if door else ""
            raise TransportError(f"cannot listen for ranks at {where}: {error}") from error
        self._listening: Address | None = self._listener.getsockname()[:2] if self._listener else None
        self._ranks, self._door, self._within_s, self._commands = range(ranks), door, within_s, commands
        self.news: SimpleQueue[tuple[int, Json] | RunFailed | None] = SimpleQueue()
        """What ranks report, with the rank; None once all ranks are there; the verdict."""
        self.lives, self._obituary = lives, obituary
        self._journals: dict[int, RankJournal] = {}
        self._saw: dict[int, str] = {}
        self._disbelieved: set[int] = set()  # who has sent nonsense, until it comes again
        self._failed_at = 0.0
        self.hub = Hub(
            numbers or self._ranks,
            self.say,
            time.monotonic() + within_s,
            absence=self._absence,
            report=self._note,
            **follows,
        )
        self._lines: dict[int, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._asker: threading.Thread | None = None
        self._ask_at, self._leaving = time.monotonic() + GRACE_S, False  # who comes at once is not asked for
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="optcc hub", daemon=True)

    # --- from any thread ---------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, membership: Membership, interface: str | None, within_s: float, **how: Any) -> Overseer:
        """Listening at the address that the ranks know, and at work. Waits `within_s` seconds for ranks to come.
        `how` : as of Overseer"""
        host = listening_address(membership.address[0], interface)
        door = Door(membership.job, membership.secret.encode(), host, membership.address[1])
        return cls(membership.world, door, within_s, **how).start()

    def start(self) -> Overseer:
        """Listens, and is at work."""
        try:
            self._thread.start()
            self._ready.result()
        except BaseException:
            if self._listener:
                self._listener.close()
            raise
        return self

    @property
    def address(self) -> Address:
        """Where it listens. Only of a hub with a door."""
        assert self._listening
        return self._listening

    def attach(self, rank: int) -> socket.socket:
        """A rank's end of a connection of its own, for its process to inherit; nobody else can get at it.

        For `Control`. Close it once the process has started, so that its end is noticed. The rank has joined once it
        says a word.
        """
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

    def ship(self, data: bytes) -> None:
        """Send all ranks that are there a payload, without waiting; they take it by `Member.parcel`, in order."""
        if len(data) >= PAYLOAD_LIMIT:
            raise TransportError(f"{len(data)} bytes in one payload, fewer than {PAYLOAD_LIMIT} can be sent")
        for rank in self._ranks:
            self._call(partial(self._write, rank, PARCEL + data))

    def come(self, count: int, within_s: float) -> bool:
        """Whether so many ranks are there, waiting for it for so long at most."""
        end = time.monotonic() + within_s
        while len(self.hub.present) < count and time.monotonic() < end:
            time.sleep(LOOK_S)
        return len(self.hub.present) >= count

    def last_words(self) -> RankFailedError:
        """After the verdict: what was said about it, once all ranks that are left have, or long enough."""
        failed = self.hub.failed
        assert failed
        while self.hub.present - self._saw.keys() and time.monotonic() < self._failed_at + FAREWELL_S:
            time.sleep(LOOK_S / 10)
        saw = dict(sorted(self._saw.items()))
        return RankFailedError(failed.rank, failed.cause, saw, self._journals, self._failed_at)

    def leave(self) -> None:
        """For the process that it is in: waits a moment until all ranks have left, then hangs up."""
        self._leaving = True
        self._call(self._stir)
        self._thread.join(2 * FAREWELL_S)

    def _call(self, what: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(what)

    # --- in the hub's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except OSError as error:  # no descriptors left for the loop
            self._ready.set_exception(error)
        if self._asker:
            self._asker.join()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[tuple[int, FromRank | Joined | Gone | MessageError] | None] = asyncio.Queue()
        self._loop.set_exception_handler(_unheard)
        if self._door and self._listener:
            admission = Admission(self._listener, self._door, len(self._ranks), self._lines, self._admit)
            self._spawn(admission.run())
        self._ready.set_result(None)
        try:
            await self._oversee()
            if not self.hub.failed and self.hub.staying:  # nobody tells them anything any more
                self.hub.fail(0, has_closed(0))
        except Exception:
            log.exception("the hub of %s ended", self._door.job if self._door else "a job")
        await asyncio.gather(*[self._hang_up(line.writer) for line in self._lines.values()])

    async def _oversee(self) -> None:
        """Tell the hub what happens, until it ends."""
        hub, end, failed = self.hub, math.inf, False
        while not hub.over and time.monotonic() < end:
            heard = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if hub.watches or self._leaving else None):
                    heard = await self._inbox.get()
            if heard:
                self._take(*heard)
            hub.look(time.monotonic())
            if hub.failed and not failed:
                failed, self._ask_at = True, 0.0
            asks = self._asker and self._asker.is_alive()
            if self.lives and hub.awaited and not asks and time.monotonic() > self._ask_at:
                self._ask_at = time.monotonic() + LOOK_S
                self._asker = threading.Thread(target=self._ask, args=(self.lives, sorted(hub.awaited)), daemon=True)
                self._asker.start()
            if self._leaving:
                hub.leaves(time.monotonic())
                end = min(end, time.monotonic() + FAREWELL_S)

    def _stir(self) -> None:
        """Have it look."""
        self._inbox.put_nowait(None)

    def _take(self, rank: int, message: FromRank | Joined | Gone | MessageError) -> None:
        match message:
            case Joined():
                self._disbelieved.discard(rank)
            case _ if rank in self._disbelieved:
                return
            case MessageError():
                self._nonsense(rank, message)
                return
            case RankJournal():
                self._journals[rank] = message
            case Saw(text):
                self._saw[rank] = text
        try:
            self.hub.take(rank, message, time.monotonic())
        except MessageError as error:
            self._nonsense(rank, error)

    def _nonsense(self, rank: int, error: MessageError) -> None:
        log.warning("rank %d has sent nonsense: %s", rank, error)
        cause = TAMPERED if isinstance(error, TamperedError) else f"has sent nonsense: {error}"
        self._disbelieved.add(rank)  # whatever it still says
        for said in (Broken(cause), Gone()):
            self.hub.take(rank, said, time.monotonic())

    def _ask(self, lives: Callable[[int], bool], numbers: Sequence[int]) -> None:
        """Which of these do not live, in threads of their own, side by side: one whose machine says nothing has its
        asker wait."""

        def ask(some: Sequence[int]) -> None:
            for number in some:
                if not lives(number):
                    self._call(partial(self.hub.dead, number, time.monotonic()))

        askers = [threading.Thread(target=ask, args=(numbers[first::ASKERS],), daemon=True) for first in range(ASKERS)][
            : len(numbers)
        ]
        for asker in askers:  # no pool: those of the standard library take nothing once the main thread has ended
            asker.start()
        for asker in askers:
            asker.join()
        self._call(self._stir)

    def _absence(self, missing: Collection[int]) -> str:
        where = "to {}:{} ".format(*self._listening) if self._listening else ""
        late = f"{len(missing)} of {len(self._ranks)} ranks have not come {where}within {self._within_s:.3g} s"
        return f"{late}: {some(sorted(missing))}"

    def _note(self, news: tuple[int, Json] | RunFailed | None) -> None:
        if isinstance(news, RunFailed):
            self._failed_at = time.monotonic()
            if not self._commands:
                level = logging.INFO if news.cause == has_closed(news.rank) else logging.WARNING
                log.log(level, "%s", RankFailedError(news.rank, news.cause))
        self.news.put(news)

    # --- connections -------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admit(
        self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, of_rank: Seal, of_hub: Seal
    ) -> None:
        """A rank that others have started."""
        prepare(writer.get_extra_info("socket"))
        self._inbox.put_nowait((rank, Joined()))
        await self._serve(rank, reader, writer, of_rank, of_hub)

    async def _serve(
        self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, of_rank: Seal, of_hub: Seal
    ) -> None:
        """A rank's connection up to its end."""
        self._lines[rank] = _Line(writer, of_hub)
        try:
            while True:
                message = decode(of_rank.unseal(await read_frame(reader, FRAME_LIMIT + TAG_BYTES)), FROM_RANK)
                if isinstance(message, AskTime):
                    self._write(rank, encode(Time(message.turn, time.monotonic())))
                else:
                    self._inbox.put_nowait((rank, message))
        except MessageError as error:
            self._inbox.put_nowait((rank, error))  # behind what was believed
            with contextlib.suppress(OSError):
                while await reader.read(1 << 16):
                    pass  # it is believed no more, and still told the verdict
        except (OSError, asyncio.IncompleteReadError):
            until = time.monotonic() + FAREWELL_S
            while (cause := self._obituary(rank)) is None and time.monotonic() < until:
                await asyncio.sleep(LOOK_S / 10)
            self._inbox.put_nowait((rank, Gone(cause or "closed its control connection")))
        finally:
            del self._lines[rank]
            writer.close()

    def say(self, ranks: Iterable[int], message: ToRank) -> None:
        """Say something to some ranks; one that is gone hears nothing."""
        data = encode(message)
        if len(data) > FRAME_LIMIT:
            raise MessageError(f"{len(data)} bytes in one message, at most {FRAME_LIMIT} can be sent")
        for rank in ranks:
            self._write(rank, data)

    def _write(self, rank: int, data: bytes) -> None:
        line = self._lines.get(rank)
        if line and not line.writer.is_closing():
            line.writer.write(framed(line.seal.seal(data)))

    async def _hang_up(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), FLUSH_S)
        writer.transport.abort()
