"""The service of `optcc serve` by itself: one computes for all, replies are kept, and no job is left behind."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest

import optcc
from optcc.errors import InfeasibleError, InputError, OptccError
from optcc.planner.background import Helper
from optcc.plans.plan import Plan
from optcc.serve.messages import JobRequest, PlanRequest
from optcc.serve.replies import Replies
from optcc.serve.service import PlanningService, ServedCluster
from optcc.serve.settings import ServeSettings
from tests.serving import SMALL


def test_replies_are_kept_within_their_bytes() -> None:
    kept = Replies(10)
    for key in (b"a", b"b"):
        kept.put(key, b"12345")
    assert kept.get(b"a") == b"12345"
    kept.put(b"c", b"1234")
    assert (kept.get(b"a"), kept.get(b"b"), kept.get(b"c"), kept.held) == (b"12345", None, b"1234", 9)
    kept.put(b"d", b"x" * 11)
    assert (kept.get(b"d"), len(kept)) == (None, 2)


def test_one_computes_for_all_who_ask_at_once() -> None:
    async def run() -> tuple[list[bytes], int]:
        service, calls = PlanningService(ServeSettings()), []

        async def make() -> bytes:
            calls.append(1)
            await asyncio.sleep(0.01)
            return b"reply"

        request = PlanRequest(topology=SMALL)
        replies = await asyncio.gather(*(service._shared.get(b"plan", request, make) for _ in range(20)))
        replies.append(await service._shared.get(b"plan", request, make))
        service.close()
        return list(replies), len(calls)

    assert asyncio.run(run()) == ([b"reply"] * 21, 1)


def test_an_error_is_not_kept() -> None:
    async def run() -> list[object]:
        service, calls = PlanningService(ServeSettings()), []

        async def make() -> bytes:
            calls.append(1)
            if len(calls) == 1:
                raise InputError("no")
            return b"yes"

        first = await asyncio.gather(service._shared.get(b"plan", 1, make), return_exceptions=True)
        second = await service._shared.get(b"plan", 1, make)
        service.close()
        return [type(first[0]), second, len(service._shared._making)]

    assert asyncio.run(run()) == [InputError, b"yes", 0]


def test_a_plan_that_an_event_overtakes_is_not_kept_for_what_comes_after() -> None:
    cluster = optcc.load_topology(SMALL).cluster
    before = optcc.plan(cluster, 2**20)
    after = replace(before, cluster=cluster.degrade("server1/nic0", 0.5))  # of the same recipe
    made = [before, after, after]
    # The event came after the first plan was chosen.
    planner = SimpleNamespace(plan=lambda nbytes: made.pop(0), current=SimpleNamespace(event=1))

    async def run() -> list[bytes]:
        service = PlanningService(ServeSettings())
        service.jobs["job"] = ServedCluster("job", planner, ())  # type: ignore[arg-type]
        replies = [await service.job_plan("job", "1MiB", None) for _ in range(3)]
        service.jobs.clear()
        service.close()
        return [*replies, str(len(service.replies)).encode()]

    replies = asyncio.run(run())
    assert [Plan.from_json(json.dumps(json.loads(reply)["plan"])).cluster for reply in replies[:3]] == [
        each.cluster for each in (before, after, after)
    ]
    assert replies[3] == b"2"


class FakePlanner:
    """In place of a job's planner: is `made` when told, and `closed`; has no plan to show."""

    instances: ClassVar[list[FakePlanner]] = []
    making, go_on = threading.Event(), threading.Event()

    def __init__(self, *_: object, **__: object) -> None:
        self.closed = threading.Event()
        self.instances.append(self)
        self.making.set()
        assert self.go_on.wait(60)

    @property
    def current(self) -> object:
        raise InfeasibleError("cut off", where="server1", expected="a NIC")

    def close(self, limit_s: float = 5) -> None:
        self.closed.set()


@pytest.fixture
def service_of_fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlanningService]:
    service = PlanningService(ServeSettings())

    async def read(*_: object) -> object:
        return optcc.load_topology(SMALL).cluster, ()

    monkeypatch.setattr(service._workers, "call", read)
    monkeypatch.setattr("optcc.serve.service.Planner", FakePlanner)
    FakePlanner.instances.clear()
    FakePlanner.making.clear()
    FakePlanner.go_on.clear()
    yield service
    FakePlanner.go_on.set()
    service.close()


def test_a_job_that_nobody_waits_for_any_more_is_ended(service_of_fakes: PlanningService) -> None:
    async def run() -> None:
        task = asyncio.create_task(service_of_fakes.register(JobRequest(topology=SMALL)))
        while not FakePlanner.making.is_set():
            await asyncio.sleep(0.01)
        task.cancel()  # as the limit of a request does
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    FakePlanner.go_on.set()
    assert FakePlanner.instances[0].closed.wait(30)
    assert not service_of_fakes.jobs


def test_a_job_whose_name_nobody_learns_is_ended(service_of_fakes: PlanningService) -> None:
    FakePlanner.go_on.set()
    with pytest.raises(InfeasibleError):
        asyncio.run(service_of_fakes.register(JobRequest(topology=SMALL)))
    assert FakePlanner.instances[0].closed.is_set()
    assert not service_of_fakes.jobs


def test_the_end_does_not_wait_for_a_job_being_made(
    service_of_fakes: PlanningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Event()

    def busy(*_: object, urgent: Helper, **__: object) -> object:
        started.set()
        return urgent(time.sleep, 100)

    monkeypatch.setattr("optcc.serve.service.Planner", busy)

    async def run() -> None:
        task = asyncio.create_task(service_of_fakes.register(JobRequest(topology=SMALL)))
        while not started.is_set():
            await asyncio.sleep(0.01)
        service_of_fakes.close()
        with pytest.raises(OptccError, match=r"closed|died"):
            await asyncio.wait_for(task, 60)

    asyncio.run(run())
