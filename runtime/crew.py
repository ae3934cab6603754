"""The parent's side: one process per rank, started together, commanded together, ended together whatever happens."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from optcc.runtime.control import Broken, Command, Enlist, Failed, Ping, Quit, Reply, Saw
from optcc.runtime.errors import RankFailedError, TransportError
from optcc.runtime.job import Job, digest_of
from optcc.runtime.vigil import PING_S, Vigil

FAREWELL_S = 3.0
"""For ranks to report the verdict, or to leave after Quit, before they are killed."""


class Crew:
    """The processes of a job's ranks. A context manager: afterwards no process, socket or file is left.

    They are plain child processes and not multiprocessing's, which would import the parent's main module into every
    rank (and run it again, in a script without a guard) and leave a resource tracker behind.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._processes: list[subprocess.Popen[bytes]] = []
        self._controls: list[Connection] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException as error:
            self._end()
            if isinstance(error, OSError):
                raise TransportError(f"{self._job.ranks} ranks cannot be started here: {error}") from error
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._send(range(self._job.ranks), Quit())
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in self._processes:
                    process.wait(FAREWELL_S)
        self._end()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, by rank."""
        return tuple(process.pid for process in self._processes)

    def order(self, command: Command, patience_s: float) -> list[Any]:
        """Give all ranks a command; returns the values of their replies, by rank. Raises like `replies`."""
        self._send(range(self._job.ranks), command)
        return self.replies(patience_s)

    def replies(self, patience_s: float) -> list[Any]:
        """Wait for one reply of every rank; returns their values, by rank.

        Raises RankFailedError when a rank dies or raises, or when for `patience_s` a rank does not answer or nothing
        moves on any of them.
        """
        values: dict[int, Any] = {}
        vigil = Vigil(self._job.ranks, patience_s, time.monotonic())
        while vigil.pending:
            for rank, message in self._messages(range(self._job.ranks), PING_S):
                vigil.heard(rank, message or Broken(self._obituary(rank)), time.monotonic())
                if isinstance(message, Reply):
                    values[rank] = message.value
            now = time.monotonic()
            verdict = vigil.verdict(now)
            if verdict:
                raise self._failure(*verdict)
            self._send(vigil.to_ask(now), Ping())
        return [values[rank] for rank in range(self._job.ranks)]

    def _start(self) -> None:
        digests = {name: digest_of(schedule) for name, schedule in self._job.schedules.items()}
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "OPENBLAS_NUM_THREADS": "1",  # ranks do no linear algebra; its threads only make the start slower
        }
        # What is entered here belongs to the children, and is closed on this side once they have it.
        with contextlib.ExitStack() as theirs:
            job_file = theirs.enter_context(tempfile.TemporaryFile())
            pickle.dump(self._job, job_file)
            job_file.flush()
            outgoing: list[dict[int, int]] = [{} for _ in range(self._job.ranks)]
            incoming: list[dict[int, int]] = [{} for _ in range(self._job.ranks)]
            for src, dst in self._job.pairs:
                sending, receiving = _connected()
                outgoing[src][dst] = theirs.enter_context(sending).fileno()
                incoming[dst][src] = theirs.enter_context(receiving).fileno()
            for rank in range(self._job.ranks):
                ours, control = Pipe()
                self._controls.append(ours)
                theirs.enter_context(control)
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "optcc.runtime.worker", str(control.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(
                        control.fileno(),
                        job_file.fileno(),
                        *outgoing[rank].values(),
                        *incoming[rank].values(),
                    ),
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for the parent alone, which then ends the ranks
                )
                self._processes.append(process)
                self._send([rank], Enlist(rank, job_file.fileno(), outgoing[rank], incoming[rank], digests))

    def _send(self, ranks: Iterable[int], message: Command | Ping | Failed) -> None:
        for rank in ranks:
            with contextlib.suppress(OSError):  # a rank that is gone is noticed when its last words are read
                self._controls[rank].send(message)

    def _messages(self, ranks: Iterable[int], timeout_s: float) -> Iterator[tuple[int, Any]]:
        """(rank, message) of those of `ranks` that have said something within the timeout; None: it has hung up."""
        controls = [(rank, self._controls[rank]) for rank in ranks]
        talking = wait([control for _, control in controls], timeout_s)
        for rank, control in controls:
            if control in talking:
                try:
                    yield rank, control.recv()
                except (EOFError, OSError):
                    yield rank, None

    def _obituary(self, rank: int) -> str:
        """How a rank ended that has hung up."""
        try:
            status = self._processes[rank].wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            return "closed its control connection"
        if status < 0:
            return f"killed by signal {-status} ({signal.strsignal(-status)})"
        return f"exited with status {status} before the end"

    def _failure(self, failed: int, cause: str) -> RankFailedError:
        """Tell every rank the verdict and collect their last words."""
        listening = set(range(self._job.ranks))
        self._send(listening, Failed(failed, cause))
        seen_by: dict[int, str] = {}
        end = time.monotonic() + FAREWELL_S
        while listening and (left := end - time.monotonic()) > 0:
            for rank, message in self._messages(listening, left):
                if isinstance(message, Saw):
                    seen_by[rank] = message.text
                if message is None or isinstance(message, Saw):
                    listening.discard(rank)
        return RankFailedError(failed, cause, dict(sorted(seen_by.items())))

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(FAREWELL_S)
        for control in self._controls:
            control.close()


def _connected() -> tuple[socket.socket, socket.socket]:
    """The two ends, sending and receiving, of a TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(FAREWELL_S)
        sending = socket.create_connection(listener.getsockname(), FAREWELL_S)
        receiving, caller = listener.accept()
    if caller != sending.getsockname():
        raise TransportError(f"a stranger at {caller} connected to a port of this run")
    for end in (sending, receiving):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sending, receiving
