"""The control channel, after the greeting: what is believed, and that nobody can hold up the others."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from optcc.runtime import messages
from optcc.runtime.codec import encode
from optcc.runtime.control import channel as control_module
from optcc.runtime.control import hub as hub_module
from optcc.runtime.control import router
from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import HubLostError
from optcc.runtime.control.hub import Hub
from optcc.runtime.errors import PeerLateError, RankFailedError, TransportError
from optcc.runtime.messages import PIECE, Broken, Check, Go, Payload, Ping, Pong, Post, Prepare, Saw, Share
from tests.control_star import DOOR, eventually, member, star, together, works


def test_a_large_parcel_arrives_whole() -> None:
    data = np.random.default_rng(1).bytes(40_000_001)
    with star(2) as (hub, members):
        hub.ship(data)
        hub.send([1], Ping())  # in between is answered in between
        got = together(*(lambda c=c: c.payload() for c in members))
        assert got == [data, data]
        assert works(hub, members)


def test_a_parcel_that_is_not_what_was_announced_is_refused() -> None:
    with star(1) as (hub, (control,)):
        hub.send([0], Payload(2))
        hub._board._call(lambda: hub._board._write(0, PIECE + b"abc"))
        with pytest.raises(HubLostError, match="is not what it has announced"):
            control.payload()


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
    with star(2) as (_, members):
        members[0].patience_s = 0.2
        with pytest.raises(PeerLateError, match=r"what all ranks say in exchange 1 has not come within 0.2 s"):
            members[0].exchange("alone")


def test_letters_come_with_their_sender_and_in_order() -> None:
    with star(3) as (_, members):
        got: list[tuple[int, Any]] = []
        members[2].on_message = lambda origin, value: got.append((origin, value))
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
            other.on_message = lambda *_: pytest.fail("a message to somebody else")
            other.check()


def test_a_rank_that_does_not_read_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "BACKLOG", 1 << 20)
    with star(3) as (hub, members):
        for _ in range(200):
            members[0].send(1, "x" * 100_000)  # rank 1 reads none of them
        got: list[Any] = []
        members[2].on_message = lambda origin, value: got.append(value)
        members[0].send(2, "through")

        def arrived() -> bool:
            members[2].check()
            return got == ["through"]

        assert eventually(arrived)
        unread: list[Any] = []
        members[1].on_message = lambda origin, value: unread.append(value)
        assert works(hub, members), "it still gets what is not a message"
        assert 0 < len(unread) < 200, "messages beyond the backlog are dropped"


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
    "payload": lambda control: control.payload(),
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
        with Hub(2, DOOR) as hub:
            control = stack.enter_context(member(hub, 0, 2))
        with pytest.raises(HubLostError, match="lost the hub"):
            wait(control)


def test_a_rank_that_hangs_up_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "FAREWELL_S", 0.2)  # nobody here listens to the verdict
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(Hub(2, DOOR))
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
        (encode(Post(9, None)), "a message to rank 9"),
        (encode(Share(1, None)) + b" ", "a second value in exchange 1"),
    ],
)
def test_a_rank_that_talks_nonsense_has_failed(
    nonsense: bytes, complaint: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "FAREWELL_S", 0.2)  # nobody here listens to the verdict
    with star(2) as (hub, members):
        members[0]._send(Share(1, None))
        members[0]._connection.send_bytes(members[0]._ours.seal(nonsense))
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
    monkeypatch.setattr(router, "FRAME_LIMIT", 1000)
    monkeypatch.setattr(hub_module, "FAREWELL_S", 0.2)
    with star(1) as (hub, (control,)):
        control.send(0, "x" * 1000)
        with pytest.raises(RankFailedError, match="bytes, at most 1016 are taken"):
            hub.replies(10)


def test_half_a_message_is_not_waited_for_for_ever() -> None:
    with star(1, limit_s=0.3) as (hub, (control,)):
        board = hub._board
        board._call(lambda: board._lines[0].writer.write(struct.pack("!i", 100) + b"{"))
        assert eventually(lambda: control._wait(0))
        with pytest.raises(HubLostError, match="lost the hub"):
            control.check()


def test_small_messages_are_not_delayed() -> None:
    with star(1) as (hub, (control,)):
        theirs = hub._board._lines[0].writer.get_extra_info("socket")
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
    far.sendall(b"messages that nobody reads any more")
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
