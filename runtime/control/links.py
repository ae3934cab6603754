"""What joins one rank to the others: wires, and schedules run over them by the native engine.

Any piece of a transfer goes by any wire between its two ranks, and a NIC that is free takes the next. So there is no
flow to be moved or cut anew when a NIC is lost, and one set of wires serves every schedule between the same ranks.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from ctypes import byref, c_uint32
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from optcc.errors import InputError
from optcc.runtime.control.channel import Control
from optcc.runtime.control.fault_injection import FaultInjector
from optcc.runtime.control.limits import provide
from optcc.runtime.control.transports import open_wires
from optcc.runtime.devices.gpu_array import DeviceArray
from optcc.runtime.devices.host import Array, Op
from optcc.runtime.devices.resident import ResidentFolder
from optcc.runtime.errors import (
    CallsDifferError,
    FlowSeveredError,
    NicsLostError,
    PeerLateError,
    TransportError,
)
from optcc.runtime.forks import own
from optcc.runtime.messages import Cause, Note, Strike
from optcc.runtime.native.layout import Layout, Rates
from optcc.runtime.native.lent import Arena
from optcc.runtime.native.library import (
    NEVER,
    NONE,
    CauseOf,
    Config,
    Missing,
    NativeCall,
    NativeProgram,
    Noted,
    NoteOf,
    ResultOf,
    Until,
    WireOf,
    WireState,
    demand,
    engine_library,
    seconds,
)
from optcc.runtime.native.wires import SHARED_GPU, NativeWires, Opening
from optcc.schedule import Port, Schedule

LOOKS = 4
"""So many looks that find nothing, about a microsecond, a rank keeps its core to itself where there is one for each. On
a busy machine two ranks may be on one core; with 256, 4 KiB took them 107 us where it takes 68."""
SPIN_NS, SHARED_SPIN_NS = 200_000, 50_000
"""A rank looks for so long before it sleeps; the second where ranks of one machine share cores, which it gives away
after each look: to be woken takes longer than that. In virtual time (docs/lab.md) looks hold the clock up."""

DONE = int(ResultOf.OK)
"""As a number: small calls notice what an enumeration takes."""

NOTES = 256
"""Taken from the engine at a time. Half as many would do: it is asked until it has no more."""

NAP_S = 0.001
"""The first pause between two looks at the wires while no operation runs; the later ones are longer, `LONG_NAP_S` at
most, for a peer may wait for an answer."""
LONG_NAP_S = 0.005

SUSPECT_S, GRACE_S = 0.1, 0.15
"""A wire that moves nothing for so long is doubted; it is left when other wires, and it not, have brought the peer's
answers for so long. Both are longer where NICs are so slow that payloads wait in front of them for a quarter of it.
Half of either finds a black hole sooner; a process that gets no processor for so long would be asked for nothing."""

WINDOW_BYTES = 512 << 10
"""Not acknowledged on a wire, at most: two of the largest segments, so that one is under way while one is folded."""

SIGNAL_S = 0.1
"""An operation looks so often whether this process was interrupted (Ctrl-C): compiled code does not hear of that."""

LOCAL_WINDOW_BYTES = 4 << 20
"""The same between processes of one machine: nothing waits behind it, and a process may be away for as long as others
have the core. With 512 KiB an AllReduce of 64 MiB took three times as long beside other work."""

WINDOW_S = 0.02
"""What a played NIC sends in so long is enough, too: twice what a process may wake up late. Half of it leaves slow NICs
idle on a busy machine; twice as much makes a black hole take twice as long to find."""

KNOCK_S = 0.01
"""The first pause before a lost wire is tried again, up to 16 times as long later."""

HEARSAY_S = 2.0
"""A rank that has heard of a loss, and has no wires there, waits so long for the hub's word: twice the time in which
the hub hears the others."""

ALONE_S = 0.3
"""At least so long for a wire to come back, where none is left: two of the pauses between knocks. A NIC that has been
silent sends again what was lost by its own timer, a quarter of a second: its wire may be left meanwhile, and is made
anew within some 20 ms."""

SETTLE_S = 10.0
"""So long is waited for wires in doubt before probes: eight times what a wire takes that is left, where NICs are slow.
With half of it, a busy machine's probes may go by other wires than they are about."""

CAUSES = {
    CauseOf.PORT: Cause.PORT,
    CauseOf.ERROR: Cause.ERROR,
    CauseOf.CLOSED: Cause.CLOSED,
    CauseOf.DEVICE: Cause.DEVICE,
    CauseOf.TOLD: Cause.NOTICE,
    CauseOf.SILENCE: Cause.PROGRESS,
}
OWN = (CauseOf.PORT, CauseOf.DEVICE)
"""Causes that say that it is the NIC here."""


@dataclass
class Hardware:
    """What played NICs can do, and how they ail, whatever wires are made of them later.

    rates : by name; ailing : what struck a NIC, and when
    """

    rates: dict[str, Rates] = field(default_factory=dict)
    ailing: dict[str, tuple[Strike, float]] = field(default_factory=dict)

    def rates_of(self, nics: Sequence[Port], paced: bool) -> list[Rates]:
        """As they have become; of a NIC that is new, its own. paced : False: as fast as the machine goes."""
        unlimited = Rates(math.inf, math.inf)
        return [
            self.rates.setdefault(nic.name, Rates(nic.out_rate, nic.in_rate) if paced else unlimited) for nic in nics
        ]

    def strike(self, played: Any, nics: Sequence[Port]) -> list[tuple[float, int]]:
        """New wires do not mend a NIC. played : the NICs, see `NativeWires.nics`. Returns when which flapping one (its
        index) heals."""
        number, healing = {port.name: nic for nic, port in enumerate(nics)}, []
        for name, nic in number.items():
            strike, at = self.ailing.get(name, (None, 0.0))
            if strike and strike.kind == "cut":
                played.cut(nic)
            elif strike and strike.kind == "hole":
                played.darken(nic)
            elif strike and strike.kind == "path" and strike.far in number:
                played.break_path(nic, number[strike.far])
            elif strike and strike.kind == "flap" and time.monotonic() < at + strike.amount:
                played.darken(nic)
                healing.append((at + strike.amount, nic))
        return healing

    def remember(self, strikes: Sequence[Strike], notes: Sequence[Note]) -> None:
        """Of these, what has struck."""
        for note in notes:
            for strike in strikes:
                if note.kind == "struck" and (note.nic, note.cause) == (strike.nic, strike.kind):
                    if strike.kind in ("cut", "hole", "flap", "path"):
                        self.ailing[note.nic] = (strike, note.at)
                    if strike.kind == "slow":
                        rates = self.rates[note.nic]
                        self.rates[note.nic] = Rates(rates.out * strike.amount, rates.into * strike.amount)


SECOND = 10**9
"""In nanoseconds, as the library counts."""


class Pace(NamedTuple):
    """How much is under way on a wire, and after how long it is doubted, and left; see SUSPECT_S."""

    window_bytes: int
    suspect_s: float
    grace_s: float


def pace_of(layout: Layout, most: int, segment_bytes: int, paced: bool) -> Pace:
    """What suits these NICs. most : bytes that a window has where NICs are fast; paced : they have rates."""
    rates = [rate for port in layout.nics for rate in (port.out_rate, port.in_rate) if rate > 0]
    slowest = min(rates, default=0) if paced else 0
    window = max(min(most, int(WINDOW_S * slowest)) if slowest else most, 2 * segment_bytes)
    queue_s = layout.ranks * window / slowest if slowest else 0.0
    longer = max(1.0, 4 * queue_s / SUSPECT_S)
    return Pace(window, SUSPECT_S * longer, GRACE_S * longer)


class Links:
    """Those of the rank of `control`, none at first; made by `connect`, on all ranks at the same time.

    back_s : so long for some wire to a rank to come back, where none is left; 0: no longer than ALONE_S
    gpu : in whose memory buffers are, a `cuda.Gpu`, None: the host's; gpu_tuning : for the former, when wires are made
    hardware : of played NICs that have rates, and ail from one operation to the next; None: neither
    paced : it has rates
    moving : an operation has its time anew with whatever moves on this rank
    farewell : called before this process is killed on purpose
    secret : as of `Opening`
    """

    def __init__(
        self,
        transport: str,
        control: Control,
        back_s: float,
        *,
        gpu: Any = None,
        hardware: Hardware | None = None,
        paced: bool = False,
        moving: bool = False,
        farewell: Callable[[], None] = lambda: None,
        secret: bytes = b"",
    ) -> None:
        self._lib, self._control, self._back_s = engine_library(), control, back_s
        self._rank = control.rank
        self._hardware, self._paced, self._moving, self._farewell = hardware, paced, moving, farewell
        self._transport, self._secret = transport, secret
        self._gpu = gpu
        self.gpu_tuning = SHARED_GPU
        self._folder: ResidentFolder | None = None
        self._made: NativeWires | None = None
        self._away: dict[str, float] = {}
        self._strikes: list[Strike] = []
        self._healing: list[tuple[float, int]] = []
        self._injector: FaultInjector | None = None
        self._journal: list[Note] = []
        self._noted = (NoteOf * NOTES)()
        self._down: set[int] = set()  # NICs of this rank, by place
        self._nap_s = NAP_S
        self._before: Array = np.zeros(0, np.uint64)
        self._until = Until(0, NEVER, control.fileno())
        self._until_at = byref(self._until)

    @property
    def up(self) -> bool:
        """Whether there are any."""
        return self._made is not None

    # --- making and ending -------------------------------------------------------------------------------------------

    def connect(self, layout: Layout, lent: Arena | None = None) -> None:
        """Wires of the same layout on all ranks. lent : what other ranks may read where it lies"""
        self.layout, mine = layout, layout.of_rank[self._rank]
        self._place = {number: place for place, number in enumerate(mine)}
        self._segment = self.gpu_tuning.segment if self._gpu else layout.segment_bytes
        hardware = self._hardware or Hardware()
        rates = hardware.rates_of([layout.nics[number] for number in mine], self._paced)
        opening = Opening(self._rank, layout, self._config(), self._control.exchange, self._secret, rates, lent)
        if self._transport == "tcp":
            provide(2 * len(layout.ends(self._rank)) + len(mine))  # a wire that is made anew has two for a moment
        if self._gpu:
            tuning = self.gpu_tuning
            self._folder = ResidentFolder(self._lib, self._gpu, blocks=tuning.blocks, part_bytes=tuning.part)
        self._made = open_wires(self._transport, opening)
        own(self, Links._let_go)
        self._down.clear()
        for number in mine:
            name = layout.nics[number].name
            if name in self._away:
                self._wires.nics.cut(number)
                self._wires.nics.mend(number, self._away[name] - time.monotonic())
        self._healing = hardware.strike(self._wires.nics, layout.nics)

    def _config(self) -> Any:
        most, local = WINDOW_BYTES, self._transport == "local"
        if local:
            most = self.gpu_tuning.window if self._gpu else LOCAL_WINDOW_BYTES
        pace = pace_of(self.layout, most, self._segment, self._paced)
        crowded = self.layout.ranks > len(os.sched_getaffinity(0))
        return Config(
            segment_bytes=self._segment,
            window_bytes=pace.window_bytes,
            suspect_ns=int(pace.suspect_s * SECOND),
            grace_ns=int(pace.grace_s * SECOND),
            knock_ns=int(KNOCK_S * SECOND),
            return_ns=NEVER // 4,  # a rank that is stopped is late, not lost: who is lost others say
            alone_ns=int(max(ALONE_S, min(self._back_s, 1e9)) * SECOND),
            spin_ns=(SHARED_SPIN_NS if local else 0) if crowded else SPIN_NS,
            yields=0 if not local else 1 if crowded else LOOKS,
        )

    def lend(self, buffer: DeviceArray) -> None:
        """The other ranks may read this buffer where it lies. All ranks call it at the same time, before the first
        operation on it; it stays until all have closed."""
        self._wires.lend(self._gpu, buffer)

    def close(self) -> None:
        """Let go of all; what others ask is answered no more."""
        if self._made:
            self._take_notes()
            self._away = {
                self.layout.nics[nic].name: at for nic, at in self._wires.nics.away.items() if math.isfinite(at)
            }
            self._lib.optcc_abandon(self._engine, 10**9)
            with self._gpu.current() if self._gpu else nullcontext():
                self._wires.close()
                if self._folder:
                    self._folder.close()
        self._made = self._injector = self._folder = None

    def _let_go(self) -> None:
        """In a forked child: what is shared stays as it is."""
        self._made = self._injector = None

    @property
    def _wires(self) -> NativeWires:
        assert self._made
        return self._made

    @property
    def _engine(self) -> Any:
        return self._wires.engine

    # --- operations --------------------------------------------------------------------------------------------------

    def program(self, schedule: Schedule) -> NativeProgram:
        """This rank's part of a schedule whose ranks are joined."""
        program = NativeProgram(schedule, self._rank, self.layout.words(schedule), self._segment)
        if self._folder:
            self._folder.use(program.pointer)
        return program

    def run(
        self,
        call: NativeCall,
        within_s: float,
        source: Any = None,
        source_at: int = 0,
        target_at: int = 0,
        start: Callable[[Callable[[float], object]], None] | None = None,
    ) -> bool:
        """The collective itself; whether anything has been noted. PeerLateError when it is not done in time.

        source : the caller's, which the call copies from, or reads; None: it does neither
        source_at, target_at : addresses, of this and of what the call copies to
        start : called once all is ready, before the first byte is sent, with `poll`
        """
        lib, wires, until = self._lib, self._made, self._until
        assert wires
        self._injector = self._injector_of() if self._strikes or self._healing else None
        if self._hardware or self._injector:  # others do not ask what has been sent
            self._before = self._sent()
        if start:
            start(self.poll)
        done: Callable[[], object] | None = None
        try:
            if isinstance(call.buffer, DeviceArray):
                self._launch(call.buffer, call.op, within_s)
            else:
                sent: Any = source if call.sent is None else call.sent
                done = wires.begin(sent)
            now = time.monotonic()
            seen, end = -1, now + within_s
            result: int | None = None  # it has not begun
            while result != DONE:
                until.rows = NEVER
                if self._injector or self._moving:
                    progress, total = self._progress()
                    until.rows = self._due(total)
                    if self._injector and result is not None:
                        self._injector.look(min(progress, total - 1) / total)
                    if self._moving and progress != seen:
                        seen, end = progress, now + within_s
                if result is not None and (bug := wires.bug()):
                    raise TransportError(bug)
                wait_s = end - now if end < now + SIGNAL_S else SIGNAL_S
                if self._injector or wires.nics.away:
                    wait_s = min(wait_s, self._tend(now) - now)
                until.limit_ns = int(wait_s * SECOND) if wait_s > 0 else 0
                if result is None:
                    result = lib.optcc_run(wires.engine, call.struct_at, source_at, target_at, self._until_at)
                else:
                    result = lib.optcc_go_on(wires.engine, call.struct_at, target_at, self._until_at)
                if result != DONE:
                    now = self._look_after(result, end, within_s)
        except BaseException:
            lib.optcc_abandon(wires.engine, 10**9)
            raise
        finally:
            if self._folder:
                self._folder.end()
            if done:
                done()
        if self._injector:
            self._injector.finish()
        return bool(until.notes or self._journal)

    def _look_after(self, result: int, end: float, within_s: float) -> float:
        """What it means that an operation has not ended yet; the time now."""
        if result in (ResultOf.LOST, ResultOf.DIFFERS):
            self._failed(result)
        if result not in (ResultOf.AGAIN, ResultOf.LATE):
            demand(result, "a collective")
        self._control.check()
        now = time.monotonic()
        if now >= end:
            self._late(within_s)
        return now

    def _launch(self, buffer: DeviceArray, op: Op, within_s: float) -> None:
        """What folds runs on the GPU, behind what the fold stream has been given. From now on, until `end`, nothing of
        CUDA is called here that may wait for kernels."""
        if not self._folder or not self._wires.lends(buffer):
            raise InputError("memory of a GPU that was not lent", where="buffer", expected="Links.lend before")
        self._folder.launch(buffer, op)
        end = time.monotonic() + within_s
        while not self._folder.ready:
            self._lib.optcc_serve(self._engine, 0)
            if select.select([self._control], [], [], 0)[0]:
                self._control.check()
            if time.monotonic() >= end:
                raise TransportError(f"the GPU has not begun within {within_s:.3g} s")

    def _progress(self) -> tuple[int, int]:
        """Rows of this rank that are done, and how many there are; 1 where nothing runs."""
        done, rows = c_uint32(), c_uint32()
        self._lib.optcc_done(self._engine, byref(done), byref(rows))
        return done.value, max(1, rows.value)

    def _due(self, total: int) -> int:
        """At how many rows the next strike is due."""
        at = self._injector.due() if self._injector else math.inf
        return NEVER if not math.isfinite(at) else min(total - 1, max(0, math.ceil(at * total)))

    def _tend(self, now: float) -> float:
        """What is due by time; when the next is."""
        wake = self._wires.nics.come_back(now) if self._wires.nics.away else math.inf
        return min(wake, self._injector.wake()) if self._injector else wake

    def _failed(self, result: int) -> None:
        rank = c_uint32()
        self._lib.optcc_test(self._engine, byref(rank))
        if result == ResultOf.DIFFERS:
            raise CallsDifferError(rank.value)
        raise self._severed(rank.value, self._back_s)

    def _severed(self, peer: int, within_s: float) -> FlowSeveredError:
        """This rank is to blame when all its NICs that reach the peer are down, else the peer."""
        self._take_notes()
        reach = [nic for far, nic, _, _ in self._wires.ends if far == peer]
        end = time.monotonic() + HEARSAY_S
        while not reach and time.monotonic() < end:  # others have found it, who know more: they tell the hub
            self.poll(end)
        waited = f", none has come back within {within_s:.3g} s" if within_s else ""
        severed = NicsLostError if reach and {*reach} <= self._down else FlowSeveredError
        return severed(peer, f"no wire left of {len(reach)}{waited}")

    def _late(self, within_s: float) -> None:
        alone = self._lib.optcc_alone(self._engine)
        if alone != NONE:  # a lost NIC explains more than what it makes late
            raise self._severed(alone, within_s)
        missing = Missing()
        self._lib.optcc_missing(self._engine, byref(missing))
        text = f"{missing.receives} transfers to receive, {missing.sends} to send"
        if missing.row != NONE:
            text += f", first transfer {missing.row} from rank {missing.peer}"
        what = "no progress for" if self._moving else "not done within"
        raise PeerLateError(None if missing.peer == NONE else missing.peer, f"{what} {within_s:.3g} s: {text}")

    def poll(self, until: float) -> bool:
        """Between operations: one wait, no longer than `until`, and what peers ask; whether they have asked."""
        now = time.monotonic()
        until = min(until, self._tend(now))
        asked = bool(self._lib.optcc_serve(self._engine, 0))
        wait = min(until - now, self._nap_s)
        self._nap_s = min(2 * self._nap_s, LONG_NAP_S)
        if select.select([self._control], [], [], max(0.0, wait))[0]:
            self._nap_s = NAP_S
            self._control.check()
        if self._injector:
            self._injector.tend()
        return asked

    def settle(self) -> None:
        """Between operations: wait until no wire is in doubt, and note those that are lost, once more if need be."""
        state, end, states = WireState(), time.monotonic() + SETTLE_S, [WireOf.DOUBTED]
        while {WireOf.DOUBTED, WireOf.FENCING} & {*states} and time.monotonic() < end:
            self.poll(time.monotonic() + NAP_S)
            states.clear()
            for wire in range(len(self._wires.ends)):
                self._lib.optcc_wire_look(self._engine, wire, byref(state))
                states.append(WireOf(state.state))
        self._take_notes()
        names = [nic.name for nic in self.layout.nics]
        mine = self.layout.of_rank[self._rank]
        for (peer, nic, far, _), found in zip(self._wires.ends, states, strict=True):
            if found is WireOf.DOWN:
                ends = names[mine[nic]], names[self.layout.of_rank[peer][far]]
                self._journal.append(Note(time.monotonic(), "lost", *ends, text="before it began"))

    # --- what has happened -------------------------------------------------------------------------------------------

    def _take_notes(self) -> None:
        assert self._made
        while count := self._lib.optcc_notes(self._made.engine, self._noted, NOTES):
            for i in range(count):
                self._note(self._noted[i])

    def _note(self, made: Any) -> None:
        peer, nic, far_nic, _ = self._wires.ends[made.wire]
        name = self.layout.nics[self.layout.of_rank[self._rank][nic]].name
        far = self.layout.nics[self.layout.of_rank[peer][far_nic]].name
        at, cause = seconds(made.at_ns), CauseOf(made.cause)
        match Noted(made.noted):
            case Noted.LOST:
                if cause in OWN and nic not in self._down:
                    self._down.add(nic)
                    self._journal.append(Note(at, "nic down", name, "", CAUSES[cause], "link down"))
                self._journal.append(Note(at, "lost", name, far, CAUSES[cause]))
            case Noted.FENCED:
                self._journal.append(Note(at, "fenced", name, far, text="this end is drained"))
            case Noted.MOVED:
                self._journal.append(Note(at, "moved", name, far, CAUSES[cause], "to other wires", made.bytes))
            case Noted.ANEW:
                if nic in self._down:
                    self._down.discard(nic)
                    self._journal.append(Note(at, "nic up", name))
                self._journal.append(Note(at, "made anew", name, far))
            case Noted.ALONE:
                self._journal.append(Note(at, "waiting", name, "", "", f"for a way to rank {peer} to come back"))

    def notes(self) -> list[Note]:
        """What has been noted since this was asked."""
        if self._made:
            self._take_notes()
        if not self._journal:
            return []
        notes, self._journal[:] = sorted(self._journal, key=lambda note: note.at), []
        return notes

    def _sent(self) -> Array:
        state, sent = WireState(), np.zeros(len(self._place), np.uint64)
        for wire, (_, nic, _, _) in enumerate(self._wires.ends):
            self._lib.optcc_wire_look(self._engine, wire, byref(state))
            sent[nic] += np.uint64(state.sent_bytes)
        return sent

    def sent(self) -> dict[str, int]:
        """Bytes of payload that have left by each NIC of this rank in the last operation, replays counted."""
        return {self.layout.nics[number].name: sent for number, sent in self._sent_by_number().items()}

    def strike(self, strike: Strike) -> None:
        """In the next operation: a fault on purpose at a NIC of this rank; nothing where that is not used any more."""
        self._strikes.append(strike)

    def _injector_of(self) -> FaultInjector | None:
        used = {nic.name for nic in self.layout.nics}
        strikes, self._strikes = [strike for strike in self._strikes if {strike.nic, strike.far} - {""} <= used], []
        if not strikes and not self._healing:
            return None
        return FaultInjector(
            self._rank,
            self.layout,
            strikes,
            self._wires.nics,
            self._journal,
            time.monotonic,
            self._healing,
            sent=self._sent_by_number,
            farewell=self._farewell,
        )

    def _sent_by_number(self) -> dict[int, int]:
        each = (self._sent() - self._before).tolist()
        return {number: each[place] for number, place in self._place.items()}
