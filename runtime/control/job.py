"""What every rank is given to do: a job, and calls of its schedules; and whether this machine can do it.

It travels as bytes: columns as numpy writes them, everything else as JSON. Nothing in it can be executed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any
from zipfile import BadZipFile

import numpy as np

from optcc.errors import InputError
from optcc.runtime.codec import Json, MessageError, plain, typed
from optcc.runtime.control.limits import available_bytes
from optcc.runtime.control.transports import TRANSPORTS
from optcc.runtime.devices.host import dtype_of, reduction_of
from optcc.runtime.devices.memory import device_of
from optcc.runtime.messages import RunCall
from optcc.runtime.native.layout import Layout
from optcc.runtime.native.wires import shared_bytes
from optcc.schedule import Lane, Link, Port, Route, Schedule

LOCAL = ("local", "cpu")
"""Transport and device of runs whose chunks land in host memory that the ranks share."""

PROCESS_BYTES = 40 << 20
"""What a rank's process takes beside its buffers: numpy and the library."""

BYTE_S, TRANSFER_S = 1.2e-9, 2e-5
"""Seconds of processor that a payload byte takes at both ends together, and a transfer. 3 and 6 ranks with 16 MiB took
1.1 to 2.1 ns a byte for both."""
SOON_S = 1.0
"""A run that the processor ends within this needs no note before it; half of it only gives shorter runs one."""

BUFFERS_PER_RANK = 3
"""The buffer, the reference, and room for what makes them (another rank's input, staging)."""


@dataclass(frozen=True, eq=False)
class Job:
    """Schedules by algorithm name, all for the same ranks and bytes; names of dtype and operation.

    paced : emulate the rates of the schedules' ports; False: as fast as the machine goes
    transport : what carries the chunks, one of TRANSPORTS
    device : where the buffers are, one of memory.DEVICES
    """

    schedules: Mapping[str, Schedule]
    dtype: str
    op: str
    paced: bool
    transport: str = "local"
    device: str = "cpu"

    def __post_init__(self) -> None:
        reduction_of(self.op)
        if self.transport not in TRANSPORTS:
            raise InputError(
                "no such transport", where="--transport", expected=" or ".join(TRANSPORTS), got=self.transport
            )
        if device_of(self.device) != "cpu" and self.transport != "local":
            raise InputError(
                "no NIC is given GPU memory yet",
                where=f"--device {self.device}",
                expected="--transport local",
                got=self.transport,
            )
        itemsize = dtype_of(self.dtype).itemsize
        if not self.schedules:
            raise InputError("nothing to run", where="schedules", expected="at least one", got=0)
        shapes = {(schedule.ranks, schedule.nbytes) for schedule in self.schedules.values()}
        if len(shapes) > 1:
            raise InputError(
                "schedules of different shapes", where="schedules", expected="the same ranks and bytes", got=str(shapes)
            )
        if self.nbytes % itemsize:
            raise InputError(
                "not a whole number of elements",
                where="--size",
                expected=f"a multiple of {itemsize} bytes for {self.dtype}",
                got=self.nbytes,
            )

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return next(iter(self.schedules.values())).ranks

    @property
    def nbytes(self) -> int:
        """Buffer bytes per rank."""
        return next(iter(self.schedules.values())).nbytes


@dataclass(frozen=True, eq=False)
class Assignment:
    """What all ranks do next: take the job, if there is one, then make these calls of its schedules.

    patience_s : so long may nothing move on a rank, and ranks be awaited by others, in all of it
    terms : what rank 0 was given, by name, where others have started the other ranks; they compare it with theirs
    wrong : why the job cannot be, as rank 0 has found
    """

    job: Job | None
    calls: Sequence[RunCall]
    patience_s: float
    terms: Mapping[str, str] | None = None
    wrong: str = ""

    def to_bytes(self) -> bytes:
        """An uncompressed npz: columns as ``name/column``, and a table of everything else."""
        schedules = self.job.schedules if self.job else {}
        arrays = {
            f"{at}/{column}": getattr(schedule, column)
            for at, schedule in enumerate(schedules.values())
            for column in COLUMNS
        }
        tables = {
            "job": self.job and {name: getattr(self.job, name) for name in SETTINGS},
            "schedules": [{"name": name, **_tables(schedule)} for name, schedule in schedules.items()],
            "calls": plain(list(self.calls)),
            "patience_s": self.patience_s,
            "terms": None if self.terms is None else dict(self.terms),
            "wrong": self.wrong,
        }
        arrays[TABLES] = np.frombuffer(json.dumps(tables).encode(), np.uint8)
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Assignment:
        """The inverse of `to_bytes`. MessageError for what is not such an archive."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                tables = json.loads(archive[TABLES].tobytes())
                schedules = {
                    table["name"]: _schedule(table, {column: archive[f"{at}/{column}"] for column in COLUMNS})
                    for at, table in enumerate(tables["schedules"])
                }
            job = tables["job"] and Job(schedules, **{name: tables["job"][name] for name in SETTINGS})
            calls = [typed(RunCall, call) for call in tables["calls"]]
            return cls(job, calls, float(tables["patience_s"]), tables["terms"], tables["wrong"])
        except (BadZipFile, EOFError, KeyError, TypeError, ValueError, OSError) as error:
            raise MessageError(f"not a job: {type(error).__name__}: {error}") from error


TABLES = "tables"
"""The member of the archive that holds the JSON, as bytes."""

SETTINGS = ("dtype", "op", "paced", "transport", "device")
"""Fields of a job beside its schedules."""

COLUMNS = tuple(field.name for field in fields(Schedule) if "NDArray" in str(field.type))


def _tables(schedule: Schedule) -> Json:
    return {
        "ranks": schedule.ranks,
        "nbytes": schedule.nbytes,
        "ports": plain(schedule.ports),
        "links": plain(schedule.links),
        "routes": [
            [route.src, route.dst, [[lane.out, lane.into, str(lane.share), lane.links] for lane in route.lanes]]
            for route in schedule.routes
        ],
    }


def _schedule(table: Json, columns: dict[str, Any]) -> Schedule:
    routes = tuple(
        Route(src, dst, tuple(Lane(out, into, Fraction(share), tuple(links)) for out, into, share, links in lanes))
        for src, dst, lanes in table["routes"]
    )
    ports = tuple(Port(**row) for row in table["ports"])
    links = tuple(Link(**row) for row in table["links"])
    return Schedule(table["ranks"], table["nbytes"], ports, routes, **columns, links=links)


def nics_s(schedule: Schedule) -> float:
    """Seconds that the NICs of the busiest rank need to send, at their rates; 0 where no NIC sends."""
    sent = np.bincount(schedule.src, schedule.length, schedule.ranks)
    rates = np.zeros(schedule.ranks)
    for port in schedule.ports:
        rates[port.rank] += float(port.out_rate)
    return float((sent[rates > 0] / rates[rates > 0]).max(initial=0))


def processor_note(job: Job, cores: int) -> str:
    """That emulated NICs will wait for the processor, when all ranks are of this machine; nothing where they will not.

    The estimate is within a factor of two; below twice the NICs' time nothing is said, nor of what is over at once.
    """
    if not job.paced:
        return ""
    worst, told = 2.0, ""
    for schedule in job.schedules.values():
        needs_s = int(schedule.length.sum()) * BYTE_S + len(schedule) * TRANSFER_S
        sending_s = nics_s(schedule)
        if sending_s and needs_s / cores > max(worst * sending_s, SOON_S):
            worst = needs_s / cores / sending_s
            told = (
                f"{job.ranks} ranks need about {needs_s:.2g} s of processor for a run that the emulated NICs do in "
                f"{sending_s:.2g} s: {cores} cores are the limit, no NIC is. "
                "Give a lower --local-rate, or fewer servers"
            )
    return told


def check_memory(job: Job, layout: Layout, ranks: Collection[int]) -> None:
    """Raise InputError when what `ranks` allocate on this machine does not fit into the memory that is available.

    The processes, their buffers, and what is under way between emulated NICs. No check where the system does not say
    what is available.
    """
    available = available_bytes()
    buffers = BUFFERS_PER_RANK * len(ranks) * job.nbytes
    shared = shared_bytes(layout) if job.transport == "local" else 0
    processes = len(ranks) * PROCESS_BYTES
    if available is not None and buffers + shared + processes > available:
        raise InputError(
            "the ranks do not fit into this machine's memory",
            where="--size",
            expected=f"at most {available >> 20} MiB, which are available here",
            got=f"{(buffers + shared + processes) / 2**20:.0f} MiB: {BUFFERS_PER_RANK} buffers of {len(ranks)} ranks, "
            f"{shared / 2**20:.0f} MiB for what is under way, and {processes / 2**20:.0f} MiB for the processes",
            hint="Choose a smaller size or fewer servers.",
        )
