"""Communicators whose ranks are threads of the test's process, over the local transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import optcc
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

    @classmethod
    def of(cls, comms: Sequence[optcc.Communicator]) -> Ranks:
        """Those that there are already."""
        ranks = object.__new__(cls)
        ranks._pool, ranks.errors, ranks.comms = ThreadPoolExecutor(len(comms)), [], list(comms)
        return ranks

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
