"""SIGTERM ends `optcc serve`: what is in hand is finished, but for no longer than was said."""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.serving import SLOW, Reply, Service, start, told


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
