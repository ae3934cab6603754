"""A plan's simulated run as a Chrome trace for ui.perfetto.dev, read back and checked for what such a trace must hold.

The trace is `timeline.chrome_trace`: a process per rank, a thread per port and direction, spans in microseconds. It
tells when bytes moved, not which: the interpreter checks times, tracks and byte counts, and cannot check data.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from optcc.errors import InputError, VerifyError
from optcc.plans.plan import Plan
from optcc.simulation.simulator import simulate
from optcc.simulation.timeline import chrome_trace

SLACK_US = 1e-3
"""Times are floating-point microseconds of whole picoseconds."""
IDLE = "forced idle"


@dataclass(frozen=True)
class TrackSpan:
    """Something that a track did, in microseconds. transfer : None for forced idle"""

    track: tuple[int, int]
    name: str
    begin: float
    duration: float
    transfer: int | None = None
    nbytes: int = 0
    src: int = -1
    dst: int = -1


@dataclass(frozen=True)
class Trace:
    """names : (process, thread) -> the thread's name; processes : process -> name"""

    processes: dict[int, str]
    names: dict[tuple[int, int], str]
    spans: tuple[TrackSpan, ...]


@dataclass(frozen=True)
class PerfettoRun:
    """What was checked: spans."""

    operations: int


def export(plan: Plan) -> str:
    """The trace of a simulated run of `plan`, as JSON text."""
    return json.dumps(chrome_trace(simulate(plan.schedule())))


def load(text: str, where: str = "trace") -> Trace:
    """Read a trace back. Raises InputError for what is not one."""
    try:
        processes, names, spans = {}, {}, []
        for event in json.loads(text)["traceEvents"]:
            pid, tid, args = int(event["pid"]), int(event["tid"]), event["args"]
            if event["ph"] == "M":
                if event["name"] == "process_name":
                    processes[pid] = str(args["name"])
                else:
                    names[pid, tid] = str(args["name"])
                continue
            if event["ph"] != "X":
                raise ValueError(f"an event of phase {event['ph']}")
            moved = (
                (args["transfer"], args["bytes"], args["from"], args["to"])
                if event["name"] != IDLE
                else (None, 0, -1, -1)
            )
            spans.append(TrackSpan((pid, tid), str(event["name"]), float(event["ts"]), float(event["dur"]), *moved))
        return Trace(processes, names, tuple(spans))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError("cannot be read", where=where, expected="a Chrome trace", got=repr(error)[:200]) from None


def run(trace: Trace) -> PerfettoRun:
    """Raise VerifyError unless tracks do one thing at a time, and what leaves also lands, whole and not before."""
    by_track: dict[tuple[int, int], list[TrackSpan]] = defaultdict(list)
    for span in trace.spans:
        if span.track not in trace.names or span.track[0] not in trace.processes:
            raise VerifyError(f"a span on track {span.track}, which has no name")
        if not (span.begin >= 0 and span.duration >= 0):
            raise VerifyError(f"a span on {trace.names[span.track]} that ends before it begins, or begins before 0")
        by_track[span.track].append(span)
    for track, spans in by_track.items():
        spans.sort(key=lambda span: (span.begin, span.duration))
        for one, other in pairwise(spans):
            if one.begin + one.duration > other.begin + SLACK_US:
                raise VerifyError(f"two spans at the same time on {trace.names[track]}, at {other.begin} us")
    sides: dict[tuple[int, bool], list[TrackSpan]] = defaultdict(list)
    for span in trace.spans:
        leaving = trace.names[span.track].endswith(" out")
        if span.transfer is not None and trace.processes[span.track[0]] != "links":
            if span.track[0] != (span.src if leaving else span.dst):
                raise VerifyError(f"transfer {span.transfer} is on a port of rank {span.track[0]}, not its own")
            sides[span.transfer, leaving].append(span)
    for transfer in {transfer for transfer, _ in sides}:
        out, into = sides[transfer, True], sides[transfer, False]
        if sum(span.nbytes for span in out) != sum(span.nbytes for span in into):
            raise VerifyError(f"transfer {transfer} does not land whole")
        if min(s.begin for s in into) + SLACK_US < min(s.begin for s in out):
            raise VerifyError(f"transfer {transfer} lands before it leaves")
        if max(s.begin + s.duration for s in into) + SLACK_US < max(s.begin + s.duration for s in out):
            raise VerifyError(f"transfer {transfer} has landed before it has left")
    return PerfettoRun(len(trace.spans))
