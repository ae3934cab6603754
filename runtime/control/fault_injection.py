"""Faults on purpose: what `optcc run --cut` and its like do to a rank's NICs, and proof that they did it.

That a fault was injected is no proof that it hit anything. What NICs lose is told by those who notice; pure delays are
noticed by nobody, so they are reported here. These are messages that were held back, or bytes that left by a NIC
after it was slowed down.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optcc.errors import InputError
from optcc.machine.rdma import PLAYED_FABRIC
from optcc.runtime.control.transports import LAB
from optcc.runtime.messages import Cause, Note, Strike
from optcc.runtime.native.layout import Layout

KINDS: Mapping[str, str] = {
    "cut": "the NIC's link goes down, and the NIC says so",
    "away": "the NIC's link is down for `amount` seconds, and the NIC says so",
    "hole": "a black hole: what enters or leaves by the NIC disappears, and nobody says so",
    "no data": "payloads that enter or leave by the NIC disappear; acknowledgements do not",
    "no acks": "acknowledgements that enter or leave by the NIC disappear; payloads do not",
    "flap": "a black hole that heals after `amount` seconds",
    "path": "a black hole between the NIC and the NIC `far` only; emulated NICs",
    "fatal": "the NIC itself fails, and says so",
    "post": "the NIC refuses what it is given to send",
    "retries": "what the NIC sends fails: retries exceeded",
    "receiver": "the NIC takes nothing any more, which only those who send to it notice",
    "status": "a write ends with a status that no lost NIC explains: a bug, not a fault",
    "slow": "the NIC keeps the part `amount` of its rate",
    "pause": "the process of the NIC's rank does nothing for `amount` seconds",
    "kill": "the process of the NIC's rank is killed",
}
"""Kinds of strikes, and what they mean."""

LASTING = ("cut", "hole", "no data", "no acks", "fatal", "post", "retries", "receiver")
"""Kinds after which the NIC does not work again in this operation."""

NETWORK = ("hole", "no data", "no acks", "flap", "slow")
"""Kinds that are done to packets: to emulated NICs, in the lab, or in a played fabric."""

ANYWHERE = ("pause", "kill")
"""Kinds that are done to a process: whatever its NICs are, they happen."""

AMOUNTS: Mapping[str, tuple[str, float]] = {
    "away": ("seconds, more than 0", math.inf),
    "flap": ("seconds, more than 0", math.inf),
    "pause": ("seconds, more than 0", math.inf),
    "slow": ("the part of the rate that is left, more than 0, up to 1", 1.0),
}
"""Kinds of strikes that need an amount: in words, and the most."""


def demand_strike(strike: Strike, nics: Mapping[str, int], transport: str) -> None:
    """Raise InputError unless this fault can be had. `nics` : of all ranks, by name, with the rank of each."""
    if not isinstance(strike.kind, str) or strike.kind not in KINDS or strike.nic not in nics:
        expected = f"{', '.join(KINDS)} at one of {', '.join([*nics][:8])}"
        raise InputError("no such fault", where="strike", expected=expected, got=f"{strike.kind} at {strike.nic}")
    needs, most = AMOUNTS.get(strike.kind, ("", 0.0))
    if needs and not 0 < strike.amount <= most:
        raise InputError(f"a {strike.kind} needs it", where="amount", expected=needs, got=strike.amount)
    if strike.kind == "path" and (strike.far not in nics or nics[strike.far] == nics[strike.nic]):
        others = [nic for nic, rank in nics.items() if rank != nics[strike.nic]]
        expected = f"the NIC at the other end, one of {', '.join(others[:8])}"
        raise InputError("a path needs it", where="far", expected=expected, got=strike.far)
    demand_had(strike.kind, transport)
    if transport == "verbs":
        ours = LAB in os.environ or PLAYED_FABRIC in os.environ
        can = (*ANYWHERE, "cut", *(("away", *NETWORK) if ours else ("fatal",)))
        if strike.kind not in can:
            raise InputError("not over verbs", where="strike", expected=" or ".join(can), got=strike.kind)


def demand_had(kind: str, transport: str) -> None:
    """Raise InputError for a kind of fault that network interfaces cannot be told to have."""
    if transport == "tcp" and kind not in ANYWHERE:
        raise InputError(
            "not over tcp",
            where=kind,
            expected=" or ".join(ANYWHERE),
            got=kind,
            hint="The NICs of --transport local are played: they can have any fault.",
        )


class FaultInjector:
    """Strikes one rank's NICs at its moments; every strike is noted in `journal` just before, as kind "struck".

    played : the NICs, see `NativeWires.nics`
    healing : when which flapping NIC (its index) heals; kept up to date, for the next injector of the same wires.
        Flaps of a NIC that overlap or touch are one: it heals at the last one's end. A lasting fault ends a flap.
    sent : bytes that have left by each NIC of this rank so far, by index
    farewell : called before the process is killed

    Raises InputError for a strike of no known kind, or at a NIC that is not in the layout.
    """

    def __init__(
        self,
        rank: int,
        layout: Layout,
        strikes: Sequence[Strike],
        played: Any,
        journal: list[Note],
        clock: Callable[[], float],
        healing: list[tuple[float, int]] | None = None,
        *,
        sent: Callable[[], Mapping[int, int]] = dict,
        farewell: Callable[[], None] = lambda: None,
    ) -> None:
        nics = {nic.name: i for i, nic in enumerate(layout.nics)}
        for strike in strikes:
            if strike.kind == "path" and not hasattr(played, "break_path"):
                raise InputError("real NICs cannot be told to", where="path", expected="--transport local")
            ends = {strike.nic, strike.far} if strike.kind == "path" else {strike.nic}
            if not ends <= nics.keys() or strike.kind not in KINDS:
                names = ", ".join(list(nics)[:8])
                raise InputError(
                    "no such fault", where=strike.nic, expected=f"{', '.join(KINDS)} of one of {names}", got=strike.kind
                )
        mine = [strike for strike in strikes if layout.nics[nics[strike.nic]].rank == rank]
        self._pending = sorted(mine, key=lambda strike: strike.at)
        self._healing = [] if healing is None else healing
        self._nics, self._played, self._journal, self._clock = nics, played, journal, clock
        self._names = [nic.name for nic in layout.nics]
        self._sent, self._farewell = sent, farewell
        self._before: dict[int, Mapping[int, int]] = {}  # flapping NIC -> what was waiting when it was struck
        self._lasting: set[int] = set()  # NICs that no end of a flap brings back
        self._slowed: dict[int, int] = {}  # NIC -> bytes that had left when it was slowed down

    def wake(self) -> float:
        """When something is due although nothing happens; inf: nothing."""
        return min((at for at, _ in self._healing), default=math.inf)

    def due(self) -> float:
        """The part done at which the next strike is due; inf: none is left."""
        return self._pending[0].at if self._pending else math.inf

    def look(self, done: float) -> None:
        """Strike what is due now that a part `done` of the rank's transfers, 0 to 1, are done."""
        while self._pending and self._pending[0].at <= done:
            self._strike(self._pending.pop(0))
        self.tend()

    def tend(self) -> None:
        """Heal what is to heal by now. Also for after the end, as long as others may still need the wires."""
        for at, nic in list(self._healing):
            if self._clock() >= at:
                self._healing.remove((at, nic))
                self._tell_held("healed", nic)
                self._played.heal(nic)

    def finish(self) -> None:
        """The operation is over for this rank: notes what faults that still last have done up to now."""
        for _, nic in self._healing:
            self._tell_held("held", nic)
        for nic in self._slowed:
            self._tell_slowed(nic)

    def _tell_slowed(self, nic: int) -> None:
        nbytes = self._sent().get(nic, 0) - self._slowed[nic]
        text = "sent at the lower rate"
        self._journal.append(Note(self._clock(), "slowed", self._names[nic], "", "slow", text, nbytes))

    def _tell_held(self, kind: str, nic: int) -> None:
        """What has been held back since the strike; what was under way before does not count."""
        before = self._before.get(nic, {})
        held = sum(max(0, count - before.get(wire, 0)) for wire, count in self._played.held(nic).items())
        text = f"{held} messages held back" if held else "nothing held back"
        self._journal.append(Note(self._clock(), kind, self._names[nic], "", "flap", text, held=held))

    def _flap(self, nic: int, seconds: float) -> None:
        """Dark for `seconds`, or for as long as it is already; what was struck for good stays so."""
        dark = max((at for at, other in self._healing if other == nic), default=None)
        if dark is None:
            self._played.darken(nic)
            self._before[nic] = dict(self._played.held(nic))
        end = self._clock() + seconds
        if nic not in self._lasting:
            self._healing[:] = [entry for entry in self._healing if entry[1] != nic]
            self._healing.append((end if dark is None else max(dark, end), nic))

    def _last(self, nic: int) -> None:
        """From now on the NIC does not come back."""
        self._lasting.add(nic)
        if any(other == nic for _, other in self._healing):
            self._tell_held("held", nic)
            self._healing[:] = [entry for entry in self._healing if entry[1] != nic]

    def _strike(self, strike: Strike) -> None:
        nic, played = self._nics[strike.nic], self._played
        if strike.kind in LASTING:
            self._last(nic)
        if strike.kind == "slow" and nic in self._slowed:
            self._tell_slowed(nic)
        note = Note(self._clock(), "struck", strike.nic, strike.far, strike.kind, KINDS[strike.kind])
        self._journal.append(note)
        match strike.kind:
            case "cut":
                played.cut(nic)
            case "away":
                played.cut(nic)
                played.mend(nic, strike.amount)
            case "hole":
                played.darken(nic)
            case "path":
                played.break_path(nic, self._nics[strike.far])
            case "no data":
                played.darken(nic, acks=False)
            case "no acks":
                played.darken(nic, data=False)
            case "flap":
                self._flap(nic, strike.amount)
            case "fatal":
                played.cut(nic, Cause.DEVICE, "device fatal")
            case "post":
                played.fail_out(nic, Cause.DEVICE, "post failed")
            case "retries":
                played.fail_out(nic)
            case "receiver":
                played.fail_in(nic)
            case "status":
                played.fail_nic(f"{strike.nic}: remote access error")
            case "slow":
                self._slowed[nic] = self._sent().get(nic, 0)
                played.slow(nic, strike.amount)
            case "pause":
                time.sleep(strike.amount)
            case "kill":
                self._farewell()
                os.kill(os.getpid(), signal.SIGKILL)
