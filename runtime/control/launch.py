"""Run schedules on this machine (POSIX): a process per rank, real bytes, every element checked after every run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Self

from optcc.errors import InputError
from optcc.machine.kernels import say
from optcc.runtime.codec import typed
from optcc.runtime.compiled.choice import path_asked, path_of, warm
from optcc.runtime.control.descriptors import check_descriptors
from optcc.runtime.control.failure_detector import PING_S
from optcc.runtime.control.job import Job, check_memory, processor_note
from optcc.runtime.control.processes import RankProcesses
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.control.transports import check_devices
from optcc.runtime.devices.memory import check_device
from optcc.runtime.evidence.probing import ProbeRound, evidence_of, rounds_of, second_look
from optcc.runtime.evidence.verdicts import ProbeResult, verdicts_of
from optcc.runtime.messages import Check, Go, Note, Prepare, Ran, Strike
from optcc.runtime.wires.layout import layout_of, longest_transfer_s
from optcc.schedule import Port, Schedule

LEAD_S = 0.03
"""From the parent's decision to the common start: more than the slowest rank needs to hear of it."""

GPU_START_S = 60.0
"""To import cupy, open a GPU and compile kernels, all ranks at once, on a machine that has read none of it before."""

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
    """Ranks that run collectives, one after the other, of one job at a time. A context manager.

    stall_s : so many seconds may a rank be silent, or everything stand still, before the run is declared failed
    membership : rank 0's, when others start the other ranks; interface : where its hub listens
    """

    def __init__(
        self, job: Job, stall_s: float = 10.0, membership: Membership | None = None, interface: str | None = None
    ) -> None:
        if stall_s < 2 * PING_S:
            raise InputError("too short to tell", where="stall_s", expected=f"{2 * PING_S} s or more", got=stall_s)
        self._job, self._stall_s = job, stall_s
        self._told = ""
        self._here = range(job.ranks) if membership is None else range(1)  # ranks of this machine, as far as is known
        self._check_room(job)
        check_device(job.device)
        warm(path_of(job.path, job.transport, job.device, job.dtype))  # once, not on every rank
        for schedule in job.schedules.values():
            here = [port for port in schedule.ports if membership is None or port.rank == 0]
            check_devices(job.transport, here)
        self._processes = RankProcesses(job, membership, interface)
        self._suspects: set[tuple[str, str]] = set()  # NICs at the ends of wires that were lost since the last probes

    def __enter__(self) -> Self:
        self._processes.__enter__()
        try:
            self._processes.replies(self._setup_s)
        except BaseException:
            self._processes.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._processes.__exit__(kind, *rest)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, by rank."""
        return self._processes.pids

    def adopt(self, job: Job) -> None:
        """From now on another job of as many ranks, else InputError: its schedules, over wires made anew."""
        if job.ranks != self._job.ranks:
            raise InputError("another number of ranks", where="job", expected=str(self._job.ranks), got=job.ranks)
        self._check_room(job)
        self._job = job
        self._processes.adopt(job)
        self._processes.replies(self._setup_s)

    def run(self, name: str, strikes: Sequence[Strike] = (), *, timed: bool = False) -> Collective:
        """Run schedule `name` once, with these faults. Raises RankFailedError when a rank fails.

        timed : also tell when each transfer landed
        """
        paced_s = longest_transfer_s(self._job.schedules[name]) if self._job.paced else 0
        self._processes.order(Prepare(name, list(strikes), timed), self._setup_s)
        start = time.monotonic() + LEAD_S
        ran = self._processes.order(Go(start), self._stall_s + paced_s)
        exact = self._processes.order(Check(), self._setup_s)
        done = Collective(tuple(typed(Ran, times) for times in ran), tuple(exact))
        self._suspects |= {(note.nic, note.far) for note in done.notes if note.kind == "lost"}
        return done

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
        layout = layout_of(job.schedules, job.chunk_bytes)
        check_memory(job, layout, self._here)
        check_descriptors(layout, self._here if job.transport == "local" else (), job.ranks)
        note = processor_note(job, len(os.sched_getaffinity(0))) if len(self._here) == job.ranks else ""
        if note and note != self._told:
            say(note)
        self._told = note

    def _shown(self, probes: ProbeRound) -> list[ProbeResult]:
        self.adopt(replace(self._job, schedules={"probe": probes.schedule}, dtype="uint8", op="max"))
        probed = self.run("probe", timed=True)
        landed = {row: at for rank in probed.ran for row, at in rank.landed.items()}
        return evidence_of(probes, landed, probed.notes)

    @property
    def _setup_s(self) -> float:
        gpu_s = 0 if self._job.device == "cpu" else GPU_START_S
        return self._stall_s + gpu_s + self._job.ranks**2 * self._job.nbytes / ARRAY_BYTES_PER_S


def run_schedules(
    schedules: Mapping[str, Schedule],
    *,
    dtype: str = "float32",
    op: str = "sum",
    repeat: int = 5,
    paced: bool = True,
    transport: str = "local",
    slot_bytes: int = 0,
    device: str = "cpu",
    path: str | None = None,
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
    transport : "local" or "verbs"; slot_bytes : see `Job`
    device : where the buffers are, "cpu" or "cuda": rank r's on GPU ``r % number of GPUs``
    path : what handles chunks, one of `compiled.choice.PATHS`; None: as OPTCC_PATH says, auto where it says nothing
    membership, interface : see `Session`
    stall_s : so many seconds may a rank be silent, or everything stand still, before the run is declared failed
    progress : called with (algorithm, repetition from 0, seconds) after each timed repetition
    on_start : called with the ranks' process ids before the first run

    Raises InputError for what cannot be run and RankFailedError when a rank fails. A wrong result raises nothing: it
    is in `RunResult.exact`.
    """
    if repeat < 1:
        raise InputError("nothing to time", where="--repeat", expected="1 or more", got=repeat)
    runs: dict[str, list[Collective]] = {name: [] for name in schedules}
    with Session(
        Job(dict(schedules), dtype, op, paced, transport, slot_bytes, device, path or path_asked(os.environ)),
        stall_s,
        membership,
        interface,
    ) as session:
        if on_start:
            on_start(session.pids)
        for repetition in range(-1, repeat):  # -1 warms up
            for name in schedules:
                runs[name].append(session.run(name))
                if repetition >= 0 and progress:
                    progress(name, repetition, runs[name][-1].seconds)
    return {name: result_of(name, runs[name]) for name in schedules}


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
