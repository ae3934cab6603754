"""The outcome of each fault, and whether it met traffic: by the notes of the ranks, never by durations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

    from optcc.runtime import Collective
    from optcc.runtime.messages import Note, Strike


@dataclass(frozen=True)
class Failover:
    """What became of one fault. Times in seconds from the fault; None: it did not come to that.

    cause : how it was first noticed
    at_s : when it struck, from the start of the collective; None: it never did, or nobody could tell
    detected_s : until the first rank knew; resumed_s : until the last flow went on by other NICs
    replayed_bytes : payload that was sent again
    held : notifications, acknowledgements and credits that it kept waiting, where the wires can count them
    slowed_bytes : payload that left by the NIC after it had been slowed down
    hit : the run proves that something was under way that the fault met; None: the run did not get that far
    """

    nic: str
    kind: str
    at_s: float | None
    cause: str = ""
    detected_s: float | None = None
    resumed_s: float | None = None
    replayed_bytes: int = 0
    held: int = 0
    slowed_bytes: int = 0
    hit: bool | None = None


def failovers_of(
    strikes: Sequence[Strike], notes: Sequence[Note], start_s: float, slack_s: float = 0.0
) -> tuple[Failover, ...]:
    """Put together what the ranks have noted, by time, about each fault of a collective that began at `start_s`.

    A fault owns the notes about its NIC until the next fault there. slack_s : seconds by which another machine's note
    may be too early
    """
    rows = _struck(strikes, notes)
    return tuple(_failover(strike, row, notes, start_s, slack_s) for strike, row in zip(strikes, rows, strict=True))


def _struck(strikes: Sequence[Strike], notes: Sequence[Note]) -> list[int | None]:
    """Which note says that a fault struck, by fault; None: none does. Of two alike the one due earlier comes first."""
    found: list[int | None] = [None] * len(strikes)
    for i in sorted(range(len(strikes)), key=lambda i: strikes[i].at):
        for row, note in enumerate(notes):
            same = (note.nic, note.far, note.cause) == (strikes[i].nic, strikes[i].far, strikes[i].kind)
            if note.kind == "struck" and same and row not in found:
                found[i] = row
                break
    return found


_FINAL = ("cut", "fatal")
"""Kinds of faults after which a NIC has nothing left to lose."""


def _failover(strike: Strike, row: int | None, notes: Sequence[Note], start_s: float, slack_s: float) -> Failover:
    if row is None:
        return Failover(strike.nic, strike.kind, None)
    at = notes[row].at
    strokes = [i for i, note in enumerate(notes) if note.kind == "struck" and note.nic == strike.nic]
    earlier, later = [i for i in strokes if i < row], [i for i in strokes if i > row]
    if any(notes[i].cause in _FINAL for i in earlier):
        return Failover(strike.nic, strike.kind, at - start_s)  # what is noted from here on comes of that one
    window = notes[max(earlier, default=-1) + 1 : min(later, default=len(notes))]
    own = [note for note in window if note.at >= at - slack_s and _about(strike, note)]
    seen = [note for note in own if note.kind in ("lost", "nic down")]
    moved = [note for note in own if note.kind == "moved"]
    # This comes when a fault ends, however many others have struck by then; flaps that overlap end together.
    ended = [
        note
        for note in notes[row:]
        if note.kind in ("healed", "held", "slowed") and (note.nic, note.cause) == (strike.nic, strike.kind)
    ][:1]
    return Failover(
        nic=strike.nic,
        kind=strike.kind,
        at_s=at - start_s,
        cause=seen[0].cause if seen else "",
        detected_s=max(0.0, seen[0].at - at) if seen else None,
        resumed_s=max(0.0, max(note.at for note in moved) - at) if moved else None,
        replayed_bytes=sum(note.nbytes for note in moved),
        held=sum(note.held for note in ended),
        slowed_bytes=sum(note.nbytes for note in ended),
    )


def _about(strike: Strike, note: Note) -> bool:
    """Whether a note is about the NIC that was struck; the path; of a server that was killed, any of its NICs."""
    ends = {note.nic, note.far}
    if strike.kind == "kill":
        return any(end.partition("/")[0] == strike.nic.partition("/")[0] for end in ends)
    return {strike.nic, strike.far} <= ends if strike.far else strike.nic in ends


def proved(
    strike: Strike, failover: Failover, hit: Collective, usual: Collective, lost: Mapping[str, Fraction]
) -> bool:
    """Whether the fault met something: bytes went again or by other NICs, or were held back, or left at less a rate.

    That the collective took longer proves nothing: it may have been the machine.
    """
    if failover.at_s is None:
        return False
    if strike.kind == "slow":
        return strike.nic in lost and failover.slowed_bytes > 0
    if failover.held:
        return True
    if failover.detected_s is None:
        return False
    causes = [note.cause for note in hit.notes if note.kind == "struck" and note.nic == strike.nic]
    # Of several faults of a NIC nothing tells which has diverted its traffic, unless the first left nothing to divert.
    own = causes[0] == strike.kind and (len(causes) == 1 or strike.kind in _FINAL)
    return failover.replayed_bytes > 0 or (own and _sent(hit, strike.nic) < _sent(usual, strike.nic))


def _sent(run: Collective, nic: str) -> int:
    return sum(rank.sent.get(nic, 0) for rank in run.ran)
