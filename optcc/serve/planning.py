"""What takes long: reading a topology, planning. Functions of values, run in another process with a limit of time.

A topology is text. It is written to a file of our own naming for the readers, which read files; nothing that a request
says is ever taken for a path.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from optcc.discover import apply_failures, load_topology
from optcc.discover.yaml_file import PREFIX
from optcc.errors import InputError, OptccError
from optcc.plans.plan import Plan
from optcc.serve.requests import ClusterRequest, ErrorBody, PlanRequest
from optcc.values.cluster import Cluster
from optcc.values.units import parse_seconds, parse_size

T = TypeVar("T")
MAX_NICS = 65536
"""Of one cluster: 8192 servers of 8. Larger ones are for the command line, where they are nobody else's time."""
LONGEST_PRESET = 1024
NICENESS = 5
"""Processes that plan leave the processor to the one that answers events, where there are not enough for all."""
TRANSFER_BYTES = 320
"""Measured: lowering a ring of 128 ranks, 64 segments deep, and writing and reading its file takes up to 318."""
MAX_REPLY = 2**25
"""Bytes of a plan file: a ring of 64 servers, 64 segments deep, takes 3.4 MB."""


@dataclass(frozen=True)
class WorkOutcome(Generic[T]):
    """A value, or the error in its place: errors do not travel between processes by themselves."""

    value: T | None = None
    error: ErrorBody | None = None
    expected: bool = False
    """The caller can mend it."""


def guarded(function: Callable[..., T], *arguments: object) -> WorkOutcome[T]:
    """Call it; an error that is meant for people becomes part of the outcome."""
    try:
        return WorkOutcome(function(*arguments))
    except OptccError as error:
        return WorkOutcome(error=described(error), expected=isinstance(error, InputError))


def described(error: OptccError) -> ErrorBody:
    """The error as it goes over the wire."""
    name = type(error).__name__
    if not isinstance(error, InputError):
        return ErrorBody(name, str(error)[:500])
    got = None if error.got is None else str(error.got)[:300]
    return ErrorBody(name, error.what, error.where, error.expected, got, error.hint)


def read_cluster(request: ClusterRequest) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster and what was assumed about it. Raises InputError."""
    text = request.topology
    if any(ord(char) < 32 and char not in "\t\r\n" for char in text):
        raise InputError("not a text", where="topology", expected="XML, YAML or a preset, no control characters")
    if text.startswith(PREFIX):
        if len(text) > LONGEST_PRESET:
            raise InputError("too long", where="topology", expected=f"at most {LONGEST_PRESET} characters of a preset")
        found = load_topology(text.strip(), servers=request.servers, nic_rate=request.nic_rate)
        name = ""
    else:
        with tempfile.TemporaryDirectory(prefix="optcc-serve-") as folder:
            path = Path(folder) / "topology"
            path.write_text(text, encoding="utf-8")
            name = str(path)
            with _renamed(name):
                found = load_topology(name, servers=request.servers, nic_rate=request.nic_rate, documents_only=True)
    nics = sum(len(server.nics) for server in found.cluster.servers)
    if nics > MAX_NICS:
        raise InputError("too many NICs in all", where="topology", expected=f"at most {MAX_NICS}", got=nics)
    cluster = apply_failures(replace(found.cluster, gpu_ranks=request.ranks == "gpu"), request.fail)
    return cluster, tuple(note.replace(name, "topology") if name else note for note in map(str, found.notes))


@contextmanager
def _renamed(path: str) -> Iterator[None]:
    """Errors speak of "topology", not of a file that the caller knows nothing of."""
    try:
        yield
    except InputError as error:
        what, where = (text.replace(path, "topology") for text in (error.what, error.where or "topology"))
        raise type(error)(what, where=where, expected=error.expected, got=error.got, hint=error.hint) from None


def prepare(memory: int) -> None:
    """In a process that plans: import the planner's modules, which takes some seconds, before any request, and take no
    more than `memory` bytes from then on.

    Schedules whose transfers take more are refused by their number, before any memory is spent (`require_memory`). The
    kernel's limit is for everything else, and for that estimate being wrong.
    """
    import optcc.api
    import optcc.planner.search
    import optcc.simulation.simulator
    import optcc.theory.bound_program  # noqa: F401
    from optcc.machine.workers import limit_memory
    from optcc.schedule.assemble import most_transfers

    os.nice(NICENESS)
    most_transfers.set(memory // TRANSFER_BYTES)
    limit_memory(memory)


def size_of(text: str) -> int:
    """Bytes per rank, at least one."""
    size = parse_size(text, where="size")
    if size < 1:
        raise InputError("nothing to reduce", where="size", expected="1 byte or more", got=text)
    return size


def new_plan(request: PlanRequest) -> tuple[bytes, tuple[str, ...]]:
    """A plan file, and the notes. Raises InputError."""
    from optcc.api import plan

    cluster, notes = read_cluster(request)
    made = plan(
        cluster,
        size_of(request.size),
        family=request.family,
        segments=request.segments,
        alpha=parse_seconds(request.alpha, "alpha"),
        per_chunk=parse_seconds(request.per_chunk, "per_chunk"),
        in_place=True,  # who asks may fold in place
    )
    return plan_file(made), notes


def plan_file(plan: Plan) -> bytes:
    """A plan file, deflated. Raises InputError where it is longer than a reply may be."""
    data = plan.to_bytes(packed=True)
    if len(data) > MAX_REPLY:
        hint = "Fewer segments."
        raise InputError("too large a plan", where="plan", expected=f"{MAX_REPLY} bytes", got=len(data), hint=hint)
    return data
