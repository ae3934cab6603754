"""Faults on purpose: what `optcc run --cut` and its like do to a rank's wires, and proof that they did it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optcc.errors import InputError
from optcc.runtime.layout import Layout
from optcc.runtime.messages import Note, Strike

KINDS: Mapping[str, str] = {
    "cut": "the NIC's link goes down, and the NIC says so",
    "hole": "a black hole: what enters or leaves by the NIC disappears, and nobody says so",
    "flap": "a black hole that heals after `amount` seconds",
    "slow": "the NIC keeps the part `amount` of its rate",
    "kill": "the process of the NIC's rank is killed",
}
"""Kinds of strikes, and what they mean."""


class Saboteur:
    """Strikes one rank's wires at its moments. `done` is called for the part of the rank's transfers that are done."""

    def __init__(
        self,
        rank: int,
        layout: Layout,
        strikes: Sequence[Strike],
        wires: Any,
        journal: list[Note],
        clock: Callable[[], float],
    ) -> None:
        nics = {nic.name: i for i, nic in enumerate(layout.nics)}
        for strike in strikes:
            if strike.nic not in nics or strike.kind not in KINDS:
                names = ", ".join(list(nics)[:8])
                raise InputError(
                    "no such fault", where=strike.nic, expected=f"{', '.join(KINDS)} of one of {names}", got=strike.kind
                )
        mine = [strike for strike in strikes if nics[strike.nic] in _nics_of(layout, rank)]
        self._pending = sorted(mine, key=lambda strike: strike.at)
        self._healing: list[tuple[float, int]] = []  # when a flapping NIC heals
        self._nics, self._wires, self._journal, self._clock = nics, wires, journal, clock

    def wake(self) -> float:
        """When something is due although nothing happens; inf: nothing."""
        return min((at for at, _ in self._healing), default=float("inf"))

    def look(self, done: float) -> None:
        """Strike what is due now that a part `done` of the transfers, 0 to 1, are done."""
        while self._pending and self._pending[0].at <= done:
            self._strike(self._pending.pop(0))
        for at, nic in list(self._healing):
            if self._clock() >= at:
                self._healing.remove((at, nic))
                self._wires.heal(nic)

    def _strike(self, strike: Strike) -> None:
        nic = self._nics[strike.nic]
        self._journal.append(Note(self._clock(), "struck", strike.nic, cause=strike.kind, text=KINDS[strike.kind]))
        match strike.kind:
            case "cut":
                self._wires.cut(nic)
            case "hole":
                self._wires.darken(nic)
            case "flap":
                self._wires.darken(nic)
                self._healing.append((self._clock() + strike.amount, nic))
            case "slow":
                self._wires.slow(nic, strike.amount)
            case "kill":
                import os
                import signal

                os.kill(os.getpid(), signal.SIGKILL)


def _nics_of(layout: Layout, rank: int) -> set[int]:
    return {i for i, nic in enumerate(layout.nics) if nic.rank == rank}
