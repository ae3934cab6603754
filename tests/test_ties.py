"""What a rank does on its way to the next group, beside what `go_on` decides: whom it asks, what counts as answer."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from optcc.errors import InputError
from optcc.runtime.codec import decode, encode
from optcc.runtime.control import door, member
from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import SILENCE_S
from optcc.runtime.control.judgement import HUB, JoinGroup, Missed
from optcc.runtime.control.member import HUB_GONE, Member, Ties
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.errors import RankFailedError
from optcc.runtime.messages import FROM_RANK, Regroup, Shrink
from tests.control_star import DOOR, eventually, opened
from tests.free_port import free_port


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


def test_a_verdict_takes_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hangs up before it asks anew may have none left."""

    def dup(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with hub_and_rank() as (ties, _):
        monkeypatch.setattr(os, "dup", dup)
        assert ties.hear().cause == HUB_GONE


def left_by_the_hub(number: int, doors: list[Any], listener: socket.socket | None = None) -> Ties:
    """Those of a rank of three, to which the hub says nothing any more."""
    ours, theirs = socket.socketpair()
    ours.close()
    control = Control(Connection(theirs.detach()), number, 3)
    return Ties(Membership(number, 3, doors[0], "it", "secret"), [0, 1, 2], doors, control, 10.0, listener)


def test_who_knows_the_verdict_tells_it_when_the_hub_is_gone() -> None:
    """Also where its program does something else before it shrinks; but not while a lower rank lives, which does."""
    listener = door.listening("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as lower:
        doors = [lower.getsockname(), listener.getsockname(), ("127.0.0.1", free_port())]
        teller, asker = left_by_the_hub(1, doors, listener), left_by_the_hub(2, doors)
        teller.tend(RankFailedError(2, "it is lost"))
        assert teller.overseer is None
    assert eventually(lambda: teller.tend(RankFailedError(2, "it is lost")) or teller.overseer)
    heard = asker.hear()
    assert (heard.rank, heard.cause) == (2, "it is lost")
    for ties in (asker, teller):
        ties.hang_up()
        ties.leave()


def test_who_knows_nothing_and_has_nobody_to_ask_says_that_the_hub_is_gone() -> None:
    listener = door.listening("127.0.0.1", 0)
    doors: list[Any] = [("127.0.0.1", free_port()), listener.getsockname(), ("127.0.0.1", free_port())]
    teller, asker = left_by_the_hub(1, doors, listener), left_by_the_hub(2, doors)
    assert [ties.hear().cause for ties in (teller, asker)] == [HUB_GONE, HUB_GONE]
    for ties in (asker, teller):
        ties.hang_up()
        ties.leave()


def ties_to(*listeners: socket.socket | None) -> Ties:
    """Of rank 0; where the others listen, by number from 1 on, or did."""
    control: Any = SimpleNamespace(__exit__=lambda: None)
    doors = [("127.0.0.1", 1), *(each.getsockname() if each else ("127.0.0.1", free_port()) for each in listeners)]
    first = Membership(0, len(doors), doors[0], "it", "secret")
    return Ties(first, [*range(len(doors))], doors, control, 1.0, hub=HUB)


def no_way(monkeypatch: pytest.MonkeyPatch, number: int) -> list[float]:
    """Nothing can be reached from this machine; the times that its monotonic clock shows, the last of them."""
    clock = [1000.0]

    def connect(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(member, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    return clock


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.EMFILE, errno.EHOSTUNREACH, errno.ETIMEDOUT])
def test_whom_this_machine_cannot_ask_may_live(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as any machine may be silent."""
    ties = ties_to(None)
    clock = no_way(monkeypatch, number)
    assert ties.lives(1)
    clock[0] += SILENCE_S - 0.1
    assert ties.lives(1)
    clock[0] += 0.2
    assert not ties.lives(1)


def test_who_refuses_does_not_live() -> None:
    assert not ties_to(None).lives(1)


@pytest.mark.parametrize(
    ("number", "missed"),
    [
        (errno.ENETUNREACH, Missed.LOST),
        (errno.EMFILE, Missed.LOST),
        (errno.ECONNREFUSED, Missed.GONE),
        (errno.EHOSTUNREACH, Missed.GONE),
        (errno.ETIMEDOUT, Missed.GONE),
    ],
)
def test_a_hub_that_this_machine_cannot_ask_is_not_gone(
    number: int, missed: Missed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ties = ties_to(None)
    clock = no_way(monkeypatch, number)
    assert ties.call(1, [], clock[0] + 60.0) == missed
    if missed == Missed.LOST:
        assert ties.call(1, [], clock[0]) == Missed.LATE


def test_a_rank_in_a_long_step_is_not_asked_to_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes nobody in, and few can queue there."""
    monkeypatch.setattr(member, "SILENCE_S", 0)
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        ties = ties_to(listener)
        assert all(ties.lives(1) for _ in range(100))
    assert eventually(lambda: not ties.lives(1))  # it has ended
    ties.leave()


def test_a_hub_that_sends_strangers_away_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It greets them, and waits for no answer."""
    monkeypatch.setattr(door, "GREETING_S", 0.05)
    listener = door.listening("127.0.0.1", 0)
    ties = ties_to(listener)
    with opened(2, replace(DOOR, listener=listener)):
        for _ in range(20):
            assert ties.lives(1)
            time.sleep(0.01)
    assert eventually(lambda: not ties.lives(1))  # the last greeting may be unread
    ties.leave()


def test_a_connection_that_has_fallen_silent_tells_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has asked for SILENCE_S; nobody waits as long once more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ties = ties_to(listener)
        assert ties.lives(1)

        class Silent(socket.socket):
            def recv(self, *_: Any) -> bytes:
                raise TimeoutError(errno.ETIMEDOUT, "no answer")

        ties._held.pop(1).close()
        ties._held[1] = Silent()
        assert ties.lives(1)  # it answers again
        ties._held.pop(1).close()
        ties._held[1] = Silent()
        no_way(monkeypatch, errno.ETIMEDOUT)
        assert not ties.lives(1)


def test_nothing_is_held_afterwards() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ties = ties_to(listener)
        assert ties.lives(1)
        held = ties._held[1]
        ties.leave()
        assert held.fileno() < 0
        assert ties.lives(1)  # a thread that still asks
        assert not ties._held
