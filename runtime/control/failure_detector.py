"""Who failed, and when to say so: the parent's judgement while it waits for the ranks. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from optcc.runtime.messages import Broken, Pong, Reply

PING_S = 0.5
"""Between two questions for a sign of life. An answer costs a rank some 50 us."""

GRACE_S = 1.0
"""The peers of a rank that dies and the parent notice it in any order, milliseconds apart. So long after the first
accusation does the parent look for evidence of its own, and hear other ranks, before it takes a peer's word."""


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
    """Waits for one reply from each of `ranks` ranks, for `patience_s` without a sign of life or of progress.

    Times are seconds of one clock, `now` when the detector begins.
    """

    def __init__(self, ranks: int, patience_s: float, now: float) -> None:
        self.pending = set(range(ranks))
        self._patience_s = patience_s
        self._moved = self._asked = now
        self._unanswered: dict[int, float] = {}  # rank -> when it was asked
        self._state: dict[int, Pong] = {}
        self._evidence: tuple[int, str] | None = None
        self._accusations: dict[int, Accusation] = {}  # by accuser, in the order in which they came
        self._accused_at = now  # the first time

    def to_ask(self, now: float) -> list[int]:
        """The ranks to ping now: those that owe a reply and no answer."""
        if now - self._asked < PING_S:
            return []
        self._asked = now
        asked = sorted(self.pending - self._unanswered.keys())
        self._unanswered.update(dict.fromkeys(asked, now))
        return asked

    def heard(self, rank: int, message: Reply | Pong | Broken, now: float) -> None:
        """Take note of what `rank` says."""
        match message:
            case Reply():
                self.pending.discard(rank)
                self._moved = now
            case Pong(progress):
                if rank not in self._state or self._state[rank].progress != progress:
                    self._moved = now
                self._state[rank] = message
            case Broken(cause, None):
                self._evidence = self._evidence or (rank, cause)
            case Broken(cause, int(blamed)):
                if not self._accusations:
                    self._accused_at = now
                self._accusations.setdefault(rank, Accusation(blamed, cause))
        self._unanswered.pop(rank, None)

    def verdict(self, now: float) -> tuple[int, str] | None:
        """The rank that failed and how; None while there is hope."""
        if self._evidence:
            return self._evidence
        if self._accusations and now >= self._accused_at + GRACE_S:
            return most_accused(self._accusations)
        silent = min(self._unanswered, key=self._unanswered.__getitem__, default=None)
        stalled = bool(self.pending) and now - self._moved > self._patience_s
        if silent is not None and (stalled or now - self._unanswered[silent] > self._patience_s):
            return silent, f"no sign of life for {self._patience_s:.3g} s"
        if stalled:
            rank = min(self.pending)
            doing = self._state[rank].waiting_for if rank in self._state else "starting"
            return rank, f"no progress anywhere for {self._patience_s:.3g} s; there: {doing}"
        return None
