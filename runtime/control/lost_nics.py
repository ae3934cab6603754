"""Which NICs of a rank plans have to do without, by what its wires tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optcc.runtime.messages import LostNics, Note
from optcc.runtime.wires.layout import Layout

_OF_A_NIC = ("nic down", "lost", "fenced")
"""Kinds of notes that are no news of a NIC that plans do without."""


class LostNicsOf:
    """Those of rank `rank`. `tell` : for the hub, which has all ranks plan anew.

    A NIC that is back is used again where no other one is left, not before: it may go again. After all have been lost,
    those that are back are used, and what has moved to the first of them is spread again. While all are lost nothing is
    told, for no plan can do without.
    """

    def __init__(self, rank: int, tell: Callable[[LostNics], None]) -> None:
        self._rank, self._tell = rank, tell
        self._lost: set[str] = set()  # that have gone down since wires were made, and whose wires have not been since
        self._reported: set[str] = set()  # of these, those that plans are to do without
        self._alone = False  # all of them have been lost at the same time
        self._without: set[str] = set()  # NICs of all ranks that plans do without

    def renewed(self, nics: Sequence[str]) -> None:
        """From now on plans do without these, of all ranks."""
        self._without = {*nics}

    def connected(self) -> None:
        """Wires are new, and tell what they find."""
        self._lost.clear()

    def read(self, notes: Sequence[Note], layout: Layout) -> list[Note]:
        """What wires have noted; returns what is news."""
        mine = {nic.name for nic in layout.nics if nic.rank == self._rank and not nic.nvlink}
        for note in notes:
            if note.kind == "nic down":
                self._lost.add(note.nic)
            elif note.kind == "made anew":
                self._lost.discard(note.nic)
            self._alone = self._alone or self._lost >= mine
        if not self._lost >= mine:
            self._report(mine)
        return [note for note in notes if note.kind not in _OF_A_NIC or not {note.nic, note.far} & self._without]

    def _report(self, mine: set[str]) -> None:
        dead = self._lost - self._reported
        back = mine - self._lost if self._alone or self._reported | dead >= mine else set[str]()
        self._alone = False
        if dead or (back and len(mine) > 1):
            self._reported = self._reported - back | dead
            self._tell(LostNics(sorted(dead), sorted(back)))
