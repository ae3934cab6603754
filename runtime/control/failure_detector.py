"""Who failed, and when to say so: the hub's judgement of what ranks say. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from optcc.runtime.messages import Broken

GRACE_S = 1.0
"""The peers of a rank that dies and the hub notice it in any order, milliseconds apart. So long after the first
accusation does the hub look for evidence of its own, and hear other ranks, before it takes a peer's word."""


class Accusation(NamedTuple):
    """A rank has lost another one."""

    blamed: int
    cause: str


def most_accused(accusations: Mapping[int, Accusation]) -> tuple[int, str]:
    """(the rank to blame, how it was lost) from what ranks say, at least one; by accuser, the first to speak first.

    A rank whose own NICs swallow everything loses its peers, too, and may be the first to say so. So the word of a rank
    that others accuse counts for less: to blame is whom most ranks accuse that nobody accuses; of those with as many,
    whom most ranks accuse at all; of those again, who was accused first.
    """

    def weight(rank: int) -> tuple[int, int]:
        by = [accuser for accuser, said in accusations.items() if said.blamed == rank]
        return sum(accuser not in accused for accuser in by), len(by)

    accused = {said.blamed for said in accusations.values()}
    culprit = max(dict.fromkeys(said.blamed for said in accusations.values()), key=weight)  # of equals the first
    witnesses = [accuser for accuser, said in accusations.items() if said.blamed == culprit]
    witness = min(witnesses, key=lambda accuser: accuser in accused)
    return culprit, f"rank {witness} {accusations[witness].cause}"


class FailureDetector:
    """Takes note of what ranks say, and judges. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._evidence: tuple[int, str] | None = None
        self._accusations: dict[int, Accusation] = {}  # by accuser, in the order in which they came
        self._accused_at = 0.0  # the first time

    def heard(self, rank: int, message: Broken, now: float) -> None:
        """Take note of what `rank` says."""
        match message:
            case Broken(cause, None):
                self._evidence = self._evidence or (rank, cause)
            case Broken(cause, int(blamed)):
                if not self._accusations:
                    self._accused_at = now
                self._accusations.setdefault(rank, Accusation(blamed, cause))

    def verdict(self, now: float) -> tuple[int, str] | None:
        """The rank that failed and how; None while there is hope."""
        if self._evidence:
            return self._evidence
        if self._accusations and now >= self._accused_at + GRACE_S:
            return most_accused(self._accusations)
        return None
