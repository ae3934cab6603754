"""The limits of `optcc serve` on bytes, time, jobs and requests at once; and pages in a browser, which are kept out."""

from __future__ import annotations

import asyncio
import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from optcc.errors import InputError
from optcc.serve.listen import _Impatient
from optcc.serve.requests import ServeSettings
from tests.serving import SLOW, Reply, Service, running, told


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """On TCP, with limits that are soon met."""
    limits = ("--body", "4KiB", "--read-limit", "400ms", "--request-limit", "3s", "--concurrent", "2", "--jobs", "1")
    yield from running(tmp_path_factory.mktemp("tight"), "--port", "0", *limits)


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


HALF_HEADERS = [b"GET /v1/health HTT", b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nA: ", b"GET /v1/health\r\n"]
HALF_BODY = b"POST /v1/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def answered(sock: socket.socket) -> Reply:
    """What comes until the connection is closed; a timeout of the socket raises."""
    with sock, closing(http.client.HTTPResponse(sock)) as reply:
        reply.begin()
        found = Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        assert sock.recv(1) == b""
        return found


def test_a_request_that_does_not_begin(tight: Service) -> None:
    with tight.raw() as sock:
        assert sock.recv(4096) == b""  # closed; a timeout of the socket would raise


@pytest.mark.parametrize("sent", HALF_HEADERS)
def test_a_header_that_does_not_come(tight: Service, sent: bytes) -> None:
    sock = tight.raw()
    sock.sendall(sent)
    told(answered(sock), 408, "SlowError")


@pytest.mark.parametrize(
    "sent",
    [
        *HALF_HEADERS,
        HALF_BODY + b"Content-Length: 9\r\n\r\n{}",
        HALF_BODY + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}",
    ],
)
def test_a_request_whose_sender_ends_in_its_middle(tight: Service, sent: bytes) -> None:
    sock = tight.raw()
    sock.sendall(sent)
    sock.shutdown(socket.SHUT_WR)
    told(answered(sock), 400, "RequestError")


@pytest.mark.parametrize("times", [1, 3])
def test_whole_requests_are_answered_although_their_sender_ends(tight: Service, times: int) -> None:
    """Also one that takes a while, and several in a row."""
    body = b'{"topology": "uniform:servers=8,nics=4,rate=400Gb/s", "fail": ["server1/nic0"], "alpha": "5us"}'
    plan = HALF_BODY + b"Content-Length: %d\r\n\r\n" % len(body) + body
    sock = tight.raw()
    sock.sendall(plan + (times - 1) * b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    sock.shutdown(socket.SHUT_WR)
    answer = b""
    while more := sock.recv(65536):
        answer += more
    statuses = [status for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer) if status != b"100"]
    assert len(statuses) == times, answer[:300]
    assert set(statuses[1:]) <= {b"200"}
    assert statuses[0] in (b"200", b"504"), "the plan, or that it took too long"


@pytest.mark.parametrize("path", ["/v1/health/", "//v1/health", "/v1/plan/"])
def test_paths_that_are_nearly_right(tight: Service, path: str) -> None:
    told(tight.ask("GET", path), 404, "RouteError")


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
        protocol.settings, protocol.loop = ServeSettings(request_s=0.05), asyncio.get_running_loop()
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
    while tight.ask("GET", "/v1/health").json["in_hand"] < 2 and all(thread.is_alive() for thread in threads):
        time.sleep(0.01)
    statuses = set()
    while any(thread.is_alive() for thread in threads):
        assert tight.ask("GET", "/v1/health").status == 200
        busy = tight.ask("POST", "/v1/plan", {"topology": ""})
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


@pytest.mark.parametrize("bad", [{"body": 1}, {"jobs": -1}, {"workers": 0}, {"read_s": 0}, {"concurrent": 10**6}])
def test_limits_have_limits(bad: dict[str, int]) -> None:
    with pytest.raises(InputError, match="limit out of range"):
        ServeSettings(**bad)  # type: ignore[arg-type]
