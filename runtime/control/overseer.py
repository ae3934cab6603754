"""The hub of a job's ranks, at work: what `judgement.Hub` decides, with sockets, a thread and a clock. For a command
that wants calls made, it hands on what ranks are to do, and what they report."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from optcc.runtime.codec import Json
from optcc.runtime.control.connecting import Address
from optcc.runtime.control.judgement import CUT, Hub, has_closed
from optcc.runtime.control.rendezvous import Membership, listening_address
from optcc.runtime.control.router import Door, Heard, Router
from optcc.runtime.errors import RankFailedError, TransportError
from optcc.runtime.messages import (
    FromRank,
    Gone,
    Joined,
    RankJournal,
    RunFailed,
    Saw,
)

log = logging.getLogger(__name__)

FAREWELL_S = 3.0
"""For ranks to report the verdict, or to leave, before they are left alone or killed."""

LOOK_S = 0.1
"""Between two looks at what is due although nobody says anything."""

ASKERS = 64
"""Ranks are asked at the same time whether they live, at most."""


class Overseer:
    """A hub with a thread of its own, in a rank's process or a command's. It ends when all ranks have left or gone.

    Ranks have `within_s` seconds to come.

    door : where it listens for ranks that others start; None: nowhere, all come by `attach`
    obituary : called with a rank that has hung up, says how it ended; None: nobody knows
    commands : it is a command's, which reads `news`, and says itself what has failed
    lives : whether the process of one that is not connected is there, as far as can be told; called from several
        threads, for each rank from one at a time
    numbers, follows : of a hub that takes the place of another one: its group, and more as of `Hub`; None: all ranks
    """

    def __init__(
        self,
        ranks: int,
        door: Door | None,
        within_s: float,
        *,
        obituary: Callable[[int], str] = lambda rank: CUT,
        commands: bool = False,
        lives: Callable[[int], bool] = lambda rank: True,
        numbers: Sequence[int] | None = None,
        **follows: Any,
    ) -> None:
        try:
            self._board = Router(ranks, door, () if follows else None)
        except OSError as error:
            where = f"{door.host}:{door.port}" if door else "a pair of sockets"
            raise TransportError(f"cannot listen for ranks at {where}: {error}") from error
        self._ranks, self._within_s, self._commands = range(ranks), within_s, commands
        self._job = door.job if door else "a job"
        self.news: SimpleQueue[tuple[int, Json] | RunFailed | None] = SimpleQueue()
        """What ranks report, with the rank; None once all ranks are there; the verdict."""
        self._journals: dict[int, RankJournal] = {}
        self._saw: dict[int, str] = {}
        self._asked_at = 0.0
        self.lives = lives
        self._failed_at = 0.0
        self.hub = Hub(
            numbers or self._ranks,
            self._board.send,
            time.monotonic() + within_s,
            obituary=obituary,
            absence=self._absence,
            owing=self._board.owing,
            begin=self._board.begin,
            report=self._note,
            **follows,
        )
        self._gone = threading.Event()
        self._thread = threading.Thread(target=self._oversee, name="optcc overseer", daemon=True)

    @classmethod
    def open(cls, membership: Membership, interface: str | None, within_s: float, **how: Any) -> Overseer:
        """Listening at the address that the ranks know, and at work. Waits `within_s` seconds for ranks to come.
        `how` : as of Overseer"""
        host = listening_address(membership.address[0], interface)
        door = Door(membership.job, membership.secret.encode(), host, membership.address[1])
        return cls(membership.world, door, within_s, **how).start()

    def start(self) -> Overseer:
        """Listens, and is at work."""
        self._board.__enter__()
        self._thread.start()
        return self

    @property
    def address(self) -> Address:
        """Where it listens. Only of a hub with a door."""
        assert self._board.address
        return self._board.address

    def attach(self, rank: int) -> socket.socket:
        """A rank's end of a connection of its own, for its process to inherit; nobody else can get at it.

        For `Control`. Close it once the process has started, so that its end is noticed.
        """
        return self._board.attach(rank)

    def ship(self, data: bytes) -> None:
        """Send all ranks that are there a payload, without waiting; they take it by `Member.parcel`, in order."""
        self._board.ship(self._ranks, data)

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
        self._gone.set()
        self._thread.join(2 * FAREWELL_S)

    def _oversee(self) -> None:
        hub = self.hub
        try:
            end = math.inf
            while not hub.over and time.monotonic() < end:
                for rank, message in self._hear(LOOK_S):
                    self._take(rank, message)
                now = time.monotonic()
                hub.look(now)
                if hub.failed and now > self._asked_at + LOOK_S:
                    self._asked_at = now
                    for number in self._dead(sorted(hub.awaited)):
                        hub.dead(number, now)
                if self._gone.is_set():
                    end = min(end, time.monotonic() + FAREWELL_S)
            if not hub.failed and hub.staying:  # nobody tells them anything any more
                hub.fail(0, has_closed(0))
        except Exception:
            log.exception("the overseer of %s ended", self._job)
        finally:
            self._board.__exit__()

    def _dead(self, numbers: list[int]) -> list[int]:
        """Which of these do not live, asked side by side: one whose machine says nothing has its asker wait."""
        dead: list[int] = []

        def ask(some: list[int]) -> None:
            dead.extend(number for number in some if not self.lives(number))

        askers = [
            threading.Thread(target=ask, args=(numbers[first::ASKERS],), name="optcc asks who lives", daemon=True)
            for first in range(min(ASKERS, len(numbers)))
        ]
        for asker in askers:  # no pool: those of the standard library take nothing once the main thread has ended
            asker.start()
        for asker in askers:
            asker.join()
        return sorted(dead)

    def _absence(self, missing: Collection[int]) -> str:
        names = ", ".join(map(str, sorted(missing)[:8])) + (", ..." if len(missing) > 8 else "")
        where = "to {}:{} ".format(*self._board.address) if self._board.address else ""
        return f"{len(missing)} of {len(self._ranks)} ranks have not come {where}within {self._within_s:.3g} s: {names}"

    def _note(self, news: tuple[int, Json] | RunFailed | None) -> None:
        if isinstance(news, RunFailed):
            self._failed_at = time.monotonic()
            if not self._commands:
                level = logging.INFO if news.cause == has_closed(news.rank) else logging.WARNING
                log.log(level, "%s", RankFailedError(news.rank, news.cause))
        self.news.put(news)

    def _hear(self, timeout_s: float) -> list[Heard]:
        """What ranks have said within the timeout, or had said before."""
        heard: list[Heard] = []
        try:
            heard.append(self._board.inbox.get(timeout=timeout_s))
            while True:
                heard.append(self._board.inbox.get_nowait())
        except Empty:
            return heard

    def _take(self, rank: int, message: FromRank | Joined | Gone) -> None:
        match message:
            case RankJournal():
                self._journals[rank] = message
            case Saw(text):
                self._saw[rank] = text
        self.hub.take(rank, message, time.monotonic())
