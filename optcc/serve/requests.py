"""What bounds the service, and what goes over the wire, as types: requests are decoded into them, replies encoded.

OpenAPI is made of them, too. Sizes, rates and times are texts with units, as on the command line; exact numbers in
replies are texts such as "3/5".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from optcc.errors import InputError


@dataclass(frozen=True)
class ServeSettings:
    """Every limit of the service is enforced, and has a test that meets it. Bytes, seconds and counts.

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


MOST_FAILURES = 4096
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Short = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class _Request(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    pass


class ClusterRequest(_Request, frozen=True):
    """A cluster: `topology` is the text itself, never a path: a preset, NCCL's topology XML, or optcc's YAML.

    fail : SERVER/NIC[=FRACTION_LEFT], as ``optcc plan --fail``; alpha, per_chunk : such as 5us
    """

    topology: Annotated[str, msgspec.Meta(min_length=1)]
    servers: Annotated[int, msgspec.Meta(ge=1, le=65536)] | None = None
    nic_rate: Short | None = None
    ranks: Literal["server", "gpu"] = "server"
    fail: Annotated[list[Text], msgspec.Meta(max_length=MOST_FAILURES)] = msgspec.field(default_factory=list)
    alpha: Short = "0us"
    per_chunk: Short = "0us"


class PlanRequest(ClusterRequest, frozen=True):
    """One plan."""

    size: Short = "1GiB"
    family: Short | None = None
    segments: Annotated[int, msgspec.Meta(ge=1, le=65536)] | None = None


class JobRequest(ClusterRequest, frozen=True):
    """A cluster whose plans are kept ready, for these sizes. `lookahead`: failures in a row that are prepared for;
    `exposed`: the part of a step of the job that is AllReduce and not hidden, which metrics of costs go by."""

    sizes: Annotated[list[Short], msgspec.Meta(min_length=1, max_length=16)] = msgspec.field(
        default_factory=lambda: ["1GiB"]
    )
    lookahead: Annotated[int, msgspec.Meta(ge=0, le=4)] = 2
    exposed: Short = "20%"


class EventRequest(_Request, frozen=True):
    """What happened to a NIC: it is dead, keeps at most `rate` each way, or is as it was without failures."""

    event: Literal["fail", "rate", "restore"]
    nic: Text
    rate: Short | None = None


class MeasurementRequest(_Request, frozen=True):
    """An AllReduce of `size` per rank took so long, the job's cluster being as it is: for the metrics."""

    size: Short
    time: Short


class ErrorBody(msgspec.Struct, frozen=True):
    """`type` is the class in Python: InputError, InfeasibleError, or a name of the service's own."""

    type: str
    what: str
    where: str | None = None
    expected: str | None = None
    got: str | None = None
    hint: str | None = None


class ReplyError(Exception):
    """A reply with a status and an error."""

    def __init__(self, status: int, body: ErrorBody) -> None:
        super().__init__(body.what)
        self.status, self.body = status, body


class ErrorReply(msgspec.Struct, frozen=True):
    """Every reply with a status of 400 and above."""

    error: ErrorBody


class PlanReply(msgspec.Struct, frozen=True):
    """`plan` is a plan file (docs/plan-format.md) in base64; `notes`: what was skipped or assumed in the topology."""

    plan: str
    notes: list[str] = msgspec.field(default_factory=list)


class Brief(msgspec.Struct, frozen=True):
    """A plan without the cluster that both sides know: bytes per rank, seconds exact and rounded, the recipe."""

    nbytes: int
    family: str
    recipe: dict[str, Any]
    bound: str
    bound_s: float
    bottleneck: str


class Readiness(msgspec.Struct, frozen=True):
    """Shapes of failures that may come next: how many are decided, of how many; `error`: the last failure."""

    ready: int
    wanted: int
    error: str | None = None


class JobReply(msgspec.Struct, frozen=True):
    """A job as it is. `event` counts events; `basis` says how the plans were come by, `took_s` how long that took.

    preparation : not in the reply to an event, which does not wait for counting
    """

    job: str
    event: int
    basis: Literal["prepared", "closed-form", "solved", "nearest"]
    took_s: float
    plans: list[Brief]
    preparation: Readiness | None = None
    notes: list[str] = msgspec.field(default_factory=list)


class HealthReply(msgspec.Struct, frozen=True):
    """`in_hand`: requests that take long, of which there may be `--concurrent`; `cached`: replies in the cache, and
    their bytes; `log_dropped`: lines of the log that nobody read."""

    status: Literal["ok"]
    version: str
    jobs: int
    in_hand: int
    cached: int
    cached_bytes: int
    log_dropped: int


def decode(body: bytes, kind: type[msgspec.Struct]) -> Any:
    """A request. Raises InputError with the place of what is wrong; `where` is "body" for what is no JSON at all."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `")
        where, expected = place.rstrip("`")[:200] or "$", f"a {kind.__name__} as in /v1/openapi.json"
        raise InputError(what[:300], where=where, expected=expected) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError("not JSON", where="body", expected="a JSON object", got=str(error)[:200]) from None


class MalformedError(InputError):
    """The body is no JSON."""
