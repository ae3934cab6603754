"""One rank of a communicator: its connections to the other ranks, and schedules run over them on a caller's buffer.

Operations run in the thread that calls them. Between them a thread looks in now and then, for peers may still have to
ask what has landed, and the overseer whether this rank may change its plan. No two ranks need begin an operation at the
same time; a peer that is ahead waits, for TIMEOUT_S at most.
"""

from __future__ import annotations

import contextlib
import math
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from optcc.errors import InputError, OptccError
from optcc.runtime.arrivals import nothing_runs
from optcc.runtime.carriers import open_wires
from optcc.runtime.codec import Json
from optcc.runtime.control import Address, Control, HubLostError
from optcc.runtime.descriptors import provide
from optcc.runtime.device import Op
from optcc.runtime.engine import Engine
from optcc.runtime.errors import LateError, PeerLostError, RankFailedError, shortage
from optcc.runtime.flows import FlowTransport
from optcc.runtime.layout import Layout
from optcc.runtime.memory import HOST
from optcc.runtime.messages import Broken, Late, Lost, Note, Renew, Reply, Shrink, Strike
from optcc.runtime.overseer import REGROUP_S, Overseer
from optcc.runtime.pacing import Rates
from optcc.runtime.program import Program
from optcc.runtime.rendezvous import Membership
from optcc.runtime.strikes import Saboteur
from optcc.runtime.switchboard import Door
from optcc.schedule import Schedule

JOIN_S = 120.0
"""For all ranks to be started and to come."""

TIMEOUT_S = 300.0
"""For an operation, from when this rank begins it: all others must have come to it and finished it by then."""

TICK_S = 0.02
"""Between two looks at the wires while no operation runs: a peer's question waits so long for its answer, which is less
than the patience of anything (`patience`)."""

VERDICT_S = 30.0
"""For the overseer to say who failed: more than `vigil.GRACE_S`, and than the kernel takes to find a machine gone."""

HUB_GONE = "its process, which held the control channel, is gone"


class Member:
    """Rank `membership.rank` of as many as its `world`. Use `turn` around whatever concerns all ranks.

    All methods that wait raise RankFailedError, with the same text on all ranks, once a rank has failed.

    overseer : where this process has the ranks' hub: that of a job with rank 0
    on_renew : called with the names of NICs that are dead, at the same point between operations on every rank
    on_notes : called with what this rank has noted of NICs, wires and flows; from whichever thread finds it
    """

    def __init__(
        self,
        membership: Membership,
        *,
        transport: str = "local",
        timeout_s: float = TIMEOUT_S,
        on_renew: Callable[[list[str]], None] = lambda nics: None,
        on_notes: Callable[[list[Note]], None] = lambda notes: None,
        overseer: Overseer | None = None,
    ) -> None:
        self.rank, self.world, self.timeout_s = membership.rank, membership.world, timeout_s
        self._membership, self._transport = membership, transport
        self._on_renew, self._on_notes, self.overseer = on_renew, on_notes, overseer
        self._lock = threading.RLock()
        self._wires: Any = None
        self._flows: FlowTransport | None = None
        self._renewals: deque[Renew] = deque()  # each at its point: another rank may be past that of the first
        self._strikes: list[Strike] = []
        self._reported: set[str] = set()  # dead NICs
        self.operation = 0
        self.failed: RankFailedError | None = None
        try:
            self._control = Control.join(
                membership.address,
                job=membership.job,
                secret=membership.secret.encode(),
                rank=self.rank,
                world=self.world,
                within_s=JOIN_S,
            )
        except BaseException:
            if self.overseer:
                self.overseer.leave()
            raise
        self._control.operation = lambda: self.operation
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tend, name=f"optcc rank {self.rank}", daemon=True)
        self._thread.start()

    # --- what all ranks do alike -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """The next operation, and what prepares it. Plans change here, never inside."""
        with self._lock, self._guarded():
            while True:
                if self._control.halts:
                    self._until(lambda: not self._control.halts, "leave to go on")
                if self._renewals and self._renewals[0].after <= self.operation:
                    self._on_renew(self._renewals.popleft().nics)
                else:
                    break
            self.operation += 1
            yield

    def exchange(self, value: Json) -> list[Json]:
        """The values that all ranks give here, by rank, while wires are served. Within a turn, or to begin or end."""
        with self._lock, self._guarded():
            turn = self._control.offer(value)
            values: list[Json] = []

            def came() -> bool:
                values[:] = self._control.offered(turn) or ()
                return bool(values)

            self._until(came, f"what all ranks say in exchange {turn}")
            return values

    def connect(self, layout: Layout, schedules: dict[str, Schedule]) -> None:
        """Wires anew, for these schedules. All ranks do so at the same time, of the same layout, within a turn."""
        with self._lock, self._guarded():
            self._part()
            self.layout = layout
            if self._transport == "local":
                provide(layout, self.rank)
            rates = [Rates(math.inf, math.inf)] * len(layout.nics)
            self._wires = open_wires(self._transport, self.rank, layout, rates, self._control, HOST)
            routes = {name: schedule.routes for name, schedule in schedules.items()}
            self._flows = FlowTransport(self.rank, layout, routes, self._wires, self._control.send, time.monotonic)
            self._control.on_letter = self._flows.letter

    def _part(self) -> None:
        """Let go of the wires when nobody needs or looks at them any more: an end that closes is a loss."""
        if self._wires:
            self.exchange(None)
            self._control.exchange(None, self.timeout_s)
            self._hang_up()

    def learn(self, name: str, schedule: Schedule, lanes: Sequence[tuple[int, ...]]) -> None:
        """Another schedule over the wires that are there."""
        assert self._flows
        self._flows.learn(name, schedule.routes, lanes)

    def run(self, name: str, program: Program, buffer: Any, op: Op, sign: int, *, linger: bool = True) -> None:
        """The collective itself, in place on `buffer`, shape (elements,); within a turn.

        linger : False: nobody writes to the buffer afterwards, so there is no need to wait until all has landed
        """
        assert self._flows
        linger = linger or self._transport != "local"  # a NIC reads from the memory that is registered
        flows = self._flows
        flows.begin(name, program.receives, sign)
        engine = Engine(program, buffer, op, flows, time.monotonic, HOST, linger)
        if linger:
            self._wires.register(HOST.bytes_of(buffer))
        engine.run(_Deadline(time.monotonic() + self.timeout_s, engine, self._saboteur()))
        if flows.journal:
            self._tell_notes()

    def strike(self, strike: Strike) -> None:
        """In the next operation: a fault on purpose at a NIC of this rank; nothing where that is not used any more."""
        self._strikes.append(strike)

    # --- ends --------------------------------------------------------------------------------------------------------

    def close(self, cause: str | None = None) -> None:
        """Leave; orderly, after all ranks have said so, or because of `cause`, which fails the others."""
        if self._stop.is_set():
            return
        with self._lock:
            if self.failed is None and cause is None:
                with contextlib.suppress(RankFailedError), self._guarded():
                    self._part()
            self._stop.set()
            with contextlib.suppress(HubLostError, RankFailedError):
                if self.failed is None:
                    self._control.tell(Broken(f"left: {cause}") if cause else Reply())
                self._control.hang_up()
            self._control.__exit__()
            self._hang_up()
        if self._thread is not threading.current_thread():
            self._thread.join()
        if self.overseer:
            self.overseer.leave()

    def regroup(self) -> tuple[Membership, list[int]]:
        """After a rank has failed: this rank's place among those that go on, and their old numbers. All call this.

        Raises InputError when none has failed, or this one has.
        """
        with self._lock:
            if self.failed is None:
                raise InputError("no rank has failed", where="shrink", expected="a call after RankFailedError")
            hint = "Start the job again."
            try:
                self._control.tell(Shrink())
                end = time.monotonic() + REGROUP_S + VERDICT_S
                while self._control.regrouped is None and time.monotonic() < end:
                    self._look(end)
            except HubLostError as error:
                what = "the control channel is gone with rank 0's process, so nobody can bring the others together"
                raise InputError(what, where="shrink", hint=hint) from error
            regrouped = self._control.regrouped
            if regrouped is None or self.rank not in regrouped.ranks:
                raise InputError(f"rank {self.rank} is not among those that go on", where="shrink", hint=hint)
            ranks, old = regrouped.ranks, self._membership
            address = (old.address[0], regrouped.port)
            return Membership(ranks.index(self.rank), len(ranks), address, f"{old.job}'", old.secret), ranks

    @property
    def host(self) -> str:
        """This machine's address, for other ranks."""
        return self._control.host

    def place(self, rank: int, world: int, address: Address, name: str) -> Membership:
        """A place in a job within this one, which has the same secret."""
        return Membership(rank, world, address, f"{self._membership.job}/{name}", self._membership.secret)

    def open_for(self, ranks: int, name: str) -> Overseer:
        """A hub in this process, at any port, for a job within this one."""
        door = Door(f"{self._membership.job}/{name}", self._membership.secret.encode(), self.host, 0)
        return Overseer(ranks, door, JOIN_S).start()

    # --- waits -------------------------------------------------------------------------------------------------------

    def _until(self, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + self.timeout_s
        while not done():
            if time.monotonic() > end:
                raise LateError(0, f"{what} has not come within {self.timeout_s:.3g} s")
            try:
                self._look(end)
            except RankFailedError as error:
                if not done():
                    raise
                self.failed = error  # what was waited for came before that: the next wait is the one that fails
                self._hang_up()
                return

    def _look(self, until: float) -> None:
        """One wait, no longer than `until`, and what has come by then."""
        if self._flows and not self.failed:
            self._flows.poll(min(until, self._flows.next_wake()), nothing_runs)
        elif select.select([self._control], [], [], max(0.0, until - time.monotonic()))[0]:
            self._control.check()
        self._obey()

    def _obey(self) -> None:
        while (command := self._control.poll_command()) is not None:
            if isinstance(command, Renew):
                self._renewals.append(command)
                self._control.halts -= 1  # the next Halt may have come before this was read

    def _tend(self) -> None:
        """Between operations."""
        while not self._stop.wait(TICK_S):
            if self._lock.acquire(blocking=False):
                try:
                    if not self._stop.is_set() and not self.failed:
                        with contextlib.suppress(RankFailedError), self._guarded():
                            self._look(-math.inf if self._flows else time.monotonic())
                            if self._flows and self._flows.journal:
                                self._tell_notes()
                finally:
                    self._lock.release()

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Whatever stops this rank stops all; InputError does not, for all ranks find the same wrong with a call."""
        if self.failed:
            raise self.failed
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            if not self.failed:
                self.failed = self._verdict(error)
                self._hang_up()
            raise self.failed from (None if error is self.failed else error)
        except BaseException as error:  # Ctrl-C in the middle of something leaves the others in it
            self.failed = RankFailedError(self.rank, f"interrupted by {type(error).__name__}")
            with contextlib.suppress(HubLostError):
                self._control.tell(Broken(self.failed.cause))
            raise

    def _verdict(self, error: Exception) -> RankFailedError:
        """Tells the overseer and waits for its word; serves flows meanwhile, as `worker._await_verdict` does."""
        if isinstance(error, RankFailedError):
            return error
        try:
            if not isinstance(error, HubLostError):
                cause = str(error) if isinstance(error, OptccError) else shortage(error)
                blames = error.blames if isinstance(error, PeerLostError) else None
                if isinstance(error, LateError):
                    self._control.tell(Late(error.peer, error.why))
                else:
                    self._control.tell(Broken(cause or f"{type(error).__name__}: {error}", blames))
                serve = isinstance(error, PeerLostError)
                end = time.monotonic() + VERDICT_S
                while time.monotonic() < end:
                    try:
                        if serve and self._flows:
                            self._flows.poll(min(end, self._flows.next_wake()), nothing_runs)
                        elif select.select([self._control], [], [], end - time.monotonic())[0]:
                            self._control.check()
                    except PeerLostError:
                        pass  # one is enough
                    except (RankFailedError, HubLostError):
                        raise
                    except Exception:  # these flows are of no use any more
                        serve = False
        except RankFailedError as verdict:
            return verdict
        except HubLostError:
            pass
        return RankFailedError(0, HUB_GONE)

    def _hang_up(self) -> None:
        if self._wires:
            self._wires.close()
        self._wires = self._flows = None
        self._control.on_letter = lambda origin, value: None

    # --- what is noted -----------------------------------------------------------------------------------------------

    def _tell_notes(self) -> None:
        assert self._flows
        notes, self._flows.journal[:] = list(self._flows.journal), []
        dead = {note.nic for note in notes if note.kind == "nic down"} - self._reported
        if dead:
            self._reported |= dead
            self._control.tell(Lost(sorted(dead)))
        self._on_notes(notes)

    def _saboteur(self) -> Saboteur | None:
        used = {nic.name for nic in self.layout.nics}
        strikes, self._strikes = [strike for strike in self._strikes if strike.nic in used], []
        if not strikes:
            return None
        assert self._flows
        return Saboteur(
            self.rank, self.layout, strikes, self._wires, self._flows.journal, time.monotonic, sent=self._flows.sent
        )


class _Deadline:
    """Ends an operation that takes too long, and has a saboteur look on, if there is one."""

    def __init__(self, at: float, engine: Engine, saboteur: Saboteur | None) -> None:
        self._at, self._engine, self._saboteur, self._start = at, engine, saboteur, time.monotonic()

    def look(self, done: float) -> None:
        if self._saboteur:
            self._saboteur.look(done)
        if time.monotonic() > self._at:
            took = self._at - self._start
            why = f"not done within {took:.3g} s: {self._engine.waiting_for()}"
            raise LateError(self._engine.awaited or 0, why)

    def wake(self) -> float:
        return min(self._at, self._saboteur.wake()) if self._saboteur else self._at
