"""A running `optcc serve`, what is asked of it, and its replies against its own document."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

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
