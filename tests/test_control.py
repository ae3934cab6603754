"""The control channel, after the greeting: what is believed, and that nobody can hold up the others."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from optcc.runtime import messages
from optcc.runtime.codec import encode
from optcc.runtime.control import channel as control_module
from optcc.runtime.control import router
from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import HubLostError
from optcc.runtime.errors import PeerLateError, RankFailedError, TransportError
from optcc.runtime.messages import PIECE, AskCall, Broken, Halt, Payload, Post, Renew, RunFailed, Saw, Share
from tests.control_star import eventually, member, opened, parcel, star, together, verdict, works


def test_a_large_parcel_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(1).bytes(40_000_001)
    with star(2) as (hub, members):
        asked: list[bool] = []
        members[1].on_ask = lambda operation: asked.append(bool(members[1].parcels))
        write, pieces = hub._board._write, []

        def written(rank: int, sent: bytes) -> None:
            write(rank, sent)
            if rank == 1 and sent.startswith(PIECE):
                pieces.append(rank)
                if len(pieces) == 3:  # what is said in between is heard in between
                    write(1, encode(AskCall(1)))

        monkeypatch.setattr(hub._board, "_write", written)
        hub.ship(data)
        got = together(*(lambda c=c: parcel(c) for c in members))
        assert got == [data, data]
        assert asked == [False]
        assert works(hub, members)


def test_a_parcel_that_is_not_what_was_announced_is_refused() -> None:
    with star(1) as (hub, (control,)):
        hub._send([0], Payload(2))
        hub._board._call(lambda: hub._board._write(0, PIECE + b"abc"))
        with pytest.raises(HubLostError, match="is not what it has announced"):
            parcel(control)


def test_what_comes_during_an_exchange_is_kept_in_order() -> None:
    with star(2) as (hub, members):
        for after in (1, 2):
            hub._send([0], Halt())
            hub._send([0], Renew(after, []))
        hub._send([0], Halt())
        first = together(lambda: members[0].exchange("a"), lambda: members[1].exchange("b"))
        assert first == [["a", "b"]] * 2
        assert [renewal.after for renewal in members[0].renewals] == [1, 2]
        assert members[0].halts == 1
        assert not members[1].renewals


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


WAITS: dict[str, Callable[[Control], Any]] = {
    "exchange": lambda control: control.exchange(None),
    "parcel": parcel,
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
            say(members[1], parcel)

        error = together(lambda: verdict(hub), lambda: say(members[0]), breaks, lambda: say(members[2]))[0]
        assert isinstance(error, RankFailedError)
        assert str(error) == "rank 1 failed: has a fit"
        assert error.seen_by == dict.fromkeys(range(3), "rank 1 failed: has a fit")


def test_a_verdict_that_was_read_before_ends_the_next_exchange() -> None:
    """It may come right behind something else that was waited for: who exchanges then would wait in vain."""
    with star(2) as (_, members):
        members[1].tell(Broken("has a fit"))
        for wait in (parcel, lambda control: control.exchange(None)):
            with pytest.raises(RankFailedError, match="rank 1 failed: has a fit"):
                wait(members[0])


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_hub_that_is_gone_is_noticed_wherever_one_waits(wait: Callable[[Control], Any]) -> None:
    with contextlib.ExitStack() as stack:
        with opened(2) as hub:
            control = stack.enter_context(member(hub, 0, 2))
            hub._board.__exit__()
        with pytest.raises(HubLostError, match="lost the hub"):
            wait(control)


def test_a_rank_that_hangs_up_has_failed() -> None:
    with star(2) as (_, members):
        members[0].__exit__()
        with pytest.raises(RankFailedError, match="rank 0 failed: its process has ended, or its connection was cut"):
            members[1].exchange(None)


@pytest.mark.parametrize(
    ("nonsense", "complaint"),
    [
        (encode(RunFailed(1, "x")), "unexpected kind of message 'RunFailed'"),
        (b"garbage", "7 bytes that are not JSON"),
        (encode(Post(9, None)), "a message to rank 9"),
        (encode(Share(1, None)) + b" ", "a second value in exchange 1"),
    ],
)
def test_a_rank_that_talks_nonsense_has_failed(
    nonsense: bytes, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with star(2) as (_, members):
        members[0].tell(Share(1, None))
        members[0]._connection.send_bytes(members[0]._ours.seal(nonsense))
        with pytest.raises(RankFailedError, match=f"rank 0 failed: has sent nonsense: {complaint}"):
            parcel(members[1])
    assert any(f"rank 0 has sent nonsense: {complaint}" in line for line in caplog.messages)


def test_a_message_beyond_the_limit_is_refused_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "FRAME_LIMIT", 1000)
    with star(1) as (hub, (control,)):
        with pytest.raises(TransportError, match="bytes in one message, at most 1000 can be sent"):
            control.exchange("x" * 1000)
        hub._send([0], Renew(1, ["x" * 1000]))
        with pytest.raises(HubLostError, match="bad message length"):
            parcel(control)
    monkeypatch.setattr(control_module, "FRAME_LIMIT", messages.FRAME_LIMIT)
    monkeypatch.setattr(router, "FRAME_LIMIT", 1000)
    with star(1) as (hub, (control,)):
        control.send(0, "x" * 1000)
        with pytest.raises(RankFailedError, match="bytes, at most 1016 are taken"):
            parcel(control)


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


@pytest.mark.parametrize(("error", "logged"), [(ConnectionResetError(), 0), (ValueError("a fault of ours"), 1)])
def test_a_reset_connection_that_nobody_waits_for_says_nothing(
    error: Exception, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    with star(3) as (hub, members):
        loop = hub._board._loop
        loop.call_soon_threadsafe(loop.call_exception_handler, {"message": "never retrieved", "exception": error})
        assert works(hub, members)
    assert len(caplog.records) == logged
