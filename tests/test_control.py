"""The control channel: who is let in, what is believed, and that nobody can hold up the others."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optcc.runtime import control as control_module
from optcc.runtime import hub as hub_module
from optcc.runtime import messages, switchboard
from optcc.runtime.codec import encode
from optcc.runtime.control import Control, HubLostError
from optcc.runtime.errors import RankFailedError, TransportError
from optcc.runtime.greeting import PROTOCOL, Challenge, Hello, Proof, RefusedError, proof, proves
from optcc.runtime.hub import Hub
from optcc.runtime.messages import (
    Broken,
    Check,
    Go,
    Parcel,
    Ping,
    Pong,
    Post,
    Prepare,
    Reply,
    Saw,
    Share,
)

ROOT = Path(__file__).resolve().parent.parent
SECRET = b"a secret of a test, long enough"


def member(hub: Hub, rank: int = 0, world: int = 1, **but: Any) -> Control:
    """A rank that joins; `but`: what it says differently."""
    who: dict[str, Any] = {"job": "it", "secret": SECRET, "rank": rank, "world": world, "within_s": 10.0}
    return Control.join(hub.address, **{**who, **but})


@contextlib.contextmanager
def star(ranks: int, **settings: Any) -> Iterator[tuple[Hub, list[Control]]]:
    """A hub and its ranks, all in this process."""
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(Hub(ranks, job="it", secret=SECRET, **settings))
        members = [stack.enter_context(member(hub, rank, ranks)) for rank in range(ranks)]
        hub.gather(10)
        yield hub, members


def together(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls made at the same time, or their errors."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures: list[Future[Any]] = [pool.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def works(hub: Hub, members: list[Control]) -> bool:
    """Whether an exchange among all and an order to all succeed."""

    def obey(control: Control) -> list[Any]:
        values = control.exchange(control.rank)
        control.command()
        control.tell(Reply(control.rank))
        return values

    everyone = list(range(len(members)))
    *values, replies = together(*(lambda c=c: obey(c) for c in members), lambda: hub.order(Check(), 10))
    return values == [everyone] * len(members) and replies == everyone


def eventually(what: Callable[[], bool], within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


# --- who is let in --------------------------------------------------------------------------------------------------

REFUSED = {
    "wrong secret": ({"secret": b"another secret, long enough"}, "wrong secret"),
    "foreign job": ({"job": "that"}, "this is job 'it', not 'that'"),
    "other world": ({"world": 3}, "this job has 2 ranks, not 3"),
    "rank too high": ({"rank": 2}, "rank 2 is not one of 0 to 1"),
    "negative rank": ({"rank": -1}, "rank -1 is not one of 0 to 1"),
    "duplicate": ({"rank": 0}, "rank 0 is here already"),
}


@pytest.mark.parametrize(("but", "why"), REFUSED.values(), ids=REFUSED)
def test_who_does_not_belong_is_refused(but: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture) -> None:
    with star(2) as (hub, members):
        with pytest.raises(RefusedError, match=f"the hub refuses .*{why}"):
            member(hub, **{"rank": 0, "world": 2, **but})
        assert works(hub, members)
    (line,) = caplog.messages
    assert re.fullmatch(rf"refused a connection from 127.0.0.1:\d+: {why}", line)


def test_who_belongs_is_not_refused(caplog: pytest.LogCaptureFixture) -> None:
    with star(2) as (hub, members):
        assert works(hub, members)
    assert caplog.messages == []


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with star(1) as (hub, members):
        monkeypatch.setattr(control_module, "PROTOCOL", PROTOCOL + 1)
        with pytest.raises(RefusedError, match=f"protocol {PROTOCOL} is spoken here, not {PROTOCOL + 1}"):
            member(hub)
        assert works(hub, members)
    assert len(caplog.messages) == 1


def test_a_hub_that_does_not_know_the_secret_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard, "proves", lambda *_: True)  # it takes everybody, to learn what they say
    with Hub(1, job="it", secret=b"a guess") as hub, pytest.raises(RefusedError, match="does not know the secret"):
        member(hub)


def test_a_proof_serves_once_and_for_one_role() -> None:
    hello, challenge = Hello(PROTOCOL, "it", 0, 2, "ab"), Challenge("cd")
    right = proof(SECRET, "rank", hello, challenge)
    assert proves(right, SECRET, "rank", hello, challenge)
    assert not proves(right, SECRET, "hub", hello, challenge), "sent back"
    assert not proves(right, SECRET, "rank", hello, Challenge("ce")), "used again"
    assert not proves(right, SECRET, "rank", replace(hello, rank=1), challenge), "for another rank"
    assert not proves(right, SECRET, "rank", replace(hello, job="that"), challenge), "for another job"
    assert not proves(right, b"", "rank", hello, challenge)
    assert not proves(Proof("\udcff"), SECRET, "rank", hello, challenge)


GARBAGE = {
    "a web browser": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "a pickle": struct.pack("!i", 20) + pickle.dumps({"a": 1}).ljust(20, b"."),
    "too long": struct.pack("!i", 4097),
    "negative length": struct.pack("!i", -7),
    "a command": struct.pack("!i", len(encode(Go(0.0)))) + encode(Go(0.0)),
    "cut short": struct.pack("!i", 100) + b"{",
    "an odd proof": b"".join(
        struct.pack("!i", len(data)) + data
        for data in (encode(Hello(PROTOCOL, "it", 0, 1, "\udcff")), encode(Proof("\udcff")))
    ),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_harms_nobody(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with star(1) as (hub, members):
        with socket.create_connection(hub.address) as stranger:
            stranger.settimeout(10)
            stranger.sendall(garbage)
            stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass
        assert eventually(lambda: bool(caplog.messages))
        assert works(hub, members)
    (line,) = caplog.messages
    assert line.startswith("refused a connection from 127.0.0.1:")
    assert "\n" not in line


def test_silent_strangers_hold_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with Hub(1, job="it", secret=SECRET) as hub, contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection(hub.address))
        control = stack.enter_context(member(hub))
        hub.gather(10)
        assert works(hub, [control])
        assert caplog.messages == [], "the strangers are still silent"


def test_the_silent_and_the_slow_are_sent_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(switchboard, "GREETING_S", 0.3)
    with Hub(1, job="it", secret=SECRET) as hub, contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_connection(hub.address, 10))
        slow = stack.enter_context(socket.create_connection(hub.address))
        slow.sendall(struct.pack("!i", 100))
        assert silent.recv(1) == b""
        with contextlib.suppress(OSError):
            while True:  # a byte now and then does not help
                slow.sendall(b" ")
                time.sleep(0.02)
    assert len(caplog.messages) == 2
    assert all("not introduced within 0.3 s" in line for line in caplog.messages)


def test_a_crowd_of_strangers_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(switchboard, "STRANGERS", 3)
    monkeypatch.setattr(switchboard, "GREETING_S", 1.0)
    with Hub(1, job="it", secret=SECRET) as hub, contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection(hub.address))
        assert eventually(lambda: sum("3 others are introducing" in line for line in caplog.messages) == 2)
        control = stack.enter_context(member(hub))  # which comes back until there is room
        hub.gather(10)
        assert works(hub, [control])


def test_those_who_have_not_come_are_named() -> None:
    missing = r"3 of 4 ranks have not come to 127.0.0.1:\d+ within 0.3 s: 0, 1, 3$"
    with Hub(4, job="it", secret=SECRET) as hub, member(hub, 2, 4), pytest.raises(TransportError, match=missing):
        hub.gather(0.3)


def test_one_that_ends_before_it_has_come_is_named_at_once() -> None:
    hub = Hub(2, job="it", secret=SECRET, obituary=lambda rank: f"exited as {rank}")
    with hub, pytest.raises(RankFailedError, match="rank 1 failed: exited as 1"):
        hub.gather(60, ended=lambda rank: rank == 1)


def test_a_hub_that_is_not_there_is_not_waited_for_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with pytest.raises(HubLostError, match=r"no hub answers at 127.0.0.1:\d+ within 0.3 s: .*refused"):
        Control.join(address, job="it", secret=SECRET, rank=0, world=1, within_s=0.3)


def test_ranks_may_come_before_the_hub() -> None:
    with socket.create_server(("127.0.0.1", 0)) as early:
        port = early.getsockname()[1]
    address = ("127.0.0.1", port)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(Control.join, address, job="it", secret=SECRET, rank=0, world=1, within_s=10)
        time.sleep(0.2)
        with Hub(1, job="it", secret=SECRET, port=port) as hub, coming.result() as control:
            hub.gather(10)
            assert works(hub, [control])


def test_a_port_in_use_is_a_clear_error() -> None:
    in_use = r"cannot listen for ranks at 127\.0\.0\.1:\d+: .*in use"
    with Hub(1, job="it", secret=SECRET) as hub, pytest.raises(TransportError, match=in_use):
        Hub(1, job="it", secret=SECRET, port=hub.address[1])


# --- the conversation -----------------------------------------------------------------------------------------------


def test_a_large_parcel_arrives_whole() -> None:
    data = np.random.default_rng(1).bytes(40_000_001)
    with star(2) as (hub, members):
        hub.ship(data)
        hub.send([1], Ping())  # in between is answered in between
        got = together(*(lambda c=c: c.parcel(30) for c in members))
        assert got == [data, data]
        assert works(hub, members)


def test_a_parcel_that_is_not_what_was_announced_is_refused() -> None:
    with star(1) as (hub, (control,)):
        hub.send([0], Parcel(0, "0" * 64))
        with pytest.raises(HubLostError, match="is not what it has announced"):
            control.parcel(10)


def test_commands_without_waiting_and_in_order() -> None:
    with star(1) as (hub, (control,)):
        assert control.poll_command() is None
        hub.send([0], Prepare("a", []))
        hub.send([0], Prepare("b", []))
        assert control.command() == Prepare("a", [])
        assert control.command() == Prepare("b", [])
        assert control.poll_command() is None


def test_a_command_that_comes_during_an_exchange_is_kept() -> None:
    with star(2) as (hub, members):
        hub.send([0], Prepare("later", []))
        first = together(lambda: members[0].exchange("a"), lambda: members[1].exchange("b"))
        assert first == [["a", "b"]] * 2
        assert members[0].poll_command() == Prepare("later", [])


def test_exchanges_do_not_mix() -> None:
    with star(3) as (_, members):

        def three(control: Control) -> list[Any]:
            return [control.exchange([control.rank, turn]) for turn in range(3)]

        results = together(*(lambda c=c: three(c) for c in members))
        assert results == [[[[rank, turn] for rank in range(3)] for turn in range(3)]] * 3


def test_an_exchange_that_is_not_joined_ends() -> None:
    with star(2) as (_, members), pytest.raises(HubLostError, match=r"values of all ranks in exchange 1 within 0.2 s"):
        members[0].exchange("alone", within_s=0.2)


def test_letters_come_with_their_sender_and_in_order() -> None:
    with star(3) as (_, members):
        got: list[tuple[int, Any]] = []
        members[2].on_letter = lambda origin, value: got.append((origin, value))
        for turn in range(20):
            members[0].send(2, {"turn": turn})
        members[1].send(2, None)

        def all_there() -> bool:
            members[2].check()
            return len(got) == 21

        assert eventually(all_there)
        assert [value["turn"] for origin, value in got if origin == 0] == list(range(20))
        assert (1, None) in got
        for other in members[:2]:
            other.on_letter = lambda *_: pytest.fail("a letter to somebody else")
            other.check()


def test_a_rank_that_does_not_read_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard, "BACKLOG", 1 << 20)
    with star(3) as (hub, members):
        for _ in range(200):
            members[0].send(1, "x" * 100_000)  # rank 1 reads none of them
        got: list[Any] = []
        members[2].on_letter = lambda origin, value: got.append(value)
        members[0].send(2, "through")

        def arrived() -> bool:
            members[2].check()
            return got == ["through"]

        assert eventually(arrived)
        unread: list[Any] = []
        members[1].on_letter = lambda origin, value: unread.append(value)
        assert works(hub, members), "it still gets what is not a letter"
        assert 0 < len(unread) < 200, "letters beyond the backlog are dropped"


def test_pings_are_answered_by_whoever_waits() -> None:
    with star(1) as (hub, (control,)):
        control.state = lambda: Pong(7, "Godot")
        hub.send([0], Ping())
        control.sleep_until(time.monotonic() + 0.2)
        assert [message for _, message in hub._hear(5)] == [Pong(7, "Godot")]


WAITS: dict[str, Callable[[Control], Any]] = {
    "command": lambda control: control.command(),
    "exchange": lambda control: control.exchange(None),
    "sleep": lambda control: control.sleep_until(time.monotonic() + 10),
    "parcel": lambda control: control.parcel(10),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_the_verdict_reaches_all_wherever_they_wait(wait: Callable[[Control], Any]) -> None:
    with star(3) as (hub, members):

        def say(control: Control, wait: Callable[[Control], Any] = wait) -> None:
            try:
                wait(control)
            except RankFailedError as verdict:
                control.tell(Saw(str(verdict)))

        def breaks() -> None:
            members[1].tell(Broken("has a fit"))
            say(members[1], Control.command)

        error = together(lambda: hub.replies(10), lambda: say(members[0]), breaks, lambda: say(members[2]))[0]
        assert isinstance(error, RankFailedError)
        assert str(error) == "rank 1 failed: has a fit"
        assert error.seen_by == dict.fromkeys(range(3), "rank 1 failed: has a fit")


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_hub_that_is_gone_is_noticed_wherever_one_waits(wait: Callable[[Control], Any]) -> None:
    with contextlib.ExitStack() as stack:
        with Hub(2, job="it", secret=SECRET) as hub:
            control = stack.enter_context(member(hub, 0, 2))
        with pytest.raises(HubLostError, match="lost the hub"):
            wait(control)


def test_a_rank_that_hangs_up_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "FAREWELL_S", 0.2)  # nobody here listens to the verdict
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(Hub(2, job="it", secret=SECRET))
        leaving = member(hub, 0, 2)
        stack.enter_context(member(hub, 1, 2))
        hub.gather(10)
        leaving.__exit__()
        with pytest.raises(RankFailedError, match="rank 0 failed: closed its control connection"):
            hub.order(Check(), 10)


@pytest.mark.parametrize(
    ("nonsense", "complaint"),
    [
        (encode(Go(0.0)), "unexpected kind of message 'Go'"),
        (b"garbage", "7 bytes that are not JSON"),
        (encode(Post(9, None)), "a letter to rank 9"),
        (encode(Share(1, None)) + b" ", "a second value in exchange 1"),
    ],
)
def test_a_rank_that_talks_nonsense_has_failed(
    nonsense: bytes, complaint: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "FAREWELL_S", 0.2)  # nobody here listens to the verdict
    with star(2) as (hub, members):
        members[0]._send(Share(1, None))
        members[0]._connection.send_bytes(nonsense)
        with pytest.raises(RankFailedError, match=f"rank 0 failed: has sent nonsense: {complaint}"):
            hub.replies(10)
    assert any(f"rank 0 has sent nonsense: {complaint}" in line for line in caplog.messages)


def test_a_message_beyond_the_limit_is_refused_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "FRAME_LIMIT", 1000)
    with star(1) as (hub, (control,)):
        with pytest.raises(TransportError, match="bytes in one message, at most 1000 can be sent"):
            control.exchange("x" * 1000)
        hub.send([0], Prepare("x" * 1000, []))
        with pytest.raises(HubLostError, match="bad message length"):
            control.command()
    monkeypatch.setattr(control_module, "FRAME_LIMIT", messages.FRAME_LIMIT)
    monkeypatch.setattr(switchboard, "FRAME_LIMIT", 1000)
    monkeypatch.setattr(hub_module, "FAREWELL_S", 0.2)
    with star(1) as (hub, (control,)):
        control.send(0, "x" * 1000)
        with pytest.raises(RankFailedError, match="at most 1000 are taken"):
            hub.replies(10)


def test_half_a_message_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "FRAME_S", 0.3)
    with star(1) as (hub, (control,)):
        board = hub._board
        board._call(lambda: board._write(0, struct.pack("!i", 100) + b"{"))
        assert eventually(lambda: control._wait(0))
        with pytest.raises(HubLostError, match="lost the hub"):
            control.check()


def test_small_messages_are_not_delayed() -> None:
    with star(1) as (hub, (control,)):
        theirs = hub._board._writers[0].get_extra_info("socket")
        with socket.socket(fileno=os.dup(control.fileno())) as ours:
            for sock in (theirs, ours):
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_nothing_is_left() -> None:
    def everything() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    with star(1):
        pass  # what Python itself keeps from the first time on
    before = everything()
    for _ in range(3):
        with star(3) as (hub, members), socket.create_connection(hub.address):
            assert works(hub, members)
    assert everything() == before


@pytest.mark.parametrize("properly", [True, False])
def test_last_words_are_not_lost_to_what_is_still_said(properly: bool) -> None:
    """The control: who just closes a connection with something unread resets it, under whatever was said last."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    rank = Control(Connection(near.detach()), 0, 1)
    far.settimeout(10)
    far.sendall(b"letters that nobody reads any more")
    rank.tell(Saw("the end"))
    assert b"the end" in far.recv(1 << 16)
    if not properly:
        rank.__exit__()
        with pytest.raises(ConnectionResetError):
            far.recv(1)
        far.close()
        return
    leaving = threading.Thread(target=rank.hang_up, args=(10.0,))
    leaving.start()
    assert far.recv(1) == b"", "an end, and no error"
    far.sendall(b"one more")
    far.close()
    leaving.join(10)
    assert not leaving.is_alive(), "it waits no longer than for that"
    rank.__exit__()


def test_a_rank_does_not_wait_for_ever_for_a_hub_to_hang_up() -> None:
    near, far = socket.socketpair()
    rank = Control(Connection(near.detach()), 0, 1)
    rank.hang_up(0.01)
    rank.__exit__()
    far.close()
