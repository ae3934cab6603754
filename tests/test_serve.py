"""optcc serve through real sockets: replies as documented, limits that hold, and an end that keeps its word."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jsonschema
import pytest
from click.testing import CliRunner
from uvicorn.protocols.http.flow_control import FlowControl

import optcc
from optcc.cli import main
from optcc.errors import InfeasibleError, InputError, OptccError
from optcc.plans import Plan
from optcc.serve.app import ENDPOINTS
from optcc.serve.desk import Desk, Job, Replies
from optcc.serve.listen import _Impatient, forget_unix_socket, identity, tcp_socket, unix_socket
from optcc.serve.messages import ClusterRequest, JobRequest, PlanRequest
from optcc.serve.settings import Settings
from optcc.serve.work import read_cluster
from optcc.standby.background import Helper

ROOT = Path(__file__).resolve().parent.parent
SMALL = "uniform:servers=4,nics=2,rate=400Gb/s"
SLOW = "uniform:servers=24,nics=8,rate=400Gb/s,fabric=rails,nvlink=450GB/s"
START_S = 60.0


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect(self.path)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Service:
    """A running optcc serve."""

    process: subprocess.Popen[str]
    where: str

    def connect(self) -> http.client.HTTPConnection:
        if self.where.startswith("unix:"):
            return UnixConnection(self.where[5:])
        host, _, port = self.where.removeprefix("http://").rpartition(":")
        return http.client.HTTPConnection(host, int(port), timeout=120)

    def raw(self) -> socket.socket:
        connection = self.connect()
        connection.connect()
        connection.sock.settimeout(30)
        return connection.sock

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        connection = self.connect()
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            sent = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, data, {**sent, **(headers or {})})
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def stop(self, limit_s: float = 60) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit_s)


def start(*options: str, log: Path) -> Service:
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "optcc", "serve", "--json", *options],
            stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline() if ready else ""
    if not line:
        process.kill()
        process.wait(10)
        raise AssertionError(f"not started: {log.read_text()}")
    return Service(process, json.loads(line)["listening"])


def running(folder: Path, *options: str) -> Iterator[Service]:
    service = start(*options, log=folder / "log")
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait(10)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("serve")
    yield from running(folder, "--unix", str(folder / "socket"))


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """On TCP, with limits that are soon met."""
    limits = ("--body", "4KiB", "--read-limit", "400ms", "--request-limit", "3s", "--concurrent", "2", "--jobs", "1")
    yield from running(tmp_path_factory.mktemp("tight"), "--port", "0", *limits)


@pytest.fixture(scope="module")
def documented(service: Service) -> dict[str, Any]:
    return service.ask("GET", "/v1/openapi.json").json


def check(document: dict[str, Any], path: str, method: str, reply: Reply) -> None:
    """The reply's status is among the documented ones and its body is what the document says."""
    operation = document["paths"][path][method]["responses"][str(reply.status)]
    if "content" not in operation:
        assert reply.body == b""
        return
    assert reply.headers["content-type"] == "application/json"
    schema = {**operation["content"]["application/json"]["schema"], "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(reply.json)


def told(reply: Reply, status: int, kind: str) -> dict[str, Any]:
    assert (reply.status, reply.json["error"]["type"]) == (status, kind), reply.body
    return reply.json["error"]  # type: ignore[no-any-return]


# Replies


def test_a_plan_is_the_plan_of_the_library(service: Service, documented: dict[str, Any]) -> None:
    request = {"topology": SMALL, "fail": ["server1/nic0", "server2/nic1=37%"], "size": "1MiB"}
    reply = service.ask("POST", "/v1/plan", request)
    check(documented, "/v1/plan", "post", reply)
    cluster = optcc.load_topology(SMALL).cluster.degrade("server1/nic0").degrade("server2/nic1", 0.37)
    assert Plan.from_json(json.dumps(reply.json["plan"])) == optcc.plan(cluster, 2**20)
    before = service.ask("GET", "/v1/health").json["cached"]
    assert service.ask("POST", "/v1/plan", request).body == reply.body
    assert service.ask("GET", "/v1/health").json["cached"] == before
    assert service.ask("POST", "/v1/plan", {**request, "size": "2MiB"}).body != reply.body
    assert service.ask("GET", "/v1/health").json["cached"] == before + 1


@pytest.mark.parametrize("name", ["two-degraded.yaml", "h100-8x400g.nccl-topo.xml"])
def test_a_topology_travels_as_text(service: Service, name: str) -> None:
    text = (ROOT / "examples" / name).read_text()
    request = {"topology": text, "size": "1MiB", **({"servers": 3} if name.endswith("xml") else {})}
    reply = service.ask("POST", "/v1/plan", request)
    assert reply.status == 200, reply.body
    expected = optcc.load_topology(str(ROOT / "examples" / name), servers=request.get("servers")).cluster
    assert Plan.from_json(json.dumps(reply.json["plan"])).cluster.servers == expected.servers
    assert not any("/tmp" in note or "optcc-serve-" in note for note in reply.json["notes"])


def test_a_job_follows_its_events(service: Service, documented: dict[str, Any]) -> None:
    made = service.ask("POST", "/v1/jobs", {"topology": SMALL, "sizes": ["1MiB", "64MiB"]})
    check(documented, "/v1/jobs", "post", made)
    job = f"/v1/jobs/{made.json['job']}"
    cluster = optcc.load_topology(SMALL).cluster
    for number, (event, expected) in enumerate(
        [
            ({"event": "fail", "nic": "server2/nic1"}, cluster.degrade("server2/nic1")),
            ({"event": "rate", "nic": "server0/nic0", "rate": "100Gb/s"},
             cluster.degrade("server2/nic1").degrade("server0/nic0", 0.25)),
            ({"event": "restore", "nic": "server2/nic1"}, cluster.degrade("server0/nic0", 0.25)),
        ], 1,
    ):  # fmt: skip
        reply = service.ask("POST", f"{job}/events", event)
        check(documented, "/v1/jobs/{job}/events", "post", reply)
        plans = [optcc.plan(expected, size) for size in (2**20, 2**26)]
        assert reply.json["event"] == number
        assert [brief["recipe"] for brief in reply.json["plans"]] == [plan.recipe.content() for plan in plans]
        assert [brief["bound"] for brief in reply.json["plans"]] == [str(plan.bound.seconds) for plan in plans]
        whole = service.ask("GET", f"{job}/plan?size=64MiB")
        check(documented, "/v1/jobs/{job}/plan", "get", whole)
        assert Plan.from_json(json.dumps(whole.json["plan"])) == plans[1]
    state = service.ask("GET", job)
    check(documented, "/v1/jobs/{job}", "get", state)
    assert state.json["preparation"]["ready"] == state.json["preparation"]["wanted"]
    lowered = service.ask("GET", f"{job}/plan?size=1MiB&lowered=layout")
    assert lowered.json["plan"]["lowered"]
    gone = service.ask("DELETE", job)
    check(documented, "/v1/jobs/{job}", "delete", gone)
    assert gone.status == 204
    check(documented, "/v1/jobs/{job}", "get", service.ask("GET", job))
    told(service.ask("GET", job), 404, "UnknownError")


def test_health_and_the_document(service: Service, documented: dict[str, Any]) -> None:
    for path in ("/v1/health", "/v1/openapi.json"):
        check(documented, path, "get", service.ask("GET", path))
    assert {(path, method.upper()) for path, each in documented["paths"].items() for method in each} == {
        (each.path, each.method) for each in ENDPOINTS
    }
    jsonschema.Draft202012Validator.check_schema({"$defs": documented["components"]["schemas"]})


def test_the_check_against_the_document_can_fail(service: Service, documented: dict[str, Any]) -> None:
    reply = service.ask("GET", "/v1/health")
    with pytest.raises(jsonschema.ValidationError):
        check(documented, "/v1/health", "get", Reply(200, reply.headers, b'{"status": "ok"}'))
    with pytest.raises(KeyError):
        check(documented, "/v1/health", "get", Reply(418, reply.headers, reply.body))


# Requests that cannot be used


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
    told(service.ask("GET", f"{job}/plan?lowered=gold"), 422, "InputError")
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
    unpack = optcc.discover.sysfs_tree._unpack
    monkeypatch.setattr("optcc.discover.sysfs_tree._unpack", lambda p, to: (unpacked.append(p), unpack(p, to)))
    with pytest.raises(InputError):
        read_cluster(ClusterRequest(topology=text))
    assert not unpacked
    with pytest.raises(InputError):  # the control: what would have been, were it read as any file
        optcc.load_topology(str(tmp_path / "copy.tar"))
    assert unpacked


# Limits


def test_a_body_that_is_too_large(tight: Service) -> None:
    told(tight.ask("POST", "/v1/plan", b" " * 5000), 413, "SizeError")
    sock = tight.raw()  # nothing is said of its length beforehand
    sock.sendall(b"POST /v1/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 b"Transfer-Encoding: chunked\r\n\r\n1388\r\n" + b" " * 5000 + b"\r\n")  # fmt: skip
    assert b" 413 " in sock.recv(4096)
    sock.close()
    told(tight.ask("POST", "/v1/plan", b" " * 4000), 400, "MalformedError")


def test_a_body_that_does_not_come(tight: Service) -> None:
    sock = tight.raw()
    head = (
        b"POST /v1/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    sock.sendall(head)
    assert b" 408 " in sock.recv(4096)
    sock.close()


@pytest.mark.parametrize("sent", [b"", b"GET /v1/health HTT", b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nA: "])
def test_a_header_that_does_not_come(tight: Service, sent: bytes) -> None:
    sock = tight.raw()
    sock.sendall(sent)
    assert sock.recv(4096) == b""  # closed; a timeout of the socket would raise
    sock.close()


def test_a_header_without_end(tight: Service) -> None:
    sock = tight.raw()
    try:
        sock.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 100_000)
        answer = sock.recv(4096)
    except (BrokenPipeError, ConnectionResetError):
        answer = b""
    assert b" 200 " not in answer
    sock.close()


@pytest.mark.parametrize("closing", [True, False])
def test_replies_that_nobody_reads(closing: bool) -> None:
    """What is left lying ends the connection, whether more is to be written or it was to be closed after."""

    async def run() -> None:
        aborted = asyncio.Event()
        protocol: Any = _Impatient.__new__(_Impatient)
        protocol.settings, protocol.loop = Settings(request_s=0.05), asyncio.get_running_loop()
        protocol.transport = SimpleNamespace(abort=aborted.set, close=lambda: None, is_closing=lambda: closing)
        protocol.flow, protocol.cycle = FlowControl(protocol.transport), None
        if closing:
            protocol._close_if_none_came()
        else:
            protocol.pause_writing()
        await asyncio.wait_for(aborted.wait(), 10)

    asyncio.run(run())


def test_a_plan_that_takes_too_long_and_too_many_at_once(tight: Service) -> None:
    """Two plans that take minutes: others are turned away meanwhile, both are given up, and the service goes on."""
    replies: list[Reply] = []
    slow = {"topology": SLOW, "ranks": "gpu", "fail": ["server1/nic0"]}

    def ask(size: str) -> None:
        replies.append(tight.ask("POST", "/v1/plan", {**slow, "size": size}))

    threads = [threading.Thread(target=ask, args=(size,)) for size in ("1MiB", "2MiB")]
    for thread in threads:
        thread.start()
    statuses = set()
    while any(thread.is_alive() for thread in threads):
        busy = tight.ask("GET", "/v1/health")
        statuses.add(busy.status)
        if busy.status == 503:
            assert told(busy, 503, "BusyError")
            assert busy.headers["retry-after"] == "1"
        time.sleep(0.05)
    for thread in threads:
        thread.join(60)
    assert 503 in statuses
    assert [told(reply, 504, "LateError")["what"] for reply in replies]
    assert len(replies) == 2
    assert tight.ask("GET", "/v1/health").status == 200


def test_too_many_jobs(tight: Service) -> None:
    # The test before ended the process that reads topologies: until it is up again, requests are too late.
    first = _registered(tight)
    assert told(tight.ask("POST", "/v1/jobs", {"topology": SMALL}), 429, "BusyError")["hint"] == "Delete one."
    assert tight.ask("DELETE", f"/v1/jobs/{first}").status == 204
    assert tight.ask("GET", "/v1/health").json["jobs"] == 0


def _registered(service: Service) -> str:
    end = time.monotonic() + 240
    while True:
        reply = service.ask("POST", "/v1/jobs", {"topology": SMALL})
        if reply.status == 201:
            return reply.json["job"]  # type: ignore[no-any-return]
        told(reply, 504, "LateError")
        assert time.monotonic() < end


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({"Host": "evil.example"}, 421, "HostError"),
        ({"Host": "evil.example:8642"}, 421, "HostError"),
        ({"Content-Type": "text/plain"}, 415, "MediaTypeError"),
        ({"Content-Type": ""}, 415, "MediaTypeError"),
    ],
)
def test_pages_in_a_browser_are_kept_out(tight: Service, headers: dict[str, str], status: int, kind: str) -> None:
    told(tight.ask("POST", "/v1/plan", {"topology": ""}, headers), status, kind)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8642", "[::1]:8642"])
def test_local_names_are_let_in(tight: Service, host: str) -> None:
    told(tight.ask("POST", "/v1/plan", {"topology": ""}, {"Host": host}), 422, "InputError")


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
        desk, calls = Desk(Settings()), []

        async def make() -> bytes:
            calls.append(1)
            await asyncio.sleep(0.01)
            return b"reply"

        request = PlanRequest(topology=SMALL)
        replies = await asyncio.gather(*(desk._once(b"plan", request, make) for _ in range(20)))
        replies.append(await desk._once(b"plan", request, make))
        desk.close()
        return list(replies), len(calls)

    assert asyncio.run(run()) == ([b"reply"] * 21, 1)


def test_an_error_is_not_kept() -> None:
    async def run() -> list[object]:
        desk, calls = Desk(Settings()), []

        async def make() -> bytes:
            calls.append(1)
            if len(calls) == 1:
                raise InputError("no")
            return b"yes"

        first = await asyncio.gather(desk._once(b"plan", 1, make), return_exceptions=True)
        second = await desk._once(b"plan", 1, make)
        desk.close()
        return [type(first[0]), second, len(desk._under_way)]

    assert asyncio.run(run()) == [InputError, b"yes", 0]


def test_a_plan_that_an_event_overtakes_is_not_kept_for_what_comes_after() -> None:
    cluster = optcc.load_topology(SMALL).cluster
    before = optcc.plan(cluster, 2**20)
    after = replace(before, cluster=cluster.degrade("server1/nic0", 0.5))  # of the same recipe
    made = [before, after, after]
    # The event came after the first plan was chosen.
    planner = SimpleNamespace(plan=lambda nbytes: made.pop(0), current=SimpleNamespace(event=1))

    async def run() -> list[bytes]:
        desk = Desk(Settings())
        desk.jobs["job"] = Job("job", planner, ())  # type: ignore[arg-type]
        replies = [await desk.job_plan("job", "1MiB", None) for _ in range(3)]
        desk.jobs.clear()
        desk.close()
        return [*replies, str(len(desk.replies)).encode()]

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
def desk_of_fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk(Settings())

    async def read(*_: object) -> object:
        return optcc.load_topology(SMALL).cluster, ()

    monkeypatch.setattr(desk, "_in_helper", read)
    monkeypatch.setattr("optcc.serve.desk.Planner", FakePlanner)
    FakePlanner.instances.clear()
    FakePlanner.making.clear()
    FakePlanner.go_on.clear()
    yield desk
    FakePlanner.go_on.set()
    desk.close()


def test_a_job_that_nobody_waits_for_any_more_is_ended(desk_of_fakes: Desk) -> None:
    async def run() -> None:
        task = asyncio.create_task(desk_of_fakes.register(JobRequest(topology=SMALL)))
        while not FakePlanner.making.is_set():
            await asyncio.sleep(0.01)
        task.cancel()  # as the limit of a request does
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    FakePlanner.go_on.set()
    assert FakePlanner.instances[0].closed.wait(30)
    assert not desk_of_fakes.jobs


def test_a_job_whose_name_nobody_learns_is_ended(desk_of_fakes: Desk) -> None:
    FakePlanner.go_on.set()
    with pytest.raises(InfeasibleError):
        asyncio.run(desk_of_fakes.register(JobRequest(topology=SMALL)))
    assert FakePlanner.instances[0].closed.is_set()
    assert not desk_of_fakes.jobs


def test_the_end_does_not_wait_for_a_job_being_made(desk_of_fakes: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()

    def busy(*_: object, urgent: Helper, **__: object) -> object:
        started.set()
        return urgent(time.sleep, 100)

    monkeypatch.setattr("optcc.serve.desk.Planner", busy)

    async def run() -> None:
        task = asyncio.create_task(desk_of_fakes.register(JobRequest(topology=SMALL)))
        while not started.is_set():
            await asyncio.sleep(0.01)
        desk_of_fakes.close()
        with pytest.raises(OptccError, match=r"closed|died"):
            await asyncio.wait_for(task, 60)

    asyncio.run(run())


@pytest.mark.parametrize("bad", [{"body": 1}, {"jobs": -1}, {"workers": 0}, {"read_s": 0}, {"concurrent": 10**6}])
def test_limits_have_limits(bad: dict[str, int]) -> None:
    with pytest.raises(InputError, match="limit out of range"):
        Settings(**bad)  # type: ignore[arg-type]


# Sockets, and the end


def test_a_unix_socket_is_its_owners(service: Service) -> None:
    mode = os.stat(service.where[5:]).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_what_is_at_a_socket_s_place(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    live = unix_socket(path)
    with pytest.raises(InputError, match="in use"):
        unix_socket(path)
    live.close()  # what a service leaves that was killed
    again = unix_socket(path)
    again.close()
    precious = tmp_path / "precious"
    precious.write_text("data")
    with pytest.raises(InputError, match="cannot be listened on"):
        unix_socket(precious)
    assert precious.read_text() == "data"
    with pytest.raises(InputError, match="cannot be listened on"):
        unix_socket(tmp_path / "none" / "socket")
    with pytest.raises(InputError, match="cannot be listened on"):
        unix_socket(tmp_path / ("a" * 200))


def test_a_service_that_ends_leaves_the_socket_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    old = unix_socket(path)
    ours = identity(path)
    path.unlink()
    new = unix_socket(path)
    forget_unix_socket(path, ours)
    assert path.is_socket()
    forget_unix_socket(path, identity(path))
    assert not path.exists()
    forget_unix_socket(path, identity(path))
    old.close()
    new.close()


def test_only_loopback_unless_asked() -> None:
    for address in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(InputError, match="--allow-remote"):
            tcp_socket(address, 0, remote=False)
    with pytest.raises(InputError, match="not an address"):
        tcp_socket("example.org", 0, remote=True)
    open_to_all = tcp_socket("0.0.0.0", 0, remote=True)
    with pytest.raises(InputError, match="free port"):
        tcp_socket("0.0.0.0", open_to_all.getsockname()[1], remote=True)
    open_to_all.close()


def test_the_command_refuses_with_status_2(tmp_path: Path) -> None:
    for options, said in (
        (["--address", "0.0.0.0"], "--allow-remote"),
        (["--unix", str(tmp_path / "s"), "--port", "1"], "not both"),
        (["--concurrent", "0"], "limit out of range"),
    ):
        done = CliRunner().invoke(main, ["serve", *options])
        assert done.exit_code == 2
        assert said in done.output


def test_the_client_in_c(service: Service, tmp_path: Path) -> None:
    """examples/replan.c, compiled without a warning, gets the reply that everybody gets."""
    assert shutil.which("cc"), "no C compiler for examples/replan.c: apt-get install g++ (CI does, by make ns3)"
    source, binary = ROOT / "examples/replan.c", tmp_path / "replan"
    flags = ["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, "-o", str(binary), str(source)], check=True, timeout=60)
    job = service.ask("POST", "/v1/jobs", {"topology": SMALL}).json["job"]

    def replan(*arguments: str) -> tuple[int, Any]:
        command = [str(binary), service.where[5:], job, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    status, reply = replan("rate", "server1/nic0", "100Gb/s")
    assert (status, reply["event"]) == (0, 1)
    assert reply["plans"] == service.ask("GET", f"/v1/jobs/{job}").json["plans"]
    assert replan("restore", "server1/nic0")[1]["event"] == 2
    status, reply = replan("fail", "server1/nic9")
    assert (status, reply["error"]["type"]) == (1, "InputError")
    assert replan("fail", 'server1/"nic0')[0] == 2
    service.ask("DELETE", f"/v1/jobs/{job}")


def test_sigterm_finishes_what_is_in_hand(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    service = start("--unix", str(path), "--drain", "200s", "--concurrent", "1", log=tmp_path / "log")
    some_time = "uniform:servers=24,nics=8,rate=400Gb/s"
    replies = in_hand(service, {"topology": some_time, "alpha": "5us", "per_chunk": "1us"})
    assert service.stop(limit_s=200) == 0
    reply = replies.get(timeout=10)
    assert isinstance(reply, Reply)
    assert reply.status == 200
    assert not path.exists()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    planned = [line for line in lines if (line["path"], line["status"]) == ("/v1/plan", 200)]
    assert [(line["method"], line["bytes"]) for line in planned] == [("POST", len(reply.body))]
    assert planned[0]["ms"] > 0


@pytest.mark.parametrize("asked", ["/v1/plan", "/v1/jobs"])
def test_sigterm_waits_no_longer_than_it_said(tmp_path: Path, asked: str) -> None:
    limits = ("--drain", "1s", "--concurrent", "1", "--request-limit", "1h")
    service = start("--port", "0", *limits, log=tmp_path / "log")
    assert service.ask("POST", "/v1/plan", {"topology": ""}).status == 422  # what reads topologies is up
    replies = in_hand(service, {"topology": SLOW, "ranks": "gpu", "fail": ["server1/nic0"]}, asked)
    assert service.stop(limit_s=100) == 0  # without the limit: the hour of a request
    reply = replies.get(timeout=30)
    assert not isinstance(reply, Reply) or reply.status >= 400


def in_hand(service: Service, body: dict[str, Any], path: str = "/v1/plan") -> queue.Queue[Reply | Exception]:
    """Ask, and come back when the service is at it: with one request at a time, it turns others away."""
    replies: queue.Queue[Reply | Exception] = queue.Queue()

    def ask() -> None:
        try:
            reply = service.ask("POST", path, body)
            while reply.status == 503:  # the question below was in hand
                reply = service.ask("POST", path, body)
            replies.put(reply)
        except (http.client.HTTPException, OSError) as error:
            replies.put(error)

    threading.Thread(target=ask, daemon=True).start()
    end = time.monotonic() + 100
    while service.ask("GET", "/v1/health").status != 503:
        assert time.monotonic() < end
        time.sleep(0.02)
    return replies
