"""What a rank does on its way to the next group, beside what `go_on` decides: whom it asks, what counts as answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from optcc.errors import InputError
from optcc.runtime.control import member
from optcc.runtime.control.judgement import HUB, JoinGroup
from optcc.runtime.control.member import HUB_GONE, Member, Ties
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.errors import RankFailedError


def test_who_has_failed_counts_in_the_group_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ranks 0 to 3 rank 1 is lost, then the hub of the group of 0, 2 and 3; nobody makes the next one, and shrink is
    called again."""
    asked: list[Any] = []

    def way(me: int, numbers: Any, hub: int, failed: int) -> Iterator[JoinGroup]:
        asked.append(([*numbers], failed))
        if len(asked) == 1:
            asked.append((yield JoinGroup([0, 2, 3])))
            asked.append((yield JoinGroup([2, 3])))
        raise InputError("nobody goes on")

    monkeypatch.setattr(member, "go_on", way)
    control: Any = SimpleNamespace(heir=lambda rank, world: control)
    ties = Ties(Membership(3, 4, ("127.0.0.1", 1), "it", "secret"), [0, 1, 2, 3], [("127.0.0.1", 1)] * 4, control, 1.0)
    lost = RankFailedError(1, "it is lost")
    this: Any = SimpleNamespace(_lock=threading.RLock(), failed=lost, timeout_s=1.0, _ties=ties, _numbers=[*range(4)])
    causes = iter((RankFailedError(1, "it is lost"), RankFailedError(0, HUB_GONE)))

    def join(*_: Any) -> None:
        raise next(causes)

    for _ in range(2):
        with contextlib.suppress(InputError):
            Member.shrink(this, join)
    assert asked == [([0, 1, 2, 3], 1), 2, HUB, ([0, 1, 2, 3], 1)]
    assert ties.numbers == [2, 3]
