"""What people see of `optcc run`, with faults and without: tables, JSON values, progress."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from optcc.fault_run.results import BrokenFaultRun
from optcc.plans.plan import Plan
from optcc.reports.console import plain_table, plan_json, print_plan, ratio_of, show
from optcc.values.units import format_rate, format_seconds, format_size

if TYPE_CHECKING:
    from optcc.api import Run
    from optcc.fault_run.results import Failover, FaultRun, Phase
    from optcc.runtime.evidence.probing import FaultVerdict
    from optcc.runtime.messages import Note


BUSY = 1.5
"""Emulated NICs that take so many times as long as in virtual time wait for the processor."""


def run_json(plan: Plan, outcome: Run, simulated_s: float) -> dict[str, Any]:
    """The JSON value of `optcc run`. Times are of the scaled-down cluster; `nominal` is the cluster asked for."""
    bound_s = float(outcome.plan.bound.seconds)
    nominal_s = float(plan.bound.seconds)
    rows = {
        name: {
            "achieved_s": result.median_s,
            "ratio": ratio_of(result.median_s, bound_s),
            "exact": all(result.exact),
            "times_s": list(result.seconds),
        }
        for name, result in outcome.results.items()
    }
    names = [rank.name for rank in plan.cluster.ranks]
    return {
        "achieved_s": rows["optcc"]["achieved_s"],
        "bound_s": bound_s,
        "ratio": rows["optcc"]["ratio"],
        "exact": outcome.exact,
        "exact_per_rank": {
            name: all(result.exact[i] for result in outcome.results.values()) for i, name in enumerate(names)
        },
        "algorithms": rows,
        "left_out": outcome.left_out,
        "slowdown": float(outcome.slowdown),
        "clock_error_s": _clock_error_s(outcome),
        "nominal": {**plan_json(plan), "simulated_s": simulated_s, "simulated_ratio": ratio_of(simulated_s, nominal_s)},
        "transport": outcome.transport,
    }


def print_run(plan: Plan, outcome: Run, value: dict[str, Any]) -> None:
    """The report of the main job."""
    print_plan(plan)
    table = Table(title=where_run(outcome), title_justify="left", title_style="bold")
    for column, justify in (("", "left"), ("time", "right"), ("over bound", "right"), ("result", "left")):
        table.add_column(column, justify="right" if justify == "right" else "left")
    table.add_row("bound", format_seconds(value["bound_s"]), "1.0000", "")
    table.add_row("optcc, simulated", "", f"{value['nominal']['simulated_ratio']:.4f}", "")
    for name, row in value["algorithms"].items():
        result = "exact" if row["exact"] else Text("WRONG", "bold red")
        times = row["times_s"]
        label = f"{name}, median of {len(times)}"
        table.add_row(label, format_seconds(row["achieved_s"]), f"{row['ratio']:.4f}", result)
    show("", table)
    show_clock_error(value["clock_error_s"])
    exact = "  ".join(f"{name} {'exact' if good else 'WRONG'}" for name, good in value["exact_per_rank"].items())
    show(exact)
    for name, why in outcome.left_out.items():
        show(f"{name} was left out: {why}")
    ring, simulated = value["algorithms"].get("ring"), value["nominal"]["simulated_ratio"]
    if outcome.transport == "local" and simulated and value["ratio"] > BUSY * simulated:
        show(
            f"optcc took {value['ratio'] / simulated:.3g} times as long as simulated: the processor was the limit, not "
            "the emulated NICs, so that this says nothing of schedules. Give a lower --local-rate."
        )
    elif ring:
        show(compared_with_ring(plan, value["algorithms"]["optcc"]["times_s"], ring["times_s"]))


def compared_with_ring(plan: Plan, own: Sequence[float], ring: Sequence[float]) -> str:
    """One sentence on two schedules' times in seconds, each of one run's repetitions.

    A difference is claimed only if the two ranges of times do not overlap: every run of one was faster than every run
    of the other. One repetition has no range, and shows no difference.
    """
    if _is_ring(plan):
        return "optcc's plan is the ring here: nothing is degraded that another schedule could spare."
    if min(len(own), len(ring)) > 1:
        factor = median(ring) / median(own)
        if max(own) < min(ring):
            return f"optcc's schedule is {factor:.2f} times as fast as the ring."
        if max(ring) < min(own):
            return f"The ring is {1 / factor:.2f} times as fast as optcc's schedule."
    ranges = (f"{format_seconds(min(times))} to {format_seconds(max(times))}" for times in (own, ring))
    return "No difference beyond this run's spread: optcc took {}, the ring {}.".format(*ranges)


def _is_ring(plan: Plan) -> bool:
    """Whether every byte goes around a ring of all ranks, in even parts by each rank's NICs, which are alike."""
    shares = plan.choices.get("shares") or []
    rates = [{(nic.out_rate, nic.in_rate) for nic in rank.nics if nic.alive} for rank in plan.cluster.ranks]
    alike = all(len(of_rank) == 1 for of_rank in rates)
    ring = len(plan.cluster.ranks)
    nested = plan.family == "nested-rings" and bool(shares) and all(share["ring"] == ring for share in shares)
    return alike and (nested or plan.family == "ring")


def where_run(outcome: Run) -> str:
    """The machines and what carried the bytes between them: the title over measured times."""
    several = _clock_error_s(outcome) > 0  # one machine's processes share a clock
    over = {"local": "emulated NICs", "tcp": "TCP over its interfaces", "verbs": "RDMA NICs over verbs"}
    carried = over[outcome.transport]
    slowdown = f", rates divided by {float(outcome.slowdown):.4g}" if outcome.slowdown > 1 else ""
    return f"on {'several machines' if several else 'this machine'} ({carried}{slowdown})"


def _clock_error_s(outcome: Run) -> float:
    return max(result.clock_error_s for result in outcome.results.values())


def show_clock_error(error_s: float) -> None:
    """Say how well the times of several machines can be compared; nothing where all ranks share a clock."""
    if error_s:
        show(f"the clocks of several machines: every time is within {format_seconds(error_s)} of rank 0's clock")


@contextmanager
def run_progress(repeat: int) -> Iterator[Callable[[str, int, float], None]]:
    """A progress bar on stderr, fed with (algorithm, repetitions done, seconds of the last one)."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not Console(stderr=True).is_terminal,
    ) as bar:
        tasks: dict[str, Any] = {}

        def advance(algorithm: str, done: int, seconds: float) -> None:
            if algorithm not in tasks:
                tasks[algorithm] = bar.add_task(algorithm, total=repeat)
            bar.update(tasks[algorithm], completed=done, description=f"{algorithm} {format_seconds(seconds)}")

        yield advance


_Line = tuple[float, str, str, str]  # when, what, where, how


def fault_run_json(outcome: FaultRun | BrokenFaultRun) -> dict[str, Any]:
    """The JSON value of `optcc run` with faults. Times in seconds; of events, from the start of the hit collective.

    The same keys whether or not the run came to its end: missing values are null or empty, and `error` says why; null:
    it did.
    """
    return {
        "exact": None,
        "conclusive": None,
        "slowdown": float(outcome.slowdown),
        "clock_error_s": 0.0,
        "plan_id": outcome.plan.plan_id,
        "family": outcome.plan.family,
        "after_plan_id": None,
        "after_family": None,
        "phases": {},
        "failovers": [asdict(failover) for failover in outcome.failovers],
        "nics_left": {},
        "returned": [],
        "back_plan_id": None,
        "verdicts": [],
        "evidence": [],
        "events": [_event_json(note, outcome.started_s) for note in outcome.events],
        "error": None,
        **(_broken_json(outcome) if isinstance(outcome, BrokenFaultRun) else _whole_json(outcome)),
    }


def _whole_json(outcome: FaultRun) -> dict[str, Any]:
    return {
        "exact": outcome.exact,
        "conclusive": outcome.hit,
        "clock_error_s": outcome.clock_error_s,
        "after_plan_id": outcome.after_plan.plan_id,
        "after_family": outcome.after_plan.family,
        "phases": {phase.name: _phase_json(phase) for phase in outcome.phases},
        "nics_left": {nic: float(left) for nic, left in outcome.lost.items()},
        "returned": list(outcome.returned),
        "back_plan_id": outcome.back_plan.plan_id if outcome.back_plan else None,
        "verdicts": [
            {"what": v.what, "nics": list(v.nics), "left": {n: float(left) for n, left in v.left.items()}, "why": v.why}
            for v in outcome.verdicts
        ],
        "evidence": [
            {"out": e.out, "into": e.into, "bytes_per_second": e.rate, "down": list(e.down)} for e in outcome.evidence
        ],
    }


def _broken_json(outcome: BrokenFaultRun) -> dict[str, Any]:
    error = outcome.error
    return {
        "phases": {phase.name: _phase_json(phase) for phase in (outcome.before, outcome.during) if phase},
        "error": {
            "type": type(error).__name__,
            "rank": error.rank,
            "cause": error.cause,
            "at_s": None if error.at_s is None else error.at_s - outcome.started_s,
            "seen_by": {str(rank): text for rank, text in error.seen_by.items()},
        },
    }


def _event_json(note: Note, start_s: float) -> dict[str, Any]:
    return {
        "at_s": note.at - start_s,
        "what": note.kind,
        "nic": note.nic,
        "far": note.far,
        "cause": note.cause,
        "text": note.text,
        "bytes": note.nbytes,
        "held": note.held,
    }


def _phase_json(phase: Phase) -> dict[str, Any]:
    return {"times_s": list(phase.seconds), "bound_s": phase.bound_s, "ratio": phase.ratio, "exact": phase.exact}


def print_fault_run(outcome: FaultRun) -> None:
    """The timeline of the hit collective, what became of each fault, and the times before, during and after."""
    timeline = _timeline(_lines(outcome.events, outcome.started_s))
    timeline.add_row(
        format_seconds(outcome.during.seconds[0]), "done", "", "exact" if outcome.during.exact else "WRONG"
    )
    old, new = outcome.plan, outcome.after_plan
    if new.plan_id == old.plan_id:
        timeline.add_row("next", "same plan", old.plan_id, old.family)
    else:
        timeline.add_row("next", "new plan", new.plan_id, f"{new.family}, after {old.plan_id}")
    show(timeline)
    show_clock_error(outcome.clock_error_s)
    for failover in outcome.failovers:
        show(_sentence(failover))
    if outcome.verdicts:
        show(f"found by probes: {', '.join(map(_found, outcome.verdicts))}. The next plan goes by that.")
    for verdict in outcome.verdicts:
        show(f"  {verdict.what} {' - '.join(verdict.nics)}: {verdict.why}")
        for nic in verdict.nics:
            show(f"    {nic}: {_witnesses(outcome, nic)}")
        if verdict.what == "path":
            show(f"    Plans cannot do without a path; they do without {', '.join(verdict.left)}, which works.")
    if outcome.back_plan:
        again = (
            "the plan from before" if outcome.back_plan.plan_id == old.plan_id else f"plan {outcome.back_plan.plan_id}"
        )
        show(f"back by the next boundary, by probes: {', '.join(outcome.returned)}. From there on {again} ran.")
    show("", _phases("before, during and after", outcome.phases))


def print_broken(outcome: BrokenFaultRun) -> None:
    """The timeline of the hit collective up to the failure of a rank, what became of each fault, and who saw what."""
    error = outcome.error
    lines = _lines(outcome.events, outcome.started_s)
    verdict = ("verdict", f"rank {error.rank}", error.cause)
    lines.append((math.inf if error.at_s is None else error.at_s - outcome.started_s, *verdict))
    show(_timeline(sorted(lines, key=lambda line: line[0])))
    for failover in outcome.failovers:
        show(_sentence(failover))
    alike: dict[str, list[str]] = {}
    for rank, text in error.seen_by.items():
        alike.setdefault(text, []).append(str(rank))
    for text, ranks in alike.items():
        show(f"seen by rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}: {text}")
    done = [phase for phase in (outcome.before, outcome.during) if phase]
    if done:
        show("", _phases("up to the failure", done))


def _timeline(lines: Sequence[_Line]) -> Table:
    timeline = plain_table("the collective that was hit")
    for column in ("at", "what", "where", "how"):
        timeline.add_column(column, justify="right" if column == "at" else "left")
    for at, what, where, how in lines:
        timeline.add_row("" if at == math.inf else format_seconds(at), what, where, how)
    return timeline


def _phases(title: str, done: Sequence[Phase]) -> Table:
    phases = Table(title=title, title_justify="left", title_style="bold")
    for column in ("", "time", "bound", "over bound", "result"):
        phases.add_column(column, justify="left" if column in ("", "result") else "right")
    for phase in done:
        phases.add_row(
            f"{phase.name}, median of {len(phase.seconds)}" if len(phase.seconds) > 1 else phase.name,
            format_seconds(phase.ratio * phase.bound_s),
            format_seconds(phase.bound_s),
            f"{phase.ratio:.4f}",
            "exact" if phase.exact else "WRONG",
        )
    return phases


def _lines(events: Sequence[Note], start_s: float) -> list[_Line]:
    """What a server notes of several wires, one after the other, as one line, at the time of the first."""
    groups: list[list[Note]] = []
    last: dict[str, list[Note]] = {}  # server -> its last group
    for note in events:
        group = last.get(_server(note.nic))
        if group and note.kind in ("lost", "fenced") and (note.kind, note.cause) == (group[0].kind, group[0].cause):
            group.append(note)
        else:
            groups.append([note])
            last[_server(note.nic)] = groups[-1]
    return [_line(group, start_s) for group in groups]


def _line(notes: Sequence[Note], start_s: float) -> _Line:
    first = notes[0]
    ends = [{note.nic for note in notes}, {note.far for note in notes}]
    near, far = (end.pop() if len(end) == 1 else _of_servers(end) for end in ends)
    wires = f", {len(notes)} wires" if len(notes) > 1 else ""
    again = f"; {format_size(first.nbytes)} again" if first.kind == "moved" and first.nbytes else ""
    where = f"{near} - {far}" if far else near
    how = first.text if first.kind in ("healed", "held") else first.cause or first.text
    if first.kind == "slowed":
        how = f"{format_size(first.nbytes)} {first.text}"
    return first.at - start_s, first.kind, where, f"{how}{wires}{again}"


def _of_servers(nics: Iterable[str]) -> str:
    servers = sorted({_server(nic) for nic in nics})
    return servers[0] if len(servers) == 1 else f"{len(servers)} servers"


def _server(nic: str) -> str:
    return nic.partition("/")[0]


def _sentence(failover: Failover) -> str:
    nic, kind = failover.nic, failover.kind
    if kind == "kill":
        nic = _server(nic)
    if failover.at_s is None:
        return f"{nic}: {kind}, which is not known to have struck: its rank may have been done before"
    struck = f"{nic}: {kind} at {format_seconds(failover.at_s)}"
    if kind == "slow":
        return f"{struck}, {format_size(failover.slowed_bytes)} sent after that, no failover"
    kept = f"{failover.held} messages held back"
    if failover.detected_s is None:
        return f"{struck}, {kept}, no failover" if failover.held else f"{struck}, and nothing was under way on it"
    noticed = f"{struck}, noticed after {format_seconds(failover.detected_s)} by {failover.cause}"
    if failover.hit is None:
        return noticed
    resumed = (
        f"all flows went on after {format_seconds(failover.resumed_s)}"
        if failover.resumed_s is not None
        else "no flow had to move"
    )
    also = f", {kept}" if failover.held else ""
    return f"{noticed}{also}, {resumed}, {format_size(failover.replayed_bytes)} sent again"


def _found(verdict: FaultVerdict) -> str:
    ends = " - ".join(verdict.nics)
    if verdict.what == "path":
        return f"path {ends} broken"
    left = max(verdict.left.values())
    who = {"nic": ends, "nic or path": f"{ends} or its path"}.get(verdict.what, f"{ends}, path or either end,")
    return f"{who} {'lost' if left == 0 else f'at {float(left):.0%}'}"


def _witnesses(outcome: FaultRun, nic: str) -> str:
    parts = []
    for e in outcome.evidence:
        if nic in (e.out, e.into):
            far, way = (e.into, "to") if e.out == nic else (e.out, "from")
            parts.append(f"{way} {far} {'nothing' if e.rate is None else format_rate(e.rate, 3)}")
    return ", ".join(dict.fromkeys(parts))
