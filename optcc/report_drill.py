"""What a drill has shown, for people and for programs."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.table import Table

from optcc.report import plain_table, show
from optcc.units import format_rate, format_seconds, format_size

if TYPE_CHECKING:
    from optcc.drill import Drill, Failover, Phase
    from optcc.runtime.messages import Note


def drill_json(drill: Drill) -> dict[str, Any]:
    """The JSON value of `optcc run` with faults. Times in seconds; of events, from the start of the hit collective."""
    return {
        "exact": drill.exact,
        "conclusive": drill.hit,
        "slowdown": float(drill.slowdown),
        "plan_id": drill.plan.plan_id,
        "after_plan_id": drill.after_plan.plan_id,
        "phases": {phase.name: _phase_json(phase) for phase in (drill.before, drill.during, drill.after)},
        "failovers": [_failover_json(failover) for failover in drill.failovers],
        "nics_left": {nic: float(left) for nic, left in drill.lost.items()},
        "evidence": [{"out": e.out, "into": e.into, "bytes_per_second": e.rate} for e in drill.evidence],
        "events": [
            {
                "at_s": note.at - drill.started_s,
                "what": note.kind,
                "nic": note.nic,
                "far": note.far,
                "cause": note.cause,
                "text": note.text,
                "bytes": note.nbytes,
            }
            for note in drill.events
        ],
    }


def _phase_json(phase: Phase) -> dict[str, Any]:
    return {"times_s": list(phase.seconds), "bound_s": phase.bound_s, "ratio": phase.ratio, "exact": phase.exact}


def _failover_json(failover: Failover) -> dict[str, Any]:
    return {
        "nic": failover.nic,
        "kind": failover.kind,
        "at_s": failover.at_s,
        "cause": failover.cause,
        "detected_s": failover.detected_s,
        "resumed_s": failover.resumed_s,
        "replayed_bytes": failover.replayed_bytes,
    }


def print_drill(drill: Drill) -> None:
    """The timeline of the hit collective, what became of each fault, and the times before, during and after."""
    timeline = plain_table("the collective that was hit")
    for column in ("at", "what", "where", "how"):
        timeline.add_column(column, justify="right" if column == "at" else "left")
    for at, what, where, how in _lines(drill.events, drill.started_s):
        timeline.add_row(format_seconds(at), what, where, how)
    timeline.add_row(format_seconds(drill.during.seconds[0]), "done", "", "exact" if drill.during.exact else "WRONG")
    show(timeline)
    for failover in drill.failovers:
        show(_sentence(failover))
    if drill.lost:
        parts = (f"{nic} {'lost' if left == 0 else f'at {float(left):.0%}'}" for nic, left in drill.lost.items())
        show(f"found by probes: {', '.join(parts)}. The next plan goes by that.")
        for nic in drill.lost:
            show(f"  {nic}: {_witnesses(drill, nic)}")
    phases = Table(title="before, during and after", title_justify="left", title_style="bold")
    for column in ("", "time", "bound", "over bound", "result"):
        phases.add_column(column, justify="left" if column in ("", "result") else "right")
    for phase in (drill.before, drill.during, drill.after):
        phases.add_row(
            f"{phase.name}, median of {len(phase.seconds)}" if len(phase.seconds) > 1 else phase.name,
            format_seconds(phase.ratio * phase.bound_s),
            format_seconds(phase.bound_s),
            f"{phase.ratio:.4f}",
            "exact" if phase.exact else "WRONG",
        )
    show("", phases)


def _lines(events: tuple[Note, ...], start_s: float) -> list[tuple[float, str, str, str]]:
    """Neighbouring notes of the same kind from the same server as one line, at the time of the first."""

    def alike(note: Note) -> tuple[str, ...]:
        return (note.kind, _server(note.nic), note.cause) if note.kind == "lost" else (str(id(note)),)

    lines = []
    for _, group in groupby(events, key=alike):
        notes = list(group)
        first, nbytes = notes[0], sum(note.nbytes for note in notes)
        ends = [{note.nic for note in notes}, {note.far for note in notes}]
        near, far = (end.pop() if len(end) == 1 else _server(min(end)) for end in ends)
        wires = f", {len(notes)} wires" if len(notes) > 1 else ""
        again = f"; {format_size(nbytes)} again" if nbytes else ""
        where = f"{near} - {far}" if far else near
        lines.append((first.at - start_s, first.kind, where, f"{first.cause or first.text}{wires}{again}"))
    return lines


def _server(nic: str) -> str:
    return nic.partition("/")[0]


def _sentence(failover: Failover) -> str:
    if failover.detected_s is None:
        if failover.kind == "slow":
            return f"{failover.nic}: slowed down, no failover"
        return f"{failover.nic}: {failover.kind}, and nothing was under way on it"
    resumed = (
        f"all flows went on after {format_seconds(failover.resumed_s)}"
        if failover.resumed_s is not None
        else "no flow had to move"
    )
    return (
        f"{failover.nic}: {failover.kind} at {format_seconds(failover.at_s)}, noticed after "
        f"{format_seconds(failover.detected_s)} by {failover.cause}, {resumed}, "
        f"{format_size(failover.replayed_bytes)} sent again"
    )


def _witnesses(drill: Drill, nic: str) -> str:
    parts = []
    for e in drill.evidence:
        if nic in (e.out, e.into):
            far, way = (e.into, "to") if e.out == nic else (e.out, "from")
            parts.append(f"{way} {far} {'nothing' if e.rate is None else format_rate(e.rate, 3)}")
    return ", ".join(parts)
