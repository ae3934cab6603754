"""The hub of a job's ranks, which command themselves: it says who failed, has plans renewed, and brings together who is
left. For a command that wants calls made, it hands on what ranks are to do, and what they report."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from optcc.runtime.codec import Json
from optcc.runtime.control.connecting import Address
from optcc.runtime.control.rendezvous import Membership, listening_address
from optcc.runtime.control.router import Door, Gone, Heard, Joined, Router
from optcc.runtime.errors import RankFailedError, TransportError
from optcc.runtime.messages import (
    CLOSE,
    AskCall,
    Broken,
    FromRank,
    Halt,
    Halted,
    HasCalled,
    Late,
    Left,
    LostNics,
    RankJournal,
    Regroup,
    Renew,
    Report,
    RunFailed,
    Saw,
    Shrink,
    ToRank,
)

GRACE_S = 1.0
"""The peers of a rank that dies and the hub notice it in any order, milliseconds apart. So long after the first
accusation does the hub look for evidence of its own, and hear other ranks, before it takes a peer's word."""


class Accusation(NamedTuple):
    """A rank has lost another one."""

    blamed: int
    cause: str


def most_accused(accusations: Mapping[int, Accusation]) -> tuple[int, str]:
    """(the rank to blame, how it was lost) from what ranks say, at least one; by accuser, the first to speak first.

    A rank whose own NICs swallow everything loses its peers, too, and may be the first to say so. So the word of a rank
    that others accuse counts for less: to blame is whom most ranks accuse that nobody accuses; of those with as many,
    whom most ranks accuse at all; of those again, who was accused first.
    """

    def weight(rank: int) -> tuple[int, int]:
        by = [accuser for accuser, said in accusations.items() if said.blamed == rank]
        return sum(accuser not in accused for accuser in by), len(by)

    accused = {said.blamed for said in accusations.values()}
    culprit = max(dict.fromkeys(said.blamed for said in accusations.values()), key=weight)  # of equals the first
    witnesses = [accuser for accuser, said in accusations.items() if said.blamed == culprit]
    witness = min(witnesses, key=lambda accuser: accuser in accused)
    return culprit, f"rank {witness} {accusations[witness].cause}"


class FailureDetector:
    """Takes note of what ranks say, and judges. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._evidence: tuple[int, str] | None = None
        self._accusations: dict[int, Accusation] = {}  # by accuser, in the order in which they came
        self._accused_at = 0.0  # the first time

    def heard(self, rank: int, message: Broken, now: float) -> None:
        """Take note of what `rank` says."""
        match message:
            case Broken(cause, None):
                self._evidence = self._evidence or (rank, cause)
            case Broken(cause, int(blamed)):
                if not self._accusations:
                    self._accused_at = now
                self._accusations.setdefault(rank, Accusation(blamed, cause))

    def verdict(self, now: float) -> tuple[int, str] | None:
        """The rank that failed and how; None while there is hope."""
        if self._evidence:
            return self._evidence
        if self._accusations and now >= self._accused_at + GRACE_S:
            return most_accused(self._accusations)
        return None


log = logging.getLogger(__name__)

FAREWELL_S = 3.0
"""For ranks to report the verdict, or to leave, before they are left alone or killed."""

LOOK_S = 0.1
"""Between two looks at what is due although nobody says anything."""

ASK_S = 0.5
"""Between two looks whether the processes of ranks that are to come together are there."""

OPERATIONS = 1024
"""Of so many the calls are kept, to be compared: more than ranks that wait for each other can be apart."""

MOST = 7
"""Calls are told beside the one that differs, at most."""


class Overseer:
    """A hub with a thread of its own, in rank 0's process or a command's. It ends when all ranks have left or gone.

    Ranks have `within_s` seconds to come. Each may say: a rank is lost (`Broken`), it leaves (`Left`), NICs are dead
    (`LostNics`), or what it has called (`HasCalled`), which all others are asked then. The first ends the job on all
    ranks (`RunFailed`), and so do calls that differ. NICs: all ranks halt and say in which operation they are (`Halt`,
    `Halted`). When the last of these is over, they plan anew (`Renew`). So all change plans at the same point without a
    message in any operation.

    door : where it listens for ranks that others start; None: nowhere, all come by `attach`
    obituary : called with a rank that has hung up, says how it ended; None: nobody knows
    commands : it is a command's, which reads `news`, and says itself what has failed
    after : the verdict on ranks from 0 to this one, which are gone: it brings the others together, and does nothing
        else; lives : whether the process of one that has not come yet is there, as far as can be told
    """

    def __init__(
        self,
        ranks: int,
        door: Door | None,
        within_s: float,
        *,
        obituary: Callable[[int], str] = lambda rank: "its process has ended, or its connection was cut",
        commands: bool = False,
        after: RunFailed | None = None,
        lives: Callable[[int], bool] = lambda rank: True,
    ) -> None:
        try:
            self._board = Router(ranks, door)
        except OSError as error:
            where = f"{door.host}:{door.port}" if door else "a pair of sockets"
            raise TransportError(f"cannot listen for ranks at {where}: {error}") from error
        self._ranks, self._door, self._within_s = range(ranks), door, within_s
        self._obituary, self._commands = obituary, commands
        self._job = door.job if door else "a job"
        self.news: SimpleQueue[tuple[int, Json] | RunFailed | None] = SimpleQueue()
        """What ranks report, with the rank; None once all ranks are there; the verdict."""
        self._present: set[int] = set()
        self._journals: dict[int, RankJournal] = {}
        self._saw: dict[int, str] = {}
        self._after, self._lives, self._asked_at = after, lives, 0.0
        self._awaited = {rank for rank in self._ranks if not after or rank > after.rank}  # those that have not come yet
        self._left: set[int] = set()
        self._dead_nics: list[str] = []
        self._renewing = False
        self._halted: dict[int, int] = {}
        self._failed = after
        self._failed_at = 0.0
        self._late: Late | None = None
        self._late_at = 0.0
        self._calls: dict[int, dict[int, str]] = {}  # operation -> rank -> what it has called
        self._differ: dict[int, dict[int, str]] = {}  # of these, the operations whose calls differ
        self._wanting: dict[int, float] = {}  # ranks that want to go on -> until when they wait for the others
        self._regrouped: Regroup | None = None
        self._regroup_s = 0.0  # what those that want to go on may take for it
        self._ended: set[int] = set()  # ranks that have ended on their way here from another hub
        self._detector = FailureDetector()
        self.heir: Overseer | None = None
        """The hub of those that go on after a verdict, once they are brought together."""
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
        while len(self._present) < count and time.monotonic() < end:
            time.sleep(LOOK_S)
        return len(self._present) >= count

    def last_words(self) -> RankFailedError:
        """After the verdict: what was said about it, once all ranks that are left have, or long enough."""
        assert self._failed
        while self._present - self._saw.keys() and time.monotonic() < self._failed_at + FAREWELL_S:
            time.sleep(LOOK_S / 10)
        saw = dict(sorted(self._saw.items()))
        return RankFailedError(self._failed.rank, self._failed.cause, saw, self._journals, self._failed_at)

    def leave(self) -> None:
        """For the process that it is in: waits a moment until all ranks have left, then hangs up."""
        self._gone.set()
        self._thread.join(2 * FAREWELL_S)

    def _oversee(self) -> None:
        try:
            come_by, end = time.monotonic() + self._within_s, math.inf
            while (self._present - self._left or self._awaited) and time.monotonic() < end:
                ended = set(self._ended)  # those that came before they did have been heard of after the next line
                for rank, message in self._hear(LOOK_S):
                    self._take(rank, message)
                for rank in ended & self._awaited:
                    self._awaited.discard(rank)
                    self._detector.heard(rank, Broken(self._obituary(rank)), time.monotonic())
                if self._awaited and time.monotonic() > come_by:
                    why = f"not there: {self._absence()}"
                    self._detector.heard(min(self._awaited), Broken(why), time.monotonic())
                    self._awaited = set()
                now = time.monotonic()
                if self._after and now > self._asked_at + ASK_S:
                    self._asked_at = now
                    self._awaited = {rank for rank in self._awaited if self._lives(rank)}
                verdict = self._detector.verdict(now) or self._differing() or self._latest()
                if verdict and not self._failed:
                    self._fail(*verdict)
                if self._wanting:
                    self._regroup()
                if self._gone.is_set():
                    end = min(end, time.monotonic() + FAREWELL_S)
            if not self._failed and self._present - self._left:  # nobody tells them anything any more
                self._fail(0, _has_closed(0))
        except Exception:
            log.exception("the overseer of %s ended", self._job)
        finally:
            self._board.__exit__()

    def _absence(self) -> str:
        missing, within_s = self._awaited, self._within_s
        names = ", ".join(map(str, sorted(missing)[:8])) + (", ..." if len(missing) > 8 else "")
        where = "to {}:{} ".format(*self._board.address) if self._board.address else ""
        return f"{len(missing)} of {len(self._ranks)} ranks have not come {where}within {within_s:.3g} s: {names}"

    def _send(self, ranks: Iterable[int], message: ToRank) -> None:
        """Say something to some ranks, without waiting."""
        self._board.send(ranks, message)

    def _hear(self, timeout_s: float) -> list[Heard]:
        """What ranks have said within the timeout, or had said before; who is present is kept up to date."""
        heard: list[Heard] = []
        try:
            heard.append(self._board.inbox.get(timeout=timeout_s))
            while True:
                heard.append(self._board.inbox.get_nowait())
        except Empty:
            return heard

    def _fail(self, rank: int, cause: str) -> None:
        self._failed_at = time.monotonic()
        self._failed = RunFailed(rank, cause)
        if not self._commands:
            level = logging.INFO if cause == _has_closed(rank) else logging.WARNING
            log.log(level, "%s", RankFailedError(rank, cause))
        self.news.put(self._failed)
        self._send(reversed(self._ranks), self._failed)  # rank 0, whose process may end at that, comes last

    def _take(self, rank: int, message: FromRank | Joined | Gone) -> None:
        now = time.monotonic()
        if isinstance(message, Gone):
            self._present.discard(rank)
        else:
            self._present.add(rank)
            if rank in self._awaited:
                self._awaited.discard(rank)
                if not self._awaited:
                    self.news.put(None)
        match message:
            case Joined() if self._failed and not self._after:
                self._send([rank], self._failed)
            case RankJournal():
                self._journals[rank] = message
            case Saw(text):
                self._saw[rank] = text
            case Report(value):
                self.news.put((rank, value))
            case Gone() if rank not in self._left:
                self._detector.heard(rank, Broken(self._obituary(rank)), now)
                self._wanting.pop(rank, None)
                if self.heir and self._regrouped and rank in self._regrouped.ranks:
                    self.heir._ended.add(self._regrouped.ranks.index(rank))
            case Broken():
                self._detector.heard(rank, message, now)
            case Left():
                self._left.add(rank)
            case LostNics(nics, back):
                news = [nic for nic in nics if nic not in self._dead_nics]
                self._dead_nics = [nic for nic in self._dead_nics if nic not in back] + news
                if (news or back) and not self._renewing:
                    self._renewing, self._halted = True, {}
                    self._send(self._ranks, Halt())
            case Halted(operation):
                self._halted[rank] = operation
                if self._renewing and len(self._halted) == len(self._ranks):
                    self._renewing = False
                    self._send(self._ranks, Renew(max(self._halted.values()), list(self._dead_nics)))
            case Late() if self._late is None:
                self._late, self._late_at, self._halted = message, now, {}
                self._send(self._ranks, Halt())
            case HasCalled(operation, call):
                calls = self._calls.setdefault(operation, {})
                if not calls:
                    self._send(self._ranks, AskCall(operation))
                    for old in sorted(self._calls)[:-OPERATIONS]:
                        del self._calls[old]
                calls[rank] = call
                if len(set(calls.values())) > 1:
                    self._differ[operation] = calls
            case Shrink() if self._regrouped:  # too late
                self._send([rank], self._regrouped)
            case Shrink(within_s):
                self._wanting.setdefault(rank, now + within_s)
                self._regroup_s = max(self._regroup_s, within_s)

    def _differing(self) -> tuple[int, str] | None:
        """Of ranks that called different things, who is to blame: who closed; else who called what the fewest did.

        That is known once most have called the same, or all have called. A rank in a long step is awaited until then,
        as in any call, so until the first of the others has waited too long.
        """
        if not self._differ:
            return None
        calls = self._differ[min(self._differ)]
        closed = [rank for rank, call in calls.items() if call == CLOSE]
        if closed:
            return min(closed), _has_closed(min(closed))
        first = {call: rank for rank, call in sorted(calls.items(), reverse=True)}
        alike = Counter(calls.values())
        known = len(calls) == len(self._ranks) or 2 * max(alike.values()) > len(self._ranks)
        if not known and self._late is None:
            return None
        blamed, *others = sorted(first, key=lambda call: (alike[call], -first[call]))
        said = "; ".join(f"rank {first[call]}: {call}" for call in (blamed, *others[-MOST:]))
        return first[blamed], f"called something else than the others: {said}"

    def _latest(self) -> tuple[int, str] | None:
        """Of ranks that waited too long, who is to blame: one that says nothing, or is in an earlier operation."""
        if self._late is None or time.monotonic() < self._late_at + GRACE_S:
            return None
        silent = [rank for rank in self._ranks if rank not in self._halted]
        first = max(self._halted.values(), default=0)
        behind = [rank for rank, operation in self._halted.items() if operation < first]
        if silent:
            return silent[0], f"no sign of life; elsewhere: {self._late.cause}"
        if behind:
            return min(behind), f"has not come to operation {first}; elsewhere: {self._late.cause}"
        owing = self._board.owing()
        return min(owing, default=0) if self._late.peer is None else self._late.peer, self._late.cause

    def _regroup(self) -> None:
        """Give those that want to go on a hub of their own, once all that are there have said so, or long enough."""
        failed = self._failed.rank if self._failed else -1
        there = (self._present | self._awaited) - self._left - {failed}
        if not there <= self._wanting.keys() and time.monotonic() < min(self._wanting.values()):
            return
        ranks = sorted(self._wanting.keys() - {failed})
        port = 0
        if ranks:
            assert self._door
            door = replace(self._door, job=f"{self._job}'", port=0, listener=None)
            self.heir = Overseer(len(ranks), door, self._regroup_s).start()
            port = self.heir.address[1]
        self._regrouped = Regroup(ranks, port)
        self._send(self._ranks, self._regrouped)  # also those that come too late
        self._wanting.clear()


def _has_closed(rank: int) -> str:
    return f"rank {rank} has closed its communicator"
