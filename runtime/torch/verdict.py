"""One error for all: which rank failed, agreed on through the store by which the ranks found each other.

A closed connection shows its two ends that something is wrong, but not which rank: a rank that gives up closes its
connections, and its neighbours blame it. So every rank that fails first reports whom it blames, then waits a bounded
time for the others' reports. The first to judge writes the verdict, which all accept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from optcc.errors import OptccError
from optcc.runtime.errors import PeerLostError, RankFailedError

GRACE_S = 3.0
"""How long a rank that has failed waits for the others to report. Theirs fail as soon as it closes its connections."""

LOOK_S = 0.05

Reports = dict[int, tuple[int | None, str]]
"""Rank -> (whom it blames, itself included, or None where it does not know; why)."""


@dataclass(frozen=True)
class Court:
    """Rank `rank` of `world`, in the job called `name`; `store` is torch.distributed's."""

    store: Any
    name: str
    rank: int
    world: int
    grace_s: float = GRACE_S

    def judge(
        self, error: OptccError, before_waiting: Callable[[], None] = lambda: None, *, own: bool = False
    ) -> RankFailedError:
        """What every rank raises for this failure. Returns within the grace and a few questions to the store.

        before_waiting : called once this rank has reported: whatever makes the others notice
        own : this rank's own fault, not what a peer or a connection did
        """
        if isinstance(error, RankFailedError):
            return error
        blamed = self.rank if own else error.peer if isinstance(error, PeerLostError) else None
        try:
            self._put(f"report/{self.rank}", {"blames": blamed, "cause": str(error)})
            before_waiting()
            end = time.monotonic() + self.grace_s
            while time.monotonic() < end and not self._has("verdict") and len(self._reports()) < self.world:
                time.sleep(LOOK_S)
            if not self._has("verdict"):
                culprit, cause = verdict_of(self._reports(), self.world, self.grace_s)
                text = json.dumps({"rank": culprit, "cause": cause})
                self.store.compare_set(self._key("verdict"), "", text)
            found = json.loads(self.store.get(self._key("verdict")))
        except RuntimeError as lost:
            # The store lives in one process; without it nothing can be agreed on, and this rank says what it knows.
            return RankFailedError(
                self.rank if blamed is None else blamed,
                f"{error} (and the store does not answer: {type(lost).__name__})",
            )
        return RankFailedError(found["rank"], found["cause"])

    def _reports(self) -> Reports:
        found: Reports = {}
        for rank in range(self.world):
            if self._has(f"report/{rank}"):
                said = json.loads(self.store.get(self._key(f"report/{rank}")))
                found[rank] = (said["blames"], said["cause"])
        return found

    def _key(self, what: str) -> str:
        return f"optcc/{self.name}/{what}"

    def _put(self, what: str, said: dict[str, Any]) -> None:
        self.store.set(self._key(what), json.dumps(said))

    def _has(self, what: str) -> bool:
        return bool(self.store.check([self._key(what)]))


def verdict_of(reports: Reports, world: int, grace_s: float) -> tuple[int, str]:
    """(the rank that failed, how) from what `reports`, at least one, say.

    A rank that blames itself comes first, then a rank that reports nothing although its peers have given up (a blamed
    one first). Then comes the rank that the lowest rank blames.
    """
    for rank, (blamed, cause) in sorted(reports.items()):
        if blamed == rank:
            return rank, cause
    accused = {blamed: cause for _, (blamed, cause) in sorted(reports.items(), reverse=True) if blamed is not None}
    silent = [rank for rank in range(world) if rank not in reports]
    if silent:
        culprit = next((rank for rank in silent if rank in accused), silent[0])
        cause = accused.get(culprit, reports[min(reports)][1])
        return culprit, f"{cause}, and it does not answer within {grace_s:g} s"
    first = min(reports)
    blamed, cause = reports[first]
    return (first if blamed is None else blamed), cause
