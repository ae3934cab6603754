"""The control channel, after the greeting: what is believed, and that nobody can hold up the others."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optcc.runtime import messages
from optcc.runtime.codec import decode, encode
from optcc.runtime.control import channel as control_module
from optcc.runtime.control import connecting, door, overseer
from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import (
    ONE_PIECE_BYTES,
    PROTOCOL,
    TAG_BYTES,
    TAMPERED,
    Address,
    Challenge,
    Hello,
    HubLostError,
    Introduction,
    RefusedError,
    Seal,
    TamperedError,
    framed,
    proof,
    proves,
)
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.errors import PeerLateError, RankFailedError, TransportError
from optcc.runtime.messages import (
    FROM_RANK,
    AskTime,
    Broken,
    Halt,
    HasCalled,
    Late,
    Renew,
    RunFailed,
    Saw,
    Share,
    Shrink,
    ToRank,
)
from tests.control_star import (
    DOOR,
    SECRET,
    eventually,
    gather,
    member,
    opened,
    parcel,
    place,
    star,
    together,
    verdict,
    works,
)
from tests.free_port import free_port


def say(hub: Overseer, message: ToRank) -> None:
    """To rank 0."""
    hub._call(lambda: hub.say([0], message))


def test_a_large_parcel_arrives_whole() -> None:
    data = np.random.default_rng(1).bytes(40_000_001)
    with star(2) as (hub, members):
        hub.ship(data)
        assert together(*(lambda c=c: parcel(c) for c in members)) == [data, data]
        assert works(hub, members)


def test_a_parcel_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overseer, "PAYLOAD_LIMIT", 1000)
    with star(1) as (hub, members):
        with pytest.raises(TransportError, match="1000 bytes in one payload, fewer than 1000 can be sent"):
            hub.ship(bytes(1000))
        assert works(hub, members)


def test_what_comes_during_an_exchange_is_kept_in_order() -> None:
    with star(2) as (hub, members):
        for after in (1, 2):
            say(hub, Halt())
            say(hub, Renew(after, []))
        say(hub, Halt())
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
    with contextlib.ExitStack() as stack, opened(2) as hub:
        control = stack.enter_context(member(hub, 0, 2))
        hub._call(lambda: hub._lines[0].writer.transport.abort())
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
        (encode(Share(1, None)) + b" ", "a second value in exchange 1"),
        (encode(Broken("lost it", 2)), "of rank 2, where there are 2"),
        (encode(Late(-1, "slow")), "of rank -1, where there are 2"),
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


def test_who_has_talked_nonsense_is_heard_no_more() -> None:
    """Whatever comes behind it on the same connection."""
    with star(2) as (hub, members):
        for each in (Share(1, None), Share(1, None), Shrink(60.0, []), Saw("it goes on")):
            members[0].tell(each)
        with pytest.raises(RankFailedError, match="rank 0 failed: has sent nonsense"):
            parcel(members[1])
        members[0].hang_up()
        members[1].tell(Saw("enough"))
        assert eventually(lambda: hub._saw)
        assert (hub.hub.present, hub._saw) == ({1}, {1: "enough"})


def test_nobody_waits_for_how_a_rank_has_ended() -> None:
    ended: list[str] = []
    with star(2, obituary=lambda rank: ended[0] if ended else None) as (hub, members):
        members[1].__exit__()
        members[0].synchronize()
        assert not hub.hub.failed
        ended.append("exited with status 3")
        with pytest.raises(RankFailedError, match="rank 1 failed: exited with status 3"):
            parcel(members[0])


def test_a_message_beyond_the_limit_is_refused_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("FRAME_LIMIT", "PAYLOAD_LIMIT"):
        monkeypatch.setattr(control_module, limit, 1000)
    with star(1) as (hub, (control,)):
        with pytest.raises(TransportError, match="bytes in one message, at most 1000 can be sent"):
            control.exchange("x" * 1000)
        say(hub, Renew(1, ["x" * 1000]))
        with pytest.raises(HubLostError, match=r"a message of \d+ bytes, at most 1016 are taken"):
            parcel(control)
    monkeypatch.setattr(control_module, "FRAME_LIMIT", messages.FRAME_LIMIT)
    monkeypatch.setattr(overseer, "FRAME_LIMIT", 1000)
    with star(1) as (hub, (control,)):
        control.tell(Share(1, "x" * 1000))
        with pytest.raises(RankFailedError, match="bytes, at most 1016 are taken"):
            parcel(control)


@pytest.mark.parametrize(("length", "said"), [(100, b"{"), (100, b""), (ONE_PIECE_BYTES + 1, b"{")])
def test_half_a_message_is_not_waited_for_for_ever(length: int, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that comes in one piece no longer than a machine may be silent; of a longer one as long as any call."""
    with star(1) as (hub, (control,)):
        monkeypatch.setattr(connecting, "SILENCE_S", 0.2 if length == 100 else 3600)
        control.patience_s = 3600.0 if length == 100 else 0.2
        hub._call(lambda: hub._lines[0].writer.write(struct.pack("!i", length)[: 2 if not said else 4] + said))
        assert eventually(lambda: control._wait(0))
        with pytest.raises(HubLostError, match=r"the rest of a message has not come within 0\.2 s"):
            control.check()


def test_a_long_message_may_come_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it comes: what takes the hub a while for one rank takes it a while for each."""
    clock, message = [0.0], bytes(2 * ONE_PIECE_BYTES)

    def look(reads: list[Any], _: Any, __: Any, left: float) -> tuple[list[Any], list[Any], list[Any]]:
        """More comes after a second."""
        clock[0] += min(left, 1.0)
        return (reads if left >= 1.0 else []), [], []

    monkeypatch.setattr(connecting, "select", SimpleNamespace(select=look))
    monkeypatch.setattr(connecting, "os", SimpleNamespace(read=lambda fd, count: os.read(fd, min(count, 2048))))
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    ours, theirs = socket.socketpair()
    with Connection(ours.detach()) as here, Connection(theirs.detach()) as there:
        there.send_bytes(message)
        assert connecting.read_message(here, len(message), 10.0) == message


def test_a_hub_that_was_found_anew_is_not_waited_for_for_ever() -> None:
    """Nobody has said yet how long an exchange may take: the rest of a long message is awaited all the same."""
    with opened(1) as hub, Control.join(place(hub.address, 0, 1), 10.0, 0.2) as control:
        gather(hub, 10)
        hub._call(lambda: hub._lines[0].writer.write(struct.pack("!i", ONE_PIECE_BYTES + 1) + b"{"))
        with ThreadPoolExecutor() as pool:
            done = pool.submit(parcel, control)
            try:
                with pytest.raises(HubLostError, match=r"the rest of a message has not come within 0\.2 s"):
                    done.result(10)
            finally:
                hub._call(lambda: hub._lines[0].writer.close())


@pytest.mark.parametrize("part", [2, 5])
def test_a_rank_that_says_half_a_message_is_lost(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with star(2) as (_, members):
        monkeypatch.setattr(connecting, "SILENCE_S", 0.2)
        os.write(members[1].fileno(), (struct.pack("!i", 100) + b"{")[:part])
        with pytest.raises(RankFailedError, match="rank 1 failed: its process has ended, or its connection was cut"):
            members[0].exchange(None)


def test_a_hub_that_was_stopped_reads_what_has_come_before_it_names_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    with star(2) as (hub, members):
        monkeypatch.setattr(connecting, "SILENCE_S", 2.0)
        data = framed(members[1]._ours.seal(encode(Share(1, "b"))))
        os.write(members[1].fileno(), data[:6])
        time.sleep(0.1)

        def stopped() -> None:
            os.write(members[1].fileno(), data[6:])
            time.sleep(2.5)

        hub._call(stopped)
        assert members[0].exchange("a") == ["a", "b"]


def test_the_rest_of_a_long_message_may_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender may have been stopped in the middle of it."""
    with star(2) as (_, members):
        monkeypatch.setattr(connecting, "SILENCE_S", 0.2)
        value = "x" * 2 * ONE_PIECE_BYTES
        data = framed(members[1]._ours.seal(encode(Share(1, value))))
        os.write(members[1].fileno(), data[:100])
        members[0].tell(Share(1, "a"))
        time.sleep(0.6)
        members[0].check()
        os.write(members[1].fileno(), data[100:])

        def came() -> bool:
            members[0].check()
            return members[0]._shared.get(1) == ["a", value]

        assert eventually(came)


def test_small_messages_are_not_delayed() -> None:
    with star(1) as (hub, (control,)):
        theirs = hub._lines[0].writer.get_extra_info("socket")
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


def test_nothing_is_said_of_an_old_group_once_a_rank_goes_on() -> None:
    """The hub would take it for a word of the new one; which its own end of the connection says."""
    near, far = socket.socketpair()
    old = Control(Connection(near.detach()), 1, 3)
    for message in (HasCalled(1, "before"), Shrink(1.0, []), HasCalled(1, "behind"), Shrink(1.0, [0])):
        old.tell(message)
    with old.heir(0, 2) as new:
        new.tell(HasCalled(1, "new"))
    heard = Connection(far.detach())
    said = [decode(heard.recv_bytes(), FROM_RANK) for _ in range(4)]
    assert said == [HasCalled(1, "before"), Shrink(1.0, []), Shrink(1.0, [0]), HasCalled(1, "new")]
    heard.close()


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
        loop = hub._loop
        loop.call_soon_threadsafe(loop.call_exception_handler, {"message": "never retrieved", "exception": error})
        assert works(hub, members)
    assert len(caplog.records) == logged


# The control channel, who is let in: strangers are refused, named, bounded, and hold up nobody.


REFUSED = {
    "wrong secret": ({"secret": "another secret, long enough"}, "wrong secret"),
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
        monkeypatch.setattr(connecting, "PROTOCOL", PROTOCOL + 1)
        spoken = f"the hub speaks protocol {PROTOCOL}, rank 0 protocol {PROTOCOL + 1}: run the same version"
        with pytest.raises(RefusedError, match=spoken):
            member(hub)
        assert works(hub, members)
    assert len(caplog.messages) == 1


def test_a_hub_that_does_not_know_the_secret_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "proves", lambda *_: True)  # it takes everybody, to learn what they say
    with (
        opened(1, replace(DOOR, secret=b"a guess")) as hub,
        pytest.raises(RefusedError, match="does not know the secret"),
    ):
        member(hub)


def test_a_proof_serves_once_and_for_one_role() -> None:
    hello, challenge = Hello("it", 0, 2, "ab"), Challenge(PROTOCOL, "cd")
    right = proof(SECRET, "rank", hello, challenge)
    assert proves(right, SECRET, "rank", hello, challenge)
    assert not proves(right, SECRET, "hub", hello, challenge), "sent back"
    assert not proves(right, SECRET, "rank", hello, replace(challenge, nonce="ce")), "used again"
    assert not proves(right, SECRET, "rank", replace(hello, rank=1), challenge), "for another rank"
    assert not proves(right, SECRET, "rank", replace(hello, job="that"), challenge), "for another job"
    assert not proves(right, b"", "rank", hello, challenge)
    assert not proves("\udcff", SECRET, "rank", hello, challenge)


GARBAGE = {
    "a web browser": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "a pickle": struct.pack("!i", 20) + pickle.dumps({"a": 1}).ljust(20, b"."),
    "too long": struct.pack("!i", 4097),
    "negative length": struct.pack("!i", -7),
    "a command": struct.pack("!i", len(encode(Halt()))) + encode(Halt()),
    "cut short": struct.pack("!i", 100) + b"{",
    "an odd proof": framed(encode(Introduction(Hello("it", 0, 1, "\udcff"), "\udcff"))),
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


def test_silent_strangers_hold_up_nobody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(door, "GREETING_S", 3600.0)
    with opened(1) as hub, contextlib.ExitStack() as stack:
        for _ in range(door.STRANGERS):
            stack.enter_context(socket.create_connection(hub.address))
        control = stack.enter_context(member(hub))
        gather(hub, 10)
        assert works(hub, [control])
        assert len(caplog.messages) == 1, "one of the strangers was dropped for the member"


def test_a_steady_flood_of_strangers_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door, "GREETING_S", 3600.0)
    over, began = threading.Event(), time.monotonic()

    came = threading.Semaphore(0)

    def flood(address: Address) -> None:
        """Silent connections, one after the other, of which more than there is room for stay open."""
        opened: deque[socket.socket] = deque()
        while not over.is_set():
            opened.append(socket.create_connection(address, 60))
            came.release()
            if len(opened) > 4 * door.STRANGERS:
                opened.popleft().close()
        for sock in opened:
            sock.close()

    with opened(4) as hub, ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        flooding = pool.submit(flood, hub.address)
        stack.callback(over.set)
        for _ in range(2 * door.STRANGERS):
            came.acquire()
        members = [stack.enter_context(member(hub, rank, 4, within_s=60.0)) for rank in range(4)]
        gather(hub, 60)
        assert works(hub, members)
        assert not flooding.done()
        over.set()
        flooding.result()
    assert len(caplog.messages) <= door.LOG_LINES * (2 + (time.monotonic() - began) // door.LOG_S)
    assert all("\n" not in line for line in caplog.messages)


def test_the_silent_and_the_slow_are_sent_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door, "GREETING_S", 0.3)
    with opened(1) as hub, contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_connection(hub.address, 10))
        slow = stack.enter_context(socket.create_connection(hub.address))
        slow.sendall(struct.pack("!i", 100))
        while silent.recv(4096):
            pass  # the challenge
        with contextlib.suppress(OSError):
            while True:  # a byte now and then does not help
                slow.sendall(b" ")
                time.sleep(0.02)
    assert len(caplog.messages) == 2
    assert all("not introduced within 0.3 s" in line for line in caplog.messages)


def test_who_came_first_is_dropped_for_the_next(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door, "STRANGERS", 3)
    monkeypatch.setattr(door, "GREETING_S", 3600.0)
    with opened(1) as hub, contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection(hub.address, 10)) for _ in range(5)]
        assert eventually(lambda: sum("3 others that have come since" in line for line in caplog.messages) == 2)
        for sock, dropped in zip(crowd, (True, True, False, False, False), strict=True):
            sock.settimeout(10 if dropped else 0.01)
            ended = True
            try:
                while sock.recv(4096):  # the challenge
                    pass
            except TimeoutError:
                ended = False
            assert ended == dropped


def test_the_log_of_strangers_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(door, "LOG_S", 3600.0)
    monkeypatch.setattr(door, "LOG_LINES", 3)
    with opened(1) as hub:
        for _ in range(8):
            with socket.create_connection(hub.address, 10) as sock:
                sock.sendall(GARBAGE["negative length"])
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(4096):
                        pass
        assert len(caplog.messages) == 3
        monkeypatch.setattr(door, "LOG_S", 0.0)
        with socket.create_connection(hub.address) as sock:
            sock.shutdown(socket.SHUT_WR)
            assert eventually(lambda: len(caplog.messages) == 4)
    assert caplog.messages[-1].endswith("(and 5 more that were not logged)")


def test_those_who_have_not_come_are_named() -> None:
    missing = r"rank 0 failed: not there: 3 of 4 ranks have not come to 127.0.0.1:\d+ within 0.3 s: 0, 1, 3$"
    with opened(4, within_s=0.3) as hub, member(hub, 2, 4), pytest.raises(RankFailedError, match=missing):
        raise verdict(hub)


def test_one_that_ends_before_it_has_come_is_named_at_once() -> None:
    with opened(2, None, obituary=lambda rank: f"exited as {rank}") as hub, hub.attach(0):
        hub.attach(1).close()
        assert str(verdict(hub)) == "rank 1 failed: exited as 1"


def test_a_hub_without_a_door_has_those_it_is_attached_to() -> None:
    with opened(2, None, within_s=0.1) as hub:
        missing = r"rank 0 failed: not there: 2 of 2 ranks have not come within 0.1 s: 0, 1"
        assert str(verdict(hub)) == missing
    with opened(2, None) as hub, contextlib.ExitStack() as stack:
        ends = [stack.enter_context(hub.attach(rank)) for rank in range(2)]
        members = [stack.enter_context(Control.inherited(end.detach(), rank, 2)) for rank, end in enumerate(ends)]
        gather(hub, 10)
        assert works(hub, members)


def test_who_may_live_is_asked_side_by_side() -> None:
    """Three ranks are cut off; none of them answers before all are being asked; one of them lives."""
    asked = threading.Barrier(3)

    def lives(number: int) -> bool:
        try:
            asked.wait(0.5)
            return number == 2
        except threading.BrokenBarrierError:  # not all have been cut off yet
            asked.reset()
            return True

    with star(4, lives=lives) as (hub, members):
        for rank in (1, 2, 3):
            members[rank].hang_up(0.0)
        verdict(hub)
        assert eventually(lambda: hub.hub.awaited == {2} and 0 in hub.hub.present)


def test_a_hub_that_is_not_there_is_not_waited_for_for_ever() -> None:
    address = ("127.0.0.1", free_port())
    with pytest.raises(HubLostError, match=r"no hub answers at 127.0.0.1:\d+ within 0.3 s: .*refused"):
        Control.join(place(address), 0.3)


def test_ranks_may_come_before_the_hub() -> None:
    port = free_port()
    address = ("127.0.0.1", port)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(Control.join, place(address), 10)
        time.sleep(0.2)
        with opened(1, replace(DOOR, port=port)) as hub, coming.result() as control:
            gather(hub, 10)
            assert works(hub, [control])


def test_a_port_in_use_is_a_clear_error() -> None:
    in_use = r"cannot listen for ranks at 127\.0\.0\.1:\d+: .*in use"
    with opened(1) as hub, pytest.raises(TransportError, match=in_use):
        Overseer(1, replace(DOOR, port=hub.address[1]), 1.0)


# A proxy between a rank and the hub, which does to messages whatever it likes: all ranks fail, and say the same.


Tamper = Callable[[bytes, bytes, bytes, bytes], list[bytes]]
"""(a message that came before, the next two, one that went the other way) -> what goes on instead of the two."""

ATTACKS: dict[str, Tamper] = {
    "forged": lambda before, one, two, back: [bytes(TAG_BYTES) + encode(RunFailed(0, "forged")), one, two],
    "without a tag": lambda before, one, two, back: [encode(RunFailed(0, "forged")), one, two],
    "empty": lambda before, one, two, back: [b"", one, two],
    "altered": lambda before, one, two, back: [one[:-1] + bytes([one[-1] ^ 1]), two],
    "cut short": lambda before, one, two, back: [one[:-1], two],
    "replayed": lambda before, one, two, back: [one, one, two],
    "replayed later": lambda before, one, two, back: [before, one, two],
    "left out": lambda before, one, two, back: [two],
    "out of order": lambda before, one, two, back: [two, one],
    "sent back": lambda before, one, two, back: [back, one, two],
}
GREETING = {"hub": 2, "rank": 1}
"""How many messages of the greeting each sends."""


class Proxy:
    """Passes on frames between one rank and the hub, and tampers with those of `victim` once it is told to."""

    def __init__(self, stack: contextlib.ExitStack, hub: Overseer, victim: str, tamper: Tamper) -> None:
        self._victim, self._tamper = victim, tamper
        self.armed = threading.Event()
        self.last: dict[str, bytes] = {}  # by who has sent it
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.address = self._listener.getsockname()
        self._far = stack.enter_context(socket.create_connection(hub.address))
        stack.callback(self.cut)
        threading.Thread(target=self._accept, args=(stack,), daemon=True).start()

    def cut(self) -> None:
        """The connection."""
        with contextlib.suppress(OSError):
            self._far.shutdown(socket.SHUT_RDWR)

    def _accept(self, stack: contextlib.ExitStack) -> None:
        near, _ = self._listener.accept()
        stack.enter_context(near)
        for who, source, sink in (("rank", near, self._far), ("hub", self._far, near)):
            threading.Thread(target=self._pump, args=(who, source, sink), daemon=True).start()

    def _pump(self, who: str, source: socket.socket, sink: socket.socket) -> None:
        def exactly(count: int) -> bytes:
            data = b""
            while len(data) < count:
                more = source.recv(count - len(data))
                if not more:
                    raise EOFError
                data += more
            return data

        other = "hub" if who == "rank" else "rank"
        with contextlib.suppress(OSError, EOFError):
            for _ in range(GREETING[who]):
                length = exactly(4)
                sink.sendall(length + exactly(struct.unpack("!i", length)[0]))
            held: list[bytes] = []
            while True:
                frame = exactly(struct.unpack("!i", exactly(4))[0])
                frames = [frame]
                if self.armed.is_set() and who == self._victim and len(held) < 2:
                    held.append(frame)
                    frames = [] if len(held) < 2 else self._tamper(self.last[who], *held, self.last[other])
                else:
                    self.last[who] = frame
                for each in frames:
                    sink.sendall(framed(each))
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def attacked(victim: str, tamper: Tamper) -> Iterator[tuple[Overseer, list[Control], Proxy]]:
    """A hub of three ranks, of which rank 1 comes through a proxy."""
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(opened(3))
        proxy = Proxy(stack, hub, victim, tamper)
        members = [stack.enter_context(member(hub, rank, 3)) for rank in (0, 2)]
        through = Control.join(place(proxy.address, 1, 3), 10.0)
        members.insert(1, stack.enter_context(through))
        gather(hub, 10)
        yield hub, members, proxy


def serve(control: Control) -> str:
    """What a rank does until a verdict, which it tells: it asks for the time, often, and is answered."""
    try:
        turn = 0
        while True:
            turn += 1
            control.tell(AskTime(turn))
            control.check()
            time.sleep(0.01)
    except RankFailedError as verdict:
        with contextlib.suppress(HubLostError):
            control.tell(Saw(str(verdict)))
        return str(verdict)


def arm(proxy: Proxy) -> None:
    """Once a message has gone each way."""
    assert eventually(lambda: len(proxy.last) == 2)
    proxy.armed.set()


@pytest.mark.parametrize("victim", ["hub", "rank"])
def test_a_proxy_that_only_passes_on_is_not_noticed(victim: str) -> None:
    with attacked(victim, lambda before, one, two, back: [one, two]) as (hub, members, proxy):

        def command() -> str:
            arm(proxy)
            time.sleep(0.2)
            members[0].tell(Broken("enough"))
            return str(verdict(hub))

        assert together(command, *(lambda c=c: serve(c) for c in members)) == ["rank 0 failed: enough"] * 4


@pytest.mark.parametrize("victim", ["hub", "rank"])
@pytest.mark.parametrize("tamper", ATTACKS.values(), ids=ATTACKS)
def test_what_has_been_tampered_with_ends_all_alike(victim: str, tamper: Tamper) -> None:
    with attacked(victim, tamper) as (hub, members, proxy):

        def command() -> str:
            arm(proxy)
            return str(verdict(hub))

        told = together(command, *(lambda c=c: serve(c) for c in members))
        assert told == [f"rank 1 failed: {TAMPERED}"] * 4, "the one that it happened to, and the others"


def test_a_cut_connection_ends_all() -> None:
    """Nobody can tell it from a hub, or a rank, that is gone."""
    with attacked("hub", lambda before, one, two, back: [one, two]) as (hub, members, proxy):

        def lost() -> str:
            with pytest.raises(HubLostError, match="lost the hub") as caught:
                members[1].exchange(None)
            return str(caught.value)

        def cut() -> str:
            proxy.cut()
            return str(verdict(hub))

        error, first, _, third = together(cut, lambda: serve(members[0]), lost, lambda: serve(members[2]))
        assert error == first == third == "rank 1 failed: its process has ended, or its connection was cut"


def test_a_seal_fits_one_message_one_place_and_one_key() -> None:
    def sealed(*messages: bytes, key: bytes = bytes(32)) -> list[bytes]:
        seal = Seal(key)
        return [seal.seal(message) for message in messages]

    first, second = sealed(b"one", b"two")
    there = Seal(bytes(32))
    assert [there.unseal(first), there.unseal(second)] == [b"one", b"two"]
    for data in (second, first[:-1], first + b"x", b"", sealed(b"one", key=b"k" * 32)[0], sealed(b"", b"one")[1]):
        with pytest.raises(TamperedError):
            Seal(bytes(32)).unseal(data)
    assert Seal().unseal(Seal().seal(b"one")) == b"one", "between a process and its child"
