"""Run schedules on this machine (POSIX): a process per rank, real bytes, every element checked after every run.

Ranks command themselves, as those of a communicator do (`runner`). What they are to run goes to them through the hub,
which is in this process, and by it they report.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Self

from optcc.errors import InputError, some
from optcc.runtime.codec import typed
from optcc.runtime.control.job import Assignment, Job, check_memory, nics_s, processor_note
from optcc.runtime.control.limits import check_descriptors
from optcc.runtime.control.overseer import FAREWELL_S, Overseer
from optcc.runtime.control.rendezvous import SECRETS, Membership
from optcc.runtime.control.transports import check_devices
from optcc.runtime.devices import gpu_memory
from optcc.runtime.devices.memory import check_device
from optcc.runtime.devices.mps import mps_service, sharing_of
from optcc.runtime.errors import TransportError, shortage
from optcc.runtime.evidence.probing import ProbeResult, ProbeRound, evidence_of, rounds_of, second_look, verdicts_of
from optcc.runtime.messages import Note, Ran, RunCall, RunFailed, Strike
from optcc.runtime.native.layout import layout_of
from optcc.schedule import Port, Schedule

START_S = 60.0
"""For the ranks' interpreters to start and import numpy, on a machine that is busy."""

GATHER_S = 120.0
"""For ranks that are started elsewhere to come."""

GPU_START_S = 60.0
"""To import cupy, open a GPU and compile kernels, all ranks at once, on a machine that has read none of it before."""

LEAST_STALL_S = 1.0
"""Less tells nothing: a rank that lives may be busy for so long."""

ARRAY_BYTES_PER_S = 50e6
"""Less than the slowest array operation does on a shared core: bounds how long a rank may be deaf as it computes."""


@dataclass(frozen=True)
class RunResult:
    """The runs of one algorithm.

    Attributes
    ----------
    algorithm : its name, as in `run_schedules`
    seconds : of each timed repetition, from the first rank's start to the last rank's end
    exact : by rank, whether every element equalled the reference in every repetition, the warm-up included
    sent : bytes of payload by port name in one repetition
    cpu_s : processor seconds of all ranks together, of each timed repetition
    clock_error_s : so far may the ends of `seconds` be off, on several machines; 0: on one
    """

    algorithm: str
    seconds: tuple[float, ...]
    exact: tuple[bool, ...]
    sent: Mapping[str, int]
    cpu_s: tuple[float, ...]
    clock_error_s: float = 0.0

    @property
    def median_s(self) -> float:
        """The median repetition."""
        return median(self.seconds)


@dataclass(frozen=True)
class Collective:
    """One run of one schedule by all ranks.

    ran : by rank, its times, traffic, and notes of what happened; exact : by rank, whether every element is right
    All times are by the hub's clock; those of different ranks can be compared, as far as `clock_error_s` allows.
    """

    ran: tuple[Ran, ...]
    exact: tuple[bool, ...]

    @property
    def start_s(self) -> float:
        """When the first rank started, on the hub's clock."""
        return min(rank.start_s for rank in self.ran)

    @property
    def seconds(self) -> float:
        """From the first rank's start to the last rank's end."""
        return max(rank.end_s for rank in self.ran) - self.start_s

    @property
    def clock_error_s(self) -> float:
        """So far may a time be off the hub's clock, for the rank of which that is known least; 0: all have the same."""
        return max(rank.clock_error_s for rank in self.ran)

    @property
    def notes(self) -> list[Note]:
        """What all ranks noted, by time."""
        return sorted((note for rank in self.ran for note in rank.notes), key=lambda note: note.at)


class Session:
    """Ranks that run collectives, one after the other, of one job at a time. A context manager that leaves none.

    stall_s : so many seconds may nothing move on a rank beyond what it computes, before the run is declared failed
    membership : rank 0's, when others start the other ranks, by `runner.serve_rank`; interface : where the hub listens
        then, if not at the agreed address

    Ranks of this machine are plain child processes, not multiprocessing's. The latter would import the parent's main
    module into every rank, run it again in an unguarded script, and leave a resource tracker. Each inherits its end of
    a pair of sockets. There is no address for others to connect to and no secret to pass on. A rank ends with its
    parent, however that ends.
    """

    def __init__(
        self, job: Job, stall_s: float = 10.0, membership: Membership | None = None, interface: str | None = None
    ) -> None:
        if stall_s < LEAST_STALL_S:
            raise InputError("too short to tell", where="stall_s", expected=f"{LEAST_STALL_S} s or more", got=stall_s)
        self._job, self._stall_s, self._membership, self._interface = job, stall_s, membership, interface
        self._told = ""
        self._here = range(job.ranks) if membership is None else range(1)  # ranks of this machine, as far as is known
        self._check_room(job)
        check_device(job.device)
        for schedule in job.schedules.values():
            here = [port for port in schedule.ports if membership is None or port.rank == 0]
            check_devices(job.transport, here)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._cleanup = contextlib.ExitStack()
        self._suspects: set[tuple[str, str]] = set()  # NICs at the ends of wires that were lost since the last probes

    def __enter__(self) -> Self:
        try:
            self._start()
            self._assign(self._job, terms=None if self._membership is None else self._membership.terms)
        except BaseException as error:
            self._end()
            if isinstance(error, OSError):
                cause = shortage(error) or error
                raise TransportError(f"{self._job.ranks} ranks cannot be started here: {cause}") from error
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._hub.ship(b"")
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in self._processes:
                    process.wait(FAREWELL_S)
        self._end()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, by rank."""
        return tuple(process.pid for process in self._processes)

    def adopt(self, job: Job) -> None:
        """From now on another job of as many ranks, else InputError: its schedules, over wires made anew."""
        if job.ranks != self._job.ranks:
            raise InputError("another number of ranks", where="job", expected=str(self._job.ranks), got=job.ranks)
        self._check_room(job)
        self._assign(job)

    def run(self, name: str, strikes: Sequence[Strike] = (), *, timed: bool = False) -> Collective:
        """Run schedule `name` once, with these faults. Raises RankFailedError when a rank fails.

        timed : also tell when each transfer landed
        """
        (done,) = self.run_all([RunCall(name, list(strikes), timed)])
        return done

    def run_all(
        self, calls: Sequence[RunCall], progress: Callable[[int, Collective], None] = lambda number, done: None
    ) -> list[Collective]:
        """The same of several calls: ranks make one after the other. InputError for a NIC to strike that is not used.

        progress : called with the number of each call that is done, from 0
        """
        nics = {port.name for name in {call.algorithm for call in calls} for port in self._job.schedules[name].ports}
        for strike in (strike for call in calls for strike in call.strikes):
            if strike.nic not in nics:
                raise InputError("no such NIC", where=strike.kind, expected=some(sorted(nics)), got=strike.nic)
        done: list[Collective] = []
        self._ship(Assignment(None, calls, self._patience_s))
        for number in range(len(calls)):
            said = self._reports()
            done.append(Collective(tuple(typed(Ran, each["ran"]) for each in said), tuple(e["exact"] for e in said)))
            self._suspects |= {(note.nic, note.far) for note in done[-1].notes if note.kind == "lost"}
            progress(number, done[-1])
        return done

    def _assign(self, job: Job, terms: Mapping[str, str] | None = None) -> None:
        self._job = job
        self._ship(Assignment(job, (), self._patience_s, terms))
        self._reports()

    def _ship(self, assigned: Assignment) -> None:
        self._hub.ship(assigned.to_bytes())

    def _reports(self) -> list[Any]:
        """The next report of every rank, by rank. RankFailedError on the verdict, InputError where a rank refuses.

        Ranks see to it that none is waited for without an end; this waits for as long as any of them lives.
        """
        while not all(self._heard):
            self._hear()
        return [heard.pop(0) for heard in self._heard]

    def _hear(self) -> bool:
        """The next news of the hub; whether it is that all ranks are there."""
        match self._hub.news.get():
            case None:
                return True
            case RunFailed():
                raise self._hub.last_words()
            case rank, {"refused": [what, where, expected, got, hint]}:
                raise InputError(what, where=where, expected=expected, got=got, hint=hint)
            case rank, value:
                self._heard[rank].append(value)
        return False

    # --- processes ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        membership, ranks = self._membership, self._job.ranks
        how: dict[str, Any] = {"obituary": self._obituary, "commands": True}
        self._heard: list[list[Any]] = [[] for _ in range(ranks)]  # by rank, its reports that were not asked for yet
        environment: Mapping[str, str] = os.environ
        if membership is None:
            if self._job.device == "cuda" and sharing_of(ranks, gpu_memory.gpu_count(), os.environ).mps:
                environment = self._cleanup.enter_context(mps_service(os.environ))
            self._hub = Overseer(ranks, None, START_S, **how).start()
        elif membership.world != ranks:
            raise InputError(
                "not as many processes as ranks",
                where="world size",
                expected=f"{ranks}, a process per rank of the plan",
                got=membership.world,
            )
        else:
            self._hub = Overseer.open(membership, self._interface, GATHER_S, **how)
        self._cleanup.callback(self._hub.leave)
        for rank in self._here:
            with self._hub.attach(rank) as end:
                self._processes.append(start_rank(end, rank, ranks, environment))
        while not self._hear():
            pass

    def _obituary(self, rank: int) -> str | None:
        """How a rank ended that has hung up; None: it has not yet."""
        if rank >= len(self._processes):
            return "closed its control connection"
        status = self._processes[rank].poll()
        if status is None:
            return None
        if status < 0:
            return f"killed by signal {-status} ({signal.strsignal(-status)})"
        return f"exited with status {status} before the end"

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(FAREWELL_S)
        self._cleanup.close()

    # --- what is asked of ranks --------------------------------------------------------------------------------------

    def probe(self, ports: Sequence[Port]) -> list[ProbeResult]:
        """Measure the NICs `ports` of all ranks, and paths between them that may be broken.

        Those are where no probe came through, and where collectives have lost a wire since the last probes. Afterwards
        the ranks need a job again (`adopt`).
        """
        lost, names = set(self._suspects), {port.name for port in ports}
        found = [e for probes in rounds_of(ports) for e in self._shown(probes)]
        again = second_look(ports, found, (ends for ends in lost if names.issuperset(ends)))
        found += [e for probes in again for e in self._shown(probes)]
        # Wires made anew do not mend a path: it stays under suspicion until it is seen to work.
        self._suspects = {(v.nics[0], v.nics[1]) for v in verdicts_of(ports, found) if v.what == "path"}
        return found

    def _check_room(self, job: Job) -> None:
        """Whether memory and descriptors are there, before any rank asks for them."""
        check_memory(job, layout_of(job.schedules), self._here)
        check_descriptors(job.ranks)
        note = processor_note(job, len(os.sched_getaffinity(0))) if len(self._here) == job.ranks else ""
        if note and note != self._told:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # no stderr, or nobody reads it
                print(f"optcc: {note}", file=sys.stderr, flush=True)
        self._told = note

    def _shown(self, probes: ProbeRound) -> list[ProbeResult]:
        self.adopt(replace(self._job, schedules={"probe": probes.schedule}, dtype="uint8", op="max"))
        probed = self.run("probe", timed=True)
        landed = {row: at for rank in probed.ran for row, at in rank.landed.items()}
        return evidence_of(probes, landed, probed.notes)

    @property
    def _patience_s(self) -> float:
        job = self._job
        gpu_s = 0 if job.device == "cpu" else GPU_START_S
        sending_s = max(map(nics_s, job.schedules.values())) if job.paced else 0.0
        return self._stall_s + gpu_s + job.ranks**2 * job.nbytes / ARRAY_BYTES_PER_S + sending_s


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


def refuse(membership: Membership, interface: str | None, wrong: InputError, within_s: float) -> None:
    """For rank 0: the job is not run; tell the ranks that come within so many seconds why, and let them go."""
    hub = Overseer.open(membership, interface, 2 * within_s, commands=True)
    hub.come(membership.world - 1, within_s)
    hub.ship(Assignment(None, (), within_s, {}, str(wrong)).to_bytes())
    hub.leave()


def run_schedules(
    schedules: Mapping[str, Schedule],
    *,
    dtype: str = "float32",
    op: str = "sum",
    repeat: int = 5,
    paced: bool = True,
    transport: str = "local",
    device: str = "cpu",
    membership: Membership | None = None,
    interface: str | None = None,
    stall_s: float = 10.0,
    progress: Callable[[str, int, float], None] | None = None,
    on_start: Callable[[tuple[int, ...]], None] | None = None,
) -> dict[str, RunResult]:
    """Run every schedule once to warm up and `repeat` times timed, in turns (A B A B ...), in the same processes.

    Parameters
    ----------
    schedules : by algorithm name, all for the same ranks and bytes
    dtype, op : names from `device.DTYPES` and `device.Op`
    paced : emulate the rates of the schedules' ports; False: as fast as the machine goes
    transport : "local", "tcp" or "verbs"
    device : where the buffers are, "cpu" or "cuda": rank r's on GPU ``r % number of GPUs``
    membership, interface : see `Session`
    stall_s : as of `Session`
    progress : called with (algorithm, repetition from 0, seconds) after each timed repetition
    on_start : called with the ranks' process ids before the first run

    Raises InputError for what cannot be run and RankFailedError when a rank fails. A wrong result raises nothing: it
    is in `RunResult.exact`.
    """
    if repeat < 1:
        raise InputError("nothing to time", where="--repeat", expected="1 or more", got=repeat)
    names = list(schedules)
    calls = [RunCall(name, []) for _ in range(repeat + 1) for name in names]  # the first time warms up

    def tell(number: int, done: Collective) -> None:
        if number >= len(names) and progress:
            progress(calls[number].algorithm, number // len(names) - 1, done.seconds)

    job = Job(dict(schedules), dtype, op, paced, transport, device)
    with Session(job, stall_s, membership, interface) as session:
        if on_start:
            on_start(session.pids)
        done = session.run_all(calls, tell)
    return {name: result_of(name, done[at :: len(names)]) for at, name in enumerate(names)}


def result_of(algorithm: str, runs: Sequence[Collective]) -> RunResult:
    """What several runs of one schedule gave; the first is the warm-up, which only has to be exact."""
    timed = runs[1:]
    return RunResult(
        algorithm=algorithm,
        seconds=tuple(run.seconds for run in timed),
        exact=tuple(all(rank) for rank in zip(*(run.exact for run in runs), strict=True)),
        sent={nic: nbytes for rank in timed[-1].ran for nic, nbytes in rank.sent.items()},
        cpu_s=tuple(sum(rank.cpu_s for rank in run.ran) for run in timed),
        clock_error_s=max(run.clock_error_s for run in timed),
    )
