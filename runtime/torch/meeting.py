"""All ranks of a group compare what they were given, before anything is made: all go on, or all raise.

They meet in the store by which they found each other, not in a collective. A rank that refuses need not wait for the
others, and one that never comes is named after the timeout.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch.distributed as dist

from optcc.errors import InputError, OptccError, some
from optcc.runtime.errors import PeerLostError, RankFailedError

LOOK_S = 0.05


class Meeting:
    """The next meeting of the ranks of `group`: rank r's n-th meets the others' n-th."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._store: Any = dist.distributed_c10d._get_default_store()
        self._rank, self._world = dist.get_rank(group), dist.get_world_size(group)
        first = dist.get_process_group_ranks(group)[0]  # groups that share no rank may share a name
        self._all = f"optcc/meeting/{group.group_name}/{first}"
        self._turn: int = self._store.add(self._met(self._rank), 1)
        self._place = f"{self._all}/{self._turn}"

    def refuse(self, error: InputError) -> NoReturn:
        """Raise this rank's `error`, on the other ranks too as soon as they come."""
        self._conclude({"error": str(error), "where": f"rank {self._rank}"})
        raise error

    def agree(self, given: str, groups: int, timeout_s: float) -> int:
        """The most of all ranks' `groups`; InputError on all where `given` differs or one is not there in time."""
        said = {"digest": hashlib.sha256(given.encode()).hexdigest(), "groups": groups}
        self._store.set(f"{self._place}/{self._rank}", json.dumps(said))
        if self._store.add(f"{self._place}/arrived", 1) == self._world:
            self._conclude(self._compared())
        end = time.monotonic() + timeout_s
        while not self._has("conclusion"):
            if time.monotonic() > end:
                self._conclude(self._missing(timeout_s))
            else:
                time.sleep(LOOK_S)
        concluded = json.loads(self._store.get(f"{self._place}/conclusion"))
        for rank in concluded.get("late", ()):  # it has missed this one, and next time is with the others again
            before = str(self._turn - 1) if self._turn > 1 else ""
            self._store.compare_set(self._met(rank), before, str(self._turn))
        if "error" in concluded:
            raise InputError(concluded["error"], where=concluded["where"])
        most: int = concluded["groups"]
        return most

    def _compared(self) -> dict[str, Any]:
        said = [json.loads(self._store.get(f"{self._place}/{rank}")) for rank in range(self._world)]
        odd = [rank for rank, one in enumerate(said) if one["digest"] != said[0]["digest"]]
        if odd:
            text = f"the ranks were given different things, other ones at {some(odd)} than at 0"
            return {"error": text, "where": "rates, policy, timeout_s or costs"}
        return {"groups": max(one["groups"] for one in said)}

    def _missing(self, timeout_s: float) -> dict[str, Any]:
        late = [rank for rank in range(self._world) if not self._has(str(rank))]
        text = f"no call from rank {some(late)} within {timeout_s:g} s, expected one from each rank of the group"
        return {"error": text, "where": "register", "late": late}

    def _conclude(self, conclusion: dict[str, Any]) -> None:
        """The first one stands."""
        self._store.compare_set(f"{self._place}/conclusion", "", json.dumps(conclusion))

    def _met(self, rank: int) -> str:
        return f"{self._all}/{rank}/met"

    def _has(self, what: str) -> bool:
        return bool(self._store.check([f"{self._place}/{what}"]))


# One error for all: which rank failed, agreed on through the store by which the ranks found each other.
#
# A closed connection shows its two ends that something is wrong, but not which rank: a rank that gives up closes its
# connections, and its neighbours blame it. So every rank that fails first reports whom it blames, then waits a bounded
# time for the others' reports. The first to judge writes the verdict, which all accept.

GRACE_S = 3.0
"""How long a rank that has failed waits for the others to report. Theirs fail as soon as it closes its connections."""

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
