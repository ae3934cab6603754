"""The hub of ranks that command themselves: it says who failed, has plans renewed, and brings together who is left."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter

from optcc.runtime.control.failure_detector import GRACE_S, FailureDetector
from optcc.runtime.control.hub import FAREWELL_S, Hub
from optcc.runtime.control.interface import listening_address
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.control.router import Door, Gone, Joined
from optcc.runtime.errors import RankFailedError
from optcc.runtime.messages import (
    CLOSE,
    AskCall,
    Broken,
    FromRank,
    Halt,
    Halted,
    HasCalled,
    Late,
    LostNics,
    Regroup,
    Renew,
    Reply,
    RunFailed,
    Shrink,
)

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""Between two looks at what is due although nobody says anything."""

OPERATIONS = 1024
"""Of so many the calls are kept, to be compared: more than ranks that wait for each other can be apart."""

MOST = 7
"""Calls are told beside the one that differs, at most."""


class Overseer(Hub):
    """A hub with a thread of its own, in rank 0's process. It ends when all ranks have left, or are gone.

    Ranks have `within_s` seconds to come. Each may say: a rank is lost (`Broken`), it leaves (`Reply`), NICs are dead
    (`LostNics`), or what it has called (`HasCalled`), which all others are asked then. The first ends the job on all
    ranks (`RunFailed`), and so do calls that differ. NICs: all ranks halt and say in which operation they are (`Halt`,
    `Halted`). When the last of these is over, they plan anew (`Renew`). So all change plans at the same point without a
    message in any operation.
    """

    def __init__(self, ranks: int, door: Door, within_s: float) -> None:
        super().__init__(ranks, door, obituary=lambda rank: "its process has ended, or its connection was cut")
        self._host, self._job, self._secret, self._within_s = door.host, door.job, door.secret, within_s
        self._awaited = set(self._ranks)  # those that have not come yet
        self._left: set[int] = set()
        self._dead_nics: list[str] = []
        self._renewing = False
        self._halted: dict[int, int] = {}
        self._failed: RunFailed | None = None
        self._late: Late | None = None
        self._late_at = 0.0
        self._calls: dict[int, dict[int, str]] = {}  # operation -> rank -> what it has called
        self._differ: dict[int, dict[int, str]] = {}  # of these, the operations whose calls differ
        self._wanting: dict[int, float] = {}  # ranks that want to go on -> until when they wait for the others
        self._regrouped: Regroup | None = None
        self._regroup_s = 0.0  # what those that want to go on may take for it
        self._ended: set[int] = set()  # ranks that have ended on their way here from another hub
        self._detector = FailureDetector(ranks, math.inf, time.monotonic())
        self.heir: Overseer | None = None
        """The hub of those that go on after a verdict, once they are brought together."""
        self._gone = threading.Event()
        self._thread = threading.Thread(target=self._oversee, name="optcc overseer", daemon=True)

    @classmethod
    def open(cls, membership: Membership, interface: str | None, within_s: float) -> Overseer:
        """Listening at the address that the ranks know, and at work. Waits `within_s` seconds for ranks to come."""
        host = listening_address(membership.address[0], interface)
        door = Door(membership.job, membership.secret.encode(), host, membership.address[1])
        return cls(membership.world, door, within_s).start()

    def start(self) -> Overseer:
        """Listens, and is at work."""
        self.__enter__()
        self._thread.start()
        return self

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
                    why = f"not there: {self.absence(self._awaited, self._within_s)}"
                    self._detector.heard(min(self._awaited), Broken(why), time.monotonic())
                    self._awaited = set()
                now = time.monotonic()
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
            self.__exit__()

    def _fail(self, rank: int, cause: str) -> None:
        self._failed = RunFailed(rank, cause)
        log.log(logging.INFO if cause == _has_closed(rank) else logging.WARNING, "%s", RankFailedError(rank, cause))
        self.send(reversed(self._ranks), self._failed)  # rank 0, whose process may end at that, comes last

    def _take(self, rank: int, message: FromRank | Joined | Gone) -> None:
        now = time.monotonic()
        match message:
            case Joined():
                self._awaited.discard(rank)
                if self._failed:
                    self.send([rank], self._failed)
            case Gone() if rank not in self._left:
                self._detector.heard(rank, Broken(self._obituary(rank)), now)
                self._wanting.pop(rank, None)
                if self.heir and self._regrouped and rank in self._regrouped.ranks:
                    self.heir._ended.add(self._regrouped.ranks.index(rank))
            case Broken():
                self._detector.heard(rank, message, now)
            case Reply():
                self._left.add(rank)
            case LostNics(nics, back):
                news = [nic for nic in nics if nic not in self._dead_nics]
                self._dead_nics = [nic for nic in self._dead_nics if nic not in back] + news
                if (news or back) and not self._renewing:
                    self._renewing, self._halted = True, {}
                    self.send(self._ranks, Halt())
            case Halted(operation):
                self._halted[rank] = operation
                if self._renewing and len(self._halted) == len(self._ranks):
                    self._renewing = False
                    self.send(self._ranks, Renew(max(self._halted.values()), list(self._dead_nics)))
            case Late() if self._late is None:
                self._late, self._late_at, self._halted = message, now, {}
                self.send(self._ranks, Halt())
            case HasCalled(operation, call):
                calls = self._calls.setdefault(operation, {})
                if not calls:
                    self.send(self._ranks, AskCall(operation))
                    for old in sorted(self._calls)[:-OPERATIONS]:
                        del self._calls[old]
                calls[rank] = call
                if len(set(calls.values())) > 1:
                    self._differ[operation] = calls
            case Shrink() if self._regrouped:  # too late
                self.send([rank], self._regrouped)
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
        there = self._present - self._left - {failed}
        if not there <= self._wanting.keys() and time.monotonic() < min(self._wanting.values()):
            return
        ranks = sorted(self._wanting.keys() - {failed})
        port = 0
        if ranks:
            door = Door(f"{self._job}'", self._secret, self._host, 0)
            self.heir = Overseer(len(ranks), door, self._regroup_s).start()
            port = self.heir.address[1]
        self._regrouped = Regroup(ranks, port)
        self.send(self._ranks, self._regrouped)  # also those that come too late
        self._wanting.clear()


def _has_closed(rank: int) -> str:
    return f"rank {rank} has closed its communicator"
