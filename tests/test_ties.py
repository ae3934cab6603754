"""What a rank does on its way to the next group, beside what `go_on` decides: whom it asks, what counts as answer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from optcc.errors import InputError
from optcc.runtime.codec import decode, encode
from optcc.runtime.control import member
from optcc.runtime.control.channel import Control
from optcc.runtime.control.judgement import HUB, JoinGroup, Missed
from optcc.runtime.control.member import HUB_GONE, Member, Ties
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.errors import RankFailedError
from optcc.runtime.messages import FROM_RANK, Regroup, Shrink


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


@contextlib.contextmanager
def hub_and_rank() -> Iterator[tuple[Ties, Connection]]:
    """Rank 1's ties, whose hub's end of the connection is the test's."""
    ours, theirs = socket.socketpair()
    with Connection(ours.detach()) as here, Connection(theirs.detach()) as there:
        first = Membership(1, 2, ("127.0.0.1", 1), "it", "secret")
        yield Ties(first, [0, 1], [("127.0.0.1", 1)] * 2, Control(there, 1, 2), 1.0), here


@pytest.mark.parametrize("past_s", [0.0, 5.0])
def test_an_answer_is_awaited_as_long_as_was_said(past_s: float) -> None:
    """Also where no time was left."""
    with hub_and_rank() as (ties, hub):
        said: list[Any] = []

        def answer() -> None:
            said.append(decode(hub.recv_bytes(), FROM_RANK))
            hub.send_bytes(encode(Regroup([1], [])))

        with ThreadPoolExecutor() as pool:
            done = pool.submit(answer)
            assert ties.call(0, [], time.monotonic() - past_s) == Regroup([1], [])
            done.result()
        assert said == [Shrink(1.0, [])]


def test_who_waits_no_longer_hangs_up() -> None:
    """The hub's end is told at once, and it can be closed afterwards as any other."""
    with hub_and_rank() as (ties, hub):
        assert ties.call(0, [], time.monotonic()) == Missed.LATE
        assert decode(hub.recv_bytes(), FROM_RANK) == Shrink(1.0, [])
        assert hub.poll(0)
        with pytest.raises(EOFError):
            hub.recv_bytes()
        hub.close()
        ties.hang_up()
