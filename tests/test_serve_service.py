"""The service of `optcc serve` by itself: one computes for all, replies are kept, and no job is left behind.

Requests that it cannot use are told what is wrong and where, and reach no file.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import optcc
from optcc.errors import InfeasibleError, InputError, OptccError
from optcc.planner.background import Helper
from optcc.plans.plan import Plan
from optcc.serve.planning import read_cluster
from optcc.serve.requests import ClusterRequest, JobRequest, PlanRequest, ServeSettings
from optcc.serve.service import PlanningService, Replies, ServedCluster
from tests.serving import ROOT, SMALL, Service, check, running, told


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
        replies = [await service.job_plan("job", "1MiB") for _ in range(3)]
        service.jobs.clear()
        service.close()
        return [*replies, str(len(service.replies)).encode()]

    replies = asyncio.run(run())
    assert [Plan.from_bytes(b64decode(json.loads(reply)["plan"])).cluster for reply in replies[:3]] == [
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


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("serve")
    yield from running(folder, "--unix", str(folder / "socket"))


@pytest.fixture(scope="module")
def documented(service: Service) -> dict[str, Any]:
    return service.ask("GET", "/v1/openapi.json").json


@pytest.mark.parametrize(
    ("body", "status", "kind", "where"),
    [
        (b"{", 400, "MalformedError", "body"),
        (b"\xff\xfe", 400, "MalformedError", "body"),
        (b"[" * 100_000, 422, "InputError", "$"),
        ([], 422, "InputError", "$"),
        ({}, 422, "InputError", "$"),
        ({"topology": SMALL, "path": "/etc/passwd"}, 422, "InputError", "$"),
        ({"topology": 3}, 422, "InputError", "$.topology"),
        ({"topology": "/etc/passwd"}, 422, "InputError", "topology"),
        ({"topology": "/sys"}, 422, "InputError", "topology"),
        ({"topology": "a\0b"}, 422, "InputError", "topology"),
        ({"topology": SMALL, "fail": ["server9/nic0"]}, 422, "InputError", "server9"),
        ({"topology": SMALL, "size": "big"}, 422, "InputError", "size"),
        ({"topology": SMALL, "size": "0"}, 422, "InputError", "size"),
        ({"topology": SMALL, "alpha": "1"}, 422, "InputError", "alpha"),
        ({"topology": SMALL, "family": "magic"}, 422, "InputError", "--family"),
        ({"topology": SMALL, "segments": 10**9}, 422, "InputError", "$.segments"),
        ({"topology": "uniform:servers=9999,nics=99,rate=1Gb/s"}, 422, "InputError", "topology"),
        ({"topology": SMALL, "fail": ["server1/nic0", "server1/nic1"]}, 422, "InfeasibleError", "server1"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_bad_plans_are_told_what_and_where(
    service: Service, documented: dict[str, Any], body: object, status: int, kind: str, where: str
) -> None:
    reply = service.ask("POST", "/v1/plan", body)
    check(documented, "/v1/plan", "post", reply)
    assert where in told(reply, status, kind)["where"]
    assert "/tmp" not in reply.body.decode()


@pytest.mark.parametrize(
    ("event", "where"),
    [
        ({"event": "fail", "nic": "server0/nic7"}, "nic7"),
        ({"event": "fail", "nic": "server0"}, "server0"),
        ({"event": "explode", "nic": "server0/nic0"}, "$.event"),
        ({"event": "rate", "nic": "server0/nic0"}, "rate"),
        ({"event": "fail", "nic": "server0/nic0", "rate": "1Gb/s"}, "rate"),
        ({"event": "rate", "nic": "server0/nic0", "rate": "900Gb/s"}, "rate of server0/nic0"),
    ],
    ids=lambda v: str(v)[:50],
)
def test_bad_events_change_nothing(service: Service, event: dict[str, str], where: str) -> None:
    job = f"/v1/jobs/{service.ask('POST', '/v1/jobs', {'topology': SMALL}).json['job']}"
    try:
        assert told(service.ask("POST", f"{job}/events", event), 422, "InputError")["where"] == where
        assert service.ask("GET", job).json["event"] == 0
    finally:
        service.ask("DELETE", job)


def test_other_paths_and_methods(service: Service, documented: dict[str, Any]) -> None:
    told(service.ask("GET", "/v1/../../etc/passwd"), 404, "RouteError")
    told(service.ask("GET", "/v1/plan"), 405, "RouteError")
    told(service.ask("POST", "/v1/jobs/nobody/events", {"event": "fail", "nic": "a/b"}), 404, "UnknownError")
    job = f"/v1/jobs/{service.ask('POST', '/v1/jobs', {'topology': SMALL}).json['job']}"
    told(service.ask("GET", f"{job}/plan?size=1MiB&file=/etc/passwd"), 422, "InputError")
    told(service.ask("GET", f"{job}/plan?size=much"), 422, "InputError")
    service.ask("DELETE", job)


def test_a_topology_is_never_a_path(tmp_path: Path) -> None:
    """Negative control beside it: the file would do, were it read."""
    good = tmp_path / "good.yaml"
    good.write_text((ROOT / "examples/two-degraded.yaml").read_text())
    assert optcc.load_topology(str(good)).cluster
    with pytest.raises(InputError, match="not a topology"):
        read_cluster(ClusterRequest(topology=str(good)))
    assert read_cluster(ClusterRequest(topology=good.read_text()))[0] == optcc.load_topology(str(good)).cluster


def test_a_topology_is_never_unpacked(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tarball all of printable characters: headers may be padded with spaces. It is not even looked at as one."""
    head = b"class".ljust(100) + b"0000755 " + b"0000000 " * 2 + b"00000000000 " * 2 + b" " * 8 + b"5"
    head = head.ljust(512)
    text = (head[:148] + b"%06o  " % sum(head) + head[156:] + b" " * 512).decode()
    (tmp_path / "copy.tar").write_text(text)
    assert tarfile.is_tarfile(tmp_path / "copy.tar")
    told(service.ask("POST", "/v1/plan", {"topology": text}), 422, "InputError")
    unpacked: list[str] = []
    unpack = optcc.discover.sysfs_tree.read_tarball
    monkeypatch.setattr(
        "optcc.discover.sysfs_tree.read_tarball", lambda p, hint: (unpacked.append(p), unpack(p, hint))[1]
    )
    with pytest.raises(InputError):
        read_cluster(ClusterRequest(topology=text))
    assert not unpacked
    with pytest.raises(InputError):  # the control: what would have been, were it read as any file
        optcc.load_topology(str(tmp_path / "copy.tar"))
    assert unpacked
