"""The network of this process' host on a played fabric: what lab/network.py does to soft NICs, by the same names.

A NIC is its number on the host: 3 of rxe3.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal

from optcc.fabric.played import PlayedFabric
from optcc.machine.rdma import PLAYED_FABRIC, played_host


class PlayedNetwork:
    """As the environment names it. Raises InputError where it names none."""

    def __init__(self) -> None:
        self._host = played_host()
        self._fabric = PlayedFabric(os.environ.get(PLAYED_FABRIC, ""))

    def nics(self) -> int:
        """How many NICs there are."""
        return self._fabric.nics

    def cut(self, nic: int, cable: bool = False) -> None:
        """Take a NIC's link down; its cable is the same thing here."""
        self._fabric.down(self._name(nic))

    def restore(self, nic: int) -> None:
        """Bring it up."""
        self._fabric.up(self._name(nic))

    def whole(self, which: Iterable[int] | None = None) -> None:
        """Mend everything: links up, no losses, rates unlimited."""
        for nic in range(self.nics()) if which is None else which:
            self._fabric.up(self._name(nic))
            self.rate(nic, 0)

    def rate(self, nic: int, bits_per_s: float) -> None:
        """Let a NIC send and receive at this rate; 0: as fast as the machine is."""
        self._fabric.set(self._name(nic), rate=round(bits_per_s / 8))

    def lose(
        self,
        nic: int,
        direction: Literal["out", "in", "both"] = "out",
        packets: Literal["all", "data", "acks"] = "all",
        one_in: int = 1,
    ) -> None:
        """Lose, silently, packets that leave a NIC or arrive at it: one in so many, at random."""
        self._fabric.lose(self._name(nic), way=direction, what=packets, one_in=one_in)

    def heal(self, nic: int) -> None:
        """Lose no more."""
        self._fabric.lose(self._name(nic), one_in=0)

    def troubles(self) -> dict[str, int]:
        """Counts that stand still while every frame arrives, in order and once."""
        found = dict.fromkeys(("lost", "sent_again", "not_ready"), 0)
        for nic in range(self.nics()):
            counters = self._fabric.nic(self._name(nic)).counters
            found = {name: count + counters[name] for name, count in found.items()}
        return found

    def held(self) -> str:
        """What is open: the rings of queue pairs, and devices."""
        rings = sorted(path.name for path in self._fabric.folder.glob("q*"))
        return f"{self._fabric.opened()} devices, {' '.join(rings)}"

    def readdress(self, nic: int) -> None:
        """Give a NIC its next address, as a lease that ran out would."""
        self._fabric.readdress(self._name(nic))

    def _name(self, nic: int) -> str:
        return f"host{self._host}/{self._fabric.names[nic]}"
