"""What bounds the service. Every limit is enforced, and every one has a test that meets it."""

from __future__ import annotations

from dataclasses import dataclass

from optcc.errors import InputError


@dataclass(frozen=True)
class ServeSettings:
    """Bytes, seconds and counts.

    body : of a request; read_s : seconds from connecting, or from the last reply, to the end of a request's header;
    from there to the end of its body; and for the last reply to be read; request_s : from there to the reply, and for
    earlier replies to be read
    concurrent : requests at once that may take long, and twice as many connections
    memory : that a process which plans may take beyond what it has after its start
    workers : processes that plan from scratch; jobs : clusters with plans kept ready
    cache_bytes : of replies kept; drain_s : for requests in hand when the service is told to stop
    metrics : whether there are metrics for Prometheus
    """

    body: int = 2**20
    read_s: float = 10.0
    request_s: float = 60.0
    concurrent: int = 64
    workers: int = 1
    memory: int = 2**31
    jobs: int = 16
    cache_bytes: int = 64 * 2**20
    drain_s: float = 10.0
    metrics: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("body", 1024, 2**26), ("read_s", 0.05, 3600), ("request_s", 0.05, 86400), ("concurrent", 1, 4096),
            ("workers", 1, 256), ("memory", 2**26, 2**50), ("jobs", 0, 4096), ("cache_bytes", 0, 2**36),
            ("drain_s", 0, 3600),
        ):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError("limit out of range", where=name, expected=f"{low} to {high}", got=str(value))
