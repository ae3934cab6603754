"""Plans per second of `optcc serve`, from its cache and from its jobs, on loopback. Writes docs/bench-serve.md.

Bounded: so many requests and so many seconds, over sockets of this machine. Client and service share its cores.
Exit status 1 when fewer than 200 plans per second come from the cache.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pages import made_with, parser, write
from optcc.values.units import format_seconds, format_size
from tests.serving import Service, start

TARGET = 200
CLIENTS, MOST, LONGEST_S = 8, 4000, 10.0
"""Connections, requests in all, and seconds; whichever ends first."""
CLUSTERS = (("8 servers of 8", 8), ("128 servers of 8", 128))


def ask(connection: http.client.HTTPConnection, path: str, body: dict[str, object] | None = None) -> bytes:
    """One request; anything but success ends the benchmark."""
    data = None if body is None else json.dumps(body).encode()
    connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    read = reply.read()
    if reply.status not in (200, 201):
        raise SystemExit(f"{path}: {reply.status} {read[:500]!r}")
    return read


def once(service: Service, path: str, body: dict[str, object] | None) -> bytes:
    """One request over a connection of its own."""
    connection = service.connect()
    try:
        return ask(connection, path, body)
    finally:
        connection.close()


def client(service: Service, path: str, bodies: Sequence[dict[str, object] | None], share: int, out: object) -> None:
    """Ask `share` times over one connection; the seconds of each to `out`."""
    connection = service.connect()
    took: list[float] = []
    end = time.perf_counter() + LONGEST_S
    size = 0
    while len(took) < share and time.perf_counter() < end:
        start = time.perf_counter()
        size = len(ask(connection, path, bodies[len(took) % len(bodies)]))
        took.append(time.perf_counter() - start)
    connection.close()
    out.put((took, size))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Load:
    """What was asked, how often, for how long, and how long each took; bytes of a reply."""

    what: str
    seconds: float
    took: list[float]
    size: int

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.took) / self.seconds

    def __str__(self) -> str:
        ordered = sorted(self.took)
        marks = (ordered[min(len(ordered) - 1, len(ordered) * part // 1000)] for part in (500, 950, 990))
        times = " | ".join(map(format_seconds, marks))
        return f"| {self.what} | {len(ordered)} | {self.rate:.0f} | {times} | {format_size(self.size)} |"


def load(
    what: str, service: Service, path: str, bodies: Sequence[dict[str, object] | None], clients: int = CLIENTS
) -> Load:
    """Ask from `clients` connections at once, each in a process of its own."""
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    processes = [
        context.Process(target=client, args=(service, path, bodies, MOST // clients, out), daemon=True)
        for _ in range(clients)
    ]
    start = time.perf_counter()
    for process in processes:
        process.start()
    results = [out.get(timeout=LONGEST_S + 60) for _ in processes]
    seconds = time.perf_counter() - start
    for process in processes:
        process.join(10)
    return Load(what, seconds, [t for took, _ in results for t in took], results[0][1])


@contextlib.contextmanager
def served(*options: str) -> Iterator[Service]:
    """A service that is stopped in the end."""
    with tempfile.TemporaryDirectory() as folder:
        service = start(*options, log=Path(folder) / "log")
        try:
            yield service
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                service.stop(30)
            service.process.kill()


def loads(service: Service, name: str) -> list[Load]:
    """Plans from the cache, and events of a job, for each cluster."""
    found: list[Load] = []
    for words, servers in CLUSTERS:
        topology = f"uniform:servers={servers},nics=8,rate=400Gb/s"
        # Sixteen failures that are asked for over and over, as by sixteen groups of ranks.
        bodies: list[dict[str, object] | None] = [
            {"topology": topology, "fail": [f"server{i % servers}/nic{i % 8}"]} for i in range(16)
        ]
        for body in bodies:
            once(service, "/v1/plan", body)
        found.append(load(f"plan from the cache, {words}, {name}", service, "/v1/plan", bodies))
        job = json.loads(once(service, "/v1/jobs", {"topology": topology}))["job"]
        events: list[dict[str, object] | None] = [
            {"event": event, "nic": f"server{i % servers}/nic{i % 8}"}
            for i in range(16)
            for event in ("fail", "restore")
        ]
        found.append(load(f"event of a job, {words}, {name}, one client", service, f"/v1/jobs/{job}/events", events, 1))
        path = f"/v1/jobs/{job}/plan?size=1GiB"
        found.append(load(f"a job's plan file, {words}, {name}", service, path, [None]))
    return found


@dataclass(frozen=True)
class Attack:
    """Seconds that events and health took, how many of them were turned away; peak memory of the service's processes,
    in bytes."""

    what: str
    events: list[float]
    health: list[float]
    refused: int
    peak: int

    def __str__(self) -> str:
        slowest = " | ".join(format_seconds(max(took, default=0.0)) for took in (self.events, self.health))
        return f"| {self.what} | {len(self.events)} | {slowest} | {self.refused} | {format_size(self.peak)} |"


SLOW = {"topology": "uniform:servers=24,nics=8,rate=400Gb/s,fabric=rails,nvlink=450GB/s", "ranks": "gpu"}
"""A plan that takes minutes."""
LARGE = {"topology": "uniform:servers=256,nics=8,rate=400Gb/s"}
"""A plan whose transfers take 2 GB and more."""
ATTACK_S, REQUESTS = 15.0, 64


def attacks(service: Service) -> list[Attack]:
    """Events and health while nothing else is asked, while as many plans as may be are in hand, after these were all
    abandoned, and beside a request for a plan that takes too much memory."""
    job = json.loads(once(service, "/v1/jobs", {"topology": "uniform:servers=128,nics=8,rate=400Gb/s"}))["job"]
    quiet = probed("nothing else", service, job)
    waiting = [begun(service, {**SLOW, "fail": ["server1/nic0"], "size": f"{n + 1}MiB"}) for n in range(REQUESTS)]
    busy = probed(f"{REQUESTS} plans that take minutes are in hand", service, job)
    for each in waiting:
        each.close()
    left = probed("all of their callers have left", service, job)
    greedy = begun(service, LARGE)
    memory = probed("a plan of 256 servers", service, job)
    greedy.close()
    return [quiet, busy, left, memory]


def begun(service: Service, body: dict[str, object]) -> http.client.HTTPConnection:
    """A plan that was asked for, its reply not waited for."""
    connection = service.connect()
    connection.request("POST", "/v1/plan", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return connection


def probed(what: str, service: Service, job: str) -> Attack:
    """Ask again and again for `ATTACK_S` seconds, every question over a connection of its own."""
    events: list[float] = []
    health: list[float] = []
    refused = peak = 0
    end = time.perf_counter() + ATTACK_S
    while time.perf_counter() < end:
        event = {"event": ("fail", "restore")[len(events) % 2], "nic": f"server{len(events) // 2 % 128}/nic1"}
        for took, path, body in ((events, f"/v1/jobs/{job}/events", event), (health, "/v1/health", None)):
            start = time.perf_counter()
            try:
                once(service, path, body)
            except (SystemExit, OSError):
                refused += 1
            took.append(time.perf_counter() - start)
        peak = max(peak, memory_of(service.process.pid))
        time.sleep(0.02)
    return Attack(what, events, health, refused, peak)


def memory_of(pid: int) -> int:
    """Bytes in memory of a process and its children, the largest of them."""
    found = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    for task in Path(f"/proc/{pid}/task").iterdir():  # children belong to the thread that started them
        found += map(int, (task / "children").read_text().split())
    sizes = [0]
    for each in found:
        with contextlib.suppress(OSError):
            sizes.append(int(Path(f"/proc/{each}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    return max(sizes)


def main() -> int:
    asked = parser(__doc__, "bench-serve")
    output = asked.parse_args().output
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "socket")
        with served("--unix", path) as service:
            done = loads(service, "Unix socket")
    with served("--port", "0") as service:
        attacked = attacks(service)
    with served("--port", "0") as service:
        done += loads(service, "TCP")
    cached = [each for each in done if each.what.startswith("plan from the cache")]
    slowest = min(each.rate for each in cached)
    text = [
        "# optcc serve under load",
        "",
        f"Made by `make bench-serve`: one service and its clients on the {os.cpu_count()} cores of one machine, over",
        f"loopback. Up to {MOST} requests or {LONGEST_S:.0f} s of each kind, {CLIENTS} connections that stay open",
        "unless said otherwise, each in a process of its own (Python's http.client), one request at a time.",
        "",
        "| what | requests | per second | median | 95th centile | 99th centile | reply |",
        "|---|---|---|---|---|---|---|",
        *map(str, done),
        "",
        f"Plans from the cache: at least {slowest:.0f} per second (target {TARGET}).",
        "",
        "## Under attack",
        "",
        f"Failure events of a job of 128 servers of 8, and the health of the service, asked for {ATTACK_S:.0f} s one",
        "after the other, each over a connection of its own, while others ask for something else. Refused: an answer",
        "that was no success. The memory is the largest process's.",
        "",
        "| meanwhile | events | slowest event | slowest health | refused | memory |",
        "|---|---|---|---|---|---|",
        *map(str, attacked),
        "",
        made_with(),
    ]
    write(output, text, lambda c: "128 servers of 8, Unix socket" in c["what"])
    return 1 if slowest < TARGET else 0


if __name__ == "__main__":
    sys.exit(main())
