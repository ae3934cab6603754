"""Chrome traces, parsed from JSON, with a planted fault each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


def _spans(trace: Json, out: bool) -> list[Json]:
    """Spans of transfers on ports that send (`out`) or receive."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    return [
        e for e in trace["traceEvents"]
        if e["ph"] == "X" and "transfer" in e["args"] and names[e["pid"], e["tid"]].endswith(" out") == out
    ]  # fmt: skip


def _drop_span(trace: Json, out: bool) -> None:
    trace["traceEvents"].remove(_spans(trace, out)[0])


def _doubled(trace: Json) -> None:
    trace["traceEvents"].append(copy.deepcopy(_spans(trace, True)[0]))


def _with(out: bool, **values: object) -> Callable[[Json], None]:
    return lambda trace: _spans(trace, out)[-1].update(values)


def _unnamed(trace: Json) -> None:
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["name"] != "thread_name"]


def _no_processes(trace: Json) -> None:
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["name"] != "process_name"]


def _fewer_bytes(trace: Json) -> None:
    _spans(trace, False)[0]["args"]["bytes"] -= 8


def _longer(trace: Json) -> None:
    span = _spans(trace, True)[0]
    span["dur"] += 10**9


PERFETTO: dict[str, tuple[Callable[[Json], None], str]] = {
    "a span of sending is missing": (lambda t: _drop_span(t, True), "land whole|is missing"),
    "a span of receiving is missing": (lambda t: _drop_span(t, False), "land whole|is missing"),
    "a span twice": (_doubled, "same time"),
    "landed before it left": (_with(False, ts=0.0), "before it leaves|same time"),
    "sent after it landed": (_with(True, ts=1e9), "before it leaves|before it has left"),
    "a span that ends before it begins": (_with(True, dur=-1.0), "ends before"),
    "a span before time began": (_with(True, ts=-1.0), "begins before"),
    "tracks without names": (_unnamed, "no name"),
    "processes without names": (_no_processes, "no name"),
    "bytes lost on the way": (_fewer_bytes, "land whole"),
    "a span over others": (_longer, "same time|has landed before"),
    "a span on another rank's port": (_with(True, pid=2), "not its own|no name|same time"),
}
