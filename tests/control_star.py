"""A hub and its ranks, all in this process, for tests of the control channel."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from optcc.runtime.control.channel import Control
from optcc.runtime.control.connecting import Address
from optcc.runtime.control.door import Door
from optcc.runtime.control.overseer import Overseer
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.errors import RankFailedError
from optcc.runtime.messages import Report, RunFailed

SECRET = b"a secret of a test, long enough"
DOOR = Door("it", SECRET, "127.0.0.1", 0)


def place(address: Address, rank: int = 0, world: int = 1) -> Membership:
    """Of a rank whose hub is there."""
    return Membership(rank, world, address, "it", SECRET.decode())


def member(hub: Overseer, rank: int = 0, world: int = 1, within_s: float = 10.0, **but: Any) -> Control:
    """A rank that joins; `but`: what it says differently."""
    return Control.join(replace(place(hub.address, rank, world), **but), within_s)


@contextlib.contextmanager
def opened(ranks: int, door: Door | None = DOOR, within_s: float = 300.0, **how: Any) -> Iterator[Overseer]:
    """A hub at work, for a command; it ends at once, whoever is there."""
    hub = Overseer(ranks, door, within_s, commands=True, **how).start()
    try:
        yield hub
    finally:
        hub.hub.awaited, hub.hub.present = set(), set()
        hub.leave()


@contextlib.contextmanager
def star(ranks: int, **settings: Any) -> Iterator[tuple[Overseer, list[Control]]]:
    """A hub and its ranks, all in this process."""
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(opened(ranks, **settings))
        members = [stack.enter_context(member(hub, rank, ranks)) for rank in range(ranks)]
        gather(hub, 10)
        yield hub, members


def gather(hub: Overseer, within_s: float) -> None:
    """All ranks are there; RankFailedError otherwise."""
    if hub.news.get(timeout=within_s) is not None:
        raise hub.last_words()


def verdict(hub: Overseer, within_s: float = 10.0) -> RankFailedError:
    """What the hub says of a failed job, after whatever ranks have reported."""
    while not isinstance(hub.news.get(timeout=within_s), RunFailed):
        pass
    return hub.last_words()


def parcel(control: Control) -> bytes:
    """The next payload that the hub ships."""
    while not control.parcels:
        control._wait(10)
        control.check()
    return control.parcels.popleft()


def together(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls made at the same time, or their errors."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures: list[Future[Any]] = [pool.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def works(hub: Overseer, members: list[Control]) -> bool:
    """Whether an exchange among all succeeds, and what the hub ships is had and reported on by all."""

    def obey(control: Control) -> list[Any]:
        values = control.exchange(control.rank)
        control.tell(Report(parcel(control).decode()))
        return values

    def command() -> list[Any]:
        hub.ship(b"a job")
        return sorted(hub.news.get(timeout=10) for _ in members)  # type: ignore[type-var]

    everyone = list(range(len(members)))
    *values, reports = together(*(lambda c=c: obey(c) for c in members), command)
    return values == [everyone] * len(members) and reports == [(rank, "a job") for rank in everyone]


def eventually(what: Callable[[], bool], within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
