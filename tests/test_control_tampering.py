"""A proxy between a rank and the hub, which does to messages whatever it likes: all ranks fail, and say the same."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from optcc.runtime.codec import encode
from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import TAG_BYTES, TAMPERED, HubLostError, Seal, TamperedError, framed
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.errors import RankFailedError
from optcc.runtime.messages import AskTime, Broken, RunFailed, Saw
from tests.control_star import DOOR, eventually, gather, member, opened, together, verdict

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
        through = Control.join(proxy.address, job="it", secret=DOOR.secret, rank=1, world=3, within_s=10.0)
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
