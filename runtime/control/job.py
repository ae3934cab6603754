"""What every rank process is told, and how they make sure that all hold the same."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

import numpy as np

from optcc.errors import InputError
from optcc.runtime.compiled.choice import path_asked, path_named
from optcc.runtime.control.available import available_bytes
from optcc.runtime.control.transports import TRANSPORTS
from optcc.runtime.devices.host import dtype_of, reduction_of
from optcc.runtime.devices.memory import device_of
from optcc.runtime.wires.layout import GPU_SLOT_BYTES, SLOT_BYTES, Layout
from optcc.runtime.wires.slots import slots_bytes
from optcc.schedule import Schedule

LOCAL = ("local", "cpu")
"""Transport and device of runs whose chunks land in host memory that the ranks share."""

PROCESS_BYTES, COMPILED_BYTES = 40 << 20, 128 << 20
"""What a rank's process takes beside its buffers: with numpy, and with numba and what it has compiled."""

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
    slot_bytes : the most that a chunk carries; 0: what suits the device, see `chunk_bytes`
    device : where the buffers are, one of memory.DEVICES
    path : what handles chunks, one of `compiled.choice.PATHS`; as OPTCC_PATH says unless given
    """

    schedules: Mapping[str, Schedule]
    dtype: str
    op: str
    paced: bool
    transport: str = "local"
    slot_bytes: int = 0
    device: str = "cpu"
    path: str = dataclasses.field(default_factory=lambda: path_asked(os.environ))

    def __post_init__(self) -> None:
        reduction_of(self.op)
        path_named(self.path, "--chunk-path")
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
    def chunk_bytes(self) -> int:
        """The most that a chunk carries."""
        return self.slot_bytes or (SLOT_BYTES if self.device == "cpu" else GPU_SLOT_BYTES)

    @property
    def nbytes(self) -> int:
        """Buffer bytes per rank."""
        return next(iter(self.schedules.values())).nbytes

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The ordered pairs (source, destination) of ranks between which any schedule sends, ascending."""
        pairs = (np.stack((s.src, s.dst), axis=1) for s in self.schedules.values())
        return sorted({(src, dst) for columns in pairs for src, dst in columns.tolist()})


def digest_of(schedule: Schedule) -> str:
    """Sixteen hex digits that name the content of a schedule: shape, tables and every column."""
    digest = hashlib.sha256(repr((schedule.ranks, schedule.nbytes, schedule.ports, schedule.routes)).encode())
    for field in fields(schedule):
        column = getattr(schedule, field.name)
        if isinstance(column, np.ndarray):
            digest.update(f"{field.name} {column.dtype.str} {column.shape}".encode())
            digest.update(column.tobytes())
    return digest.hexdigest()[:16]


def processor_note(job: Job, cores: int) -> str:
    """That emulated NICs will wait for the processor, when all ranks are of this machine; nothing where they will not.

    The estimate is within a factor of two; below twice the NICs' time nothing is said, nor of what is over at once.
    """
    if not job.paced:
        return ""
    worst, told = 2.0, ""
    for schedule in job.schedules.values():
        needs_s = int(schedule.length.sum()) * BYTE_S + len(schedule) * TRANSFER_S
        sent = np.bincount(schedule.src, schedule.length, schedule.ranks)
        rates = np.zeros(schedule.ranks)
        for port in schedule.ports:
            rates[port.rank] += float(port.out_rate)
        nics_s = float((sent[rates > 0] / rates[rates > 0]).max(initial=0))
        if nics_s and needs_s / cores > max(worst * nics_s, SOON_S):
            worst = needs_s / cores / nics_s
            told = (
                f"{job.ranks} ranks need about {needs_s:.2g} s of processor for a run that the emulated NICs do in "
                f"{nics_s:.2g} s: {cores} cores are the limit, no NIC is. Give a lower --local-rate, or fewer servers"
            )
    return told


def check_memory(job: Job, layout: Layout, ranks: Collection[int]) -> None:
    """Raise InputError when what `ranks` allocate on this machine does not fit into the memory that is available.

    The processes, their buffers, and the landing slots of emulated NICs. No check where the system does not say what
    is available.
    """
    available = available_bytes()
    buffers = BUFFERS_PER_RANK * len(ranks) * job.nbytes
    slots = sum(slots_bytes(rank, layout.flows) for rank in ranks) if (job.transport, job.device) == LOCAL else 0
    processes = len(ranks) * (PROCESS_BYTES if job.path == "python" else COMPILED_BYTES)
    if available is not None and buffers + slots + processes > available:
        raise InputError(
            "the ranks do not fit into this machine's memory",
            where="--size",
            expected=f"at most {available >> 20} MiB, which are available here",
            got=f"{(buffers + slots + processes) / 2**20:.0f} MiB: {BUFFERS_PER_RANK} buffers of {len(ranks)} ranks, "
            f"{slots / 2**20:.0f} MiB for chunks under way, and {processes / 2**20:.0f} MiB for the processes",
            hint="Choose a smaller size or fewer servers.",
        )
