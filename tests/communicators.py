"""Communicators whose ranks are threads of the test's process, over local wires or wires in memory alone."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import optcc
from optcc.runtime.control import links
from optcc.runtime.control.channel import Control
from optcc.runtime.wires.layout import Layout
from optcc.runtime.wires.virtual import VirtualNet
from tests.free_port import free_port

WAIT_S = 600
"""For what takes seconds on an idle machine, and a minute on one that is slow and busy."""


class Ranks:
    """`world` communicators, each used from a thread of its own. A context manager."""

    def __init__(self, world: int, cluster: Any = None, **options: Any) -> None:
        self._pool = ThreadPoolExecutor(world)
        where = f"127.0.0.1:{free_port()}"
        clusters = cluster if isinstance(cluster, list) else [cluster] * world
        found = self._all(
            [
                lambda r=r, c=c: optcc.Communicator(c, rendezvous=where, rank=r, world=world, **options)
                for r, c in enumerate(clusters)
            ]
        )
        self.errors = [each for each in found if isinstance(each, Exception)]
        self.comms: list[optcc.Communicator] = [each for each in found if not isinstance(each, Exception)]

    def __enter__(self) -> Ranks:
        if self.errors:
            raise self.errors[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.each(lambda comm: comm.close())
        self._pool.shutdown()

    def each(self, call: Callable[[optcc.Communicator], Any]) -> list[Any]:
        """``call(comm)`` on all ranks at the same time; their results, or the errors that they raised."""
        return self._all([lambda comm=comm: call(comm) for comm in self.comms])

    def good(self, call: Callable[[optcc.Communicator], Any]) -> list[Any]:
        """The same where nothing may go wrong."""
        found = self.each(call)
        for each in found:
            if isinstance(each, Exception):
                raise each
        return found

    def _all(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        futures = [self._pool.submit(call) for call in calls]
        return [future.exception(WAIT_S) or future.result() for future in futures]


class MemoryWires:
    """One rank's ends of a VirtualNet whose ranks are threads and whose clock is the real one."""

    def __init__(self, net: VirtualNet, rank: int, lock: threading.Condition, watch: Control) -> None:
        self._net, self._end, self._lock, self._watch = net, net.ends[rank], lock, watch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._end, name)
        if not callable(found):
            return found

        def locked(*args: Any) -> Any:
            with self._lock:
                self._net.now = time.monotonic()
                got = found(*args)
                self._lock.notify_all()
                return got

        return locked

    def poll(self, until: float) -> Sequence[Any]:
        """Waits for what other threads do, and looks at the watch now and then."""
        while True:
            with self._lock:
                self._net.now = time.monotonic()
                news = self._end.poll(until)
                if not news and until > self._net.now:
                    self._lock.wait(0.001)
            heard = bool(select.select([self._watch], [], [], 0)[0])
            if heard:
                self._watch.check()
            if news or heard or until <= time.monotonic():
                return news


@contextlib.contextmanager
def wires_in_memory(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Communicators that connect within this are joined by MemoryWires."""
    nets: dict[str, tuple[VirtualNet, threading.Condition]] = {}
    making = threading.Lock()

    def open_wires(
        transport: str, rank: int, layout: Layout, rates: Any, control: Control, memory: Any, lent: Any
    ) -> Any:
        key = control.exchange(f"{id(control)} {time.monotonic_ns()}")[0]
        with making:
            net, lock = nets.setdefault(key, (VirtualNet(layout), threading.Condition()))
        control.exchange(None)
        return MemoryWires(net, rank, lock, control)

    with patch.context() as here:
        here.setattr(links, "open_wires", open_wires)
        yield
