"""All ranks of a group compare what they were given, before anything is made: all go on, or all raise.

They meet in the store by which they found each other, not in a collective. A rank that refuses need not wait for the
others, and one that never comes is named after the timeout.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any, NoReturn

import torch.distributed as dist

from optcc.errors import InputError

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
            text = f"the ranks were given different things, other ones at {_some(odd)} than at 0"
            return {"error": text, "where": "rates, policy, timeout_s or costs"}
        return {"groups": max(one["groups"] for one in said)}

    def _missing(self, timeout_s: float) -> dict[str, Any]:
        late = [rank for rank in range(self._world) if not self._has(str(rank))]
        text = f"no call from rank {_some(late)} within {timeout_s:g} s, expected one from each rank of the group"
        return {"error": text, "where": "register", "late": late}

    def _conclude(self, conclusion: dict[str, Any]) -> None:
        """The first one stands."""
        self._store.compare_set(f"{self._place}/conclusion", "", json.dumps(conclusion))

    def _met(self, rank: int) -> str:
        return f"{self._all}/{rank}/met"

    def _has(self, what: str) -> bool:
        return bool(self._store.check([f"{self._place}/{what}"]))


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
