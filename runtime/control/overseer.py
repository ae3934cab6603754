"""The hub of ranks that command themselves: it says who failed, has plans renewed, and brings together who is left."""

from __future__ import annotations

import logging
import math
import threading
import time

from optcc.runtime.control.failure_detector import GRACE_S, FailureDetector
from optcc.runtime.control.hub import FAREWELL_S, Hub
from optcc.runtime.control.interface import listening_address
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.control.router import Door, Gone, Joined
from optcc.runtime.messages import (
    Broken,
    FromRank,
    Halt,
    Halted,
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

REGROUP_S = 10.0
"""After the first rank that wants to go on without the failed one, for the others to say so, too."""


class Overseer(Hub):
    """A hub with a thread of its own, in rank 0's process. It ends when all ranks have left, or are gone.

    Ranks have `within_s` seconds to come. Each may say: a rank is lost (`Broken`), or it leaves (`Reply`), or NICs are
    dead (`LostNics`). The first ends the job on all ranks (`RunFailed`). NICs: all ranks halt and say in which
    operation they are (`Halt`, `Halted`); when the last of these is over, they plan anew (`Renew`). So all change plans
    at the same point without a message in any operation.
    """

    def __init__(self, ranks: int, door: Door, within_s: float) -> None:
        super().__init__(ranks, door)
        self._host, self._job, self._secret, self._within_s = door.host, door.job, door.secret, within_s
        self._awaited = set(self._ranks)  # those that have not come yet
        self._left: set[int] = set()
        self._dead_nics: list[str] = []
        self._renewing = False
        self._halted: dict[int, int] = {}
        self._failed: RunFailed | None = None
        self._late: Late | None = None
        self._late_at = 0.0
        self._wanting: dict[int, float] = {}  # ranks that want to go on -> since when
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
                for rank, message in self._hear(LOOK_S):
                    self._take(rank, message)
                if self._awaited and time.monotonic() > come_by:
                    why = f"not there: {self.absence(self._awaited, self._within_s)}"
                    self._detector.heard(min(self._awaited), Broken(why), time.monotonic())
                    self._awaited = set()
                verdict = None if self._failed else self._detector.verdict(time.monotonic()) or self._latest()
                if verdict:
                    self._failed = RunFailed(*verdict)
                    log.warning("rank %d failed: %s", *verdict)
                    self.send(self._ranks, self._failed)
                if self._wanting:
                    self._regroup()
                if self._gone.is_set():
                    end = min(end, time.monotonic() + FAREWELL_S)
        except Exception:
            log.exception("the overseer of %s ended", self._job)
        finally:
            self.__exit__()

    def _take(self, rank: int, message: FromRank | Joined | Gone) -> None:
        now = time.monotonic()
        match message:
            case Joined():
                self._awaited.discard(rank)
                if self._failed:
                    self.send([rank], self._failed)
            case Gone() if rank not in self._left:
                self._detector.heard(rank, Broken(self._obituary(rank)), now)
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
            case Shrink():
                self._wanting.setdefault(rank, now)

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
        return self._late.peer, self._late.cause

    def _regroup(self) -> None:
        """Give those that want to go on a hub of their own, once all that are there have said so, or long enough."""
        failed = self._failed.rank if self._failed else -1
        there = self._present - self._left - {failed}
        if not there <= self._wanting.keys() and time.monotonic() < min(self._wanting.values()) + REGROUP_S:
            return
        ranks = sorted(self._wanting.keys() - {failed})
        door = Door(f"{self._job}'", self._secret, self._host, 0)
        self.heir = Overseer(len(ranks), door, self._within_s).start()
        self.send(self._wanting, Regroup(ranks, self.heir.address[1]))
        self._wanting.clear()
