"""A hub and its ranks, all in this process, for tests of the control channel."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from optcc.runtime.control.channel import Control
from optcc.runtime.control.hub import Hub
from optcc.runtime.control.router import Door
from optcc.runtime.messages import Check, Reply

SECRET = b"a secret of a test, long enough"
DOOR = Door("it", SECRET, "127.0.0.1", 0)


def member(hub: Hub, rank: int = 0, world: int = 1, **but: Any) -> Control:
    """A rank that joins; `but`: what it says differently."""
    who: dict[str, Any] = {"job": "it", "secret": SECRET, "rank": rank, "world": world, "within_s": 10.0}
    return Control.join(hub.address, **{**who, **but})


@contextlib.contextmanager
def star(ranks: int, limit_s: float = 300.0, **settings: Any) -> Iterator[tuple[Hub, list[Control]]]:
    """A hub and its ranks, all in this process. `limit_s` : as of `Control.join`"""
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(Hub(ranks, DOOR, **settings))
        members = [stack.enter_context(member(hub, rank, ranks, limit_s=limit_s)) for rank in range(ranks)]
        hub.gather(10)
        yield hub, members


def together(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls made at the same time, or their errors."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures: list[Future[Any]] = [pool.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def works(hub: Hub, members: list[Control]) -> bool:
    """Whether an exchange among all and an order to all succeed."""

    def obey(control: Control) -> list[Any]:
        values = control.exchange(control.rank)
        control.command()
        control.tell(Reply(control.rank))
        return values

    everyone = list(range(len(members)))
    *values, replies = together(*(lambda c=c: obey(c) for c in members), lambda: hub.order(Check(), 10))
    return values == [everyone] * len(members) and replies == everyone


def eventually(what: Callable[[], bool], within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
