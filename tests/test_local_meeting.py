"""How ranks of one machine connect, and that nobody else can keep them from it."""

from __future__ import annotations

import contextlib
import errno
import gc
import math
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from optcc.runtime.errors import PeerLostError, TransportError
from optcc.runtime.wires import local_lending, local_listener
from optcc.runtime.wires.layout import Layout
from optcc.runtime.wires.local import LocalWires
from optcc.runtime.wires.local_listener import HELLO, is_own
from tests.test_wires import connect, layout
from tests.wires_contract import Pipe, joined

Strike = Callable[[contextlib.ExitStack, bytes], None]
"""What strangers do at a listener's address before any rank connects."""


def silent(stack: contextlib.ExitStack, name: bytes) -> None:
    for _ in range(3 * local_listener.STRANGERS):
        sock = stack.enter_context(socket.socket(socket.AF_UNIX))
        sock.connect(name)


def nonsense(stack: contextlib.ExitStack, name: bytes) -> None:
    for said in (b"x", bytes(HELLO.size), HELLO.pack(bytes(32), 1), bytes(4096)):
        for fds in ([], [0], [0, 0, 0]):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(name)
            socket.send_fds(sock, [said], fds)


def leaving(stack: contextlib.ExitStack, name: bytes) -> None:
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(name)


@contextlib.contextmanager
def meeting(
    strike: Strike, it: Layout | None = None, within_s: float = math.inf, speak: bool = False
) -> Iterator[list[LocalWires]]:
    """Two ranks that have connected their wires in this process while strangers did what they do.

    speak : their watches have something to say
    """
    it = it or layout()
    with contextlib.ExitStack() as stack:
        watches = [Pipe() for _ in range(it.ranks)]
        for watch in watches:
            stack.callback(watch.close)
            if speak:
                watch.speak()

        def rank(number: int, exchange: Callable[[Any], list[Any]]) -> LocalWires | TransportError:
            def under_attack(value: Any) -> list[Any]:
                if value is not None and number == 0:  # before anybody hears of the listener
                    strike(stack, bytes.fromhex(value[0]))
                return exchange(value)

            try:
                options: Any = {"exchange": under_attack, "watch": watches[number], "within_s": within_s}
                return LocalWires(number, it.wires, it.flows, it.rates, **options)
            except TransportError as error:
                return error

        ranks = joined(it.ranks, rank)
        for end in ranks:
            if isinstance(end, LocalWires):
                stack.callback(end.close)
        errors = [str(end) for end in ranks if isinstance(end, TransportError)]
        if errors:  # which of the two is the first to notice depends on the time
            raise TransportError("; ".join(errors))
        yield ranks


@pytest.mark.parametrize("strike", [silent, nonsense, leaving])
def test_strangers_at_the_listener_hold_up_nobody(strike: Strike) -> None:
    gc.collect()  # what earlier tests have left open
    before = len(os.listdir("/proc/self/fd"))
    with meeting(strike) as ranks:
        assert all(len(rank._in) + len(rank._out) == len(layout().wires) for rank in ranks), "every wire stands"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_rank_that_sends_to_nobody_waits_for_nobody() -> None:
    """As the last one in a broadcast: it has connected all of its wires itself, and nobody connects to it."""
    both = layout()
    one_way = replace(both, wires=both.wires[:1], flows=(replace(both.flows[0], wires=(0,)),))
    assert (one_way.wires[0].src, one_way.wires[0].dst) == (one_way.flows[0].src, one_way.flows[0].dst)
    with meeting(lambda *_: None, one_way) as ranks:
        assert sorted((len(rank._in), len(rank._out)) for rank in ranks) == [(0, 1), (1, 0)]


def test_a_listener_whose_queue_is_full_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_listener, "QUEUE", 0)  # which is room for one

    def in_the_way(stack: contextlib.ExitStack, name: bytes) -> None:
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect(name)

    with meeting(in_the_way) as ranks:
        assert all(rank._in and rank._out for rank in ranks)


def test_a_buffer_is_lent_again_when_as_many_are_lent_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    lend, refused = socket.send_fds, list[socket.socket]()

    def full_at_first(sock: socket.socket, said: list[bytes], fds: list[int]) -> int:
        if said == [b"b"] and len(refused) < 4:
            refused.append(sock)
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
        return lend(sock, said, fds)

    monkeypatch.setattr(socket, "send_fds", full_at_first)
    watches = [Pipe(), Pipe()]
    with contextlib.ExitStack() as closing:
        for watch in watches:
            closing.callback(watch.close)
        ranks = connect(layout(), watches, lent_bytes=4096)
        for rank in ranks:
            closing.callback(rank.close)
        assert [sorted(rank._far_arenas) for rank in ranks] == [[1], [0]]
    assert len(refused) == 4


@pytest.mark.parametrize("said", [b"", b"b"])
def test_a_buffer_that_does_not_come_is_told_apart(said: bytes) -> None:
    """The peer is gone; or this process may not open another descriptor, and the kernel drops it."""
    near, far = socket.socketpair()
    with near, far:
        far.send(said) if said else far.close()
        with pytest.raises(OSError if said else PeerLostError, match="Too many open files" if said else "lost rank 3"):
            local_lending.borrow_buffer(3, near)


def test_a_buffer_for_a_rank_that_is_gone() -> None:
    near, far = socket.socketpair()
    with near:
        far.close()
        with pytest.raises(PeerLostError, match="lost rank 3: is gone"):
            local_lending.lend_buffer(3, near, near.fileno())


def test_another_users_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = socket.socketpair()
    with near, far:
        assert is_own(near)
        monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 2)
        assert not is_own(near)


def test_ranks_of_different_users_do_not_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side looks: here the one that connects does, before it sends anything."""
    monkeypatch.setattr(local_listener, "is_own", lambda sock: False)
    with pytest.raises(TransportError, match="does not listen any more: another user listens there"), meeting(leaving):
        pass


def test_who_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_listener, "heard", lambda sock, token, awaited: sock.close())
    late = pytest.raises(TransportError, match=r"ranks \[[01]\] did not connect within 0.2 s")
    with late, meeting(leaving, within_s=0.2):
        pass


def test_a_verdict_ends_the_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a limit who can be told that another one is gone."""
    monkeypatch.setattr(local_listener, "heard", lambda sock, token, awaited: sock.close())

    def fails(pipe: Pipe) -> None:
        raise TransportError("rank 1 failed")

    monkeypatch.setattr(Pipe, "check", fails)
    with pytest.raises(TransportError, match="rank 1 failed"), meeting(leaving, speak=True):
        pass
