"""What `optcc serve` replies, through real sockets: what the library says, as documented, to clients in C as well.

Where it listens, and how SIGTERM ends it: what is in hand is finished, but for no longer than was said.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import stat
import subprocess
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

import optcc
from optcc.cli import main
from optcc.errors import InputError
from optcc.plans.plan import Plan
from optcc.serve.app import ENDPOINTS
from optcc.serve.listen import forget_unix_socket, identity, tcp_socket, unix_socket
from tests.serving import ROOT, SLOW, SMALL, Reply, Service, check, running, start, told


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("serve")
    yield from running(folder, "--unix", str(folder / "socket"))


@pytest.fixture(scope="module")
def documented(service: Service) -> dict[str, Any]:
    return service.ask("GET", "/v1/openapi.json").json


def test_a_plan_is_the_plan_of_the_library(service: Service, documented: dict[str, Any]) -> None:
    request = {"topology": SMALL, "fail": ["server1/nic0", "server2/nic1=37%"], "size": "1MiB"}
    reply = service.ask("POST", "/v1/plan", request)
    check(documented, "/v1/plan", "post", reply)
    cluster = optcc.load_topology(SMALL).cluster.degrade("server1/nic0").degrade("server2/nic1", 0.37)
    assert Plan.from_bytes(b64decode(reply.json["plan"])) == optcc.plan(cluster, 2**20)
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
    assert Plan.from_bytes(b64decode(reply.json["plan"])).cluster.servers == expected.servers
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
        assert [brief["recipe"] for brief in reply.json["plans"]] == [plan.choices for plan in plans]
        assert [brief["bound"] for brief in reply.json["plans"]] == [str(plan.bound.seconds) for plan in plans]
        whole = service.ask("GET", f"{job}/plan?size=64MiB")
        check(documented, "/v1/jobs/{job}/plan", "get", whole)
        assert Plan.from_bytes(b64decode(whole.json["plan"])) == plans[1]
    state = service.ask("GET", job)
    check(documented, "/v1/jobs/{job}", "get", state)
    assert state.json["preparation"]["ready"] == state.json["preparation"]["wanted"]
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
    told(service.ask("GET", "/metrics"), 404, "RouteError")  # without --metrics
    jsonschema.Draft202012Validator.check_schema({"$defs": documented["components"]["schemas"]})


def test_the_check_against_the_document_can_fail(service: Service, documented: dict[str, Any]) -> None:
    reply = service.ask("GET", "/v1/health")
    with pytest.raises(jsonschema.ValidationError):
        check(documented, "/v1/health", "get", Reply(200, reply.headers, b'{"status": "ok"}'))
    with pytest.raises(KeyError):
        check(documented, "/v1/health", "get", Reply(418, reply.headers, reply.body))


def test_a_unix_socket_is_its_owners(service: Service) -> None:
    mode = os.stat(service.where[5:]).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.cc
def test_the_client_in_c(service: Service, tmp_path: Path) -> None:
    """examples/replan.c, compiled without a warning, gets the reply that everybody gets."""
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
    limits = ("--drain", "200s", "--request-limit", "200s", "--concurrent", "1")
    service = start("--unix", str(path), *limits, log=tmp_path / "log")
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


@pytest.mark.long
@pytest.mark.parametrize("asked", ["/v1/plan", "/v1/jobs"])
def test_sigterm_waits_no_longer_than_it_said(tmp_path: Path, asked: str) -> None:
    limits = ("--drain", "1s", "--concurrent", "1", "--request-limit", "1h")
    service = start("--port", "0", *limits, log=tmp_path / "log")
    assert service.ask("POST", "/v1/plan", {"topology": ""}).status == 422  # what reads topologies is up
    replies = in_hand(service, {"topology": SLOW, "ranks": "gpu", "fail": ["server1/nic0"]}, asked)
    assert service.stop(limit_s=100) == 0  # without the limit: the hour of a request
    reply = replies.get(timeout=30)
    assert isinstance(reply, Reply)
    told(reply, 503, "EndingError")
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["status"] for line in lines if line.get("path") == asked][-1] == 503
    assert not [line for line in lines if "Traceback" in str(line)]


def in_hand(service: Service, body: dict[str, Any], path: str = "/v1/plan") -> queue.Queue[Reply | Exception]:
    """Ask, and come back when the service is at it."""
    replies: queue.Queue[Reply | Exception] = queue.Queue()

    def ask() -> None:
        try:
            replies.put(service.ask("POST", path, body))
        except (http.client.HTTPException, OSError) as error:
            replies.put(error)

    threading.Thread(target=ask, daemon=True).start()
    end = time.monotonic() + 100
    while not service.ask("GET", "/v1/health").json["in_hand"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    return replies


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
