"""Work of `optcc serve` that holds up no other: events beside busy workers, and work that ends with its caller."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optcc.errors import OptccError
from optcc.serve.listen import Middleware
from optcc.serve.requests import EventRequest, JobRequest, PlanRequest, ReplyError, ServeSettings
from optcc.serve.service import PlanningService, ServedCluster, ThreadLane, Workers
from tests.serving import SMALL, Service, running, told

LIMIT_S = 120
"""Longest wait for what must happen; nothing waits so long when it does."""


async def until(holds: Callable[[], object]) -> None:
    """Look again and again, for `LIMIT_S` at most."""
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.01)


def wait_in(folder: Path) -> None:
    """A worker's work: says that it began, and by which process, and goes on until it is killed."""
    (folder / "began").write_text(str(os.getpid()), encoding="ascii")
    time.sleep(10 * LIMIT_S)


def gone(pid: int) -> bool:
    """Whether there is no such process any more; a zombie is one until it is waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(ServeSettings())
    yield made
    made.close()


def test_a_call_that_is_cancelled_is_ended_and_the_next_one_gets_a_worker(workers: Workers, tmp_path: Path) -> None:
    async def run() -> str:
        task = asyncio.create_task(workers.call(wait_in, tmp_path))
        await until((tmp_path / "began").exists)
        await until((tmp_path / "began").read_text)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        pid = int((tmp_path / "began").read_text())
        await until(partial(gone, pid))
        return await workers.call(str.upper, "free")

    assert asyncio.run(run()) == "FREE"


def test_a_call_that_is_cancelled_while_its_worker_starts_never_begins(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = workers._all[0]._worker
    start, starting, go_on = worker._start, threading.Event(), threading.Event()

    def slowly() -> Any:
        starting.set()
        assert go_on.wait(LIMIT_S)
        return start()

    monkeypatch.setattr(worker, "_start", slowly)

    async def run() -> str:
        task = asyncio.create_task(workers.call(wait_in, tmp_path))
        await until(starting.is_set)
        task.cancel()  # there is no process yet that could be ended
        await asyncio.gather(task, return_exceptions=True)
        go_on.set()
        return await workers.call(str.upper, "free")

    assert asyncio.run(run()) == "FREE"
    assert not (tmp_path / "began").exists()


def test_the_last_who_leaves_ends_what_is_shared() -> None:
    async def run() -> list[object]:
        service, ended, begun = PlanningService(ServeSettings()), list[int](), list[int]()

        async def make() -> bytes:
            begun.append(1)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)
            return b""

        async def another() -> bytes:
            return b"anew"

        two = [asyncio.create_task(service._shared.get(b"plan", 1, make)) for _ in range(2)]
        await until(lambda: begun)
        two[0].cancel()
        await asyncio.gather(two[0], return_exceptions=True)
        after_one = list(ended)
        two[1].cancel()
        anew = await asyncio.gather(two[1], service._shared.get(b"plan", 1, another), return_exceptions=True)
        await until(lambda: ended)
        service.close()
        return [after_one, ended, begun, anew[1]]

    assert asyncio.run(run()) == [[], [1], [1], b"anew"]


class FakePlanner:
    """In place of a job's planner: an event is answered by the number of events, as soon as `go_on` is set."""

    def __init__(self) -> None:
        self.go_on, self.told = threading.Event(), list[str]()

    def fail(self, nic: str) -> Any:
        assert self.go_on.wait(LIMIT_S)
        self.told.append(nic)
        return SimpleNamespace(event=len(self.told), basis=SimpleNamespace(value="prepared"), took_s=0.0, plans={})

    def close(self, limit_s: float = 0) -> None:
        self.go_on.set()


def desk_with_a_job() -> tuple[PlanningService, FakePlanner]:
    service, planner = PlanningService(ServeSettings(concurrent=4, request_s=LIMIT_S)), FakePlanner()
    service.jobs["job"] = ServedCluster("job", planner, ())  # type: ignore[arg-type]
    return service, planner


def test_events_and_health_are_answered_while_all_workers_are_busy_and_all_places_taken(tmp_path: Path) -> None:
    """The worker is held, requests wait for it, others have all threads for registering and looking at the job."""

    async def run() -> None:
        service, planner = desk_with_a_job()
        planner.go_on.set()
        hold = threading.Event()
        busy = [asyncio.create_task(service._workers.call(wait_in, tmp_path))]
        await until((tmp_path / "began").exists)
        busy += [asyncio.create_task(service.plan(PlanRequest(topology=SMALL, size=f"{n}MiB"))) for n in range(1, 40)]
        busy += [asyncio.create_task(service.register(JobRequest(topology=SMALL))) for _ in range(8)]
        lanes = (service._registrars, service.jobs["job"].looks)
        busy += [asyncio.create_task(lane.run(partial(hold.wait, LIMIT_S))) for lane in lanes for _ in range(10)]
        await asyncio.sleep(0)
        reply = await asyncio.wait_for(service.event("job", EventRequest("fail", "server1/nic0")), LIMIT_S)
        assert (reply.event, planner.told, service.health().status) == (1, ["server1/nic0"], "ok")
        assert not any(task.done() for task in busy)
        hold.set()
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        service.close()

    asyncio.run(run())


def test_an_event_counts_although_its_caller_leaves() -> None:
    async def run() -> list[str]:
        service, planner = desk_with_a_job()
        tasks = [asyncio.create_task(service.event("job", EventRequest("fail", f"nic{n}"))) for n in range(6)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        planner.go_on.set()
        await until(lambda: len(planner.told) == 6)
        service.close()
        return sorted(planner.told)

    assert asyncio.run(run()) == [f"nic{n}" for n in range(6)]


def test_a_lane_turns_away_what_is_too_much_and_drops_what_nobody_waits_for() -> None:
    async def run() -> list[object]:
        lane, hold, done = ThreadLane("test", 1, 2), threading.Event(), list[int]()
        first = asyncio.create_task(lane.run(partial(hold.wait, LIMIT_S)))
        second = asyncio.create_task(lane.run(lambda: done.append(1)))
        await asyncio.sleep(0)
        with pytest.raises(ReplyError) as refused:
            await lane.run(int)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        hold.set()
        await first
        number = await lane.run(int)
        lane.close()
        return [refused.value.status, done, number]

    assert asyncio.run(run()) == [503, [], 0]


def test_a_result_that_nobody_waits_for_is_handed_over() -> None:
    async def run() -> list[str]:
        lane, hold, over = ThreadLane("test", 1, 2), threading.Event(), list[str]()
        begun = threading.Event()

        def make() -> str:
            begun.set()
            assert hold.wait(LIMIT_S)
            return "a planner"

        task = asyncio.create_task(lane.run(make, unwanted=over.append))
        await until(begun.is_set)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        hold.set()
        await until(lambda: over)
        lane.close()
        return over

    assert asyncio.run(run()) == ["a planner"]


def test_the_guard_cancels_what_works_for_a_caller_who_is_gone() -> None:
    logged = list[str]()

    async def run() -> tuple[list[str], list[object]]:
        seen, sent = list[str](), list[object]()
        working, left = asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append((await receive())["body"].decode())
            working.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        messages = [{"type": "http.request", "body": b"the body", "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: object) -> None:
            sent.append(message)

        guard = Middleware(app, ServeSettings(request_s=LIMIT_S), hosts=None, log=logged.append)
        scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
        answering = asyncio.create_task(guard(scope, receive, send))
        await asyncio.wait_for(working.wait(), LIMIT_S)
        left.set()
        await asyncio.wait_for(answering, LIMIT_S)
        return seen, sent

    assert asyncio.run(run()) == (["the body", "cancelled"], [])
    assert '"status": 499' in logged[-1]


@pytest.fixture(scope="module")
def small_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    limits = ("--concurrent", "4", "--request-limit", "1h", "--jobs", "1")
    yield from running(tmp_path_factory.mktemp("lanes"), "--port", "0", *limits)


def test_callers_who_leave_free_their_places(small_service: Service) -> None:
    """Through sockets: as many plans that take minutes as may be, abandoned; the next plan is answered."""
    slow = b'{"topology": "uniform:servers=24,nics=8,rate=400Gb/s,fabric=rails,nvlink=450GB/s", "ranks": "gpu", '
    sockets = []
    for size in range(1, 5):
        sock = small_service.raw()
        body = slow + b'"fail": ["server1/nic0"], "size": "%dMiB"}' % size
        sock.sendall(b"POST /v1/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)  # fmt: skip
        sockets.append(sock)
    in_hand(small_service, 4)
    for sock in sockets:
        sock.close()
    in_hand(small_service, 0)
    assert small_service.ask("POST", "/v1/plan", {"topology": SMALL}).status == 200


def test_too_many_jobs(small_service: Service) -> None:
    made = small_service.ask("POST", "/v1/jobs", {"topology": SMALL})
    assert made.status == 201, made.body
    refused = small_service.ask("POST", "/v1/jobs", {"topology": SMALL})
    assert told(refused, 429, "BusyError")["hint"] == "Delete one."
    assert small_service.ask("DELETE", f"/v1/jobs/{made.json['job']}").status == 204
    assert small_service.ask("GET", "/v1/health").json["jobs"] == 0


def in_hand(service: Service, expected: int) -> None:
    """Wait until so many requests that may take long are in hand."""
    end = time.monotonic() + LIMIT_S
    while service.ask("GET", "/v1/health").json["in_hand"] != expected:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_silent_connections_make_room(small_service: Service) -> None:
    """Twice as many as may be that say nothing keep nobody out; they are closed, the oldest first."""
    silent = [small_service.raw() for _ in range(16)]
    assert small_service.ask("GET", "/v1/health").status == 200
    silent[0].settimeout(LIMIT_S)
    try:
        left = silent[0].recv(1)
    except ConnectionResetError:
        left = b""
    assert left == b""
    for sock in silent:
        sock.close()


@pytest.mark.long
def test_a_worker_that_dies_is_an_error(workers: Workers) -> None:
    async def run() -> str:
        with pytest.raises(OptccError, match="died"):
            await workers.call(os._exit, 3)
        return await workers.call(str.upper, "free")

    assert asyncio.run(run()) == "FREE"
