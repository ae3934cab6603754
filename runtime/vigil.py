"""Who failed, and when to say so: the parent's judgement while it waits for the ranks. No clock, no I/O."""

from __future__ import annotations

from optcc.runtime.messages import Broken, Pong, Reply

PING_S = 0.5
"""Between two questions for a sign of life. An answer costs a rank some 50 us."""

GRACE_S = 1.0
"""The peers of a rank that dies and the parent notice it in any order, milliseconds apart. So long does the parent look
for evidence of its own before it takes a peer's word."""


class Vigil:
    """Waits for one reply from each of `ranks` ranks, for `patience_s` without a sign of life or of progress.

    Times are seconds of one clock, `now` when the vigil begins.
    """

    def __init__(self, ranks: int, patience_s: float, now: float) -> None:
        self.pending = set(range(ranks))
        self._patience_s = patience_s
        self._moved = self._asked = now
        self._unanswered: dict[int, float] = {}  # rank -> when it was asked
        self._state: dict[int, Pong] = {}
        self._accusation: tuple[float, int, str] | None = None  # when it becomes the verdict, rank, cause

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
            case Broken(cause, blames):
                accusation = (now, rank, cause) if blames is None else (now + GRACE_S, blames, f"rank {rank} {cause}")
                self._accusation = min(self._accusation or accusation, accusation)
        self._unanswered.pop(rank, None)

    def verdict(self, now: float) -> tuple[int, str] | None:
        """The rank that failed and how; None while there is hope."""
        if self._accusation and now >= self._accusation[0]:
            return self._accusation[1:]
        silent = min(self._unanswered, key=self._unanswered.__getitem__, default=None)
        stalled = bool(self.pending) and now - self._moved > self._patience_s
        if silent is not None and (stalled or now - self._unanswered[silent] > self._patience_s):
            return silent, f"no sign of life for {self._patience_s:.3g} s"
        if stalled:
            rank = min(self.pending)
            doing = self._state[rank].waiting_for if rank in self._state else "starting"
            return rank, f"no progress anywhere for {self._patience_s:.3g} s; there: {doing}"
        return None
