"""Nobody reads the log of `optcc serve`, requests are no HTTP, the service ends: every answer has its body and line."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optcc.serve.listen import LogLines
from tests.serving import SMALL, Reply, Service, running, start, told

LINE = "x" * 1000
WAIT_S = 60.0


def full_pipe() -> tuple[int, int]:
    """A pipe with no room for a line."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"-" * 64)
    except BlockingIOError:
        os.set_blocking(writing, True)
    return reading, writing


def until(holds: Any) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("blocking", [True, False])
def test_lines_are_dropped_counted_and_told(blocking: bool) -> None:
    reading, writing = full_pipe()
    os.set_blocking(writing, blocking)
    log = LogLines(writing, most=10 * (len(LINE) + 1))
    for _ in range(100):
        log(LINE)
    assert 89 <= log.dropped <= 90  # one may be on its way
    log.close(limit_s=0.05)  # comes back although nothing can be written
    text = b""
    os.set_blocking(reading, False)

    def told_of_it() -> bool:
        nonlocal text
        with contextlib.suppress(BlockingIOError):
            text += os.read(reading, 1 << 16)
        return b"dropped" in text

    until(told_of_it)
    lines = text.lstrip(b"-").splitlines()
    assert lines.count(LINE.encode()) == 100 - log.dropped
    assert {json.loads(line)["dropped"] for line in lines if line[:1] == b"{"} == {log.dropped}


def test_a_reader_that_has_gone_holds_up_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    log = LogLines(writing)
    log(LINE)
    until(lambda: log.dropped)
    log(LINE)
    log.close()
    assert log.dropped == 2  # that lines were dropped is no line that is dropped: a thread would do nothing else
    os.close(writing)


def test_a_log_that_nobody_reads_holds_up_no_answer_and_no_end(tmp_path: Path) -> None:
    """More lines than the pipe and the service have room for; then an event, and SIGTERM."""
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    service = start("--port", "0", "--drain", "2s", "--read-limit", "100s", "--request-limit", "100s", log=fifo)
    try:
        made = service.ask("POST", "/v1/jobs", {"topology": SMALL, "lookahead": 0})
        assert made.status == 201, made.body
        job = made.json["job"]
        connection = service.connect()
        for _ in range(800):  # of some 1600 bytes in the log
            connection.request("GET", "/" + "%00" * 255)
            assert connection.getresponse().read()
        connection.close()
        assert service.ask("GET", "/v1/health").json["log_dropped"] > 0
        assert "/metrics" not in told(service.ask("GET", "/metrics"), 404, "RouteError")["expected"]
        event = {"event": "fail", "nic": "server1/nic0"}
        assert service.ask("POST", f"/v1/jobs/{job}/events", event).json["event"] == 1
        assert service.stop(limit_s=WAIT_S) == 0
    finally:
        service.process.kill()
        service.process.wait(10)
        os.close(held)


# ---- what is no request ---------------------------------------------------------------------------------------------

POST = b"POST /v1/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
NOT_HTTP = {
    "NUL in the path": b"GET /v1/he\0alth HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "NUL in a header": b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    "no Host": b"GET /v1/health HTTP/1.1\r\n\r\n",
    "Host twice": b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    "a length in letters": POST + b"Content-Length: two\r\n\r\n{}",
    "a length below 0": POST + b"Content-Length: -1\r\n\r\n{}",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "a length of 30 digits": POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}",
    "a length that is short": POST + b"Content-Length: 1\r\n\r\n{}",
    "a chunk without a length": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "another transfer encoding": POST + b"Transfer-Encoding: gzip\r\n\r\n{}",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "NUL in the body": POST + b'Content-Length: 17\r\n\r\n{"topology":"a\0"}',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logged")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    yield from running(folder, "--port", "0", "--metrics")


def log_of(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def sent(service: Service, request: bytes) -> list[Reply]:
    """All replies to what is sent, until the service closes the connection or is quiet."""
    found, data = [], b""
    with service.raw() as raw:
        raw.sendall(request)
        while part := raw.recv(1 << 16):
            data += part
            while b"\r\n\r\n" in data:
                head, _, rest = data.partition(b"\r\n\r\n")
                status, *lines = head.decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                if len(rest) < (length := int(headers["content-length"])):
                    break
                found.append(Reply(int(status.split()[1]), headers, rest[:length]))
                data = rest[length:]
                if headers.get("connection") != "close" and found[-1].status != 200:
                    return found
    return found


@pytest.mark.parametrize("name", NOT_HTTP)
def test_what_is_no_request_is_answered_and_logged(name: str, service: Service, folder: Path) -> None:
    before = len(log_of(folder))
    reply = sent(service, NOT_HTTP[name])[-1]
    assert reply.headers["content-type"] == "application/json"
    assert told(reply, 400, reply.json["error"]["type"])["type"] in ("RequestError", "MalformedError")
    until(lambda: len(log_of(folder)) > before)
    line = log_of(folder)[before]
    assert (line["status"], line.get("level")) == (400, None)


def test_what_comes_behind_a_request_is_answered_after_it(service: Service) -> None:
    """A plan in hand, then no HTTP: the plan comes first, then the 400."""
    body = json.dumps({"topology": SMALL}).encode()
    first, second = sent(service, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"\0\0\r\n\r\n")
    assert (first.status, "plan" in first.json) == (200, True)
    told(second, 400, "RequestError")


@pytest.mark.parametrize(("method", "path"), [("PUT", "/metrics"), ("DELETE", "/v1/health"), ("PATCH", "/v1/plan")])
def test_a_wrong_method_is_told_all_that_there_is(service: Service, method: str, path: str) -> None:
    reply = service.ask(method, path, {})
    assert "GET /metrics" in told(reply, 405, "RouteError")["expected"]
    assert method not in reply.headers["allow"]


def test_who_is_cut_off_by_the_end_is_told(tmp_path: Path) -> None:
    """A request whose body does not come, when `--drain` is over."""
    service = start("--port", "0", "--drain", "200ms", log=tmp_path / "log")
    try:
        with service.raw() as raw:
            raw.sendall(POST + b"Content-Length: 50\r\n\r\n{")
            # It is in hand when another one has been answered that came later.
            assert service.ask("GET", "/v1/health").status == 200
            assert service.stop(limit_s=WAIT_S) == 0
            head, _, body = raw.recv(1 << 16).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body)["error"]["type"] == "EndingError"
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert [line["status"] for line in lines if line.get("method") == "POST"] == [503]
    finally:
        service.process.kill()
        service.process.wait(10)
