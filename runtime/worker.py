"""The process of one rank: ``python -m optcc.runtime.worker FD``, where FD is its end of the conversation."""

from __future__ import annotations

import mmap
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection

from optcc.errors import InputError, OptccError
from optcc.runtime.control import Broken, Check, Control, Enlist, Go, Pong, Prepare, Quit, Ran, Reply, Saw
from optcc.runtime.device import dtype_of, empty, op_of
from optcc.runtime.engine import Engine
from optcc.runtime.errors import PeerLostError, RankFailedError
from optcc.runtime.job import Job, digest_of
from optcc.runtime.local import LocalTransport
from optcc.runtime.pacing import PortClocks, Unpaced, stripes_of
from optcc.runtime.payload import fill, is_exact, reference
from optcc.runtime.program import program_of


class Worker:
    """A rank: its buffer, its part of every schedule, its sockets."""

    def __init__(self, enlisted: Enlist, control: Control) -> None:
        self._rank, self._control = enlisted.rank, control
        self._job = _load(enlisted)
        self._op, dtype = op_of(self._job.op), dtype_of(self._job.dtype)
        count = self._job.nbytes // dtype.itemsize
        self._outgoing, self._incoming = _sockets(enlisted.outgoing), _sockets(enlisted.incoming)
        self._programs = {
            name: program_of(schedule, self._rank, dtype.itemsize) for name, schedule in self._job.schedules.items()
        }
        self._stripes = {name: stripes_of(schedule) for name, schedule in self._job.schedules.items()}
        self._buffer = empty(count, dtype)
        self._expected = reference(count, dtype, ranks=self._job.ranks, op=self._op)

    def prepare(self, algorithm: str) -> None:
        """Fill the buffer and set up the run, so that only the collective itself is timed."""
        schedule, program = self._job.schedules[algorithm], self._programs[algorithm]
        stripes = self._stripes[algorithm]
        self._transport = LocalTransport(
            schedule,
            program,
            stripes,
            PortClocks(schedule, stripes) if self._job.paced else Unpaced(),
            outgoing=self._outgoing,
            incoming=self._incoming,
            watch=self._control,
            clock=time.monotonic,
        )
        engine = self._engine = Engine(program, self._buffer, self._op, self._transport, time.monotonic)
        self._control.state = lambda: Pong(engine.progress, engine.waiting_for())
        fill(self._buffer, rank=self._rank, ranks=self._job.ranks, op=self._op)

    def run(self, at: float) -> Ran:
        """The collective, from the common start on."""
        self._control.sleep_until(at)
        start, cpu = time.monotonic(), time.process_time()
        self._engine.run()
        return Ran(start, time.monotonic(), time.process_time() - cpu, self._transport.sent())

    def check(self) -> bool:
        """Whether this rank holds the exact result."""
        return is_exact(self._buffer, self._expected)


def _load(enlisted: Enlist) -> Job:
    """The job, once it is certain that its schedules are the ones that the parent means."""
    with mmap.mmap(enlisted.job_fd, 0, access=mmap.ACCESS_READ) as data:
        job: Job = pickle.loads(data)
    for name, schedule in job.schedules.items():
        digest = digest_of(schedule)
        if digest != enlisted.digests[name]:
            raise InputError(
                "not the schedule that the others run", where=name, expected=enlisted.digests[name], got=digest
            )
    return job


def _sockets(fds: Mapping[int, int]) -> dict[int, socket.socket]:
    sockets = {peer: socket.socket(fileno=fd) for peer, fd in fds.items()}
    for sock in sockets.values():
        sock.setblocking(False)
    return sockets


def _serve(control: Control) -> None:
    enlisted = control.command()
    assert isinstance(enlisted, Enlist)
    worker = Worker(enlisted, control)
    control.tell(Reply())
    while True:
        match control.command():
            case Prepare(algorithm):
                worker.prepare(algorithm)
                control.tell(Reply())
            case Go(at):
                control.tell(Reply(worker.run(at)))
            case Check():
                control.tell(Reply(worker.check()))
            case Quit():
                return


def main() -> int:
    """Exit status 0 after an orderly end, 1 after a failed run."""
    control = Control(Connection(int(sys.argv[1])))
    try:
        try:
            _serve(control)
            return 0
        except (RankFailedError, EOFError):
            raise
        except Exception as error:
            known = isinstance(error, OptccError)
            if not known:
                traceback.print_exc()
            cause = str(error) if known else f"{type(error).__name__}: {error}"
            control.tell(Broken(cause, blames=error.peer if isinstance(error, PeerLostError) else None))
            while True:  # until the verdict, which is raised here as on every other rank
                control.command()
    except RankFailedError as verdict:
        control.tell(Saw(str(verdict)))
    except (EOFError, OSError):
        pass  # the parent is gone: nobody is left to tell
    return 1


if __name__ == "__main__":
    sys.exit(main())
