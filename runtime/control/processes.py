"""Ranks on this machine: a process per rank, started together, commanded together, ended together whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from optcc.errors import InputError
from optcc.runtime.control.hub import FAREWELL_S, Hub
from optcc.runtime.control.job import Job, digest_of
from optcc.runtime.control.job_bytes import job_to_bytes
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.control.secret import SECRETS
from optcc.runtime.control.transports import this_machine
from optcc.runtime.devices import gpu_memory
from optcc.runtime.devices.mps import mps_service, sharing_of
from optcc.runtime.errors import TransportError, shortage
from optcc.runtime.messages import Command, Enlist, Quit, Told

GATHER_S = 120.0
"""For ranks that are started elsewhere to come."""

START_S = 60.0
"""For the ranks' interpreters to start and import numpy, on a machine that is busy."""


class RankProcesses:
    """The processes of a job's ranks and the hub that commands them. A context manager: afterwards none is left.

    With a `membership`, that of rank 0, only rank 0's process is started here; the others come from elsewhere, by
    `serving.serve_rank`. `interface` : where the hub listens then, if not at the agreed address.

    They are plain child processes, not multiprocessing's. The latter would import the parent's main module into every
    rank, run it again in an unguarded script, and leave a resource tracker. Each inherits its end of a pair of sockets.
    There is no address for others to connect to and no secret to pass on. A rank ends with its parent, however that
    ends.
    """

    def __init__(self, job: Job, membership: Membership | None = None, interface: str | None = None) -> None:
        self._job, self._membership, self._interface = job, membership, interface
        self._processes: list[subprocess.Popen[bytes]] = []
        self._cleanup = contextlib.ExitStack()
        self._environment: Mapping[str, str] = os.environ

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException as error:
            self._end()
            if isinstance(error, OSError):
                cause = shortage(error) or error
                raise TransportError(f"{self._job.ranks} ranks cannot be started here: {cause}") from error
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._hub.send(range(self._job.ranks), Quit())
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in self._processes:
                    process.wait(FAREWELL_S)
        self._end()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, by rank."""
        return tuple(process.pid for process in self._processes)

    def order(self, command: Command, patience_s: float) -> list[Any]:
        """Give all ranks a command; returns the values of their replies, by rank. Raises like `Hub.replies`."""
        return self._hub.order(command, patience_s)

    def replies(self, patience_s: float) -> list[Any]:
        """Wait for one reply of every rank; see `Hub.replies`."""
        return self._hub.replies(patience_s)

    def _start(self) -> None:
        if self._membership:
            self._start_own(self._membership)
            return
        if self._job.device == "cuda" and sharing_of(self._job.ranks, gpu_memory.gpu_count(), os.environ).mps:
            self._environment = self._cleanup.enter_context(mps_service(os.environ))
        self._hub = self._cleanup.enter_context(Hub(self._job.ranks, obituary=self._obituary))
        for rank in range(self._job.ranks):
            self._start_rank(rank)
        self._hub.gather(START_S)
        self.adopt(self._job)

    def _start_own(self, membership: Membership) -> None:
        """The hub and rank 0 are here, others start the other ranks."""
        if membership.world != self._job.ranks:
            raise InputError(
                "not as many processes as ranks",
                where="world size",
                expected=f"{self._job.ranks}, a process per rank of the plan",
                got=membership.world,
            )
        self._hub = self._cleanup.enter_context(Hub.of(membership, self._interface, obituary=self._obituary))
        self._start_rank(0)
        self._hub.gather(GATHER_S)
        self._hub.agree(Told(membership.terms, this_machine()), self._job.transport, GATHER_S)
        self.adopt(self._job)

    def _start_rank(self, rank: int) -> None:
        with self._hub.attach(rank) as end:
            self._processes.append(start_rank(end, rank, self._job.ranks, self._environment))

    def adopt(self, job: Job) -> None:
        """Have all ranks take `job`, for as many ranks as the one before; they reply when they are connected."""
        self._hub.ship(job_to_bytes(job))
        digests = {name: digest_of(schedule) for name, schedule in job.schedules.items()}
        self._hub.send(range(job.ranks), Enlist(digests))

    def _obituary(self, rank: int) -> str:
        """How a rank ended that has hung up."""
        if rank >= len(self._processes):
            return "closed its control connection"
        try:
            status = self._processes[rank].wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            return "closed its control connection"
        if status < 0:
            return f"killed by signal {-status} ({signal.strsignal(-status)})"
        return f"exited with status {status} before the end"

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(FAREWELL_S)
        self._cleanup.close()


def start_rank(
    end: socket.socket, rank: int, world: int, environ: Mapping[str, str] = os.environ
) -> subprocess.Popen[bytes]:
    """A rank's process on this machine, which serves over `end`, its end of a pair of sockets."""
    environment = {
        **environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "OPENBLAS_NUM_THREADS": "1",  # ranks do no linear algebra; its threads only make the start slower
    }
    for name in SECRETS:
        environment.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("child.py")), str(end.fileno()), str(rank), str(world)],
        stdin=subprocess.DEVNULL,
        pass_fds=[end.fileno()],
        env=environment,
        start_new_session=True,  # Ctrl-C is for the parent alone, which then ends the ranks
    )
