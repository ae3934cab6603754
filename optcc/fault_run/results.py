"""What a fault run gives: its phases before, during and after the fault, or how far it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING

from optcc.plans.plan import Plan

if TYPE_CHECKING:
    from optcc.runtime import Collective, RankFailedError
    from optcc.runtime.evidence.probing import FaultVerdict, ProbeResult
    from optcc.runtime.messages import Note, Strike

# The outcome of each fault, and whether it met traffic: by the notes of the ranks, never by durations


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


# Phases, and a whole run


@dataclass(frozen=True)
class Phase:
    """Collectives of one plan.

    seconds : of each collective; bound_s : the least time on the cluster as it was then
    """

    name: str
    seconds: tuple[float, ...]
    bound_s: float
    exact: bool

    @property
    def ratio(self) -> float:
        """The median over the bound."""
        return median(self.seconds) / self.bound_s if self.bound_s else 1.0


@dataclass(frozen=True)
class FaultRun:
    """Before, during, after. `events` : the notes of the hit collective, which started at `started_s`.

    lost : NICs that the next plan does without, or with less: name -> fraction left
    evidence : what probes between the collectives have shown of every NIC; verdicts : what follows from it
    returned : of the lost NICs those that probes, a boundary later, have found to be whole again
    back_plan, back : the plan from then on, and its collectives; None: no NIC has returned
    clock_error_s : so far may each time of the hit collective be off, on several machines; 0: on one
    """

    plan: Plan
    after_plan: Plan
    slowdown: Fraction
    before: Phase
    during: Phase
    after: Phase
    started_s: float
    events: tuple[Note, ...]
    failovers: tuple[Failover, ...]
    lost: dict[str, Fraction]
    evidence: tuple[ProbeResult, ...]
    clock_error_s: float = 0.0
    verdicts: tuple[FaultVerdict, ...] = ()
    returned: tuple[str, ...] = ()
    back_plan: Plan | None = None
    back: Phase | None = None

    @property
    def hit(self) -> bool:
        """The run proves that every fault struck while the collective ran, and met something on its NIC."""
        return all(failover.hit for failover in self.failovers)

    @property
    def exact(self) -> bool:
        """Every element right, on every rank, in every collective."""
        return all(phase.exact for phase in self.phases)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Those that there were, by time."""
        return tuple(phase for phase in (self.before, self.during, self.after, self.back) if phase)


@dataclass(frozen=True)
class BrokenFaultRun:
    """A fault run that ended with the failure of a rank, `error`, and what is known of it.

    before, during : None: it did not get that far
    events : what the ranks that could still tell have noted of the hit collective, which started at `started_s`
    """

    plan: Plan
    slowdown: Fraction
    before: Phase | None
    during: Phase | None
    started_s: float
    events: tuple[Note, ...]
    failovers: tuple[Failover, ...]
    error: RankFailedError
