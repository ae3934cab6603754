"""A rank's connection with the hub is closed, reset or left half open while its process lives, or ends in half a
message: the others name it after `SILENCE_S`, not after `timeout_s`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from optcc.runtime.control.connecting import SILENCE_S
from tests.free_port import free_port
from tests.namespaces import Namespaces, entered
from tests.test_architecture import ROOT

LIMIT_S = 300
"""What a rank may take; the fault is to be noticed long before."""
NOTICED_S = SILENCE_S + 45
"""On a machine that is busy with other things."""
WAIT_S = LIMIT_S + 60
CUT = "rank 1 failed: its process has ended, or its connection was cut"


class Proxy:
    """Between rank 1 and the hub. where : its own address; space : entered to make sockets"""

    def __init__(self, hub: tuple[str, int], where: str, space: Callable[[], Any] = contextlib.nullcontext) -> None:
        with space():
            self._listener = socket.create_server((where, 0))
        self.port, self._hub, self._space = self._listener.getsockname()[1], hub, space
        self._ends: list[socket.socket] = []
        self._left: dict[bool, int] = {}  # of the rank's or the hub's, so many bytes still go on; none: all
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError), self._space():
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._hub)
                except OSError:  # the hub is not there yet, or no more: then nobody listens
                    near.close()
                    if self._ends:
                        self._listener.close()
                    continue
                self._ends = [near, far]
                threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, of_rank: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if of_rank in self._left:
                    data = data[: self._left[of_rank]]
                    self._left[of_rank] -= len(data)
                sink.sendall(data)
        with contextlib.suppress(OSError):  # also where the source was reset
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Both connections, at once."""
        for end in self._ends:
            with contextlib.suppress(OSError):  # the other end may have heard of the first one
                end.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """As a firewall does that forgets them."""
        for end in self._ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.dup2(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), end.fileno())  # a thread reads: close alone does not

    def halve(self) -> None:
        """Of the rank's next message so many bytes go on, and nothing more; the connections stay open."""
        self._left[True] = 10

    def halve_back(self) -> None:
        """Likewise of the hub's."""
        self._left[False] = 10

    def nothing(self) -> None:
        """No fault."""

    def end(self) -> None:
        """Of the test."""
        self._listener.close()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.close()


@contextlib.contextmanager
def job(
    environs: list[dict[str, str]], limit_s: float = LIMIT_S, prefix: Sequence[str] = ()
) -> Iterator[list[subprocess.Popen[str]]]:
    """Ranks that have met, and call barriers."""
    command = [*prefix, sys.executable, "-m", "tests.rank_scenarios", "steps", str(limit_s)]
    started = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "WORLD_SIZE": str(len(environs)), "RANK": str(rank), **environ},
        )
        for rank, environ in enumerate(environs)
    ]
    try:
        for process in started:
            assert process.stdout
            assert "ready" in json.loads(process.stdout.readline())
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def told(started: list[subprocess.Popen[str]], fault: Callable[[], object]) -> tuple[list[dict[str, Any]], float]:
    """(what each rank's call has come to after the fault, the seconds until ranks 0 and 2 have said so)."""
    start = time.monotonic()
    fault()
    said = [started[rank].communicate(timeout=WAIT_S)[0] for rank in (0, 2)]
    took = time.monotonic() - start
    said.insert(1, started[1].communicate(timeout=WAIT_S)[0])
    lines = [json.loads(text.splitlines()[-1]) for text in said]
    assert all(line.get("kind") == "RankFailedError" for line in lines), lines
    return lines, took


def through(how: str, limit_s: float = LIMIT_S) -> tuple[list[dict[str, Any]], float]:
    """What is told where that happens to rank 1's connection."""
    hub = free_port()
    proxy = Proxy(("127.0.0.1", hub), "127.0.0.1")
    environs = [{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1)} for port in (hub, proxy.port, hub)]
    try:
        with job(environs, limit_s) as started:
            return told(started, getattr(proxy, how))
    finally:
        proxy.end()


@pytest.mark.parametrize("how", ["close", pytest.param("reset", marks=pytest.mark.long)])
def test_a_rank_whose_connection_ends_is_named_long_before_it_would_be_late(how: str) -> None:
    said, took = through(how)
    assert said[0]["error"] == said[2]["error"] == CUT
    assert took < NOTICED_S, said


@pytest.mark.long
@pytest.mark.parametrize("how", ["halve", "halve_back"])
def test_a_connection_that_ends_in_half_a_message_is_named_when_it_has_been_silent(how: str) -> None:
    """Of the rank's, or of the hub's."""
    said, took = through(how)
    assert said[0]["error"] == said[2]["error"] == CUT
    assert took < NOTICED_S, said


@pytest.mark.long
@pytest.mark.namespaces
def test_a_rank_whose_machine_vanishes_is_named_when_it_has_been_silent() -> None:
    """Ranks are on one machine, but rank 1's connection with the hub goes by another, whose cable is pulled."""
    with Namespaces(1) as two:
        hub, secret = (two.address(0, 0), free_port()), {"OPTCC_SECRET": "a secret that is long enough"}
        proxy = Proxy(hub, two.address(1, 0), lambda: entered(two.names[1]))
        places = [hub, (two.address(1, 0), proxy.port), hub]
        environs = [{"MASTER_ADDR": host, "MASTER_PORT": str(port - 1), **secret} for host, port in places]
        try:
            with job(environs, prefix=["ip", "netns", "exec", two.names[0]]) as started:
                said, took = told(started, lambda: two.set_up(1, 0, False))
        finally:
            proxy.end()
    assert said[0]["error"] == said[2]["error"] == CUT
    assert took < NOTICED_S, said


@pytest.mark.long
def test_nobody_is_named_without_a_fault() -> None:
    """The check can fail: these ranks go on until they are killed."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(sys.modules[__name__], "WAIT_S", 3)
        with pytest.raises(subprocess.TimeoutExpired):
            through("nothing")
