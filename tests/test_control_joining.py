"""The control channel, who is let in: strangers are refused, named, bounded, and hold up nobody."""

from __future__ import annotations

import contextlib
import pickle
import re
import socket
import struct
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from optcc.runtime.codec import encode
from optcc.runtime.control import connecting, router
from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import (
    PROTOCOL,
    Address,
    Challenge,
    Hello,
    HubLostError,
    Introduction,
    RefusedError,
    framed,
    proof,
    proves,
)
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.errors import RankFailedError, TransportError
from optcc.runtime.messages import Halt
from tests.control_star import DOOR, SECRET, eventually, gather, member, opened, star, verdict, works
from tests.free_port import free_port

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
        monkeypatch.setattr(connecting, "PROTOCOL", PROTOCOL + 1)
        spoken = f"the hub speaks protocol {PROTOCOL}, rank 0 protocol {PROTOCOL + 1}: run the same version"
        with pytest.raises(RefusedError, match=spoken):
            member(hub)
        assert works(hub, members)
    assert len(caplog.messages) == 1


def test_a_hub_that_does_not_know_the_secret_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "proves", lambda *_: True)  # it takes everybody, to learn what they say
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
    monkeypatch.setattr(router, "GREETING_S", 3600.0)
    with opened(1) as hub, contextlib.ExitStack() as stack:
        for _ in range(router.STRANGERS):
            stack.enter_context(socket.create_connection(hub.address))
        control = stack.enter_context(member(hub))
        gather(hub, 10)
        assert works(hub, [control])
        assert len(caplog.messages) == 1, "one of the strangers was dropped for the member"


def test_a_steady_flood_of_strangers_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(router, "GREETING_S", 3600.0)
    over, began = threading.Event(), time.monotonic()

    came = threading.Semaphore(0)

    def flood(address: Address) -> None:
        """Silent connections, one after the other, of which more than there is room for stay open."""
        opened: deque[socket.socket] = deque()
        while not over.is_set():
            opened.append(socket.create_connection(address, 60))
            came.release()
            if len(opened) > 4 * router.STRANGERS:
                opened.popleft().close()
        for sock in opened:
            sock.close()

    with opened(4) as hub, ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        flooding = pool.submit(flood, hub.address)
        stack.callback(over.set)
        for _ in range(2 * router.STRANGERS):
            came.acquire()
        members = [stack.enter_context(member(hub, rank, 4, within_s=60.0)) for rank in range(4)]
        gather(hub, 60)
        assert works(hub, members)
        assert not flooding.done()
        over.set()
        flooding.result()
    assert len(caplog.messages) <= router.LOG_LINES * (2 + (time.monotonic() - began) // router.LOG_S)
    assert all("\n" not in line for line in caplog.messages)


def test_the_silent_and_the_slow_are_sent_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(router, "GREETING_S", 0.3)
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
    monkeypatch.setattr(router, "STRANGERS", 3)
    monkeypatch.setattr(router, "GREETING_S", 3600.0)
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
    monkeypatch.setattr(router, "LOG_S", 3600.0)
    monkeypatch.setattr(router, "LOG_LINES", 3)
    with opened(1) as hub:
        for _ in range(8):
            with socket.create_connection(hub.address, 10) as sock:
                sock.sendall(GARBAGE["negative length"])
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(4096):
                        pass
        assert len(caplog.messages) == 3
        monkeypatch.setattr(router, "LOG_S", 0.0)
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


def test_a_hub_that_is_not_there_is_not_waited_for_for_ever() -> None:
    address = ("127.0.0.1", free_port())
    with pytest.raises(HubLostError, match=r"no hub answers at 127.0.0.1:\d+ within 0.3 s: .*refused"):
        Control.join(address, job="it", secret=SECRET, rank=0, world=1, within_s=0.3)


def test_ranks_may_come_before_the_hub() -> None:
    port = free_port()
    address = ("127.0.0.1", port)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(Control.join, address, job="it", secret=SECRET, rank=0, world=1, within_s=10)
        time.sleep(0.2)
        with opened(1, replace(DOOR, port=port)) as hub, coming.result() as control:
            gather(hub, 10)
            assert works(hub, [control])


def test_a_port_in_use_is_a_clear_error() -> None:
    in_use = r"cannot listen for ranks at 127\.0\.0\.1:\d+: .*in use"
    with opened(1) as hub, pytest.raises(TransportError, match=in_use):
        Overseer(1, replace(DOOR, port=hub.address[1]), 1.0)
