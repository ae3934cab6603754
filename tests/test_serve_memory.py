"""The memory of processes that plan: refused before it is spent where it can be told, and limited where it cannot."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from optcc.errors import InputError
from optcc.planner.background import MemoryLimitError
from optcc.schedule import assemble
from optcc.serve import planning
from optcc.serve.planning import TRANSFER_BYTES, new_plan
from optcc.serve.requests import PlanRequest, ReplyError, ServeSettings
from optcc.serve.service import ThreadLane, Workers
from tests.serving import ROOT

T = TypeVar("T")
LIMIT_S = 120
SMALL_MEMORY = 2**26


def request(servers: int) -> PlanRequest:
    return PlanRequest(topology=f"uniform:servers={servers},nics=8,rate=400Gb/s")


def transfers(servers: int) -> int:
    """Of its ring: each of 64 segments in as many sections as servers, each to everybody and back."""
    return 64 * servers * 2 * (servers - 1)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers(ServeSettings(memory=SMALL_MEMORY))
    yield made
    made.close()


def run(workers: Workers, ask: Callable[[], Awaitable[T]]) -> T:
    return asyncio.run(_fresh(workers, ask))


async def _fresh(workers: Workers, ask: Callable[[], Awaitable[T]]) -> T:
    workers._idle = asyncio.Queue()  # each test has an event loop of its own
    for each in workers._all:
        workers._idle.put_nowait(each)
    return await ask()


def test_a_schedule_of_too_many_transfers_is_refused_by_their_number(workers: Workers) -> None:
    most = SMALL_MEMORY // TRANSFER_BYTES
    assert transfers(32) < most < transfers(48)

    async def ask() -> tuple[int, Any]:
        with pytest.raises(ReplyError) as refused:
            await workers.call(new_plan, request(48))
        text, _ = await workers.call(new_plan, request(32))  # the control
        return len(text), refused.value

    length, refused = run(workers, ask)
    assert length > 10_000
    assert (refused.status, refused.body.type, refused.body.got) == (422, "InputError", str(transfers(48)))
    assert refused.body.expected == f"at most {most} transfers"


def test_what_the_number_does_not_tell_ends_one_request(workers: Workers) -> None:
    async def ask() -> tuple[int, Any, int]:
        before = await workers.call(os.getpid)
        assert len(await workers.call(bytes, SMALL_MEMORY // 4)) == SMALL_MEMORY // 4  # the control
        with pytest.raises(ReplyError) as refused:
            await workers.call(bytes, 4 * SMALL_MEMORY)
        return before, refused.value, await workers.call(os.getpid)

    before, refused, after = run(workers, ask)
    assert (refused.status, refused.body.type) == (422, "MemoryLimitError")
    assert "--memory" in refused.body.hint
    assert before != after  # what it had taken is given back


def test_a_job_that_takes_too_much_memory_is_told_the_same() -> None:
    def make() -> None:
        raise MemoryLimitError("it takes more memory than a process may")

    async def ask() -> ReplyError:
        lane = ThreadLane("test", 1, 1)
        with pytest.raises(ReplyError) as refused:
            await lane.run(make)
        lane.close()
        return refused.value

    refused = asyncio.run(ask())
    assert (refused.status, refused.body.type) == (422, "MemoryLimitError")


def test_the_number_of_transfers_is_what_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal counts as many as there are: the limit is met exactly."""
    for most, refused in ((transfers(8), False), (transfers(8) - 1, True)):
        token = assemble.most_transfers.set(most)
        try:
            if refused:
                with pytest.raises(InputError, match="too many transfers"):
                    new_plan(request(8))
            else:
                assert new_plan(request(8))
        finally:
            assemble.most_transfers.reset(token)


def test_a_plan_file_longer_than_a_reply_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    length = len(new_plan(request(3))[0])
    monkeypatch.setattr(planning, "MAX_REPLY", length)
    new_plan(request(3))
    monkeypatch.setattr(planning, "MAX_REPLY", length - 1)
    with pytest.raises(InputError, match="too large a plan"):
        new_plan(request(3))


def test_a_worker_ends_with_the_service_that_is_killed() -> None:
    """In the middle of what it computes, where it reads from no pipe that could close."""
    script = (
        "import os, time\n"
        "from optcc.planner.background import Helper\n"
        "helper = Helper()\n"
        "print(helper(os.getpid), flush=True)\n"
        "helper(time.sleep, 1000)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    parent.kill()
    parent.wait(LIMIT_S)
    end = time.monotonic() + LIMIT_S
    try:
        while _lives(child):
            assert time.monotonic() < end, "a worker outlives the service"
            time.sleep(0.05)
    finally:
        if _lives(child):
            os.kill(child, signal.SIGKILL)


def _lives(pid: int) -> bool:
    """A zombie, whose parent was killed and which nobody waits for in a container, does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
