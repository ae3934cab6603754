"""A rank of `optcc run` and its like: makes the calls that a command wants made, and reports what has become of them.

The command says what is to be done (`job.Assignment`). How is for the ranks: they agree on when to start a call, run
it, and check its result.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from optcc.errors import InputError, OptccError
from optcc.runtime.control.channel import Clock, Control, by_the_hub
from optcc.runtime.control.connecting import HubLostError
from optcc.runtime.control.job import LOCAL, Assignment
from optcc.runtime.control.links import Hardware
from optcc.runtime.control.member import Member
from optcc.runtime.control.rendezvous import Membership
from optcc.runtime.control.transports import demand_one_machine, this_machine
from optcc.runtime.devices import host
from optcc.runtime.devices.host import dtype_of, reduction_of
from optcc.runtime.devices.memory import gpu_of_rank
from optcc.runtime.errors import RankFailedError, shortage
from optcc.runtime.evidence.payload import fill, is_exact, reference
from optcc.runtime.messages import Note, Ran, RankJournal, Report, RunCall, Saw
from optcc.runtime.native.layout import layout_of

LEAD_S = 0.03
"""From when all ranks are ready to the common start: more than the slowest one needs to hear of it."""

PUNCTUAL_S = 200e-6
"""A rank waits for the common start awake for so long: who sleeps wakes up a tenth of a millisecond late."""

JOIN_S = 60.0
"""To find a hub that may start later than this rank, and be let in."""

PR_SET_TIMERSLACK = 29
"""Linux' prctl(2)."""

REFUSED = "refused"
"""What a rank reports that refuses the job: the parts of an InputError, the same on all ranks."""


class Runner:
    """What a rank has besides its `Member`: a buffer, and its part of every schedule of one job at a time."""

    def __init__(self, membership: Membership, **how: Any) -> None:
        """membership, how : as of Member"""
        self._notes: list[Note] = []  # by this rank's clock
        self._noted: list[Note] = []  # of the last call, by the hub's
        self._start_s: float | None = None  # of the last call, likewise
        self._hardware = Hardware()
        self._gpus: dict[str, Any] = {}  # by name of device; kept, for what it costs to open one
        self._buffer: Any = None
        self._clock = Clock()
        self._turns = 0
        self.member = Member(membership, return_s=0.0, on_notes=self._notes.extend, **how)

    def serve(self) -> None:
        """Do what the command wants, up to its end. InputError where ranks were given different things."""
        while data := self.member.parcel():
            with self.member.guarded():
                assigned = Assignment.from_bytes(data)
            if assigned.terms is not None:
                self._agree(assigned.terms, assigned.wrong, assigned.job.transport if assigned.job else "")
            if assigned.job:
                self._adopt(assigned)
                self.member.tell(Report())
            for call in assigned.calls:
                ran = self._run(call)
                self.member.tell(Report(ran))

    def last_words(self, verdict: RankFailedError) -> None:
        """Tell the hub what this rank has seen."""
        cause = verdict.__cause__
        if cause and not isinstance(cause, OptccError) and isinstance(cause, Exception) and shortage(cause) is None:
            traceback.print_exception(cause)
        with contextlib.suppress(HubLostError):
            self.member.tell(self._journal())
            self.member.tell(Saw(str(verdict)))

    def _agree(self, terms: Mapping[str, str], wrong: str, transport: str) -> None:
        """All ranks were given the same as rank 0, on the same machine where the transport needs that."""
        mine = self.member.membership
        try:
            if wrong:
                raise InputError(wrong)
            own = terms if mine.rank == 0 else mine.terms
            said = self.member.exchange([dict(own), this_machine(), mine.wrong])
            for rank, (given, _, why) in enumerate(said):
                if why:
                    raise InputError(why, where=f"rank {rank}")
                for name in {**terms, **given}:
                    expected, got = terms.get(name, "nothing"), given.get(name, "nothing")
                    if expected != got:
                        what = f"rank {rank} was given something else than rank 0"
                        raise InputError(what, where=name, expected=expected, got=got)
            demand_one_machine(transport, [machine for _, machine, _ in said], "--transport")
        except InputError as error:
            got = None if error.got is None else str(error.got)
            self.member.tell(Report({REFUSED: [error.what, error.where, error.expected, got, error.hint]}))
            raise

    @contextlib.contextmanager
    def _turn(self, call: str) -> Any:
        self._turns += 1
        with self.member.guarded(), self.member.turn(f"{call}, turn {self._turns}"):
            yield

    def _adopt(self, assigned: Assignment) -> None:
        """Take a job and connect to the other ranks, all at the same time."""
        job = self._job = assigned.job
        assert job
        with self._turn("adopt"):
            self._reduction, dtype = reduction_of(job.op), dtype_of(job.dtype)
            if job.device not in self._gpus:
                self._gpus[job.device] = gpu_of_rank(job.device, self.member.rank)
            gpu = self._gpu = self._gpus[job.device]
            if gpu:
                gpu.ready(dtype, self._reduction.fold)
            self.member.equip(
                assigned.patience_s,
                job.transport,
                gpu=gpu,
                hardware=self._hardware,
                paced=job.paced,
                moving=True,
                farewell=lambda: self.member.tell(self._journal()),
            )
            count = job.nbytes // dtype.itemsize
            self._buffer = None  # its room is given back before the next one takes some
            lent = self.member.lent if (job.transport, job.device) == LOCAL else None
            self._buffer = (lent or gpu or host).empty(count, dtype)
            self._expected = reference(count, dtype, ranks=job.ranks, op=self._reduction.fold)
            if self._reduction.mean:
                host.divide(self._expected, job.ranks)
            self.member.connect(layout_of(job.schedules))
            self.member.lend(self._buffer)
            self._programs = {name: self.member.links.program(schedule) for name, schedule in job.schedules.items()}
            self._clock = self.member.clock()
            self._take_notes()

    def _run(self, call: RunCall) -> Mapping[str, Any]:
        """One collective: what it was like on this rank, and whether the result is exact."""
        member, gpu, job = self.member, self._gpu, self._job
        assert job
        with self._turn(f"run {call.algorithm}"):
            self._clock = member.clock()
            self._start_s, self._noted = None, []
            for strike in call.strikes:
                member.links.strike(strike)
            values = host.empty(len(self._buffer), self._buffer.dtype) if gpu else self._buffer
            fill(values, rank=member.rank, ranks=job.ranks, op=self._reduction.fold)
            if gpu:
                gpu.wait()
                gpu.put(values, self._buffer)
            program = self._programs[call.algorithm]
            if call.timed:  # what is timed goes by the wires that it is about
                member.settle()
            member.run(member.call(program, self._buffer, self._reduction.fold), start=self._begin)
            if self._reduction.mean:  # one rounding, the same on every rank
                (gpu or host).divide(self._buffer, job.ranks)
            if gpu:
                gpu.wait()
            end, cpu = time.monotonic(), time.process_time() - self._cpu_s
            landed = program.landings() if call.timed else {}
            notes = self._take_notes()
            self._hardware.remember(call.strikes, notes)
            ran = by_the_hub(Ran(self._begun_s, end, cpu, member.links.sent(), notes, landed), self._clock)
            self._noted = ran.notes
            member.exchange(None)  # to look takes processor time that others may still need
            return {"ran": ran, "exact": is_exact(gpu.get(self._buffer) if gpu else self._buffer, self._expected)}

    def _begin(self, serve: Callable[[float], object]) -> None:
        """All is ready here: wait until it is everywhere, and for a moment by rank 0's clock."""
        clock = self._clock
        self.member.exchange(None)
        at = clock.here(self.member.exchange(clock.hub(time.monotonic()))[0]) + LEAD_S
        while time.monotonic() < at - PUNCTUAL_S:
            serve(at - PUNCTUAL_S)
        while time.monotonic() < at:
            pass
        self._begun_s, self._cpu_s = time.monotonic(), time.process_time()
        self._start_s = clock.hub(self._begun_s)

    def _take_notes(self) -> list[Note]:
        self.member.tell_notes()
        notes, self._notes[:] = list(self._notes), []
        return notes

    def _journal(self) -> RankJournal:
        """What has happened here in the call under way, or the last one; by the hub's clock."""
        latest = [replace(note, at=self._clock.hub(note.at)) for note in self._take_notes()]
        return RankJournal(self._start_s, [*self._noted, *latest])


def serve_rank(
    membership: Membership,
    within_s: float = JOIN_S,
    say: Callable[[str], object] = lambda text: None,
) -> int:
    """Join the hub and make the calls. Exit status 0 after an orderly end, 1 after a failed run.

    say : called with why the run has failed: no parent speaks for this process

    Raises RefusedError and HubLostError when the rank is not let in, InputError on all ranks where they were told
    different things.
    """
    return _serve(Runner(membership, join_s=within_s), say)


def serve_child(fd: int, rank: int, world: int) -> int:
    """Serve over an inherited socket, whose other end the parent's hub has. Exit status as `serve_rank`'s."""
    try:
        control = Control.inherited(fd, rank, world)
    except HubLostError:  # the parent is gone: nobody is left to tell
        return 1
    membership = Membership(rank, world, ("", 0), "", "")
    try:
        return _serve(Runner(membership, control=control), lambda text: None)
    except InputError:  # the parent has found it
        return 2


def _serve(runner: Runner, say: Callable[[str], object]) -> int:
    _be_punctual()
    try:
        runner.serve()
        return 0
    except RankFailedError as verdict:
        say(str(verdict))
        runner.last_words(verdict)
        return 1
    finally:
        runner.member.close()


def _be_punctual() -> None:
    """Let the kernel end waits on time: by default it may be 50 us late, the time of a chunk (Linux; else nothing)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
